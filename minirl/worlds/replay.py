"""Solutions acted out in Chromium: every step's state compared with the interpreter's, and where it happened.

Where it stands: between search and data. `instantiate` gives a path's symbols real values, `replay` acts it
out with mouse and keyboard, and what comes back is a demonstration with the box of every element that was
touched, or the reason why it is not one. Only what matches to the end is kept.

Paper: AutoWebWorld, section 4.3 (execution-based filtering). Deviations: there, a failed click is a warning
and the page is believed to be where the trace says; here the page is asked after every action.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, ToolFailure
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state, parameter_values
from minirl.worlds.render import SiteServer, difference
from minirl.worlds.search import Step, explore, symbolic
from minirl.worlds.widgets import gui_steps, widget_of

BOX = """selector => {
  const e = document.querySelector(selector);
  if (!e) return null;
  e.scrollIntoView({block: 'nearest', behavior: 'instant'});
  const r = e.getBoundingClientRect();
  return r.width > 0 && r.height > 0 ? [r.left, r.top, r.right, r.bottom] : null;
}"""
# How far a list is to be turned for a row to be its first.
TURN = """([list, row]) => {
  const box = document.querySelector(list), e = box && box.querySelector(row);
  return e ? e.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientTop : null;
}"""
# Where a slider's thumb is, and where it is to go.
THUMB = """([selector, to]) => {
  const e = document.querySelector(selector), r = e.getBoundingClientRect(), thumb = 16;
  const at = share => r.left + thumb / 2 + share * (r.width - thumb);
  return [at((e.value - e.min) / ((e.max - e.min) || 1)), at(to), (r.top + r.bottom) / 2];
}"""
ROWS_SEEN = 4  # of a list that begins where it was scrolled to, on a page 720 pixels high
FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass(frozen=True)
class Grounded:
    """One operation of a hand: on what, where (left, top, right, bottom in CSS pixels), before and after."""

    action_id: str
    op: str
    selector: str
    box: tuple[float, float, float, float] | None
    text: str = ""
    before: bytes = b""
    after: bytes = b""

    @property
    def center(self) -> tuple[float, float] | None:
        return (
            None if self.box is None else ((self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2)
        )


@dataclass(frozen=True)
class Replay:
    """A path acted out. `reason` is empty if the page was in the predicted state after every action."""

    steps: tuple[Step, ...]
    grounded: tuple[Grounded, ...] = field(repr=False, default=())
    reason: str = ""


class Mismatch(Exception):
    """The page did not do what the machine says."""


def solutions(world: World, seed: int, plain: bool = False) -> dict[str, list[Step]]:
    """One shortest path to every terminal page that can be reached, with values."""
    graph = explore(symbolic(world.fsm), plain=plain)
    out = {}
    for page in world.fsm.terminal_pages:
        at: Callable[[State], bool] = lambda state, page=page: state.page == page  # noqa: E731
        for path in graph.sample(at, 20, seed):
            steps = instantiate(world, path, random.Random(f"{seed} {page}"))
            if steps is not None:
                out[page] = steps
                break
    return out


def instantiate(world: World, path: list[Step], rng: random.Random, tries: int = 5) -> list[Step] | None:
    """The path's actions with values that are offered where they are needed; None if none were found."""

    def go(state: State, i: int) -> list[Step] | None:
        if i == len(path):
            return []
        id = path[i].action_id
        values = within_reach(world, state, id)
        for params in rng.sample(values, min(tries, len(values))):
            if enabled(world.fsm, state, id, params):
                rest = go(apply(world.fsm, state, id, params), i + 1)
                if rest is not None:
                    return [Step(id, params), *rest]
        return None

    return go(initial_state(world.fsm), 0)


