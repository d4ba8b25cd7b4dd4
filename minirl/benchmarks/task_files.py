"""Task files: our own format and those of public benchmarks, checked when they are read.

    {"id": "shop-0-17", "instruction": "...", "start_url": "http://...", "goal": {...}, "meta": {...}}

is one line of our own format; `goal` and `meta` may be left out, and what else there is belongs into meta. A
goal is WebArena's rules, what the final page must show (page_goals.py), or a generated site's state. Records
of other benchmarks (formats.py) and of WebArena (webarena/tasks.py) are recognised by their fields. A file
holds one JSON object per line, or one JSON array, or is Parquet; its first bytes tell which.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict

from minirl.benchmarks import formats, page_goals, recorded
from minirl.benchmarks.fields import AN_ADDRESS, Record, must, read
from minirl.benchmarks.webarena import tasks as webarena
from minirl.browser.access import is_address
from minirl.types import Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.shop import HOST


class OwnTask(Record):
    model_config = ConfigDict(extra="forbid")

    id: str
    instruction: str
    start_url: Annotated[str, must(lambda url: is_address(url) or url.startswith("file:///"), AN_ADDRESS)]
    goal: dict[str, Any] = {}
    meta: dict[str, Any] = {}


class Tabs(Record):
    tabs: list[str] = []  # in any task's meta: further pages, opened beside the first


AsJson = Callable[[Any], Any] | None
MOST_UNPACKED = 2**29  # bytes of a Parquet file's records
MOST_LEVELS = 40  # of a task's goal and meta: what writes and shows them goes down one by one


def load_tasks(path: Path, any_goal: bool = False) -> list[Task]:
    """Return a file's tasks. With `any_goal` goals of an unknown form pass, for a reward of the user's own.
    ValueError names the file, the line or record, the field and its fault."""
    tasks: dict[str, Task] = {}
    for place, record in records(path):
        try:
            check_depth(record)
            if isinstance(record, dict) and "img_filename" in record:
                task = recorded.task_of(record, path.parent, f"{path.stem}-{place.split()[-1]}")
            else:
                task = task_of(record, any_goal)
            if task.id in tasks:
                raise ValueError(f"the id {task.id!r} occurs twice")
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        tasks[task.id] = task
    if not tasks:
        raise ValueError(f"task file {path} holds no tasks")
    return list(tasks.values())


def check_depth(value: Any, levels: int = MOST_LEVELS) -> None:
    """Raise ValueError for objects and lists within one another that are more than MOST_LEVELS deep."""
    if not levels:
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_depth(inner, levels - 1)


def task_of(record: Any, any_goal: bool = False) -> Task:
    if not isinstance(record, dict):
        raise ValueError("a task must be a JSON object")
    if "instruction" in record or ("start_url" in record and "intent" not in record):
        return _own_task(record, any_goal)
    if "intent" in record:
        return webarena.task_of(record, webarena.sites_from_environment())
    if task := formats.task_of(record):
        return task
    fields = "the fields 'id', 'instruction' and 'start_url', or those of a benchmark"
    raise ValueError(f"unknown format: needed are {fields} in minirl/benchmarks/formats.py")


def _own_task(record: dict[str, Any], any_goal: bool) -> Task:
    task = Task(**dict(read(OwnTask, record)))
    read(Tabs, task.meta)
    if recorded.is_recorded(task):
        read(recorded.Goal, task.goal)
    elif HOST.match(task.start_url):  # a generated shop
        load_goal(task.goal)
    elif webarena.is_webarena(task):
        read(webarena.Meta, task.meta)
        webarena.rules_of(task.goal)
    elif page_goals.is_page_goal(task.goal):
        read(page_goals.PageGoal, task.goal)
    elif task.goal and not any_goal:
        load_goal(task.goal)
    return task


def records(path: Path, most: int = 0, as_json: AsJson = None) -> Iterator[tuple[str, Any]]:
    """Yield every record of a file with its place there: "line 3", "record 3". A Parquet file may have `most`
    bytes, and `as_json` converts cells that JSON lacks. ValueError names what can't be read."""
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(codecs.BOM_UTF8)
            file.seek(0)
            if head.startswith(b"PAR1"):
                yield from _parquet_records(path, most or MOST_UNPACKED, as_json)
            elif head.lstrip().startswith(b"["):
                for number, record in enumerate(_parse(file.read(), str(path)), 1):
                    yield f"record {number}", record
            else:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"line {number}", _parse(line.rstrip(), f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"task file {path} can't be read: {error}") from None


def _parse(text: bytes, place: str) -> Any:
    words = text.decode("utf-8-sig")
    try:
        return json.loads(words)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise ValueError(f"{place}: not valid JSON ({error})") from None


def _parquet_records(path: Path, room: int, as_json: AsJson) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a record for each row. An empty cell is a missing field: a row can't leave out a column."""
    pyarrow = import_pyarrow(path)
    number, most = 0, room
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            room -= sum(group.total_byte_size for group in groups)  # in which what repeats counts once
            for batch in file.iter_batches(4, use_threads=False) if room > 0 else ():
                if (room := room - batch.nbytes) < 0:
                    break
                for row in batch.to_pylist():
                    number += 1
                    yield f"record {number}", _without_empty_cells(row, as_json, f"{path}, record {number}")
        if room < 0:
            raise ValueError(f"task file {path} unpacks to more than {most:,} bytes")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"task file {path} can't be read: {str(error)!r:.200}") from None


def import_pyarrow(path: Path) -> Any:
    """Return the package that reads and writes Parquet. ValueError if it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} is Parquet, which needs pyarrow: pip install pyarrow") from None
    return pyarrow


def _without_empty_cells(row: Any, as_json: AsJson, place: str) -> dict[str, Any]:
    try:
        text = json.dumps(row, default=as_json)
    except (TypeError, ValueError) as error:  # dates and bytes
        raise ValueError(f"{place}: {error}") from None
    return json.loads(text, object_hook=lambda d: {k: v for k, v in d.items() if v is not None})
