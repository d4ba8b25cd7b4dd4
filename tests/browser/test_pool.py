"""Browsers elsewhere, by their addresses; signs of life; the manifest of a pool of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pages
import pytest
import pytest_asyncio
import yaml
from pages import HEIGHT, WIDTH, do, observe, point, until

from minirl.browser import executable, pool
from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

ROOT = Path(__file__).resolve().parents[2]
CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=50, private=True, exit_seconds=5)
LINK = point(50, 25)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with pages.serve() as address:
        yield address


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


@contextmanager
def playwright_server() -> Iterator[str]:
    """The address of a Playwright server on loopback. (`--unsafe` lets a client name the executable,
    because Playwright's own download need not be on the machine that runs the tests.)"""
    flags = ["--host", "127.0.0.1", "--port", "0", "--unsafe"]
    with told_address([sys.executable, "-m", "playwright", "run-server", *flags]) as address:
        yield address


@contextmanager
def debugged_chromium(folder: Path) -> Iterator[str]:
    """The address of a Chromium's own protocol."""
    flags = ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-sandbox", "--headless"]
    with told_address([executable.executable(), *flags, "about:blank"]) as address:
        yield address


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to a Playwright server ask for the Chromium that is installed here."""
    options = executable.launch_options()
    asked = {"executablePath": options["executable_path"], "args": options["args"], "chromiumSandbox": False}
    headers = {"x-playwright-launch-options": json.dumps(asked)}
    monkeypatch.setattr(pool, "CONNECT_HEADERS", headers)


@pytest_asyncio.fixture(params=["playwright", "cdp"])
async def address(request: pytest.FixtureRequest, by_name: None, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "playwright":
        with playwright_server() as address:
            yield address
    else:
        with debugged_chromium(tmp_path) as address:
            yield "cdp:" + address


async def test_episodes_in_a_browser_elsewhere(address, site):
    """Several at once, each with its own cookies; and again after the connection was lost."""
    config = replace(CONFIG, connect=(address,), acquire_seconds=20)
    async with BrowserPool(config) as pool:

        async def visit(n: int) -> str:
            async with pool.session() as session:
                await session.start(f"{site}/")
                before = await session.page.evaluate("document.cookie")
                await session.page.evaluate(f"document.cookie = 'n={n}'")
                line = await do(session, "click", point_2d=LINK)
                assert f"Now at {site}/two." in line and (await observe(session)).title == "Two"
                return before

        assert await asyncio.gather(*map(visit, range(4))) == [""] * 4
        assert pool.launches == 1
        await pool.places[0].browser.close()
        assert await visit(9) == "" and pool.launches == 2


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


async def test_no_browser_at_an_address():
    config = replace(CONFIG, connect=("ws://127.0.0.1:9/",), acquire_seconds=0.5, start_seconds=5)
    with pytest.raises(ValueError, match="no browser can be started"):
        async with BrowserPool(config):
            pass


async def test_a_browser_without_a_sign_of_life_is_replaced(site):
    config = replace(CONFIG, first_check_seconds=0.2, check_seconds=0.5, exit_seconds=1)
    async with BrowserPool(config) as pool:
        first = pool.places[0].browser
        os.kill(pool.places[0].pid, signal.SIGSTOP)
        await until(lambda: pool.places[0].browser is not first, 30)
        async with pool.session() as session:
            await session.start(f"{site}/")
        assert pool.launches == 2


def test_the_manifest_is_of_this_playwright():
    parts = list(yaml.safe_load_all((ROOT / "docs/kubernetes.yaml").read_text()))
    kinds = {part["kind"]: part for part in parts}
    assert set(kinds) == {"Namespace", "Service", "StatefulSet", "NetworkPolicy"}
    (container,) = kinds["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    ours = version("playwright")
    assert f":v{ours}-" in container["image"] and f"playwright@{ours}" in container["command"]
    port = kinds["Service"]["spec"]["ports"][0]["port"]
    assert str(port) in container["command"] and container["ports"] == [{"containerPort": port}]
