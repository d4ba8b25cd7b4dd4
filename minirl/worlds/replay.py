"""Solutions acted out in Chromium, with every step's state compared with the interpreter's.

`replay` acts a path out with mouse and keyboard (operations.py) and returns the box of every element that was
touched, or the reason why it is no demonstration.

Paper: AutoWebWorld, section 4.3 (execution-based filtering). Deviation: there, a failed click is a warning
and the page is believed to be where the trace says; here the page's state is read after every action.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.console import progress
from minirl.run_folder import ImageFolder, to_line, write_atomic
from minirl.types import BrowserFault, Stop, Task, ToolFailure
from minirl.worlds.interpreter import State, World, apply, initial_state
from minirl.worlds.operations import Gui, Target, act, find, measure
from minirl.worlds.render import SiteServer, read_state
from minirl.worlds.search import Step, solve
from minirl.worlds.widgets import gui_steps

MOST_SCROLLS = 10  # until an element must be in the window


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
    places, ways = asyncio.Semaphore(config.episodes), {}
    for world in worlds:
        goals = {task.id: task.goal for task in tasks if task.meta.get("world") == world.name}
        for name, goal in (goals or {page: {"page": page} for page in world.fsm.terminal_pages}).items():
            ways[world.name, name] = (world, solve(world, goal))

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
    for (world, task), one in replays.items():
        line = {"world": world, "task": task, **asdict(one)}
        for step in line["grounded"]:
            step["picture"] = f"{images.put(step['picture'])}.png"
        lines.append(to_line(line))
    write_atomic(folder / "steps.jsonl", b"".join(lines))
