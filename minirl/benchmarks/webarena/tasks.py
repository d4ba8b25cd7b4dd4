"""WebArena and WebArena-Lite: their sites' addresses, and their records as tasks with rules.

    record --webarena_task--> Task;   its goal --rules_of--> StringMatch, UrlMatch, ProgramHtml

WebAgent-R1, section 4.1, and the public formats. Addresses come from WebArena's own variables (SITES;
SHOPPING_ADMIN ends in /admin). Without them records can be read, but not run. Deviations:

1. A record is checked when it is read, not when an episode is judged.
2. A `must_include` that is a string is one phrase, where the released evaluator takes its letters one by one
   (in three training tasks).
"""

import json
import os
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
ADDRESS_HELPERS = ("reddit_get_post_url", "shopping_get_latest_order_url")


def sites_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the sites' addresses by variable, http://shopping.webarena.test and so on if it is not set."""
    sites = {}
    for name in SITES:
        address = environ.get(name, "").rstrip("/")
        if not address:
            address = f"http://{name.lower().replace('_', '-')}.webarena.test"
        if not is_address(address):
            raise ValueError(f"the variable {name} is {address!r}; it must be like http://host:port")
        sites[name] = address
    return sites


def _are_addresses(text: str) -> bool:
    return all(is_address(url) for url in text.split(OR))


def _is_page(url: str) -> bool:
    if url.startswith("func:"):
        name, _ = read_helper(url)
        return name in ADDRESS_HELPERS
    return url == "last" or is_address(url)


def _phrase_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) and value.strip() else value


Site = Literal["shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia", "homepage"]
Phrases = Annotated[Texts, BeforeValidator(_phrase_as_list)]
References = Annotated[str, must(_are_addresses, "be http addresses")]
PageAddress = Annotated[
    str, must(_is_page, "be an http address, last or a helper's call that gives an address")
]
Locator = Annotated[str, AfterValidator(check_locator)]
Press = Annotated[str, AfterValidator(check_press)]


class ExpectedText(Record):
    exact_match: str | None = None
    must_include: Phrases | None = None
    fuzzy_match: Texts | None = None

    @property
    def approaches(self) -> list[tuple[str, Any]]:
        """Return name and expected value of each approach that is given."""
        return [(approach, expected) for approach, expected in self if expected is not None]

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.approaches:
            raise ValueError("must have one of exact_match, must_include, fuzzy_match")
        return self


class ReferenceAnswers(ExpectedText):
    model_config = ConfigDict(extra="forbid")

    exact_match: Text | None = None
    fuzzy_match: Texts | Literal["N/A"] | None = None  # N/A: the task can't be done


class StringMatch(Record):
    reference_answers: ReferenceAnswers
    string_note: str | None = None  # why a task can't be done


class UrlMatch(Record):
    reference_url: References  # where the agent must have stopped
    url_note: Literal["EXACT", "GOLD in PRED"] | None = None


class PageTarget(Record):
    url: PageAddress  # "last": where the page is
    locator: Locator
    prep_actions: list[Press] = []
    required_contents: ExpectedText  # only the first approach counts


class ProgramHtml(Record):
    program_html: Annotated[list[PageTarget], Field(min_length=1)]


RULES = {"string_match": StringMatch, "url_match": UrlMatch, "program_html": ProgramHtml}


class EvalTypes(Record):
    eval_types: Annotated[list[Literal["string_match", "url_match", "program_html"]], Field(min_length=1)]


def rules_of(goal: Mapping[str, Any]) -> dict[str, StringMatch | UrlMatch | ProgramHtml]:
    """Return the rules of a task's goal by their kind. ValueError names what is malformed."""
    kinds = read(EvalTypes, goal).eval_types
    return {kind: read(RULES[kind], goal) for kind in kinds}


class WebArenaRecord(Record):
    task_id: int
    sites: Annotated[list[Site], Field(min_length=1)]
    intent: Text
    start_url: Addresses
    require_login: bool
    storage_state: str | None = None  # the file of a stored login, like .auth/gitlab_state.json
    intent_template_id: int
    old_task_id: int | None = None  # only in WebArena-Lite
    eval: dict[str, Any]


def is_webarena(task: Task) -> bool:
    return task.goal.get("kind") == "webarena"


def webarena_task(record: Mapping[str, Any], sites: Mapping[str, str]) -> Task:
    """Return a record as a task, with the sites' addresses in it. ValueError names what is malformed."""
    text = json.dumps(record)
    for name, address in sites.items():
        text = text.replace(f"__{name}__", address)
    fields = read(WebArenaRecord, json.loads(text))
    rules_of(fields.eval)
    start, *tabs = fields.start_url
    if fields.old_task_id is None:
        benchmark = "webarena"
        number = fields.task_id
    else:
        benchmark = "webarena-lite"
        number = fields.old_task_id  # its two files share their task_ids
    meta = {
        "benchmark": benchmark,
        "sites": fields.sites,
        "site": fields.sites[0] if len(fields.sites) == 1 else "multi-site",
        "tabs": tabs,
        "require_login": fields.require_login,
        "storage_state": PurePosixPath(fields.storage_state or "").name,
        "old_task_id": fields.old_task_id,
        "template": fields.intent_template_id,
    }
    return Task(f"webarena-{number}", fields.intent, start, fields.eval | {"kind": "webarena"}, meta)
