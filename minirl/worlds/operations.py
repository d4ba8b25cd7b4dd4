"""What a hand does on a page, operation by operation: done by `replay`, said by `scripted_agent`.

    gui_steps --> {"op": "click", "selector": "#buy"} --find--> Target --> act | call | action

`act` moves mouse and keyboard, `call` is the visual agent's tool call and `action` the text agent's action,
by the table operations.toml. What is not in the window is scrolled to first, as an agent has to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minirl.agents.openwebrl import SCALE
from minirl.browser.session import Session
from minirl.types import BrowserFault, Stop
from minirl.worlds.tables import read_table, read_text

MEASURE = read_text("measure.js")
OPERATIONS = read_table("operations")
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
        onto = await measure(session, "box", gui["onto"])
        return gui, Target(box, to=Target(tuple(onto[:4])).point, at=Target(box).point)
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


async def act(session: Session, gui: Gui, target: Target) -> None:
    """Do an operation with mouse and keyboard."""
    mouse, keyboard = session.page.mouse, session.page.keyboard
    match gui["op"]:
        case "click":
            await session.do(mouse.click(*target.point))
        case "open":  # a click that opens another window, which becomes the page
            async with session.page.context.expect_page(timeout=WINDOW_MS) as opened:
                await session.do(mouse.click(*target.point))
            await session.do((await opened.value).wait_for_load_state("domcontentloaded"))
        case "hover":
            await session.do(mouse.move(*target.point))
        case "type_text":  # in place of what is there
            await session.do(keyboard.press("ControlOrMeta+A"))
            await session.do(keyboard.type(gui["text"]))
        case "key_press":
            await session.do(keyboard.press(gui["key"]))
        case "drag":
            assert target.to is not None
            await session.do(mouse.move(*target.point))
            await session.do(mouse.down())
            await session.do(mouse.move(*target.to, steps=4))
            await session.do(mouse.up())
        case "scroll":
            await session.do(mouse.move(*target.point))
            await session.do(mouse.wheel(0, target.distance))


def call(gui: Gui, target: Target, width: float, height: float) -> dict[str, Any]:
    """Return the visual agent's call that does an operation, in its own frame of 0 to SCALE."""
    places = (target.at or target.point, target.to or target.point)
    point, end = ([round(x * SCALE / width), round(y * SCALE / height)] for x, y in places)
    if target.at is None and target.box is not None:
        point = middle(target.box, width, height)
    said, told = OPERATIONS[gui["op"]], {**gui, "point": point, "end": end, "keys": [gui.get("key")]}
    return {"name": said["tool"], "arguments": {name: told[what] for name, what in said["arguments"].items()}}


def action(gui: Gui, number: int | None) -> str:
    """Return the text agent's action that does an operation on a numbered element."""
    told = {"to": str(gui.get("to", "")).capitalize(), "text": repr(gui.get("text", "")), "number": number}
    return str(OPERATIONS[gui["op"]]["action"]).format(**told)


def middle(box: Sequence[float], width: float, height: float) -> list[int]:
    """Return the middle of left, top, right and bottom as a click's point, rounded to a multiple of GRID if
    that is inside too: such coordinates are single tokens for a small vocabulary."""
    point = []
    for low, high, size in ((box[0], box[2], width), (box[1], box[3], height)):
        exact = (low + high) / 2 * SCALE / size
        rounded = round(exact / GRID) * GRID
        point.append(rounded if low < rounded * size / SCALE < high else round(exact))
    return point
