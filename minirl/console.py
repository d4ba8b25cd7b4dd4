"""The terminal: progress of long phases and single lines.

Every module that takes long or has something to tell writes through here. On a terminal progress is a bar;
elsewhere (CI, `nohup`, a pipe) it is a plain line every ten seconds, so that the log can be read afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

CONSOLE = Console(highlight=False)
PLAIN_SECONDS = 10.0  # between two plain lines of one phase
QUIET_SECONDS = 2.0  # a phase shorter than this leaves no plain line


def say(text: str, style: str = "") -> None:
    """Print one line as it is: brackets are not markup, and long lines are not broken."""
    CONSOLE.print(Text(text, style=style), soft_wrap=True)


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(7.26), duration(83), duration(5025)
    ('7.3s', '1m23s', '1h23m')
    """
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


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

    def reach(self, done: int) -> None:
        """Say how many are done in all."""
        self.done = done

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def rate(self) -> float:
        return self.done / max(self.elapsed, 1e-6)  # a second

    def line(self) -> str:
        """Return the state of the phase on one line.

        >>> Meter("collecting", total=64, done=16, started=time.monotonic() - 32).line()
        'collecting: 16/64, 0.5/s, 32.0s elapsed, 1m36s left'
        """
        parts = []
        if self.total is not None or self.done:
            parts.append(f"{self.done}/{self.total}" if self.total is not None else f"{self.done}")
            parts.append(f"{self.rate:.3g}/s")
        parts.append(f"{duration(self.elapsed)} elapsed")
        if self.total is not None and 0 < self.done < self.total:
            parts.append(f"{duration((self.total - self.done) / self.rate)} left")
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
    columns += [BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TimeRemainingColumn(), TextColumn("{task.fields[note]}", style="dim")]
    with Progress(*columns, console=CONSOLE, transient=True) as bars:
        bar = bars.add_task(meter.description, total=meter.total, note="")

        def update() -> None:
            bars.update(bar, completed=meter.done, note=f"{meter.rate:.3g}/s {escape(meter.note)}")

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


def new_table(first: str, *others: str, **style: Any) -> Table:
    """Return an empty table whose columns but the first are numbers; `style` is rich's, as its title."""
    table = Table(title_style="bold", title_justify="left", **style)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(Text(name), justify="right")
    return table
