"""What a hand does on a page: where it does it, and how each agent says it.

    gui_steps --> {"op": "click", "selector": "#buy"} --find--> Operation --> an agent's words

An `Operation` is all that is known of one act of mouse or keyboard. operations.toml turns it into the visual
agent's tool call, the text agent's action, and AutoWebWorld's action in a recorded step.
Paper: AutoWebWorld, section 4.3.

1. What is not in the window is scrolled to first, as an agent has to; a scroll is an operation of its own.
2. Points are the middles of elements, rounded where that changes nothing (see `middle`).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minirl.agents.openwebrl_actions import SCALE
from minirl.types import BrowserFault, Fields, Json, Point, Session, Stop
from minirl.worlds.interpreter import State
from minirl.worlds.looks import read_table, text_of
from minirl.worlds.render import read_state

MEASURE = text_of("measure.js")
OPERATIONS = read_table("operations")
GRID = 20  # of the coordinates that a visual agent says, from 0 to SCALE
Box = tuple[float, ...]  # left, top, right and bottom, in CSS pixels


@dataclass(frozen=True)
class Operation:
    """One act of mouse or keyboard, and where it takes place."""

    op: str  # a table of operations.toml
    selector: str = ""
    box: Box | None = None  # of the element; None for a key
    start: Point | None = None  # where the pointer goes to; None: the middle of the box
    end: Point | None = None  # of a drag
    text: str = ""  # what is typed, the key, or the way to scroll
    amount: float = 0.0  # how far to scroll, in heights of the window
    is_detour: bool = False  # a scroll towards the element of another operation


async def measure(session: Session, name: str, *given: Any) -> Any:
    """Return the result of measure.js's function `name` on the current page. BrowserFault if it is null."""
    result = await session.do(session.page.evaluate(MEASURE, [name, *given]))
    if result is None:
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows no element {' '.join(map(str, given))}")
    return result


async def find(session: Session, gui: Fields) -> Operation:
    """Return an operation of `gui_steps` with its place: a scroll of the window or a list in its stead while
    its element is out of sight. BrowserFault if the page shows no such element."""
    op = gui["op"]
    selector = gui.get("selector", "")
    text = gui.get("text", gui.get("key", ""))
    if not selector:
        return Operation(op, text=text)
    box, detour = await _look(session, selector)
    if detour:
        return detour
    if "onto" in gui:
        target, detour = await _look(session, gui["onto"])
        return detour or Operation(op, selector, box, start=centre(box), end=centre(target))
    if op == "drag":
        start, end, height = await measure(session, "thumb", selector, gui["to"])
        return Operation(op, selector, box, start=(start, height), end=(end, height))
    if op == "scroll":
        distance = await measure(session, "distance", selector, gui["to"].split()[-1])
        share = round(abs(distance) / session.height, 4)
        return Operation(op, selector, box, text=_way(distance), amount=share)
    return Operation(op, selector, box, text=text)


async def _look(session: Session, selector: str) -> tuple[Box, Operation | None]:
    """Return an element's box, and the scroll that brings it into the window if it is not there."""
    *box, x, y, distance = await measure(session, "box", selector)
    if not distance:
        return tuple(box), None
    share = min(1.0, round(abs(distance) / session.height, 2))
    detour = Operation("scroll", selector, tuple(box), (x, y), None, _way(distance), share, is_detour=True)
    return tuple(box), detour


def _way(distance: float) -> str:
    return "down" if distance > 0 else "up"


async def is_visible(session: Session, gui: Fields) -> bool:
    """Return whether an operation can be done without any other before it."""
    if not gui.get("selector"):
        return True
    measured = await session.do(session.page.evaluate(MEASURE, ["box", gui["selector"]]))
    return measured is not None and not measured[-1]


async def compare(session: Session, expected: State) -> None:
    """Raise BrowserFault if the current page is not in the expected state."""
    state = await session.do(read_state(session.page))
    observed = state.key() if state else "no state"
    if observed != expected.key():
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows {observed}, not {expected.key()}")


def centre(box: Sequence[float]) -> Point:
    left, top, right, bottom = box
    return (left + right) / 2, (top + bottom) / 2


def middle(box: Sequence[float], width: float, height: float) -> list[int]:
    """Return the middle of a box as a click's point from 0 to SCALE, rounded to a multiple of GRID if that is
    inside too: such coordinates are single tokens for a small vocabulary.

    >>> middle((60, 80, 140, 120), 480, 360)  # 208 and 278 are rounded
    [200, 280]
    """
    point = []
    left, top, right, bottom = box
    for low, high, size in ((left, right, width), (top, bottom, height)):
        exact = (low + high) / 2 * SCALE / size
        rounded = round(exact / GRID) * GRID
        point.append(rounded if low < rounded * size / SCALE < high else round(exact))
    return point


def tool_calls(operation: Operation, width: float, height: float) -> list[Json]:
    """Return the visual agent's call that does an operation in a window of this size, in CSS pixels; several
    where more than the window is to be scrolled."""

    def scaled(point: Point) -> list[int]:
        x, y = point
        return [round(x * SCALE / width), round(y * SCALE / height)]

    count = max(1, math.ceil(operation.amount))
    amount = round(operation.amount / count, 4)
    fields: Json = {"text": operation.text, "keys": [operation.text], "amount": amount}
    if operation.start:
        fields["point"] = scaled(operation.start)
    elif operation.box:
        fields["point"] = middle(operation.box, width, height)
    if operation.end:
        fields["end"] = scaled(operation.end)
    words = OPERATIONS[operation.op]
    arguments = {name: fields[field] for name, field in words["arguments"].items()}
    return [{"name": words["tool"], "arguments": arguments}] * count


def text_action(operation: Operation, number: int | None) -> str:
    """Return the text agent's action that does an operation on a numbered element."""
    text = operation.text
    fields = {"quoted": repr(text), "direction": text.capitalize(), "message": json.dumps(text)}
    return str(OPERATIONS[operation.op]["action"]).format(number=number, **fields)


def row_of(operation: Operation, words: str) -> Json:
    """Return an operation as a recorded step tells it: AutoWebWorld's action, where it takes place in whole
    pixels with the words there, and what it types or which way it scrolls."""
    table = OPERATIONS[operation.op]
    row: Json = {"action": table.get("row", operation.op), "bbox": []}
    if operation.op == "drag":
        # Boxes of no size: where the button is pressed, and where it is released.
        row["bbox"] = [round(side) for side in 2 * (operation.start or ())]
        row["to"] = [round(side) for side in 2 * (operation.end or ())]
    elif "point_2d" in table["arguments"] and operation.op != "scroll":
        row["bbox"] = [round(side) for side in operation.box or ()]
    if row["bbox"]:
        row["words"] = words
    if "tells" in table:
        row[table["tells"]] = operation.text
    return row
