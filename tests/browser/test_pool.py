"""Browsers elsewhere, by their addresses; the manifest of a pool of them."""

import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import psutil
import pytest
import yaml
from pages import HEIGHT, WIDTH, do, observe, point
from peers import alone

from minirl.benchmarks.task_sets import TaskSets, load_source
from minirl.browser import executable
from minirl.browser.pool import BrowserPool, BrowserSlot, ask
from minirl.config import BrowserConfig
from minirl.experiment import Experiment
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import BrowserFault, RunEnds, Stop, ToolFailure

MANIFEST = Path(__file__).resolve().parents[2] / "docs/kubernetes.yaml"
CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=50, private=True)
LINK = point(50, 25)


@contextmanager
def told_address(command: list[str]) -> Iterator[str]:
    """The address that a server tells when it has started; it is killed when the block ends."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
    try:
        yield next(found[0] for line in child.stdout if (found := re.search(r"ws://\S+", line)))
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)


@pytest.fixture(params=["playwright", "cdp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a browser on loopback. A Playwright server is told which Chromium (`--unsafe` lets it be): its own
    download need not be on the machine that runs the tests."""
    if request.param == "playwright":
        options = executable.launch_options()
        asked = {"executablePath": options["executable_path"], "args": options["args"]}
        asked["chromiumSandbox"] = False
        flags = ["-m", "playwright", "run-server", "--host", "127.0.0.1", "--port", "0", "--unsafe"]
        with told_address([sys.executable, *flags]) as address:
            yield f"{address}?launch-options={quote(json.dumps(asked))}"
    else:
        flags = ["--remote-debugging-port=0", f"--user-data-dir={tmp_path}", "--no-sandbox", "--headless"]
        with told_address([executable.executable(), *flags, "about:blank"]) as address:
            yield f"cdp:{address}"


async def test_episodes_in_a_browser_elsewhere(address, site):
    """Several at once, each with its own cookies; and again after the connection was lost."""
    config = replace(CONFIG, connect=(address,))
    async with BrowserPool(config) as pool:

        async def visit(n: int) -> str:
            async with pool.session() as session:
                await session.start(f"{site}/")
                before = await session.page.evaluate("document.cookie")
                await session.page.evaluate(f"document.cookie = 'n={n}'")
                line = await do(session, "click", point_2d=LINK)
                assert f"Page navigated to {site}/two." in line and " - Two" in (await observe(session)).text
                return before

        assert await asyncio.gather(*map(visit, range(4))) == [""] * 4
        assert pool.launches == 1
        await pool.slots[0].browser.close()
        assert await visit(9) == "" and pool.launches == 2


async def test_a_context_keeps_nothing_of_its_earlier_episodes():
    """It serves thousands of them, one after the other, until its browser is replaced; then it is closed."""

    def stacks() -> int:
        gc.collect()
        return sum(type(each) is AsyncExitStack for each in gc.get_objects())

    async with BrowserPool(CONFIG, sealed=True) as pool:
        counts = []
        contexts = set()
        for _ in range(4):
            async with pool.session() as session:
                contexts.add(session.context)
            counts.append(stacks())
        assert len(contexts) == 1 and counts == counts[:1] * 4

        await pool.slots[0].browser.close()
        old = session.guard.lookups
        async with pool.session() as session:
            assert session.context not in contexts
        with pytest.raises(RuntimeError, match="after shutdown"):
            old.submit(print)
        assert stacks() == counts[0]


@pytest.mark.parametrize(("ranks", "loads"), [(2, [2, 2] + [1] * 6), (16, [10] * 8)])
async def test_ranks_share_addresses_evenly(ranks, loads, monkeypatch):
    """Five episodes of each rank on eight addresses. If all began with the first, sixteen ranks would have
    sixteen episodes on each of five addresses, and none on three."""

    async def acquire(*_):
        return SimpleNamespace(guard=SimpleNamespace()), AsyncExitStack()

    monkeypatch.setattr(BrowserPool, "_acquire", acquire)
    config = replace(CONFIG, connect=tuple(f"ws://browsers:{n}" for n in range(8)))
    by_address = Counter()
    for rank in range(ranks):
        pool = BrowserPool(config, others=5 * rank)
        async with AsyncExitStack() as stack:
            for _ in range(5):
                await stack.enter_async_context(pool.session())
            by_address.update({slot.address: slot.load for slot in pool.slots})
    assert [by_address[address] for address in config.connect] == loads


async def test_a_ranks_pool_knows_of_the_episodes_before_it(preprocessor, tmp_path, monkeypatch):
    def pool(*given):
        raise RunEnds(f"a pool behind {given[-1]} episodes")

    monkeypatch.setattr("minirl.browser.pool.BrowserPool", pool)
    config = tiny()
    config = replace(config, browser=replace(config.browser, episodes=11))
    tasks, third = load_source("shops:1-1", 1, config), replace(alone(), rank=2, world_size=3)
    experiment = Experiment(config, Run(tmp_path), None, TaskSets(tasks, [], []), preprocessor, third, None)
    with pytest.raises(RunEnds, match="a pool behind 8 episodes"):  # 4 of each rank before
        async with experiment.worker():
            pass


