"""One episode's browser: its context, its tabs, and everything that is asked of them.

Stands between the pool, which opens sessions, and agents, which act through them. Every call into the browser
goes through `Session.do`, which gives it a timeout and sorts its failures: the agent reads a `ToolFailure` as
feedback, and a `BrowserFault` ends the episode with its `Stop`.

OpenWebRL, appendix A.1 and table 7. Deviations: no fixed sleeps after actions (the page says when it is
ready, up to a cap), no second attempt of a step that timed out (actions are not idempotent), no HTTP service
between episode and browser; a page that hangs is stopped and told of instead of ending the episode.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, Dialog, Download, Frame, Page
from playwright.async_api import Error as PlaywrightError

from minirl.browser.access import Guard, Refused
from minirl.browser.page_scripts import ARM, Settled, number_of, record, text_of
from minirl.browser.readiness import PageHangs, Readiness, Tab
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

Point = tuple[float, float]  # x and y in pixels
Answer = Mapping[str, Any]
SCREENSHOT_SHARES = (1, 3, 6)  # of the time limit, for the attempts at one screenshot
SCREENSHOT_PAUSE = 0.05  # seconds before it is asked again when it refuses,
MOST_REFUSALS = 20  # so often
MOST_TABS = 20  # a page that opens more has them closed
MOST_DISPLACED = 3  # navigations to one address that the page before it may displace
CLOSING_SECONDS = 0.1  # for the news of what exactly has closed
GOTO_SHARE = 2 / 3  # of an action's time, for a page that does not open; the rest is for recovering
REVIVE_SECONDS = 12.0  # for all that may help a page that hangs
TITLE_CHARS = 50

# What may help a page that hangs, for how many seconds, and what the agent is told then
REMEDIES = (
    ("Page.stopLoading", 1.0, ""),  # while another document is awaited the old one does not answer
    ("Runtime.terminateExecution", 3.0, "The page's script hung and was stopped."),
)


@dataclass
class Session:
    """One episode's browser context. `page` is the current tab; new windows become current by themselves."""

    config: BrowserConfig
    context: BrowserContext
    page: Page
    guard: Guard
    born: float = field(default_factory=time.monotonic)  # when its browser was started
    news: list[str] = field(default_factory=list)  # what happened by itself: dialogs, downloads, closed tabs
    armed: Frame | None = None  # where the last action's target is
    documents: dict[int, int] = field(default_factory=dict)  # requests of every document, by its beginning
    heap: float = 0.0  # the most JavaScript memory seen, in MB
    tabs_of: dict[Page, Tab] = field(default_factory=dict)
    crashed: set[Page] = field(default_factory=set)
    closing: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context.on("page", self._opened)
        self.context.on("dialog", self._dialog)
        self._watch(self.page)
        self.width, self.height = self.config.width, self.config.height

    def diagnostics(self) -> dict[str, float]:
        """Return the browser's uptime in seconds, the most JavaScript memory seen in MB, and all requests."""
        uptime = time.monotonic() - self.born
        return {"uptime": uptime, "heap_mb": self.heap, "requests": sum(self.documents.values())}

    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Return the result of a browser call. Raises PageHangs after its time, ToolFailure if it fails, and
        BrowserFault if the page has crashed or the browser is gone."""
        try:
            # not wait_for, which before Python 3.12 may swallow a cancellation
            async with asyncio.timeout(seconds or self.config.call_seconds):
                return await work
        except TimeoutError:
            raise PageHangs("the browser did not finish in time") from None
        except PlaywrightError as error:
            reason = error.message.splitlines()[0]
            if "crashed" in reason or self.page in self.crashed:
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed") from None
            if "has been closed" in reason or "Connection closed" in reason:
                await asyncio.sleep(CLOSING_SECONDS)  # the news of what exactly has closed comes later
                browser = self.context.browser
                if browser is None or not browser.is_connected():
                    raise BrowserFault(Stop.INFRA_ERROR, "the browser is gone") from None
                if self.page in self.crashed or not self.context.pages:
                    raise BrowserFault(Stop.ENV_ERROR, "the page crashed, or closed its last tab") from None
                raise ToolFailure("the tab was closed") from None
            raise ToolFailure(re.sub(r"^\w+\.\w+: ", "", reason)) from None  # "Mouse.click: ..."

    async def tab(self, page: Page | None = None) -> Tab:
        """Return what is known of a tab, by default the current one."""
        page = page or self.page
        if page not in self.tabs_of:
            cdp = await self.do(self.context.new_cdp_session(page))
            tree = await self.do(cdp.send("Page.getFrameTree"))
            tab = Tab(cdp, tree["frameTree"]["frame"]["id"])
            await self.do(cdp.send("Page.enable"))
            page.on("framenavigated", lambda frame: frame == page.main_frame and tab.committed())
            self.tabs_of[page] = tab
        return self.tabs_of[page]

    async def revive(self) -> None:
        """Stop the script of a page that hangs, or replace its tab by an empty one. Raises BrowserFault."""
        try:
            async with asyncio.timeout(REVIVE_SECONDS):
                for remedy, seconds, news in REMEDIES:
                    with contextlib.suppress(ToolFailure):
                        await self.do((await self.tab()).cdp.send(remedy), seconds)
                        await self.do(self.page.evaluate("0"), seconds)
                        if news:
                            self.tell(news)
                        return
                hung = self.page
                self.page = await self.do(self.context.new_page())
                with contextlib.suppress(ToolFailure):
                    await self.do(hung.close(), seconds)
                self.tell("The page hung and its tab was closed.")
        except (TimeoutError, ToolFailure):
            raise BrowserFault(Stop.ENV_ERROR, "the page hangs, and nothing helps") from None

    async def start(self, url: str) -> None:
        """Open the task's first page; only here may a navigation be tried again."""
        for left in reversed(range(self.config.start_attempts)):
            try:
                await self.goto(url, self.config.start_seconds)
                return
            except ToolFailure as failure:
                if not left:
                    raise BrowserFault(Stop.SITE_ERROR, f"{url} did not open: {failure}") from None

    async def goto(self, url: str, seconds: float | None = None) -> int:
        """Open an address in the current tab; return the HTTP status, or 0 where there is none."""
        if not url.startswith(("http://", "https://")):
            url = "https://" + url if "://" not in url and ":" not in url.split("/")[0] else url
        await self.guard.check(url)
        for _ in range(MOST_DISPLACED):
            await self.pace(url)
            status = await self._open(url, seconds or GOTO_SHARE * self.config.action_seconds)
            if status is not None or self.page.url.rstrip("/") == url.rstrip("/"):
                break  # else a redirect by the script of the page before it, or its error page, came instead
        return status or 0

    async def _open(self, url: str, seconds: float) -> int | None:
        """Return the HTTP status, 0 if a hung script hides it, None if another page may have come."""
        before, status = self.page.url, None
        try:
            opening = self.page.goto(url, wait_until="domcontentloaded", timeout=0)
            if response := await self.do(opening, seconds):
                status = response.status
        except PageHangs:
            await self.revive()
            if self.page.url in ("about:blank", before):
                raise ToolFailure("the page did not load in time") from None
            status = 0  # it has come, with a script that did not end
        except ToolFailure as failure:
            if "interrupted by another navigation" not in str(failure):
                raise ToolFailure(self.guard.explain(url, str(failure))) from None
            # the page before it went elsewhere; this one is mostly still on its way
        await self.settle()
        return status

    async def travel(self, step: int) -> bool:
        """Go back (-1) or forward again (1) in the tab's history; return False if nothing is there."""
        history = await self.do((await self.tab()).cdp.send("Page.getNavigationHistory"))
        index, entries = history["currentIndex"] + step, history["entries"]
        if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":  # as tabs begin
            return False
        go = self.page.go_back if step < 0 else self.page.go_forward
        await self.do(go(wait_until="commit", timeout=0))
        return True

    async def pace(self, url: str = "") -> None:
        """Wait for the next turn on a host, by default the current page's, if visits are to be slow."""
        if host := urlsplit(url or self.page.url).hostname:
            await self.guard.pace(host)

    async def arm(self, point: Point | None = None) -> Answer:
        """Mark the page before an action, so that `settle` sees its effect; return arm.js's answer."""
        tab = await self.tab()
        try:
            self.armed, answer = await self.ask(ARM, point, self.config.dom_note)
        except PageHangs:
            raise
        except ToolFailure:  # a page that spoils our scripts can still be acted on
            self.armed, answer = None, {}
        if self.config.quiet_ms:
            await self.do(tab.cdp.send("Network.enable"))
        return answer

    async def ask(self, script: str, point: Point | None = None, *rest: Any) -> tuple[Frame, Answer]:
        """Return the innermost frame at a point, or with the focus, and a script's answer from there: it gets
        the point in that frame's pixels, and answers `frame`, its corner, or True if it has the focus."""
        frame = self.page.main_frame
        while True:
            answer = record(await self.do(frame.evaluate(script, [point, *rest])))
            match answer.get("frame"):
                case [left, top] if point is not None:
                    element = f"document.elementFromPoint({point[0]:.2f}, {point[1]:.2f})"
                    point = point[0] - number_of(left), point[1] - number_of(top)
                case True if point is None:
                    element = "document.activeElement"
                case _:
                    return frame, answer
            handle = (await self.do(frame.evaluate_handle(element))).as_element()
            inner = await self.do(handle.content_frame()) if handle else None
            if inner is None:
                return frame, answer
            frame = inner

    async def settle(self, quiet: bool = False) -> Settled:
        """Wait until the page is ready; return what has changed since `arm`. `quiet` waits the full time even
        where nothing stirs, as after typing, which pages like to answer late."""
        calm_ms = self.config.quiet_ms if quiet else self.config.calm_ms
        settled = await Readiness(self, await self.tab(), calm_ms).wait()
        self.armed = None
        # no proxy of ours stands between a remote browser and the network
        if self.config.connect and self.page.url.startswith("http"):
            try:
                await self.guard.check(self.page.url)
            except Refused:
                await self.do(self.page.goto("about:blank"))
                raise
        return settled

    async def screenshot(self) -> bytes:
        """Return the viewport as PNG, straight from the renderer: Playwright's own waits for fonts."""
        reason, refusals, shares = "", 0, list(SCREENSHOT_SHARES)
        options = {"format": "png", "optimizeForSpeed": True}
        # A page that is just being replaced refuses, or forgets that it was asked, so it is asked again.
        while shares and refusals < MOST_REFUSALS:
            if self.page in self.crashed:  # asked for its picture, it would take the whole browser with it
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed")
            seconds = self.config.screenshot_seconds * shares[0] / sum(SCREENSHOT_SHARES)
            try:
                async with asyncio.timeout(seconds):
                    tab = await self.tab()
                    shot = await self.do(tab.cdp.send("Page.captureScreenshot", options), seconds)
                    return base64.b64decode(shot["data"])
            except (TimeoutError, PageHangs):
                reason = "the browser did not finish in time"
                shares.pop(0)
                if len(shares) == 1:
                    await self.revive()
            except ToolFailure as failure:
                reason, refusals = str(failure), refusals + 1
                await asyncio.sleep(SCREENSHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """Return (URL, title) of every tab, and the index of the current one."""
        self._index()
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
        titles = {page: tab.title[:TITLE_CHARS] for page, tab in self.tabs_of.items()}
        current = self._index()
        return [(page.url, titles.get(page, "")) for page in self.context.pages], current

    async def new_tab(self) -> int:
        """Open an empty tab; return its index."""
        if len(self.context.pages) >= MOST_TABS:
            raise ToolFailure(f"there are {MOST_TABS} tabs already; close one first")
        self.page = await self.do(self.context.new_page())
        return self._index()

    async def switch_tab(self, index: int) -> None:
        """Make another tab the current one."""
        if not 0 <= index < len(self.context.pages):
            raise ToolFailure(f"there is no tab {index}; the last is {len(self.context.pages) - 1}")
        self.page = self.context.pages[index]
        await self.do(self.page.bring_to_front())

    async def close_tab(self) -> int:
        """Close the current tab; return the index of the one that is current then."""
        index, pages = self._index(), self.context.pages
        if len(pages) == 1:
            raise ToolFailure("the last tab can't be closed")
        self.page = pages[index + 1 if index + 1 < len(pages) else index - 1]
        await self.do(pages[index].close())
        return self._index()

    def _index(self) -> int:
        if self.page not in self.context.pages:
            raise BrowserFault(Stop.ENV_ERROR, "the last tab closed itself")
        return self.context.pages.index(self.page)

    def take_news(self) -> list[str]:
        """Return what has happened by itself since the last time, a sentence each."""
        news, self.news = self.news, []
        return news

    def tell(self, line: str) -> None:
        """Add a sentence to the news: the last few, each once, as a page may cause them without end."""
        self.news = [*(old for old in self.news[-4:] if old != line), line]

    def _watch(self, page: Page) -> None:
        page.on("close", self._closed)
        page.on("download", self._download)
        page.on("crash", lambda page: self.crashed.add(page))

    def _opened(self, page: Page) -> None:
        self._watch(page)
        for tab in self.tabs_of.values():
            tab.window = False
            tab.changed.set()
        if len(self.context.pages) > MOST_TABS:
            closing = asyncio.ensure_future(_quietly(page.close()))
            self.closing.add(closing)
            closing.add_done_callback(self.closing.discard)
            self.tell(f"More than {MOST_TABS} tabs were open; new ones were closed.")
        else:
            self.page = page

    def _closed(self, page: Page) -> None:
        self.tabs_of.pop(page, None)
        if page is self.page and self.context.pages:
            self.page = self.context.pages[-1]

    async def _dialog(self, dialog: Dialog) -> None:
        """Accept a dialog, which would block the page for ever. It is in no screenshot, so it is told."""
        if dialog.type == "beforeunload":
            self.tell("The page asked whether to leave it; that was confirmed.")
        else:
            said = text_of(" ".join(dialog.message.split()), 100)
            self.tell(f'A dialog ({dialog.type}) said "{said}" and was accepted.')
        await _quietly(dialog.accept(dialog.default_value))

    async def _download(self, download: Download) -> None:
        self.tell(f"A download ({text_of(download.suggested_filename, 60)}) was refused.")
        if download.page in self.tabs_of:
            self.tabs_of[download.page].committed()  # no document will come
        await _quietly(download.cancel())


async def _quietly(work: Awaitable[Any]) -> None:
    with contextlib.suppress(PlaywrightError):
        await work
