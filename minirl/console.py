"""The terminal: progress of long phases and single lines.

Every module that takes long or has something to tell writes through here. On a terminal the state of a phase
is a bar that moves; elsewhere (CI, `nohup`, a pipe) it is a line when the phase ends. What pages, models and
other people's files say may be in a text: it can't give orders to the terminal.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import progress as bars
from rich.console import Console
from rich.table import Table

CONSOLE = Console(highlight=False, markup=False, emoji=False)  # brackets and colons are what they are
# All control characters but tabs and line feeds, those that turn a line's direction, and half characters
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
CREDENTIALS = re.compile(r"(?<=://)[^\s/?#]*@")


def say(text: str, style: str = "") -> None:
    """Print one line as it is, however long."""
    CONSOLE.print(printable(text), style=style, soft_wrap=True)


def printable(text: str) -> str:
    """Return a text with a question mark for each character that could do harm."""
    return UNPRINTABLE.sub("?", text)


def without_passwords(text: str) -> str:
    """Return a text without the user and the password of the addresses in it.

    >>> without_passwords("net::ERR_FAILED at http://ada:secret@example.org/x")
    'net::ERR_FAILED at http://example.org/x'
    """
    return CREDENTIALS.sub("", text)


def first_line(error: BaseException) -> str:
    """Return what an error says in one line of at most 300 characters, or its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


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
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=28),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
    ]
    with bars.Progress(*columns, console=CONSOLE, transient=CONSOLE.is_terminal) as shown:
        yield Meter(shown, shown.add_task(printable(phase), total=total, note=""))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table whose columns but the first are numbers."""
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(printable(name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    CONSOLE.print(table)
