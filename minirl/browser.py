"""One episode's browser: a context of its own, its tabs, and everything that is asked of them.

Stands between the pool, which opens sessions, and tools, which act through them. Every call into the browser
goes through `Session.do`, which gives it a timeout and sorts its failures: `ToolFailure` is the agent's news
(it reads the reason as feedback), `BrowserFault` ends the episode with its `Stop`. A step is never retried:
actions are not idempotent.

OpenWebRL, appendix A.1 and table 7. Deviations: no fixed sleeps after actions (the page says when it is
ready, up to a cap), no second attempt of a step that timed out, no HTTP service between episode and browser;
a page that hangs is stopped and told of instead of ending the episode.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, Frame, Page
from playwright.async_api import Error as PlaywrightError

from minirl.config import BrowserConfig
from minirl.guard import Guard, Refused
from minirl.probes import ARM, FOCUS, SETTLE, Settled, number_of, text_of
from minirl.proxy import PROBLEM_HEADER
from minirl.types import Stop

SHOTS = (1, 3, 6)  # attempts at one screenshot: their shares of the time limit
SHOT_PAUSE = 0.1  # seconds between them
MOST_TABS = 20  # a page that opens more has them closed
CLOSING_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # for a page that is only slow to show that it lives
GOTO_SHARE = 2 / 3  # of an action's time, for a page that does not open; the rest is for recovering
STOP_SECONDS = 5.0  # for a script that hangs to be stopped
TITLE_CHARS = 50
MEANWHILE = ("XHR", "Fetch")  # requests that an action's effect may wait for


class ToolFailure(Exception):
    """A call could not be carried out; the message is for the agent."""


class PageHangs(ToolFailure):
    """A call did not come back in time."""


class BrowserFault(Exception):
    """The browser, the renderer or the site is gone; the episode ends with `stop`."""

    def __init__(self, stop: Stop, message: str):
        super().__init__(message)
        self.stop = stop


@dataclass
class Traffic:
    """What a page loads because of an action, from the browser's own events."""

    pending: set[str] = field(default_factory=set)  # requests whose answers the page may show
    document: str = ""  # the request of another document, if one was asked for
    failure: str = ""  # why that one did not come
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def started(self, event: dict[str, Any]) -> None:
        if event.get("type") == "Document" and event.get("requestId") == event.get("loaderId"):
            self.document = event["requestId"]
        elif event.get("type") in MEANWHILE:
            self.pending.add(event["requestId"])
            self.idle.clear()

    def ended(self, event: dict[str, Any]) -> None:
        if event["requestId"] == self.document and "errorText" in event:
            self.failure = text_of(event["errorText"], 60)
        self.pending.discard(event["requestId"])
        if not self.pending:
            self.idle.set()


@dataclass
class Tab:
    """What is remembered of a tab, so that it need not be asked for again."""

    cdp: CDPSession
    title: str = ""
    traffic: Traffic = field(default_factory=Traffic)
    committed: asyncio.Event = field(default_factory=asyncio.Event)  # another document has come


