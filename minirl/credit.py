"""From an episode's advantage to its turns': which of them its reward is due to. Beyond the three papers.

    trajectory     every turn has its episode's advantage, as in all three
    return-to-go   a turn is compared by its discounted reward with all turns of its group
    gigpo          the episode's advantage, and that of the turn among those that began in the same state

The reward comes at the end, so turn t of T has a return of 0.95^(T - 1 - t) times it: what leads to a success
sooner is worth more. GiGPO: arXiv 2505.10978. A state is the machine's on generated sites, elsewhere the
address with the page's text or screenshot. One that was met once adds 0: there is nothing to compare with.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from minirl.advantages import advantages
from minirl.config import LossConfig
from minirl.types import Group, Trajectory, Turn

DISCOUNT = 0.95  # per turn, as in GiGPO's code


def state_of(turn: Turn) -> Hashable:
    """Return what stands for the state that a turn began in."""
    return turn.state or (turn.url, turn.page_text, turn.images[-1:])


def returns(trajectory: Trajectory) -> list[float]:
    """Return each turn's discounted reward: of a reward of 1 after three turns 0.9025, 0.95 and 1."""
    last = len(trajectory.turns) - 1
    return [trajectory.reward * DISCOUNT ** (last - t) for t in range(len(trajectory.turns))]


def compared(values: Sequence[float], eps: float) -> list[float]:
    """Return the values' advantages over one another; one alone has 0."""
    return advantages(values, eps) if len(values) > 1 else [0.0] * len(values)


def turn_advantages(group: Group, config: LossConfig) -> list[list[float]]:
    """Return an advantage for each turn of every trajectory, by return-to-go or GiGPO.

    Let one episode pass the states list and item and earn 1, and the other list, list and item, and earn 0.
    The returns in list are 0.95, 0 and 0, in item 1 and 0: GiGPO's second advantages are 1.155, -0.577 and
    -0.577 in list, 0.707 and -0.707 in item. With the episodes' own 0.707 and -0.707 the first has 1.862 and
    1.414, the other -1.284, -1.284 and -1.414.
    """
    gained = [returns(trajectory) for trajectory in group]
    # The turns that are compared with one another, as pairs of trajectory and turn
    together = defaultdict(list)
    for i, trajectory in enumerate(group):
        for t, turn in enumerate(trajectory.turns):
            key = state_of(turn) if config.credit == "gigpo" else None
            together[key].append((i, t))
    # GiGPO adds to the episode's advantage, the other takes its place
    credit = []
    for trajectory in group:
        episode = (trajectory.advantage or 0.0) if config.credit == "gigpo" else 0.0
        credit.append([episode] * len(trajectory.turns))
    for places in together.values():
        values = [gained[i][t] for i, t in places]
        for (i, t), value in zip(places, compared(values, config.std_eps), strict=True):
            credit[i][t] += value
    return credit


def assign_credit(groups: Sequence[Group], config: LossConfig) -> list[Group]:
    """Return the groups with an advantage for each turn, or with none, if every turn has its trajectory's."""
    credited = []
    for group in groups:
        if config.credit == "trajectory":  # a replayed turn has what another run gave it
            members = [with_credit(t, [None] * len(t.turns)) for t in group]
        else:
            valid = tuple(trajectory for trajectory in group if trajectory.valid)
            values = iter(turn_advantages(valid, config))
            members = [with_credit(t, next(values)) if t.valid else t for t in group]
        credited.append(tuple(members))
    return credited


def with_credit(trajectory: Trajectory, values: Sequence[float | None]) -> Trajectory:
    """Return the trajectory with these advantages at its turns."""
    pairs = zip(trajectory.turns, values, strict=True)
    return replace(trajectory, turns=tuple(replace(turn, advantage=value) for turn, value in pairs))
