"""Slots: each episode has a copy of the sites for itself, made clean before it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import stand_in
from pages import until
from peers import alone

from minirl.benchmarks.webarena.lookups import newest_order_url
from minirl.browser import servers
from minirl.browser.pool import BrowserPool
from minirl.browser.servers import Servers, Slot, read_servers
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


async def test_a_slot_has_one_episode_at_a_time_and_is_reset_before_each(worlds):
    taken = Servers(slots_of(worlds))
    shop = next(iter(taken.slots[0].places))
    in_use: list[object] = []
    seen: list[object] = []

    async def episode(n: int) -> None:
        async with taken.take() as places:
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
    assert len(seen) == 5 and {place for place, _ in seen} == {slot.places[shop] for slot in taken.slots}
    assert sum(world.resets for world in worlds) == 5 and taken.free.qsize() == 2
    async with Servers().take() as places:
        assert places == {}, "without slots nothing is taken"


async def test_a_slot_is_waited_for_so_long_and_one_that_can_not_be_reset_ends_the_run(worlds, monkeypatch):
    monkeypatch.setattr(servers, "ACQUIRE_SECONDS", 0.05)
    taken = Servers(slots_of(worlds)[:1])
    async with taken.take():
        with pytest.raises(BrowserFault, match="no slot of --task.servers was free") as late:
            async with taken.take():
                pass
    assert late.value.stop is Stop.INFRA_ERROR and taken.free.qsize() == 1
    broken = Servers([replace(taken.slots[0], reset="http://127.0.0.1:9")])
    with pytest.raises(RunEnds, match="--task.servers: http://127.0.0.1:9/reset answered nothing"):
        async with broken.take():
            pass
    assert broken.free.qsize() == 1


GOOD = {"sites": {"SHOPPING": "http://10.0.0.2:80"}, "reset": "http://10.0.0.2:7565"}


def written(folder: Path, slots: object) -> Path:
    file = folder / "servers.json"
    file.write_text(json.dumps(slots))
    return file


def test_ranks_share_a_files_slots(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOPPING", "http://shop.test:7770")
    slots = [{**GOOD, "sites": {"SHOPPING": f"http://10.0.0.{n}:80"}} for n in range(4)]
    file = written(tmp_path, slots)
    shares = [read_servers(file, 4, replace(alone(), rank=rank, world=2)).slots for rank in range(2)]
    hosts = [[slot.places["shop.test", 7770][0] for slot in share] for share in shares]
    assert hosts == [["10.0.0.0", "10.0.0.2"], ["10.0.0.1", "10.0.0.3"]]
    assert read_servers(None, 16, alone()).slots == ()


@pytest.mark.parametrize(
    ("slots", "world", "problem"),
    [
        ([GOOD], 1, "has 1 slots for 2 episodes: give --browser.episodes 1"),
        ([GOOD] * 3, 2, "has 3 slots for 2 episodes: .* as many slots for each rank"),
        ([{"sites": {}}] * 2, 1, "can't be used: .*reset"),
        ({"sites": {}}, 1, "can't be used: .*list"),
        ([GOOD, {**GOOD, "sites": {"SHOPING": "http://a.test"}}], 1, "SHOPING and http://a.test must be"),
        ([GOOD, {**GOOD, "sites": {"http://b.test": "a.test:80"}}], 1, "http://b.test and a.test:80 must be"),
    ],
)
def test_what_is_wrong_with_a_file_of_slots_is_told(tmp_path, monkeypatch, slots, world, problem):
    monkeypatch.setenv("SHOPPING", "http://shop.test:7770")
    with pytest.raises(ValueError, match=problem):
        read_servers(written(tmp_path, slots), 2, replace(alone(), world=world))


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
    async with BrowserPool(CONFIG, servers=Servers(slots_of(worlds))) as pool:
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
        BrowserPool(replace(CONFIG, connect=("ws://a/",)), servers=Servers(slots_of(worlds)))
