"""The same command gives the same files, in whatever order Python keeps sets, and however long it takes."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from peers import ROOT

DATA = ROOT / "tests/data"
MARKET = f"{DATA}/market.fsm.json --data {DATA}/market.data.json"
COMMANDS = {
    "sites": "minirl.worlds make --themes shop --level first --seed 5 --out out",
    "a site of a released form": f"minirl.worlds render {MARKET} --out out",
    "a pool that is filtered": f"minirl.data filter {DATA}/public/webgym.jsonl --out out",
    "a dump to clone": f"minirl.data read {DATA}/public/openwebrl_sft.jsonl --recipe openwebrl-4b --out out",
}


def digests(command: str, folder: Path, seed: str) -> dict[str, str]:
    """Of every file that a command leaves in a folder, by its path there."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", *command.split()]
    subprocess.run(argv, cwd=folder, env=environment, check=True, timeout=120, capture_output=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


CASES = []
for name, command in COMMANDS.items():
    CASES.append(pytest.param(command, id=name, marks=() if name == "sites" else pytest.mark.more))


@pytest.mark.parametrize("command", CASES)
def test_the_same_command_gives_the_same_files(command, tmp_path):
    one = digests(command, tmp_path / "one", seed="1")
    other = digests(command, tmp_path / "other", seed="2")
    assert one == other and len(one) >= 2
