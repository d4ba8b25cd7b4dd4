"""Recorded steps: a screenshot, what was done there, and how right a response is. No browser is needed.

    {"instruction": "...", "img_filename": "a.png", "action": "click", "bbox": [8, 40, 96, 64], "history": ""}

is a record of the released loader: the picture lies beside the file, `bbox` and other points are its pixels.
Ours say further what a response must hold (`text`, `value`, or `to`, the box in which a drag ends) and the
`thought` to clone. An episode is one turn before the picture, behind the turns that `history` tells of.

Paper: AutoWebWorld, section 4.3 and appendix D.4. Deviations: a reward is the mean of the three, not their
sum, so that 1 is a success; history that is not "Step 1: <think>...</action>" and so on stands behind the
instruction, as there. ScreenSpot-V2 and -Pro (section 5.2.2) are read from their files, too.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from PIL import Image, UnidentifiedImageError
from pydantic import AliasChoices, Field, model_validator

from minirl.agents.autowebworld import ACTION, ACTIONS, action_of, parse
from minirl.agents.openwebrl_actions import normal
from minirl.benchmarks.fields import Record, Text, read
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.console import say
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.types import BrowserFault, Score, Stop, Task, Trajectory, Turn

ENDS = {"from": "bbox", "to": "to"}  # of a drag, and the boxes that they lie in
PLATFORMS = {"windows": "desktop", "macos": "desktop", "ios": "mobile", "android": "mobile"}  # else the web
AIMED = ("click", "hover")  # the actions of which the released code checks the point
QUOTED, BARE = re.compile(r"'action':\s*'(\w+)'"), re.compile(r"'action':\s*(\w+)")
POINT = re.compile(r"\[(\d+),\s*(\d+)]")
FORMAT = re.compile(r"<think>.*?</think>\s*<action>.*?</action>", re.DOTALL)
STEP = re.compile(r"Step \d+: (<think>.*?</think>\s*<action>.*?</action>)\s*", re.DOTALL)


class Goal(Record):
    action: str
    bbox: list[int] = []
    text: str = ""
    value: str = ""
    to: list[int] = []

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.action not in ACTIONS:
            raise ValueError(f"there is no action {self.action[:40]!r}; the actions are {', '.join(ACTIONS)}")
        for name, box in (("bbox", self.bbox), ("to", self.to)):
            if box and not (len(box) == 4 and box[0] <= box[2] and box[1] <= box[3]):
                raise ValueError(f"{name} must be left, top, right and bottom, not {box!r:.80}")
        if self.action in AIMED and not self.bbox:
            raise ValueError(f"{self.action} needs a bbox")
        return self


class Row(Goal):
    instruction: Text
    img_filename: Text
    history: str = ""
    thought: str = ""
    benchmark: str = "recorded"
    site: str = ""
    difficulty: str = ""


class ScreenSpot(Record):
    bbox: Annotated[list[float], Field(min_length=4, max_length=4)]
    kind: str = Field(validation_alias=AliasChoices("data_type", "ui_type"))  # text or icon
    source: str = Field(validation_alias=AliasChoices("data_source", "platform"))


def with_click(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of ScreenSpot as a row: a click, by platform and kind. Boxes of V2 are left, top, width
    and height, those of Pro left, top, right and bottom. ValueError names the wrong field."""
    found, is_pro = read(ScreenSpot, record), "ui_type" in record
    left, top, a, b = map(round, found.bbox)
    box = [left, top, a, b] if is_pro else [left, top, left + a, top + b]
    site = found.source if is_pro else PLATFORMS.get(found.source, "web")
    names = {"benchmark": "screenspot-pro" if is_pro else "screenspot-v2", "site": site}
    return {**record, "action": "click", "bbox": box, "difficulty": found.kind, **names}


def task_of(record: Any, folder: Path, id: str) -> Task:
    """Return a row of a file in `folder` as a task. ValueError names the wrong field, or the picture."""
    row = read(Row, record if {"data_type", "ui_type"}.isdisjoint(record) else with_click(record))
    path = (folder / row.img_filename).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"the picture {row.img_filename!r:.80} must be in the file's folder")
    try:
        with Image.open(path) as picture:  # reads its header
            size = picture.size
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"the picture can't be read: {error}") from None
    told = ("action", "bbox", *ACTIONS[row.action])
    goal = {name: value for name in told if (value := getattr(row, name, None))}
    past, instruction = [parse(said) for said in STEP.findall(row.history)], row.instruction
    if STEP.sub("", row.history).strip() or not all(step.calls for step in past):
        past, instruction = [], f"{instruction}\n\nHISTORY:\n{row.history}"
    steps = [[step.thought, {"action": c.name, **c.arguments}] for step in past for c in step.calls]
    meta = {"size": list(size), "past": steps, "thought": row.thought, "benchmark": row.benchmark}
    meta |= {name: value for name in ("site", "difficulty") if (value := getattr(row, name))}
    return Task(id, instruction, path.as_uri(), goal, meta)


def is_recorded(task: Task) -> bool:
    return task.start_url.startswith("file:///")


