"""From verdicts to advantages.

Stands between episodes and training. OpenWebRL, appendix A.4: -1 for an episode that ended in format errors,
1 for one that the agent ended with `done` and the verifier calls a success, 0 otherwise. GRPO's advantage
compares the episodes of one task: (r - mean) / (std + eps), std unbiased, one value for all tokens of a
trajectory; the baselines of WebAgent-R1 have their own (minirl/loss.py). Deviation from the released code:
trajectories whose ending says nothing about the policy leave before mean and deviation are taken; there they
stay in the statistics as zeros.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from statistics import mean, stdev

from minirl.config import LossConfig
from minirl.types import Group, Stop, Task, Trajectory

AWR_MAX = 20.0  # on exp(advantage / temperature), as in the code of AWR's authors


def reward(trajectory: Trajectory) -> float:
    """The gated reward of a finished episode."""
    if trajectory.stop is Stop.FORMAT_ERROR:
        return -1.0
    return 1.0 if trajectory.success and trajectory.stop is Stop.DONE else 0.0


def make_group(task: Task, trajectories: Sequence[Trajectory]) -> Group | None:
    """The valid episodes of one task, or None if fewer than two are left to compare."""
    valid = tuple(trajectory for trajectory in trajectories if trajectory.valid)
    return Group(task, valid) if len(valid) >= 2 else None


def is_effective(group: Group) -> bool:
    """True if the group's rewards differ, so that it teaches something."""
    return len({trajectory.reward for trajectory in group.trajectories}) > 1


def advantages(rewards: Sequence[float], eps: float) -> tuple[float, ...]:
    """(r - mean) / (std + eps) with the unbiased deviation.

    >>> [round(a, 3) for a in advantages((1, 0, 0, 1), 1e-6)]
    [0.866, -0.866, -0.866, 0.866]
    """
    center, spread = mean(rewards), stdev(rewards)
    return tuple((r - center) / (spread + eps) for r in rewards)


def assign_advantages(groups: Sequence[Group], config: LossConfig) -> list[Group]:
    """What every trajectory is weighted with: GRPO's advantage; with filtered behaviour cloning 1 for a
    success and 0 otherwise; with AWR exp((r - mean) / temperature), at most AWR_MAX."""
    out = []
    for group in groups:
        rewards = [trajectory.reward for trajectory in group.trajectories]
        if config.method == "grpo":
            values = advantages(rewards, config.std_eps)
        elif config.method == "filtered-bc":
            values = tuple(float(r == 1) for r in rewards)
        else:
            center = mean(rewards)
            scaled = [(r - center) / config.awr_temperature for r in rewards]
            values = tuple(exp(min(value, log(AWR_MAX))) for value in scaled)
        out.append(replace(group, advantages=values))
    return out


def shuffle_rewards(groups: Sequence[Group], seed: int) -> list[Group]:
    """The control: every group keeps its rewards, but they go to random members."""
    out = []
    for i, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group.trajectories]
        random.Random(f"{seed}|{i}|{group.task.id}").shuffle(rewards)
        pairs = zip(group.trajectories, rewards, strict=True)
        out.append(replace(group, trajectories=tuple(replace(t, reward=r) for t, r in pairs)))
    return out
