"""Solutions acted out in Chromium, with every step's state compared with the interpreter's.

    gui_steps --> {"op": "click", "selector": "#buy"} --find--> Target --> act | call | action

`replay` acts a path out and returns the box of every element that was touched, or the reason why it is no
demonstration. What a hand does is done by `act` with mouse and keyboard; `call` is the visual agent's tool
call and `action` the text agent's action, by the table operations.toml. What is not in the window is scrolled
to first, as an agent has to.
Paper: AutoWebWorld, section 4.3 (execution-based filtering). Deviation: there, a failed click is a warning
and the page is believed to be where the trace says; here the page's state is read after every action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minirl.agents.openwebrl import SCALE
from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.samplers.endpoint import ask_all
from minirl.types import BrowserFault, Session, Stop, Task, ToolFailure
from minirl.worlds.interpreter import State, World, apply, initial_state
from minirl.worlds.looks import read_table, text_of
from minirl.worlds.render import SiteServer, read_state
from minirl.worlds.search import Step, solve
from minirl.worlds.solutions import solution_of
from minirl.worlds.widgets import gui_steps

MOST_SCROLLS = 10  # until an element must be in the window
MEASURE = text_of("measure.js")
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


@dataclass(frozen=True)
class Grounded:
    """One operation of mouse or keyboard: `box` is left, top, right and bottom in CSS pixels, `text` what was
    typed, the key, or the way that was scrolled, `picture` the screenshot before it (PNG), `words` those of
    the element, `ends` the x and y of a drag's two. With pictures a path ends in an `answer`."""

    action_id: str
    op: str
    selector: str
    box: tuple[float, ...] | None
    text: str = ""
    picture: bytes = b""
    words: str = ""
    ends: tuple[float, ...] = ()


@dataclass
class Replay:
    """A path acted out. `reason` is empty if the page was in the predicted state after every action."""

    steps: Sequence[Step]
    grounded: list[Grounded] = field(repr=False, default_factory=list)
    reason: str = ""


async def replay(session: Session, world: World, steps: Sequence[Step], pictures: bool = False) -> Replay:
    """Act a path out on a page that shows the world's first state."""
    state, place, grounded, reason = initial_state(world.fsm), "at the start", [], ""
    try:
        await compare(session, state)
        for step in steps:
            place = step.action_id
            for wanted in gui_steps(world, state, step):
                for _ in range(MOST_SCROLLS):
                    gui, target = await find(session, wanted)
                    grounded.append(await grounding(session, place, gui, target, pictures))
                    await act(session, gui, target)
                    if gui["op"] != "scroll":
                        break
                    await measure(session, "frames")  # scrolling tells the page only with the next frame
                    if wanted["op"] == "scroll" and target.at is None:  # the list, no longer the window
                        break
            await measure(session, "frames")
            state = apply(world.fsm, state, step.action_id, step.params)
            await compare(session, state)
        if pictures:
            grounded.append(Grounded("", "answer", "", None, picture=await session.screenshot()))
    except (ToolFailure, BrowserFault) as failure:
        reason = f"{place}: {str(failure) or type(failure).__name__}"
    return Replay(steps, grounded, reason)


async def grounding(session: Session, place: str, gui: Gui, target: Target, pictures: bool) -> Grounded:
    """Return what is told of an operation that is about to be done."""
    selector = gui.get("selector", "")
    picture = await session.screenshot() if pictures else b""
    words = await measure(session, "words", selector) if pictures and selector else ""
    text = gui["to"] if gui["op"] == "scroll" else gui.get("text", gui.get("key", ""))
    ends = (*target.point, *target.to) if target.to else ()
    return Grounded(place, gui["op"], selector, target.box, text, picture, words, ends)


async def compare(session: Session, expected: State) -> None:
    """Raise BrowserFault if the current page is not in the expected state."""
    found = await session.do(read_state(session.page))
    if found is None or found.key() != expected.key():
        shown = found.key() if found else "no state"
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows {shown}, not {expected.key()}")


async def replay_sites(
    worlds: Sequence[World], config: BrowserConfig, tasks: Sequence[Task] = (), pictures: bool = False
) -> dict[tuple[str, str], Replay]:
    """Return a shortest solution, acted out, of every task, or of every terminal page of a site without any;
    `config.episodes` run at a time. What has no solution has a Replay too."""
    ways = {}
    for world in worlds:
        found = {task.id: solution_of(task, world) for task in tasks if task.meta.get("world") == world.name}
        found = found or {page: solve(world, {"page": page}) for page in world.fsm.terminal_pages}
        ways |= {(world.name, name): (world, steps) for name, steps in found.items()}

    async def visit(way: tuple[World, list[Step] | None]) -> Replay:
        world, steps = way
        if steps is None:
            return Replay((), reason="no solution was found")
        try:
            async with pool.session() as session:
                await session.start(f"http://{world.name}.test/")
                return await replay(session, world, steps, pictures)
        except BrowserFault as fault:
            return Replay(steps, reason=str(fault))

    with SiteServer(worlds) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool:
            found = await ask_all(visit, [*ways.values()], config.episodes, "acting out solutions")
    return dict(zip(ways, found, strict=True))
