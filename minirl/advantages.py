"""From verdicts to advantages: stands between episodes and training.

OpenWebRL, appendix A.4, is a row of gates, and the judge is asked only behind all of them:

    format   three unparsable responses in a row: -1; one on the way: 0 (`--reward.format last`: of the last)
    status   anything but the agent's own `done`: 0
    answer   `done` without an answer: 0
    judge    SUCCESS: 1, NOT SUCCESS: 0, neither: invalid

A task's own rules take the judge's place, behind the gate of status alone, or with `--reward.after any`
behind none: WebAgent-R1 asks them at the turn limit, too (its released code with the answer "N/A", here with
an empty one). With `--reward.by judge` a judge rewards training there, while `success` stays with the rules.
Evaluations have no gate of format, and an empty answer is the judge's affair there (judges/rubrics.py).

Deviations from OpenWebRL's released code: trajectories whose ending says nothing about the policy leave
before GRPO's statistics (`--reward.invalid mask` keeps them as zeros without a gradient; there they count in
a minibatch's 256 turns, too); an aborted rollout does not take its group with it.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from statistics import mean, stdev
from typing import Literal

from minirl.config import LossConfig, RewardConfig
from minirl.types import GRADED, Group, Stop, Trajectory

# Which responses must be in format. "none" is an evaluation's, where the judge sees to an empty answer, too
Gates = Literal["every", "last", "none"]
USUAL = RewardConfig()
AWR_MAX = 20.0  # on exp(advantage), as in the code of AWR's authors


def reward(stop: Stop, value: float, config: RewardConfig = USUAL) -> float:
    """Return the gated reward of an episode that ended so, and whose task's rules say `value`."""
    value = value if stop in GRADED[config.after] else 0.0
    return config.format_error if stop is Stop.FORMAT_ERROR and not value else value


def needs_verdict(trajectory: Trajectory, gates: Gates = "every") -> bool:
    """Return True if the gates before the judge are passed."""
    if not trajectory.valid or trajectory.stop is not Stop.DONE:
        return False
    if gates == "none":
        return True
    checked = trajectory.turns if gates == "every" else trajectory.turns[-1:]
    in_format = all(turn.parsed.calls and not turn.parsed.error for turn in checked)
    return bool(trajectory.answer.strip()) and in_format


def gate(trajectory: Trajectory, gates: Gates = "every", config: RewardConfig = USUAL) -> Trajectory:
    """Return a finished episode with its success and reward. Where no gate decides, a verdict that is missing
    or has no `success` makes the trajectory invalid (Stop.JUDGE_ERROR), never a failure."""
    verdict = trajectory.verdict
    if not needs_verdict(trajectory, gates):
        return replace(trajectory, success=False, reward=reward(trajectory.stop, 0.0, config))
    if verdict is None or verdict.success is None:
        why = verdict.error if verdict else "no judge was asked"
        return replace(trajectory, success=False, reward=0.0, stop=Stop.JUDGE_ERROR, error=why)
    return replace(trajectory, success=verdict.success, reward=float(verdict.success))


def excuse(trajectory: Trajectory) -> Trajectory:
    """Return an episode that failed before a page that keeps visitors out with Stop.BLOCKED, others as they
    are. A success stays one, and a response that was unreadable or too long is not the page's fault."""
    could = trajectory.valid and trajectory.stop in (Stop.DONE, Stop.MAX_STEPS, Stop.REPEATED)
    if not could or not trajectory.blocked or trajectory.success:
        return trajectory
    return replace(trajectory, stop=Stop.BLOCKED, error=f"blocked: {trajectory.blocked}", reward=0.0)


def make_group(trajectories: Sequence[Trajectory], invalid: Literal["drop", "mask"] = "drop") -> Group | None:
    """Return the valid episodes of one task as a group (with "mask" the others too, with a reward of 0); None
    if fewer than two can be compared or none is valid."""
    members = [trajectory for trajectory in trajectories if trajectory.valid]
    if invalid == "mask" and members:
        members = [t if t.valid else replace(t, success=False, reward=0.0) for t in trajectories]
    return tuple(members) if len(members) >= 2 else None


def is_effective(group: Group) -> bool:
    """Return True if the group's rewards differ, so that it teaches something."""
    return len({trajectory.reward for trajectory in group}) > 1


def advantages(rewards: Sequence[float], eps: float) -> tuple[float, ...]:
    """Return (r - mean) / (std + eps) for every reward: of 1 0 0 1 about 0.866 -0.866 -0.866 0.866."""
    center, spread = mean(rewards), stdev(rewards)
    return tuple((r - center) / (spread + eps) for r in rewards)


def assign_advantages(groups: Sequence[Group], config: LossConfig) -> list[Group]:
    """Return the groups with the number of each and every trajectory's weight: GRPO's advantage; for filtered
    behaviour cloning 1 for a success, else 0; for AWR exp(r - mean), at most AWR_MAX. Invalid
    ones weigh 0."""
    out = []
    for number, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group]
        if config.method == "grpo":
            values = advantages(rewards, config.std_eps)
        elif config.method == "filtered-bc":
            values = tuple(float(r == 1) for r in rewards)
        else:
            center, limit = mean(rewards), log(AWR_MAX)
            values = tuple(exp(min(r - center, limit)) for r in rewards)
        pairs = zip(group, values, strict=True)
        out.append(tuple(replace(t, group=number, advantage=v if t.valid else 0.0) for t, v in pairs))
    return out


def shuffle_rewards(groups: Sequence[Group], seed: int) -> list[Group]:
    """Return the control: each group's rewards at random valid members."""
    out = []
    for i, group in enumerate(groups):
        rewards = [trajectory.reward for trajectory in group if trajectory.valid]
        random.Random(f"{seed}|{i}|{group[0].task.id}").shuffle(rewards)
        left = iter(rewards)
        out.append(tuple(replace(t, reward=next(left)) if t.valid else t for t in group))
    return out
