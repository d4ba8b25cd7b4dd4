"""Episodes side by side, in real Chromium: what one page does is no other episode's trouble."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from typing import Any

import pages
import pytest
from pages import HEIGHT, WIDTH, do, point, running, until

from minirl.browser import access
from minirl.browser.access import Guard
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=50, private=True)
PROXIED = replace(CONFIG, deny=("denied.test",))  # a list calls for the proxy
PAGES = {
    "/": "<!doctype html><title>Home</title>Hello",
    "/names": """<!doctype html><title>Names</title><script>
        let n = 0;
        const ask = () => { for (let i = 0; i < 40; i++) new Image().src = `http://n${n++}.silent.test/`; };
        setInterval(ask, 100);
        </script>""",
    "/copy": """<!doctype html><title>Copy</title><style>* { margin: 0 }</style>
        <textarea style="position: absolute; width: 200px; height: 60px">a secret</textarea>""",
    "/keeper": """<!doctype html><title></title><script>
        const stored = [localStorage.visits, sessionStorage.visits, document.cookie];
        const visits = [...stored, window.name, history.length];
        const opening = indexedDB.open("visits", 1);
        opening.onupgradeneeded = () => document.title = `new ${visits}`;
        opening.onsuccess = () => document.title ||= `known ${visits}`;
        localStorage.visits = sessionStorage.visits = window.name = document.cookie = "visited";
        </script>""",
    "/fill": """<!doctype html><title>Fill</title><script>
        const kept = [];
        const fill = () => kept.push(Array.from({length: 1000000}, Math.random));
        setInterval(fill, 10);
        </script>""",
}
TEXT = point(100, 30)
PASTE_KEYS = [("ctrl", "v"), ("Control", "KeyV"), ("Control", "Shift", "v"), ("Shift", "Insert")]
PASTE_KEYS += [("Control", "v", "a"), ("Shift", "Insert", "b")]


class Handler(pages.Handler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path, "")
        self.reply(page.encode(), status=200 if page else 404)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_port


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The names below silent.test that were looked up, and are not answered; all others are at 127.0.0.1."""
    asked: set[str] = set()
    end = threading.Event()

    def lookup(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host.endswith("silent.test"):
            asked.add(host)
            end.wait(120)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(access, "RESOLVE_SECONDS", 1.0)
    yield asked
    end.set()


async def test_names_that_never_answer_keep_no_other_episode_waiting(port, silent):
    async with BrowserPool(PROXIED) as pool, pool.session() as first, pool.session() as second:
        await first.start(f"http://first.test:{port}/names")
        await first.page.wait_for_function("n > 400")
        assert len(silent) == access.LOOKUPS
        await second.start(f"http://second.test:{port}/")
        assert await second.page.title() == "Home"


async def test_an_episodes_guard_has_lookups_of_its_own_and_shares_turns(silent):
    """A name that waits for its turn has the same time limit; when the episode ends, it is not looked up."""
    mine = Guard(private=True, rate=1.0)
    other = replace(mine)
    waiting = [asyncio.create_task(mine.resolve(f"n{n}.silent.test", 80)) for n in range(50)]
    await asyncio.sleep(0.1)
    assert len(silent) == access.LOOKUPS and mine.turns is other.turns
    assert await other.resolve("a.test", 80) == [("127.0.0.1", 80)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in outcomes} == {TimeoutError} and len(silent) == access.LOOKUPS


async def keys(session: Session, *hotkey: str) -> str:
    return await do(session, "press_keys", keys=list(hotkey), is_hotkey=True)


async def test_what_one_episode_has_copied_no_other_pastes(pool, port):
    """Nor does it itself: the clipboard is the whole browser's."""
    async with pool.session() as first, pool.session() as second:
        for session in (first, second):
            await session.start(f"http://127.0.0.1:{port}/copy")
            await do(session, "click", point_2d=TEXT)
        await keys(first, "Control", "a")
        await keys(first, "Control", "c")
        await second.page.fill("textarea", "")
        for hotkey in PASTE_KEYS:
            with pytest.raises(ToolFailure, match="nothing can be pasted; type the text"):
                await keys(second, *hotkey)
        await do(second, "click", point_2d=TEXT, button="middle")
        assert await second.page.input_value("textarea") == ""


async def test_what_a_page_has_stored_no_other_episode_finds(port):
    found = []
    async with BrowserPool(CONFIG, {"shop.test": port}, sealed=True) as pool:
        for _ in range(2):
            async with pool.session() as session:
                assert session.next_answer is None
                await session.press("Escape")  # which declines the next dialog
                await session.start("http://shop.test/keeper")
                await session.page.wait_for_function("document.title")
                found.append(await session.page.title())
                context = session.context
        async with pool.session() as session:
            assert session.context is context  # one serves all of them
    first, second = found
    assert first.startswith("new ,,,,") and second == first


async def test_a_pages_memory_has_a_limit(session, port):
    """At which it crashes; test_hostile.py shows that a crash ends its episode."""
    await session.start(f"http://127.0.0.1:{port}/")
    assert await session.page.evaluate("performance.memory.jsHeapSizeLimit") < 1.3 * 2**30


@pytest.mark.more
async def test_a_page_that_fills_its_memory_ends_at_its_limit(session, port):
    with contextlib.suppress(ToolFailure, BrowserFault):
        await session.goto(f"http://127.0.0.1:{port}/fill")
    await until(lambda: session.page in session.crashed, 120)
    with pytest.raises(BrowserFault) as caught:
        await session.screenshot()
    assert caught.value.stop is Stop.ENV_ERROR
