"""What a piece of work costs, for the benchmarks: seconds and memory, each piece in a process of its own.

Memory is read from /proc, so on Linux only. Where only time counts, the processes can keep what they free,
as PyTorch's allocator does on a GPU: by default the C library gives every large tensor back to the system at
once, whose clearing of pages then takes a quarter of the time of long rows and none of short ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}  # read when a process starts


@dataclass(frozen=True)
class Cost:
    """The least CPU-seconds of all repeats, wall-clock seconds of the same, peak memory above the start."""

    seconds: float
    wall: float
    mb: float


def fresh(function: Callable[..., Result], *args: object, keep: bool = False) -> Result:
    """Calls a module's function in a new process, where nothing has been allocated before. `keep`: freed
    memory stays with the process."""
    for name in KEEP:
        os.environ.pop(name, None)
    os.environ.update(KEEP if keep else {})
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def cost(work: Callable[[], Result], repeats: int = 1, enough: float = 0.0) -> tuple[Cost, Result]:
    """Does the work up to `repeats` times, until that has taken `enough` seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is held now
    before = memory_mb("VmHWM")
    times = []
    for _ in range(repeats):
        cpu = time.process_time()
        wall = time.perf_counter()
        result = work()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
        if sum(seconds for seconds, _ in times) >= enough:
            break
    cpu, wall = min(times)
    return Cost(cpu, wall, memory_mb("VmHWM") - before), result


def memory_mb(name: str) -> float:
    """A line of /proc/self/status: VmRSS is what this process holds, VmHWM the most that it has held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
