"""Chromium for episodes: a pool of browser processes, and one isolated session per episode.

Stands below tools and episodes. Every call into the browser goes through `Session.do`, which gives it a
timeout and sorts its failures: `ToolFailure` is the agent's news (it reads the reason as feedback),
`BrowserFault` ends the episode with its `Stop`. A step is never retried: actions are not idempotent.

OpenWebRL, appendix A.1 and table 7. Deviations: no fixed sleeps after actions (the page says when it is
ready, up to a cap), no HTTP service between episode and browser.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, BrowserContext, CDPSession, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl import chromium
from minirl.config import BrowserConfig
from minirl.types import Stop

# Resolves when the page is drawn and quiet: loaded, fonts there, images in the viewport decoded, no DOM
# change for `quiet` ms; at the latest after `cap` ms. Returns the title, which saves a round trip.
READY = """async ([quiet, cap]) => {
  const start = performance.now(), left = () => cap - (performance.now() - start);
  const sleep = ms => new Promise(done => setTimeout(done, Math.max(0, ms)));
  while (document.readyState !== 'complete' && left() > 0) await sleep(10);
  const images = [...document.images].filter(i => {
    const r = i.getBoundingClientRect();
    return !i.complete && r.bottom > 0 && r.right > 0 && r.top < innerHeight && r.left < innerWidth; });
  const loads = images.map(i => new Promise(done => { i.onload = i.onerror = done; }));
  if (loads.length || document.fonts.status !== 'loaded')
    await Promise.race([Promise.all([document.fonts.ready, ...loads]), sleep(left())]);
  if (quiet > 0) {
    let last = performance.now();
    const watch = new MutationObserver(() => { last = performance.now(); });
    watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    while (performance.now() - last < quiet && left() > 0)
      await sleep(Math.min(left(), quiet - (performance.now() - last)));
    watch.disconnect();
  }
  return document.title;
}"""

DESCRIBE = """([x, y]) => {
  const e = document.elementFromPoint(x, y);
  if (!e || e === document.body || e === document.documentElement) return 'the page';
  const hit = e.closest('a,button,input,select,textarea,label,[role]') || e;
  const kind = hit.getAttribute('role') || hit.tagName.toLowerCase();
  const name = (hit.getAttribute('aria-label') || hit.innerText || hit.placeholder || '').trim();
  return name ? kind + ' "' + name.replace(/\\s+/g, ' ').slice(0, 30) + '"' : kind;
}"""

SCROLL = """([dx, dy, point]) => {
  let e = point && document.elementFromPoint(point[0], point[1]);
  const can = n => { const s = getComputedStyle(n);
    return (dy && n.scrollHeight > n.clientHeight && /auto|scroll/.test(s.overflowY)) ||
           (dx && n.scrollWidth > n.clientWidth && /auto|scroll/.test(s.overflowX)); };
  while (e && !can(e)) e = e.parentElement;
  const area = e || document.scrollingElement, x = area.scrollLeft, y = area.scrollTop;
  area.scrollBy({left: dx, top: dy, behavior: 'instant'});
  return Math.abs(area.scrollLeft - x) + Math.abs(area.scrollTop - y) >= 1;
}"""


SHOTS = (1, 3, 6)  # attempts at one screenshot: their shares of the time limit
SHOT_PAUSE = 0.1  # seconds between them


class ToolFailure(Exception):
    """A call could not be carried out; the message is for the agent."""


class BrowserFault(Exception):
    """The browser, the renderer or the site is gone; the episode ends with `stop`."""

    def __init__(self, stop: Stop, message: str):
        super().__init__(message)
        self.stop = stop


@dataclass
class Session:
    """One episode's browser context. `page` is the current tab; new windows become current by themselves."""

    config: BrowserConfig
    context: BrowserContext
    page: Page

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def height(self) -> int:
        return self.config.height

    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Awaits a browser call under a timeout and sorts what can go wrong."""
        try:
            return await asyncio.wait_for(work, seconds or self.config.action_seconds)
        except TimeoutError:
            raise ToolFailure("the browser did not finish in time") from None
        except PlaywrightError as error:
            reason = error.message.splitlines()[0]
            if "Target crashed" in reason or "Page crashed" in reason:
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed") from None
            if "has been closed" in reason or "Connection closed" in reason:
                if self._lives():
                    raise ToolFailure("the tab was closed") from None
                raise BrowserFault(Stop.INFRA_ERROR, "the browser is gone") from None
            raise ToolFailure(re.sub(r"^\w+\.\w+: ", "", reason)) from None  # "Mouse.click: ..."

    def _lives(self) -> bool:
        """True while the browser runs and the context has a tab: then only one tab can have been closed."""
        browser = self.context.browser
        return browser is not None and browser.is_connected() and len(self.context.pages) > 0

    async def start(self, url: str) -> None:
        """Opens the task's first page; only here may a navigation be tried again."""
        for attempt in range(self.config.start_attempts):
            try:
                await self.goto(url, self.config.start_seconds)
                await self.settle()
                return
            except ToolFailure as failure:
                if attempt + 1 == self.config.start_attempts:
                    raise BrowserFault(Stop.INFRA_ERROR, f"{url} did not open: {failure}") from None

    async def goto(self, url: str, seconds: float | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            url = "https://" + url if "://" not in url and ":" not in url.split("/")[0] else url
        if not url.startswith(("http://", "https://")):
            raise ToolFailure("only http and https addresses can be opened")
        await self.do(self.page.goto(url, wait_until="domcontentloaded"), seconds)

    async def settle(self) -> None:
        """Waits until the page is ready, or the cap is reached; one that navigates is asked anew."""
        cap = self.config.ready_ms
        for _ in range(3):
            try:
                await self.do(self.page.evaluate(READY, [self.config.quiet_ms, cap]), cap / 1000 + 5)
                return
            except ToolFailure as failure:
                if "context was destroyed" not in str(failure):
                    return  # a hung page shows in the screenshot, or ends the episode there

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """(URL, title) of every tab, and the index of the current one."""
        # A snapshot: while the titles are asked for, a tab may open and become the current one.
        pages, current = self.context.pages, self.page
        if current not in pages:
            raise BrowserFault(Stop.ENV_ERROR, "the last tab closed itself")
        titles = []
        for page in pages:
            try:
                titles.append(await self.do(page.title()))
            except ToolFailure:
                titles.append("")
        rows = [(page.url, title) for page, title in zip(pages, titles, strict=True)]
        return rows, pages.index(current)

    async def screenshot(self) -> bytes:
        """The viewport as PNG, straight from the renderer: Playwright's own waits for fonts, and may hang.

        A page that is just being replaced refuses, or forgets that it was asked. Looking changes nothing,
        so unlike an action it is tried again.
        """
        options, reason = {"format": "png", "optimizeForSpeed": True}, ""
        for share in SHOTS:
            seconds = self.config.screenshot_seconds * share / sum(SHOTS)
            try:
                cdp: CDPSession = await self.do(self._cdp(), seconds)
                shot = await self.do(cdp.send("Page.captureScreenshot", options), seconds)
                return base64.b64decode(shot["data"])
            except ToolFailure as failure:
                reason = str(failure)
                await asyncio.sleep(SHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def _cdp(self) -> CDPSession:
        """One protocol session per page, made at first use."""
        if self.page not in self._sessions:
            self._sessions[self.page] = await self.context.new_cdp_session(self.page)
        return self._sessions[self.page]

    def __post_init__(self) -> None:
        self._sessions: dict[Page, CDPSession] = {}
        self.context.on("page", self._opened)
        self.context.on("dialog", _accept)

    def _opened(self, page: Page) -> None:
        self.page = page
        page.on("close", self._closed)

    def _closed(self, page: Page) -> None:
        self._sessions.pop(page, None)
        if page is self.page and self.context.pages:
            self.page = self.context.pages[-1]

    async def describe(self, x: float, y: float) -> str:
        """The element at a pixel, in a few words."""
        return await self.do(self.page.evaluate(DESCRIBE, [x, y]))

    async def scroll(self, dx: float, dy: float, point: tuple[float, float] | None) -> bool:
        return await self.do(self.page.evaluate(SCROLL, [dx, dy, point]))

    async def new_tab(self) -> int:
        self.page = await self.do(self.context.new_page())
        return self.context.pages.index(self.page)

    async def switch_tab(self, index: int) -> None:
        if not 0 <= index < len(self.context.pages):
            raise ToolFailure(f"there is no tab {index}; the last is {len(self.context.pages) - 1}")
        self.page = self.context.pages[index]
        await self.do(self.page.bring_to_front())

    async def close_tab(self) -> int:
        pages = self.context.pages
        if len(pages) == 1:
            raise ToolFailure("the last tab can't be closed")
        index = pages.index(self.page)
        await self.do(self.page.close())
        self.page = self.context.pages[min(index, len(self.context.pages) - 1)]
        return self.context.pages.index(self.page)


class BrowserPool:
    """`config.browsers` Chromium processes that share the episodes; a process that died is started anew.

    Use as `async with BrowserPool(config, resolver) as pool`, then `async with pool.session() as session`.
    `resolver` maps host names to loopback ports (Chromium's --host-resolver-rules), for generated sites.
    """

    def __init__(self, config: BrowserConfig, resolver: str = ""):
        self.config = config
        self.options = chromium.launch_options([f"--host-resolver-rules={resolver}"] if resolver else [])
        self.browsers: list[Browser | None] = [None] * config.browsers
        self.loads = [0] * config.browsers  # episodes per browser
        self.locks = [asyncio.Lock() for _ in range(config.browsers)]
        self.launches = 0
        self.pids: dict[Browser, int] = {}
        self.ending: set[asyncio.Task[None]] = set()  # browsers that are being closed
        self.starter = async_playwright()
        self.playwright: Playwright | None = None

    async def __aenter__(self) -> BrowserPool:
        """Starts the first browser: what is wrong with all of them is better told now than per episode."""
        try:
            self.playwright = await asyncio.wait_for(self.starter.start(), self.config.start_seconds)
            await self._browser(0)
        except (PlaywrightError, TimeoutError, OSError) as error:
            await self.__aexit__()
            reason = (str(error) or type(error).__name__).splitlines()[0]
            hint = "`python -m minirl doctor` says what is missing"
            raise ValueError(f"no browser can be started ({reason}): {hint}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        for i, browser in enumerate(self.browsers):
            if browser is not None:
                self._drop(i, browser)
        await asyncio.gather(*self.ending)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.starter.__aexit__(), self.config.exit_seconds)

    async def _browser(self, i: int) -> Browser:
        async with self.locks[i]:
            browser = self.browsers[i]
            if browser is None or not browser.is_connected():
                assert self.playwright is not None, "use `async with BrowserPool(...)`"
                # Playwright's own limit: it also ends the process that took too long
                limit = 1000 * self.config.start_seconds
                browser = await self.playwright.chromium.launch(**self.options, timeout=limit)
                self.browsers[i] = browser
                self.launches += 1
                self.pids[browser] = await asyncio.wait_for(process_id(browser), self.config.start_seconds)
            return browser

    def _drop(self, i: int, browser: Browser) -> None:
        """Closes a browser in the background; the next episode gets another one."""
        if self.browsers[i] is browser:  # and not one that has replaced it already
            self.browsers[i] = None
            task = asyncio.create_task(self._end(browser))
            self.ending.add(task)
            task.add_done_callback(self.ending.discard)

    async def _end(self, browser: Browser) -> None:
        """Closes a browser; one that hangs is killed."""
        pid = self.pids.pop(browser, None)
        try:
            await asyncio.wait_for(browser.close(), self.config.exit_seconds)
        except PlaywrightError:
            pass  # it is gone already
        except TimeoutError:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A fresh context in the least loaded browser; closed, whatever happens, when the block ends."""
        i = self.loads.index(min(self.loads))
        self.loads[i] += 1
        opening: asyncio.Future[BrowserContext] | None = None
        try:
            try:
                browser = await self._browser(i)
                size = {"width": self.config.width, "height": self.config.height}
                opening = asyncio.ensure_future(browser.new_context(viewport=size, accept_downloads=False))
                # shielded: Chromium opens it even for an episode that is cancelled now, and it must be closed
                try:
                    context = await asyncio.wait_for(asyncio.shield(opening), self.config.start_seconds)
                    page = await asyncio.wait_for(context.new_page(), self.config.start_seconds)
                except TimeoutError:  # connected, but it hangs, and would with every later episode
                    self._drop(i, browser)
                    raise
            except (PlaywrightError, TimeoutError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise BrowserFault(Stop.INFRA_ERROR, f"no browser: {reason}") from None
            session = Session(self.config, context, page)
            page.on("close", session._closed)
            yield session
        finally:
            self.loads[i] -= 1
            if opening is not None:
                with contextlib.suppress(PlaywrightError, TimeoutError):
                    async with asyncio.timeout(self.config.exit_seconds):
                        await (await opening).close()


async def process_id(browser: Browser) -> int:
    """The process of a browser, which Playwright does not tell."""
    cdp = await browser.new_browser_cdp_session()
    processes = (await cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
    await cdp.detach()
    return next(process["id"] for process in processes if process["type"] == "browser")


async def _accept(dialog: Any) -> None:
    """Dialogs block the page for ever otherwise."""
    with contextlib.suppress(PlaywrightError):
        await dialog.accept()
