"""The recipes' numbers, as the papers state them, and what a user is told about a wrong flag."""

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from pydantic import TypeAdapter

import sft
import train
from minirl.cli.command_line import check, from_command_line
from minirl.config import Config, to_json
from minirl.recipes import RECIPES
from minirl.run_folder import flatten
from minirl.tiny.checkpoints import BASE_TEXT

FLAGS = """
--recipe --name --seed --steps --eval-every --save-every --resume --replay --warm-start --shuffle-rewards
--plan
--model.path --model.dtype --model.lora --model.base-bits --model.gradient-checkpointing
--model.freeze-vision --model.freeze --model.max-pixels
--agent.kind --agent.brief --agent.prompt --agent.screenshots --agent.feedback --agent.answers
--agent.numbered --agent.boxes --agent.reasoning --agent.response-tokens --agent.context-tokens
--agent.format-errors --agent.repeats
--browser.browsers --browser.connect --browser.episodes --browser.width --browser.height
--browser.action-seconds --browser.episode-seconds --browser.quiet-ms --browser.private --browser.allow
--browser.deny --browser.host-rate --browser.insecure --browser.locale --browser.timezone --browser.user-agent
--sampler.kind --sampler.temperature --sampler.gpu-memory --sampler.points
--endpoint.url --endpoint.model --endpoint.key --endpoint.seconds --endpoint.price
--judge.url --judge.model --judge.key --judge.seconds --judge.price --judge.path --judge.input
--judge.prompt --judge.response-tokens
--task.train --task.heldout --task.demo-goals --task.train-goals --task.short --task.demo-long --task.reward
--task.reset --task.servers
--rollout.group --rollout.groups --rollout.dynamic --rollout.max-steps --rollout.delay --rollout.dump-all
--reward.by --reward.invalid --reward.format --reward.after --reward.success
--reward.format-error --reward.partial
--loss.method --loss.weighting --loss.credit --loss.clip-high --loss.dual-clip --loss.kl --loss.std-eps
--optim.betas --optim.weight-decay --optim.grad-clip --optim.lr --optim.decay --optim.replicas
--optim.offload
--batch.epochs --batch.minibatch-turns --batch.micro-tokens --batch.layout
--sft.betas --sft.weight-decay --sft.grad-clip --sft.demos --sft.lr --sft.epochs --sft.max-steps --sft.batch
--sft.max-pixels --sft.warmup --sft.held-back
--eval.episodes --eval.max-steps --eval.temperature --eval.top-p --eval.top-k --eval.response-tokens
"""


def parse(*argv: str) -> Config:
    return from_command_line(argv, "train.py")


