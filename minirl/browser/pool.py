"""The browsers behind the episodes: Chromium processes here, or browsers elsewhere by their addresses.

Stands between episodes and Chromium. A browser that died, or hangs, is replaced, and only the episodes that
were in it are lost. OpenWebRL, appendix A.1 and table 7: acquiring, leaving and checking have the paper's
time limits. Deviation: an episode has its own browser context, not its own container; a container is one
address of `--browser.connect` (docs/kubernetes.yaml).
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from playwright.async_api import Browser, BrowserType, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl.browser import executable
from minirl.browser.access import Guard
from minirl.browser.proxy import FLAGS, Proxy
from minirl.browser.session import Session
from minirl.config import ACQUIRE_SECONDS, BrowserConfig
from minirl.console import first_line, say
from minirl.types import BrowserFault, Stop

CDP = "cdp:"  # before the address of a browser that speaks Chromium's protocol, not Playwright's
NO_PROXY = "socks5://127.0.0.1:9"  # nobody listens there: a context without its own proxy reaches nothing
START_SECONDS = 30.0  # for a browser, or a context in it, to open
EXIT_SECONDS = 15.0  # for a context or a browser to close; a browser that takes longer is killed
FIRST_CHECK_SECONDS = 180.0  # after the start, when browsers are first asked for a sign of life
CHECK_SECONDS = 30.0  # from check to check; a browser that gives no sign for as long is replaced
CONNECT_PAUSE = 1.0  # seconds between attempts to reach a browser elsewhere


@dataclass
class Place:
    """One of the pool's browsers, and those that replace it."""

    address: str  # "" for a process of our own
    browser: Browser | None = None
    pid: int | None = None  # of a process of our own
    born: float = 0.0  # when the browser was started, on the monotonic clock
    load: int = 0  # episodes
    is_down: bool = False  # the address did not answer when it was asked last
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: list[tuple[Session, contextlib.AsyncExitStack]] = field(default_factory=list)  # of a sealed pool


