"""The run folder: everything that a run leaves on disk, and the only code that writes it.

    runs/<name>/config.json                   the settings, written once
                metrics.jsonl                 one line per RL step, appended
                evals.jsonl                   one line per held-out evaluation, appended
                trajectories/step_00012.jsonl one trajectory per line; also eval_sft, demos, ...
                screenshots/<hash>.png        each distinct screenshot once
                checkpoints/                  belongs to the trainer
                report.html                   made by `minirl.cli.report` from the files above

Whole files are written beside their place and then renamed, so a reader never sees half of one. A process
that is killed may leave a torn last line in the appended files: readers skip a line without its newline, and
the next append removes it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from minirl.types import Group, Trajectory

RUNNING_EPISODE_SECONDS = 3600.0  # `prune` keeps younger screenshots: an episode names its own when it ends
TRAJECTORY = TypeAdapter(Trajectory)

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STEP_LABEL = re.compile(r"step_(\d+)")
IMAGE_HASH = re.compile(rb'"([0-9a-f]{16})"')


def dump_lines(items: Iterable[Trajectory | Group]) -> Iterator[dict[str, Any]]:
    """Yield one record per trajectory. A group's members carry its number and their advantage."""
    for number, item in enumerate(items):
        if isinstance(item, Trajectory):
            yield to_record(item)
            continue
        advantages = item.advantages or [None] * len(item.trajectories)
        for trajectory, advantage in zip(item.trajectories, advantages, strict=True):
            yield {**to_record(trajectory), "group": number, "advantage": advantage}


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as JSON values; TRAJECTORY.validate_python gives back an equal one."""
    return TRAJECTORY.dump_python(trajectory) | {"stop": trajectory.stop.value}


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename it: `path` is the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # two writers of the same screenshot must not share a temporary file
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def to_line(record: Mapping[str, Any]) -> bytes:
    # `default=dict` is for read-only mappings; anything else that JSON lacks raises TypeError.
    return json.dumps(record, default=dict, separators=(",", ":")).encode() + b"\n"


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line in one write, after removing a torn last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(to_line(record))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers (from 1) and records, none if the file is missing. A torn last line is skipped."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("the line is not a JSON object")
            except ValueError as error:
                raise broken_line(path, number, error) from error
            yield number, record


def broken_line(path: Path, number: int, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:300]
    return ValueError(f"{path}, line {number}, cannot be read ({reason}); delete that line or the file")


@dataclass(frozen=True)
class ImageFolder:
    """Screenshots as files that are named after their content: equal ones are stored once."""

    folder: Path

    def put(self, png: bytes) -> str:
        """Store a screenshot; return its name, the first 16 hex digits of its SHA-256."""
        name = sha256(png).hexdigest()[:16]
        try:
            os.utime(self.path(name))  # it is in use again: see Run.prune
        except FileNotFoundError:
            write_atomic(self.path(name), png)
        return name

    def get(self, name: str) -> bytes:
        """Return a screenshot's PNG. ValueError if it is not there."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            raise ValueError(
                f"screenshot {name} is not in {self.folder}; its dump may have been pruned"
            ) from None

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.png"


