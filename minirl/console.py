"""The terminal: progress of long phases and single lines.

Every module that takes long or has something to tell writes through here. On a terminal the state of a phase
is a bar that moves; elsewhere (CI, `nohup`, a pipe) it is a line when the phase ends. What pages, models and
other people's files say may be in a text: it can't give orders to the terminal.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Table
from rich.text import Text

CONSOLE = Console(highlight=False)
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
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def duration(seconds: float) -> str:
    """Return a time for people: "7.3s", "1m23s" or "1h23m"."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


@dataclass
class Meter:
    """How far a phase has come, as the phase tells it."""

    progress: bars.Progress
    task: bars.TaskID

    def advance(self, n: int = 1, note: str | None = None) -> None:
        """Say that `n` more are done, with a few words that stay, as "loss 0.41"."""
        self.progress.update(self.task, advance=n)
        if note is not None:
            self.progress.update(self.task, note=printable(note))

    def reach(self, done: int) -> None:
        """Say how many are done in all."""
        self.progress.update(self.task, completed=done)


@contextmanager
def progress(phase: str, total: int | None = None) -> Iterator[Meter]:
    """Show how far a phase has come, while the block calls the meter; `total=None`: its length is unknown."""
    columns = [
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=28),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
    ]
    started = time.monotonic()
    plain = not CONSOLE.is_terminal
    with bars.Progress(*columns, console=CONSOLE, transient=True, disable=plain) as shown:
        task = shown.add_task(printable(phase), total=total, note="")
        yield Meter(shown, task)
    seconds = time.monotonic() - started
    if plain and seconds >= QUIET_SECONDS:
        say(f"{phase}: {duration(seconds)}")


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
