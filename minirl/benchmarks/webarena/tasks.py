"""WebArena and WebArena-Lite: their sites' addresses, and their records as tasks with rules.

    record --task_of--> Task;   its goal --rules_of--> StringMatch, UrlMatch, ProgramHtml

WebAgent-R1, section 4.1, and the public formats. Deviations: a record is checked when it is read, not when an
episode is judged; a `must_include` that is a string is one phrase, where the released evaluator takes its
letters one by one (in three training tasks). Addresses come from WebArena's own variables (SITES;
SHOPPING_ADMIN ends in /admin). Without them records can be read, but not run.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from minirl.benchmarks.fields import Addresses, Record, Text, Texts, must, read
from minirl.benchmarks.webarena.locators import check_locator, check_press, read_helper
from minirl.benchmarks.webarena.text_match import OR
from minirl.browser.access import is_address
from minirl.types import Task

SITES = ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE")
PLACEHOLDER = re.compile(r"__([A-Z_]+?)__")
STATE_NAME = r"[a-z_]{1,80}(\.[a-z_]{1,80})*_state\.json"
STATE_FILE = re.compile(f"((.*/)?{STATE_NAME})?")
HELPERS = ("reddit_get_post_url", "shopping_get_latest_order_url")

HAS_ONE = must(lambda wanted: wanted.approaches, "have one of exact_match, must_include, fuzzy_match")
SITE = must(lambda name: name.upper() in SITES, f"be one of {', '.join(SITES).lower()}")
A_LIST = BeforeValidator(lambda value: [value] if isinstance(value, str) and value.strip() else value)
Phrases = Annotated[Texts, A_LIST]
References = Annotated[str, must(lambda urls: all(map(is_address, urls.split(OR))), "be http addresses")]
StateFile = Annotated[str, must(STATE_FILE.fullmatch, "be null or a path like .auth/gitlab_state.json")]


def sites_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the sites' addresses by variable, http://shopping.webarena.test and so on if it is not set."""
    sites = {}
    for name in SITES:
        nowhere = f"http://{name.lower().replace('_', '-')}.webarena.test"
        sites[name] = environ.get(name, "").rstrip("/") or nowhere
        if not is_address(sites[name]):
            raise ValueError(f"the variable {name} is {sites[name]!r}; it must be like http://host:port")
    return sites


def _is_page(url: str) -> bool:
    return url == "last" or (read_helper(url)[0] in HELPERS if url.startswith("func:") else is_address(url))


class Wanted(Record):
    exact_match: str | None = None
    must_include: Phrases | None = None
    fuzzy_match: Texts | None = None

    @property
    def approaches(self) -> list[tuple[str, Any]]:
        return [(approach, wanted) for approach, wanted in self if wanted is not None]


class ReferenceAnswers(Wanted):
    model_config = ConfigDict(extra="forbid")

    exact_match: Text | None = None
    fuzzy_match: Texts | Literal["N/A"] | None = None  # N/A: the task can't be done


class StringMatch(Record):
    reference_answers: Annotated[ReferenceAnswers, HAS_ONE]
    string_note: str | None = None  # why a task can't be done

    @model_validator(mode="after")
    def _has_a_note(self) -> Self:
        if self.reference_answers.fuzzy_match == "N/A" and not (self.string_note or "").strip():
            raise ValueError("the field 'string_note' is missing or empty, which fuzzy_match N/A needs")
        return self


class UrlMatch(Record):
    reference_url: References  # where the agent must have stopped
    url_note: Literal["EXACT", "GOLD in PRED"] | None = None


class Target(Record):
    # "last": where the page is
    url: Annotated[str, must(_is_page, "be an http address, last or a helper's call that gives an address")]
    locator: Annotated[str, AfterValidator(check_locator)]
    prep_actions: list[Annotated[str, AfterValidator(check_press)]] = []
    required_contents: Annotated[Wanted, HAS_ONE]  # only the first approach counts


class ProgramHtml(Record):
    program_html: Annotated[list[Target], Field(min_length=1)]


RULES = {"string_match": StringMatch, "url_match": UrlMatch, "program_html": ProgramHtml}


class EvalTypes(Record):
    eval_types: Annotated[list[Literal["string_match", "url_match", "program_html"]], Field(min_length=1)]


def rules_of(goal: Mapping[str, Any]) -> dict[str, StringMatch | UrlMatch | ProgramHtml]:
    """Return the rules of a task's goal by their kind. ValueError names what is malformed."""
    return {kind: read(RULES[kind], goal) for kind in read(EvalTypes, goal).eval_types}


class WebArenaRecord(Record):
    task_id: int
    sites: Annotated[list[Annotated[str, SITE]], Field(min_length=1)]
    intent: Text
    start_url: Addresses
    require_login: bool
    storage_state: StateFile | None = None
    intent_template_id: int
    old_task_id: int | None = None  # only in WebArena-Lite
    eval: dict[str, Any]


class Meta(Record):
    sites: list[str]
    tabs: list[str]
    require_login: bool
    storage_state: Annotated[str, must(re.compile(f"({STATE_NAME})?").fullmatch, "be a file's name alone")]


def is_webarena(task: Task) -> bool:
    return task.goal.get("kind") == "webarena"


def task_of(record: Mapping[str, Any], sites: Mapping[str, str]) -> Task:
    """Return a record as a task, with the sites' addresses in it. ValueError names what is malformed."""
    local = json.dumps({name: record[name] for name in ("start_url", "eval") if name in record})
    local = PLACEHOLDER.sub(lambda match: json.dumps(sites.get(match[1], match[0]))[1:-1], local)
    found = read(WebArenaRecord, {**record, **json.loads(local)})
    rules_of(found.eval)
    start, *tabs = found.start_url
    meta = {
        "benchmark": "webarena" if found.old_task_id is None else "webarena-lite",
        "sites": found.sites,
        "site": found.sites[0] if len(found.sites) == 1 else "multi-site",
        "tabs": tabs,
        "require_login": found.require_login,
        "storage_state": PurePosixPath(found.storage_state or "").name,
        "old_task_id": found.old_task_id,
        "template": found.intent_template_id,
    }
    # the two files of Lite share their task_ids
    number = found.task_id if found.old_task_id is None else found.old_task_id
    return Task(f"webarena-{number}", found.intent, start, found.eval | {"kind": "webarena"}, meta)
