"""Curate demonstrations: of a teacher's judged episodes the shortest success of each task, evenly over sites.

    eval.py --seeds 0 1 2 3 --> dump of four rollouts a task --curate--> dump for --sft.demos

Stands between teacher rollouts and the warm start. OpenWebRL sections 4.2 and 5.5. Deviation: the paper caps
the tasks of a site, and does not say at how many; here the cap is the least with which a preset's number is
reached, and of a site those tasks come first whose ids' digests do.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256

from minirl.console import say
from minirl.evaluation.results import result_of
from minirl.types import Trajectory

# How many trajectories of which of WebGym's parts; "" is any
PRESETS: dict[str, dict[str, int]] = {
    "412": {"pae-webvoyager": 412},  # the default, and the 4B model's
    "912": {"pae-webvoyager": 412, "insta-v3": 500},  # the 8B model's
    "1.9k": {"": 1900},  # section 5.5: more of them, from which reinforcement gains less
}


def curate(episodes: Sequence[Trajectory], parts: Mapping[str, int]) -> list[Trajectory]:
    """Return a preset's demonstrations, or as many as there are; say how they were found."""
    successes = [(result_of(t), t) for t in episodes if t.success and t.valid]
    best = dict[str, Trajectory]()
    for _, episode in sorted(successes, key=lambda pair: (pair[0].steps, pair[0].response_tokens)):
        best.setdefault(episode.task.id, episode)
    say(f"{len(episodes)} episodes, {len(successes)} successes, {len(best)} tasks solved")
    ordered = sorted(best.values(), key=lambda t: sha256(t.task.id.encode()).digest())
    chosen = list[Trajectory]()
    for part, most in parts.items():
        seen, rounds = Counter[str](), list[tuple[int, Trajectory]]()  # one on each site, then a second, ...
        for episode in (t for t in ordered if part in ("", t.task.meta.get("benchmark"))):
            seen[episode.task.site] += 1
            rounds.append((seen[episode.task.site], episode))
        found = sorted(rounds, key=lambda pair: pair[0])[:most]
        sites, cap = len({t.task.site for _, t in found}), max((n for n, _ in found), default=0)
        say(f"{part or 'any part'}: {len(found)} of {most} on {sites} sites, at most {cap} on each")
        chosen += [episode for _, episode in found]
    return chosen
