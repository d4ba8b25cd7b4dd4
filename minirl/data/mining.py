"""Demonstrations by search: short ways to a success that a page is asked for, acted out by the real agent.

    tasks --search.js, in the page--> paths --Episode, in fresh pages--> successes, a dump to clone

For sites whose episodes begin by a seed and tell their own end: MiniWoB++ (minirl/benchmarks/miniwob.js), or
one's own, by a script with the same two functions. Nothing in the search is about a task. A path that only
one seed of a page has may be luck, and is a bad lesson: of a page's kinds of paths (click; type, click; ...)
those of at least two seeds are kept.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from minirl.agents import simplified_html
from minirl.benchmarks.task_sets import choose_benchmarks
from minirl.browser.pool import BrowserPool
from minirl.config import Config
from minirl.console import progress
from minirl.episode import Episode, Harness
from minirl.experiment import make_agent
from minirl.judges.labels import without_ids
from minirl.model import load_preprocessor
from minirl.run_folder import Run
from minirl.types import BrowserFault, Prompt, Sample, Session, Task, ToolFailure, Trajectory
from minirl.worlds.render import SiteServer, sites_of

SEARCH = resources.files("minirl.data").joinpath("search.js").read_text("utf-8")
DEPTH = 9  # actions of a path
TRIES = 1500  # paths that are tried; one takes about 10 ms
SECONDS = 300.0  # for a page that does not come to an end
MIN_SEEDS = 2  # of a page, that must have a path of the same kind

Path = Sequence[Mapping[str, Any]]  # actions: {"name": "Type", "element": 3, "argument": "Ada"}


class PathPolicy:
    """Answers an episode's prompts with a path, an action a turn, and then with goodbye."""

    def __init__(self, path: Path, harness: Harness):
        self.path = path
        self.harness = harness

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        action = action_text(self.path[t]) if t < len(self.path) else 'exit(message="done")'
        if self.harness.config.agent.answers == "thinking":
            action = f"<think> </think> <answer> {action} </answer>"
        _, ids = self.harness.preprocessor.render_response(action)
        return Sample(ids, (0.0,) * len(ids), "stop")


def action_text(action: Mapping[str, Any]) -> str:
    """Return an action as the text agent says it.

    >>> action_text({"name": "Type", "element": 3, "argument": "Ada"})
    'do(action="Type", argument="Ada", element="3")'
    """
    argument = ""
    if action.get("argument") is not None:
        argument = f"argument={json.dumps(action['argument'], ensure_ascii=False)}, "
    return f'do(action="{action["name"]}", {argument}element="{action["element"]}")'


async def mine(tasks: Sequence[Task], config: Config, script: str, run: Run) -> list[Trajectory]:
    """Return the demonstrations that were found, in the order of the tasks, with their texts and no ids: any
    model may clone them."""
    preprocessor = load_preprocessor(config.model)
    benchmark_of = choose_benchmarks(config)
    folders = {}
    for benchmark in {benchmark_of(task) for task in tasks}:
        folders |= benchmark.folders()
    limit = asyncio.Semaphore(config.browser.episodes)
    with SiteServer(sites_of(tasks), folders) as server:
        async with BrowserPool(config.browser, server.sites) as pool:
            agent = make_agent(config, preprocessor)
            harness = Harness(config, preprocessor, agent, pool, run.images, benchmark_of)

            async def find(task: Task) -> Path:
                async with limit, pool.session() as session:
                    path = await search(session, task, script)
                meter.advance()
                return path

            async def act_out(task: Task, path: Path) -> Trajectory:
                async with limit:
                    trajectory = await Episode(harness, task, 0, PathPolicy(path, harness), DEPTH + 1).run()
                meter.advance()
                return trajectory

            # Progress begins anew for each phase, whose functions above read `meter`
            with progress("searching", len(tasks)) as meter:
                paths = await asyncio.gather(*map(find, tasks))
            lessons = choose(tasks, paths)
            with progress("acting out", len(lessons)) as meter:
                episodes = await asyncio.gather(*(act_out(task, path) for task, path in lessons))
    return [without_ids(episode) for episode in episodes if episode.success]


async def search(session: Session, task: Task, script: str) -> Path:
    """Return the cheapest path to a success, or none."""
    await session.start(task.start_url)
    call = f"given => ({SEARCH})({simplified_html.SCRIPT}, {script}, given)"
    limits = {"depth": DEPTH, "tries": TRIES}
    try:
        answer = await session.do(session.page.evaluate(call, [task.goal["seed"], limits]), SECONDS)
    except (ToolFailure, BrowserFault):  # it has led elsewhere, or has crashed the page
        return ()
    return answer.get("path") or ()


def choose(tasks: Sequence[Task], paths: Sequence[Path]) -> list[tuple[Task, Path]]:
    """Return the tasks whose path is of a kind that at least `MIN_SEEDS` of its page's have, with the path."""
    kinds = [
        (task.site, *(action["name"] for action in path)) for task, path in zip(tasks, paths, strict=True)
    ]
    counts = Counter(kinds)
    lessons = []
    for task, path, kind in zip(tasks, paths, kinds, strict=True):
        if path and counts[kind] >= MIN_SEEDS:
            lessons.append((task, path))
    return lessons
