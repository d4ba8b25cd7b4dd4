"""Slots: each episode has a copy of the sites for itself, made clean before it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import stand_in
from pages import until
from peers import alone

from minirl.benchmarks.webarena.lookups import newest_order_url
from minirl.browser import servers
from minirl.browser.pool import BrowserPool
from minirl.browser.servers import Slot, read_slots, take
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, RunEnds, Stop, ToolFailure

CONFIG = BrowserConfig(browsers=1, width=400, height=300, quiet_ms=50)  # private addresses are refused


@pytest.fixture
def worlds(monkeypatch) -> Iterator[list[stand_in.World]]:
    """Two copies of the sites, with a reset server each."""
    monkeypatch.setattr(servers, "RESET_PAUSE", 0.01)
    with ExitStack() as stack:
        yield [stack.enter_context(stand_in.serve()) for _ in range(2)]


def slots_of(worlds: list[stand_in.World]) -> list[Slot]:
    """Each world as a slot, under the addresses of the first one."""
    names = worlds[0].sites
    return [Slot({names[site]: world.sites[site] for site in names}, world.reset) for world in worlds]


def queue(slots: list[Slot]) -> asyncio.Queue[Slot]:
    free = asyncio.Queue()
    for slot in slots:
        free.put_nowait(slot)
    return free


async def test_a_slot_has_one_episode_at_a_time_and_is_reset_before_each(worlds):
    slots = slots_of(worlds)
    free = queue(slots)
    shop = next(iter(slots[0].places))
    in_use: list[object] = []
    seen: list[object] = []

    async def episode(n: int) -> None:
        async with take(free) as places:
            assert places[shop] not in in_use
            in_use.append(places[shop])
            seen.append((places[shop], sum(world.resets for world in worlds)))
            await asyncio.sleep(0.01)
            in_use.remove(places[shop])
            if n == 1:
                raise BrowserFault(Stop.ENV_ERROR, "a fault gives it back")
            if n == 2:
                await asyncio.sleep(60)  # and so does an end from outside

    runs = [asyncio.create_task(episode(n)) for n in range(5)]
    await until(lambda: sum(run.done() for run in runs) == 4)
    runs[2].cancel()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(result).__name__ for result in results].count("NoneType") == 3
    assert len(seen) == 5 and {place for place, _ in seen} == {slot.places[shop] for slot in slots}
    assert sum(world.resets for world in worlds) == 5 and free.qsize() == 2


async def test_a_slot_is_waited_for_so_long_and_one_that_can_not_be_reset_ends_the_run(worlds, monkeypatch):
    monkeypatch.setattr(servers, "ACQUIRE_SECONDS", 0.05)
    slots = slots_of(worlds)[:1]
    free = queue(slots)
    async with take(free):
        with pytest.raises(BrowserFault, match="no slot of --task.servers was free") as late:
            async with take(free):
                pass
    assert late.value.stop is Stop.INFRA_ERROR and free.qsize() == 1
    broken = queue([replace(slots[0], reset="http://127.0.0.1:9")])
    with pytest.raises(RunEnds, match="http://127.0.0.1:9/reset answered nothing"):
        async with take(broken):
            pass
    assert broken.qsize() == 1


async def test_all_ranks_end_where_the_sites_can_not_be_reset(worlds):
    """The first one asks; what it hears is told to the others, which would wait for it."""
    told = []

    def rank(is_main: bool, reset: str) -> Mock:
        ranks = Mock(is_main=is_main, broadcast=lambda value: told.append(value) or told[0])
        return Mock(ranks=ranks, config=Mock(task=Mock(reset=reset)))

    for is_main in (True, False):
        with pytest.raises(RunEnds, match="http://127.0.0.1:9/reset answered nothing"):
            await servers.reset_sites(rank(is_main, "http://127.0.0.1:9"))
    told.clear()
    await servers.reset_sites(rank(True, worlds[0].reset))
    assert worlds[0].resets == 1 and told == [""]


GOOD = {"sites": {"SHOPPING": "http://10.0.0.2:80"}, "reset": "http://10.0.0.2:7565"}


def written(folder: Path, slots: object) -> Path:
    file = folder / "servers.json"
    file.write_text(json.dumps(slots))
    return file


def test_ranks_share_a_files_slots(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOPPING", "http://shop.test:7770")
    slots = [{**GOOD, "sites": {"SHOPPING": f"http://10.0.0.{n}:80"}} for n in range(4)]
    file = written(tmp_path, slots)
    hosts = []
    for rank in range(2):
        share = read_slots(file, 4, replace(alone(), rank=rank, world_size=2))
        hosts.append([share.get_nowait().places["shop.test", 7770][0] for _ in range(share.qsize())])
    assert hosts == [["10.0.0.0", "10.0.0.2"], ["10.0.0.1", "10.0.0.3"]]


@pytest.mark.parametrize(
    ("slots", "world", "problem"),
    [
        ([GOOD] * 3, 2, "servers.json: give --browser.episodes 2 or more slots"),
        ([{"sites": {}}] * 2, 1, "can't be used: .*reset"),
        ([GOOD, {**GOOD, "sites": {"SHOPING": "http://a.test"}}], 1, "SHOPING and http://a.test must be"),
        ([GOOD, {**GOOD, "sites": {"http://b.test": "a.test:80"}}], 1, "http://b.test and a.test:80 must be"),
    ],
)
def test_what_is_wrong_with_a_file_of_slots_is_told(tmp_path, monkeypatch, slots, world, problem):
    monkeypatch.setenv("SHOPPING", "http://shop.test:7770")
    with pytest.raises(ValueError, match=problem):
        read_slots(written(tmp_path, slots), 2 * world, replace(alone(), world_size=world))


async def test_two_episodes_at_one_address_are_on_servers_of_their_own(worlds, monkeypatch):
    """Pages, and what rules ask a shop's server; other copies stay as closed as any private address."""
    for name, address in worlds[0].sites.items():
        monkeypatch.setenv(name, address)
    forum, shop = worlds[0].sites["REDDIT"], worlds[0].sites["SHOPPING"]
    worlds[1].orders.append(["mug"])
    newest = []
    worlds[0].posts.append(("a", "First", ""))
    worlds[1].posts.append(("a", "Second", ""))
    titles, urls = [], []
    async with BrowserPool(CONFIG, copies=queue(slots_of(worlds))) as pool:
        assert sum(world.resets for world in worlds) == 0, "no slot is taken before there is an episode"
        async with pool.session() as one, pool.session() as two:
            for session in (one, two):
                await session.start(f"{forum}/f/a/1/x")
                titles.append(await session.page.title())
                urls.append(session.page.url)
                asked = await session.page.evaluate("fetch('/f/a/1/x').then(answer => answer.text())")
                assert titles[-1] in asked and not await session.blocked()
                newest.append(await newest_order_url(session))
            with pytest.raises(ToolFailure, match="private address"):
                await two.goto(worlds[1].sites["REDDIT"])
    assert titles == ["First", "Second"] and urls == [f"{forum}/f/a/1/x"] * 2
    assert newest == [None, f"{shop}/sales/order/view/order_id/1/"]
    with pytest.raises(ValueError, match="leave out --browser.connect"):
        BrowserPool(replace(CONFIG, connect=("ws://a/",)), copies=queue(slots_of(worlds)))
