"""The doctor looks at every thing, survives what it finds, and its exit status can be relied on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minirl import __main__ as door
from minirl.cli import doctor


def test_every_row_is_there_and_this_machine_is_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert door.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for row in ("packages", "torch", "on Python 3", "GPU", "Chromium", "memory"):
        assert row in said
    assert "opens a page" in said
    assert said.rstrip().endswith("everything that training needs is here")


def test_something_missing_makes_the_status_1_and_a_note_does_not(capsys, monkeypatch):
    def fails() -> str:
        raise ValueError("[none]")

    note = doctor.Check("tail", fails, "grow one", needed=False)
    monkeypatch.setattr(doctor, "CHECKS", (doctor.Check("torch", lambda: "2", ""), note))
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert "[none]" in said and "grow one" in said  # not eaten as a colour
    monkeypatch.setattr(doctor, "CHECKS", (note, doctor.Check("legs", fails, "")))
    assert doctor.main([]) == 1
    assert capsys.readouterr().out.rstrip().endswith("missing: legs")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("a 1 requires b.\nminirl 0.1.0 requires lxml, which is not installed.\nc 1.\n", "requires lxml"),
        ("other 1 requires b, which is not installed.\n", "other 1"),
        ("Traceback:\n  raise AssertionError()\nImportError: libcudart\nbye\n", "^ImportError: libcudart$"),
        ("", "exit status 1"),
    ],
)
def test_the_line_that_tells_what_failed_is_shown(monkeypatch, output, found):
    done = subprocess.CompletedProcess([], 1, output, "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ValueError, match=found):
        doctor.python("-m", "pip", "check")


def test_a_process_that_hangs_is_given_up_on(monkeypatch):
    def hang(*_, **__):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    with pytest.raises(ValueError, match="no answer in 60 s"):
        doctor.python("--version")


def test_no_chromium_and_a_broken_one_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere/chrome")
    with pytest.raises(ValueError, match="/nowhere/chrome does not run"):
        doctor.open_page()
    # One that prints a version and then does not start: only opening a page tells.
    broken = tmp_path / "chrome"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Chromium 1" || exit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("MINIRL_CHROMIUM", str(broken))
    with pytest.raises(ValueError, match="Error"):
        doctor.python("-c", doctor.PAGE)


def test_little_memory_is_a_note(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda _: "MemTotal: 9000000 kB\nMemAvailable: 2097152 kB\n")
    with pytest.raises(ValueError, match=r"2\.0 GiB"):
        doctor.memory()


def test_the_door_knows_its_verbs(capsys, monkeypatch):
    assert door.main(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out
    assert door.main([]) == 2
    capsys.readouterr()
    assert door.main(["dokter"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "doctor, demo" in said
    assert door.main(["doctor", "--fast"]) == 2

    def missing(name: str) -> None:
        raise ModuleNotFoundError("no rich", name="rich")

    monkeypatch.setattr(door.importlib, "import_module", missing)
    assert door.main(["demo"]) == 1
    assert "rich is not installed: run `make setup`" in capsys.readouterr().err
