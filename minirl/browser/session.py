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
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, CDPSession, Dialog, Download, Frame, Page
from playwright.async_api import Error as PlaywrightError

from minirl.browser.access import Guard, Refused
from minirl.browser.page_scripts import ARM, FOCUS, SETTLE, Settled, corner_of, record, text_of
from minirl.browser.pending_requests import Traffic
from minirl.browser.proxy import PROBLEM_HEADER
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

SHOTS = (1, 3, 6)  # attempts at one screenshot: their shares of the time limit
SHOT_PAUSE = 0.05  # seconds before it is asked again when it refuses,
MOST_REFUSALS = 20  # so often
MOST_TABS = 20  # a page that opens more has them closed
MOST_DOCUMENTS = 3  # one after the other that an action is given time for: some pages never rest
MOST_DISPLACED = 3  # navigations to one address that the page before it may displace
CLOSING_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # for a page that is only slow to show that it lives
GOTO_SHARE = 2 / 3  # of an action's time, for a page that does not open; the rest is for recovering
STOP_SECONDS = 3.0  # for a script that hangs to be stopped
REVIVE_SECONDS = 12.0  # for all that may help a page that hangs
TITLE_CHARS = 50


class PageHangs(ToolFailure):
    """A call did not come back in time."""


@dataclass
class Tab:
    """What is remembered of a tab, so that it need not be asked for again."""

    cdp: CDPSession
    traffic: Traffic
    title: str = ""


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
    closing: set[asyncio.Future[None]] = field(default_factory=set)

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
            cdp = await self.do(self.context.new_cdp_session(page))
            tree = await self.do(cdp.send("Page.getFrameTree"))
            tab = Tab(cdp, Traffic(tree["frameTree"]["frame"]["id"]))
            for name in ("loadingFinished", "loadingFailed"):
                cdp.on(f"Network.{name}", lambda event: tab.traffic.ended(event))
            cdp.on("Network.requestWillBeSent", lambda event: tab.traffic.started(event))
            cdp.on("Page.windowOpen", lambda event: tab.traffic.opens(event))
            await self.do(cdp.send("Page.enable"))
            page.on("framenavigated", lambda frame: frame == page.main_frame and tab.traffic.committed())
            self.tabs_of[page] = tab
        return self.tabs_of[page]

    async def revive(self) -> None:
        """After a call that took too long: stops a script that hangs; a tab that can't be helped is replaced
        by an empty one. One that answers was only slow."""
        try:
            async with asyncio.timeout(REVIVE_SECONDS):
                await self._revive()
        except (TimeoutError, ToolFailure):
            raise BrowserFault(Stop.ENV_ERROR, "the page hangs, and nothing helps") from None

    async def _revive(self) -> None:
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
        for _ in range(MOST_DISPLACED):
            await self.pace(url)
            status = await self._open(url, seconds or GOTO_SHARE * self.config.action_seconds)
            if status is not None or self.page.url.rstrip("/") == url.rstrip("/"):
                break  # else a redirect by the script of the page before it, or its error page, came instead
        return status or 0

    async def _open(self, url: str, seconds: float) -> int | None:
        """Its HTTP status, 0 if a hung script hides it, None if there is none: another page may have come."""
        before = self.page.url
        opening = self.page.goto(url, wait_until="domcontentloaded", timeout=0)
        response, status = None, None
        try:
            response = await self.do(opening, seconds)
        except PageHangs:
            await self.revive()
            if self.page.url in ("about:blank", before):
                raise ToolFailure("the page did not load in time") from None
            status = 0  # it has come, with a script that did not end
        except ToolFailure as failure:
            if "interrupted by another navigation" not in str(failure):
                raise  # else the page before it went elsewhere; this one is mostly still on its way
        if response is not None:
            if problem := response.headers.get(PROBLEM_HEADER):
                raise ToolFailure(f"the site could not be opened: its address is {problem}")
            status = response.status
        await self.settle()
        return status

    async def back(self) -> bool:
        """Goes back in the tab's history; False if there is nothing to go back to."""
        tab = await self.tab()
        history = await self.do(tab.cdp.send("Page.getNavigationHistory"))
        index = history["currentIndex"]
        if index == 0 or history["entries"][index - 1]["url"] == "about:blank":  # as tabs begin
            return False
        await self.do(self.page.go_back(wait_until="commit", timeout=0))
        return True

    async def forward(self) -> bool:
        """Goes forward again after `back`; False if there is nothing to go to."""
        tab = await self.tab()
        history = await self.do(tab.cdp.send("Page.getNavigationHistory"))
        if history["currentIndex"] + 1 == len(history["entries"]):
            return False
        await self.do(self.page.go_forward(wait_until="commit", timeout=0))
        return True

    async def pace(self, url: str = "") -> None:
        """Waits for the next turn on a host, by default the current page's, if hosts are to be visited
        slowly."""
        host = urlsplit(url or self.page.url).hostname
        if host:
            await self.guard.pace(host)

    # --- before and after an action ---------------------------------------------------------------------

    async def arm(self, point: tuple[float, float] | None = None) -> Mapping[str, Any]:
        """Marks the page before an action, so that `settle` sees its effect; what is under the point."""
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

    async def ask(
        self, script: str, point: tuple[float, float] | None, *rest: Any
    ) -> tuple[Frame, Mapping[str, Any]]:
        """A script's answer from the innermost frame at a point, and that frame. The script takes the point
        first, in the frame's own coordinates, and answers with `frame` where another one begins."""
        frame = self.page.main_frame
        answer = record(await self.do(frame.evaluate(script, [point, *rest])))
        while point is not None and (corner := corner_of(answer)):
            inner = await self._frame(frame, f"document.elementFromPoint({point[0]:.2f}, {point[1]:.2f})")
            if inner is None:
                break
            point = (point[0] - corner[0], point[1] - corner[1])
            frame, answer = inner, record(await self.do(inner.evaluate(script, [point, *rest])))
        return frame, answer

    async def focus(self) -> tuple[Frame, Mapping[str, Any]]:
        """What has the focus, and in which frame."""
        frame = self.page.main_frame
        while True:
            answer = record(await self.do(frame.evaluate(FOCUS)))
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
        times = [config.quiet_ms, config.quiet_ms if quiet else config.calm_ms]
        ends, documents = time.monotonic() + config.ready_ms / 1000, 0
        found: Settled | None = None
        while time.monotonic() < ends:
            if tab.traffic.opening:
                await tab.traffic.wait(lambda seen: not seen.opening, ANSWER_SECONDS)
                tab.traffic.opening = False
            if self.page is not page:  # a window has opened, empty at first
                await self._calls_off(tab)
                page = self.page
                tab = await self.tab(page)
                loading = page.wait_for_load_state("domcontentloaded", timeout=0)
                with contextlib.suppress(ToolFailure):
                    await self.do(loading, config.commit_seconds)
                ends = time.monotonic() + config.ready_ms / 1000
            giving_up = asyncio.ensure_future(self._give_up_late_document(tab))
            try:
                found = await self._settled(page, times, ends)
            finally:
                giving_up.cancel()
            if found is None:  # the page was replaced meanwhile: the new one is asked, with time of its own
                documents += 1
                if documents <= MOST_DOCUMENTS:
                    ends = time.monotonic() + config.ready_ms / 1000
            elif tab.traffic.pending:
                left = ends - time.monotonic()
                await tab.traffic.wait(lambda seen: not seen.pending or bool(seen.document), left)
            elif self.page is page and not tab.traffic.document and not tab.traffic.opening:
                break
        found = found or Settled(fresh=True)
        failure = tab.traffic.failure
        await self._calls_off(tab)
        self.armed = None
        if found.error and failure:
            found = replace(found, error=failure)
        if config.connect:  # no proxy of ours stands between a remote browser and the network
            await self._leave_if_refused()
        return found

    async def _give_up_late_document(self, tab: Tab) -> None:
        """While another document is awaited the old one answers no question, so none is awaited for ever."""
        while True:
            await tab.traffic.wait(lambda seen: bool(seen.document))
            await tab.traffic.wait(lambda seen: not seen.document, self.config.commit_seconds)
            if tab.traffic.document:
                tab.traffic.document, seconds = "", self.config.commit_seconds
                self._tell(f"The page that it leads to did not come within {seconds:g} s, and was given up.")
                with contextlib.suppress(ToolFailure):
                    await self.do(tab.cdp.send("Page.stopLoading"))

    async def _leave_if_refused(self) -> None:
        try:
            if self.page.url.startswith("http"):
                await self.guard.check(self.page.url)
        except Refused as refusal:
            await self.do(self.page.goto("about:blank"))
            raise ToolFailure(str(refusal)) from None

    async def _settled(self, page: Page, times: list[float], ends: float) -> Settled | None:
        """SETTLE's answer from the page, and from the frame with the last action's target if that is another
        one; None if the page was replaced before it could answer."""
        found, frame, tab = Settled(), self.armed, await self.tab(page)
        patience = self.config.call_seconds
        if tab.traffic.document:
            patience += self.config.commit_seconds

        async def answer(asked: Page | Frame) -> Settled:
            cap = max(0.0, ends - time.monotonic())
            work = asked.evaluate(SETTLE, [*times, 1000 * cap])
            return Settled.read(await self.do(work, cap + patience))

        try:
            found = await answer(page)
            tab.title = found.title
            inner = frame is not None and frame.page is page and frame != page.main_frame
            if inner and not frame.is_detached():
                found = await answer(frame)
        except PageHangs:
            await self.revive()
        except ToolFailure as failure:
            if "context was destroyed" in str(failure):
                return None
            # closed, or gone wrong in a way that shows in the screenshot
        if found.loaded:
            self.documents[found.loaded] = max(found.requests, self.documents.get(found.loaded, 0))
        self.heap = max(self.heap, found.heap)
        return found

    async def _calls_off(self, tab: Tab) -> None:
        """No more events: a heavy page has thousands, and each would take our time. What was under way is
        forgotten with them."""
        if self.config.quiet_ms:
            with contextlib.suppress(ToolFailure):
                await self.do(tab.cdp.send("Network.disable"))
        tab.traffic = Traffic(tab.traffic.frame)

    # --- looking ----------------------------------------------------------------------------------------

    async def screenshot(self) -> bytes:
        """The viewport as PNG, straight from the renderer: Playwright's own waits for fonts, and may hang.

        A page that is just being replaced refuses, or forgets that it was asked, so it is asked again; one
        that still does not answer is revived before the last attempt.
        """
        reason, refusals, attempts = "", 0, list(SHOTS)
        while attempts and refusals < MOST_REFUSALS:
            if self.page in self.crashed:  # asked for its picture, it would take the whole browser with it
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed")
            seconds = self.config.screenshot_seconds * attempts[0] / sum(SHOTS)
            try:
                async with asyncio.timeout(seconds):
                    return await self._shoot(seconds)
            except (TimeoutError, PageHangs):
                reason = "the browser did not finish in time"
                attempts.pop(0)
                if len(attempts) == 1:
                    await self.revive()
            except ToolFailure as failure:
                reason, refusals = str(failure), refusals + 1
                await asyncio.sleep(SHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def _shoot(self, seconds: float) -> bytes:
        tab = await self.tab()
        options = {"format": "png", "optimizeForSpeed": True}
        shot = await self.do(tab.cdp.send("Page.captureScreenshot", options), seconds)
        return base64.b64decode(shot["data"])

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """(URL, title) of every tab, and the index of the current one."""
        current = self._index()
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
            current = self._index()
        rows = []
        for page in self.context.pages:
            known = self.tabs_of.get(page)
            rows.append((page.url, known.title[:TITLE_CHARS] if known else ""))
        return rows, current

    # --- tabs -------------------------------------------------------------------------------------------

    async def new_tab(self) -> int:
        if len(self.context.pages) >= MOST_TABS:
            raise ToolFailure(f"there are {MOST_TABS} tabs already; close one first")
        self.page = await self.do(self.context.new_page())
        return self._index()

    async def switch_tab(self, index: int) -> None:
        if not 0 <= index < len(self.context.pages):
            raise ToolFailure(f"there is no tab {index}; the last is {len(self.context.pages) - 1}")
        self.page = self.context.pages[index]
        await self.do(self.page.bring_to_front())

    async def close_tab(self) -> int:
        index, pages = self._index(), self.context.pages
        if len(pages) == 1:
            raise ToolFailure("the last tab can't be closed")
        self.page = pages[index + 1 if index + 1 < len(pages) else index - 1]
        await self.do(pages[index].close())
        return self._index()

    def _index(self) -> int:
        """The current tab's. It may have closed itself, and if it was the last there is none left."""
        if self.page not in self.context.pages:
            raise BrowserFault(Stop.ENV_ERROR, "the last tab closed itself")
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
        for tab in self.tabs_of.values():
            tab.traffic.opened()
        if len(self.context.pages) > MOST_TABS:
            closing = asyncio.ensure_future(_quietly(page.close()))
            self.closing.add(closing)
            closing.add_done_callback(self.closing.discard)
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
        if download.page in self.tabs_of:
            self.tabs_of[download.page].traffic.committed()  # no document will come
        await _quietly(download.cancel())


async def _quietly(work: Awaitable[Any]) -> None:
    """For answers to the browser that may come too late."""
    with contextlib.suppress(PlaywrightError):
        await work
