"""Where a step's numbers go: metrics.jsonl, the terminal, W&B and the report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from minirl.cli.report import write_report
from minirl.console import CONSOLE, duration, new_table, say
from minirl.intervals import wilson
from minirl.run_folder import Run

REPORT_SECONDS = 20.0  # between two rewritings of report.html

# name on the line, key of metrics.jsonl, format, style
COLUMNS = (
    ("success", "success", ".2f", "green"),
    ("judged", "judged_success", ".2f", "yellow"),
    ("eval", "eval_success", ".2f", "bold green"),
    ("reward", "reward", ".2f", ""),
    ("groups", "groups_kept", ".0f", ""),
    ("invalid", "invalid", ".0f", "yellow"),
    ("turns", "turns", ".1f", ""),
    ("tokens", "tokens_mean", "count", ""),
    ("ratio", "ratio_mean", ".3f", ""),
    ("clip", "clip_fraction", ".1%", ""),
    ("entropy", "entropy", ".3f", ""),
)


def count(number: float) -> str:
    """Return a number for people.

    >>> count(950), count(12_300), count(2_500_000)
    ('950', '12.3k', '2.5M')
    """
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if number < 999_950 else f"{number / 1e6:.1f}M"


def step_line(step: int, total: int, metrics: Mapping[str, float]) -> Text:
    """Return one RL step on one line. Missing metrics are left out; so is the time left if `total` is 0."""
    line = Text(f"step {step}/{total}" if total else f"step {step}", style="bold")
    for name, key, form, style in COLUMNS:
        if key not in metrics or (key == "invalid" and not metrics[key]):
            continue
        value = count(metrics[key]) if form == "count" else format(metrics[key], form)
        if key == "groups_kept":
            value += f"/{metrics['groups_submitted']:.0f}"
            style = "" if metrics[key] else "red"  # red: nothing was learned in this step
        line.append(f"  {name} ", style="dim not bold").append(value, style=f"not bold {style}")
    phases = [key for key in metrics if key.startswith("seconds/") and key != "seconds/total"]
    if phases:
        words = [f"{key.removeprefix('seconds/')} {duration(metrics[key])}" for key in phases]
        line.append("  " + " + ".join(words), style="cyan not bold")
    left = (total - step) * metrics.get("seconds/total", 0.0)
    return line.append(f"  left {duration(left)}", style="dim not bold") if left > 0 else line


class Logger:
    """Takes a step's metrics to the run folder, W&B, the terminal and the report.

    `total` is the number of steps of the whole run, for the time that is left.
    """

    def __init__(self, run: Run, wandb: str | None = None, total: int = 0):
        self.run, self.total = run, total
        self.wandb = start_wandb(run, wandb) if wandb and run.records else None
        self.reported = float("-inf")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and print the metrics of a step."""
        self.run.add_metrics(step, metrics)
        if self.wandb:
            self.wandb.log(dict(metrics), step=step)
        CONSOLE.print(step_line(step, self.total, metrics), soft_wrap=True)
        # The report reads the whole run: not after each of many short steps.
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.report()

    def evaluation(self, label: str, step: int, successes: int, n: int) -> dict[str, Any]:
        """Record and print a held-out evaluation; return its row for `final_table`."""
        low, high = wilson(successes, n)
        row = {"step": step, "success": successes / max(n, 1), "low": low, "high": high, "n": n}
        self.run.add_eval(label, **row)
        if self.wandb:
            self.wandb.log({"eval/success": row["success"], "eval/low": low, "eval/high": high}, step=step)
        say(f"{label}: {successes}/{n} held-out episodes succeed ({low:.1%} to {high:.1%})", "bold green")
        self.report()
        return {"label": label, **row}

    def report(self) -> None:
        """Write report.html anew."""
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
        table = new_table("phase", "success", "95% interval", "episodes", title="Held-out tasks")
        for row in rows:
            interval = f"{row['low']:.1%} to {row['high']:.1%}"
            success = Text(f"{row['success']:.1%}", style="bold green")
            table.add_row(Text(str(row["label"])), success, interval, str(row["n"]))
        if rows:
            CONSOLE.print(table)  # quiet on all ranks but the first


def start_wandb(run: Run, project: str) -> Any:
    """Start a W&B run. Its package is optional, so it is imported here."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError("logging to W&B needs its package: pip install wandb") from error
    return wandb.init(project=project, name=run.root.resolve().name, config=run.config())
