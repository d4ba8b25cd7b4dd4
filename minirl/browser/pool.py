"""The browsers behind the episodes: Chromium processes here, or browsers elsewhere by their addresses.

Stands between episodes and Chromium. A browser that died, or hangs, is replaced, and only the episodes that
were in it are lost. OpenWebRL, appendix A.1 and table 7: acquiring and leaving have the paper's time limits.
Deviations:
1. An episode has its own browser context, not its own container; a container is one address of
   `--browser.connect` (docs/kubernetes.yaml).
2. Table 7's health check is the rollout engine's, which has none here; its times are used for browsers.
3. The paper's official rates came through a paid service of stealth browsers, with CAPTCHAs solved. Here such
   a service's address is given (`--browser.connect cdp:...`); no session is opened, kept alive or paid.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Self

from playwright.async_api import Browser, BrowserContext, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl.browser import executable
from minirl.browser.access import Guard, Place
from minirl.browser.proxy import NAMES, Proxy
from minirl.browser.servers import Slots, take
from minirl.browser.session import Session
from minirl.config import ACQUIRE_SECONDS, BrowserConfig
from minirl.console import first_line, say
from minirl.types import BrowserFault, Json, Stop

CDP = "cdp:"  # before the address of a browser that speaks Chromium's protocol, not Playwright's
NO_PROXY = "socks5://127.0.0.1:9"  # nobody listens there: a context without its own proxy reaches nothing
START_SECONDS = 30.0  # for a browser, or a context in it, to open
EXIT_SECONDS = 15.0  # for a context or a browser to close; a browser that takes longer is killed
CHECK_SECONDS = 30.0  # from check to check; a browser that gives no sign for as long is replaced
CHECK_PARTS = 60  # in which that time passes; an answer takes a dozen rounds of the loop
CONNECT_PAUSE = 1.0  # seconds between attempts to reach a browser elsewhere
# Whether a letter can be drawn
LETTERS = """() => {
  const canvas = new OffscreenCanvas(20, 20).getContext('2d');
  canvas.fillText('M', 5, 15);
  return canvas.getImageData(0, 0, 20, 20).data.some(Boolean);
}"""
Size = tuple[int, int]  # width and height of a page in its own pixels
Opened = tuple[Session, AsyncExitStack]  # and what closes it
FAILURES = (PlaywrightError, TimeoutError)  # of a browser that does not do what it is asked


@dataclass
class BrowserSlot:
    """One of the pool's browsers, and those that replace it."""

    address: str  # "" for a process of our own
    browser: Browser | None = None
    pid: int | None = None  # of a process of our own
    user_agent: str = ""  # of a process of our own, as if it had a screen
    load: int = 0  # episodes
    is_down: bool = False  # the address did not answer when it was asked last
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: dict[Size, list[Opened]] = field(default_factory=dict)  # of a sealed pool


