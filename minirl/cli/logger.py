"""Where a step's numbers go: metrics.jsonl, the terminal, the report and, if WANDB_PROJECT is set, W&B."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from minirl.cli.report import write_report
from minirl.console import duration, say
from minirl.judges.intervals import wilson
from minirl.run_folder import Run

REPORT_SECONDS = 20.0  # between two rewritings of report.html, which read the whole run
FORMATS = {
    "success": ".2f",
    "judged_success": ".2f",
    "reward": ".2f",
    "groups_kept": ".0f",
    "groups_submitted": ".0f",
    "invalid": ".0f",
    "turns": ".1f",
    "tokens_mean": ".0f",
    "ratio_mean": ".3f",
    "clip_fraction": ".1%",
    "entropy": ".3f",
}


def step_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """Return one RL step on one line, as far as its metrics are there.

    >>> step_line(4, 10, {"success": 0.4375, "seconds/rollout": 20.0, "seconds/total": 30.0})
    'step 4/10  success 0.44  rollout 20.0s  left 3m00s'
    """
    words = [f"step {step}/{total}" if total else f"step {step}"]
    for name, form in FORMATS.items():
        if name in metrics:
            words.append(f"{name} {metrics[name]:{form}}")
    for name in ("rollout", "train"):
        if f"seconds/{name}" in metrics:
            words.append(f"{name} {duration(metrics[f'seconds/{name}'])}")
    left = (total - step) * metrics.get("seconds/total", 0.0)
    if left > 0:
        words.append(f"left {duration(left)}")
    return "  ".join(words)


class Logger:
    """Takes metrics where they go; `total` is the steps of the whole run, for the time that is left."""

    def __init__(self, run: Run, total: int = 0):
        self.run = run
        self.total = total
        project = os.environ.get("WANDB_PROJECT")
        self.wandb = start_wandb(run, project) if project and run.records else None
        self.reported = float("-inf")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.add_metrics(step, metrics)
        if self.wandb:
            self.wandb.log(dict(metrics), step=step)
        say(step_line(step, self.total, metrics))
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.report()

    def evaluation(self, label: str, step: int, successes: int, n: int, aborted: int = 0) -> float:
        """Record and print an evaluation of `n` episodes; `aborted` more are in no rate. Return the rate."""
        low, high = wilson(successes, n)
        rate = successes / max(n, 1)
        self.run.add_eval(label, step=step, success=rate, low=low, high=high, n=n, invalid=aborted)
        if self.wandb:
            self.wandb.log({"eval/success": rate, "eval/low": low, "eval/high": high}, step=step)
        line = f"{label}: {successes}/{n} episodes succeed ({low:.1%} to {high:.1%})"
        say(line + left_out(aborted), "bold green")
        self.report()
        return rate

    def report(self) -> None:
        if self.run.records:
            write_report(self.run.root)
            self.reported = time.monotonic()

    def close(self) -> None:
        """Write the last report and say where it is. The final table comes after this."""
        self.report()
        if self.wandb:
            self.wandb.finish()
        say(f"report: {self.run.report_path}")

    def final_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print the evaluations of the whole held-out set: rows of evals.jsonl, in their order."""
        for row in rows:
            line = "{label:>16}: {success:6.1%} ({low:.1%} to {high:.1%}) of {n} tasks".format(**row)
            say(line + left_out(row.get("invalid", 0)), "bold")


def left_out(aborted: int) -> str:
    return f"; {aborted} more were aborted" if aborted else ""


def start_wandb(run: Run, project: str) -> Any:
    """Start a W&B run. Its package is optional, so it is imported here. ValueError if it is missing."""
    try:
        import wandb
    except ImportError:
        fix = "pip install wandb, or unset WANDB_PROJECT"
        raise ValueError(f"logging to W&B needs its package: {fix}") from None
    return wandb.init(project=project, name=run.root.resolve().name, config=run.config())
