"""What a hand does on a page, operation by operation: done by `replay`, said by `scripted_agent`.

    gui_steps --> {"op": "click", "selector": "#buy"} --find--> Target --> Operation.act | call | action

`OPERATIONS` has for each what mouse and keyboard do, the visual agent's tool call and the text agent's
action. What is not in the window is scrolled to first, as an agent has to, with the operation "scroll".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from playwright.async_api import Page

from minirl.agents.openwebrl import SCALE
from minirl.browser.session import Session
from minirl.types import BrowserFault, Stop

MEASURE = files("minirl.worlds").joinpath("measure.js").read_text(encoding="utf-8")
WINDOW_MS = 10_000  # for a window to open
GRID = 20  # of the coordinates that a visual agent says, from 0 to SCALE
Gui = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """Where an operation's element is, in CSS pixels: `box` is left, top, right and bottom. A drag goes to
    `to`; scrolling by `distance` pixels at the point `at` brings the element into the window."""

    box: tuple[float, ...] | None = None
    to: tuple[float, float] | None = None
    at: tuple[float, float] | None = None
    distance: float = 0.0

    @property
    def point(self) -> tuple[float, float]:
        box = self.box or (0.0, 0.0, 0.0, 0.0)
        return self.at or ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)


@dataclass(frozen=True)
class Operation:
    """One kind of operation. `tool` and `arguments` make the visual agent's call, from the operation and the
    points that it touches; `action` is the text agent's, which has no way to do what "" stands for."""

    act: Callable[[Page, Gui, Target], Awaitable[None]]
    tool: str
    arguments: Callable[[Gui, Sequence[Any]], dict[str, Any]]
    action: str


async def _type(page: Page, gui: Gui, target: Target) -> None:
    await page.keyboard.press("ControlOrMeta+A")  # in place of what is there
    await page.keyboard.type(gui["text"])


async def _drag(page: Page, gui: Gui, target: Target) -> None:
    assert target.to is not None
    await page.mouse.move(*target.point)
    await page.mouse.down()
    await page.mouse.move(*target.to, steps=4)
    await page.mouse.up()


async def _open(page: Page, gui: Gui, target: Target) -> None:
    async with page.context.expect_page(timeout=WINDOW_MS) as opened:
        await page.mouse.click(*target.point)
    await (await opened.value).wait_for_load_state("domcontentloaded")


async def _scroll(page: Page, gui: Gui, target: Target) -> None:
    await page.mouse.move(*target.point)
    await page.mouse.wheel(0, target.distance)


OPERATIONS = {
    "click": Operation(
        lambda page, gui, target: page.mouse.click(*target.point),
        "click",
        lambda gui, points: {"point_2d": points[0]},
        'do(action="Click", element="{number}")',
    ),
    "open": Operation(  # a click that opens another window
        _open,
        "click",
        lambda gui, points: {"point_2d": points[0]},
        'do(action="Click", element="{number}")',
    ),
    "hover": Operation(
        lambda page, gui, target: page.mouse.move(*target.point),
        "hover",
        lambda gui, points: {"point_2d": points[0]},
        'do(action="Hover", element="{number}")',
    ),
    "type_text": Operation(
        _type,
        "write",
        lambda gui, points: {"message": gui["text"]},
        'do(action="Type", argument={text}, element="{number}")',
    ),
    "key_press": Operation(
        lambda page, gui, target: page.keyboard.press(gui["key"]),
        "press_keys",
        lambda gui, points: {"keys": [gui["key"]]},
        'do(action="Press Enter")',
    ),
    "drag": Operation(
        _drag,
        "drag",
        lambda gui, points: {"start_point_2d": points[0], "end_point_2d": points[1]},
        "",
    ),
    "scroll": Operation(
        _scroll,
        "scroll",
        lambda gui, points: {"direction": gui["to"], "amount": gui["amount"], "point_2d": points[0]},
        'do(action="Scroll {direction}")',
    ),
}


async def measure(session: Session, name: str, *given: Any) -> Any:
    """Return the result of measure.js's function `name` on the current page. BrowserFault if it is null."""
    found = await session.do(session.page.evaluate(MEASURE, [name, *given]))
    if found is None:
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows no element {' '.join(map(str, given))}")
    return found


async def find(session: Session, gui: Gui) -> tuple[Gui, Target]:
    """Return an operation and its target; the operation is a scroll in its place while its element is not in
    the window. BrowserFault if the page shows no such element."""
    selector = gui.get("selector", "")
    if not selector:
        return gui, Target()
    left, top, right, bottom, x, y, distance = await measure(session, "box", selector)
    box = (left, top, right, bottom)
    if distance:
        share = min(1.0, round(abs(distance) / session.height, 2))
        way = {"op": "scroll", "selector": selector, "to": "down" if distance > 0 else "up", "amount": share}
        return way, Target(box, at=(x, y), distance=distance)
    if "onto" in gui:
        left, top, right, bottom, *_ = await measure(session, "box", gui["onto"])
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        return gui, Target(box, to=((left + right) / 2, (top + bottom) / 2), at=middle)
    if gui["op"] == "drag":
        start, end, height = await measure(session, "thumb", selector, gui["to"])
        return gui, Target(box, to=(end, height), at=(start, height))
    if gui["op"] == "scroll":  # a list, until a row is its first
        distance = await measure(session, "distance", selector, gui["to"].split()[-1])
        way = {"to": "down" if distance > 0 else "up", "amount": round(abs(distance) / session.height, 3)}
        return {**gui, **way}, Target(box, distance=distance)
    return gui, Target(box)


async def is_visible(session: Session, gui: Gui) -> bool:
    """Return whether an operation can be done without any other before it."""
    if not gui.get("selector"):
        return True
    found = await session.do(session.page.evaluate(MEASURE, ["box", gui["selector"]]))
    return found is not None and not found[-1]


def call(gui: Gui, target: Target, width: float, height: float) -> dict[str, Any]:
    """Return the visual agent's call that does an operation, in its own frame of 0 to SCALE."""
    points = []
    if target.at is None and target.box is not None:
        points.append(middle(target.box, width, height))
    points += [
        [round(x * SCALE / width), round(y * SCALE / height)] for x, y in filter(None, (target.at, target.to))
    ]
    operation = OPERATIONS[gui["op"]]
    return {"name": operation.tool, "arguments": operation.arguments(gui, points)}


def action(gui: Gui, number: int | None) -> str:
    """Return the text agent's action that does an operation on a numbered element."""
    way = str(gui.get("to", "")).capitalize()
    return OPERATIONS[gui["op"]].action.format(number=number, text=repr(gui.get("text", "")), direction=way)


def middle(box: Sequence[float], width: float, height: float) -> list[int]:
    """Return the middle of left, top, right and bottom as a click's point, rounded to a multiple of GRID if
    that is inside too: such coordinates are single tokens for a small vocabulary."""
    point = []
    for low, high, size in ((box[0], box[2], width), (box[1], box[3], height)):
        exact = (low + high) / 2 * SCALE / size
        rounded = round(exact / GRID) * GRID
        point.append(rounded if low < rounded * size / SCALE < high else round(exact))
    return point
