"""One episode's browser: its context, its tabs, and everything that is asked of them.

Stands between the pool and agents. All calls into the browser go through `Session.do`, with a time limit; of
their failures the agent reads a `ToolFailure`, and a `BrowserFault` ends the episode with its `Stop`.

Source: OpenWebRL, appendix A.1 and table 7. Deviations:
1. No fixed sleeps after actions: the page says when it is ready, up to a cap.
2. No second attempt of a step that timed out, because actions are not idempotent.
3. No HTTP service between episode and browser.
4. A page that hangs is stopped, and the agent is told, instead of ending the episode.
5. Nothing can be pasted: the episodes of a browser share its clipboard.
6. Of the paper's diagnostics only seconds by phase and the end of a traceback are kept.
"""

import asyncio
import base64
import re
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import BrowserContext, Dialog, Download, Frame, Page
from playwright.async_api import Error as PlaywrightError

from minirl.browser import readiness
from minirl.browser.access import Guard, Refused, is_address
from minirl.browser.page_scripts import PageAnswer, script
from minirl.browser.readiness import CALM_MS, Tab, wait_until_ready
from minirl.config import BrowserConfig
from minirl.console import without_passwords
from minirl.types import BrowserFault, PageHangs, Point, Stop, ToolFailure

PNG = {"format": "png", "optimizeForSpeed": True}
START_ATTEMPTS = 3  # how often a task's first page is tried; nothing else is ever tried again
FIRST_PAGE_SECONDS = 30.0  # for one such attempt
GOTO_SHARE = 2 / 3  # of an action's time, for a page that does not open; the rest is for recovering
SCREENSHOT_SECONDS = 10.0  # for an attempt at a screenshot
MAX_HANGS = 3  # such attempts that take longer
SCREENSHOT_PAUSE = 0.05  # seconds before a page that refuses a screenshot is asked again,
MAX_REFUSALS = 20  # so often
MAX_TABS = 20  # a page that opens more has them closed
BLANK_MS = 500.0  # for a new window that is empty to get a page
CLOSING_SECONDS = 0.1  # for the news of what exactly has closed, or was refused
BLOCKED_SECONDS = 3.0  # for a page to answer whether it keeps visitors out
TITLE_CHARS = 50
PASTE_KEYS = re.compile(r"(Control\w*\+(.*\+)?(Key)?V|Shift\w*\+(.*\+)?(Insert|Numpad0))(\+|$)", re.I)