def rewards(said: str, goal: Mapping[str, Any], scale: Sequence[float], contents: bool) -> dict[str, float]:
    """Return the rewards for action, coordinate and format, each 0 or 1, as the released code gives them for
    a response. `scale` leads from the model's pixels to the recorded ones. With `contents` what else the
    action holds is checked where the goal tells it, as part of the coordinate.

    >>> rewards("<action>{'action': 'scroll'}</action>", {"action": "scroll"}, (1, 1), False)
    {'action': 1.0, 'coordinate': 1.0, 'format': 0.0}
    """
    found = ACTION.search(said)
    inside = found[1] if found else ""
    named = QUOTED.search(inside) or BARE.search(inside)
    is_right = is_placed = named is not None and named[1] == goal["action"]
    if is_right and goal["action"] in AIMED:
        point = POINT.search(inside)
        is_placed = within(point.groups() if point else (0, 0), goal.get("bbox") or (0, 0, 0, 0), scale)
    elif is_right and contents:
        is_placed = has_contents(said, goal, scale)
    is_format = FORMAT.fullmatch(said) is not None
    return {"action": float(is_right), "coordinate": float(is_placed), "format": float(is_format)}


def within(point: Sequence[Any], box: Sequence[int], scale: Sequence[float]) -> bool:
    """Return True if a point, cut to whole recorded pixels, is in a box or on its edge."""
    try:
        x, y = (int(int(length) * by) for length, by in zip(point, scale, strict=True))
    except (ValueError, OverflowError):  # of thousands of digits
        return False
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def has_contents(said: str, goal: Mapping[str, Any], scale: Sequence[float]) -> bool:
    """Return True if a response has what the goal tells of: its text, but for blanks and capitals, its
    direction or keys, the box in which a drag begins and that in which it ends."""
    told = {"text", "value", "to"} | ({"bbox"} if goal["action"] == "drag" else set())
    if not told & goal.keys():
        return True
    calls = parse(said).calls
    if not calls or calls[0].name != goal["action"]:
        return False
    given = calls[0].arguments
    if "text" in goal:
        return given["text"].casefold().split() == goal["text"].casefold().split()
    if "value" in goal:
        one, other = (normal("".join(value.split())).casefold() for value in (given["value"], goal["value"]))
        return one == other
    return all(within(given[end], goal[key], scale) for end, key in ENDS.items() if key in goal)


@dataclass
class RecordedPage:
    """A picture in a browser's place: as much of a `types.Session` as an agent needs to look at it."""

    url: str
    picture: bytes
    scale: Sequence[float]  # from the model's pixels to its own
    opening: str  # of a response, where the chat template has written it

    async def start(self, url: str) -> None: ...

    async def tabs(self) -> tuple[list[tuple[str, str]], int]:
        return [(self.url, "")], 0

    async def screenshot(self) -> bytes:
        return self.picture

    async def blocked(self) -> str:
        return ""

    def diagnostics(self) -> dict[str, float]:
        return {}


@dataclass
class RecordedBenchmark(JudgedBenchmark):
    contents: bool = False  # whether the content-aware rewards are asked for
    judged, recorded = False, True

    @asynccontextmanager
    async def session(self, harness: Harness, task: Task) -> AsyncIterator[Any]:
        """Open a step's picture, a RecordedPage. BrowserFault if it is gone."""
        size, images = task.meta["size"], harness.preprocessor.images
        assert images is not None, "the agent has checked that the model can see"
        try:
            picture = await asyncio.to_thread(picture_of(task).read_bytes)
        except OSError as error:
            raise BrowserFault(Stop.SITE_ERROR, f"{task.id}: {error}") from None
        scales = [to / of for to, of in zip(size, images.resized(*size), strict=True)]
        opening = "<think>" if harness.preprocessor.chat.opens_think else ""
        yield RecordedPage(task.start_url, picture, scales, opening)

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        return {(task.start_url, task.instruction)}

    async def score(self, task: Task, session: Any, answer: str) -> Score:
        """Return how right a whole response is; of ScreenSpot only the point counts."""
        found = rewards(session.opening + answer, task.goal, session.scale, self.contents)
        is_step = task.meta["benchmark"] == "recorded"
        return Score(mean(found.values()) if is_step else found["coordinate"], {"rewards": found})


def picture_of(task: Task) -> Path:
    return Path(url2pathname(urlsplit(task.start_url).path))


def demonstrations(tasks: Sequence[Task], harness: Harness) -> list[Trajectory]:
    """Return the right response to every recorded step, to be cloned. Those are left out, and counted, whose
    record does not tell a text or a direction, as the released ones."""
    out = []
    for task in tasks:
        if (action := action_of(task.goal)) is None:
            continue
        agent: Any = harness.agent
        said = agent.say(task.meta["thought"], action, task.meta["size"])
        images = (harness.images.put(picture_of(task).read_bytes()),)
        turn = Turn(0, (), (), (), said, images=images, parsed=agent.parse(said))
        out.append(tokenised(Trajectory(task, 0, turns=(turn,), success=True, reward=1.0), harness))
    if len(out) < len(tasks):
        left_out = f"{len(tasks) - len(out)} of {len(tasks)} recorded steps"
        say(f"{left_out} can't be cloned: their records lack what was typed, scrolled or dragged")
    return out