@dataclass
class Session:
    """One episode's browser context. `page` is the current tab; new windows become current by themselves."""

    config: BrowserConfig
    context: BrowserContext
    page: Page
    guard: Guard
    news: list[str] = field(default_factory=list)  # what happened by itself: dialogs, downloads, closed tabs
    armed: Frame | None = None  # where the last action's target is
    documents: dict[int, int] = field(default_factory=dict)  # requests of every document, by its beginning
    heap: float = 0.0  # the most JavaScript memory seen, in MB
    tabs_of: dict[Page, Tab] = field(default_factory=dict)
    crashed: set[Page] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context.on("page", self._opened)
        self.context.on("dialog", self._dialog)
        self._watch(self.page)

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def height(self) -> int:
        return self.config.height

    # --- calls and their failures ---------------------------------------------------------------------

    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Awaits a browser call under a timeout and sorts what can go wrong."""
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
        """What is known of a tab, by default the current one, with a protocol session made at first use."""
        page = page or self.page
        if page not in self.tabs_of:
            tab = Tab(await self.do(self.context.new_cdp_session(page)))
            for name in ("loadingFinished", "loadingFailed"):
                tab.cdp.on(f"Network.{name}", lambda event: tab.traffic.ended(event))
            tab.cdp.on("Network.requestWillBeSent", lambda event: tab.traffic.started(event))
            page.on("framenavigated", lambda frame: frame == page.main_frame and tab.committed.set())
            self.tabs_of[page] = tab
        return self.tabs_of[page]

    async def revive(self) -> None:
        """After a call that took too long: stops a script that hangs; a tab that can't be helped is replaced
        by an empty one. One that answers was only slow."""
        with contextlib.suppress(ToolFailure):
            tab = await self.tab()
            # while another document is awaited the old one does not answer
            await self.do(tab.cdp.send("Page.stopLoading"), ANSWER_SECONDS)
            await self.do(self.page.evaluate("0"), ANSWER_SECONDS)
            return
        with contextlib.suppress(ToolFailure):
            tab = await self.tab()
            await self.do(tab.cdp.send("Runtime.terminateExecution"), STOP_SECONDS)
            await self.do(self.page.evaluate("0"), STOP_SECONDS)
            self._tell("The page's script hung and was stopped.")
            return
        hung = self.page
        self.page = await self.do(self.context.new_page())
        with contextlib.suppress(ToolFailure):
            await self.do(hung.close(), STOP_SECONDS)
        self._tell("The page hung and its tab was closed.")

    # --- where the tab is -------------------------------------------------------------------------------

    async def start(self, url: str) -> None:
        """Opens the task's first page; only here may a navigation be tried again."""
        for attempt in range(self.config.start_attempts):
            try:
                await self.goto(url, self.config.start_seconds)
                return
            except ToolFailure as failure:
                if attempt + 1 == self.config.start_attempts:
                    raise BrowserFault(Stop.SITE_ERROR, f"{url} did not open: {failure}") from None

    async def goto(self, url: str, seconds: float | None = None) -> int:
        """Opens an address in the current tab; the HTTP status, or 0 where there is none."""
        if not url.startswith(("http://", "https://")):
            url = "https://" + url if "://" not in url and ":" not in url.split("/")[0] else url
        try:
            await self.guard.check(url)
        except Refused as refusal:
            raise ToolFailure(str(refusal)) from None
        before = self.page.url
        opening = self.page.goto(url, wait_until="domcontentloaded", timeout=0)
        try:
            response = await self.do(opening, seconds or GOTO_SHARE * self.config.action_seconds)
        except PageHangs:
            await self.revive()
            if self.page.url in ("about:blank", before):
                raise ToolFailure("the page did not load in time") from None
            response = None  # it has come, with a script that did not end
        except ToolFailure as failure:
            if "interrupted by another navigation" not in str(failure):
                raise
            if "chrome-error:" in str(failure):  # the error page of an address that was tried before
                return await self.goto(url, seconds)
            response = None  # a page that sends its visitors on has come, though not from where it was asked
        if response is not None and (problem := response.headers.get(PROBLEM_HEADER)):
            raise ToolFailure(f"the site could not be opened: its address is {problem}")
        await self.settle()
        return response.status if response else 0

    async def back(self) -> bool:
        """Goes back in the tab's history; False if there is nothing to go back to."""
        tab = await self.tab()
        history = await self.do(tab.cdp.send("Page.getNavigationHistory"))
        index = history["currentIndex"]
        if index == 0 or history["entries"][index - 1]["url"] == "about:blank":  # as tabs begin
            return False
        await self.do(self.page.go_back(wait_until="commit", timeout=0))
        return True

    async def pace(self) -> None:
        """Waits for this host's next turn, if hosts are to be visited slowly."""
        host = urlsplit(self.page.url).hostname
        if host:
            await self.guard.pace(host)

    # --- before and after an action ---------------------------------------------------------------------

    async def arm(self, point: tuple[float, float] | None = None) -> dict[str, Any]:
        """Marks the page before an action, so that `settle` sees its effect; what is under the point."""
        tab = await self.tab()
        tab.traffic = Traffic()
        tab.committed.clear()
        self.armed, answer = await self.ask(ARM, point, self.config.dom_note)
        if self.config.quiet_ms:
            await self.do(tab.cdp.send("Network.enable"))
        return answer

    async def ask(self, script: str, point: tuple[float, float] | None, *rest: Any) -> tuple[Frame, Any]:
        """A script's answer from the innermost frame at a point, and that frame. The script takes the point
        first, in the frame's own coordinates, and answers with `frame` where another one begins."""
        frame = self.page.main_frame
        answer = await self.do(frame.evaluate(script, [point, *rest]))
        while point is not None and answer.get("frame"):
            inner = await self._frame(frame, f"document.elementFromPoint({point[0]:.2f}, {point[1]:.2f})")
            if inner is None:
                break
            left, top = answer["frame"]
            point = (point[0] - number_of(left), point[1] - number_of(top))
            frame, answer = inner, await self.do(inner.evaluate(script, [point, *rest]))
        return frame, answer

    async def focus(self) -> tuple[Frame, dict[str, Any]]:
        """What has the focus, and in which frame."""
        frame = self.page.main_frame
        while True:
            answer = await self.do(frame.evaluate(FOCUS))
            inner = await self._frame(frame, "document.activeElement") if answer.get("frame") else None
            if inner is None:
                return frame, answer
            frame = inner

    async def _frame(self, frame: Frame, element: str) -> Frame | None:
        """The frame within an element of a frame; it may belong to another site and process."""
        handle = (await self.do(frame.evaluate_handle(element))).as_element()
        return await self.do(handle.content_frame()) if handle else None

    async def settle(self, quiet: bool = False) -> Settled:
        """Waits until the page is ready, or the cap is reached, and says what has changed since `arm`.

        An action's own requests are waited for: for a new document until it comes, for data until it is
        there. `quiet` waits the full time even where nothing stirs, as after typing, which pages like to
        answer late.
        """
        config, page = self.config, self.page
        tab = await self.tab(page)
        calm, found = (config.quiet_ms if quiet else config.calm_ms), Settled()
        ends = time.monotonic() + config.ready_ms / 1000
        for _ in range(4):
            left = ends - time.monotonic()
            if left <= 0:
                break
            if self.page is not page:  # a window has opened, empty at first
                page = self.page
                tab = await self.tab(page)
                with contextlib.suppress(ToolFailure):
                    loading = page.wait_for_load_state("domcontentloaded", timeout=0)
                    await self.do(loading, config.commit_seconds)
                continue
            if tab.traffic.document and not tab.committed.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(config.commit_seconds):
                        await tab.committed.wait()
                await self._calls_off(tab)
                ends = time.monotonic() + config.ready_ms / 1000
                continue
            found = await self._settled(page, [config.quiet_ms, calm, 1000 * left])
            if tab.traffic.pending:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0, ends - time.monotonic())):
                        await tab.traffic.idle.wait()
            elif self.page is page and (not tab.traffic.document or tab.committed.is_set()):
                break
        await self._calls_off(tab)
        self.armed = None
        if found.error and tab.traffic.failure:
            found = replace(found, error=tab.traffic.failure)
        if config.connect:  # no proxy of ours stands between a remote browser and the network
            await self._leave_if_refused()
        return found

    async def _leave_if_refused(self) -> None:
        try:
            if self.page.url.startswith("http"):
                await self.guard.check(self.page.url)
        except Refused as refusal:
            await self.do(self.page.goto("about:blank"))
            raise ToolFailure(str(refusal)) from None

    async def _settled(self, page: Page, times: list[float]) -> Settled:
        """SETTLE's answer from the page, and from the frame with the last action's target if there is one."""
        found, frame, tab = Settled(), self.armed, await self.tab(page)
        for _ in range(3):
            try:
                seconds = times[-1] / 1000 + self.config.call_seconds
                found = Settled.read(await self.do(page.evaluate(SETTLE, times), seconds))
                tab.title = found.title
                if frame is not None and frame != page.main_frame and not frame.is_detached():
                    found = Settled.read(await self.do(frame.evaluate(SETTLE, times), seconds))
                break
            except PageHangs:
                await self.revive()
                break
            except ToolFailure as failure:  # the page is being replaced: the new one is asked
                if "context was destroyed" not in str(failure):
                    break  # closed, or gone wrong in a way that shows in the screenshot
        if found.loaded:
            self.documents[found.loaded] = max(found.requests, self.documents.get(found.loaded, 0))
        self.heap = max(self.heap, found.heap)
        return found

    async def _calls_off(self, tab: Tab) -> None:
        """No more events: a heavy page has thousands, and each would take our time."""
        if self.config.quiet_ms:
            with contextlib.suppress(ToolFailure):
                await self.do(tab.cdp.send("Network.disable"))

    # --- looking ----------------------------------------------------------------------------------------

    async def screenshot(self) -> bytes:
        """The viewport as PNG, straight from the renderer: Playwright's own waits for fonts, and may hang.

        A page that is just being replaced refuses, or forgets that it was asked. Looking changes nothing,
        so unlike an action it is tried again; a script that hangs is stopped first.
        """
        options, reason = {"format": "png", "optimizeForSpeed": True}, ""
        for share in SHOTS:
            if self.page in self.crashed:  # asked for its picture, it would take the whole browser with it
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed")
            seconds = self.config.screenshot_seconds * share / sum(SHOTS)
            try:
                async with asyncio.timeout(seconds):
                    tab = await self.tab()
                    shot = await self.do(tab.cdp.send("Page.captureScreenshot", options), seconds)
                return base64.b64decode(shot["data"])
            except (TimeoutError, PageHangs):
                reason = "the browser did not finish in time"
                await self.revive()
            except ToolFailure as failure:
                reason = str(failure)
                await asyncio.sleep(SHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """(URL, title) of every tab, and the index of the current one."""
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
        if self.page not in self.context.pages:
            raise BrowserFault(Stop.ENV_ERROR, "the last tab closed itself")
        rows = []
        for page in self.context.pages:
            known = self.tabs_of.get(page)
            rows.append((page.url, known.title[:TITLE_CHARS] if known else ""))
        return rows, self.context.pages.index(self.page)

    # --- tabs -------------------------------------------------------------------------------------------

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

    # --- what happens by itself -------------------------------------------------------------------------

    def take_news(self) -> list[str]:
        news, self.news = self.news, []
        return news

    def _tell(self, line: str) -> None:
        """The last few lines, each once: a page may ask without end."""
        self.news = [*(old for old in self.news[-4:] if old != line), line]

    def _watch(self, page: Page) -> None:
        page.on("close", self._closed)
        page.on("download", self._download)
        page.on("crash", self._crash)

    def _opened(self, page: Page) -> None:
        self._watch(page)
        if len(self.context.pages) > MOST_TABS:
            asyncio.ensure_future(_quietly(page.close()))
            self._tell(f"More than {MOST_TABS} tabs were open; new ones were closed.")
        else:
            self.page = page

    def _closed(self, page: Page) -> None:
        self.tabs_of.pop(page, None)
        if page is self.page and self.context.pages:
            self.page = self.context.pages[-1]

    def _crash(self, page: Page) -> None:
        self.crashed.add(page)

    async def _dialog(self, dialog: Dialog) -> None:
        """Dialogs block the page for ever otherwise. They are in no screenshot, so they are told."""
        if dialog.type == "beforeunload":
            self._tell("The page asked whether to leave it; that was confirmed.")
        else:
            said = text_of(" ".join(dialog.message.split()), 100)
            self._tell(f'A dialog ({dialog.type}) said "{said}" and was accepted.')
        await _quietly(dialog.accept(dialog.default_value))

    async def _download(self, download: Download) -> None:
        self._tell(f"A download ({text_of(download.suggested_filename, 60)}) was refused.")
        (await self.tab()).committed.set()  # no document will come
        await _quietly(download.cancel())


async def _quietly(work: Awaitable[Any]) -> None:
    """For answers to the browser that may come too late."""
    with contextlib.suppress(PlaywrightError):
        await work
