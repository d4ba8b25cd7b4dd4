"""AgentRewardBench: web agents' episodes with people's labels, on which judges are compared.

    annotations.csv, trajectories/**/TASK_ID.json --read_agent_reward_bench--> (Trajectory, label)

Stands before agreement.py. OpenWebRL, appendix C.2 and table 9. An episode's file lies below a folder with
the model's name. A step's `action` is a BrowserGym call, its `last_action_error` the feedback on the step
before. Deviation: the benchmark's own script counts its test split, here all rows count.
"""

import csv
import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from annotated_types import MinLen
from pydantic import BaseModel, BeforeValidator, TypeAdapter

from minirl.judges.labels import Example, Label
from minirl.run_folder import read_as
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn

LABELS = {"successful": True, "unsuccessful": False}
COLUMNS = ("benchmark", "model_name", "task_id", "trajectory_success")
_ACTION = re.compile(r"\s*([A-Za-z_]\w*)\((.*)\)\s*", re.DOTALL)
Text = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]


class Step(BaseModel):
    action: Text = ""
    url: Text = ""
    screenshot_path: Text = ""  # within the folder
    reasoning: Text = ""
    last_action_error: Text = ""


class Episode(BaseModel):
    goal: Any
    steps: Annotated[list[Step], MinLen(1)]


class FolderImages:
    def __init__(self, folder: Path):  # in which screenshots are named by their paths
        self.folder = folder

    def get(self, name: str) -> bytes:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ValueError(f"the screenshot {name!r} lies outside of {self.folder}")
        return path.read_bytes()


def read_agent_reward_bench(folder: Path) -> list[Example]:
    """Return the episodes with their labels, in the table's order; of several rows on one the first labelled
    one counts. WorkArena's tasks of the second level are the benchmark workarena++, as in table 9."""
    table, root = folder / "annotations.csv", folder / "trajectories"
    root = root / "cleaned" if (root / "cleaned").is_dir() else root  # judgments/ lies beside it
    found = defaultdict(list)
    for path in root.rglob("*.json"):
        for model in path.relative_to(root).parts[:-1]:
            found[model, path.stem].append(path)
    try:
        with open(table, newline="", encoding="utf-8") as file:
            rows = [[row[name].strip() for name in COLUMNS] for row in csv.DictReader(file, restval="")]
    except (OSError, KeyError) as error:
        raise ValueError(f"{table} can't be read: {error} (columns {', '.join(COLUMNS)})") from None
    labelled: dict[tuple[str, str, str], Example] = {}
    for benchmark, model, task, label in rows:
        if label.lower() not in LABELS or (benchmark, model, task) in labelled:
            continue
        if len(paths := found[model, task]) != 1:
            raise ValueError(f"{table}: {root} has {len(paths)} files {task}.json of {model}, not one")
        said = Label("", task, len(labelled), "", "", LABELS[label.lower()], source="people")
        plus = "++" if benchmark == "workarena" and "l2" in task.lower() else ""
        labelled[benchmark, model, task] = Example(said, read_episode(paths[0], benchmark + plus))
    return list(labelled.values())


def read_episode(path: Path, benchmark: str) -> Trajectory:
    """Return an episode's file as a trajectory without token ids. Actions' arguments stay text; the answer is
    what was last sent to the user."""
    episode = read_as(path, TypeAdapter(Episode), f"{path} is no episode of AgentRewardBench")
    turns, errors = [], [step.last_action_error for step in episode.steps[1:]]
    for step, error in zip(episode.steps, [*errors, ""], strict=True):
        action, shots = _ACTION.fullmatch(step.action), tuple(filter(None, [step.screenshot_path]))
        calls = (Call(action[1], {"text": action[2].strip().strip("'\"")}),) if action else ()
        parsed, feedback = Parsed(step.reasoning, calls), tuple(filter(None, [error]))
        turns.append(Turn(0, (), (), (), step.reasoning, shots, parsed, feedback, url=step.url))
    acted = tuple(turn for turn in turns if turn.parsed.calls)
    calls = [turn.parsed.calls[0] for turn in acted]
    sent = [call.arguments["text"] for call in calls if call.name == "send_msg_to_user"]
    # a step that did something shows what was there before it; one that did nothing, the end
    final = "" if turns[-1].parsed.calls else "".join(turns[-1].images)
    meta = {"benchmark": benchmark, "site": urlsplit(turns[0].url).hostname or ""}
    task = Task(path.stem, str(episode.goal), turns[0].url, meta=meta)
    stop, answer = (Stop.DONE, sent[-1]) if sent else (Stop.MAX_STEPS, "")
    return Trajectory(task, 0, turns=acted, stop=stop, answer=answer, final_image=final)
