"""Recorded steps: a screenshot, what was done there, and how right a response is. No browser is needed.

    {"instruction": "...", "img_filename": "a.png", "action": "click", "bbox": [8, 40, 96, 64], "history": ""}

is a record of the released loader: the picture lies beside the file, `bbox` and other points are its pixels.
Ours say further what was typed (`text`), scrolled or pressed (`value`), in which box a drag ended (`to`), and
the `thought` to clone. An episode is one turn before the picture, behind the turns that `history` tells of.

Paper: AutoWebWorld, section 5.1 and appendix D.4. ScreenSpot-V2 and -Pro (section 5.2.2) are read from their
files, too. Deviations:

1. A reward is the mean of the three, not their sum, so that 1 is a success.
2. A history that is not "Step 1: <think>...</action>" and so on stands behind the instruction.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import Field, FiniteFloat

from minirl.agents.autowebworld import ACTION, ACTIONS, action_of, parse
from minirl.benchmarks.fields import Record, Text, read
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.console import say
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.types import Call, Fields, Json, Parsed, Score, Task, Trajectory, Turn

PLATFORMS = {"windows": "desktop", "macos": "desktop", "ios": "mobile", "android": "mobile"}  # else the web
AIMED = ("click", "hover")  # the actions of which the released code checks the point
QUOTED_NAME = re.compile(r"'action':\s*'(\w+)'")
BARE_NAME = re.compile(r"'action':\s*(\w+)")
POINT = re.compile(r"\[(\d+),\s*(\d+)]")
# In linear time: what has led to </think> and <action> is never looked at again
FORMAT = re.compile(r"<think>(?:(?!</think>\s*<action>).)*+</think>\s*<action>.*</action>", re.DOTALL)
STEP = re.compile(r"Step \d+: (?=<think>)")


class StepGoal(Record):
    """The right action. Boxes are left, top, right and bottom."""

    action: Annotated[str, Field(pattern=f"^({'|'.join(ACTIONS)})$")]
    bbox: list[int] = []
    text: str = ""
    value: str = ""
    to: list[int] = []


class StepRecord(StepGoal):
    instruction: Text
    img_filename: Text
    history: str = ""
    thought: str = ""
    benchmark: str = "recorded"
    site: str = ""
    difficulty: str = ""


class ScreenSpotBox(Record):
    bbox: Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)]


def screenspot_step(record: Json) -> Json:
    """Return a record of ScreenSpot as a recorded step: a click, by platform and kind. Boxes of V2 are left,
    top, width and height, those of Pro left, top, right and bottom."""
    left, top, third, fourth = map(round, read(ScreenSpotBox, record).bbox)
    step = {**record, "action": "click"}
    if "ui_type" in record:
        step |= {"benchmark": "screenspot-pro", "site": record["platform"], "difficulty": record["ui_type"]}
    else:
        site = PLATFORMS.get(record["data_source"], "web")
        step |= {"benchmark": "screenspot-v2", "site": site, "difficulty": record["data_type"]}
        third += left
        fourth += top
    return step | {"bbox": [left, top, third, fourth]}


def recorded_task(record: Json, folder: Path, id: str) -> Task:
    """Return a record of a file in `folder` as a task. ValueError names the wrong field."""
    from minirl.model import open_picture  # it imports torch, which takes seconds

    if "data_type" in record or "ui_type" in record:
        record = screenspot_step(record)
    step = read(StepRecord, record)
    path = (folder / step.img_filename).resolve()
    if not path.is_relative_to(folder.resolve()):  # it will be shown to models
        raise ValueError(f"img_filename: {step.img_filename} must lie below {folder}")
    with open_picture(path) as picture:
        width, height = picture.size
    if step.action in AIMED and step.bbox:
        left, top, right, bottom = step.bbox
        # the first ScreenSpot's boxes are shares of the picture, of which rounding leaves a pixel
        if right - left < 2 or bottom - top < 2 or left >= width or top >= height:
            raise ValueError(f"bbox: {step.bbox} is no box of pixels in a picture of {width} x {height}")

    goal = {}
    for name in ("action", "bbox", *ACTIONS[step.action]):
        value = getattr(step, name, None)
        if value:
            goal[name] = value
    instruction = step.instruction
    past = read_history(step.history)
    if past is None:
        past = []
        instruction += f"\n\nHISTORY:\n{step.history}"
    meta = {"size": [width, height], "past": past, "thought": step.thought, "benchmark": step.benchmark}
    meta["picture"] = digest_of(path)
    if step.site:
        meta["site"] = step.site
    if step.difficulty:
        meta["difficulty"] = step.difficulty
    return Task(id, instruction, path.as_uri(), goal, meta)


def digest_of(picture: Path) -> str:
    """Return by what a picture is known wherever it lies, "" of what is no file."""
    return sha256(picture.read_bytes()).hexdigest() if picture.is_file() else ""


def read_history(history: str) -> list[Any] | None:
    """Return thought and action of each turn before a step; None if it is not written as turns.

    >>> read_history("Step 1: <think>on</think><action>{'action': 'scroll', 'value': 'down'}</action>")
    [['on', {'action': 'scroll', 'value': 'down'}]]
    """
    before, *responses = STEP.split(history)
    if before.strip():
        return None
    past = []
    for response in responses:
        parsed = parse(response) if FORMAT.fullmatch(response.strip()) else Parsed()
        if not parsed.calls:
            return None
        past += [[parsed.thought, {"action": call.name, **call.arguments}] for call in parsed.calls]
    return past


def is_recorded(task: Task) -> bool:
    return task.start_url.startswith("file:///")


def rewards(response: str, goal: Fields, scale: Sequence[float]) -> dict[str, float]:
    """Return the rewards for action, coordinate and format, each 0 or 1, as the released code gives them.
    `scale` leads from the model's pixels to the recorded ones, in x and in y.

    >>> rewards("<action>{'action': 'scroll'}</action>", {"action": "scroll"}, (1, 1))
    {'action': 1.0, 'coordinate': 1.0, 'format': 0.0}
    """
    match = ACTION.search(response)
    action = match[1] if match else ""
    name = QUOTED_NAME.search(action) or BARE_NAME.search(action)
    is_right = name is not None and name[1] == goal["action"]
    is_placed = is_right
    if is_right and goal["action"] in AIMED:
        found = POINT.search(action)
        point = [*map(float, found.groups())] if found else (0, 0)
        is_placed = in_box(point, goal.get("bbox") or (0, 0, 0, 0), scale)
    is_format = FORMAT.fullmatch(response) is not None
    return {"action": float(is_right), "coordinate": float(is_placed), "format": float(is_format)}


def in_box(point: Sequence[float], box: Sequence[int], scale: Sequence[float]) -> bool:
    """Return True if a point, cut to whole recorded pixels, is in a box or on its edge."""
    x = point[0] * scale[0] // 1
    y = point[1] * scale[1] // 1
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


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


class RecordedBenchmark(JudgedBenchmark):
    judged = False
    recorded = True

    @asynccontextmanager
    async def session(self, harness: Harness, task: Task) -> AsyncIterator[Any]:
        """Open a step's picture, a RecordedPage."""
        agent: Any = harness.agent  # AutoWebWorld's, which alone takes recorded steps
        picture = await asyncio.to_thread(picture_path(task).read_bytes)
        width, height = task.meta["size"]
        model_width, model_height = agent.resized(width, height)
        scale = (width / model_width, height / model_height)
        opening = "<think>" if harness.preprocessor.chat.opens_think else ""
        yield RecordedPage(task.start_url, picture, scale, opening)

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the picture's content, wherever it lies, with the instruction."""
        return {(task.meta.get("picture", task.start_url), task.instruction)}

    async def score(self, task: Task, session: Any, answer: str) -> Score:
        """Return how right a whole response is; for ScreenSpot whether its first action clicks into the box,
        in any form that the agent reads."""
        response = session.opening + answer
        if task.meta["benchmark"] == "recorded":
            parts = rewards(response, task.goal, session.scale)
            return Score(mean(parts.values()), {"rewards": parts})
        match parse(response).calls:
            case [Call("click", {"coordinate": point}), *_]:
                return Score(float(in_box(point, task.goal["bbox"], session.scale)))
        return Score(0.0)


def picture_path(task: Task) -> Path:
    return Path(url2pathname(urlsplit(task.start_url).path))


def demonstrations(tasks: Sequence[Task], harness: Harness) -> list[Trajectory]:
    """Return the right response to every recorded step, to be cloned. Those are left out, and counted, whose
    record does not tell a text or a direction, as the released ones."""
    agent: Any = harness.agent  # AutoWebWorld's, which alone has `say`
    trajectories = []
    for task in tasks:
        action = action_of(task.goal)
        if action is None:
            continue
        response = agent.say(task.meta["thought"], action, task.meta["size"])
        screenshot = harness.images.put(picture_path(task).read_bytes())
        turn = Turn(0, (), (), (), response, images=(screenshot,), parsed=agent.parse(response))
        trajectories.append(tokenised(Trajectory(task, 0, turns=(turn,), success=True, reward=1.0), harness))
    n_left_out = len(tasks) - len(trajectories)
    if n_left_out:
        reason = "their records lack what was typed, scrolled or dragged"
        say(f"{n_left_out} of {len(tasks)} recorded steps can't be cloned: {reason}")
    return trajectories
