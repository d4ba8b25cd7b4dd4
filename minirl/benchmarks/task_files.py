"""Task files: our own format and those of public benchmarks, checked when they are read.

    {"id": "shop-0-17", "instruction": "...", "start_url": "http://...", "goal": {...}, "meta": {...}}

is one line of our own format; `goal` and `meta` may be left out, and what else there is belongs into meta, in
which `tabs` are further pages, opened behind the first. A goal is WebArena's rules, a recorded step's right
action, MiniWoB++'s page and seed, or a generated site's state. Records of other benchmarks (formats.py), of
WebArena (webarena/tasks.py) and WebArena-Verified (webarena/verified.py) are recognised by their fields. A
file holds one JSON object per line, or one JSON array, or is Parquet; its first bytes tell which.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from minirl.benchmarks.fields import Record, read
from minirl.benchmarks.formats import benchmark_task
from minirl.benchmarks.miniwob import MiniwobGoal, is_miniwob
from minirl.benchmarks.recorded import StepGoal, digest_of, is_recorded, picture_path, recorded_task
from minirl.benchmarks.webarena import tasks as webarena
from minirl.benchmarks.webarena.verified import VerifiedGoal, is_verified, verified_task
from minirl.types import Json, Task
from minirl.worlds.fsm_file import load_goal

BATCH_ROWS = 4  # of a Parquet file, that are held at a time: pictures are large


class OwnTask(Record):
    model_config = ConfigDict(extra="forbid")

    id: str
    instruction: str
    start_url: Annotated[str, Field(pattern=r"^(https?://|file:///)[^/\s]")]
    goal: Json = {}
    meta: Json = {}


def load_tasks(path: Path, any_goal: bool = False) -> list[Task]:
    """Return the tasks of a file, or of all files that a name with `*` matches. With `any_goal` goals of an
    unknown form pass, for a reward of the user's own. ValueError names the file, the line or record, the
    field and its fault."""
    files = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    tasks: dict[str, Task] = {}
    for file in files:
        for place, record in file_records(file):
            try:
                if isinstance(record, dict) and "img_filename" in record:
                    task = recorded_task(record, file.parent, f"{file.stem}-{place.split()[-1]}")
                else:
                    task = parse_task(record, any_goal)
                    # whoever wrote the file must have had the picture that is shown to models now
                    if is_recorded(task) and digest_of(picture_path(task)) != task.meta.get("picture"):
                        raise ValueError(f"{task.start_url} is not the picture that was recorded")
                if task.id in tasks:
                    raise ValueError(f"the id {task.id!r} occurs twice")
            except ValueError as problem:
                raise ValueError(f"{file}, {place}: {problem}") from None
            tasks[task.id] = task
    if not tasks:
        raise ValueError(f"task file {path} holds no tasks")
    return list(tasks.values())


def parse_task(record: Any, any_goal: bool = False) -> Task:
    """Return a record of any format as a task. ValueError names the wrong field."""
    if not isinstance(record, dict):
        raise ValueError("a task must be a JSON object")
    if "instruction" in record or ("start_url" in record and "intent" not in record):
        return _own_task(record, any_goal)
    if "start_urls" in record:
        return verified_task(record)
    if "intent" in record:
        return webarena.webarena_task(record)
    return benchmark_task(record)


def _own_task(record: Json, any_goal: bool) -> Task:
    task = Task(**dict(read(OwnTask, record)))
    if is_recorded(task):
        if not task.goal:
            raise ValueError("start_url: no page is opened from a file; serve it, and name its http address")
        read(StepGoal, task.goal)
    elif is_miniwob(task):
        read(MiniwobGoal, task.goal)
    elif webarena.is_webarena(task):
        read(webarena.Rules, task.goal)
    elif is_verified(task):
        read(VerifiedGoal, task.goal)
    elif task.goal and not any_goal:
        load_goal(task.goal)
    return task


def file_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield every record of a file with its place there: "line 3", "record 3"."""
    if not path.is_file():
        raise OSError(f"there is no file {path}")
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    if is_parquet:
        yield from _parquet_records(path)
        return
    # Unicode has further ends of lines, which a text in JSON may hold
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            is_array = file.read(4096).lstrip().startswith("[")
            file.seek(0)
            if is_array:
                for number, record in enumerate(_read_json(file.read(), str(path)), 1):
                    yield f"record {number}", record
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", _read_json(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8, which it must be saved in: {error}") from None


def _read_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _parquet_records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield a record for each row. An empty cell is a missing field: a row can't leave out a column."""
    from pyarrow.parquet import ParquetFile

    number = 0
    with ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield f"record {number}", _without_empty_cells(row)


def _without_empty_cells(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_empty_cells(cell) for name, cell in value.items() if cell is not None}
    if isinstance(value, list):
        return [_without_empty_cells(cell) for cell in value]
    return value
