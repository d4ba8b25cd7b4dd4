"""Generated sites and their tasks, proved and timed.

    python tests/bench/worlds.py [--sites 30] [--tasks 5] [--doors 2] [--workers 4] [--no-browser]
    python tests/bench/worlds.py --bench [--renew]    the benchmark's sites, after its list was written anew

Levels and themes take turns; with doors there are medium and hard sites alone. Counted before any filter:
findings of `check`; the share of the tasks acted out in Chromium with the state equal to the machine's after
every action, the last one as the goal wants it; steps of mouse and keyboard per level; pages that no task's
solution visits; doors by sites and by tasks that answer them; seconds. The paper's figures stand beside ours
without being measured. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from minirl.config import BrowserConfig
from minirl.types import Task
from minirl.worlds import bench
from minirl.worlds.generate import LEVELS, THEMES, VOCABULARY
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.lint import check_fsm
from minirl.worlds.looks import SKINS
from minirl.worlds.replay import replay_sites
from minirl.worlds.search import solve

Json = dict[str, Any]
ARGUMENTS = ("theme", "seed", "level", "skin", "doors")  # of make_site
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
        for step in [*(solve(world, task.goal) or []), None]:
            seen.add(state.page)
            state = apply(world.fsm, state, step.action_id, step.params) if step else state
    return 1 - len(seen) / len(world.fsm.pages)


def plan(count: int, doors: int) -> list[Json]:
    levels = [level for level in LEVELS if LEVELS[level].has_doors or not doors]
    themes = [theme for theme in THEMES if theme not in VOCABULARY["bench"]["themes"]]
    places = ((themes[n % len(themes)], n, levels[n % len(levels)], "", doors) for n in range(count))
    return [dict(zip(ARGUMENTS, place, strict=True)) for place in places]


def listed() -> list[Json]:
    """The benchmark's places: at each level every kept theme with every kept skin. Every second site of a
    level that may have doors has two."""
    skins = [name for name, plan in SKINS.items() if "kept" in plan]
    drawn = itertools.product(LEVELS.values(), VOCABULARY["bench"]["themes"], enumerate(skins))
    places = [
        (theme, 900 + n, level.name, skin if level.look == "pages" else "", 2 * (k % 2) * level.has_doors)
        for n, (level, theme, (k, skin)) in enumerate(drawn)
    ]
    return [dict(zip(ARGUMENTS, place, strict=True)) for place in places]


def doors_of(worlds: list[World], tasks: dict[str, list[Task]]) -> Json:
    """The share of sites that have each kind of door, and of tasks that answer one."""
    kinds = Counter(door["kind"] for world in worlds for door in world.fsm.meta.get("doors", ()))
    met = Counter[str]()
    for world in worlds:
        ends = {
            f"{one['page']}_{one['kind'].upper()}": one["kind"] for one in world.fsm.meta.get("doors", ())
        }
        for task in tasks[world.name]:
            ids = {step.action_id for step in solve(world, task.goal) or []}
            found = {kind for id, kind in ends.items() if id in ids}
            met.update(found | ({"any"} if found else set()))
    total = sum(map(len, tasks.values()))
    return {
        "doors_by_site": {kind: round(n / len(worlds), 2) for kind, n in sorted(kinds.items())},
        "doors_by_task": {kind: round(n / total, 2) for kind, n in sorted(met.items())},
    }


def made(places: list[Json]) -> tuple[list[World], dict[str, list[Task]], dict[str, Any]]:
    worlds, tasks, seconds = list[World](), dict[str, list[Task]](), list[float]()
    for place in places:
        start = time.process_time()
        world, tasks_here = bench.make(place)
        tasks[world.name] = tasks_here
        seconds.append(time.process_time() - start)
        worlds.append(world)
    steps, left = defaultdict[str, list[int]](list), defaultdict[str, list[float]](list)
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
            **doors_of(worlds, tasks),
            "cpu_seconds_a_site": round(mean(seconds), 3),
            "cpu_seconds_of_the_slowest": round(max(seconds), 3),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--doors", type=int, default=0)
    for flag in ("--no-browser", "--bench", "--renew"):
        parser.add_argument(flag, action="store_true")
    flags = parser.parse_args()
    places = listed() if flags.bench else plan(flags.sites, flags.doors)
    worlds, tasks, answer = made(places)
    if flags.renew:
        lines = [
            json.dumps({**place, "digest": bench.digest(world, tasks[world.name])})
            for place, world in zip(places, worlds, strict=True)
        ]
        Path(bench.__file__).with_suffix(".json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    if not flags.no_browser:
        config = BrowserConfig(browsers=1, episodes=flags.workers, width=1280, height=720)
        drawn, start = [task for some in tasks.values() for task in some[: flags.tasks]], time.perf_counter()
        outcomes = asyncio.run(replay_sites(worlds, config, drawn))
        seconds, gui = time.perf_counter() - start, sum(len(one.grounded) for one in outcomes.values())
        kept = [one for one in outcomes.values() if not one.reason]
        for place, one in outcomes.items():
            if one.reason:
                print("dropped:", *place, one.reason)
        answer |= {"acted_out": len(outcomes), "kept": round(len(kept) / len(outcomes), 4)}
        answer["seconds_a_gui_step"] = round(seconds / gui, 3)
    print(json.dumps(answer | {"paper": PAPER}))


if __name__ == "__main__":
    main()
