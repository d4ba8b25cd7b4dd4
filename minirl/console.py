"""The terminal: progress of long phases and single lines.

Every module that takes long or has something to tell writes through here. On a terminal the state of a phase
is a bar and a line that move; elsewhere (CI, `nohup`, a pipe) a new line every ten seconds, to be read later.
What pages, models and other people's files say may be in a text: it can't give orders to the terminal.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

CONSOLE = Console(highlight=False)
PLAIN_SECONDS = 10.0  # between two plain lines of one phase
# All control characters but tabs and line feeds, those that turn a line's direction, and half characters
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
QUIET_SECONDS = 2.0  # a phase shorter than this leaves no plain line


def say(text: str, style: str = "", loud: bool = False) -> None:
    """Print one line as it is: brackets are not markup, and long lines are not broken. `loud`: also on a rank
    whose console is quiet."""
    console = Console(highlight=False) if loud and CONSOLE.quiet else CONSOLE
    console.print(Text(printable(text), style=style), soft_wrap=True)


def printable(text: str) -> str:
    """Return a text in which a question mark is in the place of each character that could do harm."""
    return UNPRINTABLE.sub("?", text)


def first_line(error: BaseException) -> str:
    """Return what an error says in one line of at most 300 characters, or its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def duration(seconds: float) -> str:
    """Return a time for people: "7.3s", "1m23s" or "1h23m"."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


@dataclass
class Meter:
    """How far a phase has come. The phase calls `advance` or `reach`; `line` is shown."""

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

    def line(self) -> str:
        """Return the state of the phase on one line.

        >>> Meter("collecting", total=64, done=16, started=time.monotonic() - 32).line()
        'collecting: 16/64, 0.5/s, 32.0s elapsed, 1m36s left'
        """
        elapsed, parts = self.elapsed, []
        rate = self.done / max(elapsed, 1e-6)
        if self.total is not None or self.done:
            parts += [f"{self.done}" if self.total is None else f"{self.done}/{self.total}", f"{rate:.3g}/s"]
        parts.append(f"{duration(elapsed)} elapsed")
        if self.total is not None and 0 < self.done < self.total:
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return printable(f"{self.description}: {', '.join(filter(None, [*parts, self.note]))}")


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Meter]:
    """Show how far a phase has come, while the block calls the meter; `total=None`: its length is unknown."""
    meter, ending = Meter(description, total), "stopped"
    if CONSOLE.is_terminal:
        columns = SpinnerColumn(), BarColumn(bar_width=28), TextColumn("{task.description}", markup=False)
        with Progress(*columns, console=CONSOLE, transient=True) as bars:
            bar = bars.add_task(description, total=total)
            with every(0.2, lambda: bars.update(bar, completed=meter.done, description=meter.line())):
                yield meter
        return
    try:
        with every(PLAIN_SECONDS, lambda: say(meter.line())):
            yield meter
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


class PlainTable(Table):
    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts, which are shown as they are: brackets are not markup."""
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def new_table(first: str, *others: str, rows: Iterable[Sequence[str]] = (), **style: Any) -> Table:
    """Return a table whose columns but the first are numbers; `style` is rich's, as its title."""
    table = PlainTable(title_style="bold", title_justify="left", **style)
    table.add_column(Text(printable(first)), overflow="fold")
    for name in others:
        table.add_column(Text(printable(name)), justify="right")
    for row in rows:
        table.add_row(*row)
    return table
