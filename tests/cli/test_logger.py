"""A step's numbers: one line, the files, W&B, the report."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from minirl.cli import logger as logging
from minirl.cli.lifecycle import evaluate
from minirl.cli.logger import Logger, step_line
from minirl.run_folder import Run
from minirl.types import Stop, Task, Trajectory

METRICS = {"success": 0.4375, "reward": 0.5, "groups_kept": 12.0, "groups_submitted": 20.0, "turns": 3.25}
METRICS |= {"tokens_mean": 12_345.0, "ratio_mean": 1.0004, "clip_fraction": 0.0123, "entropy": 0.512}
METRICS |= {"seconds/rollout": 20.0, "seconds/train": 9.5, "seconds/total": 30.0}
ROW = {"label": "after RL", "step": 9, "success": 0.75, "low": 0.61, "high": 0.85, "n": 48}


def test_a_step_is_one_line():
    text = step_line(4, 10, METRICS)
    assert "\n" not in text
    parts = ("step 4/10", "success 0.44", "groups_kept 12", "groups_submitted 20", "tokens_mean 12345")
    parts += ("ratio_mean 1.000", "clip_fraction 1.2%", "rollout 20.0s", "train 9.5s", "left 3m00s")
    for part in parts:
        assert part in text


def test_a_step_line_needs_no_metric():
    assert step_line(1, 0, {}) == "step 1"


def test_the_logger_writes_prints_and_reports(tmp_path, capsys):
    run = Run(tmp_path / "first")
    logger = Logger(run, total=10)
    logger.step(1, METRICS)
    success = logger.evaluation("after RL", 1, successes=3, n=10)
    logger.close()
    assert run.metrics() == [{"step": 1, **METRICS}]
    (row,) = run.evals()
    assert row["success"] == success == 0.3 and row["low"] < 0.3 < row["high"]
    out = capsys.readouterr().out
    assert "step 1/10" in out and "3/10 episodes" in out and "report.html" in out
    assert "after RL" in run.report_path.read_text()


async def test_what_was_aborted_is_told_beside_the_rate(tmp_path, capsys):
    """An evaluation in training: of five episodes two had responses that took too long."""
    stops = [Stop.DONE, Stop.SAMPLER_ERROR, Stop.MAX_STEPS, Stop.SAMPLER_ERROR, Stop.DONE]
    done = [Trajectory(Task("t", "", ""), i, stop=stop, success=i == 0) for i, stop in enumerate(stops)]
    run, nothing = Run(tmp_path), asyncio.sleep
    logger = Logger(run)
    parts = SimpleNamespace(log=logger, reset_sites=lambda: nothing(0), run_tasks=lambda *_: nothing(0, done))
    assert await evaluate(parts, None, [], "after_rl", 7) == pytest.approx(1 / 3)
    logger.final_table(run.evals())
    out = capsys.readouterr().out
    assert "after RL: 1/3 episodes succeed (6.1% to 79.2%); 2 more were aborted\n" in out
    assert "of 3 tasks; 2 more were aborted\n" in out
    (row,) = run.evals()
    assert (row["n"], row["invalid"]) == (3, 2) and "aborted" in run.report_path.read_text()


def test_the_report_is_not_made_after_every_short_step(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(logging, "write_report", made.append)
    logger = Logger(Run(tmp_path))
    for step in range(5):
        logger.step(step, {})
    assert len(made) == 1
    logger.close()
    assert len(made) == 2


def test_missing_wandb_is_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "project")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        Logger(Run(tmp_path))


def test_wandb_gets_every_step(tmp_path, monkeypatch):
    class FakeWandb:
        logged: list = []

        def init(self, **settings):
            self.settings = settings
            return self

        def log(self, metrics, step):
            self.logged.append((step, metrics))

        def finish(self):
            self.logged.append("finished")

    fake = FakeWandb()
    monkeypatch.setenv("WANDB_PROJECT", "project")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = Logger(Run(tmp_path))
    logger.step(7, {"reward": 0.5})
    logger.close()
    assert fake.settings["project"] == "project"
    assert fake.logged == [(7, {"reward": 0.5}), "finished"]


def test_the_final_table(tmp_path, capsys):
    Logger(Run(tmp_path)).final_table(
        [{**ROW, "label": "before training", "success": 0.0, "low": 0.0, "high": 0.074}, ROW]
    )
    out = capsys.readouterr().out
    assert "before training:   0.0% (0.0% to 7.4%) of 48 tasks" in out and "after RL:  75.0%" in out
