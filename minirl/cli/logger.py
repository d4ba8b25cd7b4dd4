"""Where a step's numbers go: metrics.jsonl, the terminal, the report; W&B too with WANDB_PROJECT set, and
with TENSORBOARD_LOGGING_DIR, as transformers has it, TensorBoard."""

import os
from collections.abc import Mapping
from datetime import timedelta

from minirl.console import say
from minirl.judges.intervals import wilson
from minirl.run_folder import Run
from minirl.types import Fields

SHOWN = (
    "success",
    "judged_success",
    "reward",
    "groups_kept",
    "groups_submitted",
    "invalid",
    "turns",
    "tokens_mean",
    "ratio_mean",
    "clip_fraction",
    "entropy",
    "seconds/rollout",
    "seconds/train",
)


def step_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """Return one RL step on one line, as far as its metrics are there.

    >>> step_line(4, 10, {"success": 0.4375, "seconds/rollout": 20.04, "seconds/total": 30.0})
    'step 4/10  success 0.4375  seconds/rollout 20.04  left 0:03:00'
    """
    words = [f"step {step}/{total}"]
    words += [f"{name} {metrics[name]:.5g}" for name in SHOWN if name in metrics]
    left = (total - step) * metrics.get("seconds/total", 0.0)
    words.append(f"left {timedelta(seconds=round(left))}")
    return "  ".join(words)


def rate_line(row: Fields) -> str:
    """Return an evaluation, a row of evals.jsonl, on one line."""
    line = "{label:>16}: {success:6.1%} ({low:.1%} to {high:.1%}) of {n} tasks".format(**row)
    return line + (f"; {row['invalid']} more were aborted" if row["invalid"] else "")


class Logger:
    """Takes metrics where they go; `total` is the steps of the whole run, for the time that is left."""

    def __init__(self, run: Run, total: int):
        self.run = run
        self.total = total
        self.wandb = None
        self.board = None
        name = run.root.resolve().name
        project = os.environ.get("WANDB_PROJECT")
        folder = os.environ.get("TENSORBOARD_LOGGING_DIR")
        if project and run.records:
            try:
                import wandb  # optional
            except ImportError:
                raise ValueError("WANDB_PROJECT needs wandb: pip install wandb, or unset it") from None
            self.wandb = wandb.init(project=project, name=name, config=run.config())
        if folder and run.records:
            try:
                from torch.utils.tensorboard import SummaryWriter  # optional
            except ImportError:
                raise ValueError(
                    "TENSORBOARD_LOGGING_DIR needs tensorboard: pip install tensorboard, or unset it"
                ) from None
            self.board = SummaryWriter(f"{folder}/{name}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.add_metrics(step, metrics)
        self._send(step, metrics)
        say(step_line(step, self.total, metrics))
        self.report()

    def evaluation(self, label: str, step: int, successes: int, n: int, aborted: int) -> None:
        """Record and print an evaluation of `n` episodes; `aborted` more are in no rate."""
        low, high = wilson(successes, n)
        rate = successes / n
        row = self.run.add_eval(label, step=step, success=rate, low=low, high=high, n=n, invalid=aborted)
        self._send(step, {"eval/success": rate, "eval/low": low, "eval/high": high})
        say(rate_line(row), "bold green")
        self.report()

    def _send(self, step: int, numbers: Mapping[str, float]) -> None:
        if self.wandb:
            self.wandb.log(dict(numbers), step=step)
        if self.board:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)

    def report(self) -> None:
        if self.run.records:
            from minirl.cli.report import write_report

            write_report(self.run.root)

    def close(self) -> None:
        """Write the last report and say where it is."""
        self.report()
        if self.wandb:
            self.wandb.finish()
        if self.board:
            self.board.close()
        say(f"report: {self.run.report_path}")
