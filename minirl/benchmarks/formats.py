"""The task records of public benchmarks, turned into our own. A format is recognised by its fields:

confirmed_task, website, task_id, level            Online-Mind2Web as its authors publish it
task_name, website, task_id, benchmark_name, ...   WebGym's form, in which OpenWebRL has Online-Mind2Web
                                                   and DeepShop (appendix B)
ques, web, id, and difficulty, filter, sort, ...   DeepShop as its authors publish it
ques, web, id, web_name                            WebVoyager: the 643 tasks, and FARA's 595 of them
metadata: intent or task, start_url, task_id       OpenWebRL's own form for training and evaluation
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field

from minirl.benchmarks.fields import Addresses, Identifier, Level, Record, Text, Websites, read
from minirl.types import Fields, Task

DEEPSHOP_FIELDS = {"difficulty", "category", "attribute", "filter", "sort"}


def benchmark_task(record: Fields) -> Task:
    """Return the task in a benchmark's record. ValueError names the wrong field."""
    if "confirmed_task" in record or "task_description" in record:
        return read(OnlineMind2Web, record).task("online-mind2web")
    if "task_name" in record:
        webgym = read(WebGym, record)
        return webgym.task(webgym.benchmark)
    if "ques" in record or "web" in record:
        if DEEPSHOP_FIELDS.isdisjoint(record):
            return read(WebVoyager, record).task("webvoyager")
        return read(DeepShop, record).task("deepshop")
    if "metadata" in record:
        openwebrl = read(OpenWebRL, record).metadata
        return openwebrl.task(openwebrl.benchmark)
    needed = "'id', 'instruction' and 'start_url', or those of a benchmark"
    raise ValueError(f"unknown format: needed are the fields {needed} in minirl/benchmarks/formats.py")


# In one spelling: of Online_Mind2Web it is online-mind2web
BenchmarkName = Annotated[Text, AfterValidator(lambda name: re.sub("[^a-z0-9]+", "-", name.lower()))]


class PublicRecord(Record):
    """The fields of all these formats, under the names of most of them."""

    model_config = ConfigDict(extra="allow")

    name: Identifier = Field(alias="task_id")
    instruction: Text
    urls: Websites = Field(alias="website")
    site: Text | None = Field(None, alias="web_name")
    difficulty: Level = None

    def task(self, benchmark: str) -> Task:
        """Return the task, which has no goal: judges decide. Its meta has all that the record says beside."""
        start, *tabs = self.urls
        site = self.site or (urlsplit(start).hostname or "").removeprefix("www.")
        meta = dict(self.model_extra or {})
        meta |= {"benchmark": benchmark, "site": site, "difficulty": self.difficulty, "tabs": tabs}
        return Task(self.name, self.instruction, start, {}, {name: meta[name] for name in meta if meta[name]})


class DeepShop(PublicRecord):
    name: Identifier = Field(alias="id")
    instruction: Text = Field(alias="ques")
    urls: Addresses = Field(alias="web")


class WebVoyager(DeepShop):
    site: Text = Field(alias="web_name")


class WebGym(PublicRecord):
    instruction: Text = Field(alias="task_name")
    benchmark: BenchmarkName = Field(alias="benchmark_name")


class OnlineMind2Web(PublicRecord):
    # in its newer and its older edition
    instruction: Text = Field(validation_alias=AliasChoices("confirmed_task", "task_description"))
    difficulty: Level = Field(None, alias="level")


class OpenWebRLTask(WebGym):
    # for evaluation, and for training
    instruction: Text = Field(validation_alias=AliasChoices("intent", "task"))
    urls: Addresses = Field(alias="start_url")
    benchmark: BenchmarkName = Field("webgym", alias="benchmark_name")


class OpenWebRL(Record):
    metadata: OpenWebRLTask
