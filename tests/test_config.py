"""The recipes' numbers, as the papers state them, and what a user is told about a wrong flag."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

import sft
import train
from minirl.cli.command_line import check, from_command_line
from minirl.config import Config, to_json
from minirl.recipes import RECIPES

FLAGS = """
--recipe --name --seed --steps --eval-every --save-every --resume --replay --warm-start --shuffle-rewards
--plan
--model.path --model.dtype --model.gradient-checkpointing --model.freeze-vision --model.max-pixels
--agent.kind --agent.brief --agent.prompt --agent.screenshots --agent.feedback --agent.answers
--agent.reasoning --agent.response-tokens --agent.context-tokens --agent.format-errors --agent.repeats
--browser.browsers --browser.connect --browser.episodes --browser.width --browser.height
--browser.action-seconds --browser.episode-seconds --browser.quiet-ms --browser.private --browser.allow
--browser.deny --browser.host-rate
--sampler.kind --sampler.temperature --sampler.gpu-memory
--endpoint.url --endpoint.model --endpoint.key --endpoint.seconds --endpoint.price
--judge.url --judge.model --judge.key --judge.seconds --judge.price --judge.path --judge.input
--judge.prompt --judge.response-tokens
--task.train --task.heldout --task.demo-goals --task.short --task.demo-long --task.reward
--task.reset
--rollout.group --rollout.groups --rollout.dynamic --rollout.max-steps --rollout.dump-all
--reward.by --reward.invalid --reward.format --reward.after --reward.format-error --reward.partial
--loss.method --loss.weighting --loss.old --loss.clip-high --loss.kl --loss.std-eps
--optim.betas --optim.weight-decay --optim.grad-clip --optim.lr --optim.decay --optim.replicas
--optim.offload
--batch.epochs --batch.minibatch-turns --batch.micro-tokens --batch.layout
--sft.betas --sft.weight-decay --sft.grad-clip --sft.demos --sft.lr --sft.epochs --sft.max-steps --sft.batch
--sft.max-pixels --sft.warmup --sft.held-back
--eval.episodes --eval.max-steps --eval.temperature --eval.top-p --eval.top-k --eval.response-tokens
"""
BUILT = ["tiny", "tiny_text", "openwebrl_4b", "openwebrl_8b", "webagent_r1_3b", "webagent_r1_8b"]
BUILT += ["autowebworld_3b", "autowebworld_7b"]


def parse(*argv: str) -> Config:
    return from_command_line(argv, "train.py")


# --- recipes ---------------------------------------------------------------------------------------


def test_the_recipes_there_are_and_that_each_knows_its_name():
    assert sorted(RECIPES) == sorted(BUILT)
    assert next(iter(RECIPES)) == "tiny", "the one that is taken without a name"
    for name, recipe in RECIPES.items():
        assert recipe().recipe == name


def numbers(config: Config) -> dict[str, object]:
    """What the papers' tables of hyperparameters state."""
    rollout, loss, optim = config.rollout, config.loss, config.optim
    return {
        "lr": optim.lr,
        "betas": optim.betas,
        "grad clip": optim.grad_clip,
        "group": rollout.group,
        "groups": rollout.groups,
        "dynamic": rollout.dynamic,
        "turns": rollout.max_steps,
        "clip": loss.clip_high,
        "kl": loss.kl,
        "epochs": config.batch.epochs,
        "response, context": (config.agent.response_tokens, config.agent.context_tokens),
        "temperature": config.sampler.temperature,
        "viewport": (config.browser.width, config.browser.height),
    }


def cloning(config: Config) -> dict[str, object]:
    """What papers, or the libraries that they clone with, state of SFT."""
    sft = config.sft
    return {
        "lr, warm-up": (sft.lr, sft.warmup),
        "epochs, batch": (sft.epochs, sft.batch),
        "Adam": (sft.betas, sft.weight_decay, sft.grad_clip),
        "vision": (config.model.freeze_vision, sft.max_pixels),
    }


CLONING = {
    "lr, warm-up": (1e-5, 0.1),
    "epochs, batch": (3, 128),
    "Adam": ((0.9, 0.999), 0.0, 1.0),
    "vision": ("never", None),
}
OPENWEBRL = {
    "lr": 1e-6,
    "betas": (0.9, 0.98),
    "grad clip": 1.0,
    "group": 5,
    "groups": 48,
    "dynamic": True,
    "turns": (15, 90, 30),
    "clip": 0.28,
    "kl": 0.0,
    "epochs": 2,
    "response, context": (1024, 32768),
    "temperature": 0.8,
    "viewport": (1280, 1000),
}