@dataclass
class BrowserPool:
    """`config.browsers` Chromium processes, or those at `config.connect`: `async with BrowserPool(config,
    sites) as pool`, then `async with pool.session() as session`. `sites` and `trusted` are the guard's. If
    `sealed`, browsers here reach nothing but the sites, which store nothing, and so the next episode may have
    a context that is left in order; if not, all goes through the proxy that the config's lists call for."""

    config: BrowserConfig
    sites: Mapping[str, int] = field(default_factory=dict)
    sealed: bool = False
    trusted: Collection[tuple[str, int]] = ()
    options: dict[str, Any] = field(default_factory=dict)  # of Chromium's launch
    launches: int = 0
    ending: set[asyncio.Task[None]] = field(default_factory=set)  # browsers that are being closed
    closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    playwright: Playwright | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)  # of its driver

    def __post_init__(self) -> None:
        config, places = self.config, (self.sites, self.trusted)
        self.guard = Guard(config.private, config.allow, config.deny, config.host_rate, *places)
        self.places = [Place(address) for address in config.connect or [""] * config.browsers]

    async def __aenter__(self) -> Self:
        """Start the first browser: an error that all of them have is better told now than per episode."""
        if not self.config.connect:
            self._choose_options()
        try:
            await self._browser(self.places[0])
        except (PlaywrightError, TimeoutError, OSError) as error:
            await self.__aexit__()
            hint = "`make setup` installs one"
            raise ValueError(f"no browser can be started ({first_line(error)}): {hint}") from None
        checking = asyncio.create_task(self._check())
        self.closing.callback(checking.cancel)
        return self

    def _choose_options(self) -> None:
        """Choose the options of Chromium's launch; if they name a proxy, each context gets its own."""
        config = self.config
        if executable.sandbox_off() and not self.sealed:
            say("Chromium runs without its sandbox, which it must as root: other users are safer")
        if self.sealed or (config.private and not config.allow and not config.deny):
            rules = [f"MAP {host} 127.0.0.1:{port}" for host, port in self.guard.sites.items()]
            rules += ["MAP * ~NOTFOUND"] * self.sealed
            flags = [f"--host-resolver-rules={','.join(rules)}"]
            if self.sealed:
                # our own sites may share processes: one for each would cost a tenth of an episode
                flags += ["--disable-site-isolation-trials", f"--renderer-process-limit={os.cpu_count()}"]
            self.options = executable.launch_options(flags)
            return
        self.options = executable.launch_options(FLAGS) | {"proxy": through(NO_PROXY)}

    async def __aexit__(self, *_: object) -> None:
        for place in self.places:
            self._drop(place, place.browser)
        await asyncio.gather(*self.ending)
        await self.closing.aclose()

    async def _driver(self) -> Playwright:
        """Return Playwright. Its driver process is started if there is none, or if it died."""
        async with self.starting, asyncio.timeout(START_SECONDS):
            with contextlib.suppress(PlaywrightError):
                if self.playwright is not None:
                    await (await self.playwright.request.new_context()).dispose()  # it answers
                    return self.playwright
            starter = async_playwright()
            self.closing.push_async_callback(self._stop_driver, starter)
            self.playwright = await starter.start()
            return self.playwright

    async def _stop_driver(self, starter: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await starter.__aexit__()

    async def _browser(self, place: Place) -> Browser:
        """Return a place's browser, started or connected to if there is none or it died."""
        async with place.lock:
            if place.browser is not None and place.browser.is_connected():
                return place.browser
            chromium = (await self._driver()).chromium
            if place.address:
                browser = await self._connect(place, chromium)
            else:
                # Playwright's own limit: it also ends the process that took too long
                limit = 1000 * START_SECONDS
                browser = await chromium.launch(**self.options, timeout=limit)
            place.browser, place.pid, place.born = browser, None, time.monotonic()
            self.launches += 1
            if not place.address:
                found = await ask(browser, "SystemInfo.getProcessInfo", START_SECONDS)
                browsers = (one["id"] for one in found["processInfo"] if one["type"] == "browser")
                place.pid = next(browsers, None)
            return browser

    async def _connect(self, place: Place, chromium: BrowserType) -> Browser:
        """Return a browser elsewhere. While it is being started it refuses, and episodes go to others."""
        connect = chromium.connect_over_cdp if place.address.startswith(CDP) else chromium.connect
        deadline = time.monotonic() + ACQUIRE_SECONDS
        while True:
            try:
                found = connect(place.address.removeprefix(CDP), timeout=1000 * START_SECONDS)
                browser, place.is_down = await found, False
                return browser
            except PlaywrightError:
                place.is_down = True
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(CONNECT_PAUSE)

    def _drop(self, place: Place, browser: Browser | None) -> None:
        """Close a browser in the background; the next episode gets another one."""
        if browser is not None and place.browser is browser:  # and not one that has replaced it already
            task = asyncio.create_task(self._end(browser, place.pid))
            place.browser = place.pid = None
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)

    async def _end(self, browser: Browser, pid: int | None) -> None:
        with contextlib.suppress(PlaywrightError, ProcessLookupError):  # it is gone already
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    await browser.close()
            except TimeoutError:
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

    async def _check(self) -> None:
        """Every so often ask all browsers for a sign of life; one that gives none is replaced."""
        await asyncio.sleep(FIRST_CHECK_SECONDS)
        while True:
            for place in self.places:
                if (browser := place.browser) is None or not browser.is_connected():
                    continue
                try:
                    await ask(browser, "Browser.getVersion", CHECK_SECONDS)
                except (PlaywrightError, TimeoutError):
                    self._drop(place, browser)
            await asyncio.sleep(CHECK_SECONDS)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open a context in the least loaded browser, and close it after the block. Raises BrowserFault."""
        # of those that are down, one episode at a time finds out whether it is back
        place = min(self.places, key=lambda place: (place.is_down and place.load > 0, place.load))
        place.load += 1
        opened = contextlib.AsyncExitStack()
        try:
            try:
                async with asyncio.timeout(ACQUIRE_SECONDS):
                    try:
                        session = await self._open(place, opened)
                    except (PlaywrightError, TimeoutError):  # in another browser
                        session = await self._open(place, opened)
            except (PlaywrightError, TimeoutError) as error:
                raise BrowserFault(Stop.INFRA_ERROR, f"no browser: {first_line(error)}") from None
            yield session
            if self.sealed and await session.renewed():
                place.idle.append((session, opened.pop_all()))
        finally:
            place.load -= 1
            closing = asyncio.ensure_future(opened.aclose())
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # as the episode leaves: what it opened is closed all the same
                await closing
                raise

    async def _open(self, place: Place, opened: contextlib.AsyncExitStack) -> Session:
        """Return a session in a new or an idle context, which `opened` closes even if this is cancelled."""
        browser = await self._browser(place)
        while place.idle:
            session, owner = place.idle.pop()
            opened.push_async_callback(owner.aclose)
            if session.context.browser is browser:
                return session
        size = {"width": self.config.width, "height": self.config.height}
        options: dict[str, Any] = {"viewport": size, "accept_downloads": False}
        guard = replace(self.guard)
        opened.callback(guard.lookups.shutdown, wait=False, cancel_futures=True)
        if "proxy" in self.options:
            options["proxy"] = through((await opened.enter_async_context(Proxy(guard))).address)
        # shielded: Chromium opens it even for an episode that is cancelled now, and it must be closed
        opening = asyncio.ensure_future(browser.new_context(**options))

        async def close() -> None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await (await opening).close()

        opened.push_async_callback(close)
        try:
            async with asyncio.timeout(START_SECONDS):
                context = await asyncio.shield(opening)
                context.set_default_timeout(1000 * self.config.action_seconds)
                await context.grant_permissions([])  # all that a page asks for is refused at once
                page = await context.new_page()
        except (PlaywrightError, TimeoutError):  # it hangs, or lost its driver, for every later episode, too
            self._drop(place, browser)
            raise
        return Session(self.config, context, page, guard, place.born)


def through(proxy: str) -> dict[str, str]:
    # by default Chromium goes past a proxy to what is on its own machine
    return {"server": proxy, "bypass": "<-loopback>"}


async def ask(browser: Browser, question: str, seconds: float) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        cdp = await browser.new_browser_cdp_session()
        answer = await cdp.send(question)
        await cdp.detach()
        return answer
