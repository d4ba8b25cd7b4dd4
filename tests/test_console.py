"""What is printed: progress as new lines away from a terminal, and as a bar on it."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from minirl import console
from minirl.cli.command_line import run_main
from minirl.console import print_table, printable, progress, say


def screen(monkeypatch: pytest.MonkeyPatch, **how: bool) -> io.StringIO:
    """What `console` prints to from now on."""
    file = io.StringIO()
    options = {"width": 200, "highlight": False, "markup": False, "emoji": False}
    monkeypatch.setattr(console, "CONSOLE", Console(file=file, **options, **how))
    return file


def test_say_prints_brackets_as_they_are_and_long_lines_whole(capsys):
    line = "[bold] scores :tada: [1, 2] [/nothing] " + "x" * 200
    say(line)
    assert capsys.readouterr().out == line + "\n"


HOSTILE = {
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;mine\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4K\x1b\\",
    "C1": "\x9b2J\x9d0;mine\x9c",
    "carriage": "overwritten\rby this",
    "backspace": "a\x08b",
    "direction": "\u202etxt.exe\u2066",
    "half": "half a \ud83d",
    "markup": "[/x] [red]a[/red] [link=http://x.test]b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_others_say_can_not_give_orders_to_the_terminal(monkeypatch, capsys, text):
    file = screen(monkeypatch)
    say(f"said {text}")
    print_table([text, "[/y]"], [[text, f"{text} 2"]], title="[/t]")
    with progress(f"phase {text}", total=4) as meter:
        meter.advance(4, note=text)

    def mistaken(argv: list[str]) -> None:
        raise ValueError(text)

    with pytest.raises(SystemExit):
        run_main(mistaken)
    shown = file.getvalue() + capsys.readouterr().err
    assert not set(shown) & {chr(n) for n in (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066)}
    assert shown.count(printable(text)) == 7 and len(printable(text)) == len(text)
    shown.encode()


def test_progress_away_from_a_terminal_is_a_plain_line_at_the_end(monkeypatch):
    file = screen(monkeypatch)
    with progress("collecting", total=4) as meter:
        meter.advance(3, note="success 0.5")
        meter.reach(4)
        assert file.getvalue() == ""
    assert re.fullmatch(r"collecting ━* 4/4 0:00:0\d 0:00:0\d success 0.5 *\n", file.getvalue())


def test_progress_on_a_terminal_is_a_bar_that_goes(monkeypatch):
    file = screen(monkeypatch, force_terminal=True)
    with progress("collecting", total=4) as meter, progress("inner") as inner:
        meter.advance(2, note="half")
        inner.reach(7)
        time.sleep(0.5)
    seen = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    for part in ("━", "collecting", "2/4", "half", "inner", "7/?"):
        assert part in seen, part
    assert "\x1b[2K" in seen and seen.endswith("\x1b[2K"), "a line that is gone afterwards"
