"""From an episode's ending and verdict to its reward: stands between episodes and advantages.

OpenWebRL, appendix A.4, is a row of gates, and the judge is asked only behind all of them:

    format   three unparsable responses in a row: -1; one on the way: 0 (`--reward.format last`: of the last)
    status   anything but the agent's own `done`: 0 (`--reward.after any`: in evaluations any ending counts)
    answer   `done` without an answer: 0
    judge    SUCCESS: 1, NOT SUCCESS: 0, neither: invalid

A task's own rules take the judge's place, after the gate of status alone, or with `--reward.after any`
after none: WebAgent-R1 asks them at the turn limit, too (its released code with the answer "N/A", here with
an empty one). With `--reward.by judge` a judge rewards training there, while `success` stays with the rules.
Evaluations have no gate of format, and an empty answer is the judge's affair there (judges/rubrics.py).
"""

from dataclasses import replace
from typing import Literal

from minirl.config import RewardConfig
from minirl.types import GRADED, Stop, Trajectory

# Which responses must be in format. "none" is an evaluation's, where the judge sees to an empty answer, too
Gates = Literal["every", "last", "none"]
DEFAULT = RewardConfig()
# Endings that a bot wall can cause; unreadable or too long responses are the policy's own
BLOCKABLE = (Stop.DONE, Stop.MAX_STEPS, Stop.REPEATED)


def reward(stop: Stop, value: float, config: RewardConfig = DEFAULT) -> float:
    """Return the gated reward of an episode that ended so, and whose task's rules say `value`."""
    if stop not in GRADED[config.after]:
        value = 0.0
    if stop is Stop.FORMAT_ERROR and value == 0:
        return config.format_error
    return value


def needs_verdict(trajectory: Trajectory, gates: Gates = "every", config: RewardConfig = DEFAULT) -> bool:
    """Return True if the gates before the judge are passed."""
    if not trajectory.valid or trajectory.stop not in GRADED[config.after]:
        return False
    if gates == "none":
        return True
    turns = trajectory.turns if gates == "every" else trajectory.turns[-1:]
    in_format = all(turn.parsed.calls and not turn.parsed.error for turn in turns)
    return bool(trajectory.answer.strip()) and in_format


def apply_reward_gates(
    trajectory: Trajectory, gates: Gates = "every", config: RewardConfig = DEFAULT
) -> Trajectory:
    """Return a judged episode with its success and reward. Where no gate decides, a verdict that is missing
    or has no `success` makes the trajectory invalid (Stop.JUDGE_ERROR), never a failure."""
    if not needs_verdict(trajectory, gates, config):
        return replace(trajectory, success=False, reward=reward(trajectory.stop, 0.0, config))
    verdict = trajectory.verdict
    if verdict is None or verdict.success is None:
        error = verdict.error if verdict else "no judge was asked"
        return replace(trajectory, success=False, reward=0.0, stop=Stop.JUDGE_ERROR, error=error)
    value = reward(trajectory.stop, float(verdict.success), config)
    return replace(trajectory, success=verdict.success, reward=value)


def mark_blocked(trajectory: Trajectory) -> Trajectory:
    """Return a failed episode that a bot wall may have ended as Stop.BLOCKED, and all others as they are."""
    if not trajectory.valid or trajectory.success or not trajectory.blocked:
        return trajectory
    if trajectory.stop not in BLOCKABLE:
        return trajectory
    return replace(trajectory, stop=Stop.BLOCKED, error=f"blocked: {trajectory.blocked}", reward=0.0)
