"""Live tasks without rules, which a judge decides (OpenWebRL, section 5); the base of other benchmarks."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from minirl.console import without_passwords
from minirl.types import BrowserFault, Score, Session, Stop, Task, ToolFailure

if TYPE_CHECKING:
    from minirl.episode import Harness


class JudgedBenchmark:
    judged = True
    recorded = False

    def session(self, harness: "Harness", task: Task) -> AbstractAsyncContextManager[Session]:
        return harness.browsers.session()

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the address with the wording, and the site with the goal, or with the wording if it has
        none."""
        host = urlsplit(without_passwords(task.start_url)).netloc.removeprefix("www.")
        wording = " ".join(task.instruction.casefold().split())  # benchmarks copy from one another
        # pages by seed may share their wording
        detail = json.dumps(task.goal, sort_keys=True) if task.goal else wording
        return {(task.start_url, wording), (host, detail)}

    def missing(self, task: Task) -> list[str]:
        return []

    def places(self, task: Task) -> set[tuple[str, int]]:
        return set()

    def folders(self) -> dict[str, Path]:
        return {}

    def needs_judge(self, task: Task) -> bool:
        return self.judged

    async def log_in(self, session: Session, task: Task) -> bool:
        return False  # nobody has to

    async def prepare(self, session: Session, task: Task) -> None:
        """Log in, and open the pages in `meta["tabs"]` behind the first. BrowserFault if that fails."""
        tabs = task.meta.get("tabs", ())
        try:
            if await self.log_in(session, task):
                await session.goto(task.start_url)
                # the agent should not go back to the login
                cdp = await session.do(session.context.new_cdp_session(session.page))
                await session.do(cdp.send("Page.resetNavigationHistory"))
            for url in tabs:
                await session.new_tab()
                await session.goto(url)
            if tabs:
                await session.switch_tab(0)
        except ToolFailure as failure:
            raise BrowserFault(Stop.SITE_ERROR, f"{task.id} could not be prepared: {failure}") from None

    async def has_ended(self, session: Session, task: Task) -> bool:
        return False

    async def state(self, session: Session) -> str:
        return ""

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        raise AssertionError("the judge scores these tasks")
