"""The run folder: what a run leaves on disk, how it is written and how it is read again.

    config.json, heldout.jsonl                    the settings of the newest start, and its held-out tasks
    starts.jsonl                                  one line per start: the command and its commit
    metrics.jsonl, evals.jsonl                    one line per RL step, one per evaluation
    trajectories/step_00012.jsonl, demos.jsonl    one trajectory per line; also after_sft, ...
    screenshots/<hash>.png                        each distinct screenshot once
    checkpoints/, report.html                     of minirl/checkpoint.py and minirl/cli/report.py
    lock                                          locked by the process that trains or evaluates here

Whole files are written beside their place and then renamed. A process that is killed may leave a torn last
line in appended files: readers skip a line without its newline, and whoever goes on writes such a file anew
first. A folder may come from anybody: it is no link and holds none, which could lead to other files.
"""

import fcntl
import json
import math
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from pydantic import TypeAdapter

from minirl.console import without_passwords
from minirl.types import Fields, Group, Json, Task, Trajectory

T = TypeVar("T")
TRAJECTORY = TypeAdapter(Trajectory)
Setting = str | int | float | bool | None | list[str | int | float]
SETTINGS = TypeAdapter(dict[str, Setting | dict[str, Setting]])
GIT_SECONDS = 10  # for the name of the commit
REGULAR = "eval_step_"  # begins the names of the evaluations every `eval_every` steps
STEP_LABEL = re.compile(r"step_(\d+)")


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename it: `path` is the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # ranks, of several machines too, that write the same screenshot must not share a temporary file
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    temporary.write_bytes(content)
    temporary.rename(path)


def to_line(record: Fields) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def write_lines(path: Path, records: Iterable[Fields]) -> None:
    """Write a file of JSON lines, whole or not at all."""
    write_atomic(path, b"".join(to_line(record) for record in records))


def save_tasks(path: Path, tasks: Iterable[Task]) -> None:
    write_lines(path, map(asdict, tasks))


def append_line(path: Path, record: Fields) -> None:
    """Append one line in one write. Several ranks may append to one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        file.write(to_line(record))


def read_as(text: bytes, adapter: TypeAdapter[T], problem: str) -> T:
    """Return JSON as a type. ValueError says `problem` and the reason in one line."""
    try:
        # pydantic's own parser would refuse the half characters that pages may hold
        return adapter.validate_python(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{problem}: {reason[:300]}") from None


def read_records(path: Path, kind: type[T]) -> list[T]:
    """Return the lines of a file, which may be missing or torn. ValueError names one that is no `kind`."""
    if not path.exists():
        return []
    adapter = TypeAdapter(kind)
    records = []
    *lines, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        problem = f"{path}, line {number}, cannot be read (delete that line, or the file)"
        records.append(read_as(line, adapter, problem))
    return records


def to_record(trajectory: Trajectory) -> Json:
    """Return a trajectory as JSON values; TRAJECTORY.validate_python gives back an equal one, but for
    the password in an address."""
    record = TRAJECTORY.dump_python(trajectory) | {"stop": trajectory.stop.value}
    record["task"]["start_url"] = without_passwords(trajectory.task.start_url)
    return record


@dataclass(frozen=True)
class ImageFolder:
    """Screenshots as files that are named after their content, so equal ones are stored once."""

    folder: Path

    def put(self, png: bytes) -> str:
        """Store a screenshot; return its name, the first 16 hex digits of its SHA-256."""
        name = sha256(png).hexdigest()[:16]
        path = self.path(name)
        if not path.exists():
            write_atomic(path, png)
        return name

    def get(self, name: str) -> bytes:
        """Return a screenshot's PNG. ValueError if it is not there, or not the name of one."""
        path = self.path(name)
        if path.is_symlink() or not path.exists():
            raise ValueError(f"screenshot {name} is not in {self.folder}; its dump may have been pruned")
        return path.read_bytes()

    def path(self, name: str) -> Path:
        if not name.isalnum():
            raise ValueError(f"{name!r:.80} is no screenshot's name, which has 16 hex digits")
        return self.folder / f"{name}.png"


