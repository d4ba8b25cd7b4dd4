"""Task files: our own format and those of public benchmarks, checked when they are read.

    {"id": "shop-0-17", "instruction": "...", "start_url": "http://...", "goal": {...}, "meta": {...}}

is one line of our own format. `id`, `instruction` and `start_url` are required; `goal` and `meta` may be left
out. Only on a generated shop, http://shop-N.test/, a goal is needed and checked: nothing else could say
whether the task was done. Records of WebVoyager, Online-Mind2Web, DeepShop (minirl/benchmarks/formats.py) and
WebArena (minirl/benchmarks/webarena/tasks.py) are recognised by their fields.

A file holds one JSON object per line, or one JSON array, or is Parquet; its first bytes tell which.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minirl.benchmarks import formats
from minirl.benchmarks.webarena.records import texts
from minirl.console import say
from minirl.types import Task
from minirl.worlds.fsm_file import load_goal

_FIELDS = {"id": str, "instruction": str, "start_url": str, "goal": dict, "meta": dict}
_PARQUET = b"PAR1"


def load_tasks(path: Path) -> list[Task]:
    """Reads a task file of any of the formats. ValueError names the file, and the line (of an array or of
    Parquet: the record, counted from 1), field and fault of anything malformed."""
    tasks, seen = [], set()
    for place, record in _records(path):
        try:
            task = task_of(record)
        except ValueError as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        if task.id in seen:
            raise ValueError(f"{path}, {place}: the id {task.id!r} occurs twice")
        for note in task.meta["mended"] if task.goal.get("kind") == "webarena" else ():
            say(f"{path}, {place}: {task.id} is malformed: {note}")
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise ValueError(f"task file {path} holds no tasks")
    return tasks


def read_task(line: str) -> Task:
    """One line of a task file."""
    return task_of(_parse(line))


def task_of(record: Any) -> Task:
    """The task in one record of a task file. ValueError says what is wrong with it."""
    if not isinstance(record, dict):
        raise ValueError("a task must be a JSON object")
    if "instruction" in record or "start_url" in record and "intent" not in record:
        return _own(record)
    if "intent" in record:
        from minirl.benchmarks.webarena import (
            tasks as webarena,  # it brings the sites' addresses, which no other format needs
        )

        if not webarena.is_record(record):
            raise ValueError("a WebArena record needs the fields 'task_id', 'sites', 'intent' and 'eval'")
        return webarena.task_of(record, webarena.sites_from_environment())
    task = formats.task_of(record)
    if task is None:
        raise ValueError(
            "unknown format: needed are the fields 'id', 'instruction' and 'start_url', "
            "or those of a benchmark in minirl/benchmarks/formats.py"
        )
    return task


def _own(record: dict[str, Any]) -> Task:
    for name, kind in _FIELDS.items():
        if name not in record:
            if kind is str:
                raise ValueError(f"the field {name!r} is missing")
        elif not isinstance(record[name], kind):
            raise ValueError(f"the field {name!r} must be {'a string' if kind is str else 'an object'}")
    unknown = [name for name in record if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; what is not {', '.join(_FIELDS)} belongs into meta")
    task = Task(**record)
    if "tabs" in task.meta:  # to be opened beside the first page, whatever the benchmark
        texts(task.meta, "tabs")
    if task.goal.get("kind") == "webarena":
        from minirl.benchmarks.webarena import tasks as webarena

        webarena.check_task(task)
    if not formats.is_address(task.start_url):
        raise ValueError(f"the start_url {task.start_url[:80]!r} must be like http://host/ or https://host/")
    if re.match(r"http://shop-\d+\.test(/|$)", task.start_url):
        if not task.goal:
            raise ValueError("the field 'goal' is missing or empty; a task on a generated shop needs one")
        load_goal(task.goal)
    return task


# ---- Files -----------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Every record with its place in the file."""
    try:
        content = path.read_bytes()
        if content.startswith(_PARQUET):
            yield from _parquet_records(path)
            return
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task file {path} can't be read: {error}") from None
    if text.lstrip().startswith("["):
        try:
            records = _parse(text)
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from None
        yield from ((f"record {number}", record) for number, record in enumerate(records, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would also cut within strings
        if line.strip():
            try:
                record = _parse(line)
            except ValueError as problem:
                raise ValueError(f"{path}, line {number}: {problem}") from None
            yield f"line {number}", record


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise ValueError(f"not valid JSON ({error.msg} at {where})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None


def _parquet_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A row is a record; an empty cell is a field that is missing, as a row can't leave out a column."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path} is Parquet, which needs pyarrow: pip install pyarrow") from None
    try:
        rows = parquet.read_table(path, use_threads=False).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"task file {path} can't be read: {' '.join(str(error).split())[:200]}") from None
    for number, row in enumerate(rows, 1):
        record = _filled(row)
        for name, value in record.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{path}, record {number}: the field {name!r} holds what JSON has no value for"
                ) from None
        yield f"record {number}", record


def _filled(value: Any) -> Any:
    """Without empty fields, at any depth.

    >>> _filled({"id": "a", "goal": {"url": None}, "meta": {"tabs": [{"url": "b", "title": None}]}})
    {'id': 'a', 'goal': {}, 'meta': {'tabs': [{'url': 'b'}]}}
    """
    if isinstance(value, dict):
        return {name: _filled(inner) for name, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list) else value


def save_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes a file that `load_tasks` reads, in our own format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(dataclasses.asdict(task)) + "\n" for task in tasks))
    os.replace(part, path)
