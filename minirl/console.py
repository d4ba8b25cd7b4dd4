"""What a person sees while a run goes on: progress of long phases, one line per RL step, a last table.

    rollout / training  --progress()-->  terminal
    metrics of a step   --Logger.step--> metrics.jsonl, W&B if asked for, one line, report.html

On a terminal progress is a bar. Elsewhere (CI, `nohup`, a pipe) it is a plain line every ten seconds,
so that the log can be read afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from minirl.cli.report import write_report
from minirl.evaluation.statistics import wilson
from minirl.run_folder import Run

CONSOLE = Console(highlight=False)
PLAIN_SECONDS = 10.0  # between two plain lines of one phase
QUIET_SECONDS = 2.0  # a phase shorter than this leaves no plain line
REPORT_SECONDS = 20.0  # between two rewritings of report.html


# ---- Words -----------------------------------------------------------------------------------------


def say(text: str, style: str = "") -> None:
    """Print one line as it is: brackets are not markup, and long lines are not broken."""
    CONSOLE.print(Text(text, style=style), soft_wrap=True)


def duration(seconds: float) -> str:
    """
    >>> duration(7.26), duration(83), duration(5025)
    ('7.3s', '1m23s', '1h23m')
    """
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def count(number: float) -> str:
    """
    >>> count(950), count(12_300), count(2_500_000)
    ('950', '12.3k', '2.5M')
    """
    if number < 1000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if number < 999_950 else f"{number / 1e6:.1f}M"


# ---- Progress --------------------------------------------------------------------------------------


@dataclass
class Meter:
    """How far a phase has come. The phase calls `advance`; bars and lines read the fields."""

    description: str
    total: int | None = None
    done: int = 0
    note: str = ""  # a few words after the numbers, e.g. "success 0.41"
    started: float = field(default_factory=time.monotonic)

    def advance(self, n: int = 1, note: str | None = None) -> None:
        self.done += n
        self.note = self.note if note is None else note

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """
        >>> Meter("collecting", total=64, done=16, started=time.monotonic() - 32).line()
        'collecting: 16/64, 0.5/s, 32.0s elapsed, 1m36s left'
        """
        parts = []
        rate = self.done / max(self.elapsed, 1e-6)
        if self.total is not None or self.done:
            parts.append(f"{self.done}/{self.total}" if self.total is not None else f"{self.done}")
            parts.append(f"{rate:.3g}/s")
        parts.append(f"{duration(self.elapsed)} elapsed")
        if self.total is not None and 0 < self.done < self.total:
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return f"{self.description}: {', '.join(parts)}" + (f", {self.note}" if self.note else "")


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Meter]:
    """Show a phase that takes longer than two seconds.

        with progress("collecting episodes", total=64) as meter:
            ...
            meter.advance()

    `total=None` is for phases whose length is unknown, such as loading a model.
    """
    meter = Meter(description, total)
    with show_bar(meter) if CONSOLE.is_terminal else show_lines(meter):
        yield meter


@contextmanager
def show_bar(meter: Meter) -> Iterator[None]:
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    columns += [BarColumn(bar_width=28), MofNCompleteColumn(), RateColumn(), TimeElapsedColumn()]
    columns += [TimeRemainingColumn(), TextColumn("{task.fields[note]}", style="dim", markup=False)]
    with Progress(*columns, console=CONSOLE, transient=True) as bars:
        bar = bars.add_task(meter.description, total=meter.total, note="")

        def update() -> None:
            bars.update(bar, completed=meter.done, note=meter.note)

        with every(0.2, update):
            yield


@contextmanager
def show_lines(meter: Meter) -> Iterator[None]:
    ending = "stopped"
    try:
        with every(PLAIN_SECONDS, lambda: say(meter.line())):
            yield
        ending = "finished"
    finally:
        if meter.elapsed >= QUIET_SECONDS:
            say(f"{meter.line()}, {ending}")


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at an interval from a thread, so that a phase that blocks still shows that it lives."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class RateColumn(ProgressColumn):
    """Finished items per second since the phase began."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed / max(task.elapsed or 0.0, 1e-6):.3g}/s", style="dim")


# ---- Steps -----------------------------------------------------------------------------------------


