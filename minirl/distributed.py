"""The processes that train together: who they are, and what they tell one another.

`torchrun --nproc-per-node 8 train.py ...` starts one process, a rank, for each GPU. Every rank runs the same
script: it has browsers, a sampler and a shard of the weights of its own, runs a share of the episodes, and
trains on a share of every minibatch. Collective calls (`all_gather`, `broadcast`, everything on sharded
weights)
must be made by all ranks in the same order, so what ranks decide from files that change they decide by
`broadcast`. Without torchrun there is one rank, and the same code runs.

The `TaskQueue` is how a step's groups are shared out: ranks take the next task of the stream as they
have room,
and post what became of it. A task's seeds depend on its place in the stream alone, and acceptance goes by
that place, so a step's batch does not depend on which rank ran what.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

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
    world: int
    device: torch.device
    store: dist.Store
    side: dist.ProcessGroup  # for collective calls of other threads, which must not mix with training's

    @property
    def here(self) -> int:
        """How many ranks share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", 1))

    @property
    def is_main(self) -> bool:
        """True on the rank that logs and writes the run's records."""
        return self.rank == 0

    def all_gather(self, items: list[T]) -> list[T]:
        """All ranks' items, rank after rank."""
        if self.world == 1:
            return items
        parts: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def broadcast(self, value: T) -> T:
        """The first rank's value."""
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Returns when every rank has come here."""
        self.all_gather([])

    def neighbours(self, count: int) -> dist.ProcessGroup:
        """This rank and those beside it, `count` together, for collective calls of another thread. A
        collective call. ValueError if the ranks can't be cut like that."""
        if self.here % count:
            raise ValueError(
                f"--sampler.tensor-parallel {count} does not divide a machine's {self.here} ranks"
            )
        return dist.new_subgroups(count, backend="gloo")[0]

    def mesh(self, replicas: int) -> DeviceMesh:
        """(replicate, shard): `replicas` groups of ranks, each with one full copy of the weights."""
        if self.world % replicas:
            raise ValueError(f"--optim.replicas {replicas} does not divide the number of ranks, {self.world}")
        shape = (replicas, self.world // replicas)
        mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))
        return mesh if replicas > 1 else mesh["shard"]


@contextlib.contextmanager
def open_ranks(episode_seconds: float = 0.0) -> Iterator[Ranks]:
    """Joins the ranks that torchrun has started, or stands alone.

    A collective call fails when a rank does not come for longer than an episode may take and half an hour.
    """
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
    """The tasks of one step: which are taken, and what became of them. `name` is used once per process.

    With `claim()` 0, 1, 2 by three ranks, and 1 posted True, `results()` is {1: True} on all of them.
    """

    def __init__(self, ranks: Ranks, name: str):
        self.store = dist.PrefixStore(name, ranks.store)
        self.known: dict[int, bool] = {}

    def claim(self) -> int:
        """The number of a task that nobody else will run."""
        return self.store.add("claimed", 1) - 1

    def claimed(self) -> int:
        return self.store.add("claimed", 0)

    def post(self, n: int, kept: bool) -> None:
        self.store.set(str(n), "kept" if kept else "dropped")

    def give_up(self) -> None:
        """Tells all ranks to stop collecting."""
        self.store.set("given up", "")

    def given_up(self) -> bool:
        return self.store.check(["given up"])

    def results(self) -> dict[int, bool]:
        """What is known of the tasks so far: whether their groups are kept."""
        for n in range(self.claimed()):
            if n not in self.known and self.store.check([str(n)]):
                self.known[n] = self.store.get(str(n)) == b"kept"
        return self.known


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; a collective call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
