"""Generated sites and their tasks, proved and timed.

    python benchmarks/worlds.py [--sites 30] [--tasks 5] [--workers 4] [--no-browser]

Levels and themes take turns. Counted before any filter:
findings of `check`; the share of the tasks acted out in Chromium with the state equal to the machine's after
every action, the last one as the goal wants it; steps of mouse and keyboard per level; pages that no task's
solution visits; seconds. The paper's figures stand beside ours
without being measured. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter, defaultdict
from statistics import mean
from typing import Any

from minirl.config import BrowserConfig
from minirl.types import Json, Task
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.lint import check_fsm
from minirl.worlds.replay import replay_sites
from minirl.worlds.solutions import solution_of
from minirl.worlds.tasks import make_tasks

ARGUMENTS = ("theme", "seed", "level")  # of make_site
PAPER = {
    "steps_per_trajectory": 21.9,
    "trajectories": 11_663,
    "dollars_per_trajectory_for_machine_and_site": 0.009,
}


def unvisited(world: World, tasks: list[Task]) -> float:
    """The share of pages that no solution goes through."""
    seen = set()
    for task in tasks:
        state = initial_state(world.fsm)
        for step in [*(solution_of(task, world)), None]:
            seen.add(state.page)
            state = apply(world.fsm, state, step.action_id, step.params) if step else state
    return 1 - len(seen) / len(world.fsm.pages)


def plan(count: int) -> list[Json]:
    levels = list(LEVELS)
    themes = list(THEMES)
    places = ((themes[n % len(themes)], n, levels[n % len(levels)]) for n in range(count))
    return [dict(zip(ARGUMENTS, place, strict=True)) for place in places]


def made(places: list[Json]) -> tuple[list[World], dict[str, list[Task]], dict[str, Any]]:
    worlds = list[World]()
    tasks = dict[str, list[Task]]()
    seconds = list[float]()
    for place in places:
        start = time.process_time()
        world = make_site(**place)
        tasks[world.name] = make_tasks(world)
        seconds.append(time.process_time() - start)
        worlds.append(world)
    steps = defaultdict[str, list[int]](list)
    left = defaultdict[str, list[float]](list)
    for world in worlds:
        level = world.fsm.meta["level"]
        steps[level] += [task.meta["steps"] for task in tasks[world.name]]
        left[level].append(unvisited(world, tasks[world.name]))
    cells = Counter(f"{t.meta['family']} {t.meta['mode']}" for some in tasks.values() for t in some)
    return (
        worlds,
        tasks,
        {
            "sites": len(places),
            "findings": sum(len(check_fsm(world.fsm)) for world in worlds),
            "tasks": sum(map(len, tasks.values())),
            "tasks_by_cell": dict(sorted(cells.items())),
            "mean_steps": {level: round(mean(some), 1) for level, some in steps.items()},
            "unvisited_pages": {level: round(mean(some), 3) for level, some in left.items()},
            "cpu_seconds_a_site": round(mean(seconds), 3),
            "cpu_seconds_of_the_slowest": round(max(seconds), 3),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-browser", action="store_true")
    flags = parser.parse_args()
    worlds, tasks, answer = made(plan(flags.sites))
    if not flags.no_browser:
        config = BrowserConfig(browsers=1, episodes=flags.workers, width=1280, height=720)
        drawn = [task for some in tasks.values() for task in some[: flags.tasks]]
        start = time.perf_counter()
        outcomes = asyncio.run(replay_sites(worlds, config, drawn))
        seconds = time.perf_counter() - start
        gui = sum(len(one.records) for one in outcomes)
        kept = [one for one in outcomes if not one.reason]
        for one in outcomes:
            if one.reason:
                print("dropped:", one.task.meta["world"], one.task.id, one.reason)
        answer |= {"acted_out": len(outcomes), "kept": round(len(kept) / len(outcomes), 4)}
        answer["seconds_a_gui_step"] = round(seconds / gui, 3)
    print(json.dumps(answer | {"paper": PAPER}))


if __name__ == "__main__":
    main()
