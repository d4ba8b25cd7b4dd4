"""End to end on generated shops: a teacher's rollouts, verdicts, curation, cloning, publication."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from shopping import SHOP, tasks
from test_train import SMALL_FLAGS
from workers import make_worker

import sft
from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import to_json
from minirl.data import __main__ as script
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import PolicyFn, Prompt, Sample, Trajectory
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy

TASKS = tasks(3)
DONE = 'nothing</think><tool_call>{"name": "done", "arguments": {"response": "done"}}</tool_call>'


async def rollouts(run: Run, preprocessor) -> list[Trajectory]:
    """Two episodes of each task, as a served model leaves them; the second one gives up at once."""
    config = tiny()
    tokenizer = preprocessor.tokenizer

    async def give_up(t: int, prompt: Prompt, session: Session) -> Sample:
        ids = tuple(tokenizer(DONE + tokenizer.eos_token)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")

    with SiteServer([SHOP]) as server:
        browser = replace(config.browser, browsers=1)
        async with BrowserPool(browser, server.sites, sealed=True) as pool:
            worker = make_worker(config, preprocessor, None, pool, run.images, WorldBenchmark())
            found = []
            for task in TASKS:
                policies: list[PolicyFn] = [ScriptedPolicy(SHOP, task, preprocessor), give_up]
                found += [await worker.episode(task, n, policy, 6) for n, policy in enumerate(policies)]
    said = {"shared": 0, "branch": (), "response_ids": (), "logprobs": ()}
    return [replace(t, trunk=(), turns=tuple(replace(turn, **said) for turn in t.turns)) for t in found]


def cloned(out: Path, demos: Path) -> Run:
    """A run of two updates on demonstrations, evaluated on held-out shops before and after."""
    sft.run(["tiny", "--out", str(out), *SMALL_FLAGS, "--sft.max-steps", "2", "--sft.demos", str(demos)])
    return Run(out / "tiny")


@pytest.mark.slow
def test_from_a_teachers_rollouts_to_weights_and_the_same_through_what_is_published(preprocessor, tmp_path):
    teacher = Run(tmp_path / "teacher")
    teacher.write_config(to_json(tiny()))
    teacher.save_trajectories("eval_teacher", asyncio.run(rollouts(teacher, preprocessor)))
    verdicts = [(t.task.id, t.success) for t in teacher.load_trajectories("eval_teacher")]
    assert verdicts == [(task.id, good) for task in TASKS for good in (True, False)]
    assert script.main(["curate", str(teacher.root), "--dumps", "eval_teacher", "--preset", "1.9k"]) == 0
    demos = teacher.load_trajectories("demos")
    assert {t.task.id for t in demos} == {task.id for task in TASKS} and all(t.success for t in demos)
    flags = ["--out", str(tmp_path / "set"), "--license", "cc0-1.0", "--source", "generated shops"]
    assert script.main(["write", str(teacher.trajectory_path("demos")), *flags]) == 0

    places = teacher.trajectory_path("demos"), tmp_path / "set" / "data" / "train.parquet"
    runs = [cloned(tmp_path / str(n), place) for n, place in enumerate(places)]
    for run in runs:
        assert [row["label"] for row in run.evals()] == ["before training", "after SFT"]
        assert {row["n"] for row in run.evals()} == {4}
    one, other = (load_file(run.checkpoint_dir / "sft" / "model.safetensors") for run in runs)
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