def step_line(step: int, total: int, metrics: Mapping[str, float]) -> Text:
    """One RL step on one line. `total` = 0 leaves out what is left. Missing metrics are left out."""
    line = Text(f"step {step}/{total}" if total else f"step {step}", style="bold")

    def add(name: str, value: str, style: str = "") -> None:
        line.append(f"  {name} ", style="dim not bold").append(value, style=f"not bold {style}")

    def number(name: str, key: str, form: str, style: str = "") -> None:
        if key in metrics:
            add(name, format(metrics[key], form), style)

    number("success", "success", ".2f", "green")
    number("judged", "judged_success", ".2f", "yellow")
    number("eval", "eval_success", ".2f", "bold green")
    number("reward", "reward", ".2f")
    if "groups_kept" in metrics and "groups_submitted" in metrics:
        kept, submitted = metrics["groups_kept"], metrics["groups_submitted"]
        # Without a kept group nothing was learned in this step.
        add("groups", f"{kept:.0f}/{submitted:.0f}", "" if kept else "red")
    if metrics.get("invalid"):
        add("invalid", f"{metrics['invalid']:.0f}", "yellow")
    number("turns", "turns", ".1f")
    if "tokens_mean" in metrics:
        add("tokens", count(metrics["tokens_mean"]))
    number("ratio", "ratio_mean", ".3f")
    number("clip", "clip_fraction", ".1%")
    number("entropy", "entropy", ".3f")
    add_times(line, step, total, metrics)
    return line


def add_times(line: Text, step: int, total: int, metrics: Mapping[str, float]) -> None:
    phases = [key for key in metrics if key.startswith("seconds/") and key != "seconds/total"]
    words = [f"{key.removeprefix('seconds/')} {duration(metrics[key])}" for key in phases]
    if words:
        line.append("  " + " + ".join(words), style="cyan not bold")
    left = (total - step) * metrics.get("seconds/total", 0.0)
    if left > 0:
        line.append(f"  left {duration(left)}", style="dim not bold")


def final_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what the run achieved; callers print nothing after it.

    Rows have the keys of `evals.jsonl`: label, success, low, high, n. In the usual order they are
    "before training", "after SFT", "after RL".
    """
    table = Table(title="Held-out tasks", title_style="bold", title_justify="left")
    table.add_column("phase")
    for name in ("success", "95% interval", "episodes"):
        table.add_column(name, justify="right")
    for row in rows:
        interval = f"{row['low']:.1%} to {row['high']:.1%}"
        success = Text(f"{row['success']:.1%}", style="bold green")
        table.add_row(Text(str(row["label"])), success, interval, str(row["n"]))
    CONSOLE.print(table)


class Logger:
    """Takes a step's metrics to the run folder, W&B, the terminal and the report.

    `total` is the number of steps of the whole run; with it a step line says how long the rest takes.
    """

    def __init__(self, run: Run, wandb_project: str | None = None, total: int = 0):
        self.run = run
        self.total = total
        self._wandb = start_wandb(run, wandb_project) if wandb_project and run.records else None
        self._reported = float("-inf")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.add_metrics(step, metrics)
        if self._wandb:
            self._wandb.log(dict(metrics), step=step)
        CONSOLE.print(step_line(step, self.total, metrics), soft_wrap=True)
        # The report reads the whole run: not after each of many short steps.
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._report()

    def evaluation(self, label: str, step: int, successes: int, n: int) -> dict[str, Any]:
        """Record a held-out evaluation, say it, and return its row for `final_table`."""
        low, high = wilson(successes, n)
        row = {"step": step, "success": successes / max(n, 1), "low": low, "high": high, "n": n}
        self.run.add_eval(label, **row)
        if self._wandb:
            self._wandb.log({"eval/success": row["success"], "eval/low": low, "eval/high": high}, step=step)
        say(f"{label}: {successes}/{n} held-out episodes succeed ({low:.1%} to {high:.1%})", "bold green")
        self._report()
        return {"label": label, **row}

    def close(self) -> None:
        """Write the last report and say where it is. The final table comes after this."""
        self._report()
        if self._wandb:
            self._wandb.finish()
        say(f"report: {self.run.report_path}")

    def _report(self) -> None:
        if not self.run.records:
            return
        write_report(self.run.root)
        self._reported = time.monotonic()


def start_wandb(run: Run, project: str) -> Any:
    """Start a W&B run. The package is imported here, because most runs do without it."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError("logging to W&B needs its package: pip install wandb") from error
    return wandb.init(project=project, name=run.root.resolve().name, config=run.config())