@dataclass
class BrowserPool:
    """`config.browsers` Chromium processes, or those at `config.connect`: `async with BrowserPool(config,
    sites) as pool`, then `async with pool.session() as session`. `sites` and `trusted` are the guard's, and
    `copies` free slots of servers. If `sealed`, browsers here reach nothing but the sites, and the next
    episode may have a context that is left in order, with nothing stored. If not, all goes through the proxy
    that the config's lists, or copies, call for."""

    config: BrowserConfig
    sites: Mapping[str, int] = field(default_factory=dict)
    sealed: bool = False
    trusted: Collection[Place] = ()
    copies: Slots | None = None
    others: int = 0  # episodes of the ranks before this one, which begin with other addresses
    options: Json = field(default_factory=dict)  # of Chromium's launch
    launches: int = 0
    ending: set[asyncio.Task[None]] = field(default_factory=set)  # browsers that are being closed
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    playwright: Playwright | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)  # of its driver

    def __post_init__(self) -> None:
        config = self.config
        self.guard = Guard(
            config.private, config.allow, config.deny, config.host_rate, self.sites, self.trusted
        )
        if config.connect and self.copies:
            raise ValueError("--task.servers needs browsers of this machine: leave out --browser.connect")
        addresses = config.connect or ("",) * config.browsers
        first = self.others % len(addresses)
        self.slots = [BrowserSlot(address) for address in (*addresses[first:], *addresses[:first])]

    async def __aenter__(self) -> Self:
        """Start the first browser: an error that all of them have is better told now than per episode."""
        if not self.config.connect:
            self._choose_options()
        try:
            async with self._context() as session:  # finds a time zone that does not exist, too
                if not await session.do(session.page.evaluate(LETTERS)):  # agents would learn blind
                    raise BrowserFault(Stop.ENV_ERROR, "it has no font: apt-get install fonts-dejavu")
        except (BrowserFault, OSError) as error:
            await self.__aexit__()
            fix = "set MINIRL_CHROMIUM to one that runs, or let `make setup` get one"
            if self.config.connect:
                fix = f"see that {self.config.connect[0]} answers, or leave out --browser.connect"
            raise ValueError(f"no browser can be started ({first_line(error)}): {fix}") from None
        self.closing.callback(asyncio.create_task(self._check()).cancel)
        return self

    def _choose_options(self) -> None:
        """Choose the options of Chromium's launch; if they name a proxy, each context gets its own."""
        config = self.config
        if executable.sandbox_off() and not self.sealed:
            say("Chromium runs without its sandbox, which it must as root: other users are safer")
        if not self.sealed and (not config.private or config.allow or config.deny or self.copies):
            self.options = executable.launch_options(NAMES)
            self.options["proxy"] = through(NO_PROXY)
            return
        rules = [f"MAP {host} 127.0.0.1:{port}" for host, port in self.guard.sites.items()]
        flags = []
        if self.sealed:
            rules.append("MAP * ~NOTFOUND")
            # Our own sites may share processes: one for each would cost a tenth of an episode
            flags = ["--disable-site-isolation-trials", f"--renderer-process-limit={os.cpu_count()}"]
        self.options = executable.launch_options(f"--host-resolver-rules={','.join(rules)}", *flags)

    async def __aexit__(self, *_: object) -> None:
        for slot in self.slots:
            self._drop(slot, slot.browser)
        await asyncio.gather(*self.ending)
        await self.closing.aclose()

    async def _driver(self) -> Playwright:
        """Return Playwright. Its driver process is started if there is none, or if it died."""
        async with self.starting, asyncio.timeout(START_SECONDS):
            if self.playwright:
                with suppress(PlaywrightError):
                    await (await self.playwright.request.new_context()).dispose()  # it answers
                    return self.playwright
            self.playwright = await self.closing.enter_async_context(async_playwright())
            return self.playwright

    async def _browser(self, slot: BrowserSlot) -> Browser:
        """Return a slot's browser, started or connected to if there is none or it died."""
        async with slot.lock:
            # Without a process number it has not said in time what it is: the machine is busy
            if slot.browser and slot.browser.is_connected() and (slot.pid or slot.address):
                return slot.browser
            self._drop(slot, slot.browser)
            playwright = await self._driver()
            if slot.address:
                slot.browser = browser = await self._connect(slot, playwright)
            else:
                # Playwright's own limit: it also ends the process that took too long
                browser = await playwright.chromium.launch(**self.options, timeout=1000 * START_SECONDS)
                slot.browser = browser
                version = await ask(browser, "Browser.getVersion")
                slot.user_agent = version["userAgent"].replace("Headless", "")
                answer = await ask(browser, "SystemInfo.getProcessInfo")
                slot.pid = answer["processInfo"][0]["id"]  # the browser itself comes first
            self.launches += 1
            return browser

    async def _connect(self, slot: BrowserSlot, playwright: Playwright) -> Browser:
        """Return a browser elsewhere. While it is being started it refuses, and episodes go to others."""
        chromium = playwright.chromium
        connect = chromium.connect_over_cdp if slot.address.startswith(CDP) else chromium.connect
        deadline = time.monotonic() + ACQUIRE_SECONDS / 3  # an episode tries twice, and is told why it fails
        while True:
            try:
                browser = await connect(slot.address.removeprefix(CDP), timeout=1000 * START_SECONDS)
                slot.is_down = False
                return browser
            except PlaywrightError:
                slot.is_down = True
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(CONNECT_PAUSE)

    def _drop(self, slot: BrowserSlot, browser: Browser | None) -> None:
        """Close a browser in the background; the next episode gets another one."""
        if browser and slot.browser is browser:  # and not one that has replaced it already
            task = asyncio.create_task(self._end(browser, slot.pid))
            slot.browser = None
            slot.pid = None
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)

    async def _end(self, browser: Browser, pid: int | None) -> None:
        with suppress(PlaywrightError, ProcessLookupError):  # it is gone already
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    await browser.close()
            except TimeoutError:
                if pid:
                    os.kill(pid, signal.SIGKILL)

    async def _check(self) -> None:
        """Every so often ask all browsers for a sign of life; one that gives none is replaced."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for slot in self.slots:
                browser = slot.browser
                if browser and browser.is_connected() and not await is_alive(browser):
                    self._drop(slot, browser)

    @asynccontextmanager
    async def session(self, size: Size | None = None) -> AsyncIterator[Session]:
        """Open an episode's context, with a clean slot of servers if it has its own. Pages have the config's
        size, or this one, and then their screenshots are as large as fits into the config's: 160 x 210 is
        drawn as 480 x 630 in a window of 640 x 630. Raises BrowserFault."""
        owned = take(self.copies) if self.copies else nullcontext({})
        async with owned as places, self._context(size) as session:
            session.guard.servers = places
            session.guard.trusted = {*self.trusted, *places}
            yield session

    @asynccontextmanager
    async def _context(self, size: Size | None = None) -> AsyncIterator[Session]:
        """Open a context in the least loaded browser, and close it after the block. Raises BrowserFault."""
        size = size or (self.config.width, self.config.height)
        # Of those that are down, one episode at a time finds out whether it is back
        slot = min(self.slots, key=lambda slot: (slot.is_down and slot.load > 0, slot.load))
        slot.load += 1
        opened = AsyncExitStack()
        try:
            session, owner = await self._acquire(slot, opened, size)
            yield session
            if self.sealed and await session.renew():
                opened.pop_all()  # it stays open
                slot.idle.setdefault(size, []).append((session, owner))
        finally:
            slot.load -= 1
            closing = asyncio.ensure_future(opened.aclose())
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # as the episode leaves: what it opened is closed all the same
                await closing
                raise

    async def _acquire(self, slot: BrowserSlot, opened: AsyncExitStack, size: Size) -> Opened:
        try:
            async with asyncio.timeout(ACQUIRE_SECONDS):
                try:
                    return await self._open(slot, opened, size)
                except FAILURES:  # the browser has been replaced
                    await opened.aclose()
                    return await self._open(slot, opened, size)
        except FAILURES as error:
            raise BrowserFault(Stop.INFRA_ERROR, f"no browser: {first_line(error)}") from None

    async def _open(self, slot: BrowserSlot, opened: AsyncExitStack, size: Size) -> Opened:
        """Return a session in a new or an idle context and its owner, which `opened` closes even if this is
        cancelled."""
        browser = await self._browser(slot)
        while idle := slot.idle.get(size):
            session, owner = idle.pop()
            if session.context.browser is browser:
                opened.push_async_exit(owner)
                return session, owner
            await owner.aclose()

        config = self.config
        width, height = size
        scale = min(config.width / width, config.height / height)
        options: Json = {
            "viewport": {"width": width, "height": height},
            "device_scale_factor": scale,
            "accept_downloads": False,
            "ignore_https_errors": config.insecure,
            "locale": config.locale,
            "timezone_id": config.timezone,
            "user_agent": config.user_agent or slot.user_agent,
        }
        if slot.user_agent:  # the hints beside it would say HeadlessChrome
            version = browser.version
            options["extra_http_headers"] = {
                "sec-ch-ua": f'"Chromium";v="{version.partition(".")[0]}"',
                "sec-ch-ua-full-version-list": f'"Chromium";v="{version}"',
            }
        owner = AsyncExitStack()
        opened.push_async_exit(owner)
        guard = replace(self.guard)  # with lookups of its own
        owner.callback(guard.lookups.shutdown, wait=False, cancel_futures=True)
        if "proxy" in self.options:
            proxy = await owner.enter_async_context(Proxy(guard))
            options["proxy"] = through(proxy.address)

        # Shielded: Chromium opens it even for an episode that is cancelled now, and it must be closed
        opening = asyncio.ensure_future(browser.new_context(**options))
        owner.push_async_callback(close, opening)
        try:
            async with asyncio.timeout(START_SECONDS):
                context = await asyncio.shield(opening)
                context.set_default_timeout(1000 * config.action_seconds)
                await context.grant_permissions([])  # all that a page asks for is refused at once
                page = await context.new_page()
        except FAILURES:  # it hangs, or lost its driver, for every later episode, too
            self._drop(slot, browser)
            raise
        return Session(config, context, page, guard, scale), owner


async def close(opening: asyncio.Future[BrowserContext]) -> None:
    with suppress(*FAILURES):
        async with asyncio.timeout(EXIT_SECONDS):
            await (await opening).close()


def through(proxy: str) -> dict[str, str]:
    # By default Chromium goes past a proxy to what is on its own machine
    return {"server": proxy, "bypass": "<-loopback>"}


async def is_alive(browser: Browser) -> bool:
    """Return whether a browser answers in time. The time passes in parts, each a round of the loop or more:
    an update keeps the loop for longer, and no answer can be read meanwhile."""
    asking = asyncio.create_task(ask(browser, "Browser.getVersion", None))
    try:
        for _ in range(CHECK_PARTS):
            await asyncio.wait({asking}, timeout=CHECK_SECONDS / CHECK_PARTS)
        return asking.done() and asking.exception() is None
    finally:
        asking.cancel()


async def ask(browser: Browser, question: str, seconds: float | None = START_SECONDS) -> Json:
    async with asyncio.timeout(seconds):
        cdp = await browser.new_browser_cdp_session()
        answer = await cdp.send(question)
        await cdp.detach()
        return answer