@dataclass
class Session:
    """One episode's browser context. `page` is the current tab; new windows become current by themselves."""

    config: BrowserConfig
    context: BrowserContext
    page: Page
    guard: Guard
    scale: float = 1.0  # pixels of a screenshot for one of the page's
    news: list[str] = field(default_factory=list)  # what happened by itself: dialogs, downloads, closed tabs
    armed: Frame | None = None  # where the last action's target is
    tabs_of: dict[Page, Tab] = field(default_factory=dict)
    answer: bool | None = None  # whether dialogs of this action are accepted; None: as usual
    next_answer: bool | None = None  # and of the next one
    crashed: set[Page] = field(default_factory=set)
    seen: bytes | str = b""  # what the agent has seen last, until an action has settled
    look: Any = None  # how an agent that reads pages sees them: awaited, it returns a text
    unseen: bytes = b""  # a screenshot, taken to see what an action changed, for the next observation

    def __post_init__(self) -> None:
        self.context.on("page", self._opened)
        self.context.on("dialog", self._dialog)
        self._watch(self.page)

    @property
    def width(self) -> int:
        """The current tab's: a window that a page opens has its own."""
        return (self.page.viewport_size or {}).get("width", self.config.width)

    @property
    def height(self) -> int:
        return (self.page.viewport_size or {}).get("height", self.config.height)

    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any:
        """Return the result of a browser call. Raises PageHangs after its time, ToolFailure if it fails, and
        BrowserFault if the page has crashed or the browser is gone."""
        try:
            async with asyncio.timeout(seconds or readiness.CALL_SECONDS):  # wait_for swallows cancellations
                return await work
        except TimeoutError:
            raise PageHangs("the browser did not finish in time") from None
        except PlaywrightError as error:
            raise await self._failure(error.message.splitlines()[0]) from None

    async def _failure(self, reason: str) -> Exception:
        """Return what a failed call means for the episode."""
        if "has been closed" in reason or "Connection closed" in reason:
            await asyncio.sleep(CLOSING_SECONDS)  # news of what exactly has closed comes later
            browser = self.context.browser
            if not browser or not browser.is_connected():
                return BrowserFault(Stop.INFRA_ERROR, "the browser is gone")
            if not self.context.pages:
                return BrowserFault(Stop.ENV_ERROR, "the page closed its last tab")
            reason = "the tab was closed"
        # of a page or its target, not in a model's own words, which may stand in a reason
        if re.match(r"[\w.]+: (Page|Target) crashed", reason) or self.page in self.crashed:
            return BrowserFault(Stop.ENV_ERROR, "the page crashed")
        return ToolFailure(re.sub(r"^\w+\.\w+: ", "", reason))  # without "Mouse.click: "

    async def tab(self) -> Tab:
        """Return what is known of the current tab, which is listened to from the first time on."""
        page = self.page
        if page not in self.tabs_of:
            cdp = await self.do(self.context.new_cdp_session(page))
            tree = await self.do(cdp.send("Page.getFrameTree"))
            tab = Tab(cdp, tree["frameTree"]["frame"]["id"])
            await self.do(cdp.send("Page.enable"))
            await self.do(cdp.send("Network.enable"))
            if self.scale != 1.0:  # the context's own does not reach the pictures that we ask for
                metrics = {"width": self.width, "height": self.height, "deviceScaleFactor": self.scale}
                await self.do(cdp.send("Emulation.setDeviceMetricsOverride", metrics | {"mobile": False}))
            page.on("framenavigated", tab.navigated)
            self.tabs_of[page] = tab
        return self.tabs_of[page]

    async def renew(self) -> bool:
        """Leave the page and forget the episode; return True if another one may have this context."""
        if self.context.pages != [self.page] or self.page in self.crashed:
            return False
        try:
            await self.do(self.page.goto("about:blank"))
            await self.do(self.page.evaluate("window.name = ''"))  # which outlives its page
            tab = await self.tab()
            tab.forget()
            await self.do(tab.cdp.send("Page.resetNavigationHistory"))
            # Sites may store what was done there, by which the next episode would be judged
            await self.do(tab.cdp.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"}))
        except (ToolFailure, BrowserFault):
            return False
        self.news = []
        self.armed = None
        self.next_answer = None
        self.look = None
        return True

    revive = readiness.revive

    async def start(self, url: str) -> None:
        """Open the task's first page; only here may a navigation be tried again."""
        failure = ""
        for _ in range(START_ATTEMPTS):
            try:
                await self.goto(url, FIRST_PAGE_SECONDS)
                return
            except ToolFailure as error:
                failure = str(error)
                if isinstance(error, Refused):
                    break
        remedy = "; --browser.private allows it" if "private address" in failure else ""
        raise BrowserFault(Stop.SITE_ERROR, f"{url} did not open: {failure}{remedy}")

    async def goto(self, url: str, seconds: float | None = None) -> int:
        """Open an address in the current tab; return the HTTP status, or 0 where there is none."""
        url = self.guard.read(url, self.page.url)
        await self.guard.check(url)
        for tries_left in (1, 0):
            await self.guard.pace(url)
            before = self.page.url
            try:
                opening = self.page.goto(url, wait_until="domcontentloaded", timeout=0)
                await self.do(opening, seconds or GOTO_SHARE * self.config.action_seconds)
            except PageHangs:
                (await self.tab()).forget()  # that it did not come is told by the failure
                await self.revive()
                if self.page.url in ("about:blank", before):
                    raise ToolFailure("the page did not load in time") from None
                # else it has come, with a script that did not end
            except ToolFailure as failure:
                reason = str(failure)
                # the page before has gone elsewhere meanwhile, as an error page does that loads again
                if tries_left and "interrupted by another navigation" in reason:
                    await self.settle()
                    continue
                if "Download is starting" in reason:
                    await asyncio.sleep(CLOSING_SECONDS)  # its name comes later
                    raise Refused("it is a file, not a page") from None
                raise ToolFailure(await self.guard.explain(url, reason)) from None
            break
        return (await self.settle()).status

    async def pace(self) -> None:
        """Begin an action, after waiting for the next turn on the page's host."""
        self.answer, self.next_answer = self.next_answer, None
        await self.guard.pace(self.page.url)

    async def travel(self, step: int) -> None:
        """Go back (-1) or forward again (1) in the tab's history. ToolFailure if nothing is there."""
        tab = await self.tab()
        history = await self.do(tab.cdp.send("Page.getNavigationHistory"))
        index = history["currentIndex"] + step
        entries = history["entries"]
        if not 0 <= index < len(entries) or entries[index]["url"] == "about:blank":  # as tabs begin
            raise ToolFailure(f"there is no {'earlier' if step < 0 else 'later'} page in this tab")
        # Playwright's own would wait for a page that is not left, since something is not saved
        await self.do(tab.cdp.send("Page.navigateToHistoryEntry", {"entryId": entries[index]["id"]}))
        await self.settle()

    async def arm(self, point: Point | None) -> PageAnswer:
        """Mark the page before an action, so that `settle` sees its effect; return arm.js's answer."""
        tab = await self.tab()
        answer = PageAnswer()
        try:
            self.armed, answer = await self.ask("arm", point, point)
        except PageHangs:
            raise
        except ToolFailure:
            pass  # a page that spoils our scripts can still be acted on
        tab.forget()
        return answer

    async def ask(self, name: str, point: Point | None = None, *rest: Any) -> tuple[Frame, PageAnswer]:
        """Return the innermost frame at a point, or with the focus, and a script's answer from there. It gets
        the frame's own pixels, and answers an inner `frame`'s place and scale, or True for the focus."""
        frame = self.page.main_frame
        while True:
            answer = PageAnswer.read(await self.do(frame.evaluate(script(name), [point, *rest])))
            inner_point = None
            match answer.frame, point:
                case [*place], [x, y] if len(place) == 4 and all(isinstance(n, float | int) for n in place):
                    left, top, across, down = place
                    inner_point = (x - left) * across, (y - top) * down
                case True, None:
                    pass
                case _:
                    return frame, answer
            handle = (await self.do(frame.evaluate_handle(script("target"), [point]))).as_element()
            inner = await self.do(handle.content_frame()) if handle else None
            if not inner:
                return frame, answer
            frame = inner
            point = inner_point

    async def settle(self, quiet: bool = False) -> PageAnswer:
        """Wait until the page is ready; return what has changed since `arm`. `quiet` waits the full time even
        where nothing stirs, as after typing, which pages like to answer late."""
        settled = await wait_until_ready(self, self.config.quiet_ms if quiet else CALM_MS)
        self.armed = None
        self.seen = b""
        self.unseen = b""
        # No proxy of ours stands before a browser elsewhere, so what its page leads to is left again
        if self.config.connect and is_address(self.page.url):
            try:
                await self.guard.check(self.page.url)
            except Refused:
                await self.do(self.page.goto("about:blank"))
                raise
        return settled

    async def press(self, key: str) -> None:
        """Press a key, or several joined by +, but none that paste what another episode may have copied.
        Escape also declines the dialogs of the next action."""
        if PASTE_KEYS.search(key):
            raise ToolFailure("nothing can be pasted; type the text")
        await self.do(self.page.keyboard.press(key))
        if key == "Escape":
            self.next_answer = False

    async def screenshot(self) -> bytes:
        """Return the viewport as PNG, straight from the renderer: Playwright's own waits for fonts. A page
        that is just being replaced refuses, or forgets that it was asked, so it is asked again."""
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
        if self.unseen:
            picture, self.unseen = self.unseen, b""
            return picture
        reason = ""
        hangs = 0
        for _ in range(MAX_REFUSALS):
            if self.page in self.crashed:  # asked for its picture, it would take the whole browser with it
                raise BrowserFault(Stop.ENV_ERROR, "the page crashed")
            try:
                tab = await self.tab()
                # a script may have set the title meanwhile
                both = asyncio.gather(tab.cdp.send("Page.captureScreenshot", PNG), self.page.title())
                answer, tab.title = await self.do(both, SCREENSHOT_SECONDS)
                picture = base64.b64decode(answer["data"])
                self.seen = picture
                return picture
            except PageHangs as hang:
                hangs += 1
                if hangs == MAX_HANGS:
                    raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {hang}") from None
                await self.revive()
            except ToolFailure as failure:
                reason = str(failure)
                await asyncio.sleep(SCREENSHOT_PAUSE)
        raise BrowserFault(Stop.ENV_ERROR, f"no screenshot: {reason}")

    async def blocked(self) -> str:
        """Return why the current page keeps visitors out; "" if it does not, is trusted or can't be asked."""
        answer = ""
        if not self.guard.is_trusted(self.page.url):
            with suppress(ToolFailure, BrowserFault):
                answer = await self.do(self.page.evaluate(script("blocked")), BLOCKED_SECONDS)
        return answer[:200] if isinstance(answer, str) else ""

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        """Return (URL, title) of every tab, and the index of the current one."""
        self._index()
        if self.page not in self.tabs_of:  # it has opened just now
            await self.settle()
        tabs = []
        for page in self.context.pages:
            title = self.tabs_of[page].title if page in self.tabs_of else ""
            tabs.append((without_passwords(page.url), title[:TITLE_CHARS]))
        return tabs, self._index()

    async def new_tab(self) -> int:
        if len(self.context.pages) >= MAX_TABS:
            raise ToolFailure(f"there are {MAX_TABS} tabs already; close one first")
        self.page = await self.do(self.context.new_page())
        return self._index()

    async def switch_tab(self, index: int) -> None:
        if not 0 <= index < len(self.context.pages):
            raise ToolFailure(f"there is no tab {index}; the last is {len(self.context.pages) - 1}")
        self.page = self.context.pages[index]
        await self.do(self.page.bring_to_front())

    async def close_tab(self) -> int:
        """Close the current tab; return the index of the one that is current then."""
        if len(self.context.pages) == 1:
            raise ToolFailure("the last tab can't be closed")
        await self.do(self.page.close())
        return self._index()

    def _index(self) -> int:
        if self.page not in self.context.pages:
            raise BrowserFault(Stop.ENV_ERROR, "the last tab closed itself")
        return self.context.pages.index(self.page)

    def take_news(self) -> list[str]:
        """Return what has happened by itself since the last time, a sentence each."""
        news, self.news = self.news, []
        return news

    def add_news(self, line: str) -> None:
        """Add a sentence to the news: the last five, each once, as a page may cause them without end."""
        self.news = [old for old in self.news[-4:] if old != line] + [line]

    def _watch(self, page: Page) -> None:
        page.on("close", self._closed)
        page.on("download", self._download)
        page.on("filechooser", lambda _: self.add_news("A file chooser opened; files can't be given."))
        page.on("crash", lambda page: self.crashed.add(page))

    async def _opened(self, page: Page) -> None:
        self._watch(page)
        is_extra = len(self.context.pages) > MAX_TABS
        if is_extra:
            self.add_news(f"More than {MAX_TABS} tabs were open; new ones were closed.")
        with suppress(PlaywrightError):
            if is_extra or not page.url:  # a file that was to be shown in it has left it without any document
                await page.close()
            elif page.url == "about:blank" and await page.opener():  # a script may name its page later
                await page.wait_for_url("http*://**", timeout=BLANK_MS, wait_until="commit")
        if not page.is_closed():
            self.page = page
        for tab in self.tabs_of.values():
            tab.window = False
            tab.changed.set()

    def _closed(self, page: Page) -> None:
        self.tabs_of.pop(page, None)
        if page is self.page and self.context.pages:
            self.page = self.context.pages[-1]

    async def _dialog(self, dialog: Dialog) -> None:
        """Answer a dialog, which would block the page: accept it, but stay where something is not saved."""
        stays = dialog.type == "beforeunload"
        accepts = not stays if self.answer is None else self.answer
        message = " ".join(dialog.message.split())[:100]
        answered = "accepted" if accepts else "declined"
        news = f'A dialog ({dialog.type}) said "{message}" and was {answered}.'
        if stays and not accepts:
            self.next_answer = True
            news += " What is not saved would be lost; do the same again to leave."
        elif accepts and dialog.type != "alert":
            news += " To decline such a dialog, press Escape just before."
        self.add_news(news)
        with suppress(PlaywrightError):
            await (dialog.accept(dialog.default_value) if accepts else dialog.dismiss())

    async def _download(self, download: Download) -> None:
        self.add_news(f"A download ({download.suggested_filename[:60]}) was refused.")
        if download.page in self.tabs_of:
            self.tabs_of[download.page].navigated()  # no document will come
        with suppress(PlaywrightError):
            await download.cancel()
