"""WebArena's tasks in an experiment: what they need, how their episodes begin, and their scores.

WebAgent-R1, section 4.1, whose scores are WebArena-Lite's. Deviations:

1. Nothing from a task is run as Python.
2. In place of a fixed pause of 3 s a page has that long to show what is expected.
3. An empty answer is never put to the model.
4. Presses go on after one that fails.
5. A locator that finds nothing yields no text, where WebArena yields the string "None".
6. Where a site, a page or the model fails there is no score, but NoVerdict.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Page

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.webarena import lookups
from minirl.benchmarks.webarena.login import log_in
from minirl.benchmarks.webarena.lookups import NoVerdict
from minirl.benchmarks.webarena.tasks import (
    PageTarget,
    ProgramHtml,
    StringMatch,
    UrlMatch,
    rules_of,
    sites_from_environment,
)
from minirl.benchmarks.webarena.text_match import clean, meets, url_matches
from minirl.browser.access import host_and_port, is_address
from minirl.samplers.endpoint import Endpoint
from minirl.types import Score, Session, Task

LATE_SECONDS = 3.0  # for a page to show what is expected
LOOK_SECONDS = 0.25  # between two looks


@dataclass(frozen=True)
class WebArenaBenchmark(JudgedBenchmark):
    judged = False  # by rules; a model may be asked about an answer
    judge: Endpoint | None = None  # the model that decides where the rules can't
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)  # addresses and accounts

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the task's own number: many tasks share an answer, as "2", and some their wording."""
        return {("webarena", task.id)}

    def missing(self, task: Task) -> list[str]:
        return sorted(name for name in self._sites(task) if not self.environ.get(name))

    def places(self, task: Task) -> set[tuple[str, int]]:
        # the browser's guard opens these, which may be private, and nothing else that tasks name
        sites = self._sites(task)
        return {host_and_port(address) for name, address in sites.items() if self.environ.get(name)}

    def _sites(self, task: Task) -> dict[str, str]:
        """Return the addresses of the sites that a task is on, or that its texts name."""
        listed = {site.upper() for site in task.meta["sites"]}
        texts = json.dumps([task.start_url, task.goal, task.meta])
        sites = sites_from_environment(self.environ)
        return {name: address for name, address in sites.items() if name in listed or address in texts}

    def needs_judge(self, task: Task) -> bool:
        return '"fuzzy_match"' in json.dumps(task.goal)

    async def log_in(self, session: Session, task: Task) -> None:
        await log_in(session, task, self.environ)

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the product of all rules, 0 or 1. Raises NoVerdict where a rule can't be checked."""
        if self.judge is None and self.needs_judge(task):
            raise ValueError(f"the task {task.id} is for a language model to decide: give a judge endpoint")
        page = session.page
        last_url = page.url  # where the agent stopped: the rules for pages open others
        for kind, rules in rules_of(task.goal).items():
            match rules:
                case StringMatch():
                    failure = await self._check_answer(task, rules, answer)
                case UrlMatch():
                    met = url_matches(rules.reference_url, last_url, rules.url_note)
                    failure = "" if met else _mismatch(rules.url_note, rules.reference_url, last_url)
                case ProgramHtml():
                    failure = await self._check_pages(task, rules, page)
            if failure:
                return Score(0.0, {"score": 0.0, "reason": f"{kind}: {failure}"})
        return Score(1.0, {"score": 1.0, "reason": "all rules are met"})

    async def _check_answer(self, task: Task, rules: StringMatch, answer: str) -> str:
        """Return how the answer fails, "" if it is right."""
        answer = clean(answer)
        for approach, expected in rules.reference_answers.approaches:
            met = meets(approach, expected, answer)
            if approach == "fuzzy_match" and expected == "N/A":
                note = rules.string_note or ""
                met = met or await lookups.llm_ua_match(self.judge, task.instruction, note, answer)
            elif approach == "fuzzy_match":
                met = met and await lookups.llm_fuzzy_match(self.judge, task.instruction, expected, answer)
            if not met:
                return _mismatch(approach, expected, answer)
        return ""

    async def _check_pages(self, task: Task, rules: ProgramHtml, page: Page) -> str:
        """Compare what the targets' locators find. Each starts where the one before has left the page.
        Return how the first one fails, "" if none does."""
        for target in rules.program_html:
            url = target.url
            if url.startswith("func:"):
                url = await lookups.call_helper(target.url, page, self.environ)
                # it begins where the agent has left the page, which may be anywhere
                if url is None or not self.is_on_sites(task, url):
                    return f"{target.url} found no page on the task's sites"
            if url != "last":
                if not self.is_on_sites(task, url):
                    fix = "mend it, or set their variables"
                    raise NoVerdict(f"{url} is on none of the task's sites: {fix}")
                await lookups.open_page(page, url)
            failure = await self._check_target(task, target, page)
            if failure:
                return failure
        return ""

    def is_on_sites(self, task: Task, url: str) -> bool:
        """Return whether rules may open an address: no file, and no server but the task's sites."""
        # a browser takes a backslash for /, where urlsplit sees no end of the host
        return is_address(url) and "\\" not in url and host_and_port(url) in self.places(task)

    async def _check_target(self, task: Task, target: PageTarget, page: Page) -> str:
        """Look until the page shows what is expected, or has had its time. The shop's server needs none."""
        approach, expected = target.required_contents.approaches[0]
        is_server = target.locator.startswith("func:shopping")
        ends = time.monotonic() + (0.0 if is_server else LATE_SECONDS)
        for script in target.prep_actions:
            await lookups.run_script(page, script)
        while True:
            if target.locator.startswith("func:"):
                text = await lookups.call_helper(target.locator, page, self.environ)
            else:
                text = await lookups.run_script(page, target.locator)
            met = text is not None and meets(approach, expected, text)
            if met or time.monotonic() >= ends:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if met and approach == "fuzzy_match":
            question = task.instruction
            met = await lookups.llm_fuzzy_match(
                self.judge, question, expected, text or "", lookups.PAGE_CHARS
            )
        place = f"{approach} of {target.locator or 'the page'} at {page.url}"
        return "" if met else _mismatch(place, expected, text)


def _mismatch(rule: str | None, expected: Any, text: str | None) -> str:
    return f"{rule or 'no note'} expected {expected!r:.120}, found {text!r:.120}"
