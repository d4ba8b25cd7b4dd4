"""A step's numbers: one line, the files, W&B, the report."""

import sys
from unittest.mock import Mock, call

import pytest

from minirl.cli.logger import Logger, step_line
from minirl.run_folder import Run

METRICS = {"success": 0.4375, "reward": 0.5, "groups_kept": 12.0, "groups_submitted": 20.0, "turns": 3.25}
METRICS |= {"tokens_mean": 12_345.0, "ratio_mean": 1.0004, "clip_fraction": 0.0123, "entropy": 0.512}
METRICS |= {"seconds/rollout": 20.0, "seconds/train": 9.5, "seconds/total": 30.0}


def test_a_step_is_one_line_and_needs_no_metric():
    parts = ["step 4/10", "success 0.4375", "reward 0.5", "groups_kept 12", "groups_submitted 20"]
    parts += ["turns 3.25", "tokens_mean 12345", "ratio_mean 1.0004", "clip_fraction 0.0123"]
    parts += ["entropy 0.512", "seconds/rollout 20", "seconds/train 9.5", "left 0:03:00"]
    assert step_line(4, 10, METRICS) == "  ".join(parts)
    assert step_line(1, 2, {}) == "step 1/2  left 0:00:00"


def test_the_logger_writes_prints_and_reports(tmp_path, capsys):
    run = Run(tmp_path / "first")
    logger = Logger(run, total=10)
    logger.step(1, METRICS)
    logger.evaluation("after RL", 1, successes=3, n=10, aborted=2)
    logger.close()
    assert run.metrics() == [{"step": 1, **METRICS}]
    (row,) = run.evals()
    assert (row["success"], row["n"], row["invalid"]) == (0.3, 10, 2) and row["low"] < 0.3 < row["high"]
    out = capsys.readouterr().out
    assert "step 1/10" in out and "report.html" in out
    assert "after RL:  30.0% (10.8% to 60.3%) of 10 tasks; 2 more were aborted\n" in out
    report = run.report_path.read_text()
    assert "after RL" in report and "aborted" in report


@pytest.mark.parametrize(
    ("variable", "package", "module"),
    [
        ("WANDB_PROJECT", "wandb", "wandb"),
        ("TENSORBOARD_LOGGING_DIR", "tensorboard", "torch.utils.tensorboard"),
    ],
)
def test_what_is_asked_for_and_not_installed_is_a_line(tmp_path, monkeypatch, variable, package, module):
    monkeypatch.setenv(variable, "project")
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ValueError, match=f"pip install {package}, or unset it"):
        Logger(Run(tmp_path), 7)
    Logger(Run(tmp_path, records=False), 7)  # another rank's, which has none


def test_wandb_gets_every_step(tmp_path, monkeypatch):
    fake = Mock()
    monkeypatch.setenv("WANDB_PROJECT", "project")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    logger = Logger(Run(tmp_path), 7)
    logger.step(7, {"reward": 0.5})
    logger.close()
    assert fake.init.call_args.kwargs["project"] == "project"
    assert fake.init.return_value.mock_calls == [call.log({"reward": 0.5}, step=7), call.finish()]


def test_tensorboard_gets_every_step_and_evaluation(tmp_path, monkeypatch):
    fake = Mock()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "board")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    logger = Logger(Run(tmp_path / "wide"), 7)
    logger.step(7, {"reward": 0.5})
    logger.evaluation("after RL", 7, successes=1, n=2, aborted=0)
    logger.close()
    fake.SummaryWriter.assert_called_once_with("board/wide")
    reward, success, *interval, end = fake.SummaryWriter.return_value.mock_calls
    assert (reward, end) == (call.add_scalar("reward", 0.5, 7), call.close())
    assert success == call.add_scalar("eval/success", 0.5, 7) and len(interval) == 2