def test_openwebrl_4b():
    config = RECIPES["openwebrl_4b"]()
    assert config.model.path == "Qwen/Qwen3-VL-4B-Thinking"
    assert numbers(config) == OPENWEBRL
    assert config.steps == 140  # 90 of 15 turns, 50 of 30
    assert config.optim.weight_decay == 0.1
    assert config.batch.minibatch_turns == 256
    assert config.loss.weighting == "openwebrl"
    assert cloning(config) == CLONING | {"vision": ("sft", 512 * 512)}
    assert config.batch.micro_tokens == 36_864  # a longer demonstration is left out
    assert config.browser.episode_seconds == 600
    evaluation = config.eval
    assert (evaluation.max_steps, evaluation.response_tokens) == (30, 4096)
    assert (evaluation.temperature, evaluation.top_p, evaluation.top_k) == (0.6, 0.95, 20)


def test_openwebrl_8b_learns_at_half_the_rate():
    config = RECIPES["openwebrl_8b"]()
    assert config.model.path == "Qwen/Qwen3-VL-8B-Thinking"
    assert numbers(config) == OPENWEBRL | {"lr": 5e-7}
    assert cloning(config) == cloning(RECIPES["openwebrl_4b"]())


@pytest.mark.parametrize(
    ("recipe", "path"),
    [
        ("webagent_r1_3b", "Qwen/Qwen2.5-3B-Instruct"),
        ("webagent_r1_8b", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_webagent_r1(recipe, path):
    config = RECIPES[recipe]()
    assert config.model.path == path
    assert numbers(config) == {
        "lr": 1e-6,
        "betas": (0.9, 0.99),
        "grad clip": 0.01,
        "group": 4,
        "groups": 16,
        "dynamic": False,
        "turns": (15,),
        "clip": 0.2,
        "kl": 0.001,
        "epochs": 1,
        "response, context": (1024, 16384),
        "temperature": 1.0,
        "viewport": (1280, 720),
    }
    assert config.agent.kind == "text" and config.loss.weighting == "webagent-r1"
    assert cloning(config) == CLONING | {"lr, warm-up": (5e-5, 0.05)}
    assert config.optim.weight_decay == 0.0
    assert (config.eval.max_steps, config.eval.temperature, config.eval.top_p) == (30, 1.0, 0.9)


@pytest.mark.parametrize(
    ("recipe", "path"),
    [
        ("autowebworld_3b", "Qwen/Qwen2.5-VL-3B-Instruct"),
        ("autowebworld_7b", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ],
)
def test_autowebworld(recipe, path):
    config = RECIPES[recipe]()
    assert (config.model.path, config.model.max_pixels) == (path, 12_845_056)
    stated = numbers(config)
    del stated["response, context"]
    assert stated == {
        "lr": 1e-6,
        "betas": (0.9, 0.999),
        "grad clip": 1.0,
        "group": 8,
        "groups": 32,
        "dynamic": False,
        "turns": (1,),
        "clip": 0.2,
        "kl": 0.04,
        "epochs": 1,
        "temperature": 1.0,
        "viewport": (1280, 720),
    }
    assert config.optim.weight_decay == 0.0
    assert config.steps == 508 and config.steps == -(-16_253 // 32), "every sample once"
    assert config.agent.response_tokens == 256 and config.eval.max_steps == 15
    assert config.agent.kind == "autowebworld" and config.loss.weighting == "grpo"
    assert config.optim.decay and config.warm_start == "none" and config.reward.after == "any"
    assert config.loss.std_eps == pytest.approx(1e-4 / 3), "of rewards from 0 to 1, there to 3"


@pytest.mark.parametrize("recipe", ["tiny", "tiny_text"])
def test_the_laptops_recipes_clone_with_the_optimizer_that_they_reinforce_with(recipe):
    config = RECIPES[recipe]()
    assert (config.optim.betas, config.optim.weight_decay, config.optim.grad_clip) == ((0.9, 0.98), 0.1, 1.0)
    assert cloning(config)["Adam"] == ((0.9, 0.98), 0.1, 1.0)


@pytest.mark.parametrize("recipe", BUILT)
def test_every_recipe_can_work_and_survives_json(recipe):
    """The run folder keeps its config; a reader finds every value there again."""
    config = RECIPES[recipe]()
    assert check(config) is config
    data = json.loads(json.dumps(to_json(config)))
    assert TypeAdapter(Config).validate_python(data) == config


# --- the curriculum --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "steps", "turns"),
    [
        ((15, 90, 30), (0, 89, 90, 139, 1000), [15, 15, 30, 30, 30]),
        ((5, 2, 7, 3, 9), range(7), [5, 5, 7, 7, 7, 9, 9]),  # stages of 2 and 3 steps; the last one goes on
        ((15,), (0, 39), [15, 15]),
    ],
)
def test_the_curriculum_changes_at_the_step_where_a_stage_ends(stages, steps, turns):
    config = RECIPES["tiny"]()
    config = replace(config, rollout=replace(config.rollout, max_steps=stages))
    assert [config.max_steps(step) for step in steps] == turns


# --- the command line ------------------------------------------------------------------------------


def test_a_flag_changes_its_value_and_nothing_else_and_a_hyphen_is_an_underscore():
    tiny, base = RECIPES["tiny"](), RECIPES["openwebrl_4b"]()
    assert parse() == tiny and parse("--steps", "3") == replace(tiny, steps=3)
    changed = replace(base, loss=replace(base.loss, clip_high=0.3))
    assert parse("openwebrl-4b", "--loss.clip-high", "0.3") == changed
    assert parse("openwebrl_4b", "--loss.clip_high", "0.3") == changed


def test_the_run_folder_is_named_after_the_recipe_or_by_the_user():
    assert parse("openwebrl-4b").run_dir == Path("runs/openwebrl_4b")
    assert parse("tiny", "--name", "/data/a").run_dir == Path("/data/a")
    assert parse("tiny", "--replay", "runs/tiny").run_dir == Path("runs/tiny-replay")


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["openwebrl-5b"], "unknown recipe 'openwebrl-5b'; there are tiny, tiny_text, "),
        (["tiny", "--stepz", "3"], "--stepz"),
        (["tiny", "openwebrl-4b"], "openwebrl-4b"),
        (["tiny", "--steps", "three"], "three"),
        (["tiny", "--loss.weighting", "ppo"], "ppo"),
        (["tiny", "--model.path", "/nowhere/model"], "--model.path /nowhere/model"),
    ],
)
def test_what_cannot_be_understood_or_used_ends_a_script_with_status_2(ended, tmp_path, argv, problem):
    code, said = ended(train, *argv, "--name", str(tmp_path / "tiny"))
    assert code == 2 and problem in said and "Traceback" not in said


def flags_of(config: object, prefix: str = "--") -> list[str]:
    names = []
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            names += flags_of(value, f"{prefix}{name}.")
        else:
            names.append(prefix + name.replace("_", "-"))
    return names


def test_the_settings_are_these():
    """A new one is a decision: it is written down here, too."""
    assert sorted(flags_of(Config(""))) == sorted(FLAGS.split())


def test_help_tells_every_setting_with_its_value_and_its_meaning(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("tiny", "--help")
    help = capsys.readouterr().out
    assert stop.value.code == 0
    for flag in ("--loss.clip-high", "--name", "--sampler", "RL steps", "reinforcement"):
        assert flag in help, flag
    assert "--protocol" not in help, "eval.py's alone"


# --- what can't work -------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["openwebrl_4b", "openwebrl-8b", "webagent-r1-3b", "webagent_r1_8b"])
@pytest.mark.parametrize("script", [train, sft])
def test_a_papers_recipe_does_not_train_on_the_toy_shop_unasked(script, recipe, monkeypatch):
    class Opened(Exception):
        pass

    def opened(*_: object) -> None:
        raise Opened

    monkeypatch.setattr(script, "open_ranks", opened)
    heldout = ["--task.heldout", "tasks.jsonl"]
    for flags, missing in (([], "train"), (heldout, "train"), (["--task.train=tasks.jsonl"], "heldout")):
        with pytest.raises(
            ValueError, match=rf"brings no tasks along: give --task.{missing} FILE \(or shops:"
        ):
            script.run([recipe, *flags])
    for flags in (["--task.train", "shops:0-9"], ["--task.train=tasks.jsonl"]):
        with pytest.raises(Opened):
            script.run([recipe, *flags, *heldout])
    with pytest.raises(Opened):
        script.run(["tiny", "--name", "never-made"])


COUNTS = (
    "optim.replicas steps save-every agent.screenshots browser.browsers browser.episodes "
    "rollout.groups batch.epochs batch.minibatch-turns sft.batch"
)
AT_LEAST, ABOVE, BELOW = "should be greater than or equal to", "should be greater than", "should be less than"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--rollout.group 1", f"--rollout.group: Input {AT_LEAST} 2"),
        ("--rollout.max-steps 5 4", "--rollout.max-steps: the last stage has turns alone"),
        ("--agent.answers webrl", "--agent.answers webrl needs --agent.kind text"),
        ("--rollout.max-steps 5 0 6", f"--rollout.max-steps: Input {AT_LEAST} 1"),
        ("--batch.micro-tokens 1000", "--batch.micro-tokens must be at least --agent.context-tokens"),
        ("--sampler.gpu-memory 1.5", f"--sampler.gpu-memory: Input {BELOW} 1"),
        ("--loss.method filtered-bc", "learns from a fixed batch: add --rollout.no-dynamic"),
        ("--loss.method awr --loss.kl 0.1", "--loss.method awr has neither --loss.kl nor --loss.old"),
        ("--loss.method awr --loss.old recompute", "--loss.method awr has neither --loss.kl nor"),
        ("--sft.held-back -0.1", f"--sft.held-back: Input {AT_LEAST} 0"),
        ("--sft.held-back 1", f"--sft.held-back: Input {BELOW} 1"),
        ("--loss.kl -0.1", f"--loss.kl: Input {AT_LEAST} 0"),
        ("--sampler.temperature 0", f"--sampler.temperature: Input {ABOVE} 0"),
        *((f"--{flag} 0", f"--{flag}: Input {AT_LEAST} 1") for flag in COUNTS.split()),
    ],
)
def test_refusals_name_the_flag(flags, problem):
    with pytest.raises(ValueError, match=problem):
        parse("tiny", *flags.split())
