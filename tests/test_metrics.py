"""What a step's episodes say in numbers, on a step small enough to count by hand."""

import json
from dataclasses import replace

import pytest

from minirl.agents import autowebworld, openwebrl, webagent_r1
from minirl.episode import CUT_OFF
from minirl.metrics import rollout_metrics
from minirl.rollout import Collected
from minirl.types import Stop, Task, Trajectory, Turn

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")


def turn(shared: int, suffix: int, response: int) -> Turn:
    return Turn(shared, (9,) * suffix, (7,) * response, (-0.1,) * response, "")


def episode(*turns: Turn, stop: Stop = Stop.DONE, reward: float = 0.0) -> Trajectory:
    return Trajectory(TASK, 0, turns=turns, stop=stop, success=reward == 1.0, reward=reward)


def collected(*finished: Trajectory, groups: int = 1) -> Collected:
    return Collected([finished] * groups, 7, list(finished), submitted=5, dropped=2)


def test_a_step_by_hand():
    """Three valid episodes (success, nothing, format error) and one lost to the browser."""
    metrics = rollout_metrics(
        collected(
            episode(turn(10, 5, 2), turn(20, 5, 4), reward=1.0),  # 6 response tokens, 29 in all
            episode(turn(10, 5, 3), stop=Stop.MAX_STEPS),  # 3, and 18
            episode(turn(10, 5, 6), stop=Stop.FORMAT_ERROR, reward=-1.0),  # 6, and 21
            episode(turn(10, 500, 90), stop=Stop.TIMEOUT),
        )
    )
    assert metrics == {
        "success": pytest.approx(1 / 3),
        "reward": 0.0,
        "reward_std": pytest.approx((2 / 3) ** 0.5),
        "tokens_mean": pytest.approx(68 / 3),
        "tokens_p90": 29,
        "response_tokens": 5.0,
        "turns": pytest.approx(4 / 3),
        "episodes": 4,
        "invalid": 1,
        "groups_submitted": 5,
        "groups_kept": 1,
        "groups_dropped": 2,
        "stop/done": 1,
        "stop/max_steps": 1,
        "stop/format_error": 1,
        "stop/timeout": 1,
    }


def test_numbers_of_equal_episodes_are_numbers():
    """Success is counted from booleans, and a file of metrics must not get `true`."""
    metrics = rollout_metrics(collected(episode(turn(1, 1, 1), reward=1.0)))
    assert json.loads(json.dumps(metrics["success"])) is not True
    assert metrics["success"] == 1.0 and metrics["reward_std"] == 0.0


def test_a_recorded_steps_rewards_are_counted_one_by_one():
    """Of valid episodes alone."""
    parts = [{"action": 1.0, "coordinate": 0.0}, {"action": 1.0, "coordinate": 1.0}]
    steps = [replace(episode(turn(1, 1, 1)), final_state={"rewards": part}) for part in parts]
    lost = replace(steps[0], stop=Stop.SITE_ERROR)
    metrics = rollout_metrics(collected(*steps, lost))
    assert (metrics["reward/action"], metrics["reward/coordinate"], metrics["invalid"]) == (1.0, 0.5, 1)


def test_a_step_without_a_valid_episode_has_counts_and_no_means():
    metrics = rollout_metrics(collected(episode(stop=Stop.ENV_ERROR), episode(stop=Stop.TIMEOUT), groups=0))
    assert metrics == {
        "episodes": 2,
        "invalid": 2,
        "groups_submitted": 5,
        "groups_kept": 0,
        "groups_dropped": 2,
        "stop/env_error": 1,
        "stop/timeout": 1,
    }


def test_unreadable_responses_are_counted_by_kind():
    """Whichever agent has read them, in any episode."""
    texts = ("so", "so</think>", "</think><tool_call>{</tool_call>")
    parsed = [openwebrl.parse(text) for text in texts]
    parsed += [agent.parse("so") for agent in (webagent_r1, autowebworld)]
    parsed += [CUT_OFF, openwebrl.parse('</think><tool_call>{"name": "wait"}</tool_call>')]
    turns = [replace(turn(1, 1, 1), parsed=response) for response in parsed]
    metrics = rollout_metrics(collected(episode(*turns[:3]), episode(*turns[3:], stop=Stop.TIMEOUT)))
    assert {name: n for name, n in metrics.items() if name.startswith("format/")} == {
        "format/no </think>": 1,
        "format/no complete <tool_call>": 1,
        "format/not valid JSON": 1,
        "format/invalid action": 2,
        "format/cut off": 1,
    }


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (range(10, 0, -1), 9),  # 9 of 10 do not exceed 9
        (range(1, 12), 10),  # 9 of 11 would be too few
        ([5], 5),
    ],
)
def test_the_90th_percentile_is_the_smallest_length_that_enough_do_not_exceed(lengths, expected):
    metrics = rollout_metrics(collected(*(episode(turn(1, 0, n - 1)) for n in lengths)))
    assert metrics["tokens_p90"] == expected
