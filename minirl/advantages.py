"""From rewards to advantages: stands between episodes and training.

Deviations from OpenWebRL's released code:

1. Trajectories whose ending says nothing about the policy leave before GRPO's statistics. With
   `--reward.invalid mask` they count in its mean and deviation, with a reward of 0; they are not trained on.
2. An aborted rollout does not take its group with it.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from statistics import mean, stdev
from typing import Literal

from minirl.config import LossConfig
from minirl.types import ROUNDING, Group, Trajectory

AWR_MAX = 20.0  # on exp(advantage), as in the code of AWR's authors


def make_group(trajectories: Sequence[Trajectory], invalid: Literal["drop", "mask"] = "drop") -> Group | None:
    """Return the valid episodes of one task as a group (with "mask" the others too, with a reward of 0); None
    if fewer than two can be compared or none is valid."""
    members = [trajectory for trajectory in trajectories if trajectory.valid]
    if invalid == "mask" and members:
        members = [t if t.valid else replace(t, success=False, reward=0.0) for t in trajectories]
    return tuple(members) if len(members) >= 2 else None


def is_effective(group: Group) -> bool:
    """Return True if the group's rewards differ, so that it teaches something."""
    return stdev(trajectory.reward for trajectory in group) > ROUNDING


def advantages(rewards: Sequence[float], eps: float) -> list[float]:
    """Return (r - mean) / (std + eps) for every reward: of 1 0 0 1 about 0.866 -0.866 -0.866 0.866.
    Where they differ by rounding alone it is 0."""
    center = mean(rewards)
    spread = stdev(rewards)
    if spread <= ROUNDING:
        return [0.0] * len(rewards)
    return [(r - center) / (spread + eps) for r in rewards]


def awr_weights(rewards: Sequence[float]) -> list[float]:
    """Return exp(r - mean) for every reward, at most AWR_MAX."""
    center = mean(rewards)
    return [min(exp(r - center), AWR_MAX) for r in rewards]


def assign_advantages(groups: Sequence[Group], config: LossConfig, success: float = 1.0) -> list[Group]:
    """Return the groups; each trajectory gets its group's number and its advantage: GRPO's; for filtered
    behaviour cloning 1 for a reward of at least `success`, else 0; for AWR its exponential weight. Invalid
    ones get 0."""
    weighted = []
    for number, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group]
        if config.method == "grpo":
            values = advantages(rewards, config.std_eps)
        elif config.method == "filtered-bc":
            values = [float(r >= success) for r in rewards]
        else:
            values = awr_weights(rewards)
        members = []
        for trajectory, value in zip(group, values, strict=True):
            advantage = value if trajectory.valid else 0.0
            members.append(replace(trajectory, group=number, advantage=advantage))
        weighted.append(tuple(members))
    return weighted


def shuffle_rewards(groups: Sequence[Group], seed: int) -> list[Group]:
    """Return the control: each group's rewards permuted among its valid members."""
    shuffled = []
    for i, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group if trajectory.valid]
        random.Random(f"{seed}|{i}|{group[0].task.id}").shuffle(rewards)
        left = iter(rewards)
        shuffled.append(tuple(replace(t, reward=next(left)) if t.valid else t for t in group))
    return shuffled
