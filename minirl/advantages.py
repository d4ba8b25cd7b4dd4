"""From verdicts to advantages.

Stands between episodes and training. OpenWebRL, appendix A.4, is a row of gates:

    format   three unparsable responses in a row: -1 (`--reward.format-error`). One on the way: 0
             (`--reward.format last`: of the last)
    status   anything but the agent's own `done`: 0
    answer   `done` without an answer: 0
    judge    SUCCESS: 1, NOT SUCCESS: 0, neither: invalid

and the judge (minirl/judges) is asked only if all gates before it are passed. (Evaluations ask it about every
episode that the agent ended: the gates are conditions of a reward, not of success.) Where a task has rules of
its own, their score takes the judge's place, without the gates of format and answer, and counts if the agent
ended the episode with `done`. (With `--reward.by judge` the judge rewards training's episodes there too,
behind all its gates, while `success` stays with the rules: so one can watch how a policy learns to exploit a
judge.) GRPO's advantage compares the episodes of one task: (r - mean) / (std + eps), std unbiased, one value
for all tokens of a trajectory; the baselines of WebAgent-R1 have their own (minirl/loss.py).

Deviation from the released code: trajectories whose ending says nothing about the policy leave before mean
and deviation are taken. There they stay in the statistics as zeros, without a gradient, and `--reward.invalid
mask` does the same. (Two differences remain: there, masked turns still count in the 256 of a minibatch, while
here they make no rows; and there, an aborted rollout leaves its group in any case.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from statistics import mean, stdev
from typing import Literal

from minirl.config import LossConfig
from minirl.types import Group, Stop, Task, Trajectory, Turn

# Which responses must be in format. "none" is an evaluation's, where an answer may be empty, too
Gates = Literal["every", "last", "none"]
AWR_MAX = 20.0  # on exp(advantage / temperature), as in the code of AWR's authors


def reward(stop: Stop, value: float, format_error: float = -1.0) -> float:
    """Return the gated reward of an episode that ended with `stop` and whose task's rules say `value`."""
    if stop is Stop.FORMAT_ERROR:
        return format_error
    return value if stop is Stop.DONE else 0.0


def in_format(turn: Turn) -> bool:
    """Return True for a response that closed its thought and made calls that could be read."""
    return not turn.parsed.error and bool(turn.parsed.calls)


def needs_verdict(trajectory: Trajectory, gates: Gates = "every") -> bool:
    """Return True if the gates before the judge are passed. All other trajectories cost no question."""
    if not trajectory.valid or trajectory.stop is not Stop.DONE:
        return False
    if gates == "none":
        return True
    checked = trajectory.turns if gates == "every" else trajectory.turns[-1:]
    return bool(trajectory.answer.strip()) and all(map(in_format, checked))


def gate(trajectory: Trajectory, gates: Gates = "every", format_error: float = -1.0) -> Trajectory:
    """Return a finished episode with the success and the reward that its verdict gives it.

    Where the gates decide, the verdict is not looked at. Where they don't, a verdict that is missing or has
    no `success` makes the trajectory invalid (Stop.JUDGE_ERROR), never a failure.
    """
    verdict = trajectory.verdict
    if not needs_verdict(trajectory, gates):
        return replace(trajectory, success=False, reward=reward(trajectory.stop, 0.0, format_error))
    if verdict is None or verdict.success is None:
        why = verdict.error if verdict else "no judge was asked"
        return replace(trajectory, success=False, reward=0.0, stop=Stop.JUDGE_ERROR, error=why)
    return replace(trajectory, success=verdict.success, reward=float(verdict.success))


def make_group(
    task: Task, trajectories: Sequence[Trajectory], invalid: Literal["drop", "mask"] = "drop"
) -> Group | None:
    """Return the episodes of one task as a group, or None if there are fewer than two to compare. Invalid
    ones leave ("drop") or stay with a reward of 0 ("mask"); a group of invalid ones alone is None."""
    valid = [trajectory for trajectory in trajectories if trajectory.valid]
    members = valid
    if invalid == "mask" and valid:
        members = [t if t.valid else replace(t, success=False, reward=0.0) for t in trajectories]
    return Group(task, tuple(members)) if len(members) >= 2 else None


def is_effective(group: Group) -> bool:
    """Return True if the group's rewards differ, so that it teaches something."""
    return len({trajectory.reward for trajectory in group.trajectories}) > 1


def advantages(rewards: Sequence[float], eps: float) -> tuple[float, ...]:
    """Return (r - mean) / (std + eps) for every reward, with the unbiased deviation.

    >>> [round(a, 3) for a in advantages((1, 0, 0, 1), 1e-6)]
    [0.866, -0.866, -0.866, 0.866]
    """
    center, spread = mean(rewards), stdev(rewards)
    return tuple((r - center) / (spread + eps) for r in rewards)


def assign_advantages(groups: Sequence[Group], config: LossConfig) -> list[Group]:
    """Return the groups with the weight of every trajectory: GRPO's advantage; with filtered behaviour
    cloning 1 for a success and 0 otherwise; with AWR exp((r - mean) / temperature), at most AWR_MAX. An
    invalid trajectory that stayed in its group is in the mean and the deviation, and weighs 0 itself."""
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
        pairs = zip(group.trajectories, values, strict=True)
        out.append(replace(group, advantages=tuple(v if t.valid else 0.0 for t, v in pairs)))
    return out


def shuffle_rewards(groups: Sequence[Group], seed: int) -> list[Group]:
    """Return the control: every group keeps its rewards, but they go to random valid members."""
    out = []
    for i, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group.trajectories if trajectory.valid]
        random.Random(f"{seed}|{i}|{group.task.id}").shuffle(rewards)
        left = iter(rewards)
        members = tuple(replace(t, reward=next(left)) if t.valid else t for t in group.trajectories)
        out.append(replace(group, trajectories=members))
    return out
