"""One episode's browser: its context, its tabs, and everything that is asked of them.

Stands between the pool, which opens sessions, and agents, which act through them. Every call into the browser
goes through `Session.do`, which gives it a timeout and sorts its failures: the agent reads a `ToolFailure` as
feedback, and a `BrowserFault` ends the episode with its `Stop`.

OpenWebRL, appendix A.1 and table 7. Deviations: no fixed sleeps after actions (the page says when it is
ready, up to a cap), no second attempt of a step that timed out (actions are not idempotent), no HTTP service
between episode and browser; a page that hangs is stopped and told of instead of ending the episode.
"""

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import BrowserContext, Dialog, Download, Frame, Page
from playwright.async_api import Error as PlaywrightError

from minirl.browser import readiness
from minirl.browser.access import Guard, Refused, is_address
from minirl.browser.page_scripts import ARM, BLOCKED, FOCUS, PASTE, Settled, number_of, record, text_of
from minirl.browser.readiness import CALM_MS, PageHangs, Tab, wait_until_ready
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

Point = tuple[float, float]  # x and y in pixels
Answer = Mapping[str, Any]
PNG = {"format": "png", "optimizeForSpeed": True}
START_ATTEMPTS = 3  # how often a task's first page is tried; nothing else is ever tried again
FIRST_PAGE_SECONDS = 30.0  # for one such attempt
SCREENSHOT_SECONDS = 30.0  # for a screenshot, with all attempts
SCREENSHOT_SHARES = (0.1, 0.3, 0.6)  # of the time limit, for the attempts at one screenshot
SCREENSHOT_PAUSE = 0.05  # seconds before it is asked again when it refuses,
MOST_REFUSALS = 20  # so often
MOST_TABS = 20  # a page that opens more has them closed
MOST_DISPLACED = 3  # navigations to one address that the page before it may displace
CLOSING_SECONDS = 0.1  # for the news of what exactly has closed
GOTO_SHARE = 2 / 3  # of an action's time, for a page that does not open; the rest is for recovering
REVIVE_SECONDS = 12.0  # for all that may help a page that hangs
TITLE_CHARS = 50
BLOCKED_SECONDS = 3.0  # for a page to answer whether it keeps visitors out