@pytest.mark.parametrize("address", ["cdp"], indirect=True)
async def test_private_addresses_are_left_again_in_a_browser_elsewhere(address, site):
    """No proxy of ours is between: what is typed is refused, what a page leads to is left."""
    config = replace(CONFIG, connect=(address,), private=False)
    async with BrowserPool(config) as pool, pool.session() as session:
        with pytest.raises(BrowserFault, match="127.0.0.1 is a private address") as caught:
            await session.start(f"{site}/")
        assert caught.value.stop is Stop.SITE_ERROR
        await session.page.goto(f"{site}/")
        with pytest.raises(ToolFailure, match="private address"):
            await do(session, "click", point_2d=LINK)
        assert session.page.url == "about:blank"


@pytest.mark.more
async def test_an_address_without_a_browser(site, monkeypatch):
    """It is an error at the start; later, episodes go elsewhere, but for one that asks whether it is back."""
    monkeypatch.setattr("minirl.browser.pool.CONNECT_PAUSE", 0.1)
    nowhere = "ws://127.0.0.1:9/"
    config = replace(CONFIG, connect=(nowhere,))
    with monkeypatch.context() as impatient:
        impatient.setattr("minirl.browser.pool.ACQUIRE_SECONDS", 0.5)
        problem = "no browser can be started .* see that ws://127.0.0.1:9/ answers"
        with pytest.raises(ValueError, match=problem):
            async with BrowserPool(config):
                pass
    async with BrowserPool(replace(CONFIG, browsers=2)) as pool:
        monkeypatch.setattr("minirl.browser.pool.ACQUIRE_SECONDS", 2.5)
        with pytest.raises(BrowserFault, match="no browser: .*ECONNREFUSED"):
            async with AsyncExitStack() as opened:
                await pool._acquire(BrowserSlot(nowhere), opened, (400, 300))
        down = pool.slots[1]
        down.address = nowhere

        async def visit(seconds: float) -> bool:
            await asyncio.sleep(seconds)
            try:
                async with pool.session() as session:
                    await session.start(f"{site}/")
                    return True
            except BrowserFault:
                return False

        assert await asyncio.gather(visit(0), visit(0), *map(visit, [1.0] * 5)) == [True, False, *[True] * 5]
        assert down.is_down and await asyncio.gather(visit(0), visit(0)) == [True, False]


def drivers() -> list[psutil.Process]:
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "run-driver" in child.cmdline()]


async def test_a_browser_that_did_not_say_what_it_is_in_time_is_replaced(site, monkeypatch):
    """Its process could not be ended, and pages would meet a HeadlessChrome."""
    asked = []

    async def ask_in_vain(browser, question, *seconds):
        asked.append(question)
        if len(asked) == 1:
            raise TimeoutError
        return await ask(browser, question, *seconds)

    monkeypatch.setattr("minirl.browser.pool.ask", ask_in_vain)
    async with BrowserPool(replace(CONFIG, browsers=1)) as pool:
        async with pool.session() as session:
            await session.start(f"{site}/")
            assert "Headless" not in await session.page.evaluate("navigator.userAgent")
        assert pool.slots[0].pid and asked[:2] == ["Browser.getVersion"] * 2


@pytest.mark.more
async def test_a_driver_that_died_is_started_again_for_the_next_episode(site):
    """Its browsers die with it, and nobody tells. Episodes that begin at the same time share the new one."""
    others = {driver.pid for driver in drivers()}  # of an earlier test's pool, still ending
    async with BrowserPool(replace(CONFIG, browsers=2)) as pool:
        async with pool.session() as session:
            await session.start(f"{site}/")
            (driver,) = (child for child in drivers() if child.pid not in others)
            driver.kill()
            with pytest.raises(BrowserFault):
                await session.screenshot()

        async def visit() -> str:
            async with pool.session() as session:
                await session.start(f"{site}/two")
                return await session.page.title()

        assert await asyncio.gather(*(visit() for _ in range(4))) == ["Two"] * 4
        (second,) = (child for child in drivers() if child.pid not in others)
        assert second.pid != driver.pid and pool.launches == 3
        second.kill()
        assert await visit() == "Two"
    assert {child.pid for child in drivers()} <= others


def test_the_manifest_is_of_this_playwright():
    kinds = {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text())}
    assert set(kinds) == {"Namespace", "Service", "StatefulSet", "NetworkPolicy"}
    (container,) = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    ours = version("playwright")
    assert f":v{ours}-" in container["image"] and f"playwright@{ours}" in container["command"]
    port = kinds["Service"]["spec"]["ports"][0]["port"]
    assert str(port) in container["command"] and container["ports"] == [{"containerPort": port}]
