"""Waiting until a page is ready: opening -> loading -> quiet, and again while something else comes.

Stands below minirl/browser/session.py, whose `settle` runs it after every action. What the action has set off
is waited for: another document until it comes, data until it is there, a window until it opens.

OpenWebRL, appendix A.1. Deviation: the page says when it is ready, in place of fixed sleeps.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from playwright.async_api import CDPSession, Frame, Page

from minirl.browser.page_scripts import PageAnswer, script
from minirl.types import BrowserFault, PageHangs, Stop, ToolFailure

if TYPE_CHECKING:
    from minirl.browser.session import Session

Event = dict[str, Any]  # of Chromium's protocol

CALL_SECONDS = 10.0  # for one question to the browser; a page that takes longer hangs
CALM_MS = 20.0  # the shortest quiet time that is asked of a page before it counts as ready
READY_SECONDS = 3.0  # after this time it counts as ready, whatever it does
WINDOW_SECONDS = 10.0  # for a window to open: Chromium's driver tells of it once its document has come
REVIVE_SECONDS = 12.0  # for all that may help a page that hangs
LOADING_SECONDS = 0.05  # after which a page without scripts is asked again whether it is there
MAX_DOCUMENTS = 3  # one after the other that have READY_SECONDS each: some pages never rest

# What may help a page that hangs, for how many seconds, and what the agent is told then. While another
# document is awaited the old one does not answer.
LATE = "The page that it leads to did not come in time, and was given up."
REMEDIES = (
    ("Page.stopLoading", 1.0, LATE),
    ("Runtime.terminateExecution", 3.0, "The page's script hung and was stopped."),
)


@dataclass(eq=False)
class Tab:
    """What is known of a tab: its title, and what is under way in it, from Chromium's own events."""

    cdp: CDPSession
    frame_id: str  # as the protocol names it: what frames within it load is no news of the tab
    title: str = ""
    document: str = ""  # the request of another document, until it comes or fails
    document_url: str = ""  # its address, after redirects
    failure: str = ""  # why it failed
    data: dict[str, tuple[str, str]] = field(default_factory=dict)  # what is asked for: kind and address
    polled: set[str] = field(default_factory=set)  # addresses for which the document waited in vain
    window: bool = False  # a window that the user may open, until it is there
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.cdp.on("Network.requestWillBeSent", self.request_started)
        self.cdp.on("Network.loadingFinished", self.request_ended)
        self.cdp.on("Network.loadingFailed", self.request_ended)
        self.cdp.on("Page.windowOpen", self.window_opens)

    def request_started(self, event: Event) -> None:
        kind = event.get("type", "")
        url = event["request"]["url"]
        address = url.partition("?")[0]
        if kind == "Document" and event.get("frameId") == self.frame_id:
            self.document = event["requestId"]
            self.document_url = url
            self.data.clear()
            self.polled.clear()
            self.changed.set()
        elif kind in ("Document", "XHR", "Fetch", "Script", "Stylesheet") and address not in self.polled:
            self.data[event["requestId"]] = kind, address

    def request_ended(self, event: Event) -> None:
        self.data.pop(event["requestId"], None)
        if event["requestId"] == self.document and "errorText" in event:
            self.document = ""
            self.failure = event["errorText"]
        self.changed.set()

    def navigated(self, frame: Frame | None = None) -> None:
        """Note that the tab or a frame in it has gone elsewhere, which within a document leaves its requests
        alone, or that no document will come."""
        if frame and frame.parent_frame:
            self.data = {key: data for key, data in self.data.items() if data[0] != "Document"}
        elif self.document:
            self.document = ""
            self.data.clear()
        self.changed.set()

    def window_opens(self, event: Event) -> None:
        """Note that a window will come. Those that a page opens by itself are blocked, and never come."""
        self.window = event.get("userGesture") is True

    async def wait(self, is_over: Callable[["Tab"], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0, seconds)):
                while not is_over(self):
                    self.changed.clear()
                    await self.changed.wait()

    def forget(self) -> None:
        """Forget what is under way: it is not what the next action sets off."""
        self.document = ""
        self.document_url = ""
        self.failure = ""
        self.data = {}
        self.window = False


async def wait_until_ready(session: "Session", calm_ms: float) -> PageAnswer:
    """Return the page's last answer, once it rests; its `error` is the network's or the guard's reason."""
    page = session.page
    tab = await session.tab()
    settled = None
    n_documents = 0
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        # A window that the action opens becomes the page
        if tab.window:
            await tab.wait(lambda tab: not tab.window, WINDOW_SECONDS)
            tab.window = False
            deadline = time.monotonic() + READY_SECONDS
        if session.page is not page:
            page = session.page
            tab = await session.tab()
            with suppress(ToolFailure):
                await session.do(page.wait_for_load_state("domcontentloaded", timeout=0))
            deadline = time.monotonic() + READY_SECONDS

        settled = await _ask(session, page, tab, calm_ms, deadline)
        if settled is None:  # the page was replaced meanwhile; the new one is asked
            n_documents += 1
            if n_documents <= MAX_DOCUMENTS:
                deadline = time.monotonic() + READY_SECONDS
        elif tab.data:  # or another document comes
            await tab.wait(lambda tab: not tab.data or tab.document != "", deadline - time.monotonic())
        elif settled.loading:
            await asyncio.sleep(LOADING_SECONDS)
        elif session.page is page and not tab.document and not tab.window:
            break

    tab.polled.update(address for _, address in tab.data.values())
    settled = settled or PageAnswer(fresh=True)
    if settled.error:
        error = await session.guard.explain(tab.document_url, tab.failure or settled.error)
        settled = replace(settled, error=error)
    return settled


async def _ask(
    session: "Session", page: Page, tab: Tab, calm_ms: float, deadline: float
) -> PageAnswer | None:
    """Return settle.js's answer from the page or the action's inner frame; None if that was replaced."""

    async def ask(place: Page | Frame) -> PageAnswer:
        left = max(0.0, deadline - time.monotonic())
        work = place.evaluate(script("settle"), [session.config.quiet_ms, calm_ms, 1000 * left])
        return PageAnswer.read(await session.do(work, left + CALL_SECONDS))

    settled = PageAnswer()
    try:
        settled = await ask(page)
        tab.title = settled.title
        frame = session.armed
        if frame and frame != page.main_frame and frame.page is page and not frame.is_detached():
            settled = await ask(frame)
    except PageHangs:  # its script does not end, or the document that is awaited does not come
        await session.revive()
    except ToolFailure as failure:
        if "context was destroyed" in str(failure):
            return None
        # closed, or gone wrong in a way that shows in the screenshot
    return settled


async def revive(session: "Session") -> None:
    """Stop the script of a page that hangs, or replace its tab by an empty one. Raises BrowserFault."""
    try:
        async with asyncio.timeout(REVIVE_SECONDS):
            for remedy, seconds, news in REMEDIES:
                with suppress(ToolFailure):
                    tab = await session.tab()
                    was_leaving = tab.document != ""
                    tab.document = ""
                    await session.do(tab.cdp.send(remedy), seconds)
                    await session.do(session.page.evaluate("0"), seconds)
                    if was_leaving or news != LATE:
                        session.add_news(news)
                    return  # it answers again
            hanging = session.page
            session.page = await session.do(session.context.new_page())
            with suppress(ToolFailure):
                await session.do(hanging.close(), REMEDIES[-1][1])
            session.add_news("The page hung and its tab was closed.")
    except (TimeoutError, ToolFailure):
        raise BrowserFault(Stop.ENV_ERROR, "the page hangs, and nothing helps") from None
