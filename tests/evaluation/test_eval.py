"""Evaluations: which checkpoint, which folder, which numbers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import train
from minirl.config import TaskConfig, to_json
from minirl.evaluation.resume import EvalScriptConfig
from minirl.recipes import openwebrl_4b, tiny
from minirl.run_folder import Run, save_tasks
from minirl.types import Task, Trajectory

TASKS = [Task(f"task-{i}", "Do it.", "http://shop-0.test/") for i in range(20)]


@pytest.fixture
def checkpoint(tiny_folder: Path) -> Callable[[Path, str], str]:
    def make(folder: Path, name: str) -> str:
        return str(shutil.copytree(tiny_folder, folder / "checkpoints" / name))

    return make


@pytest.fixture
def resolve(eval_script: ModuleType, tmp_path: Path) -> Callable[..., EvalScriptConfig]:
    """The settings of a command line."""

    def read(*flags: str) -> EvalScriptConfig:
        recipe = [] if flags and not flags[0].startswith("-") else ["tiny"]
        place = [] if "--name" in flags else ["--name", str(tmp_path / "tiny")]
        return eval_script.read_config([*recipe, *flags, *place])

    return read


def test_the_newest_checkpoint_of_the_run_is_evaluated_in_a_folder_of_its_own(resolve, tmp_path, checkpoint):
    sft = checkpoint(tmp_path / "tiny", "sft")
    checkpoint(tmp_path / "tiny", "best")
    chosen = resolve()
    assert (chosen.model.path, chosen.eval.episodes) == (sft, tiny().eval.episodes)
    checkpoint(tmp_path / "tiny", "step_00009")
    newest = checkpoint(tmp_path / "tiny", "step_00010")
    checkpoint(tmp_path / "tiny", "step_00011.part")
    chosen = resolve("--limit", "4")
    assert (chosen.model.path, chosen.run_dir) == (newest, tmp_path / "tiny-eval")
    assert chosen.eval.episodes == 4, "no more shops are needed"


def test_a_given_model_is_taken_as_it_is(resolve, tmp_path, checkpoint):
    checkpoint(tmp_path / "tiny", "step_00003")
    assert resolve("--model.path", "some/folder").model.path == "some/folder"
    newest = checkpoint(tmp_path / "tiny", "step_00004")
    assert resolve("--model.path", "tiny").model.path == newest, "tiny has no weights"
    base = openwebrl_4b().model.path  # beside a run's checkpoints: the recipe's own
    assert resolve("openwebrl-4b", "--model.path", base).model.path == base
    nowhere = ["--name", str(tmp_path / "nowhere")]
    assert resolve("openwebrl-4b", *nowhere).model.path == base
    with pytest.raises(ValueError, match="no checkpoint in .*; train first, or name a folder"):
        resolve(*nowhere)


def test_the_runs_own_tasks_are_evaluated_unless_others_are_asked_for(resolve, tmp_path, checkpoint):
    run = tmp_path / "tiny"
    checkpoint(run, "step_00001")
    assert resolve().task == tiny().task
    trained = replace(tiny(), task=TaskConfig("shops:0-9", "elsewhere.jsonl", demo_goals=50))
    (run / "config.json").write_text(json.dumps(to_json(trained)))
    save_tasks(run / "heldout.jsonl", TASKS)
    own = TaskConfig("shops:0-9", str(run / "heldout.jsonl"), demo_goals=50)
    assert resolve().task == own
    given = resolve("--task.train", "shops:4-5", "--tasks", "mine.jsonl")
    assert given.task == TaskConfig("shops:4-5", "mine.jsonl", demo_goals=50)
    assert resolve("--task.demo-goals", "30").task == replace(own, demo_goals=30)
    serif = "shops:90001-90064@serif"
    assert resolve("--task.heldout", serif).task == replace(own, heldout=serif)
    assert resolve("--model.path", "some/folder").task == own, "others are measured on the same"


def test_an_evaluation_beside_a_training_is_of_the_step_that_it_read(
    eval_script, tmp_path, tiny_folder, monkeypatch
):
    checkpoint = shutil.copytree(tiny_folder, tmp_path / "run" / "checkpoints" / "step_00004")
    (checkpoint / "state.json").write_text('{"step": 4}')
    attempt = eval_script.attempt

    async def attempted(*args) -> None:
        await attempt(*args)
        shutil.rmtree(checkpoint)  # training has written two newer ones meanwhile

    monkeypatch.setattr(eval_script, "attempt", attempted)
    flags = ["--name", str(tmp_path / "run"), "--task.train", "shops:600-601", "--eval.episodes", "1"]
    flags += ["--eval.max-steps", "1", "--eval.response-tokens", "8", "--browser.browsers", "1"]
    eval_script.run(["tiny", *flags])
    (row,) = Run(tmp_path / "run-eval").evals()
    assert (row["step"], row["checkpoint"]) == (4, str(checkpoint))


def test_a_checkpoint_is_evaluated_from_the_command_line(eval_script, tmp_path, tiny_folder, capsys):
    """Two tasks that it fails and one whose site is not there; the run that is evaluated stays as it is."""
    run = tmp_path / "first"
    checkpoint = shutil.copytree(tiny_folder, run / "checkpoints" / "step_00004")
    (checkpoint / "state.json").write_text('{"cursor": 9}')  # a stranger's
    (run / "metrics.jsonl").write_text("{}\n")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    goal = {"page": "DONE", "where": []}
    tasks = [Task(f"t{i}", f"Order {i}.", "http://shop-0.test/", goal) for i in range(2)]
    save_tasks(tmp_path / "tasks.jsonl", [*tasks, Task("gone", "Order.", "http://nothing-here.test/", goal)])
    flags = ["--name", str(tmp_path / "first"), "--task.heldout", str(tmp_path / "tasks.jsonl")]
    flags += ["--eval.max-steps", "2", "--eval.response-tokens", "8", "--browser.browsers", "1"]
    flags += ["--task.train", "shops:600-611"]  # without effect, but quicker to make than the recipe's
    with Run(tmp_path / "first-eval").held(), pytest.raises(OSError, match="lock' could not be acquired"):
        eval_script.run(["tiny", *flags])
    eval_script.run(["tiny", *flags])
    said = capsys.readouterr().out
    assert f"evaluating {run / 'checkpoints' / 'step_00004'} on 3 tasks" in said
    assert "aborted: gone: site_error: http://nothing-here.test/ did not open" in said
    assert "site_error 1" in said
    (row,) = Run(tmp_path / "first-eval").evals()
    assert (row["label"], row["n"], row["invalid"]) == ("eval_step_00004", 2, 1)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    save_tasks(tmp_path / "tasks.jsonl", [Task("live", "Order.", "http://127.0.0.1/")])
    with pytest.raises(ValueError, match="task live has no goal to check: give --judge.model"):
        eval_script.run(["tiny", *flags])
    save_tasks(tmp_path / "tasks.jsonl", [Task("gone", "Order.", "http://127.0.0.1/", goal)])
    told = "eval.py: nothing was measured; the first episode: .* a private address; --browser.private allows"
    with pytest.raises(SystemExit, match=told):
        eval_script.run(["tiny", *flags])


@pytest.mark.more
def test_a_runs_last_evaluation_is_repeated_without_its_flags(eval_script, tmp_path, capsys):
    """What an ablated agent is shown and says, token by token, is what it was at the end of train.py. A flag
    makes it another agent, and is told."""
    name = ["--name", str(tmp_path / "ablated")]
    small = {"agent.screenshots": 2, "browser.height": 240, "browser.browsers": 1, "eval.temperature": 0}
    small |= {"eval.episodes": 2, "eval.max-steps": 3, "eval.response-tokens": 30, "agent.response-tokens": 8}
    small |= {
        "task.train": "shops:600-611",
        "steps": 1,
        "rollout.group": 2,
        "rollout.groups": 1,
        "rollout.max-steps": 1,
    }
    flags = [f"--{flag}={value}" for flag, value in small.items()]
    flags += ["--agent.no-feedback", "--rollout.no-dynamic", "--warm-start", "none"]
    train.run(["tiny", *name, *flags])
    trained = Run(tmp_path / "ablated").load_trajectories("after_rl")
    capsys.readouterr()

    eval_script.run(["tiny", *name])
    assert "unlike the run" not in capsys.readouterr().out
    eval_script.run(["tiny", *name, "--agent.feedback", "--agent.screenshots", "1"])
    told = "unlike the run: agent.screenshots 1 (2), agent.feedback True (False)\n"
    assert told in capsys.readouterr().out
    again, other = (
        Run(tmp_path / "ablated-eval").load_trajectories(f"eval_step_00001{n}") for n in ("", "-2")
    )

    def spoken(trajectories: list[Trajectory]) -> list[list[tuple]]:
        return [[(turn.suffix, turn.response_ids) for turn in t.turns] for t in trajectories]

    assert spoken(again) == spoken(trained) != spoken(other)


@pytest.mark.more
def test_two_evaluations_of_the_same_weights_agree(eval_script, tmp_path, tiny_folder, capsys):
    """What is sampled depends on seed, task and weights, not on what the folder holds already; and what is
    finished is not run again."""
    flags = ["--model.path", str(tiny_folder), "--name", str(tmp_path / "tiny"), "--eval.episodes", "3"]
    flags += ["--eval.max-steps", "1", "--eval.response-tokens", "6", "--browser.browsers", "1"]
    flags += ["--seeds", "0", "1", "--task.train", "shops:600-611"]
    run = Run(tmp_path / "tiny-eval")
    eval_script.run(["tiny", *flags])
    (label,) = run.labels()
    path = run.root / f"results-{label}.json"
    before = path.stat().st_mtime_ns, run.trajectory_path(label).read_bytes()
    capsys.readouterr()
    eval_script.run(["tiny", *flags])
    assert run.labels() == [label] and before[1] == run.trajectory_path(label).read_bytes()
    assert f"6 episodes are in {path}; delete it to begin again" in capsys.readouterr().out
    path.unlink()
    eval_script.run(["tiny", *flags])
    one, two = (run.load_trajectories(label) for label in run.labels())
    said = [t.turns[0].response_ids for t in one]
    assert said == [t.turns[0].response_ids for t in two] and len(said) == 6
    assert said[:3] != said[3:], "another seed says something else"
    assert json.loads((run.root / "config.json").read_text())["model"]["path"] == str(tiny_folder)
