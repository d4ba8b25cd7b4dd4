"""The run folder: everything that a run leaves on disk, and the only code that writes it.

    runs/<name>/config.json                   the settings, written once
                metrics.jsonl                 one line per RL step, appended
                evals.jsonl                   one line per held-out evaluation, appended
                trajectories/step_00012.jsonl one trajectory per line; also eval_sft, demos, ...
                screenshots/<hash>.png        each distinct screenshot once
                checkpoints/                  belongs to the trainer
                report.html                   made by `minirl.cli.report` from the files above

The trainer writes here after each stage, the report reads. Whole files are written beside their place
and then renamed, so a reader never sees half of one. The two appended files may end in a torn line
when the process is killed; a line counts only with its newline, so readers skip the torn one and
the next append removes it.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from minirl.types import Call, Group, Parsed, Stop, Task, Trajectory, Turn

# An episode names its screenshots only when it is saved. `prune` leaves younger ones alone, so that an
# episode that is still running finds its screenshots when it ends.
RUNNING_EPISODE_SECONDS = 3600.0

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STEP_LABEL = re.compile(r"step_(\d+)")
IMAGE_HASH = re.compile(rb'"([0-9a-f]{16})"')


# ---- Records as JSON -------------------------------------------------------------------------------


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON values. `trajectory_from_json` gives back an equal one."""
    turns = [{**vars(turn), "parsed": parsed_to_json(turn.parsed)} for turn in trajectory.turns]
    return {
        **vars(trajectory),
        "task": dict(vars(trajectory.task)),
        "turns": turns,
        "stop": trajectory.stop.value,
    }


def parsed_to_json(parsed: Parsed) -> dict[str, Any]:
    return {**vars(parsed), "calls": [dict(vars(call)) for call in parsed.calls]}


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """The inverse of `trajectory_to_json`; keys that a group adds to the line are left aside."""
    fields = {key: value for key, value in record.items() if key not in ("group", "advantage")}
    fields["task"] = Task(**fields["task"])
    fields["trunk"] = tuple(fields["trunk"])
    fields["turns"] = tuple(turn_from_json(turn) for turn in fields["turns"])
    fields["stop"] = Stop(fields["stop"])
    return Trajectory(**fields)


def turn_from_json(record: Mapping[str, Any]) -> Turn:
    tuples = ("branch", "response_ids", "logprobs", "images", "feedback", "counted")
    fields = {key: tuple(value) if key in tuples else value for key, value in record.items()}
    calls = tuple(Call(**call) for call in fields["parsed"]["calls"])
    fields["parsed"] = Parsed(**{**fields["parsed"], "calls": calls})
    return Turn(**fields)


def dump_lines(items: Iterable[Trajectory | Group]) -> Iterator[dict[str, Any]]:
    """One record per trajectory. A group's members carry its number and their advantage."""
    for number, item in enumerate(items):
        if isinstance(item, Trajectory):
            yield trajectory_to_json(item)
            continue
        assert len(item.advantages) in (0, len(item.trajectories)), (item.task.id, item.advantages)
        advantages = item.advantages or [None] * len(item.trajectories)
        for trajectory, advantage in zip(item.trajectories, advantages, strict=True):
            yield {**trajectory_to_json(trajectory), "group": number, "advantage": advantage}


# ---- Files -----------------------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename it: `path` is the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Process and thread in the name: two writers of the same screenshot must not share a temporary file.
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
        end = file.seek(0, os.SEEK_END)
        if end and not ends_with_newline(file, end):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(to_line(record))
        file.flush()


