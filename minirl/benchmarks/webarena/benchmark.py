"""WebArena's tasks in an experiment: what they need, how their episodes begin, and their scores.

WebAgent-R1, section 3.1 and appendix A, whose scores are WebArena-Lite's. Deviations:

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
from dataclasses import dataclass
from typing import Any

from minirl.benchmarks.fields import read
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.webarena import lookups
from minirl.benchmarks.webarena.login import log_in
from minirl.benchmarks.webarena.tasks import PageTarget, Rules, sites_from_environment
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

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the task's own number: many tasks share an answer, as "2", and some their wording."""
        return {("webarena", task.id)}

    def missing(self, task: Task) -> list[str]:
        return sorted(name for name in _sites(task) if not os.environ.get(name))

    def places(self, task: Task) -> set[tuple[str, int]]:
        # the browser's guard opens these, which may be private, and nothing else that tasks name
        return {host_and_port(address) for name, address in _sites(task).items() if os.environ.get(name)}

    def needs_judge(self, task: Task) -> bool:
        return '"fuzzy_match"' in json.dumps(task.goal)

    async def log_in(self, session: Session, task: Task) -> bool:
        return await log_in(session, task)

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the product of all rules, 0 or 1. Raises NoVerdict where a rule can't be checked."""
        last_url = session.page.url  # where the agent stopped: the rules for pages open others
        rules = read(Rules, task.goal)
        for kind in rules.eval_types:
            match kind:
                case "string_match":
                    failure = await self._check_answer(task, rules, answer)
                case "url_match":
                    expected = rules.reference_url or ""
                    met = url_matches(expected, last_url, rules.url_note)
                    failure = "" if met else _mismatch(rules.url_note, expected, last_url)
                case "program_html":
                    failure = await self._check_pages(task, rules, session)
            if failure:
                return Score(0.0, {"score": 0.0, "reason": f"{kind}: {failure}"})
        return Score(1.0, {"score": 1.0, "reason": "all rules are met"})

    async def _check_answer(self, task: Task, rules: Rules, answer: str) -> str:
        """Return how the answer fails, "" if it is right."""
        assert rules.reference_answers
        answer = clean(answer)
        for approach, expected in rules.reference_answers.items():
            met = meets(approach, expected, answer)
            if approach == "fuzzy_match" and expected == "N/A":
                note = rules.string_note or ""
                met = met or await lookups.llm_ua_match(self.judge, task.instruction, note, answer)
            elif approach == "fuzzy_match":
                met = met and await lookups.llm_fuzzy_match(self.judge, task.instruction, expected, answer)
            if not met:
                return _mismatch(approach, expected, answer)
        return ""

    async def _check_pages(self, task: Task, rules: Rules, session: Session) -> str:
        """Compare what the targets' locators find. Each starts where the one before has left the page.
        Return how the first one fails, "" if none does."""
        for target in rules.program_html:
            url = target.url
            if url.startswith("func:"):
                url = await lookups.call_helper(url, session)
                # it begins where the agent has left the page, which may be none of a site's
                if url is None or not is_address(url):
                    return f"{target.url} found no page"
            if url != "last":
                await session.start(url)
            failure = await self._check_target(task, target, session)
            if failure:
                return failure
        return ""

    async def _check_target(self, task: Task, target: PageTarget, session: Session) -> str:
        """Look until the page shows what is expected, or has had its time."""
        approach, expected = next(iter(target.required_contents.items()))
        ends = time.monotonic() + LATE_SECONDS
        for script in target.prep_actions:
            await lookups.run_script(session, script)
        while True:
            if target.locator.startswith("func:"):
                text = await lookups.call_helper(target.locator, session)
            else:
                text = await lookups.run_script(session, target.locator)
            met = text is not None and meets(approach, expected, text)
            if met or time.monotonic() >= ends:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if met and approach == "fuzzy_match":
            question = task.instruction
            met = await lookups.llm_fuzzy_match(
                self.judge, question, expected, text or "", lookups.PAGE_CHARS
            )
        place = f"{approach} of {target.locator or 'the page'} at {session.page.url}"
        return "" if met else _mismatch(place, expected, text)


def _sites(task: Task) -> dict[str, str]:
    """Return the addresses of the sites that a task is on, or that its texts name."""
    listed = {site.upper() for site in task.meta["sites"]}
    texts = json.dumps([task.start_url, task.goal, task.meta])
    sites = sites_from_environment()
    return {name: address for name, address in sites.items() if name in listed or address in texts}


def _mismatch(rule: str | None, expected: Any, text: str | None) -> str:
    return f"{rule or 'no note'} expected {expected!r:.120}, found {text!r:.120}"