class Run:
    """One run folder, created on the first write. Of the ranks that train together the first one alone writes
    and deletes `records`; screenshots are stored by the rank that saw them.

    >>> Run.step_label(12)
    'step_00012'
    """

    def __init__(self, root: Path, records: bool = True):
        self.root, self.records = Path(root), records
        self.checkpoint_dir = self.root / "checkpoints"
        self.images = ImageFolder(self.root / "screenshots")
        self.report_path = self.root / "report.html"
        self._named: dict[str, frozenset[str]] = {}  # label -> the images that its file names

    @staticmethod
    def step_label(step: int) -> str:
        """Return the label under which the trajectories of one RL step are saved."""
        return f"step_{step:05d}"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings; values that JSON lacks (paths, enums) become their text."""
        if self.records:
            text = json.dumps(config, indent=2, default=str)
            write_atomic(self.root / "config.json", text.encode() + b"\n")

    def config(self) -> dict[str, Any]:
        path = self.root / "config.json"
        return json.loads(path.read_bytes()) if path.exists() else {}

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.records:
            append_line(self.root / "metrics.jsonl", {"step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        return [record for _, record in read_lines(self.root / "metrics.jsonl")]

    def add_eval(
        self, label: str, *, step: int, success: float, low: float, high: float, n: int, **more: Any
    ) -> None:
        """Record a held-out evaluation: `success` of `n` episodes with its interval [`low`, `high`]. It
        replaces an earlier one of its label, which was made before a resume."""
        if self.records:
            row = {"label": label, "step": step, "success": success, "low": low, "high": high, "n": n, **more}
            rows = [*(earlier for earlier in self.evals() if earlier["label"] != label), row]
            write_atomic(self.root / "evals.jsonl", b"".join(map(to_line, rows)))

    def evals(self) -> list[dict[str, Any]]:
        return [record for _, record in read_lines(self.root / "evals.jsonl")]

    def trajectory_path(self, label: str) -> Path:
        if not LABEL.fullmatch(label):
            raise ValueError(f"a label is made of letters, digits, '.', '_' and '-', not {label!r}")
        return self.root / "trajectories" / f"{label}.jsonl"

    def save_trajectories(self, label: str, items: Iterable[Trajectory | Group]) -> None:
        """Save trajectories, groups, or both mixed (kept groups and the episodes that left theirs)."""
        if self.records:
            write_atomic(self.trajectory_path(label), b"".join(map(to_line, dump_lines(items))))
            self._named.pop(label, None)

    def add_trajectory(self, label: str, trajectory: Trajectory) -> None:
        """Append one trajectory, which outlives a killed process. Every rank has its own label."""
        append_line(self.trajectory_path(label), to_record(trajectory))
        self._named.pop(label, None)

    def load_trajectories(self, label: str) -> list[Trajectory]:
        return [trajectory for _, trajectory in self._load(label)]

    def load_groups(self, label: str) -> list[Group]:
        """Return the groups of a dumped step, which can be trained on without a browser."""
        members: dict[int, list[tuple[Trajectory, float | None]]] = {}
        for record, trajectory in self._load(label):
            if record.get("group") is not None:
                members.setdefault(record["group"], []).append((trajectory, record.get("advantage")))
        if not members:
            raise ValueError(f"{self.trajectory_path(label)} holds no groups; choose the dump of an RL step")
        groups = []
        for pairs in members.values():
            trajectories = tuple(trajectory for trajectory, _ in pairs)
            advantages = tuple(advantage for _, advantage in pairs if advantage is not None)
            groups.append(Group(trajectories[0].task, trajectories, advantages))
        return groups

    def _load(self, label: str) -> Iterator[tuple[dict[str, Any], Trajectory]]:
        path = self.trajectory_path(label)
        if not path.exists():
            raise ValueError(f"{path} does not exist; this run has {', '.join(self.labels()) or 'no dumps'}")
        for number, record in read_lines(path):
            try:
                yield record, TRAJECTORY.validate_python(record)
            except ValidationError as error:
                raise broken_line(path, number, error) from error

    def labels(self) -> list[str]:
        """Return the labels of all dumps, sorted, so that steps come in their order."""
        return sorted(path.stem for path in (self.root / "trajectories").glob("*.jsonl"))

    def step_labels(self) -> list[str]:
        """Return the labels of the dumped RL steps, in their order."""
        return [label for label in self.labels() if STEP_LABEL.fullmatch(label)]

    def truncate_after(self, step: int) -> None:
        """Forget metrics, evaluations and dumps of steps after `step`, so that a resumed run does not show a
        step twice, and the temporary files of a killed process."""
        if not self.records:
            return
        for name in ("metrics.jsonl", "evals.jsonl"):
            path = self.root / name
            if path.exists():
                kept = [record for _, record in read_lines(path) if record["step"] <= step]
                write_atomic(path, b"".join(map(to_line, kept)))
        for label in self.labels():
            match = re.search(r"(?:^|_)step_(\d+)$", label)
            if match and int(match[1]) > step:
                self.remove_dump(label)
        for temporary in self.root.glob("**/.*.tmp"):
            temporary.unlink()

    def prune(self, keep_steps: int) -> None:
        """Remove old dumps of RL steps, then the screenshots that no remaining dump names.

        The dumps of the last `keep_steps` steps and of every tenth stay, and all of evaluations and
        demonstrations. So do screenshots of the last hour, which a running episode may yet name.
        """
        if not self.records:
            return
        assert keep_steps >= 1, keep_steps
        steps = {int(m[1]): label for label in self.labels() if (m := STEP_LABEL.fullmatch(label))}
        for step, label in steps.items():
            if step <= max(steps) - keep_steps and step % 10 != 0:
                self.remove_dump(label)
        named = set().union(*(self._images_of(label) for label in self.labels()))
        now = time.time()
        for path in (self.root / "screenshots").glob("*.png"):
            running = now - path.stat().st_mtime < RUNNING_EPISODE_SECONDS  # on whichever rank
            if path.stem not in named and not running:
                path.unlink()

    def remove_dump(self, label: str) -> None:
        self.trajectory_path(label).unlink()
        self._named.pop(label, None)

    def _images_of(self, label: str) -> frozenset[str]:
        # every quoted 16-digit hex string counts: at worst a screenshot too many is kept
        if label not in self._named:
            content = self.trajectory_path(label).read_bytes()
            self._named[label] = frozenset(m.decode() for m in IMAGE_HASH.findall(content))
        return self._named[label]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple]:
    """Yield (name, old value, new value) for every setting of `new` that `old` has otherwise or lacks.

    >>> list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}))
    [('a.c', 2, 3)]
    """
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            yield from differences(before, value, f"{prefix}{name}.")
        elif before != value:
            yield prefix + name, before, value