class Run:
    """One run folder, created on the first write.

    Of the ranks that train together the first one alone writes and deletes `records`; screenshots are stored
    by the rank that saw them. ValueError if the folder is a link, or holds one.
    """

    def __init__(self, root: Path, records: bool = True):
        self.root = Path(root)
        self.records = records
        self.checkpoint_dir = self.root / "checkpoints"
        self.images = ImageFolder(self.root / "screenshots")
        self.report_path = self.root / "report.html"
        for path in (self.root, *self.root.glob("*")):
            if path.is_symlink():
                raise ValueError(f"{path} is a link, which may lead anywhere; name its target, or put a copy")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training or evaluating in the folder while the block runs. OSError if one
        does. The system frees what a dead process held. A folder in which nothing was written goes again."""
        if not self.records:
            yield
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "lock", blocking=False):
            try:
                yield
            finally:
                if len(os.listdir(self.root)) == 1:  # the lock alone
                    shutil.rmtree(self.root)

    @staticmethod
    def step_label(step: int) -> str:
        """Return the label of an RL step: "step_00012"."""
        return f"step_{step:05d}"

    def write_config(self, config: Fields) -> None:
        """Write the settings, as `config.to_json` gives them."""
        if self.records:
            write_atomic(self.root / "config.json", json.dumps(config, indent=2).encode() + b"\n")

    def config(self) -> Json:
        """Return the saved settings, or {} without a file. ValueError if the file holds no settings."""
        path = self.root / "config.json"
        return read_as(path.read_bytes(), SETTINGS, f"{path} can't be used") if path.exists() else {}

    def add_start(self) -> None:
        """Record the command that was typed, and the commit of these sources, if git knows it."""
        if self.records:
            commit = b""
            ask = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
            with suppress(OSError, subprocess.SubprocessError):  # there is none, or it takes long
                commit = subprocess.check_output(ask, stderr=subprocess.DEVNULL, timeout=GIT_SECONDS)
            start = {"command": shlex.join(sys.argv), "commit": commit.decode().strip()}
            path = self.root / "starts.jsonl"
            write_lines(path, [*read_records(path, dict), start])

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a step's numbers, with null for NaN and infinity, which JSON lacks."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        if self.records:
            append_line(self.root / "metrics.jsonl", {"step": step, **finite})

    def metrics(self) -> list[Json]:
        return read_records(self.root / "metrics.jsonl", dict)

    def add_eval(self, label: str, **numbers: Any) -> Json:
        """Record an evaluation: `step`, `success` of `n` episodes, its interval `low` to `high`. It
        replaces one of its label, which was made before a resume. Return its row."""
        row = {"label": label, **numbers}
        if self.records:
            others = [earlier for earlier in self.evals() if earlier["label"] != label]
            write_lines(self.root / "evals.jsonl", [*others, row])
        return row

    def evals(self) -> list[Json]:
        return read_records(self.root / "evals.jsonl", dict)

    def trajectory_path(self, label: str) -> Path:
        return self.root / "trajectories" / f"{label}.jsonl"

    def save_trajectories(self, label: str, trajectories: Iterable[Trajectory]) -> None:
        """Save trajectories as one dump, a line each."""
        if self.records:
            write_lines(self.trajectory_path(label), map(to_record, trajectories))

    def add_trajectory(self, label: str, trajectory: Trajectory) -> None:
        """Append one trajectory, which outlives a killed process. All ranks may append."""
        append_line(self.trajectory_path(label), to_record(trajectory))

    def load_trajectories(self, label: str) -> list[Trajectory]:
        path = self.trajectory_path(label)
        if not path.exists():
            raise ValueError(f"{path} does not exist; this run has {', '.join(self.labels()) or 'no dumps'}")
        return read_records(path, Trajectory)

    def load_groups(self, label: str) -> list[Group]:
        """Return the groups of a dumped step, which can be trained on without a browser."""
        members: dict[int, list[Trajectory]] = defaultdict(list)
        for trajectory in self.load_trajectories(label):
            if trajectory.group is not None:
                members[trajectory.group].append(trajectory)
        return [tuple(group) for group in members.values()]

    def labels(self) -> list[str]:
        """Return the labels of all dumps, sorted, so that steps come in their order."""
        return sorted(path.stem for path in (self.root / "trajectories").glob("*.jsonl"))

    def step_labels(self) -> list[str]:
        """Return the labels of the dumped RL steps, in their order."""
        return [label for label in self.labels() if STEP_LABEL.fullmatch(label)]

    def best(self) -> Json:
        """Return the `step` and the `success` of the best weights so far, or nothing."""
        return state_of(self.checkpoint_dir / "best")

    def truncate_after(self, step: int) -> None:
        """Forget metrics, evaluations, dumps and best weights of steps after `step`, so that a resumed run
        does not show a step twice."""
        if not self.records:
            return
        for path in (self.root / "metrics.jsonl", self.root / "evals.jsonl"):
            records = read_records(path, dict)
            write_lines(path, [record for record in records if record["step"] <= step])
        for label in self.labels():
            match = STEP_LABEL.fullmatch(label.removeprefix("eval_"))
            if match and int(match[1]) > step:
                self.trajectory_path(label).unlink()
        if self.best().get("step", -1) > step:
            shutil.rmtree(self.checkpoint_dir / "best")

    def prune(self, keep_steps: int) -> None:
        """Remove the dumps of RL steps but the last `keep_steps` and every tenth, then the screenshots that
        no dump names. While it runs no rank may have an episode."""
        if not self.records:
            return
        for label in self.step_labels()[:-keep_steps]:
            if not label.endswith("0"):
                self.trajectory_path(label).unlink()
        named = set[str]()
        for label in self.labels():
            for trajectory in self.load_trajectories(label):
                named.add(trajectory.final_image)
                for turn in trajectory.turns:
                    named.update(turn.images)
        for path in self.images.folder.glob("*.png"):
            if path.stem not in named:
                path.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete RL checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step_*") if path.suffix == "" and path.is_dir())


def state_of(checkpoint: Path) -> Json:
    """Return what a checkpoint remembers of its run, or nothing."""
    path = checkpoint / "state.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def flatten(settings: Fields, prefix: str = "") -> Json:
    """Return nested settings as one level: {"loss": {"kl": 0.1}} is {"loss.kl": 0.1}."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def differences(old: Fields, new: Fields) -> list[str]:
    """Return the names of the settings of `new` that `old` has otherwise or lacks."""
    before = flatten(old)
    return [name for name, value in flatten(new).items() if before.get(name) != value]