def within_reach(world: World, state: State, id: str) -> list[dict[str, Any]]:
    """What can be chosen at once. Of a list's rows those that are seen without scrolling it, which where
    scrolling counts as an action would be one more; and it is scrolled to another row than its first."""
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
    """Acts a path out on a page that shows the world's first state."""
    grounded: list[Grounded] = []
    state = initial_state(world.fsm)
    try:
        await _compare(session, state, "at the start")
        for step in steps:
            for gui in gui_steps(world, state, step):
                grounded.append(await _do(session, step, gui, pictures))
            state = apply(world.fsm, state, step.action_id, step.params)
            await _compare(session, state, f"after {step.action_id}")
    except (Mismatch, ToolFailure, BrowserFault) as failure:
        return Replay(tuple(steps), tuple(grounded), str(failure) or type(failure).__name__)
    return Replay(tuple(steps), tuple(grounded))


async def _compare(session: Session, expected: State, when: str) -> None:
    await session.do(session.page.evaluate(FRAMES))  # scrolling tells the page only with the next frame
    if found := await difference(session, expected):
        raise Mismatch(f"{when} {found}")


async def _do(session: Session, step: Step, gui: Mapping[str, Any], pictures: bool) -> Grounded:
    page, op, selector = session.page, gui["op"], gui.get("selector", "")
    box = await session.do(page.evaluate(BOX, selector)) if selector else None
    if selector and box is None:
        raise Mismatch(f"{step.action_id}: the page shows no element {selector}")
    before = await session.screenshot() if pictures else b""
    x, y = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if box else (0.0, 0.0)
    match op:
        case "click":
            await session.do(page.mouse.click(x, y))
        case "hover":
            await session.do(page.mouse.move(x, y))
        case "type_text":
            await session.do(page.keyboard.press("ControlOrMeta+A"))
            await session.do(page.keyboard.type(gui["text"]))
        case "key_press":
            await session.do(page.keyboard.press(gui["key"]))
        case "drag":
            start, end, y = await session.do(page.evaluate(THUMB, [selector, gui["to"]]))
            await session.do(page.mouse.move(start, y))
            await session.do(page.mouse.down())
            await session.do(page.mouse.move(end, y, steps=4))
            await session.do(page.mouse.up())
        case "scroll":
            await session.do(page.mouse.move(x, y))
            distance = await session.do(page.evaluate(TURN, [selector, gui["to"].split()[-1]]))
            if distance is None:
                raise Mismatch(f"{step.action_id}: the list has no {gui['to']}")
            await session.do(page.mouse.wheel(0, distance))
    after = await session.screenshot() if pictures else b""
    grounded_box = tuple(box) if box else None
    return Grounded(step.action_id, op, selector, grounded_box, str(gui.get("text", "")), before, after)


# --- many sites -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One path of one site."""

    world: str
    terminal: str
    replay: Replay
    seconds: float


async def replay_sites(
    worlds: Sequence[World],
    config: BrowserConfig,
    seed: int = 0,
    pictures: bool = False,
    tick: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Solves every site for each of its terminal pages and acts the solutions out, `config.episodes` at a
    time. A terminal page without a solution is an outcome too."""
    places = asyncio.Semaphore(config.episodes)
    with SiteServer(worlds, config.site_port) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool:

            async def one(world: World, terminal: str, steps: list[Step] | None) -> Outcome:
                async with places:
                    start = time.monotonic()
                    result = await _visit(pool, world, steps, pictures)
                    outcome = Outcome(world.name, terminal, result, time.monotonic() - start)
                    tick(outcome)
                    return outcome

            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(one(world, terminal, solved.get(terminal)))
                    for world in worlds
                    for solved in [solutions(world, seed)]
                    for terminal in world.fsm.terminal_pages
                ]
            return [task.result() for task in running]


async def _visit(pool: BrowserPool, world: World, steps: list[Step] | None, pictures: bool) -> Replay:
    if steps is None:
        return Replay((), (), "no solution was found")
    try:
        async with pool.session() as session:
            await session.start(f"http://{world.name}.test/")
            return await replay(session, world, steps, pictures)
    except BrowserFault as fault:
        return Replay(tuple(steps), (), str(fault))
