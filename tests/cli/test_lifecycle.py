"""Where a run starts, is evaluated, saves and ends: with parts that only note what is asked of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from peers import alone

from minirl.cli import lifecycle
from minirl.config import EvalConfig, to_json
from minirl.recipes import tiny
from minirl.rollout import Collected
from minirl.run_folder import Run
from minirl.types import Stop, Task, Trajectory

TASK = Task("t", "Do it.", "http://shop-0.test/")


class Checkpoints:
    """Checkpoints that are names: `told` has what was asked for."""

    def __init__(self, folder, *saved: str):
        self.folder, self.told, self.newest = folder, [], ""
        for self.newest in saved:
            (folder / self.newest).mkdir()

    def save(self, name: str, state: dict) -> None:
        self.newest = name
        self.told.append(f"save {name}")

    def finish(self) -> None:
        self.told.append("finish")

    def export(self, name: str, state: dict) -> None:
        self.told.append(f"export {name}")

    def start_from(self, path: Any) -> None:
        self.told.append(f"start from {path}")

    def resume(self) -> dict:
        return {"step": 4, "cursor": 9}


class Log:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def evaluation(self, *told: Any) -> float:
        self.told.append(told)
        _, _, successes, n, _ = told
        return successes / n

    def step(self, step: int, metrics: dict) -> None:
        self.told.append((step, metrics))

    def close(self) -> None:
        self.told.append("close")


def make_experiment(tmp_path, evals: list[dict] = (), **more: Any) -> Any:
    """An experiment that has the evaluations `evals` behind it."""

    async def reset_sites() -> None: ...

    noted: list[Any] = []
    run = SimpleNamespace(
        evals=lambda: list(evals),
        truncate_after=lambda step: noted.append(f"truncate {step}"),
        save_trajectories=lambda label, items: noted.append((label, len(items))),
        prune=lambda keep_steps: noted.append("prune"),
    )
    trainer = SimpleNamespace(
        keep_reference=lambda: noted.append("reference"),
        reset_optimizer=lambda: noted.append("reset"),
        weights=lambda: [],
    )
    experiment = SimpleNamespace(config=tiny(), ranks=alone(), trainer=trainer, run=run, noted=noted)
    vars(experiment).update(log=Log(), reset_sites=reset_sites)
    vars(experiment).update(tasks=SimpleNamespace(heldout=[TASK] * 4, validation=[TASK] * 3))
    vars(experiment).update({"checkpoints": Checkpoints(tmp_path), **more})
    return experiment


def make_worker(ends: list[Trajectory]) -> Any:
    """A worker whose evaluations end as `ends` says, and that notes what it is synced with."""

    async def evaluate(places: list, *_: Any) -> list[Trajectory]:
        return ends[: len(places)]

    synced: list[Any] = []
    return SimpleNamespace(evaluate=evaluate, synced=synced, sync=synced.append)


def ended(stop: Stop = Stop.DONE, success: bool = False) -> Trajectory:
    return Trajectory(TASK, 0, stop=stop, success=success, error="the reason")


async def test_a_rate_leaves_out_what_was_aborted_and_says_so(tmp_path):
    ends = [ended(success=True), ended(), ended(Stop.SITE_ERROR), ended(Stop.MAX_STEPS)]
    experiment = make_experiment(tmp_path)
    assert await lifecycle.evaluate(experiment, make_worker(ends), [TASK] * 4, "after_sft", 0) == 1 / 3
    assert experiment.log.told == [("after SFT", 0, 1, 3, 1)] and experiment.noted == [("after_sft", 4)]
    aborted = make_worker([ended(Stop.INFRA_ERROR)] * 2)
    with pytest.raises(ValueError, match="before: no episode counts; of the first one: the reason"):
        await lifecycle.evaluate(experiment, aborted, [TASK] * 2, "before", 0)
    assert len(experiment.log.told) == 1, "that is no rate"


@pytest.mark.parametrize(
    ("step", "earlier", "exported"),
    [
        (0, {}, None),  # nothing is due
        (3, {}, None),
        (4, {2: 0.25}, True),
        (4, {2: 0.75}, False),
        (4, {4: 0.5}, None),  # made before --resume
    ],
)
async def test_the_best_weights_so_far_are_kept(tmp_path, step, earlier, exported):
    """Every two steps two tasks are evaluated, of which one succeeds; `earlier` are rates by step."""
    rows = [{"label": f"eval_step_{n:05d}", "success": rate} for n, rate in earlier.items()]
    experiment, worker = make_experiment(tmp_path), make_worker([ended(success=True), ended()])
    experiment.config = replace(experiment.config, eval_every=2, eval=EvalConfig(episodes=2))

    def evaluation(label: str, step: int, successes: int, n: int, aborted: int) -> float:
        rows.append({"label": label, "success": successes / n})
        return successes / n

    experiment.run.evals, experiment.log.evaluation = lambda: rows, evaluation
    await lifecycle.evaluate_if_due(experiment, worker, {"step": step})
    assert len(rows) == len(earlier) + (exported is not None)
    assert experiment.checkpoints.told == (["export best"] if exported else [])


def test_a_step_ends_with_dump_metrics_and_a_checkpoint_if_one_is_due(tmp_path):
    experiment = make_experiment(tmp_path)
    experiment.config = replace(experiment.config, save_every=2)
    state = {"step": 0, "cursor": 0}
    collected = Collected([], 7, [ended()], submitted=1, dropped=1, in_no_group=[ended(Stop.TIMEOUT)])
    lifecycle.end_step(experiment, state, collected, [], {"loss": 0.5})
    assert state == {"step": 1, "cursor": 7} and experiment.noted == [("step_00001", 1)]
    (number, metrics) = experiment.log.told[0]
    assert number == 1 and metrics["loss"] == 0.5 and metrics["groups_dropped"] == 1
    replayed = replace(collected, finished=[], next_cursor=8)
    lifecycle.end_step(experiment, state, replayed, [], {"loss": 0.25})
    assert experiment.log.told[1] == (2, {"loss": 0.25}), "a replay leaves the dumps where they are"
    assert experiment.checkpoints.told == ["save step_00002"] and experiment.noted[1:] == ["prune"]


@pytest.mark.parametrize(("world", "told"), [(1, ["save step_00003", "finish"]), (2, [])])
def test_an_interrupted_rank_saves_if_it_is_alone(tmp_path, capsys, world, told):
    """Several ranks are not stopped at the same place, so that what they hold does not fit together."""
    experiment = make_experiment(tmp_path, ranks=replace(alone(), world=world))
    with pytest.raises(asyncio.CancelledError), lifecycle.saving(experiment, {"step": 3}):
        raise asyncio.CancelledError
    assert experiment.checkpoints.told == told and experiment.log.told == ["close"]
    assert "interrupted after step 3; --resume goes on from the last checkpoint" in capsys.readouterr().out


def test_nothing_is_saved_before_the_first_step_and_no_step_twice(tmp_path):
    experiment = make_experiment(tmp_path, checkpoints=Checkpoints(tmp_path, "step_00003"))
    for step in (0, 3):
        lifecycle.save(experiment, {"step": step})
    assert not experiment.checkpoints.told


@pytest.mark.parametrize(
    ("settings", "saved", "told", "cloned", "state"),
    [
        ({"warm_start": "none"}, (), [], 0, {"step": 0, "cursor": 0}),
        ({}, (), [], 1, {"step": 0, "cursor": 0}),
        ({"warm_start": "elsewhere"}, (), ["start from elsewhere"], 0, {"step": 0, "cursor": 0}),
        ({"warm_start": "none"}, ("step_00004",), [], 0, {"step": 4, "cursor": 9}),
    ],
)
async def test_where_a_run_begins(tmp_path, settings, saved, told, cloned, state):
    """As it is, cloned, from given weights, or where it was left; then held-out tasks are evaluated once."""
    clones: list[Any] = []

    async def warm_start(*parts: Any) -> None:
        clones.append(parts)

    experiment = make_experiment(tmp_path, checkpoints=Checkpoints(tmp_path, *saved))
    experiment.config = replace(experiment.config, name=str(tmp_path), **settings)
    worker = make_worker([ended()] * 4)
    assert await lifecycle.begin(experiment, worker, warm_start) == state
    assert experiment.checkpoints.told == told and len(clones) == cloned and len(worker.synced) == 1
    starts = [noted for noted in experiment.noted if noted in ("reference", "reset")]
    assert starts == ["reference", "reset"], "reinforcement begins with fresh moments"
    label = "before training" if settings.get("warm_start") == "none" else "after SFT"
    assert experiment.log.told == [(label, 0, 0, 4, 0)]


@pytest.mark.parametrize("name", ["zero", "agent.names", "browser.calm_ms"])
def test_a_run_of_another_version_is_refused_by_the_setting_that_is_no_more(tmp_path, name):
    config = replace(tiny(), name=str(tmp_path))
    saved = to_json(replace(config, model=replace(config.model, path=str(tmp_path / "model"))))
    Run(tmp_path).write_config(saved)
    lifecycle.check_run(config)
    *section, field = name.split(".")
    (saved[section[0]] if section else saved)[field] = "code"
    Run(tmp_path).write_config(saved)
    with pytest.raises(ValueError, match=f"was made by another version, with {name}; choose another --name"):
        lifecycle.check_run(config)
