"""Waiting until a page is ready: opening -> loading -> quiet, and again while something else comes.

Stands below minirl/browser/session.py, whose `settle` runs it after every action. What the action has set off
is waited for: another document until it comes, data until it is there, a window until it opens.

OpenWebRL, appendix A.1. Deviation: the page says when it is ready, in place of fixed sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from playwright.async_api import CDPSession, Frame, Page

from minirl.browser.page_scripts import SETTLE, Settled, text_of
from minirl.types import ToolFailure

if TYPE_CHECKING:
    from minirl.browser.session import Session

WINDOW_SECONDS = 1.0  # for a window to open
MOST_DOCUMENTS = 3  # one after the other that have a `ready_ms` each: some pages never rest


class PageHangs(ToolFailure):
    """A call did not come back in time."""


@dataclass(eq=False)
class Tab:
    """What is known of a tab: its title, and what is under way in it, from Chromium's own events."""

    cdp: CDPSession
    frame: str  # as the protocol names it: what frames within it load is no news of the tab
    title: str = ""
    document: str = ""  # the request of another document, until it comes or fails
    document_url: str = ""  # its address, after redirects
    failure: str = ""  # why it failed
    data: set[str] = field(default_factory=set)  # requests whose answers the page may show
    window: bool = False  # a window that the user may open, until it is there
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.cdp.on("Network.requestWillBeSent", self.request_started)
        self.cdp.on("Network.loadingFinished", self.request_ended)
        self.cdp.on("Network.loadingFailed", self.request_ended)
        self.cdp.on("Page.windowOpen", self.window_opens)

    def request_started(self, event: dict[str, Any]) -> None:
        """Note that a request was sent, or redirected."""
        if event.get("type") == "Document" and event.get("frameId") == self.frame:
            self.document, self.document_url = event["requestId"], event["request"]["url"]
            self.data.clear()
            self.changed.set()
        elif event.get("type") in ("XHR", "Fetch"):
            self.data.add(event["requestId"])

    def request_ended(self, event: dict[str, Any]) -> None:
        """Note that a request has all of its answer, or failed."""
        self.data.discard(event["requestId"])
        if event["requestId"] == self.document and "errorText" in event:
            self.document, self.failure = "", text_of(event["errorText"], 60)
        self.changed.set()

    def committed(self) -> None:
        """Note that the tab has gone elsewhere, which within a document leaves its requests alone."""
        if self.document:
            self.document = ""
            self.data.clear()
            self.changed.set()

    def window_opens(self, event: dict[str, Any]) -> None:
        """Note that a window will come. Those that a page opens by itself are blocked, and never come."""
        self.window = event.get("userGesture") is True

    async def wait(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until `done()`, or for so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds is None else max(0, seconds)):
                while not done():
                    self.changed.clear()
                    await self.changed.wait()


class Readiness:
    """One wait until the session's page is ready, at least `calm_ms` without a change."""

    def __init__(self, session: Session, tab: Tab, calm_ms: float):
        self.session, self.page, self.tab, self.calm_ms = session, session.page, tab, calm_ms
        self.config, self.seconds = session.config, session.config.ready_ms / 1000
        self.deadline = time.monotonic() + self.seconds

    async def wait(self) -> Settled:
        """Return the page's last answer; its `error` is the network's or the proxy's reason, if known."""
        session, documents, settled = self.session, 0, None
        while time.monotonic() < self.deadline:
            await self._follow_window()
            tab = self.tab
            giving_up = asyncio.ensure_future(self._give_up_late_document())
            try:
                settled = await self._ask_page()
            finally:
                giving_up.cancel()
            if settled is None:  # the page was replaced meanwhile; the new one is asked
                documents += 1
                if documents <= MOST_DOCUMENTS:
                    self.deadline = time.monotonic() + self.seconds
            elif tab.data:  # what comes may make another page of it
                left = self.deadline - time.monotonic()
                await tab.wait(lambda tab=tab: not tab.data or bool(tab.document), left)
            elif session.page is self.page and not tab.document and not tab.window:
                break
        settled = settled or Settled(fresh=True)
        if settled.error:
            error = session.guard.explain(self.tab.document_url, self.tab.failure or settled.error)
            settled = replace(settled, error=error)
        await self._forget_requests()
        return settled

    async def _follow_window(self) -> None:
        """Wait for a window that the action opens, and for its document; the window becomes the page."""
        tab = self.tab
        if tab.window:
            await tab.wait(lambda: not tab.window, WINDOW_SECONDS)
            tab.window = False
        if self.session.page is not self.page:
            await self._forget_requests()
            self.page = self.session.page
            self.tab = await self.session.tab(self.page)
            with contextlib.suppress(ToolFailure):
                loading = self.page.wait_for_load_state("domcontentloaded", timeout=0)
                await self.session.do(loading, self.config.commit_seconds)
            self.deadline = time.monotonic() + self.seconds

    async def _ask_page(self) -> Settled | None:
        """Return settle.js's answer from the page, or from the inner frame of the action; None if that page
        was replaced before it could answer."""
        session, frame, config = self.session, self.session.armed, self.config
        slowness = config.call_seconds + (config.commit_seconds if self.tab.document else 0)

        async def ask(place: Page | Frame) -> Settled:
            left = max(0.0, self.deadline - time.monotonic())
            work = place.evaluate(SETTLE, [config.quiet_ms, self.calm_ms, 1000 * left])
            return Settled.read(await session.do(work, left + slowness))

        settled = Settled()
        try:
            settled = await ask(self.page)
            self.tab.title = settled.title
            inner = frame if frame != self.page.main_frame else None
            if inner and inner.page is self.page and not inner.is_detached():
                settled = await ask(inner)
        except PageHangs:
            await session.revive()
        except ToolFailure as failure:
            if "context was destroyed" in str(failure):
                return None
            # closed, or gone wrong in a way that shows in the screenshot
        session.documents[settled.loaded] = max(settled.requests, session.documents.get(settled.loaded, 0))
        session.heap = max(session.heap, settled.heap)
        return settled

    async def _forget_requests(self) -> None:
        """Listen to no more requests, which on a heavy page come in thousands; forget those under way."""
        tab = self.tab
        if self.config.quiet_ms:
            with contextlib.suppress(ToolFailure):
                await self.session.do(tab.cdp.send("Network.disable"))
        tab.document = tab.document_url = tab.failure = ""
        tab.data, tab.window = set(), False

    async def _give_up_late_document(self) -> None:
        """Give a document up that does not come: while it is awaited, the old one answers no question."""
        tab, seconds = self.tab, self.config.commit_seconds
        while True:
            await tab.wait(lambda: bool(tab.document))
            await tab.wait(lambda: not tab.document, seconds)
            if tab.document:
                tab.document = ""
                line = f"The page that it leads to did not come within {seconds:g} s, and was given up."
                self.session.tell(line)
                with contextlib.suppress(ToolFailure):
                    await self.session.do(tab.cdp.send("Page.stopLoading"))
