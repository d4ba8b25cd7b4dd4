"""The processes that train together: who they are, and what they tell one another.

`torchrun --nproc-per-node 8 train.py ...` starts a process, a rank, for each GPU; without it there is one.
Every rank runs the same script, with its own browsers, sampler and shard of the weights, on a share of the
episodes and of every minibatch. All ranks must make collective calls (`all_gather`, `broadcast`, everything
on sharded weights) in the same order, so decisions that depend on files go by `broadcast`. Ranks take a
step's tasks from the `TaskQueue` as they have room; seeds go by a task's place in the stream.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

T = TypeVar("T")
SLACK_SECONDS = 1800.0  # how long ranks may wait for one another beyond the deadline of an episode


@dataclass(frozen=True)
class Ranks:
    """This process among its peers."""

    rank: int
    world_size: int
    device: torch.device
    store: dist.Store
    side: Any  # a group for collective calls of other threads, which must not mix with training's

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_gather(self, items: list[T]) -> list[T]:
        """Return all ranks' items, rank after rank."""
        if self.world_size == 1:
            return items
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, items)
        return sum(parts, [])

    def broadcast(self, value: T) -> T:
        """Return the first rank's value."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        self.all_gather([])

    def share(self, total: int) -> int:
        """Return this rank's part of what all ranks have together, rounded up."""
        return -(-total // self.world_size)

    def mesh(self, replicas: int) -> DeviceMesh:
        """Return the mesh (replicate, shard) of `replicas` groups of ranks, each with all of the weights."""
        if self.world_size % replicas:
            raise ValueError(
                f"--optim.replicas {replicas} does not divide the number of ranks, {self.world_size}"
            )
        shape = (replicas, self.world_size // replicas)
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))
        return mesh if replicas > 1 else mesh["shard"]


@contextlib.contextmanager
def open_ranks(episode_seconds: float = 0.0) -> Iterator[Ranks]:
    """Join the ranks that torchrun has started, or stand alone."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=episode_seconds + SLACK_SECONDS)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timeout, **alone)
    try:
        store = dist.PrefixStore("minirl", dist.distributed_c10d._get_default_store())
        side = dist.new_group(backend="gloo", timeout=timeout)
        yield Ranks(dist.get_rank(), dist.get_world_size(), device, store, side)
    finally:
        dist.destroy_process_group()


class TaskQueue:
    """The tasks of a step or evaluation, by a name used once. `results()` has what any rank posts."""

    def __init__(self, ranks: Ranks, name: str):
        self.store = dist.PrefixStore(name, ranks.store)
        self.name = str(ranks.rank)
        self.known: dict[int, bool] = {}
        self.next = 0

    def claim(self, n: int) -> bool:
        """Return whether this rank, and no other, will run task `n`, the first that was not claimed."""
        return self.store.compare_set(str(n), "", self.name) == self.name.encode()

    def claimed(self) -> int:
        """Return how many tasks are claimed, by any rank."""
        while self.store.check([str(self.next)]):
            self.next += 1
        return self.next

    def post(self, n: int, kept: bool) -> None:
        """Tell all ranks whether the group of task `n`, which this one has claimed, is kept."""
        self.store.set(str(n), "kept" if kept else "dropped")

    def give_up(self) -> None:
        self.store.set("given up", "")

    def given_up(self) -> bool:
        return self.store.check(["given up"])

    def results(self) -> dict[int, bool]:
        """Return whether each task that has ended so far is kept."""
        running = [n for n in range(self.claimed()) if n not in self.known]
        # one question for all: a rank on another node waits for each answer, several times a second
        values = self.store.multi_get([str(n) for n in running]) if running else []
        for n, value in zip(running, values, strict=True):
            if value in (b"kept", b"dropped"):  # else it is the name of the rank that runs it
                self.known[n] = value == b"kept"
        return self.known


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; a collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
