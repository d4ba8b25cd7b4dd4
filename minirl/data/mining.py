"""Demonstrations by search: the cheapest way to a success on each page, acted out by the real agent.

    tasks --search.js, in the page--> paths --Episode, in a fresh page--> successes, a dump to clone

For pages whose episodes begin by a seed and tell their own end: MiniWoB++ (minirl/benchmarks/miniwob.js), or
one's own by a script that answers the same two questions. Nothing in the search is about a task. A path that
only one seed of a page has may be luck, and is a bad lesson: of a page's kinds of paths (click; type, click;
...) those of at least two seeds are kept.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial

from minirl.agents import simplified_html
from minirl.benchmarks.task_sets import choose_benchmarks, load_source
from minirl.config import Config
from minirl.console import progress
from minirl.episode import Episode, Harness
from minirl.experiment import make_agent, open_browsers
from minirl.judges.labels import without_ids
from minirl.model import load_preprocessor
from minirl.package_files import text_of
from minirl.run_folder import Run
from minirl.types import BrowserFault, Fields, Prompt, Sample, Session, Task, ToolFailure, Trajectory

SEARCH = text_of("data/search.js")
LIMITS = {"depth": 9, "tries": 400}  # actions of a path, and paths that are tried: one takes about 10 ms
SECONDS = 300.0  # for a page that does not come to an end
MIN_SEEDS = 2  # of a page, whose paths must be of the same kind

Path = Sequence[Fields]  # actions: {"name": "Type", "element": 3, "argument": "Ada"}


async def mine(source: str, config: Config, script: str, run: Run) -> list[Trajectory]:
    """Return the demonstrations that were found, in the order of the tasks that `source` names, as
    --task.train does; with their texts and no ids: any model may clone them. ValueError for an agent that
    sees."""
    if config.agent.kind != "text":
        raise ValueError(f"{config.recipe}'s agent sees; the search finds a text agent's actions")
    preprocessor = load_preprocessor(config.model)
    tasks = load_source(source, None, config)
    if not all("seed" in task.goal for task in tasks):
        raise ValueError(f'{source} has no seeds to begin by: a task\'s goal is {{"seed": 1}}, docs/data.md')
    benchmark_of = choose_benchmarks(config)
    limit = asyncio.Semaphore(2 * config.browser.browsers)  # a search keeps a core busy
    async with open_browsers(config, tasks, benchmark_of, slots=None, others=0) as pool:
        agent = make_agent(config, preprocessor)
        harness = Harness(config, preprocessor, agent, pool, run.images, benchmark_of)

        async def solve(task: Task) -> Trajectory | None:
            async with limit:
                path = await search(harness, task, script)
                meter.advance()
                if not path:
                    return None
                policy = partial(respond, harness, path)
                return await Episode(harness, task, 0, policy, len(path) + 1).run()

        with progress("searching", len(tasks)) as meter:
            episodes = await asyncio.gather(*map(solve, tasks))
    return usual([without_ids(episode) for episode in episodes if episode and episode.success])


async def search(harness: Harness, task: Task, script: str) -> Path:
    """Return the cheapest path to a success that was found in a page, or none."""
    listeners = "getEventListeners" if harness.config.agent.numbered == "listeners" else "undefined"
    given = json.dumps([task.goal["seed"], LIMITS])
    search = f"({SEARCH})({simplified_html.SCRIPT}, {script}, {given}, {listeners})"
    try:
        async with harness.benchmark_of(task).session(harness, task) as session:
            await session.start(task.start_url)
            answer = await simplified_html.ask_with_listeners(session, search, SECONDS)
    except (ToolFailure, BrowserFault):  # it has crashed the page, or has led elsewhere
        return ()
    return (answer or {}).get("path", ())


async def respond(harness: Harness, path: Path, t: int, prompt: Prompt, session: Session) -> Sample:
    """Answer turn `t` of an episode with an action of a path, and then with goodbye."""
    text = action_text(path[t]) if t < len(path) else 'exit(message="done")'
    if harness.config.agent.answers == "thinking":
        text = f"<think> </think> <answer> {text} </answer>"
    _, ids = harness.preprocessor.render_response(text)
    return Sample(ids, (0.0,) * len(ids), "stop")


def action_text(action: Fields) -> str:
    """Return an action as the text agent says it.

    >>> action_text({"name": "Type", "element": 3, "argument": "Ada"})
    'do(action="Type", argument="Ada", element="3")'
    """
    argument = ""
    if action.get("argument") is not None:
        argument = f"argument={json.dumps(action['argument'], ensure_ascii=False)}, "
    return f'do(action="{action["name"]}", {argument}element="{action["element"]}")'


def usual(successes: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the successes whose kind of path at least `MIN_SEEDS` of their page's have."""
    kinds = []
    for episode in successes:
        names = [call.name for turn in episode.turns for call in turn.parsed.calls]
        kinds.append((episode.task.site, *names))
    counts = Counter(kinds)
    return [episode for episode, kind in zip(successes, kinds, strict=True) if counts[kind] >= MIN_SEEDS]
