"""WebArena's tasks in an experiment: what they need, how their episodes begin, and their scores.

WebAgent-R1, section 4.1, whose scores are WebArena-Lite's. Deviations: nothing from a task is run as Python;
in place of a fixed pause of 3 s a page has that long to show what is wanted; an empty answer is never put to
the model; presses go on after one that fails; what a locator does not find is no text, not "None"; where a
site, a page or the model fails there is no score, but `NoVerdict`.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.page_goals import LATE_SECONDS, LOOK_SECONDS
from minirl.benchmarks.webarena import lookups, tasks
from minirl.benchmarks.webarena.login import log_in
from minirl.benchmarks.webarena.lookups import NoVerdict
from minirl.benchmarks.webarena.tasks import ProgramHtml, StringMatch, Target, UrlMatch, rules_of
from minirl.benchmarks.webarena.text_match import clean, meets, url_matches
from minirl.browser.access import is_address, place_of
from minirl.samplers.endpoint import Endpoint
from minirl.types import Score, Session, Task

Outcome = tuple[bool, str]  # whether the rules are met, and the reason, for people


@dataclass(frozen=True)
class WebArenaBenchmark(JudgedBenchmark):
    judged = False  # by rules; a model may be asked about an answer
    states: Path | None = None  # a folder of stored logins, see `log_in`
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
        return {place_of(address) for name, address in sites.items() if self.environ.get(name)}

    def _sites(self, task: Task) -> dict[str, str]:
        sites = tasks.sites_from_environment(self.environ)
        named = {site.upper() for site in task.meta["sites"]}
        words = json.dumps([task.start_url, task.goal, task.meta])
        return {name: address for name, address in sites.items() if name in named or address in words}

    def needs_judge(self, task: Task) -> bool:
        wanted = []
        for rules in rules_of(task.goal).values():
            if isinstance(rules, StringMatch):
                wanted += rules.reference_answers.approaches
            elif isinstance(rules, ProgramHtml):
                wanted += [target.required_contents.approaches[0] for target in rules.program_html]
        return any(rule == "fuzzy_match" for rule, _ in wanted)

    async def log_in(self, session: Session, task: Task) -> None:
        await log_in(session, task, self.environ, self.states)

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the product of all rules, 0 or 1. Raises NoVerdict where a rule can't be checked."""
        if self.judge is None and self.needs_judge(task):
            raise ValueError(f"the task {task.id} is for a language model to decide: give a judge endpoint")
        page, url, reasons = session.page, session.page.url, []
        for kind, rules in rules_of(task.goal).items():
            match rules:
                case StringMatch():
                    met, reason = await self._check_answer(task, rules, answer)
                case UrlMatch():  # of where the agent stopped: the rules for pages open others
                    met = url_matches(rules.reference_url, url, rules.url_note)
                    reason = _describe(met, rules.url_note or "no note", rules.reference_url, url)
                case ProgramHtml():
                    met, reason = await self._check_pages(task, rules, page)
            if not met:
                return Score(0.0, {"score": 0.0, "reason": f"{kind}: {reason}"})
            reasons.append(f"{kind}: {reason}")
        return Score(1.0, {"score": 1.0, "reason": "; ".join(reasons)})

    async def _check_answer(self, task: Task, rules: StringMatch, answer: str) -> Outcome:
        answer = clean(answer)
        for rule, wanted in rules.reference_answers.approaches:
            met = meets(rule, wanted, answer)
            if rule == "fuzzy_match" and wanted == "N/A":
                note = rules.string_note or ""
                met = met or await lookups.llm_ua_match(self.judge, task.instruction, note, answer)
            elif rule == "fuzzy_match":
                met = met and await lookups.llm_fuzzy_match(self.judge, task.instruction, wanted, answer)
            if not met:
                return False, _describe(False, rule, wanted, answer)
        return True, f"the answer {answer!r:.120} is right"

    async def _check_pages(self, task: Task, rules: ProgramHtml, page: Page) -> Outcome:
        """Compare what the targets' locators find. Each starts where the one before has left the page."""
        for target in rules.program_html:
            url, is_call = target.url, target.url.startswith("func:")
            if is_call:
                url = await lookups.call_helper(url, page, self.environ)
            if url != "last":
                if url is None or not self._is_own(task, url):
                    if is_call:  # it begins where the agent has left the page, which may be anywhere
                        return False, f"{target.url} found no page on the task's sites"
                    raise NoVerdict(f"{url} is on none of the task's sites: mend it, or set their variables")
                await lookups.open_page(page, url)
            met, why = await self._check_target(task, target, page)
            if not met:
                return False, why
        return True, f"all {len(rules.program_html)} pages show what is wanted"

    def _is_own(self, task: Task, url: str) -> bool:
        """Return whether rules may open an address: no file, and no server but the task's sites."""
        # a browser takes a backslash for /, where urlsplit sees no end of the host
        return is_address(url) and "\\" not in url and place_of(url) in self.places(task)

    async def _check_target(self, task: Task, target: Target, page: Page) -> Outcome:
        """Look until the page shows what is wanted, or has had its time. The shop's server needs none."""
        rule, wanted = target.required_contents.approaches[0]
        ends = time.monotonic() + (0.0 if target.locator.startswith("func:shopping") else LATE_SECONDS)
        for script in target.prep_actions:
            await lookups.run_script(page, script)
        while True:
            if target.locator.startswith("func:"):
                text = await lookups.call_helper(target.locator, page, self.environ)
            else:
                text = await lookups.run_script(page, target.locator)
            met = text is not None and meets(rule, wanted, text)
            if met or time.monotonic() >= ends:
                break
            await asyncio.sleep(LOOK_SECONDS)
        if met and rule == "fuzzy_match":
            shown, most = text or "", lookups.PAGE_CHARS
            met = await lookups.llm_fuzzy_match(self.judge, task.instruction, wanted, shown, most)
        return met, _describe(met, f"{rule} of {target.locator or 'the page'} at {page.url}", wanted, text)


def _describe(met: bool, rule: str, wanted: Any, found: str | None) -> str:
    return f"{rule}, found {found!r:.120}" if met else f"{rule} wanted {wanted!r:.120}, found {found!r:.120}"
