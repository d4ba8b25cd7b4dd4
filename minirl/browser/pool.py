"""The browsers behind the episodes: Chromium processes here, or browsers elsewhere by their address.

Stands between episodes and Chromium. An episode takes the least loaded browser and gets a context of its
own in it; a browser that died, or hangs, is replaced, and only the episodes that were in it are lost.

OpenWebRL, appendix A.1 and table 7: acquiring, leaving and checking have the paper's time limits.
Deviation: an episode has a browser context, not a container, of its own. A container is one address of
`--browser.connect` (minirl/kubernetes.yaml), and needs no code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl.browser import executable
from minirl.browser.access import Guard
from minirl.browser.proxy import FLAGS, Proxy
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.console import say
from minirl.types import BrowserFault, Stop

CDP = "cdp:"  # marks the address of a browser that speaks Chromium's protocol, not Playwright's
CONNECT_HEADERS: dict[str, str] = {}  # sent to Playwright servers
CONNECT_PAUSE = 1.0  # seconds between attempts to reach a remote browser


class BrowserPool:
    """`config.browsers` Chromium processes, or those at the addresses `config.connect`.

    Use as `async with BrowserPool(config, sites) as pool`, then `async with pool.session() as session`.
    `sites` are host names of generated sites and their ports on this machine. If `sealed`, the browsers
    reach nothing else; if not, everything goes through the proxy of minirl/browser/access.py that the
    config's lists
    of domains and addresses call for; `trusted` are the guard's.
    """

    def __init__(
        self,
        config: BrowserConfig,
        sites: Mapping[str, int] | None = None,
        sealed: bool = False,
        trusted: Collection[tuple[str, int]] = (),
    ):
        self.config, self.sealed = config, sealed
        self.guard = Guard(config.private, config.allow, config.deny, config.host_rate, sites, trusted)
        self.proxy: Proxy | None = None
        self.places = list(config.connect) or [""] * config.browsers  # "": a process of our own
        self.options: dict[str, Any] = {}
        self.browsers: list[Browser | None] = [None] * len(self.places)
        self.loads = [0] * len(self.places)  # episodes per browser
        self.locks = [asyncio.Lock() for _ in self.places]
        self.down: set[int] = set()  # addresses that did not answer when they were asked last
        self.launches = 0
        self.pids: dict[Browser, int] = {}
        self.born: dict[Browser, float] = {}
        self.ending: set[asyncio.Task[None]] = set()  # browsers that are being closed
        self.checking: asyncio.Task[None] | None = None
        self.starter = async_playwright()
        self.playwright: Playwright | None = None

    async def __aenter__(self) -> BrowserPool:
        """Starts the first browser: what is wrong with all of them is better told now than per episode."""
        try:
            await self._prepare()
            await self._browser(0)
        except (PlaywrightError, TimeoutError, OSError) as error:
            await self.__aexit__()
            reason = (str(error) or type(error).__name__).splitlines()[0]
            hint = "`python -m minirl doctor` says what is missing"
            raise ValueError(f"no browser can be started ({reason}): {hint}") from None
        self.checking = asyncio.create_task(self._check())
        return self

    async def _prepare(self) -> None:
        async with asyncio.timeout(self.config.start_seconds):
            self.playwright = await self.starter.start()
        if self.config.connect:
            return
        config = self.config
        if executable.sandbox_off() and not self.sealed:
            say("Chromium runs without its sandbox, which it must as root: other users are safer")
        rules = [f"MAP {host} 127.0.0.1:{port}" for host, port in self.guard.sites.items()]
        if self.sealed or (config.private and not config.allow and not config.deny):
            rules += ["MAP * ~NOTFOUND"] if self.sealed else []
            self.options = executable.launch_options(
                [f"--host-resolver-rules={', '.join(rules)}"] if rules else []
            )
            return
        self.proxy = await Proxy(self.guard).__aenter__()
        self.options = executable.launch_options(FLAGS)
        # by default Chromium goes past a proxy to what is on its own machine
        self.options["proxy"] = {"server": self.proxy.address, "bypass": "<-loopback>"}

    async def __aexit__(self, *_: object) -> None:
        if self.checking is not None:
            self.checking.cancel()
        for i, browser in enumerate(self.browsers):
            if browser is not None:
                self._drop(i, browser)
        await asyncio.gather(*self.ending)
        if self.proxy is not None:
            await self.proxy.__aexit__()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.exit_seconds):
                await self.starter.__aexit__()

    # --- browsers ---------------------------------------------------------------------------------------

    async def _browser(self, i: int) -> Browser:
        async with self.locks[i]:
            browser = self.browsers[i]
            if browser is None or not browser.is_connected():
                assert self.playwright is not None, "use `async with BrowserPool(...)`"
                # Playwright's own limit: it also ends the process that took too long
                limit = 1000 * self.config.start_seconds
                if browser is not None:  # it died
                    self.pids.pop(browser, None)
                    self.born.pop(browser, None)
                if self.places[i]:
                    browser = await self._connect(i)
                else:
                    browser = await self.playwright.chromium.launch(**self.options, timeout=limit)
                self.browsers[i] = browser
                self.born[browser] = time.monotonic()
                self.launches += 1
                if not self.places[i]:
                    async with asyncio.timeout(self.config.start_seconds):
                        pid = await process_id(browser)
                        self.pids |= {browser: pid} if pid else {}
            return browser

    async def _connect(self, i: int) -> Browser:
        """A browser elsewhere. One that is just being started refuses at first; meanwhile episodes go to
        others, if there are any."""
        assert self.playwright is not None
        place = self.places[i]
        limit, ends = 1000 * self.config.start_seconds, time.monotonic() + self.config.acquire_seconds
        while True:
            try:
                if place.startswith(CDP):
                    address = place.removeprefix(CDP)
                    browser = await self.playwright.chromium.connect_over_cdp(address, timeout=limit)
                else:
                    how = {"timeout": limit, "headers": CONNECT_HEADERS}
                    browser = await self.playwright.chromium.connect(place, **how)
                self.down.discard(i)
                return browser
            except PlaywrightError:
                self.down.add(i)
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(CONNECT_PAUSE)

    def _drop(self, i: int, browser: Browser) -> None:
        """Closes a browser in the background; the next episode gets another one."""
        if self.browsers[i] is browser:  # and not one that has replaced it already
            self.browsers[i] = None
            self.born.pop(browser, None)
            task = asyncio.create_task(self._end(browser))
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)

    async def _end(self, browser: Browser) -> None:
        """Closes a browser; one that hangs is killed."""
        pid = self.pids.pop(browser, None)
        try:
            async with asyncio.timeout(self.config.exit_seconds):
                await browser.close()
        except PlaywrightError:
            pass  # it is gone already
        except TimeoutError:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _check(self) -> None:
        """Every so often asks all browsers for a sign of life; one that gives none is replaced."""
        await asyncio.sleep(self.config.first_check_seconds)
        while True:
            for i, browser in enumerate(self.browsers):
                if browser is None or not browser.is_connected():
                    continue
                try:
                    async with asyncio.timeout(self.config.check_seconds):
                        cdp = await browser.new_browser_cdp_session()
                        await cdp.send("Browser.getVersion")
                        await cdp.detach()
                except (PlaywrightError, TimeoutError):
                    self._drop(i, browser)
            await asyncio.sleep(self.config.check_seconds)

    # --- sessions ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A fresh context in the least loaded browser; closed, whatever happens, when the block ends."""
        i = min(range(len(self.places)), key=lambda i: (i in self.down, self.loads[i]))
        self.loads[i] += 1
        contexts: list[asyncio.Future[BrowserContext]] = []
        try:
            try:
                async with asyncio.timeout(self.config.acquire_seconds):
                    session = await self._open(i, contexts)
            except (PlaywrightError, TimeoutError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise BrowserFault(Stop.INFRA_ERROR, f"no browser: {reason}") from None
            yield session
        finally:
            self.loads[i] -= 1
            closing = asyncio.ensure_future(self._close(contexts))
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # as the episode leaves: what it opened is closed all the same
                await closing
                raise

    async def _close(self, contexts: list[asyncio.Future[BrowserContext]]) -> None:
        for opening in contexts:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(self.config.exit_seconds):
                    await (await opening).close()

    async def _open(self, i: int, contexts: list[asyncio.Future[BrowserContext]]) -> Session:
        browser = await self._browser(i)
        size = {"width": self.config.width, "height": self.config.height}
        # shielded: Chromium opens it even for an episode that is cancelled now, and it must be closed
        opening = asyncio.ensure_future(browser.new_context(viewport=size, accept_downloads=False))
        contexts.append(opening)
        try:
            async with asyncio.timeout(self.config.start_seconds):
                context = await asyncio.shield(opening)
                context.set_default_timeout(1000 * self.config.action_seconds)
                await context.grant_permissions([])  # whatever a page asks for is refused at once
                page = await context.new_page()
        except TimeoutError:  # connected, but it hangs, and would with every later episode
            self._drop(i, browser)
            raise
        return Session(self.config, context, page, self.guard)

    def uptime(self, session: Session) -> float:
        """How long a session's browser has been running, in seconds."""
        browser = session.context.browser
        return time.monotonic() - self.born[browser] if browser in self.born else 0.0


async def process_id(browser: Browser) -> int | None:
    """The process of a browser, which Playwright does not tell."""
    cdp = await browser.new_browser_cdp_session()
    processes = (await cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
    await cdp.detach()
    return next((process["id"] for process in processes if process["type"] == "browser"), None)
