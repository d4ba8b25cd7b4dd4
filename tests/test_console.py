"""What is printed: progress as new lines away from a terminal, and as a bar on it."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from minirl import console
from minirl.cli.command_line import run_main
from minirl.console import duration, new_table, printable, progress, say


def test_say_prints_brackets_as_they_are(capsys):
    say("[bold] scores [1, 2] [/nothing] " + "x" * 200)
    assert capsys.readouterr().out == "[bold] scores [1, 2] [/nothing] " + "x" * 200 + "\n"


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
def test_what_others_say_can_not_give_orders_to_the_terminal(monkeypatch, text):
    screen = io.StringIO()
    monkeypatch.setattr(console, "CONSOLE", Console(file=screen, width=200, highlight=False))
    rows = new_table(text, "[/y]")
    rows.add_row(text, f"{text} 2")
    say(f"said {text}")
    console.CONSOLE.print(rows)
    shown = screen.getvalue()
    assert not set(shown) & {chr(n) for n in (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066)}
    assert shown.count(printable(text)) == 4 and len(printable(text)) == len(text)
    shown.encode()


def test_a_mistake_is_printed_without_orders_to_the_terminal(monkeypatch, capsys):
    def mistaken(argv: list[str]) -> None:
        raise ValueError("\x1b]52;c;cm0=\x07 is no recipe")

    monkeypatch.setattr("sys.argv", ["train.py"])
    with pytest.raises(SystemExit):
        run_main(mistaken)
    assert capsys.readouterr().err == "train.py: ?]52;c;cm0=? is no recipe\n"


def test_progress_away_from_a_terminal_is_a_plain_line_at_the_end(capsys, monkeypatch):
    with progress("blinking"):
        pass
    assert capsys.readouterr().out == "", "a short phase is silent"
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    with progress("collecting [x]\x1b[2J", total=4) as meter:
        meter.advance(3, note="success 0.5")
        meter.reach(4)
    assert re.fullmatch(r"collecting \[x\]\?\[2J: 0\.\ds\n", capsys.readouterr().out)
    with pytest.raises(KeyError), progress("loading"):
        raise KeyError("x")
    assert capsys.readouterr().out == ""


def test_progress_on_a_terminal_is_a_bar_and_a_line(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "CONSOLE", Console(file=screen, force_terminal=True, width=120))
    with progress("collecting [x]", total=4) as meter, progress("inner") as inner:
        meter.advance(2, note="half [/a]\x1b[2J")
        inner.reach(7)
        time.sleep(0.5)
    seen = re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())
    assert "━" in seen and "collecting [x]" in seen and "2/4" in seen and "half [/a]?[2J" in seen
    assert "inner" in seen and "7/?" in seen
    assert "\x1b[2K" in seen and seen.endswith("\x1b[2K"), "a line that is gone afterwards"


def test_times_are_for_people():
    assert [duration(7.26), duration(83), duration(5025)] == ["7.3s", "1m23s", "1h23m"]
