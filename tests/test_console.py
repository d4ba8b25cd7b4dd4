"""What is printed: progress as new lines away from a terminal, and as a bar on it."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from minirl import console
from minirl.console import Meter, duration, progress, say


def test_say_prints_brackets_as_they_are(capsys):
    say("[bold] scores [1, 2] [/nothing] " + "x" * 200)
    assert capsys.readouterr().out == "[bold] scores [1, 2] [/nothing] " + "x" * 200 + "\n"


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


def test_a_meter_with_unknown_total_counts():
    meter = Meter("reading", done=10, started=time.monotonic() - 5)
    assert meter.line() == "reading: 10, 2/s, 5.0s elapsed"
