"""Whether a WebArena task was done, by the task's own rules: the answer, the address, the pages' contents.

    task.goal + answer + live page -> evaluate -> Score

Stands at the end of an episode on WebArena's sites, in place of a judge. A task has up to three kinds of
rules, and the score is the product of theirs, 0 or 1. `minirl.benchmarks.webarena.text_match` compares,
in the two variants of the
benchmark; `minirl.benchmarks.webarena.lookups` reads pages, and asks the shop's server and a language
model. WebAgent-R1,
section 4.1.

Evaluation leaves the page elsewhere: rules open addresses. Deviations: nothing from a task is run as Python
(see `minirl.benchmarks.webarena.locators`); in place of a fixed pause of 3 s a page has as long to show
what is wanted; an empty
answer is never put to the model; where a site, a page or the model fails there is no score, but `NoVerdict`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Page

from minirl.benchmarks.webarena.locators import read_helper
from minirl.benchmarks.webarena.lookups import (
    Ask,
    NoVerdict,
    help_with,
    is_correct,
    is_same,
    open_page,
    read_page,
    run_script,
    same_answer,
    same_reason,
)
from minirl.benchmarks.webarena.tasks import Account, accounts_from_environment, sites_from_environment
from minirl.benchmarks.webarena.text_match import Variant, clean, includes, is_exact, page_text, url_matches
from minirl.types import Task

__all__ = ["NoVerdict", "Score", "evaluate", "needs_judge"]

LATE_SECONDS = 3.0  # for a page to show what is wanted
LOOK_SECONDS = 0.25  # between two looks
SHOWN = 120  # characters of anything, in a reason


@dataclass(frozen=True)
class Score:
    """1.0 if all of a task's rules are met, or else 0.0; the reason is for people."""

    value: float
    reason: str


def needs_judge(task: Task) -> bool:
    """Whether some rule of a task is for a language model to decide."""
    goal, kinds = task.goal, task.goal["eval_types"]
    return ("string_match" in kinds and "fuzzy_match" in goal["reference_answers"]) or (
        "program_html" in kinds
        and any(first_rule(target["required_contents"]) == "fuzzy_match" for target in goal["program_html"])
    )


def first_rule(contents: Mapping[str, Any]) -> str:
    """Of several rules for a page's contents only the first of this order counts."""
    return next(rule for rule in ("exact_match", "must_include", "fuzzy_match") if rule in contents)


async def evaluate(
    task: Task,
    answer: str,
    page: Page,
    *,
    variant: Variant = "lite",
    ask: Ask | None = None,
    sites: Mapping[str, str] | None = None,
    accounts: Mapping[str, Account] | None = None,
) -> Score:
    """The score of an episode that ended with `answer` and on `page`.

    `ask` is the judge, see `asking`; sites and accounts are by default the environment's. Raises ValueError
    for a task of another kind, or one that needs a judge if there is none, and NoVerdict.
    """
    if task.goal.get("kind") != "webarena":
        raise ValueError(f"the task {task.id} has no rules of WebArena's")
    if ask is None and needs_judge(task):
        raise ValueError(f"the task {task.id} is for a language model to decide: give a judge endpoint")
    trial = Trial(
        task,
        page,
        page.url,
        variant,
        ask,
        sites_from_environment() if sites is None else sites,
        accounts_from_environment() if accounts is None else accounts,
    )
    reasons = []
    for kind in task.goal["eval_types"]:
        match kind:
            case "string_match":
                score = await trial.answer_score(answer)
            case "url_match":
                score = trial.url_score()
            case "program_html":
                score = await trial.pages_score()
            case _:
                raise AssertionError(kind)
        if not score.value:
            return Score(0.0, f"{kind}: {score.reason}")
        reasons.append(f"{kind}: {score.reason}")
    return Score(1.0, "; ".join(reasons))


