"""How fast sites are made, searched and acted out, beside what AutoWebWorld's paper reports.

    python tests/bench/world.py [--sites 30] [--workers 8]

Sites: drawn, checked and rendered. States: those that the search reaches on them. Trajectories: one
shortest solution per terminal page in Chromium, the state compared after every action. The paper's trajectory
costs $0.04 of language models, and its replay has 40 workers; none of that can be run here, so the figures
stand beside ours without being measured. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

from minirl.config import BrowserConfig
from minirl.worlds.generate import PROFILES, THEMES, make_site
from minirl.worlds.interpreter import World
from minirl.worlds.lint import check_fsm
from minirl.worlds.render import render
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.search import explore, symbolic

PAPER = {"dollars_per_trajectory": 0.04, "workers": 40}


def drawn(count: int) -> tuple[list[World], float]:
    start = time.perf_counter()
    cases = [(theme, seed, level) for seed in range(count) for level in PROFILES for theme in THEMES]
    worlds = [make_site(*case) for case in cases[:count]]
    for world in worlds:
        assert check_fsm(world.fsm) == [] and render(world)
    return worlds, time.perf_counter() - start


def searched(worlds: list[World]) -> tuple[int, float]:
    start, states = time.perf_counter(), 0
    for _ in range(10):
        states += sum(len(explore(symbolic(world.fsm)).nodes) for world in worlds)
    return states, time.perf_counter() - start


def replayed(worlds: list[World], workers: int) -> tuple[list[Replay], float]:
    start = time.perf_counter()
    config = BrowserConfig(browsers=2, episodes=workers, width=1280, height=720)
    return list(asyncio.run(replay_sites(worlds, config)).values()), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=30)
    parser.add_argument("--workers", type=int, default=8)
    flags = parser.parse_args()
    worlds, making = drawn(flags.sites)
    print(f"{len(worlds)} sites in {making:.1f} s")
    states, searching = searched(worlds)
    print(f"{states} states in {searching:.1f} s")
    outcomes, acting = replayed(worlds, flags.workers)
    kept = [outcome for outcome in outcomes if not outcome.reason]
    actions = sum(len(outcome.steps) for outcome in kept)
    print(f"{len(kept)} of {len(outcomes)} trajectories, {actions} actions in {acting:.1f} s")
    answer = {
        "sites_per_minute": round(60 * len(worlds) / making, 1),
        "states_per_second": round(states / searching),
        "trajectories_per_minute": round(60 * len(kept) / acting, 1),
        "actions_per_second": round(actions / acting, 1),
        "kept": round(len(kept) / len(outcomes), 4),
        "workers": flags.workers,
        "dollars_per_trajectory": 0.0,
        "paper": PAPER,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
