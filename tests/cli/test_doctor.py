"""The doctor looks at every thing, survives what it finds, and its exit status can be relied on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minirl import __main__ as door
from minirl.browser import executable
from minirl.cli import doctor


def test_every_row_is_there_and_this_machine_is_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert door.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for row in ("Python 3", "packages", "torch", "GPU", "Chromium", "memory", "CPU"):
        assert row in said
    assert "opens a page" in said
    assert said.rstrip().endswith("everything that training needs is here")


def test_something_missing_makes_the_status_1(capsys, monkeypatch):
    rows = (lambda: doctor.Row("torch", doctor.OK, "2"), lambda: doctor.Row("legs", doctor.MISSING, "[none]"))
    monkeypatch.setattr(doctor, "CHECKS", rows)
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "[none]" in said  # not eaten as a colour
    assert said.rstrip().endswith("missing: legs")


def fail(monkeypatch: pytest.MonkeyPatch, code: int, output: str) -> None:
    """Have every process that the doctor starts end so."""
    done = subprocess.CompletedProcess([], code, output, "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: done)


@pytest.mark.parametrize(
    ("output", "state", "found"),
    [
        ("a 1 requires b.\nminirl 0.1.0 requires lxml, which is not installed.\n", doctor.MISSING, "lxml"),
        ("minirl 0.1.0 has requirement lxml>=6, but you have lxml 5.0.\n", doctor.MISSING, "lxml 5.0"),
        ("other 1 requires b, which is not installed.\n", doctor.NOTE, "other 1"),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch, output, state, found):
    fail(monkeypatch, 1, output)
    row = doctor.check_packages()
    assert (row.state, row.advice) == (state, "make clean setup") and found in row.found


def test_a_torch_that_does_not_import_and_a_gpu_that_it_cannot_use(monkeypatch):
    fail(monkeypatch, 1, "Traceback:\n  import torch\nImportError: libcudart\n")
    row = doctor.check_torch()
    assert row.state == doctor.MISSING and row.found == "does not import: ImportError: libcudart"
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert doctor.check_gpu().state == doctor.NOTE and "none" in doctor.check_gpu().found
    monkeypatch.setattr("shutil.which", str)
    assert doctor.check_gpu().state == doctor.NOTE and "update the driver" in doctor.check_gpu().advice


def test_a_process_that_hangs_is_given_up_on(monkeypatch):
    def hang(*_, **__):
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert doctor.check_packages().found == "no answer in 60 s"


def test_no_chromium_and_a_broken_one_are_missing(monkeypatch, tmp_path):
    def none() -> str:
        raise ValueError(executable.NO_CHROMIUM)

    monkeypatch.setattr(executable, "executable", none)
    assert doctor.check_chromium().state == doctor.MISSING
    # One that prints a version and then does not start: only opening a page tells.
    broken = tmp_path / "chrome"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Chromium 1" || exit 1\n')
    broken.chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setenv("MINIRL_CHROMIUM", str(broken))
    row = doctor.check_chromium()
    assert row.state == doctor.MISSING and "does not start" in row.found


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "max\n", None),
        ("memory.max", "2147483648\n", 2**31),
        ("memory/memory.limit_in_bytes", "1073741824\n", 2**30),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("elsewhere", "", None),
    ],
)
def test_a_cgroups_limit(tmp_path: Path, file, text, limit):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert doctor.cgroup_limit("memory.max", "memory/memory.limit_in_bytes", tmp_path) == limit


@pytest.mark.parametrize(
    ("quota", "threads", "cores", "advice"),
    [
        (None, "", "8 cores", ""),
        (200_000, "2", "2 cores", ""),
        (1_600_000, "8", "8 cores", ""),
        (50_000, "4", "0.5 cores", "export OMP_NUM_THREADS=1"),
        (None, "9", "8 cores", "export OMP_NUM_THREADS=8"),
    ],
)
def test_a_quota_counts_as_fewer_cores_and_more_threads_are_advised_against(
    monkeypatch, quota, threads, cores, advice
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(doctor, "cgroup_limit", lambda *_: quota)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    row = doctor.check_cores()
    assert row.found.startswith(cores) and row.advice == advice
    assert row.state == (doctor.NOTE if advice else doctor.OK)


def test_little_memory_is_a_note(monkeypatch):
    monkeypatch.setattr(doctor, "cgroup_limit", lambda *_: 2**31)
    row = doctor.check_memory()
    assert row.state == doctor.NOTE and "limit 2.0 GiB" in row.found


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