@dataclass(frozen=True)
class Trial:
    """One evaluation: the task, the page and where it was when the agent stopped, and whom to ask."""

    task: Task
    page: Page
    url: str
    variant: Variant
    ask: Ask | None
    sites: Mapping[str, str]
    accounts: Mapping[str, Account]

    # --- the answer -------------------------------------------------------------------------------------

    async def answer_score(self, answer: str) -> Score:
        answer = clean(answer, self.variant)
        for rule, wanted in self.task.goal["reference_answers"].items():
            match rule:
                case "exact_match":
                    good = is_exact(wanted, answer, self.variant)
                case "must_include":
                    short = len(wanted) == 1
                    good = all(includes(each, answer, self.variant, short) for each in wanted)
                case "fuzzy_match" if wanted == "N/A":
                    good = is_exact(wanted, answer, self.variant) or await self._is_same_reason(answer)
                case _:
                    good = await self._is_same_answer(wanted, answer)
            if not good:
                return verdict(False, rule, wanted, answer)
        return Score(1.0, f"the answer {shown(answer)} is right")

    async def _is_same_answer(self, wanted: list[str], answer: str) -> bool:
        """Lite asks about all references at once, upstream about each."""
        references = [", ".join(wanted)] if self.variant == "lite" else wanted
        for reference in references:
            if not answer.strip():
                return False
            asked = same_answer(self.task.instruction, reference, answer)
            if not is_correct(await self._asked(asked)):
                return False
        return True

    async def _is_same_reason(self, answer: str) -> bool:
        if not answer.strip():
            return False
        asked = same_reason(self.task.instruction, self.task.goal["string_note"], answer)
        return is_same(await self._asked(asked))

    async def _asked(self, question: str) -> str:
        assert self.ask is not None
        return await self.ask(question)

    # --- the address ------------------------------------------------------------------------------------

    def url_score(self) -> Score:
        wanted, note = self.task.goal["reference_url"], self.task.goal.get("url_note")
        return verdict(url_matches(wanted, self.url, note, self.variant), note or "no note", wanted, self.url)

    # --- pages ------------------------------------------------------------------------------------------

    async def pages_score(self) -> Score:
        """The targets in their order; each starts where the one before has left the page."""
        targets = self.task.goal["program_html"]
        for target in targets:
            url = await self._address(target["url"])
            if url is None:
                return Score(0.0, f"{target['url']} found no page")
            if url != "last":
                await open_page(self.page, url)
            score = await self._target_score(target)
            if not score.value:
                return score
        return Score(1.0, f"{len(targets)} of {len(targets)} pages show what is wanted")

    async def _address(self, url: str) -> str | None:
        if not url.startswith("func:"):
            return url
        return await help_with(read_helper(url), self.page, self.sites, self.accounts)

    async def _target_score(self, target: Mapping[str, Any]) -> Score:
        """Looks until the page shows what is wanted, or has had its time. The shop's server needs none."""
        rule = first_rule(target["required_contents"])
        wanted = target["required_contents"][rule]
        patience = 0.0 if target["locator"].startswith("func:shopping") else LATE_SECONDS
        ends = time.monotonic() + patience
        for script in target.get("prep_actions", ()):
            await run_script(self.page, script)
        while True:
            found = await self._find(target["locator"])
            text = None if found is None else page_text(found, self.variant)
            if text is None:
                good = False
            elif rule == "exact_match":
                good = is_exact(wanted, text, self.variant)
            elif rule == "must_include":
                good = all(includes(each, text, self.variant) for each in wanted)
            else:
                good = bool(text.strip())  # to be put to the model
            if good or time.monotonic() >= ends:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if good and rule == "fuzzy_match":
            good = await self._is_same_answer(wanted, text or "")
        where = f"{rule} of {target['locator'] or 'the page'} at {self.page.url}"
        return verdict(good, where, wanted, text)

    async def _find(self, locator: str) -> str | None:
        if not locator.strip():
            return await read_page(self.page)
        if locator.startswith("func:"):
            return await help_with(read_helper(locator), self.page, self.sites, self.accounts)
        return await run_script(self.page, locator)


def verdict(good: bool, rule: str, wanted: Any, found: str | None) -> Score:
    words = f"{rule} wanted {shown(wanted)}, found {shown(found)}"
    return Score(float(good), words if not good else f"{rule}, found {shown(found)}")


def shown(value: Any) -> str:
    """A value, cut to what one wants to read."""
    words = value if isinstance(value, str) else repr(value)
    short = " ".join(words[: 2 * SHOWN].split())
    return repr(short if len(short) <= SHOWN and len(words) <= 2 * SHOWN else f"{short[:SHOWN]}...")
