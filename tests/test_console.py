"""What is printed: progress as new lines away from a terminal, and as a bar on it."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from minirl import console
from minirl.cli.command_line import run_main
from minirl.console import Meter, duration, new_table, printable, progress, say


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
    say(Meter("a", note=text).line())
    console.CONSOLE.print(rows)
    shown = screen.getvalue()
    assert not set(shown) & {chr(n) for n in (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066)}
    assert shown.count(printable(text)) == 5 and len(printable(text)) == len(text)
    shown.encode()


def test_a_mistake_is_printed_without_orders_to_the_terminal(monkeypatch, capsys):
    def mistaken(argv: list[str]) -> None:
        raise ValueError("\x1b]52;c;cm0=\x07 is no recipe")

    monkeypatch.setattr("sys.argv", ["train.py"])
    with pytest.raises(SystemExit):
        run_main(mistaken)
    assert capsys.readouterr().err == "train.py: ?]52;c;cm0=? is no recipe\n"


def test_progress_away_from_a_terminal_is_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0.05)
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    with progress("collecting [x]", total=4) as meter:
        meter.advance(3, note="success 0.5")
        time.sleep(0.2)
        meter.advance()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("collecting [x]: 3/4, ") and lines[0].endswith("left, success 0.5")
    assert lines[-1].startswith("collecting [x]: 4/4, ") and lines[-1].endswith("finished")
    assert not any("\x1b" in line for line in lines)


def test_a_short_phase_is_silent(capsys):
    with progress("blinking"):
        pass
    assert capsys.readouterr().out == ""


def test_an_exception_passes_through_progress(capsys, monkeypatch):
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
    with pytest.raises(KeyError), progress("loading"):
        raise KeyError("x")
    assert capsys.readouterr().out.endswith("stopped\n")


def test_progress_on_a_terminal_is_a_bar_and_a_line(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(console, "CONSOLE", Console(file=screen, force_terminal=True, width=120))
    with progress("collecting [x]", total=4) as meter, progress("inner"):
        meter.advance(2)
        time.sleep(0.5)
    seen = screen.getvalue()
    assert "━" in seen and "collecting [x]: 2/4, " in seen and "inner: 0." in seen
    assert "\x1b[2K" in seen and seen.endswith("\x1b[2K"), "a line that is gone afterwards"


def test_times_are_for_people():
    assert [duration(7.26), duration(83), duration(5025)] == ["7.3s", "1m23s", "1h23m"]


def test_a_meter_with_unknown_total_counts(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 105.0)
    meter = Meter("reading", done=10, started=100.0)
    assert meter.line() == "reading: 10, 2/s, 5.0s elapsed"
