"""MiniWoB++: 130 small pages that make a task from a seed, and that say themselves what an episode was worth.

    --task.train miniwob:click-link,login-user:0-199 --task.heldout miniwob:all

The pages are those of the package `miniwob` (pip install "minirl-web[miniwob]"), on loopback. What a seed
asks for stands on its page alone, so that making the task set opens each page once. Deviations:
1. The clock is stopped: an episode ends when the page says so, or at the agent's limits.
2. A success is the raw reward of 1, as the package's own binary reward has it. Some pages give a part of it,
   and some give it for a wrong answer.
3. The page shows neither instruction nor reward, as the package's own observation of its elements.
4. An agent that sees gets the pages' own 160 x 210 pixels, drawn by Chromium's device scale as large as the
   config's window allows (`--browser.width 480 --browser.height 630`: three times), not zoomed, which would
   move what a page draws by itself. The text agent's window is the config's.
5. Whoever leaves the page, or loads it again, has lost.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from minirl.agents.webagent_r1 import WebAgentR1Agent
from minirl.benchmarks.fields import Record
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.browser.pool import BrowserPool
from minirl.config import Config
from minirl.console import progress
from minirl.package_files import folder_of, text_of
from minirl.types import BrowserFault, Score, Session, Stop, Task, ToolFailure
from minirl.worlds.render import SiteServer

if TYPE_CHECKING:
    from minirl.episode import Harness

HOST = "miniwob.test"
PREFIX = "miniwob:"  # of a setting that names tasks
SCRIPT = text_of("benchmarks/miniwob.js")
SOURCE = re.compile(r"miniwob:(?P<types>[a-z0-9,-]+)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


def pages() -> Path:
    """Return the folder of the installed package's pages. ValueError if there is none."""
    folder = folder_of("miniwob")
    if not folder:
        raise ValueError("the pages of MiniWoB++ are missing: pip install miniwob (--no-deps will do)")
    return folder / "html"


class MiniwobGoal(Record):
    miniwob: str
    seed: Annotated[int, Field(ge=0)]


def is_miniwob(task: Task) -> bool:
    return "miniwob" in task.goal


class MiniwobBenchmark(JudgedBenchmark):
    judged = False

    def folders(self) -> dict[str, Path]:
        return {HOST: pages()}

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the page with the seed, and what the first prompt shows, which seeds may share."""
        names: set[tuple[str, ...]] = {(HOST, task.goal["miniwob"], str(task.goal["seed"]))}
        if "first" in task.meta:
            names.add((HOST, task.meta["first"]))
        return names

    def session(self, harness: "Harness", task: Task) -> AbstractAsyncContextManager[Session]:
        return harness.browsers.session(page_size(harness.config))

    async def prepare(self, session: Session, task: Task) -> None:
        """Begin the episode. BrowserFault if the page does not, or asks for something else."""
        instruction = await begin(session, task.id, task.goal["seed"])
        if instruction != task.instruction:
            fault = f"{task.id} asks for {instruction!r}, not {task.instruction!r}: make its tasks again"
            raise BrowserFault(Stop.SITE_ERROR, fault)

    async def has_ended(self, session: Session, task: Task) -> bool:
        return (await ask(session, "ending"))["done"]

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        ending = await ask(session, "ending")
        return Score(float(ending["done"] and ending["raw"] == 1), ending)


def page_size(config: Config) -> tuple[int, int] | None:
    """Return the size of a page's window: for an agent that sees, the pages' own."""
    return None if config.agent.kind == "text" else (160, 210)


async def ask(session: Session, question: str, *given: Any) -> Any:
    """Return a page's answer (miniwob.js). ToolFailure if it has none."""
    return await session.do(session.page.evaluate(SCRIPT, [question, *given]))


async def begin(session: Session, id: str, seed: int) -> str:
    """Begin the episode of a seed; return the page's instruction. BrowserFault if it does not begin."""
    try:
        return await ask(session, "begin", seed)
    except ToolFailure as failure:
        raise BrowserFault(Stop.SITE_ERROR, f"{id} does not begin: {failure}") from None


def tasks_named(source: str, count: int | None, config: Config) -> list[Task]:
    """Return the first `count` tasks that a setting names: "miniwob:click-link,login-user:0-199" has seeds 0
    to 199 of both pages, one of each and then the next; "miniwob:all" seed 0 of every page. The instructions
    are asked of the pages. ValueError for a page that there is not, or if the package is missing."""
    named = SOURCE.fullmatch(source)
    if not named:
        raise ValueError(f"{source}: write miniwob:PAGES:SEEDS, such as miniwob:click-link,login-user:0-199")
    known = sorted(file.stem for file in (pages() / "miniwob").glob("*.html"))
    names = known if named["types"] == "all" else named["types"].split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"{source}: MiniWoB++ has no page {name!r}; it has: {', '.join(known)}")
    first = int(named["first"] or 0)
    last = int(named["last"] or first)
    if last < first:
        raise ValueError(f"{source}: its last seed comes before its first")
    seeds = range(first, last + 1)
    if count is not None:
        seeds = seeds[: math.ceil(count / len(names))]
    with ThreadPoolExecutor(1) as thread:  # for the caller's own event loop may be running
        making = thread.submit(asyncio.run, make_tasks(names, seeds, config))
        try:
            return making.result()[:count]
        except (BrowserFault, ToolFailure) as failure:
            raise ValueError(f"{source}: its pages can't be asked ({failure}); try again") from None


async def make_tasks(names: Sequence[str], seeds: Sequence[int], config: Config) -> list[Task]:
    limit = asyncio.Semaphore(config.browser.episodes)

    async def tasks_of(name: str) -> list[Task]:
        tasks = []
        async with limit, pool.session(page_size(config)) as session:
            await session.start(url_of(name))  # once: no page remembers the seed before
            for seed in seeds:
                tasks.append(await make_task(session, name, seed, config))
                meter.advance()
        return tasks

    with SiteServer([], {HOST: pages()}) as server:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            with progress("asking the pages", len(names) * len(seeds)) as meter:
                by_page = await asyncio.gather(*map(tasks_of, names))
    return [task for tasks in zip(*by_page, strict=True) for task in tasks]


def url_of(name: str) -> str:
    return f"http://{HOST}/miniwob/{name}.html"


async def make_task(session: Session, name: str, seed: int, config: Config) -> Task:
    """Return the task that a page makes of a seed; its `meta` tells apart what the agent sees first."""
    id = f"miniwob-{name}-{seed}"
    instruction = await begin(session, id, seed)
    if config.agent.kind == "text":
        observation = await WebAgentR1Agent(config.agent).observe(session)
        shown = observation.page_text.encode()
    else:
        shown = await session.screenshot()
    first = hashlib.sha256(instruction.encode() + b"\n" + shown).hexdigest()[:16]
    goal = {"miniwob": name, "seed": seed}
    return Task(id, instruction, url_of(name), goal, {"site": name, "first": first})
