"""Solutions acted out in Chromium: every step's state compared with the interpreter's, and where it happened.

Between search and data. `instantiate` gives a path's symbols real values, `replay` acts it out with mouse and
keyboard: a demonstration with the box of every element that was touched, or the reason why it is none.

Paper: AutoWebWorld, section 4.3 (execution-based filtering). Deviation: there, a failed click is a warning
and the page is believed to be where the trace says; here the page's state is read after every action.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state, parameter_values
from minirl.worlds.render import SiteServer, read_state
from minirl.worlds.search import Step, explore, symbolic
from minirl.worlds.widgets import gui_steps, widget_of

MEASURE = files("minirl.worlds").joinpath("measure.js").read_text(encoding="utf-8")
ROWS_SEEN = 4  # of a list that begins where it was scrolled to, on a page 720 pixels high
PATHS, VALUES = 20, 5  # how many paths, and how many values of each step, are tried for one solution


@dataclass(frozen=True)
class Grounded:
    """One operation of mouse or keyboard: `box` is left, top, right and bottom in CSS pixels, `before` and
    `after` are screenshots (PNG)."""

    action_id: str
    op: str
    selector: str
    box: tuple[float, ...] | None
    text: str = ""
    before: bytes = b""
    after: bytes = b""
    center: tuple[float, float] | None = None


@dataclass(frozen=True)
class Replay:
    """A path acted out. `reason` is empty if the page was in the predicted state after every action."""

    steps: tuple[Step, ...]
    grounded: tuple[Grounded, ...] = field(repr=False, default=())
    reason: str = ""


def solutions(world: World, seed: int) -> dict[str, list[Step]]:
    """Return one shortest path, with values, to every terminal page that can be reached."""
    graph, start, out = explore(symbolic(world.fsm), plain=False), initial_state(world.fsm), {}
    for page in world.fsm.terminal_pages:
        for path in graph.sample(page, PATHS, seed):
            steps = instantiate(world, start, path, random.Random(f"{seed} {page}"))
            if steps is not None:
                out[page] = steps
                break
    return out


def instantiate(world: World, state: State, path: list[Step], rng: random.Random) -> list[Step] | None:
    """Return the path's actions with values that are offered where they are needed, or None."""
    if not path:
        return []
    id = path[0].action_id
    values = within_reach(world, state, id)
    for params in rng.sample(values, min(VALUES, len(values))):
        if enabled(world.fsm, state, id, params):
            rest = instantiate(world, apply(world.fsm, state, id, params), path[1:], rng)
            if rest is not None:
                return [Step(id, params), *rest]
    return None


def within_reach(world: World, state: State, id: str) -> list[dict[str, Any]]:
    """Return the parameters with which an action can be taken at once. Of a list's rows these are the ones
    seen without scrolling it, because scrolling may be an action; and a list can be scrolled to any row
    except its first."""
    values = parameter_values(world, state, id)
    action = world.fsm.pages[state.page].actions[id]
    kind = widget_of(action, world.fsm).kind
    if kind not in ("row", "scroll"):
        return values
    anchors = [value for name, value in state.signature.items() if name.endswith("_viewport_anchor_id")]
    ids = [params[action.open_parameters[0]] for params in values]
    first = next((ids.index(anchor) for anchor in anchors if anchor in ids), 0)
    return values[first : first + ROWS_SEEN] if kind == "row" else values[:first] + values[first + 1 :]


async def replay(session: Session, world: World, steps: list[Step], pictures: bool = False) -> Replay:
    """Act a path out on a page that shows the world's first state."""
    grounded: list[Grounded] = []
    state, place, reason = initial_state(world.fsm), "at the start", ""
    try:
        await compare(session, state)
        for step in steps:
            place = step.action_id
            for gui in gui_steps(world, state, step):
                grounded.append(await _act(session, place, gui, pictures))
            state = apply(world.fsm, state, step.action_id, step.params)
            await measure(session, "frames")  # scrolling tells the page only with the next frame
            await compare(session, state)
    except (ToolFailure, BrowserFault) as failure:
        reason = f"{place}: {str(failure) or type(failure).__name__}"
    return Replay(tuple(steps), tuple(grounded), reason)


async def compare(session: Session, expected: State) -> None:
    """Raise BrowserFault if the current page is not in the expected state."""
    found = await session.do(read_state(session.page))
    if found is None or found.key() != expected.key():
        shown = found.key() if found else "no state"
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows {shown}, not {expected.key()}")


async def measure(session: Session, name: str, *given: Any) -> Any:
    """Return the result of measure.js's function `name` on the current page. BrowserFault if it is null."""
    found = await session.do(session.page.evaluate(MEASURE, [name, *given]))
    if found is None:
        raise BrowserFault(Stop.ENV_ERROR, f"the page shows no element {' '.join(map(str, given))}")
    return found


async def _act(session: Session, action_id: str, gui: Mapping[str, Any], pictures: bool) -> Grounded:
    """Do one of `gui_steps` with mouse or keyboard. Raises BrowserFault if its element is not there."""
    mouse, keyboard = session.page.mouse, session.page.keyboard
    op, selector = gui["op"], gui.get("selector", "")
    box = tuple(await measure(session, "box", selector)) if selector else None
    x, y = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if box else (0.0, 0.0)
    before = await session.screenshot() if pictures else b""
    match op:
        case "click":
            await session.do(mouse.click(x, y))
        case "hover":
            await session.do(mouse.move(x, y))
        case "type_text":
            await session.do(keyboard.press("ControlOrMeta+A"))
            await session.do(keyboard.type(gui["text"]))
        case "key_press":
            await session.do(keyboard.press(gui["key"]))
        case "drag":
            start, end, height = await measure(session, "thumb", selector, gui["to"])
            await session.do(mouse.move(start, height))
            await session.do(mouse.down())
            await session.do(mouse.move(end, height, steps=4))
            await session.do(mouse.up())
        case "scroll":
            await session.do(mouse.move(x, y))
            distance = await measure(session, "distance", selector, gui["to"].split()[-1])
            await session.do(mouse.wheel(0, distance))
    after = await session.screenshot() if pictures else b""
    return Grounded(action_id, op, selector, box, gui.get("text", ""), before, after, (x, y) if box else None)


@dataclass(frozen=True)
class Outcome:
    """One path of one site."""

    world: str
    terminal: str
    replay: Replay


async def replay_sites(
    worlds: Sequence[World],
    config: BrowserConfig,
    seed: int = 0,
    pictures: bool = False,
    tick: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Solve every site for each of its terminal pages and act the solutions out, `config.episodes` at a
    time. A terminal page without a solution is an outcome too; `tick` is called with each."""
    places, solved = asyncio.Semaphore(config.episodes), [solutions(world, seed) for world in worlds]

    async def visit(world: World, terminal: str, steps: list[Step] | None) -> Outcome:
        result = Replay(tuple(steps or ()), reason="no solution was found")
        async with places:
            try:
                if steps is not None:
                    async with pool.session() as session:
                        await session.start(f"http://{world.name}.test/")
                        result = await replay(session, world, steps, pictures)
            except BrowserFault as fault:
                result = replace(result, reason=str(fault))
        outcome = Outcome(world.name, terminal, result)
        tick(outcome)
        return outcome

    with SiteServer(worlds, config.site_port) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool, asyncio.TaskGroup() as group:
            visits = [
                group.create_task(visit(world, page, paths.get(page)))
                for world, paths in zip(worlds, solved, strict=True)
                for page in world.fsm.terminal_pages
            ]
    return [task.result() for task in visits]
