"""WebArena's tasks in an experiment: what they need, how their episodes begin, and their scores.

    rules of a task + answer + live page --score--> 0 or 1, and the reason

Implements types.Benchmark. tasks.py reads the rules; login.py gets the sites ready; text_match.py compares,
in the two variants of the benchmark; lookups.py reads pages, and asks the shop's server and a language model.
WebAgent-R1, section 4.1. Deviations: nothing from a task is run as Python (see locators.py); in place of a
fixed pause of 3 s a page has that long to show what is wanted; an empty answer is never put to the model;
where a site, a page or the model fails there is no score, but `NoVerdict`.
The sites may have private addresses: the browser's guard opens `places`, and nothing else beside them.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Page

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.webarena import lookups
from minirl.benchmarks.webarena.locators import read_helper
from minirl.benchmarks.webarena.login import log_in
from minirl.benchmarks.webarena.lookups import llm_fuzzy_match, llm_ua_match
from minirl.benchmarks.webarena.tasks import (
    ProgramHtml,
    StringMatch,
    Target,
    UrlMatch,
    is_webarena,
    rules_of,
    sites_from_environment,
)
from minirl.benchmarks.webarena.text_match import Variant, clean, includes, is_exact, page_text, url_matches
from minirl.browser.session import Session
from minirl.samplers.endpoint import Endpoint
from minirl.types import BrowserFault, Score, Stop, Task, ToolFailure

LATE_SECONDS = 3.0  # for a page to show what is wanted
LOOK_SECONDS = 0.25  # between two looks

Outcome = tuple[bool, str]  # whether the rules are met, and the reason, for people


@dataclass(frozen=True)
class WebArenaBenchmark(JudgedBenchmark):
    judged = False  # by rules; a model may be asked about an answer
    variant: Variant = "lite"  # whose reading of the rules
    states: Path | None = None  # a folder of stored logins, see `log_in`
    judge: Endpoint | None = None  # the model that decides where the rules can't
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)  # addresses and accounts

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the task's own number: many tasks share an answer, as "2", and some their wording."""
        return {("webarena", task.id)}

    def missing(self, tasks: Sequence[Task]) -> list[str]:
        """Return the variables that must be set before these tasks can be run, sorted."""
        return sorted(name for name in self._sites(tasks) if not self.environ.get(name))

    def places(self, tasks: Sequence[Task]) -> set[tuple[str, int]]:
        """Return host and port of the sites that these tasks are about, as far as their variables are set.
        Other addresses in a task file are not among them."""
        found = set()
        for name, address in self._sites(tasks).items():
            if self.environ.get(name):
                parts = urlsplit(address)
                port = parts.port or (443 if parts.scheme == "https" else 80)
                found.add(((parts.hostname or "").removesuffix("."), port))
        return found

    def _sites(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Return the addresses of the sites that WebArena's tasks name, or whose addresses stand in them."""
        own = [task for task in tasks if is_webarena(task)]
        # without tasks of WebArena the variables may be somebody else's
        sites = sites_from_environment(self.environ) if own else {}
        named = {site.upper() for task in own for site in task.meta["sites"]}
        words = json.dumps([[task.start_url, task.goal, task.meta] for task in own])
        return {name: address for name, address in sites.items() if name in named or address in words}

    def needs_judge(self, task: Task) -> bool:
        """Return True if some rule of a task is for a language model to decide."""
        found = rules_of(task.goal).values()
        answers = any(
            isinstance(rules, StringMatch) and rules.reference_answers.fuzzy_match for rules in found
        )
        targets = [
            target for rules in found if isinstance(rules, ProgramHtml) for target in rules.program_html
        ]
        return answers or any(target.required_contents.first[0] == "fuzzy_match" for target in targets)

    async def prepare(self, session: Session, task: Task) -> None:
        """Log in and open the task's tabs. Raises BrowserFault, with Stop.SITE_ERROR, if a site fails."""
        try:
            await log_in(session, task, self.environ, self.states)
        except ToolFailure as failure:
            raise BrowserFault(Stop.SITE_ERROR, f"{task.id} could not be prepared: {failure}") from None
        await super().prepare(session, task)

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the product of all rules, 0 or 1, for an episode that ended with `answer` on the session's
        page, which is elsewhere afterwards. Raises NoVerdict where a rule can't be checked, and ValueError if
        a judge is needed and there is none."""
        if self.judge is None and self.needs_judge(task):
            raise ValueError(f"the task {task.id} is for a language model to decide: give a judge endpoint")
        page, url, reasons = session.page, session.page.url, []
        for kind, rules in rules_of(task.goal).items():
            match rules:
                case StringMatch():
                    met, reason = await self._check_answer(task, rules, answer)
                case UrlMatch():  # of where the agent stopped: the rules for pages open others
                    note, wanted = rules.url_note, rules.reference_url
                    met = url_matches(wanted, url, note, self.variant)
                    reason = _describe(met, note or "no note", wanted, url)
                case ProgramHtml():
                    met, reason = await self._check_pages(task, rules, page)
            if not met:
                return Score(0.0, {"score": 0.0, "reason": f"{kind}: {reason}"})
            reasons.append(f"{kind}: {reason}")
        return Score(1.0, {"score": 1.0, "reason": "; ".join(reasons)})

    async def _check_answer(self, task: Task, rules: StringMatch, answer: str) -> Outcome:
        """Compare the answer with each of the reference answers."""
        answer, met = clean(answer, self.variant), True
        for rule, wanted in rules.reference_answers:
            match rule:
                case _ if wanted is None:
                    continue
                case "exact_match":
                    met = is_exact(wanted, answer, self.variant)
                case "must_include":
                    met = all(includes(each, answer, self.variant, len(wanted) == 1) for each in wanted)
                case "fuzzy_match" if wanted == "N/A":
                    met = is_exact(wanted, answer, self.variant)
                    note = rules.string_note or ""
                    met = met or await llm_ua_match(self.judge, task.instruction, note, answer)
                case _:
                    met = await llm_fuzzy_match(self.judge, self.variant, task.instruction, wanted, answer)
            if not met:
                return False, _describe(False, rule, wanted, answer)
        return True, f"the answer {answer!r:.120} is right"

    async def _check_pages(self, task: Task, rules: ProgramHtml, page: Page) -> Outcome:
        """Open the targets' pages in their order, and compare what their locators find. Each starts where the
        one before has left the page."""
        for target in rules.program_html:
            url = target.url
            if url.startswith("func:"):
                url = await lookups.call_helper(read_helper(url), page, self.environ)
            if url is None:
                return False, f"{target.url} found no page"
            if url != "last":
                await lookups.open_page(page, url)
            met, why = await self._check_target(task, target, page)
            if not met:
                return False, why
        return True, f"{len(rules.program_html)} of {len(rules.program_html)} pages show what is wanted"

    async def _check_target(self, task: Task, target: Target, page: Page) -> Outcome:
        """Look until the page shows what is wanted, or has had its time. The shop's server needs none."""
        rule, wanted = target.required_contents.first
        ends = time.monotonic() + (0.0 if target.locator.startswith("func:shopping") else LATE_SECONDS)
        for script in target.prep_actions:
            await lookups.run_script(page, script)
        while True:
            found = await self._find(target.locator, page)
            text = None if found is None else page_text(found, self.variant)
            if text is None:
                met = False
            elif rule == "exact_match":
                met = is_exact(wanted, text, self.variant)
            elif rule == "must_include":
                met = all(includes(each, text, self.variant) for each in wanted)
            else:
                met = bool(text.strip())  # to be put to the model
            if met or time.monotonic() >= ends:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if met and rule == "fuzzy_match":
            met = await llm_fuzzy_match(self.judge, self.variant, task.instruction, wanted, text or "")
        return met, _describe(met, f"{rule} of {target.locator or 'the page'} at {page.url}", wanted, text)

    async def _find(self, locator: str, page: Page) -> str | None:
        if locator.startswith("func:"):
            return await lookups.call_helper(read_helper(locator), page, self.environ)
        return await (lookups.run_script(page, locator) if locator.strip() else lookups.read_page(page))


def _describe(met: bool, rule: str, wanted: Any, found: str | None) -> str:
    """Return the reason, which shows at most 120 characters of each text."""
    return f"{rule}, found {found!r:.120}" if met else f"{rule} wanted {wanted!r:.120}, found {found!r:.120}"
