"""Clean servers for episodes: copies of the tasks' sites, each of which one episode has for itself.

    slots of --task.servers FILE --take--> reset --> one episode's hosts --> given back

Episodes that share a server see each other's orders and posts, and are judged by them. A slot is a copy of
all sites, with a reset server of its own. Its pages keep the addresses that tasks name, in the browser and in
the rules; only the proxy connects elsewhere. WebAgent-R1, appendix A; deviation: there all sites are reset
between runs alone.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from minirl.browser.access import Place, host_and_port, is_address
from minirl.config import ACQUIRE_SECONDS
from minirl.console import progress
from minirl.run_folder import read_as
from minirl.types import BrowserFault, RunEnds, Stop

if TYPE_CHECKING:
    from minirl.distributed import Ranks
    from minirl.experiment import Experiment

ANSWER_SECONDS = 30.0  # for a server to answer one request
RESET_SECONDS = 600.0  # for all sites to be made anew
RESET_PAUSE = 1.0  # seconds between two questions whether they are


@dataclass
class Slot:
    """A copy of the sites. `sites` has the copy's address by the one that tasks name, or by the environment
    variable that holds that; `reset` is the address of the server that makes it anew.

    >>> Slot({"http://shop.test": "http://10.0.0.2:8001"}, "http://10.0.0.2:7565").places
    {('shop.test', 80): ('10.0.0.2', 8001)}
    """

    sites: dict[str, str]
    reset: str

    def __post_init__(self) -> None:
        self.places = {}  # host and port of the copy by those that tasks name
        for name, copy in self.sites.items():
            address = os.environ.get(name, name)
            if not is_address(address) or not is_address(copy):
                raise ValueError(f"{name} and {copy} must be addresses like http://host:port")
            self.places[host_and_port(address)] = host_and_port(copy)


Slots = asyncio.Queue[Slot]  # those that are free


def read_slots(path: Path, episodes: int, ranks: "Ranks") -> Slots:
    """Return this rank's share of a file's slots, every `ranks.world_size`-th. ValueError if something is
    wrong with them, or if a rank would run more episodes at a time than it has slots."""
    slots = read_as(path.read_bytes(), TypeAdapter(list[Slot]), f"--task.servers {path} can't be used")
    per_rank = len(slots) // ranks.world_size
    if per_rank < ranks.share(episodes):
        limit = per_rank * ranks.world_size
        raise ValueError(f"--task.servers {path}: give --browser.episodes {limit} or more slots")
    free = Slots()
    for slot in slots[ranks.rank :: ranks.world_size]:
        free.put_nowait(slot)
    return free


@asynccontextmanager
async def take(free: Slots) -> AsyncIterator[Mapping[Place, Place]]:
    """Have a slot, made clean, while the block lasts; yield where its sites are. BrowserFault if none is free
    in time, RunEnds if it can't be reset, for then many episodes would fail."""
    try:
        async with asyncio.timeout(ACQUIRE_SECONDS):
            slot = await free.get()
    except TimeoutError:
        raise BrowserFault(Stop.INFRA_ERROR, "no slot of --task.servers was free in time") from None
    try:
        await reset(slot.reset)
        yield slot.places
    finally:
        free.put_nowait(slot)


async def reset(address: str) -> None:
    """Have all sites made anew by a reset server, as WebAgent-R1 has one, and wait until they are ready.
    RunEnds if there is no such server, or if they are not ready in time."""
    address = address.rstrip("/")
    status, body = await fetch(f"{address}/reset")
    if status not in (200, 418):  # 418: one is running
        fix = "give the reset server's address, like http://host:7565, and see that it runs"
        raise RunEnds(f"{address}/reset answered {status or 'nothing'} {body[:80]!r}: {fix}")
    ends = time.monotonic() + RESET_SECONDS
    while time.monotonic() < ends:
        await asyncio.sleep(RESET_PAUSE)
        status, body = await fetch(f"{address}/status")  # it may be busy
        if status == 200 and re.search(r"(?<!not )\bready\b", body, re.IGNORECASE):
            return
    problem = f"the sites at {address} were not ready {RESET_SECONDS:g} s after their reset"
    raise RunEnds(f"{problem} ({body[:80]!r})")


async def reset_sites(experiment: "Experiment") -> None:
    """Have WebArena's sites put back to how they were, if the config names a server for that. RunEnds on all
    ranks if it can't be done."""
    address = experiment.config.task.reset
    fault = ""
    if address and experiment.ranks.is_main:
        try:
            with progress("resetting the sites"):
                await reset(address)
        except RunEnds as end:
            fault = str(end)
    fault = experiment.ranks.broadcast(fault)
    if fault:
        raise RunEnds(fault)


async def fetch(url: str, data: Any = None, **headers: str) -> tuple[int, str]:
    """Return a server's status and text, or 0 and why there is none."""
    import httpx2  # slow to import: only where a server is asked

    method = "GET" if data is None else "POST"
    try:
        async with httpx2.AsyncClient(timeout=ANSWER_SECONDS) as client:
            answer = await client.request(method, url, json=data, headers=headers)
        return answer.status_code, answer.text
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return 0, repr(error)