# What the papers' tables of hyperparameters state, or the libraries that they clone with
PAPERS = {
    "openwebrl_4b": """
        model.path Qwen/Qwen3-VL-4B-Thinking  optim.lr 1e-06  optim.betas (0.9, 0.98)  optim.grad_clip 1.0
        optim.weight_decay 0.1  rollout.group 5  rollout.groups 48  rollout.dynamic True
        rollout.max_steps (15, 90, 30)  steps 140  loss.clip_high 0.28  loss.kl 0.0  loss.weighting openwebrl
        batch.epochs 2  batch.minibatch_turns 256  batch.micro_tokens 36864  agent.response_tokens 1024
        agent.context_tokens 32768  sampler.temperature 0.8  browser.width 1280  browser.height 1000
        browser.episode_seconds 600.0  sft.lr 1e-05  sft.warmup 0.1  sft.epochs 3  sft.batch 128
        sft.betas (0.9, 0.999)  sft.weight_decay 0.0  sft.grad_clip 1.0  sft.max_pixels 262144
        model.freeze_vision sft  eval.max_steps 30  eval.response_tokens 4096  eval.temperature 0.6
        eval.top_p 0.95  eval.top_k 20""",
    "webagent_r1_3b": """
        model.path Qwen/Qwen2.5-3B-Instruct  optim.lr 1e-06  optim.betas (0.9, 0.99)  optim.grad_clip 0.01
        optim.weight_decay 0.0  rollout.group 4  rollout.groups 16  rollout.dynamic False
        rollout.max_steps (15,)  loss.clip_high 0.2  loss.kl 0.001  loss.weighting webagent-r1
        batch.epochs 1  agent.kind text  agent.response_tokens 1024  agent.context_tokens 16384
        sampler.temperature 1.0  browser.width 1280  browser.height 720  sft.lr 5e-05  sft.warmup 0.05
        sft.epochs 3  sft.batch 128  sft.betas (0.9, 0.999)  sft.weight_decay 0.0  sft.grad_clip 1.0
        sft.max_pixels None  model.freeze_vision never  eval.max_steps 30  eval.temperature 1.0
        eval.top_p 0.9  agent.repeats 5  agent.format_errors 5""",
    "autowebworld_7b": """
        model.path Qwen/Qwen2.5-VL-7B-Instruct  model.max_pixels 12845056  optim.lr 1e-06
        optim.betas (0.9, 0.999)  optim.grad_clip 1.0  optim.weight_decay 0.0  optim.decay True
        rollout.group 8  rollout.groups 32  rollout.dynamic False  rollout.max_steps (1,)  steps 508
        loss.clip_high 0.2  loss.kl 0.04  loss.weighting grpo  batch.epochs 1  agent.kind autowebworld
        agent.response_tokens 256  sampler.temperature 1.0  browser.width 1280  browser.height 720
        warm_start none  reward.after any  eval.max_steps 15  loss.std_eps 3.3333333333333335e-05""",
}
# What the other sizes have otherwise
LLAMA = {"model.path": "meta-llama/Llama-3.1-8B-Instruct", "agent.answers": "webrl"}
SIZES = {
    "openwebrl_8b": ("openwebrl_4b", {"model.path": "Qwen/Qwen3-VL-8B-Thinking", "optim.lr": 5e-7}),
    "openwebrl_qwen35": ("openwebrl_4b", {"model.path": "Qwen/Qwen3.5-4B"}),
    "webagent_r1_8b": ("webagent_r1_3b", LLAMA),
    "autowebworld_3b": ("autowebworld_7b", {"model.path": "Qwen/Qwen2.5-VL-3B-Instruct"}),
}


@pytest.mark.parametrize("recipe", PAPERS)
def test_a_recipe_has_its_papers_numbers(recipe):
    config = flatten(dataclasses.asdict(RECIPES[recipe]()))
    for line in filter(None, map(str.strip, PAPERS[recipe].replace("\n", "  ").split("  "))):
        name, value = line.split(" ", 1)
        assert str(config[name]) == value, name


@pytest.mark.parametrize("recipe", SIZES)
def test_another_size_has_but_few_numbers_of_its_own(recipe):
    base, changes = SIZES[recipe]
    expected = flatten(dataclasses.asdict(RECIPES[base]())) | {"recipe": recipe} | changes
    assert flatten(dataclasses.asdict(RECIPES[recipe]())) == expected


