"""What a piece of work costs, for the benchmarks: seconds and memory, each piece in a process of its own."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cost:
    """The least CPU-seconds of all repeats, wall-clock seconds of the same, peak memory above the start."""

    seconds: float
    wall: float
    mb: float


def fresh(function: Callable[..., Result], *args: object) -> Result:
    """Calls a module's function in a new process, where nothing has been allocated before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def cost(work: Callable[[], Result], repeats: int = 1, enough: float = 0.0) -> tuple[Cost, Result]:
    """Does the work up to `repeats` times, until that has taken `enough` seconds. Peak memory is a process's
    peak so far, so measure one thing per process, after a small warm-up."""
    before, times = peak_mb(), []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
        if sum(seconds for seconds, _ in times) >= enough:
            break
    return Cost(*min(times), peak_mb() - before), result


def peak_mb() -> float:
    """The most memory that this process has held."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
