"""WebArena and WebArena-Lite: their sites' addresses, and their records as tasks with rules.

    record --webarena_task--> Task;   its goal --read--> Rules

WebAgent-R1, section 3.1 and appendix A, and the public formats. Addresses come from WebArena's own variables
(SITES; SHOPPING_ADMIN ends in /admin). Without them records can be read, but not run. Deviations:

1. A record is checked when it is read, not when an episode is judged.
2. A `must_include` that is a string is one phrase, where the released evaluator takes its letters one by one
   (in three training tasks).
"""

import json
import os
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from minirl.benchmarks.fields import Addresses, Record, Text, Texts, read
from minirl.browser.access import is_address
from minirl.types import Fields, Json, Task

SITES = ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE")


def sites_from_environment() -> dict[str, str]:
    """Return the sites' addresses by variable, http://shopping.webarena.test and so on if it is not set."""
    sites = {}
    for name in SITES:
        address = os.environ.get(name, "").rstrip("/")
        if not address:
            address = f"http://{name.lower().replace('_', '-')}.webarena.test"
        if not is_address(address):
            raise ValueError(f"the variable {name} is {address!r}; it must be like http://host:port")
        sites[name] = address
    return sites


Approach = Literal["exact_match", "must_include", "fuzzy_match"]
Phrase = Annotated[str, Field(pattern=r"(?s)^\s*[^\s|](.*[^\s|])?\s*$")]  # not blank on a side of |OR|
ExpectedText = dict[Approach, Phrase | Annotated[list[Phrase], Field(min_length=1)]]


class PageTarget(Record):
    url: Text  # "last": where the page is; "func:...": a helper's call
    locator: str  # JavaScript for the page, a helper's call, or "" for all of its HTML
    prep_actions: list[str] = []
    required_contents: Annotated[ExpectedText, Field(min_length=1)]  # only the first approach counts


class Rules(Record):
    """How an episode is scored. Each kind in `eval_types` has its fields, the rest are empty."""

    eval_types: Annotated[list[Literal["string_match", "url_match", "program_html"]], Field(min_length=1)]
    reference_answers: ExpectedText | None = None  # all count; fuzzy_match "N/A": the task can't be done
    string_note: str | None = None  # why a task can't be done
    reference_url: str | None = None  # where the agent must have stopped
    url_note: str | None = None  # EXACT, or GOLD in PRED
    program_html: list[PageTarget] = []

    @model_validator(mode="after")
    def has_a_rule_of_each_kind(self) -> "Rules":
        rules = {
            "string_match": self.reference_answers,
            "url_match": self.reference_url,
            "program_html": self.program_html,
        }
        for kind in self.eval_types:
            if not rules[kind]:
                raise ValueError(f"{kind} has no rule")
        return self


class WebArenaRecord(Record):
    task_id: int
    sites: Texts
    intent: Text
    start_url: Addresses
    require_login: bool
    storage_state: str | None = None  # the file of a stored login, like .auth/gitlab_state.json
    old_task_id: int | None = None  # only in WebArena-Lite
    eval: Json


def with_addresses(record: Fields) -> Json:
    """Return a record with the sites' addresses in place of their names, as __SHOPPING__."""
    text = json.dumps(record)
    for name, address in sites_from_environment().items():
        text = text.replace(f"__{name}__", address)
    return json.loads(text)


def is_webarena(task: Task) -> bool:
    return task.goal.get("kind") == "webarena"


def meta_of(
    benchmark: str, sites: list[str], tabs: list[str], require_login: bool = True, storage_state: str = ""
) -> Json:
    """Return what a task's meta says of its sites and of the logins that they take."""
    return {
        "benchmark": benchmark,
        "sites": sites,
        "site": sites[0] if len(sites) == 1 else "multi-site",
        "tabs": tabs,
        "require_login": require_login,
        "storage_state": storage_state,
    }


def webarena_task(record: Fields) -> Task:
    """Return a record as a task, with the sites' addresses in it. ValueError names what is malformed."""
    fields = read(WebArenaRecord, with_addresses(record))
    read(Rules, fields.eval)
    start, *tabs = fields.start_url
    if fields.old_task_id is None:
        benchmark = "webarena"
        number = fields.task_id
    else:
        benchmark = "webarena-lite"
        number = fields.old_task_id  # its two files share their task_ids
    storage_state = PurePosixPath(fields.storage_state or "").name
    meta = meta_of(benchmark, fields.sites, tabs, fields.require_login, storage_state)
    return Task(f"webarena-{number}", fields.intent, start, fields.eval | {"kind": "webarena"}, meta)
