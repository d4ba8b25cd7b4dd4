"""Task files: our own format and those of public benchmarks, checked when they are read.

    {"id": "shop-0-17", "instruction": "...", "start_url": "http://...", "goal": {...}, "meta": {...}}

is one line of our own format; `goal` and `meta` may be left out. A goal is WebArena's rules, what the final
page must show (page_goals.py), or a generated site's state. Records of other benchmarks (formats.py) and of
WebArena (webarena/tasks.py) are recognised by their fields. A file holds one JSON object per line, or one
JSON array, or is Parquet; its first bytes tell which.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minirl.benchmarks import formats, page_goals
from minirl.benchmarks.fields import Address, Record, read
from minirl.benchmarks.webarena import tasks as webarena
from minirl.console import say
from minirl.run_folder import write_atomic
from minirl.types import Task
from minirl.worlds.fsm_file import load_goal

PARQUET = b"PAR1"


class OwnTask(Record):
    id: str
    instruction: str
    start_url: Address
    goal: dict[str, Any] = {}
    meta: dict[str, Any] = {}


class Tabs(Record):
    """The field of `meta` that every benchmark's tasks may have: further pages, opened beside the first."""

    tabs: list[str] = []


def load_tasks(path: Path, any_goal: bool = False) -> list[Task]:
    """Return the tasks of a file of any of the formats. With `any_goal` goals of an unknown form pass, for a
    reward function of the user's. ValueError names the file, and the line (of an array or of Parquet: the
    record, counted from 1), field and fault of anything malformed."""
    tasks: dict[str, Task] = {}
    for place, record in _records(path):
        try:
            task = task_of(record, any_goal)
            if task.id in tasks:
                raise ValueError(f"the id {task.id!r} occurs twice")
        except ValueError as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        except RecursionError:
            raise ValueError(f"{path}, {place}: the record is nested too deeply") from None
        for note in task.meta["mended"] if webarena.is_webarena(task) else ():
            say(f"{path}, {place}: {task.id} is malformed: {note}")
        tasks[task.id] = task
    if not tasks:
        raise ValueError(f"task file {path} holds no tasks")
    return list(tasks.values())


def task_of(record: Any, any_goal: bool = False) -> Task:
    """Return the task in one record of a task file. ValueError says what is wrong with it."""
    if not isinstance(record, dict):
        raise ValueError("a task must be a JSON object")
    if "instruction" in record or ("start_url" in record and "intent" not in record):
        return _own_task(record, any_goal)
    if "intent" in record:
        return webarena.task_of(record, webarena.sites_from_environment())
    if task := formats.task_of(record):
        return task
    raise ValueError(
        "unknown format: needed are the fields 'id', 'instruction' and 'start_url', "
        "or those of a benchmark in minirl/benchmarks/formats.py"
    )


def _own_task(record: dict[str, Any], any_goal: bool) -> Task:
    fields = dict(read(OwnTask, record))
    if unknown := [name for name in record if name not in fields]:
        raise ValueError(f"unknown field {unknown[0]!r}; what is not {', '.join(fields)} belongs into meta")
    task = Task(**fields)
    read(Tabs, task.meta)
    if re.match(r"http://shop-\d+\.test(/|$)", task.start_url):
        if not task.goal:
            raise ValueError("the field 'goal' is missing or empty; a task on a generated shop needs one")
        load_goal(task.goal)
    elif webarena.is_webarena(task):
        read(webarena.Meta, task.meta)
        webarena.rules_of(task.goal)
    elif page_goals.is_page_goal(task.goal):
        page_goals.read_goal(task.goal)
    elif task.goal and not any_goal:
        load_goal(task.goal)
    return task


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield every record with its place in the file: "line 3", "record 3"."""
    try:
        content = path.read_bytes()
        if content.startswith(PARQUET):
            yield from _parquet_records(path)
            return
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task file {path} can't be read: {error}") from None
    if text.lstrip().startswith("["):
        for number, record in enumerate(_parse(text, str(path)), 1):
            yield f"record {number}", record
        return
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() would also cut within strings
        if line.strip():
            yield f"line {number}", _parse(line, f"{path}, line {number}")


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise ValueError(f"{place}: not valid JSON ({error.msg} at {where})") from None
    except RecursionError:
        raise ValueError(f"{place}: not valid JSON (nested too deeply)") from None
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{place}: {error}") from None


def _parquet_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a record for each row. An empty cell is a missing field: a row can't leave out a column."""
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
        record = _without_empty(row)
        for name, value in record.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                place = f"{path}, record {number}"
                raise ValueError(f"{place}: the field {name!r} holds what JSON has no value for") from None
        yield f"record {number}", record


def _without_empty(value: Any) -> Any:
    """Return a value without empty fields, at any depth.

    >>> _without_empty({"id": "a", "goal": {"url": None}, "meta": {"tabs": [{"url": "b", "title": None}]}})
    {'id': 'a', 'goal': {}, 'meta': {'tabs': [{'url': 'b'}]}}
    """
    if isinstance(value, dict):
        return {name: _without_empty(inner) for name, inner in value.items() if inner is not None}
    return [_without_empty(inner) for inner in value] if isinstance(value, list) else value


def save_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write a file that `load_tasks` reads, in our own format."""
    write_atomic(path, "".join(json.dumps(dataclasses.asdict(task)) + "\n" for task in tasks).encode())
