"""What a tab loads because of an action, from Chromium's own events.

Stands below minirl/browser/session.py, which feeds it the events of the protocol's Network and Page
domains and
waits here for what an action has set off: another document, data, a window. Watching says what is still
to come, where the fixed sleeps of OpenWebRL (appendix A.1) can only hope that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minirl.browser.page_scripts import text_of

MEANWHILE = ("XHR", "Fetch")  # requests that an action's effect may wait for


@dataclass
class Traffic:
    """What is under way in one tab."""

    frame: str  # the tab's own, as the protocol names it: what frames within it load is no news of the tab
    document: str = ""  # the request of another document, until it comes or fails
    failure: str = ""  # why it failed
    pending: set[str] = field(default_factory=set)  # requests whose answers the page may show
    opening: bool = False  # a window that the user may open, until it is there
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def started(self, event: dict[str, Any]) -> None:
        if event.get("type") == "Document" and event.get("frameId") == self.frame:
            self.document = event["requestId"]
            self.pending.clear()
            self.news.set()
        elif event.get("type") in MEANWHILE:
            self.pending.add(event["requestId"])

    def opens(self, event: dict[str, Any]) -> None:
        """Windows that a page opens by itself are blocked, and would be awaited in vain."""
        self.opening = event.get("userGesture") is True

    def opened(self) -> None:
        self.opening = False
        self.news.set()

    def ended(self, event: dict[str, Any]) -> None:
        self.pending.discard(event["requestId"])
        if event["requestId"] == self.document and "errorText" in event:
            self.document, self.failure = "", text_of(event["errorText"], 60)
        self.news.set()

    def committed(self) -> None:
        """The tab has gone elsewhere. Within a document, that leaves its requests alone."""
        if self.document:
            self.document = ""
            self.pending.clear()
            self.news.set()

    async def wait(self, done: Callable[[Traffic], bool], seconds: float | None = None) -> None:
        """Until `done`, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds is None else max(0, seconds)):
                while not done(self):
                    self.news.clear()
                    await self.news.wait()
