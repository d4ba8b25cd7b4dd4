"""`python -m minirl doctor`: what this machine has, what it lacks, and one line of advice on each.

What may crash or hang is tried in another process. Nothing is changed: installing is left to the Makefile.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from minirl.browser import executable
from minirl.console import say

TORCH = "import sys, torch, transformers; print(torch.__version__, 'on Python', sys.version.split()[0])"
PAGE = "from minirl.cli.doctor import open_page; open_page()"
GPUS = """import torch; torch.zeros(1, device="cuda")
print(torch.cuda.device_count(), "x", torch.cuda.get_device_properties(0), "CUDA", torch.version.cuda)"""


class Check(NamedTuple):
    """A line: `look` returns what was found, or raises ValueError with what is wrong."""

    name: str
    look: Callable[[], str]
    advice: str
    needed: bool = True


def main(argv: Sequence[str]) -> int:
    """Print a line for each check. Returns 0 if everything that training needs is there, else 1."""
    if argv:
        print("usage: python -m minirl doctor (it takes no flags)", file=sys.stderr)
        return 2
    missing = []
    for name, look, advice, needed in CHECKS:
        try:
            say(f"ok       {name:9} {look()}")
        except ValueError as problem:
            state, style = ("MISSING", "bold red") if needed else ("note", "yellow")
            say(f"{state:8} {name:9} {problem}: {advice}", style)
            missing += [name] * needed
    print(f"missing: {', '.join(missing)}" if missing else "everything that training needs is here")
    return 1 if missing else 0


def python(*arguments: str) -> str:
    """Return what another Python process prints. ValueError with the telling line if it fails or hangs."""
    try:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise ValueError("no answer in 60 s") from None
    if done.returncode == 0:
        return done.stdout.strip()
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or line.startswith("minirl ")]
    raise ValueError([f"exit status {done.returncode}", *lines, *telling][-1])


def open_page() -> None:
    """Open a page, in a process of its own: a browser that prints its version may still fail to start."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**executable.launch_options(), timeout=40_000)
        browser.new_page().goto("about:blank", timeout=10_000)
        browser.close()
    path, risk = executable.executable(), "; sandbox off" * executable.sandbox_off()
    print(f"{path}: opens a page{risk}")


def memory() -> str:
    """Return the memory that is free. ValueError if it is little."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) / 2**20
    if free < 4:
        raise ValueError(f"{free:.1f} GiB")
    return f"{free:.1f} GiB"


CHECKS = (
    Check("packages", partial(python, "-m", "pip", "check"), "make clean setup"),
    Check("torch", partial(python, "-c", TORCH), "make clean setup"),
    Check("GPU", partial(python, "-c", GPUS), "small models need none; else update the driver", needed=False),
    Check("Chromium", partial(python, "-c", PAGE), "make setup; in a container MINIRL_NO_SANDBOX=1"),
    Check("memory", memory, "tight: lower the number of browsers and the batch", needed=False),
)
