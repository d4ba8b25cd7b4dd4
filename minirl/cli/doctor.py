"""`python -m minirl doctor`: what this machine has, what it lacks, and one line of advice on each.

Each `check_...` function returns one row of the table. A `MISSING` makes the exit status 1; a `NOTE` is for
the reader to weigh. Nothing is changed: installing is left to the Makefile.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from minirl.browser import executable

OK, NOTE, MISSING = "ok", "note", "MISSING"
COLOURS = {OK: "green", NOTE: "yellow", MISSING: "bold red"}
GIB = 2**30


class Row(NamedTuple):
    name: str
    state: str
    found: str
    advice: str = ""


def main(argv: Sequence[str]) -> int:
    """Print the table. Returns 0 if everything that training needs is there, else 1."""
    if argv:
        print("usage: python -m minirl doctor (it takes no flags)", file=sys.stderr)
        return 2
    rows = [check() for check in CHECKS]
    columns = (Column(name, overflow="fold") for name in ("", "state", "found", "what to do"))
    table = Table(*columns, title="minirl doctor", title_justify="left")
    for row in rows:
        table.add_row(row.name, Text(row.state, COLOURS[row.state]), Text(row.found), Text(row.advice))
    Console().print(table)
    missing = [row.name for row in rows if row.state == MISSING]
    print(f"missing: {', '.join(missing)}" if missing else "everything that training needs is here")
    return 1 if missing else 0


def check_packages() -> Row:
    """Ask pip whether all packages are there, in the versions that they want of each other. A lack of other
    packages of this environment is only a note."""
    failed = failure_of("-m", "pip", "check", "--disable-pip-version-check")
    if failed is not None:
        return Row("packages", MISSING if failed.startswith("minirl ") else NOTE, failed, "make clean setup")
    return Row("packages", OK, f"complete, for Python {platform.python_version()} at {sys.executable}")


def check_torch() -> Row:
    """Import torch: a build that does not fit the machine fails there."""
    failed = failure_of("-c", "import torch, transformers")
    if failed is not None:
        return Row("torch", MISSING, f"does not import: {failed}", "make clean setup")
    import torch

    return Row("torch", OK, torch.__version__)


def check_gpu() -> Row:
    """Look for a GPU; training runs on a CPU too, slowly, so a missing one is only a note."""
    if shutil.which("nvidia-smi") is None:
        return Row("GPU", NOTE, "none; the CPU trains small models only")
    failed = failure_of("-c", "import torch; torch.zeros(1, device='cuda')")
    if failed is not None:
        return Row("GPU", NOTE, f"torch can't use it: {failed}", "update the driver, or make clean setup")
    import torch

    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    found = "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in gpus)
    return Row("GPU", OK, f"{found} (CUDA {torch.version.cuda})")


def check_chromium() -> Row:
    """Open a page: a browser that prints its version may still fail to start."""
    try:
        path = executable.executable()
        found = f"{path}: {executable.version(path)}"
    except ValueError as error:
        return Row("Chromium", MISSING, "none that runs", f"make setup; {error}")
    failed = failure_of("-c", "from minirl.cli import doctor; doctor.open_blank_page()")
    sandbox_off = executable.sandbox_off()
    if failed is not None:
        # The sandbox needs user namespaces, which many containers forbid.
        advice = "look at memory and /dev/shm" if sandbox_off else "in a container: MINIRL_NO_SANDBOX=1"
        return Row("Chromium", MISSING, f"{found}; does not start: {failed}", advice)
    if sandbox_off:  # a hostile page needs one bug less
        return Row("Chromium", NOTE, f"{found}; opens a page, sandbox off", "visit sites that you trust")
    return Row("Chromium", OK, f"{found}; opens a page")


def failure_of(*arguments: str) -> str | None:
    """Run Python in another process, which can be given up on. Returns None, or a line with what failed."""
    try:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer in 60 s"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or line.startswith("minirl ")]
    return [*telling, *lines, f"exit status {done.returncode}"][0] if done.returncode else None


def open_blank_page() -> None:
    """Run by `check_chromium` in another process."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**executable.launch_options(), timeout=40_000)
        browser.new_page().goto("about:blank", timeout=10_000)
        browser.close()


def check_memory() -> Row:
    """Look at what is free now, and at the container's limit, which the kernel enforces by killing."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit = cgroup_limit("memory.max", "memory/memory.limit_in_bytes")
    found = f"{free / GIB:.1f} GiB available" + (f", limit {limit / GIB:.1f} GiB" if limit else "")
    if min(free, limit or free) < 4 * GIB:
        return Row("memory", NOTE, found, "tight: lower the number of browsers and the batch")
    return Row("memory", OK, found)


def cgroup_limit(v2: str, v1: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the first number in the cgroup's file, or None where there is no limit or no cgroup."""
    for file in (root / v2, root / v1):
        try:
            first = int(file.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue  # no such file, or the word "max"
        return first if 0 < first < 2**60 else None  # v1 writes "no limit" as -1 or as about 2**63
    return None


def check_cores() -> Row:
    """Compare cores with threads: more threads than cores make everything slower."""
    cores: float = len(os.sched_getaffinity(0))
    if quota := cgroup_limit("cpu.max", "cpu/cpu.cfs_quota_us"):
        cores = min(cores, quota / 100_000)  # the usual period is 0.1 s
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{cores:g} cores, OMP_NUM_THREADS {threads or 'not set'}"
    if threads.isdigit() and int(threads) > cores:
        return Row("CPU", NOTE, found, f"export OMP_NUM_THREADS={max(1, int(cores))}")
    return Row("CPU", OK, found)


CHECKS = (check_packages, check_torch, check_gpu, check_chromium, check_memory, check_cores)
