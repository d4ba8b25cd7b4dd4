"""Task files: one JSON object per line, checked when they are read.

    {"id": "shop-0-17", "instruction": "...", "start_url": "http://...", "goal": {...}, "meta": {...}}

`id`, `instruction` and `start_url` are required; `goal` and `meta` may be left out. Only on a generated
shop, http://shop-N.test/, a goal is needed and checked: nothing else could say whether the task was done.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from minirl.types import Task
from minirl.world.schema import load_goal

_FIELDS = {"id": str, "instruction": str, "start_url": str, "goal": dict, "meta": dict}


def load_tasks(path: Path) -> list[Task]:
    """Reads a JSONL file. ValueError names the file and line of anything malformed."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also cut within strings
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task file {path} can't be read: {error}") from None
    tasks, seen = [], set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = read_task(line)
        except ValueError as problem:
            raise ValueError(f"{path}, line {number}: {problem}") from None
        if task.id in seen:
            raise ValueError(f"{path}, line {number}: the id {task.id!r} occurs twice")
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise ValueError(f"task file {path} holds no tasks")
    return tasks


def read_task(line: str) -> Task:
    """One line of a task file."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("not valid JSON (nested too deeply)") from None
    if not isinstance(record, dict):
        raise ValueError("a task must be a JSON object")
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
    _check_address(task.start_url)
    if re.match(r"http://shop-\d+\.test(/|$)", task.start_url):
        if not task.goal:
            raise ValueError("the field 'goal' is missing or empty; a task on a generated shop needs one")
        load_goal(task.goal)
    return task


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that are no address
        is_page = False
    if not is_page:
        raise ValueError(f"the start_url {url[:80]!r} must be like http://host/ or https://host/")


def save_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Writes a file that `load_tasks` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(dataclasses.asdict(task)) + "\n" for task in tasks))
    os.replace(part, path)
