"""Evaluations: which checkpoint, which folder, which numbers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from minirl.config import Config, TaskConfig, to_json
from minirl.recipes import openwebrl_4b, tiny
from minirl.stats import wilson
from minirl.store import Run
from minirl.tasks import save_tasks
from minirl.types import Stop, Task, Trajectory, Turn

FILE = Path(__file__).parent.parent / "eval.py"
TASKS = [Task(f"task-{i}", "Do it.", "http://shop-0.test/") for i in range(20)]


@pytest.fixture(scope="module")
def evaluation() -> ModuleType:
    """eval.py, which is a script and whose name is a builtin's."""
    spec = importlib.util.spec_from_file_location("evaluation", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def episode(i: int, stop: Stop = Stop.DONE, success: bool = False, turns: int = 2) -> Trajectory:
    turn = Turn(0, (1,), (2,), (-0.1,), "")
    error = "" if stop.is_agent_fault else "Traceback:\nRuntimeError: the reason"
    return Trajectory(TASKS[i], i, turns=(turn,) * turns, stop=stop, success=success, error=error)


# --- which checkpoint, which folder -----------------------------------------------------------------


@pytest.fixture
def checkpoint(tiny_folder: Path) -> Callable[[Path, str], str]:
    def make(folder: Path, name: str) -> str:
        return str(shutil.copytree(tiny_folder, folder / "checkpoints" / name))

    return make


def config(tmp_path: Path, **changes: object) -> Config:
    return replace(tiny(), out=tmp_path, **changes)


def test_the_newest_checkpoint_of_the_run_is_evaluated_in_a_folder_of_its_own(
    evaluation, tmp_path, checkpoint
):
    sft = checkpoint(tmp_path / "tiny", "sft")
    checkpoint(tmp_path / "tiny", "best")
    assert evaluation.choose(config(tmp_path)).model.path == sft
    checkpoint(tmp_path / "tiny", "step_00009")
    newest = checkpoint(tmp_path / "tiny", "step_00010")
    checkpoint(tmp_path / "tiny", "step_00011.part")
    chosen = evaluation.choose(config(tmp_path))
    assert (chosen.model.path, chosen.run_dir) == (newest, tmp_path / "tiny-eval")


@pytest.mark.parametrize("name", ["other", "other-eval"])
def test_the_name_is_that_of_the_run_with_or_without_its_ending(evaluation, tmp_path, checkpoint, name):
    path = checkpoint(tmp_path / "other", "step_00003")
    chosen = evaluation.choose(config(tmp_path, name=name))
    assert (chosen.model.path, chosen.run_dir) == (path, tmp_path / "other-eval")


def test_a_given_model_is_taken_as_it_is(evaluation, tmp_path, checkpoint):
    checkpoint(tmp_path / "tiny", "step_00003")
    given = config(tmp_path, model=replace(tiny().model, path="some/folder"))
    assert evaluation.choose(given).model.path == "some/folder"


def test_without_any_checkpoint_a_published_model_is_evaluated_but_not_an_untrained_one(evaluation, tmp_path):
    paper = replace(openwebrl_4b(), out=tmp_path)
    assert evaluation.choose(paper).model.path == paper.model.path
    with pytest.raises(ValueError, match="no checkpoint in .*; train first, or name a folder"):
        evaluation.choose(config(tmp_path))


def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_named(evaluation, tmp_path, checkpoint, capsys):
    good = checkpoint(tmp_path / "tiny", "step_00001")
    torn = Path(checkpoint(tmp_path / "tiny", "step_00002"), "model.safetensors")
    torn.write_bytes(torn.read_bytes()[:-1])
    Path(checkpoint(tmp_path / "tiny", "step_00003"), "config.json").unlink()
    assert evaluation.choose(config(tmp_path)).model.path == good
    said = capsys.readouterr().out
    assert re.findall(r"passed over: --model.path .*/(step_\d+)", said) == ["step_00003", "step_00002"]


def test_a_given_model_that_cannot_be_read_is_one_line(evaluation, tmp_path, checkpoint):
    torn = Path(checkpoint(tmp_path, "torn"), "model.safetensors")
    torn.write_bytes(torn.read_bytes()[:-1])
    flags = ["--model.path", str(torn.parent), "--out", str(tmp_path)]
    with pytest.raises(ValueError, match="--model.path .*torn can't be loaded: ") as caught:
        evaluation.run(["tiny", *flags])
    assert "\n" not in str(caught.value)


# --- which tasks ------------------------------------------------------------------------------------


def test_the_runs_own_tasks_are_evaluated_unless_others_are_asked_for(evaluation, tmp_path, checkpoint):
    run = tmp_path / "tiny"
    path = checkpoint(run, "step_00001")
    trained = replace(tiny(), task=TaskConfig(seed=3, train_goals=200, heldout="elsewhere.jsonl"))
    (run / "config.json").write_text(json.dumps(to_json(trained)))
    assert evaluation.choose(config(tmp_path)).task == TaskConfig(seed=3, train_goals=200)
    save_tasks(run / "heldout.jsonl", TASKS)
    own = TaskConfig(seed=3, train_goals=200, heldout=str(run / "heldout.jsonl"))
    model = replace(tiny().model, path=path)
    assert evaluation.choose(config(tmp_path)).task == own
    assert evaluation.choose(config(tmp_path, model=model)).task == own  # it is the run's
    given = config(tmp_path, task=TaskConfig(seed=4, heldout="mine.jsonl"))
    assert evaluation.choose(given).task == replace(given.task, train_goals=200)
    other_shop = config(tmp_path, task=TaskConfig(seed=4))
    assert evaluation.choose(other_shop).task == TaskConfig(seed=4, train_goals=200)
    elsewhere = config(tmp_path, model=replace(model, path="some/folder"))
    assert evaluation.choose(elsewhere).task == TaskConfig()


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_settings_of_a_run_that_cannot_be_read_are_named(evaluation, tmp_path, checkpoint, text):
    checkpoint(tmp_path / "tiny", "step_00001")
    (tmp_path / "tiny" / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"tiny/config.json can't be read: "):
        evaluation.choose(config(tmp_path))


# --- numbers ----------------------------------------------------------------------------------------


def test_invalid_episodes_are_left_out_and_counted_as_failures_beside_it(evaluation, capsys):
    trajectories = [episode(i, success=i < 6, turns=3) for i in range(8)]
    trajectories += [episode(8, Stop.INFRA_ERROR, turns=0), episode(9, Stop.TIMEOUT, success=True, turns=1)]
    evaluation.show(trajectories)
    said = capsys.readouterr().out
    low, high = wilson(6, 8)
    assert re.search(rf"valid episodes +│ +75.0% │ +{low:.1%} to {high:.1%} │ +8 │ +3.0 ", said)
    low, high = wilson(6, 10)
    assert re.search(rf"all, invalid as failures +│ +60.0% │ +{low:.1%} to {high:.1%} │ +10 │ +2.5 ", said)
    assert "ended by done 8, infra_error 1, timeout 1" in said
    assert "invalid: task-8: infra_error: RuntimeError: the reason" in said


def test_one_row_if_all_episodes_are_valid(evaluation, capsys):
    evaluation.show([episode(0, success=True), episode(1, Stop.MAX_STEPS)])
    said = capsys.readouterr().out
    assert re.search(r"episodes +│ +50.0% ", said) and "invalid" not in said


def test_only_some_invalid_episodes_are_named(evaluation, capsys):
    evaluation.show([episode(i, Stop.ENV_ERROR) for i in range(20)])
    said = capsys.readouterr().out
    assert said.count("invalid: task-") == evaluation.NAMED
    assert f"invalid: {20 - evaluation.NAMED} more" in said
    assert re.search(r"valid episodes +│ +- │ +0.0% to 100.0% │ +0 │ +- ", said)


def test_an_earlier_evaluation_is_kept(evaluation, tmp_path):
    run, folder = Run(tmp_path / "tiny-eval"), tmp_path / "a checkpoint"
    folder.mkdir()
    (folder / "state.json").write_text('{"step": 7, "cursor": 3}')
    evaluation.record(run, str(folder), [episode(0, success=True), episode(1, Stop.TIMEOUT)])
    evaluation.record(run, str(folder), [episode(0), episode(1)])
    assert run.labels() == ["eval_a_checkpoint", "eval_a_checkpoint-2"]
    first, second = run.evals()
    assert (first["label"], first["step"], first["success"], first["n"]) == ("eval_a_checkpoint", 7, 1.0, 1)
    assert (first["invalid"], second["invalid"], second["n"]) == (1, 0, 2)
    assert [t.stop for t in run.load_trajectories("eval_a_checkpoint")] == [Stop.DONE, Stop.TIMEOUT]
    assert "eval_a_checkpoint-2" in run.report_path.read_text()


# --- from the command line --------------------------------------------------------------------------


def test_a_checkpoint_is_evaluated_from_the_command_line(evaluation, tmp_path, tiny_folder, capsys):
    """Two tasks that it fails and one whose site is not there; the run that is evaluated stays as it is."""
    run = tmp_path / "first"
    shutil.copytree(tiny_folder, run / "checkpoints" / "step_00004")
    (run / "metrics.jsonl").write_text("{}\n")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    goal = {"page": "DONE", "where": []}
    tasks = [Task(f"t{i}", f"Order {i}.", "http://shop-0.test/", goal) for i in range(2)]
    save_tasks(tmp_path / "tasks.jsonl", [*tasks, Task("gone", "Order.", "http://nothing-here.test/", goal)])
    flags = ["--name", "first", "--out", str(tmp_path), "--task.heldout", str(tmp_path / "tasks.jsonl")]
    flags += ["--eval.max-steps", "2", "--eval.response-tokens", "8", "--browser.browsers", "1"]
    evaluation.run(["tiny", *flags])
    said = capsys.readouterr().out
    assert f"evaluating {run / 'checkpoints' / 'step_00004'} on 3 tasks" in said
    assert "invalid: gone: site_error: http://nothing-here.test/ did not open" in said
    assert "all, invalid as failures" in said
    (row,) = Run(tmp_path / "first-eval").evals()
    assert (row["label"], row["n"], row["invalid"]) == ("eval_step_00004", 2, 1)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_episodes_are_sampled_as_evaluations_want_it(evaluation, tmp_path):
    """The number of turns is that of `config.eval`; tests/test_rollout.py looks at the sampling."""
    asked = {}

    class FakeRollouts:
        async def evaluate(self, tasks, label, max_steps, tick):
            asked.update(tasks=tasks, max_steps=max_steps)
            return []

    class FakeParts:
        config = openwebrl_4b()
        tasks = type("Sets", (), {"heldout": TASKS})

        def rollouts(self):
            return Entered()

    class Entered:
        async def __aenter__(self):
            return FakeRollouts()

        async def __aexit__(self, *_):
            pass

    asyncio.run(evaluation.attempt(FakeParts()))
    how = openwebrl_4b().eval
    assert asked["max_steps"] == how.max_steps and asked["tasks"] == TASKS


def test_two_evaluations_of_the_same_weights_agree(evaluation, tmp_path, tiny_folder, capsys):
    """What is sampled depends on seed, tasks and weights, not on what the folder holds already."""
    flags = ["--model.path", str(tiny_folder), "--out", str(tmp_path), "--eval.episodes", "3"]
    flags += ["--eval.max-steps", "1", "--eval.response-tokens", "6", "--browser.browsers", "1"]
    for _ in range(2):
        evaluation.run(["tiny", *flags])
    run = Run(tmp_path / "tiny-eval")
    one, two = (run.load_trajectories(label) for label in run.labels())
    assert [t.turns[0].response_ids for t in one] == [t.turns[0].response_ids for t in two]
    assert json.loads((run.root / "config.json").read_text())["model"]["path"] == str(tiny_folder)
