"""The task records of public benchmarks, turned into our own.

Stands behind minirl/benchmarks/task_files.py, which reads the file and hands over its records one by
one. A format is told by
its fields, never by a file's name:

    confirmed_task, website, task_id, level            Online-Mind2Web as its authors publish it
    task_name, website, task_id, benchmark_name, ...   WebGym's form, in which OpenWebRL has Online-Mind2Web
                                                       and DeepShop (appendix B)
    ques, web, id, and difficulty, filter, sort, ...   DeepShop as its authors publish it
    ques, web, id, web_name                            WebVoyager: the 643 tasks, and FARA's 595 of them
    metadata: intent or task, start_url, task_id       OpenWebRL's own form for training and evaluation

What comes out has no `goal`: judges decide on these tasks. `meta` has "benchmark", "site" (the benchmark's
name for it, else the host), "difficulty" where there is one, "tabs" for further start pages, and what else
the benchmark says about a task, unchanged. WebArena has rules of its own:
minirl/benchmarks/webarena/tasks.py.

Deviation: WebGym's `website` may be a bare host, which gets https:// in front, as a browser would do it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from minirl.browser.access import is_address
from minirl.types import Task

AND = " |AND| "  # between the addresses of several tabs
WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP = "webvoyager", "online-mind2web", "deepshop"
LEVELS = ("easy", "medium", "hard")  # of Online-Mind2Web

DEEPSHOP_EXTRA = ("category", "attribute", "filter", "sort")
WEBGYM_EXTRA = (
    "domain",
    "subdomain",
    "definite_answer",
    "evaluator_reference",
    "task_id_decomposed_from",
    "reference_length",
)
BARE_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/\S*)?", re.IGNORECASE)


def task_of(record: Mapping[str, Any]) -> Task | None:
    """The task in a record of one of the formats above; None if it is in none of them.
    ValueError names the field that is wrong and what it must be."""
    if "confirmed_task" in record or "task_description" in record:
        return _online_mind2web(record)
    if "task_name" in record:
        return _webgym(record)
    if "ques" in record or "web" in record:
        is_deepshop = any(name in record for name in ("difficulty", *DEEPSHOP_EXTRA))
        return _deepshop(record) if is_deepshop else _webvoyager(record)
    if "metadata" in record:
        return _openwebrl(record)
    return None


# ---- Formats ---------------------------------------------------------------------------------------


def _webvoyager(record: Mapping[str, Any]) -> Task:
    url, tabs = _addresses(record, "web")
    meta = _meta(WEBVOYAGER, _text(record, "web_name"), tabs=tabs)
    return Task(_name(record, "id"), _text(record, "ques"), url, meta=meta)


def _deepshop(record: Mapping[str, Any]) -> Task:
    """`attribute`, `filter` and `sort` say what a product must fulfil; None, "None" and "**" are nothing."""
    url, tabs = _addresses(record, "web")
    site = _text(record, "web_name") if record.get("web_name") is not None else _host(url)
    extra = {name: record.get(name) for name in DEEPSHOP_EXTRA}
    meta = _meta(DEEPSHOP, site, difficulty=_difficulty(record, "difficulty"), tabs=tabs, **extra)
    return Task(_name(record, "id"), _text(record, "ques"), url, meta=meta)


def _online_mind2web(record: Mapping[str, Any]) -> Task:
    words = "confirmed_task" if "confirmed_task" in record else "task_description"  # an older edition's name
    url, tabs = _addresses(record, "website")
    level = _difficulty(record, "level", LEVELS)
    length = record.get("reference_length")
    meta = _meta(ONLINE_MIND2WEB, _host(url), difficulty=level, tabs=tabs, reference_length=length)
    return Task(_name(record, "task_id"), _text(record, words), url, meta=meta)


def _webgym(record: Mapping[str, Any]) -> Task:
    url, tabs = _addresses(record, "website")
    benchmark = _benchmark(_text(record, "benchmark_name"))
    levels = LEVELS if benchmark == ONLINE_MIND2WEB else ()
    extra = {name: record.get(name) for name in WEBGYM_EXTRA}
    if extra["reference_length"] is None and isinstance(record.get("metadata"), Mapping):
        extra["reference_length"] = record["metadata"].get("reference_length")
    difficulty = _difficulty(record, "difficulty", levels)
    meta = _meta(benchmark, _host(url), difficulty=difficulty, tabs=tabs, **extra)
    return Task(_name(record, "task_id"), _text(record, "task_name"), url, meta=meta)


def _openwebrl(record: Mapping[str, Any]) -> Task:
    """Everything is in `metadata`; the training set calls the instruction `task`, and names no benchmark."""
    if not isinstance(record["metadata"], Mapping):
        raise ValueError("the field 'metadata' must be an object")
    inner = {f"metadata.{name}": value for name, value in record["metadata"].items()}
    words = "metadata.intent" if "metadata.intent" in inner else "metadata.task"
    url, tabs = _addresses(inner, "metadata.start_url")
    benchmark = "webgym"
    if inner.get("metadata.benchmark_name") is not None:
        benchmark = _benchmark(_text(inner, "metadata.benchmark_name"))
    levels = LEVELS if benchmark == ONLINE_MIND2WEB else ()
    difficulty = _difficulty(inner, "metadata.difficulty", levels)
    extra = {name: inner.get(f"metadata.{name}") for name in WEBGYM_EXTRA}
    meta = _meta(benchmark, _host(url), difficulty=difficulty, tabs=tabs, **extra)
    return Task(_name(inner, "metadata.task_id"), _text(inner, words), url, meta=meta)


# ---- Fields ----------------------------------------------------------------------------------------


def _text(record: Mapping[str, Any], name: str) -> str:
    if name not in record:
        raise ValueError(f"the field {name!r} is missing")
    if not isinstance(record[name], str) or not record[name].strip():
        raise ValueError(f"the field {name!r} must be a string, and not empty")
    return record[name]


def _name(record: Mapping[str, Any], name: str) -> str:
    """An id: a string or a whole number."""
    value = record.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if name in record and not isinstance(value, str):
        raise ValueError(f"the field {name!r} must be a string or a whole number")
    return _text(record, name)


def _addresses(record: Mapping[str, Any], name: str) -> tuple[str, list[str]]:
    """The first start page, and those of further tabs."""
    urls = [url.strip() for url in _text(record, name).split(AND)]
    if name == "website":
        urls = ["https://" + url if BARE_HOST.fullmatch(url) else url for url in urls]
    for url in urls:
        if not is_address(url):
            raise ValueError(
                f"the field {name!r} must be an address like http://host/ or https://host/, not {url[:80]!r}"
            )
    return urls[0], urls[1:]


def _difficulty(record: Mapping[str, Any], name: str, levels: tuple[str, ...] = ()) -> str | int | None:
    """A word or a whole number; None if the record does not say."""
    value = record.get(name)
    if value is None:
        return None
    if levels and value not in levels:
        raise ValueError(f"the field {name!r} must be one of {', '.join(levels)}")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"the field {name!r} must be a word or a whole number")
    return value


def _benchmark(name: str) -> str:
    """Our spelling of a benchmark's name: "Online_Mind2Web" and "online-mind2web" are one."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    known = {known.replace("-", ""): known for known in (WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP)}
    return known.get(words.replace("-", ""), words)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").removeprefix("www.")


def _meta(benchmark: str, site: str, **more: Any) -> dict[str, Any]:
    """`meta` without what says nothing."""
    return {
        "benchmark": benchmark,
        "site": site,
        **{name: value for name, value in more.items() if not _is_nothing(value)},
    }


def _is_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("", "none", "**")
    return value is None or value == []
