"""AgentRewardBench: web agents' episodes with people's labels, on which judges are compared.

    annotations.csv, trajectories/**/TASK_ID.json --read_agent_reward_bench--> (Trajectory, label)

Stands before agreement.py. OpenWebRL, appendix C.2 and table 9. Of several rows on one episode the first with
a label of LABELS counts; an episode's file lies below a folder that is called as the model (in cleaned/, if
that is there: judgments/ lies beside it). A step's `action` is a BrowserGym call, its `last_action_error` the
feedback on the step before. Deviation: the benchmark's own script counts its test split, here all rows count.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn

LABELS = {"successful": True, "unsuccessful": False}
COLUMNS = ("benchmark", "model_name", "task_id", "trajectory_success")
_ACTION = re.compile(r"\s*([A-Za-z_]\w*)\((.*)\)\s*", re.DOTALL)


class Step(BaseModel):
    """A step of an episode's file; a field that is null or missing is None."""

    action: str | None = None
    url: str | None = None
    screenshot_path: str | None = None  # within the folder
    reasoning: str | None = None
    last_action_error: str | None = None


class Episode(BaseModel):
    goal: Any
    steps: list[Step]


@dataclass(frozen=True)
class FolderImages:
    """The screenshots of a folder, which are named by their paths in it."""

    folder: Path

    def get(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def read_agent_reward_bench(folder: Path) -> list[tuple[Trajectory, bool]]:
    """Return the episodes with their labels, in the table's order. WorkArena's tasks of the second level are
    the benchmark workarena++, as in table 9. ValueError names a file that is missing or of another form, and
    a screenshot outside of the folder."""
    found: dict[tuple[str, str], list[Path]] = {}
    cleaned = folder / "trajectories" / "cleaned"
    for path in sorted((cleaned if cleaned.is_dir() else cleaned.parent).rglob("*.json")):
        for model in path.relative_to(folder).parts[1:-1]:
            found.setdefault((model, path.stem), []).append(path)
    labelled: dict[tuple[str, str, str], tuple[Trajectory, bool]] = {}
    for number, record in read_annotations(folder / "annotations.csv"):
        benchmark, model, task, label = (record[column].strip() for column in COLUMNS)
        if benchmark == "workarena" and "l2" in task.lower():
            benchmark = "workarena++"
        if label.lower() not in LABELS or (benchmark, model, task) in labelled:
            continue
        paths = found.get((model, task), [])
        if len(paths) != 1:
            files = f"{len(paths)} files {task}.json below trajectories/.../{model}"
            raise ValueError(f"{folder / 'annotations.csv'}, line {number}: there are {files}, not one")
        trajectory = read_episode(paths[0], folder, benchmark)
        labelled[benchmark, model, task] = (trajectory, LABELS[label.lower()])
    return list(labelled.values())


def read_annotations(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return line numbers and records of the table of labels. ValueError if it can't be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            for column in COLUMNS:
                if column not in (reader.fieldnames or ()):
                    raise ValueError(f"the column {column} is missing")
            return [(reader.line_num, record) for record in reader]
    except (OSError, csv.Error, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None


def read_episode(path: Path, folder: Path, benchmark: str) -> Trajectory:
    """Return an episode's file as a trajectory without token ids. The answer is what was last sent to the
    user. ValueError if it has another form."""
    try:
        # not pydantic's own reader, which refuses the halves of surrogate pairs that pages may hold
        episode = Episode.model_validate(json.loads(path.read_text(encoding="utf-8")))
        errors = [step.last_action_error for step in episode.steps[1:]] + [None]
        turns = [turn_of(step, error, folder) for step, error in zip(episode.steps, errors, strict=True)]
    except (OSError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        raise ValueError(f"{path} is no episode of AgentRewardBench: {problem}") from None
    acted = [turn for turn in turns if turn.parsed.calls]
    calls = [turn.parsed.calls[0] for turn in acted]
    sent = [call.arguments["text"] for call in calls if call.name == "send_msg_to_user"]
    start = turns[0].url if turns else ""
    meta = {"benchmark": benchmark, "site": urlsplit(start).hostname or ""}
    # a step that did something shows what was there before it; one that did nothing, the end
    final = turns[-1].images if turns and not turns[-1].parsed.calls else ()
    return Trajectory(
        Task(path.stem, str(episode.goal), start, meta=meta),
        member=0,
        turns=tuple(acted),
        stop=Stop.DONE if sent else Stop.MAX_STEPS,
        answer=sent[-1] if sent else "",
        final_image=final[0] if final else "",
    )


def turn_of(step: Step, error: str | None, folder: Path) -> Turn:
    """Return a step and the error that the next one tells of it. Its action's arguments stay text."""
    shot, thought = step.screenshot_path or "", step.reasoning or ""
    if shot and not (folder / shot).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the screenshot {shot!r} lies outside of the folder")
    action = _ACTION.fullmatch(step.action or "")
    calls = (Call(action[1], {"text": action[2].strip().strip("'\"")}),) if action else ()
    return Turn(
        *(0, (), (), (), thought),
        images=(shot,) if shot else (),
        parsed=Parsed(thought, calls),
        feedback=(error,) if error else (),
        url=step.url or "",
    )
