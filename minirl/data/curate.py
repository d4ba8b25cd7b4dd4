"""Curate demonstrations: of a teacher's judged episodes the shortest success of each task, evenly over sites.

    python eval.py openwebrl-4b --sampler remote ... --seeds 0 1 2 3    dumps of four rollouts a task
    dumps --curate--> trajectories for --sft.demos

Stands between teacher rollouts (eval.py) and the warm start. OpenWebRL sections 4.2 and 5.5. Deviation: the
paper caps the tasks of a site, and does not say at how many; here the cap is the least with which a preset's
number is reached, and the tasks are those whose names' digests come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from minirl.console import say
from minirl.evaluation.results import result_of
from minirl.types import Trajectory

# How many trajectories of which of WebGym's parts; "" is any
PRESETS: dict[str, dict[str, int]] = {
    "412": {"pae-webvoyager": 412},  # the default, and the 4B model's
    "912": {"pae-webvoyager": 412, "insta-v3": 500},  # the 8B model's
    "1.9k": {"": 1900},  # section 5.5: more, which helps reinforcement less
}


def curate(episodes: Iterable[Trajectory], parts: dict[str, int]) -> list[Trajectory]:
    """Return the demonstrations of a preset, or as many as there are; say how they were found."""
    episodes = list(episodes)
    best: dict[str, Trajectory] = {}
    for episode in sorted(filter(lambda t: t.success and t.valid, episodes), key=length):
        best.setdefault(episode.task.id, episode)
    successes = sum(t.success and t.valid for t in episodes)
    say(f"{len(episodes)} episodes, {successes} successes, {len(best)} tasks solved")
    chosen: list[Trajectory] = []
    for part, most in parts.items():
        some = [t for t in best.values() if part in ("", t.task.meta.get("benchmark"))]
        found = evenly(some, most)
        sites = [t.task.site for t in found]
        cap = max(map(sites.count, sites), default=0)
        name = part or "any part"
        say(f"{name}: {len(found)} of {most} on {len(set(sites))} sites, at most {cap} on each, of {len(some)}")
        chosen += found
    return chosen


def length(episode: Trajectory) -> tuple[int, int]:
    """Return the number of turns, and that of response tokens, which decides between equally many."""
    result = result_of(episode)
    return result.steps, result.response_tokens


def evenly(episodes: Iterable[Trajectory], most: int) -> list[Trajectory]:
    """Return at most so many, one on each site, then a second one on each, and so on."""
    ordered = sorted(episodes, key=lambda t: sha256(t.task.id.encode()).digest())
    rounds, seen = list[tuple[int, Trajectory]](), dict[str, int]()
    for episode in ordered:
        rounds.append((seen.get(episode.task.site, 0), episode))
        seen[episode.task.site] = rounds[-1][0] + 1
    return [episode for _, episode in sorted(rounds, key=lambda pair: pair[0])][:most]
