"""The scripts as a person starts them: exit statuses, and mistakes that are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def start(*command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_broken_task_file_is_named_with_its_line(tmp_path, ended, eval_script):
    broken = tmp_path / "broken.jsonl"
    good = '{"id": "a", "instruction": "x", "start_url": "http://elsewhere.test/"}'
    broken.write_text(good + '\n{"id": "b", "instruction": "x"}\n')
    code, said = ended(eval_script, "tiny", "--task.heldout", str(broken), "--model.path", str(tmp_path))
    assert code == 2 and said.count("\n") == 1
    assert said.startswith(f"eval.py: {broken}, line 2: start_url: Field required")
