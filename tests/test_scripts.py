"""The scripts as a person starts them: exit statuses, and mistakes that are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(*command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=env,
        input=typed,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_broken_task_file_is_named_with_its_line(tmp_path):
    broken = tmp_path / "broken.jsonl"
    good = '{"id": "a", "instruction": "x", "start_url": "http://elsewhere.test/"}'
    broken.write_text(good + '\n{"id": "b", "instruction": "x"}\n')
    done = start("eval.py", "tiny", "--task.heldout", str(broken), "--model.path", str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"eval.py: {broken}, line 2: the field 'start_url' is missing\n"


def test_the_scripted_demo_succeeds_and_leaves_a_report(tmp_path):
    done = start("-m", "minirl", "demo", "--out", str(tmp_path / "demo"), "--site", "2")
    assert done.returncode == 0, done.stderr
    assert "turn 4" in done.stdout and "turn 5" not in done.stdout
    assert "success    the page is in the state that the task asks for" in done.stdout
    report = tmp_path / "demo" / "report.html"
    assert f"report     {report}" in done.stdout and "scripted" in report.read_text()


def test_the_demo_is_played_through_a_pipe(tmp_path):
    typed = "look\npress_keys Tab Enter\ndone that is all\n"
    done = start("-m", "minirl", "demo", "--by-hand", "--out", str(tmp_path / "demo"), typed=typed)
    assert done.returncode == 0, done.stderr
    assert "pressed Tab, Enter. Now at http://shop-0.test/#CATEGORY." in done.stdout
    assert "failure    the page is not in the state that the task asks for" in done.stdout
    assert (tmp_path / "demo" / "report.html").is_file()
