"""What generated sites and their trajectories come to, in the form of AutoWebWorld's tables 1, 2 and 7.

    python benchmarks/counts.py --sites 12 --dollars-an-hour 0.05

Makes sites as worlds.py does, acts out the solutions of all their tasks with pictures, and prints three
Markdown tables: what there is, what each stage takes, and what the sites of each level take. The last line is
JSON: sites, pages, actions, trajectories kept, their mean steps, and a trajectory's seconds. States are
counted up to a thousand a site, with symbols for values, as the released search has them. The paper's stages
are models that are asked, and cost tokens; these here are programs, and cost processor time alone, Chromium's
included (read from /proc, so on Linux only). What an hour of a core costs is an assumption.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean
from typing import TypeVar

import tyro
from seconds import threads_of
from worlds import Json, plan

from minirl.config import BrowserConfig
from minirl.types import Task
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import World
from minirl.worlds.render import render
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.search import explore, symbolic
from minirl.worlds.solutions import ways_of
from minirl.worlds.steps import one_of_each
from minirl.worlds.tasks import make_tasks

Result = TypeVar("Result")
# The stages, and what the paper's table 2 has for them: who is asked, and dollars for 11,663 trajectories
PAPER = {
    "machines": ("FSM, GPT-5.1", 57.10),
    "pages": ("Web, Gemini3-Pro", 52.26),
    "tasks": ("Queries, DeepSeek-V3.2", 65.84),
    "acting out": ("not told", 0.0),
    "thoughts": ("Thinking, Gemini2.5-Flash", 272.17),
}
TRAJECTORIES = 11_663


@dataclass
class Args:
    sites: int = 12
    workers: int = 4
    """How many solutions are acted out at a time."""
    dollars_an_hour: float = 0.05
    """The price of a processor core."""


@dataclass
class Level:
    """The sites of a level, and the seconds of a core that each stage has taken."""

    worlds: list[World] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PAPER, 0.0))

    def make(self, place: Json) -> None:
        """Make a site and its tasks."""
        marks = [time.process_time()]
        world = make_site(**place)
        marks.append(time.process_time())
        render(world)
        marks.append(time.process_time())
        for task in make_tasks(world):
            self.tasks += ways_of(task, world)
        marks.append(time.process_time())
        self.worlds.append(world)
        for stage, start, end in zip(PAPER, marks, marks[1:], strict=False):
            self.seconds[stage] += end - start

    def act_out(self, workers: int) -> None:
        config = BrowserConfig(browsers=1, episodes=workers, width=1280, height=720)
        work = replay_sites(self.worlds, config, self.tasks, has_pictures=True)
        self.replays, self.seconds["acting out"] = with_browsers(lambda: asyncio.run(work))


def with_browsers(work: Callable[[], Result]) -> tuple[Result, float]:
    """Work; return the result, and the seconds of this process and of all below it, which end meanwhile."""
    before = threads_of(os.getpid())
    seen = dict[tuple[str, int], float]()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            seen.update(threads_of(os.getpid()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        result = work()
    finally:
        ended.set()
        watcher.join()
    return result, sum((before | seen | threads_of(os.getpid())).values()) - sum(before.values())


def table(head: str, rows: list[list[object]]) -> None:
    for cells in [head.split(", "), ["---"] * (head.count(", ") + 1), *rows]:
        print("|", *(f"{cell} |" for cell in cells))
    print()


def main() -> None:
    args = tyro.cli(Args)
    levels = defaultdict[str, Level](Level)
    for place in plan(args.sites):
        levels[place["level"]].make(place)
    total = Level()
    for level in levels.values():
        level.act_out(args.workers)
        total.worlds += level.worlds
        total.tasks += level.tasks
        total.replays += level.replays
        total.seconds = {stage: level.seconds[stage] + so_far for stage, so_far in total.seconds.items()}

    def dollars(seconds: float) -> str:
        return f"${seconds * args.dollars_an_hour / 3600:.6f}"

    machines = [world.fsm for world in total.worlds]
    graphs = [explore(symbolic(fsm)) for fsm in machines]
    more = "" if all(graph.is_complete for graph in graphs) else "more than "
    states = f"{more}{sum(len(graph.nodes) for graph in graphs)}"
    pages = sum(len(fsm.pages) for fsm in machines)
    actions = sum(len(fsm.actions) for fsm in machines)
    kept = [one for one in total.replays if not one.reason]
    share = len(kept) / len(total.replays)
    steps = mean(len(one.records) - 1 for one in kept)  # the last is the answer
    each = sum(total.seconds.values()) / len(kept)
    distinct = len(one_of_each(total.replays, 0))
    counts = [len(machines), pages, states, actions, len(kept), distinct, f"{share:.1%}", f"{steps:.1f}"]
    table(
        "of, sites, pages, states, actions, trajectories, distinct, kept, mean steps, seconds, dollars each",
        [
            ["minirl", *counts, f"{each:.2f}", dollars(each)],
            ["AutoWebWorld", 29, 875, "", "", TRAJECTORIES, 1215, "", 21.9, "", "$0.04"],
        ],
    )
    spent = {stage: total.seconds[stage] / len(kept) for stage in PAPER}
    rows = list[list[object]]()
    for stage, (who, there) in PAPER.items():
        ours = [f"{spent[stage]:.3f}", dollars(spent[stage])]
        rows.append([stage, *ours, who, f"${there / TRAJECTORIES:.4f}" if there else ""])
    table("a trajectory's, seconds, dollars, there, dollars there", rows)
    table(
        f"level, sites, trajectories, {', '.join(PAPER)}, all seconds, dollars",
        [
            [name, len(level.worlds), len(level.replays)]
            + [f"{level.seconds[stage]:.1f}" for stage in PAPER]
            + [f"{sum(level.seconds.values()):.1f}", dollars(sum(level.seconds.values()))]
            for name, level in [*levels.items(), ("total", total)]
        ],
    )
    figures = {"sites": len(machines), "pages": pages, "actions": actions, "trajectories": len(kept)}
    print(json.dumps({**figures, "mean_steps": round(steps, 1), "seconds_each": round(each, 2)}))


if __name__ == "__main__":
    main()
