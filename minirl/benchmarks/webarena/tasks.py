"""WebArena and WebArena-Lite: their sites' addresses, and their records as tasks with rules.

    record --task_of--> Task;   its goal --rules_of--> StringMatch, UrlMatch, ProgramHtml

Stands beneath minirl/benchmarks/task_files.py, which finds the records, and benchmark.py, which runs the
tasks. WebAgent-R1, section 4.1, and the public benchmarks' formats. Deviation: every record is checked when
it is read, not when an episode is judged. The public files hold malformed ones: some give `must_include` a
string, where the released evaluator would take its letters one by one.
The addresses come from the variables in SITES, which WebArena uses too; SHOPPING_ADMIN ends in /admin.
Without them records can be read, but not run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from minirl.benchmarks.fields import Addresses, Record, Text, Texts, read
from minirl.benchmarks.webarena.locators import check_locator, check_press, read_helper
from minirl.benchmarks.webarena.text_match import OR
from minirl.browser.access import is_address
from minirl.types import Task

SITES = ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE")
PLACEHOLDER = re.compile(r"__([A-Z_]+?)__")
STATE_FILE = re.compile(r"[a-z_]+(\.[a-z_]+)*_state\.json")
ADDRESS_HELPERS = ("reddit_get_post_url", "shopping_get_latest_order_url")


def sites_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the sites' addresses by variable, without a slash at the end. A site whose variable is not set
    gets one that leads nowhere, http://shopping.webarena.test. ValueError names what is no address."""
    sites = {}
    for name in SITES:
        nowhere = f"http://{name.lower().replace('_', '-')}.webarena.test"
        sites[name] = environ.get(name, "").rstrip("/") or nowhere
        if not is_address(sites[name]):
            raise ValueError(f"the variable {name} is {sites[name]!r}; it must be like http://host:port")
    return sites


class Wanted(Record):
    """What a text must be like, by approach."""

    exact_match: str | None = None
    must_include: Texts | None = None
    fuzzy_match: Texts | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if all(wanted is None for _, wanted in self):
            raise ValueError("must have one of exact_match, must_include, fuzzy_match")
        return self

    @property
    def first(self) -> tuple[str, Any]:
        """Return the first approach, and what it wants: of a page's contents only that counts."""
        return next((approach, wanted) for approach, wanted in self if wanted is not None)


class ReferenceAnswers(Wanted):
    model_config = ConfigDict(extra="forbid")

    exact_match: Text | None = None
    fuzzy_match: Texts | Literal["N/A"] | None = None  # N/A: the task can't be done


class StringMatch(Record):
    """Rules for the answer; all of them must be met."""

    reference_answers: ReferenceAnswers
    string_note: str | None = None  # why a task can't be done

    @model_validator(mode="after")
    def _has_a_note(self) -> Self:
        if self.reference_answers.fuzzy_match == "N/A" and not (self.string_note or "").strip():
            raise ValueError("the field 'string_note' is missing or empty, which fuzzy_match N/A needs")
        return self


def _references(urls: str) -> str:
    if wrong := [url for url in urls.split(OR) if not is_address(url)]:
        raise ValueError(f"must be an http address, not {wrong[0][:80]!r}, in")
    return urls


class UrlMatch(Record):
    """A rule for the address on which the agent stopped; `reference_url` may hold alternatives."""

    reference_url: Annotated[str, AfterValidator(_references)]
    url_note: Literal["EXACT", "GOLD in PRED"] | None = None


def _target_url(url: str) -> str:
    if url.startswith("func:"):
        if read_helper(url).name not in ADDRESS_HELPERS:
            raise ValueError("calls a helper that gives no address")
    elif url != "last" and not is_address(url):
        raise ValueError("must be an http address, last or a helper's call")
    return url


class Target(Record):
    url: Annotated[str, AfterValidator(_target_url)]  # "last": where the page is
    locator: Annotated[str, AfterValidator(check_locator)]
    prep_actions: list[Annotated[str, AfterValidator(check_press)]] = []
    required_contents: Wanted


class ProgramHtml(Record):
    """Rules for pages, in their order."""

    program_html: Annotated[list[Target], Field(min_length=1)]


RULES = {"string_match": StringMatch, "url_match": UrlMatch, "program_html": ProgramHtml}


class EvalTypes(Record):
    eval_types: Annotated[list[Literal[*RULES]], Field(min_length=1)]


def rules_of(goal: Mapping[str, Any]) -> dict[str, StringMatch | UrlMatch | ProgramHtml]:
    """Return the rules of a task's goal by their kind. ValueError names what is malformed."""
    return {kind: read(RULES[kind], goal) for kind in read(EvalTypes, goal).eval_types}


def _site(name: str) -> str:
    if name.upper() not in SITES:
        raise ValueError(f"must be one of {', '.join(SITES).lower()}")
    return name


def _state_file(path: str) -> str:
    name = PurePosixPath(path).name
    if path and not STATE_FILE.fullmatch(name):
        raise ValueError("must be null or a path like .auth/gitlab_state.json")
    return name


class WebArenaRecord(Record):
    task_id: int
    sites: Annotated[list[Annotated[str, AfterValidator(_site)]], Field(min_length=1)]
    intent: Text
    start_url: Addresses
    require_login: bool
    storage_state: Annotated[str, AfterValidator(_state_file)] | None = None
    intent_template_id: int
    old_task_id: int | None = None  # only in WebArena-Lite
    eval: dict[str, Any]


class Meta(Record):
    """What a task of WebArena has in its `meta`."""

    sites: list[str]
    tabs: list[str]
    mended: list[str]
    require_login: bool
    storage_state: str


def is_webarena(task: Task) -> bool:
    return task.goal.get("kind") == "webarena"


def task_of(record: Mapping[str, Any], sites: Mapping[str, str]) -> Task:
    """Return a record as a task, with the sites' addresses in it. ValueError names what is malformed."""
    local = {name: _resolved(record[name], sites) for name in ("start_url", "eval") if name in record}
    found = read(WebArenaRecord, {**record, **local})
    mended = list(_mend(found.eval))
    rules_of(found.eval)
    start, *tabs = found.start_url
    meta = {
        "benchmark": "webarena" if found.old_task_id is None else "webarena-lite",
        "sites": found.sites,
        "site": found.sites[0] if len(found.sites) == 1 else "multi-site",
        "tabs": tabs,
        "require_login": found.require_login,
        "storage_state": found.storage_state or "",
        "old_task_id": found.old_task_id,
        "template": found.intent_template_id,
        "mended": mended,
    }
    # the two files of Lite share their task_ids
    number = found.task_id if found.old_task_id is None else found.old_task_id
    return Task(f"webarena-{number}", found.intent, start, found.eval | {"kind": "webarena"}, meta)


def _resolved(value: Any, sites: Mapping[str, str]) -> Any:
    """Return a copy with every placeholder replaced, as __GITLAB__."""
    text = PLACEHOLDER.sub(lambda match: json.dumps(sites.get(match[1], match[0]))[1:-1], json.dumps(value))
    return json.loads(text)


def _mend(part: Any, place: str = "") -> Iterator[str]:
    """Put every phrase that stands where a list of phrases must into one, and yield a line for each."""
    if isinstance(part, list):
        for i, item in enumerate(part):
            yield from _mend(item, f"{place}[{i}]")
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from _mend(value, f"{place}.{key}".removeprefix("."))
        if isinstance(phrase := part.get("must_include"), str) and phrase.strip():
            part["must_include"] = [phrase]
            yield f"{place}: must_include should be a list of phrases, and is read as one"
