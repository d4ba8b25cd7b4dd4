"""Where the seconds of `make train` go: processor time by phase and by who spends it.

    python benchmarks/seconds.py --steps 3

Runs the tiny recipe as `make train` does and reads every process's and thread's time from /proc, so on Linux
only: Chromium, Playwright's driver, the harness (the main thread while episodes run), the sampler (the other
threads) and updates (all threads while there are no episodes). The last line is JSON: seconds of wall-clock
time and of each spender by phase, and the limit, wall-clock time times cores; the rest was spent waiting.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Args:
    ranks: int = 2
    steps: int = 3
    flags: str = ""
    """Further flags for train.py, separated by blanks."""


def phase_of(line: str) -> str | None:
    """Return the phase that a line of progress tells of."""
    named = re.match(r"(?:step \d+: )?(\w+)[\w ]*? [━╸╺-]+ +\d+/\d+ ", line)  # without a bar it is a result
    names = {"evaluating": "evaluations", "recording": "demonstrations", "updating": "updates"}
    return names.get(named[1], named[1]) if named else None


def threads_of(root: int) -> dict[tuple[str, int], float]:
    """Return the seconds of every thread below a process, by the kind of thread and its number."""
    parents = dict[int, int]()
    out = dict[tuple[str, int], float]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    for pid in parents:
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above != root:
            continue
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                rest = stat.read_text().rpartition(")")[2]
            except OSError:
                continue
            who = "harness" if int(stat.parent.name) == pid else "sampler"
            who = "driver" if "node" in program(pid) else who
            who = "Chromium" if re.search("chrom|headless", program(pid)) else who
            out[who, int(stat.parent.name)] = sum(map(int, rest.split()[11:13])) / TICKS
    return out


def program(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def measure(args: Args) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return seconds of wall-clock time by phase, and of every spender by phase."""
    seen = dict[tuple[str, int], float]()
    lock = threading.Lock()
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", str(args.ranks)]
        command = [*start, str(ROOT / "train.py"), "tiny", "--name", f"{folder}/tiny"]
        command += ["--steps", str(args.steps), *args.flags.split()]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def look() -> None:
            while not ended.wait(0.5):
                threads = threads_of(run.pid)
                with lock:
                    seen.update(threads)

        threading.Thread(target=look, daemon=True).start()
        wall = dict[str, float]()
        spent = dict[str, dict[str, float]]()
        last = time.monotonic()
        before = defaultdict[str, float](float)
        for line in run.stdout or ():
            sys.stderr.write(line)
            phase = phase_of(line)
            if phase is None:
                continue
            with lock:
                now = defaultdict[str, float](float)
                for (who, _), seconds in seen.items():
                    now[who] += seconds
            wall[phase] = wall.get(phase, 0.0) + time.monotonic() - last
            new = spent.setdefault(phase, defaultdict(float))
            for who in now:
                browses = phase not in ("updates", "cloning") or who in ("Chromium", "driver")
                new[who if browses else "updates"] += now[who] - before[who]
            last = time.monotonic()
            before = now
        ended.set()
        if run.wait():
            raise SystemExit(f"train.py ended with status {run.returncode}")
    return wall, spent


def main(args: Args) -> None:
    wall, spent = measure(args)
    cores = len(os.sched_getaffinity(0))
    rounded = {
        phase: {who: round(seconds, 1) for who, seconds in each.items()} for phase, each in spent.items()
    }
    limit = round(sum(wall.values()) * cores, 1)
    walls = {phase: round(seconds, 1) for phase, seconds in wall.items()}
    print(json.dumps({"wall": walls, "processor": rounded, "limit": limit}))


if __name__ == "__main__":
    main(tyro.cli(Args))