# What may help a page that hangs, for how many seconds, and what the agent is told then. While another
# document is awaited the old one does not answer.
LATE = "The page that it leads to did not come in time, and was given up."
REMEDIES = (
    ("Page.stopLoading", 1.0, LATE),
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
    clipboard: str = ""  # the browser's own is that of all its episodes, so nothing is ever pasted from it

    def __post_init__(self) -> None:
        self.context.on("page", self._opened)
        self.context.on("dialog", self._dialog)
        self._watch(self.page)
        self.width, self.height = self.config.width, self.config.height

    def diagnostics(self) -> dict[str, float]:
        """Return the browser's uptime in seconds, the most JavaScript memory seen in MB, and all requests."""
        requests = sum(self.documents.values())
        return {"uptime": time.monotonic() - self.born, "heap_mb": self.heap, "requests": requests}

    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Return the result of a browser call. Raises PageHangs after its time, ToolFailure if it fails, and
        BrowserFault if the page has crashed or the browser is gone."""
        try:
            # not wait_for, which before Python 3.12 may swallow a cancellation
            async with asyncio.timeout(seconds or readiness.CALL_SECONDS):
                return await work
        except TimeoutError:
            raise PageHangs("the browser did not finish in time") from None
        except PlaywrightError as error:
            reason = error.message.splitlines()[0]
            if "has been closed" in reason or "Connection closed" in reason:
                await asyncio.sleep(CLOSING_SECONDS)  # the news of what exactly has closed comes later
                if self.context.browser is None or not self.context.browser.is_connected():
                    raise BrowserFault(Stop.INFRA_ERROR, "the browser is gone") from None
                if not self.context.pages:
                    raise BrowserFault(Stop.ENV_ERROR, "the page closed its last tab") from None
                reason = "the tab was closed"
            if "crashed" in reason or self.page in self.crashed:
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed") from None
            raise ToolFailure(re.sub(r"^\w+\.\w+: ", "", reason)) from None  # "Mouse.click: ..."

    async def tab(self) -> Tab:
        page = self.page
        if page not in self.tabs_of:
            cdp = await self.do(self.context.new_cdp_session(page))
            tree = await self.do(cdp.send("Page.getFrameTree"))
            tab = Tab(cdp, tree["frameTree"]["frame"]["id"])
            await self.do(cdp.send("Page.enable"))
            page.on("framenavigated", lambda frame: None if frame.parent_frame else tab.committed())
            self.tabs_of[page] = tab
        return self.tabs_of[page]

    async def renewed(self) -> bool:
        """Leave the page and forget the episode; return True if another one may have this context. Nothing
        is behind an empty page: who goes back from the next one's first page stays there."""
        if self.context.pages != [self.page] or self.page in self.crashed:
            return False
        try:
            await self.do(self.page.goto("about:blank"))
            await (await self.tab()).forget(self)
        except (ToolFailure, BrowserFault):
            return False
        self.news, self.armed, self.documents, self.heap, self.clipboard = [], None, {}, 0.0, ""
        return True

    async def revive(self) -> None:
        """Stop the script of a page that hangs, or replace its tab by an empty one. Raises BrowserFault."""
        try:
            async with asyncio.timeout(REVIVE_SECONDS):
                for remedy, seconds, news in REMEDIES:
                    with contextlib.suppress(ToolFailure):
                        tab = await self.tab()
                        document, tab.document = tab.document, ""
                        await self.do(tab.cdp.send(remedy), seconds)
                        await self.do(self.page.evaluate("0"), seconds)
                        if document or news != LATE:
                            self.tell(news)
                        return
                hung, self.page = self.page, await self.do(self.context.new_page())
                with contextlib.suppress(ToolFailure):
                    await self.do(hung.close(), seconds)
                self.tell("The page hung and its tab was closed.")
        except (TimeoutError, ToolFailure):
            raise BrowserFault(Stop.ENV_ERROR, "the page hangs, and nothing helps") from None

    async def start(self, url: str) -> None:
        """Open the task's first page; only here may a navigation be tried again."""
        for left in reversed(range(START_ATTEMPTS)):
            try:
                await self.goto(url, FIRST_PAGE_SECONDS)
                return
            except ToolFailure as failure:
                if not left:
                    raise BrowserFault(Stop.SITE_ERROR, f"{url} did not open: {failure}") from None

    async def goto(self, url: str, seconds: float | None = None) -> int:
        """Open an address in the current tab; return the HTTP status, or 0 where there is none."""
        if "://" not in url and ":" not in url.split("/")[0]:
            url = "https://" + url
        await self.guard.check(url)
        for left in reversed(range(MOST_DISPLACED)):
            await self.guard.pace(url)
            before, response, displaced = self.page.url, None, False
            try:
                opening = self.page.goto(url, wait_until="domcontentloaded", timeout=0)
                response = await self.do(opening, seconds or GOTO_SHARE * self.config.action_seconds)
            except PageHangs:
                await self.revive()
                if self.page.url in ("about:blank", before):
                    raise ToolFailure("the page did not load in time") from None
                # it has come, with a script that did not end
            except ToolFailure as failure:  # the page before it may go elsewhere meanwhile, or show its error
                displaced = "interrupted by another navigation" in str(failure)
                if not left or not displaced:
                    raise ToolFailure(await self.guard.explain(url, str(failure))) from None
            await self.settle()
            # A page that replaces itself without end may do so once more just as the new one comes.
            old, new, wanted = (re.split("[?#]", place)[0] for place in (before, self.page.url, url))
            back = new == old != wanted and self.page.url not in (before, response.url if response else "")
            if not displaced and not back:
                break
        return response.status if response else 0

    async def pace(self) -> None:
        """Wait for the next turn on the page's host."""
        await self.guard.pace(self.page.url)

    async def travel(self, step: int) -> bool:
        """Go back (-1) or forward again (1) in the tab's history; return False if nothing is there."""
        history = await self.do((await self.tab()).cdp.send("Page.getNavigationHistory"))
        index, entries = history["currentIndex"] + step, history["entries"]
        if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":  # as tabs begin
            return False
        go = self.page.go_back if step < 0 else self.page.go_forward
        await self.do(go(wait_until="commit", timeout=0))
        return True

    async def arm(self, point: Point | None = None) -> Answer:
        """Mark the page before an action, so that `settle` sees its effect; return arm.js's answer."""
        tab = await self.tab()
        try:
            self.armed, answer = await self.ask(ARM, point)
        except PageHangs:
            raise
        except ToolFailure:  # a page that spoils our scripts can still be acted on
            self.armed, answer = None, {}
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
        calm_ms = self.config.quiet_ms if quiet else CALM_MS
        settled, self.armed = await wait_until_ready(self, calm_ms), None
        self.clipboard = settled.copied or self.clipboard
        if self.config.connect and is_address(self.page.url):  # no proxy of ours is between
            try:
                await self.guard.check(self.page.url)
            except Refused:
                await self.do(self.page.goto("about:blank"))
                raise
        return settled

    async def press(self, key: str) -> None:
        """Press a key, or several joined by +. Those that paste take what this episode has copied."""
        names = set(key.split("+"))
        with_control, with_shift = (any(n.startswith(held) for n in names) for held in ("Control", "Shift"))
        if (with_control and names & {"v", "V", "KeyV"}) or (with_shift and names & {"Insert", "Numpad0"}):
            frame, _ = await self.ask(FOCUS)
            if await self.do(frame.evaluate(PASTE, [self.clipboard])) is True:
                await self.do(self.page.keyboard.insert_text(self.clipboard))
        else:
            await self.do(self.page.keyboard.press(key))

    async def screenshot(self) -> bytes:
        """Return the viewport as PNG, straight from the renderer: Playwright's own waits for fonts. A page
        that is just being replaced refuses, or forgets that it was asked, so it is asked again."""
        reason, refusals, shares = "", 0, list(SCREENSHOT_SHARES)
        while shares and refusals < MOST_REFUSALS:
            if self.page in self.crashed:  # asked for its picture, it would take the whole browser with it
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed")
            try:
                asked = (await self.tab()).cdp.send("Page.captureScreenshot", PNG)
                shot = await self.do(asked, shares[0] * SCREENSHOT_SECONDS)
                return base64.b64decode(shot["data"])
            except PageHangs as failure:
                reason, shares = str(failure), shares[1:]
                if len(shares) == 1:
                    await self.revive()
            except ToolFailure as failure:
                reason, refusals = str(failure), refusals + 1
                await asyncio.sleep(SCREENSHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def blocked(self) -> str:
        """Return why the current page keeps visitors out; "" if it does not, is our own or can't be asked."""
        if self.guard.is_own(self.page.url):
            return ""
        with contextlib.suppress(ToolFailure, BrowserFault):
            return text_of(await self.do(self.page.evaluate(BLOCKED), BLOCKED_SECONDS))
        return ""

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """Return (URL, title) of every tab, and the index of the current one."""
        self._index()
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
        titles = {page: tab.title[:TITLE_CHARS] for page, tab in self.tabs_of.items()}
        return [(page.url, titles.get(page, "")) for page in self.context.pages], self._index()

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

    async def _opened(self, page: Page) -> None:
        self._watch(page)
        for tab in self.tabs_of.values():
            tab.window = False
            tab.changed.set()
        if len(self.context.pages) <= MOST_TABS:
            self.page = page
            return
        self.tell(f"More than {MOST_TABS} tabs were open; new ones were closed.")
        await _quietly(page.close())

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
