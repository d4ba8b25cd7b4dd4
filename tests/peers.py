"""Peers for tests: a rank that has none, several in processes of their own, a sampler that only listens, and
the scripts as a person starts them."""

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from minirl.distributed import Ranks, open_ranks

ROOT = Path(__file__).parents[1]


def start(*command: str) -> subprocess.CompletedProcess[str]:
    """`start("train.py", "tiny")`: a script, in a process of its own."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    argv = [sys.executable, *command]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


def last_line(script: str, *flags: str, folder: Path = ROOT) -> Any:
    """`last_line("worlds.py", "--sites", "4")`: run a script of benchmarks/; its last line, which is JSON."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *flags]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def alone() -> Ranks:
    """A rank that has nobody to talk to, and needs no process group."""
    return Ranks(0, 1, torch.device("cpu"), dist.HashStore(), None)


class Idle:
    """A sampler that is never asked, and notes what it is told."""

    failure = ""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def idle(self) -> None: ...

    def sleep(self) -> None:
        self.told.append("sleep")

    def sync(self, weights: object) -> None:
        self.told.append("sync")


def on_ranks(world: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(ranks, *args)` returns on each of `world` ranks; `work` is a function of a module."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Forked, for speed, from a process that has only imported: one that has computed has threads to lose.
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["minirl.experiment"])
    box = context.Queue()
    processes = [
        context.Process(target=rank_main, args=(r, world, port, work, args, box)) for r in range(world)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(box.get(timeout=240) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=5)
            process.kill()
    for answer in found.values():
        if isinstance(answer, str) and answer.startswith("Traceback"):
            raise AssertionError(answer)
    return [found[rank] for rank in range(world)]


def rank_main(rank: int, world: int, port: int, work: Callable, args: tuple, box: Any) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= address | {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        with open_ranks() as ranks:
            answer = work(ranks, *args)
            ranks.barrier()
    except BaseException:
        answer = traceback.format_exc()
    box.put((rank, answer))
