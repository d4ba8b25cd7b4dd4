"""The task records of public benchmarks, turned into our own. A format is recognised by its fields:

    confirmed_task, website, task_id, level            Online-Mind2Web as its authors publish it
    task_name, website, task_id, benchmark_name, ...   WebGym's form, in which OpenWebRL has Online-Mind2Web
                                                       and DeepShop (appendix B)
    ques, web, id, and difficulty, filter, sort, ...   DeepShop as its authors publish it
    ques, web, id, web_name                            WebVoyager: the 643 tasks, and FARA's 595 of them
    metadata: intent or task, start_url, task_id       OpenWebRL's own form for training and evaluation

Stands behind task_files.py, which reads the file. The tasks have no `goal`: judges decide on them. Their
`meta` has "benchmark", "site" (the benchmark's name for it, else the host), "tabs" for further start pages,
"difficulty", and unchanged the benchmark's other facts. Deviation: a bare host as WebGym's `website` gets
https:// in front, as a browser would do it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, model_validator

from minirl.benchmarks.fields import Addresses, Identifier, Level, Record, Text, Websites, read
from minirl.types import Task

WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP = "webvoyager", "online-mind2web", "deepshop"
LEVELS = ("easy", "medium", "hard")  # of Online-Mind2Web
DEEPSHOP_EXTRA = ("category", "attribute", "filter", "sort")  # what a product must fulfil
# Fields that go into a task's meta as they are
EXTRA = (*DEEPSHOP_EXTRA, "domain", "subdomain", "definite_answer", "evaluator_reference")
EXTRA += ("task_id_decomposed_from", "reference_length")
NOTHING = ("", "none", "**", "[]")


def task_of(record: Mapping[str, Any]) -> Task | None:
    """Return the task in a record of one of the formats above, None if it is in none of them. ValueError
    names the field that is wrong."""
    if "confirmed_task" in record or "task_description" in record:
        return read(OnlineMind2Web, record).task()
    if "task_name" in record:
        return read(WebGym, record).task()
    if "ques" in record or "web" in record:
        is_deepshop = not record.keys().isdisjoint(("difficulty", *DEEPSHOP_EXTRA))
        return read(DeepShop if is_deepshop else WebVoyager, record).task()
    return read(OpenWebRL, record).metadata.task() if "metadata" in record else None


def _benchmark_name(name: str) -> str:
    """Return our spelling of a benchmark's name: "Online_Mind2Web" and "online-mind2web" are one."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    known = {known.replace("-", ""): known for known in (WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP)}
    return known.get(words.replace("-", ""), words)


BenchmarkName = Annotated[Text, AfterValidator(_benchmark_name)]


class Format(Record):
    """The facts that all formats give about a task, each under its own names."""

    model_config = ConfigDict(extra="allow")

    name: Identifier
    instruction: Text
    urls: Addresses
    site: Text | None = Field(None, alias="web_name")
    difficulty: Level = None

    def task(self) -> Task:
        """Return the task. Its meta has no empty field: None, "", "None", "**", an empty list."""
        if self.benchmark == ONLINE_MIND2WEB and self.difficulty not in (None, *LEVELS):
            raise ValueError(f"the field 'difficulty' must be one of {', '.join(LEVELS)}")
        start, *tabs = self.urls
        site = self.site or (urlsplit(start).hostname or "").removeprefix("www.")
        more = {"difficulty": self.difficulty, "tabs": tabs}
        more |= {name: (self.model_extra or {}).get(name) for name in EXTRA}
        meta = {"benchmark": self.benchmark, "site": site}
        meta |= {name: value for name, value in more.items() if str(value).strip().lower() not in NOTHING}
        return Task(self.name, self.instruction, start, {}, meta)


class WebVoyager(Format):
    benchmark: ClassVar[str] = WEBVOYAGER
    name: Identifier = Field(alias="id")
    instruction: Text = Field(alias="ques")
    urls: Addresses = Field(alias="web")
    site: Text = Field(alias="web_name")


class DeepShop(WebVoyager):
    benchmark: ClassVar[str] = DEEPSHOP
    site: Text | None = Field(None, alias="web_name")


class OnlineMind2Web(Format):
    """Its older edition has `task_description` in place of `confirmed_task`."""

    benchmark: ClassVar[str] = ONLINE_MIND2WEB
    name: Identifier = Field(alias="task_id")
    instruction: Text = Field(validation_alias=AliasChoices("confirmed_task", "task_description"))
    urls: Websites = Field(alias="website")
    difficulty: Literal["easy", "medium", "hard"] | None = Field(None, alias="level")


class WebGym(Format):
    """A task of WebGym, or of another benchmark in its form."""

    name: Identifier = Field(alias="task_id")
    instruction: Text = Field(alias="task_name")
    urls: Websites = Field(alias="website")
    benchmark: BenchmarkName = Field(alias="benchmark_name")

    @model_validator(mode="before")
    @classmethod
    def _with_length(cls, record: Any) -> Any:
        """Take the reference length from WebGym's own `metadata`, where it stands in some files."""
        metadata = record.get("metadata") if isinstance(record, dict) else None
        if isinstance(metadata, dict) and record.get("reference_length") is None:
            return {**record, "reference_length": metadata.get("reference_length")}
        return record


class OpenWebRLTask(WebGym):
    """The training set calls the instruction `task`, and names no benchmark."""

    urls: Addresses = Field(alias="start_url")
    instruction: Text = Field(validation_alias=AliasChoices("intent", "task"))
    benchmark: BenchmarkName = Field("webgym", alias="benchmark_name")


class OpenWebRL(Record):
    metadata: OpenWebRLTask