@pytest.mark.parametrize("recipe", ["tiny", "tiny_text"])
def test_the_laptops_recipes_clone_with_the_optimizer_that_they_reinforce_with(recipe):
    config = RECIPES[recipe]()
    for settings in (config.optim, config.sft):
        assert (settings.betas, settings.weight_decay, settings.grad_clip) == ((0.9, 0.98), 0.1, 1.0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_knows_its_name_can_work_and_survives_json(recipe):
    """The run folder keeps its config; a reader finds every value there again."""
    config = RECIPES[recipe]()
    assert check(config) is config and config.recipe == recipe
    data = json.loads(json.dumps(to_json(config)))
    assert TypeAdapter(Config).validate_python(data) == config


@pytest.mark.parametrize(
    ("stages", "steps", "turns"),
    [
        ((5, 2, 7, 3, 9), range(7), [5, 5, 7, 7, 7, 9, 9]),  # stages of 2 and 3 steps; the last one goes on
        ((15,), (0, 39), [15, 15]),
    ],
)
def test_the_curriculum_changes_at_the_step_where_a_stage_ends(stages, steps, turns):
    config = RECIPES["tiny"]()
    config = replace(config, rollout=replace(config.rollout, max_steps=stages))
    assert [config.max_steps(step) for step in steps] == turns


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
        (["openwebrl-5b"], "unknown recipe 'openwebrl-5b'; there are tiny, tiny-text, "),
        (["tiny", "--stepz", "3"], "--stepz"),
        (["tiny", "--model.path", "/nowhere/model"], "/nowhere/model can't be loaded: "),
        (["tiny", "--model.path", str(BASE_TEXT)], "a text recipe as tiny-text"),
        (["tiny", "--sampler", "vllm"], "pip install 'minirl-web[vllm]'"),
    ],
)
def test_what_cannot_be_understood_or_used_ends_a_script_with_status_2(ended, tmp_path, argv, problem):
    code, said = ended(train, *argv, "--name", str(tmp_path / "tiny"))
    assert code == 2 and problem in said and "Traceback" not in said
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("cause", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupted_script_says_so_with_status_130(ended, cause):
    script = Mock(__file__="train.py", run=Mock(side_effect=cause))
    assert ended(script) == (130, "interrupted\n")


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
    first_screen = help.partition("╭")[0]
    assert all(name.replace("_", "-").replace("-8b", "") in first_screen for name in RECIPES)


ROOT = Path(train.__file__).parent
DOORS = ["train.py", "sft.py", "eval.py", "judge.py label", "-m minirl", "-m minirl.worlds", "-m minirl.data"]


@pytest.mark.parametrize("door", DOORS)
def test_help_comes_without_torch_and_a_missing_environment_is_one_line(door, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    for flags, words in ((["-E", "-S"], "`make setup`, then `source .venv/bin/activate`"), ([], "usage: ")):
        command = [sys.executable, *flags, *door.split(), "--help"]
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert words in done.stdout + done.stderr and "Traceback" not in done.stderr
    if door == "sft.py":
        assert "--sft.demos" in done.stdout[:600]


@pytest.mark.parametrize("script", [train, sft])
def test_a_papers_recipe_does_not_train_on_the_toy_shop_unasked(script, monkeypatch):
    monkeypatch.setattr(script, "open_ranks", Mock(side_effect=ConnectionError("opened")))
    recipe = "openwebrl_4b"
    heldout = ["--task.heldout", "tasks.jsonl"]
    for flags, missing in (([], "train"), (heldout, "train"), (["--task.train=tasks.jsonl"], "heldout")):
        with pytest.raises(ValueError, match=rf"brings no tasks: give --task.{missing} FILE, or sho"):
            script.run([recipe, *flags])
    given = [[recipe, *heldout, f"--task.train={tasks}"] for tasks in ("shops:0-9", "tasks.jsonl")]
    for argv in (*given, ["tiny", "--name", "never-made"]):
        with pytest.raises(ConnectionError, match="opened"):
            script.run(argv)
    for other in ("openwebrl_8b", "webagent_r1_3b", "webagent_r1_8b"):
        task = RECIPES[other]().task
        assert not task.train and not task.heldout


COUNTS = "optim.replicas steps save-every agent.screenshots browser.browsers browser.episodes rollout.groups "
COUNTS += "batch.epochs batch.minibatch-turns sft.batch"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--rollout.max-steps 5 4", "--rollout.max-steps: give an odd number of values"),
        ("--agent.answers webrl", "--agent.answers webrl needs --agent.kind text"),
        ("--batch.micro-tokens 1000", "--batch.micro-tokens must be at least --agent.context-tokens"),
        ("--loss.method filtered-bc", "learns from a fixed batch: add --rollout.no-dynamic"),
        ("--loss.credit return-to-go --reward.invalid mask", "add --reward.invalid drop"),
        ("--loss.method awr --loss.kl 0.1", "--loss.method awr has no --loss.kl"),
    ],
)
def test_combinations_that_cannot_work_are_refused(flags, problem):
    with pytest.raises(ValueError, match=problem):
        parse("tiny", *flags.split())


BEYOND = ["rollout.group 1", "rollout.max-steps 5 0 6", "sampler.gpu-memory 1.5", "sampler.temperature 0"]
BEYOND += ["eval.max-steps 0", "model.max-pixels 0", "sft.max-pixels 0", "sft.epochs 0"]
BEYOND += ["sft.held-back -0.1", "sft.held-back 1", "loss.kl -0.1", *(f"{name} 0" for name in COUNTS.split())]


@pytest.mark.parametrize("flag", BEYOND)
def test_a_number_that_is_out_of_bounds_is_refused_by_its_flag(flag):
    with pytest.raises(ValueError, match=f"--{flag.split()[0]}: Input should be "):
        parse("tiny", *f"--{flag}".split())
