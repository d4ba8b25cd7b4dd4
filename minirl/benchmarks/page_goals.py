"""Simple goals without code: what the page must be like on which an episode ends.

    {"address": "https://shop.test/cart"}     the final address is this one, or with * at its end begins so
    {"text": "Thank you for your order"}      the page shows this text, however its white space is laid out
    {"fields": {"Email": "a@b.test"}}         the form field with this CSS selector, label or name has this
                                              value, a box "true" or "false"

Several in one goal must all be met by the page that the agent has left, within LATE_SECONDS. Not in a paper.
"""

import asyncio
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Self

from pydantic import ConfigDict, model_validator

from minirl.benchmarks.fields import Record, Text, must, read
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.browser.access import is_address
from minirl.browser.session import PageHangs
from minirl.types import BrowserFault, Score, Session, Stop, Task, ToolFailure

LATE_SECONDS = 3.0  # for a page to show what is wanted
LOOK_SECONDS = 0.25  # between two looks
SCRIPT = files("minirl.benchmarks").joinpath("page_goals.js").read_text()
START = "be an address like https://host/cart, or its beginning with * at the end"


class PageState(Record):
    text: str
    fields: dict[str, list[str]]


class PageGoal(Record):
    model_config = ConfigDict(extra="forbid")

    address: Annotated[str, must(lambda url: is_address(url.removesuffix("*")), START)] | None = None
    text: Text | None = None
    fields: dict[str, str] | None = None

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if self.address is None and self.text is None and not self.fields:
            raise ValueError("the goal must want an address, a text or fields")
        return self

    def unmet(self, url: str, page: PageState) -> str:
        """Return the first thing wanted that the page does not have, in words; "" if it has everything."""
        wanted = self.address or url
        if not (url.startswith(wanted[:-1]) if wanted.endswith("*") else url in (wanted, f"{wanted}/")):
            return f"address wanted {wanted!r}, found {url[:200]!r}"
        if " ".join((self.text or "").split()) not in " ".join(page.text.split()):
            return f"text wanted {self.text!r}, and the page does not show it"
        for name, value in (self.fields or {}).items():
            values = page.fields.get(name, [])
            if value not in values:
                found = repr(values[0][:200]) if values else "no such field"
                return f"field {name!r} wanted {value!r}, found {found}"
        return ""


def is_page_goal(goal: Mapping[str, Any]) -> bool:
    return not PageGoal.model_fields.keys().isdisjoint(goal)


class PageGoalBenchmark(JudgedBenchmark):
    judged = False

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return 1 if the page meets the goal, or 0 with the reason. BrowserFault if it can't be read."""
        goal, ends = read(PageGoal, task.goal), time.monotonic() + LATE_SECONDS
        while True:
            is_last = time.monotonic() >= ends
            try:
                found = await session.do(session.page.evaluate(SCRIPT, list(goal.fields or ())))
                reason = goal.unmet(session.page.url, read(PageState, found))
                if is_last or not reason:
                    value = float(not reason)
                    return Score(value, {"score": value, "reason": reason or "the goal is met"})
            except (ToolFailure, ValueError) as failure:  # it may only be about to be replaced
                if is_last or isinstance(failure, PageHangs):
                    raise BrowserFault(Stop.JUDGE_ERROR, f"the final page can't be read: {failure}") from None
            await asyncio.sleep(LOOK_SECONDS)