def ends_with_newline(file: Any, end: int) -> bool:
    file.seek(end - 1)
    return file.read(1) == b"\n"


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and records; nothing if the file is missing. A torn last line is skipped."""
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
    reason = f"{type(error).__name__}: {error}"
    return ValueError(f"{path}, line {number}, cannot be read ({reason}); delete that line or the file")


# ---- The run ---------------------------------------------------------------------------------------


class Run:
    """One run folder. Cheap to make; creates the folder on the first write.

    Of the ranks that train together only the first one writes and deletes `records`; screenshots are stored
    by the rank that saw them.

    >>> Run.step_label(12)
    'step_00012'
    """

    def __init__(self, root: Path, records: bool = True):
        self.root, self.records = Path(root), records
        self.checkpoint_dir = self.root / "checkpoints"
        self.report_path = self.root / "report.html"
        self._named: dict[str, frozenset[str]] = {}  # label -> the images that its file names

    @staticmethod
    def step_label(step: int) -> str:
        """The label under which the trajectories of one RL step are saved."""
        return f"step_{step:05d}"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Values that JSON lacks (paths, enums) are written as their text."""
        if not self.records:
            return
        text = json.dumps(config, indent=2, default=str)
        write_atomic(self.root / "config.json", text.encode() + b"\n")

    def config(self) -> dict[str, Any]:
        path = self.root / "config.json"
        return json.loads(path.read_bytes()) if path.exists() else {}

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self.records:
            return
        append_line(self.root / "metrics.jsonl", {"step": step, **metrics})

    def metrics(self) -> list[dict[str, Any]]:
        return [record for _, record in read_lines(self.root / "metrics.jsonl")]

    def add_eval(
        self, label: str, *, step: int, success: float, low: float, high: float, n: int, **more: Any
    ) -> None:
        """One held-out evaluation: `success` of `n` episodes with its interval [`low`, `high`]. One that was
        made again after a resume replaces the earlier one of its label."""
        if not self.records:
            return
        record = {"label": label, "step": step, "success": success, "low": low, "high": high, "n": n, **more}
        records = [*(row for row in self.evals() if row["label"] != label), record]
        write_atomic(self.root / "evals.jsonl", b"".join(map(to_line, records)))

    def evals(self) -> list[dict[str, Any]]:
        return [record for _, record in read_lines(self.root / "evals.jsonl")]

    # ---- Screenshots ----

    def image_path(self, image: str) -> Path:
        return self.root / "screenshots" / f"{image}.png"

    def put_image(self, png: bytes) -> str:
        """Store a screenshot under its content hash and return the hash."""
        image = sha256(png).hexdigest()[:16]
        try:
            os.utime(self.image_path(image))  # seen again just now: see `prune`
        except FileNotFoundError:
            write_atomic(self.image_path(image), png)
        return image

    def image(self, image: str) -> bytes:
        if not self.image_path(image).exists():
            raise ValueError(f"screenshot {image} is not in {self.root}; its dump may have been pruned")
        return self.image_path(image).read_bytes()

    # ---- Trajectories ----

    def trajectory_path(self, label: str) -> Path:
        if not LABEL.fullmatch(label):
            raise ValueError(f"a label is made of letters, digits, '.', '_' and '-', not {label!r}")
        return self.root / "trajectories" / f"{label}.jsonl"

    def save_trajectories(self, label: str, items: Iterable[Trajectory | Group]) -> None:
        """Save trajectories, groups, or both mixed (kept groups and the episodes that left theirs)."""
        if not self.records:
            return
        write_atomic(self.trajectory_path(label), b"".join(map(to_line, dump_lines(items))))
        self._named.pop(label, None)

    def add_trajectory(self, label: str, trajectory: Trajectory) -> None:
        """Append one, which a process that is killed then leaves behind. Of several ranks each has a label of
        its own."""
        append_line(self.trajectory_path(label), trajectory_to_json(trajectory))
        self._named.pop(label, None)

    def load_trajectories(self, label: str) -> list[Trajectory]:
        return [trajectory for _, trajectory in self._load(label)]

    def load_groups(self, label: str) -> list[Group]:
        """The groups that were saved under `label`: a dumped step can be trained on without a browser."""
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
                trajectory = trajectory_from_json(record)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise broken_line(path, number, error) from error
            yield record, trajectory

    def labels(self) -> list[str]:
        """The labels of all dumps, sorted, so that steps come in their order."""
        return sorted(path.stem for path in (self.root / "trajectories").glob("*.jsonl"))

    # ---- Going back, cleaning up ----

    def truncate_after(self, step: int) -> None:
        """Forget what happened after `step`, so that a resumed run does not show a step twice.

        Metrics and evaluations of later steps go, and dumps whose label ends in a later step
        (`step_00012`, `eval_step_00012`). Temporary files of a killed process go too.
        """
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

        The rule: of the steps 1 ... newest, a dump stays if it is one of the last `keep_steps` or if its
        step is a multiple of 10. Other dumps (evaluations, demonstrations) always stay. Screenshots put
        less than an hour ago stay too: an episode that is still running may yet name them.
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
        # Every quoted 16-digit hex string counts: at worst a screenshot is kept that nobody needs. Each
        # dump is read once, since a long run prunes often.
        if label not in self._named:
            content = self.trajectory_path(label).read_bytes()
            self._named[label] = frozenset(m.decode() for m in IMAGE_HASH.findall(content))
        return self._named[label]
