"""Solutions acted out in Chromium, with every step's state compared with the interpreter's.

`instantiate` gives a path's symbols real values, `replay` acts it out with mouse and keyboard and returns the
box of every element that was touched, or the reason why it is no demonstration.

Paper: AutoWebWorld, section 4.3 (execution-based filtering). Deviation: there, a failed click is a warning
and the page is believed to be where the trace says; here the page's state is read after every action.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.console import progress
from minirl.run_folder import ImageFolder, to_line, write_atomic
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
    """One operation of mouse or keyboard: `box` is left, top, right and bottom in CSS pixels, `picture` the
    screenshot before it (PNG)."""

    action_id: str
    op: str
    selector: str
    box: tuple[float, ...] | None
    text: str = ""
    picture: bytes = b""


@dataclass
class Replay:
    """A path acted out. `reason` is empty if the page was in the predicted state after every action."""

    steps: Sequence[Step]
    grounded: list[Grounded] = field(repr=False, default_factory=list)
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
    """Return the parameters with which an action can be taken at once: of a list's rows those seen without
    scrolling, which may be an action too. A list can be scrolled to any row except its first."""
    values = parameter_values(world, state, id)
    action = world.fsm.pages[state.page].actions[id]
    kind = widget_of(action, world.fsm).kind
    if kind not in ("row", "scroll"):
        return values
    anchors = [value for name, value in state.signature.items() if name.endswith("_viewport_anchor_id")]
    ids = [params[action.open_parameters[0]] for params in values]
    first = next((ids.index(anchor) for anchor in anchors if anchor in ids), 0)
    return values[first : first + ROWS_SEEN] if kind == "row" else values[:first] + values[first + 1 :]


async def replay(session: Session, world: World, steps: Sequence[Step], pictures: bool = False) -> Replay:
    """Act a path out on a page that shows the world's first state."""
    state, place, grounded, reason = initial_state(world.fsm), "at the start", [], ""
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
    return Replay(steps, grounded, reason)


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
    """Do one of `gui_steps` with mouse or keyboard. BrowserFault if its element is not there."""
    mouse, keyboard = session.page.mouse, session.page.keyboard
    op, selector = gui["op"], gui.get("selector", "")
    box = tuple(await measure(session, "box", selector)) if selector else None
    x, y = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if box else (0.0, 0.0)
    picture = await session.screenshot() if pictures else b""
    match op:
        case "click":
            await session.do(mouse.click(x, y))
        case "open":
            async with session.page.context.expect_page(timeout=10_000) as opened:
                await session.do(mouse.click(x, y))
            await (await opened.value).wait_for_load_state("domcontentloaded")
        case "hover":
            await session.do(mouse.move(x, y))
        case "type_text":
            await session.do(keyboard.press("ControlOrMeta+A"))
            await session.do(keyboard.type(gui["text"]))
        case "key_press":
            await session.do(keyboard.press(gui["key"]))
        case "drag":
            if "onto" in gui:
                left, top, right, bottom = await measure(session, "box", gui["onto"])
                start, end, height, low = x, (left + right) / 2, y, (top + bottom) / 2
            else:
                start, end, height = await measure(session, "thumb", selector, gui["to"])
                low = height
            await session.do(mouse.move(start, height))
            await session.do(mouse.down())
            await session.do(mouse.move(end, low, steps=4))
            await session.do(mouse.up())
        case "scroll":
            await session.do(mouse.move(x, y))
            distance = await measure(session, "distance", selector, gui["to"].split()[-1])
            await session.do(mouse.wheel(0, distance))
    return Grounded(action_id, op, selector, box, gui.get("text", ""), picture)


async def replay_sites(
    worlds: Sequence[World], config: BrowserConfig, seed: int = 0, pictures: bool = False
) -> dict[tuple[str, str], Replay]:
    """Return a solution, acted out, for every site and each of its terminal pages; `config.episodes` run at a
    time. A page without a solution has a Replay too."""
    places, ways = asyncio.Semaphore(config.episodes), {}
    for world in worlds:
        solved = dict.fromkeys(world.fsm.terminal_pages) | solutions(world, seed)
        ways |= {(world.name, page): (world, path) for page, path in solved.items()}

    async def visit(world: World, steps: list[Step] | None) -> Replay:
        if steps is None:
            return Replay((), reason="no solution was found")
        async with places:
            try:
                async with pool.session() as session:
                    await session.start(f"http://{world.name}.test/")
                    return await replay(session, world, steps, pictures)
            except BrowserFault as fault:
                return Replay(steps, reason=str(fault))
            finally:
                meter.advance()

    with SiteServer(worlds, config.site_port) as server, progress("acting out solutions", len(ways)) as meter:
        async with BrowserPool(config, server.sites, sealed=True) as pool, asyncio.TaskGroup() as group:
            visits = [group.create_task(visit(*way)) for way in ways.values()]
    return dict(zip(ways, (task.result() for task in visits), strict=True))


def save_replays(replays: Mapping[tuple[str, str], Replay], folder: Path) -> None:
    """Write a line of steps.jsonl for every trajectory, and the pictures that it names by their hashes."""
    images, lines = ImageFolder(folder / "pictures"), []
    for (world, terminal), one in replays.items():
        line = {"world": world, "terminal": terminal, **asdict(one)}
        for step in line["grounded"]:
            step["picture"] = f"{images.put(step['picture'])}.png"
        lines.append(to_line(line))
    write_atomic(folder / "steps.jsonl", b"".join(lines))
