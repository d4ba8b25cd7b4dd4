"""Recorded steps: the released reward to the letter, the content-aware one, and rows read and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.agents.autowebworld import ACTIONS
from minirl.benchmarks.recorded import RecordedBenchmark, rewards
from minirl.benchmarks.task_files import load_tasks, save_tasks

FIXTURE = Path(__file__).parents[1] / "data/autowebworld_rewards.jsonl"
PAIRS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
SOLUTION = re.compile(r"<action>\[\{'action': '(\w+)'(?:, 'coordinate': (\[.*\]))?\}\]</action>")


def goal_of(solution: str) -> dict:
    action, box = SOLUTION.fullmatch(solution).groups()
    return {"action": action} | ({"bbox": json.loads(box)} if box else {})


# --- the reward ------------------------------------------------------------------------------------


def test_the_reward_is_the_released_one_on_every_pair():
    assert len(PAIRS) == 300
    for pair in PAIRS:
        found = rewards(pair["prediction"], goal_of(pair["solution"]), pair["scale"], contents=False)
        assert found == {name: pair[name] for name in ("action", "coordinate", "format")}, pair
    for name in ("action", "coordinate", "format"):
        assert {pair[name] for pair in PAIRS} == {0.0, 1.0}, "a reward that never changes tests nothing"


def test_where_only_a_drags_box_is_told_the_rewards_differ_for_drags_that_begin_beside_it():
    """All that the released rows tell of contents."""
    differ = 0
    for pair in PAIRS:
        goal, scale = goal_of(pair["solution"]), pair["scale"]
        plain, aware = (rewards(pair["prediction"], goal, scale, contents) for contents in (False, True))
        if plain == aware:
            continue
        differ += 1
        assert goal["action"] == "drag" and (plain["coordinate"], aware["coordinate"]) == (1, 0), pair
        if start := re.search(r"'from': \[(\d+), (\d+)\]", pair["prediction"]):
            x, y = (int(int(n) * by) for n, by in zip(start.groups(), scale, strict=True))
            left, top, right, bottom = goal["bbox"]
            assert not (left <= x <= right and top <= y <= bottom), pair
    assert differ == 9


@pytest.mark.parametrize(
    ("goal", "said", "is_right"),
    [
        ({"action": "type_text", "text": "Blue mug"}, "{'action': 'type_text', 'text': ' blue  MUG'}", True),
        ({"action": "type_text", "text": "Blue mug"}, "{'action': 'type_text', 'text': 'red mug'}", False),
        ({"action": "answer", "text": "42"}, "{'action': 'answer', 'text': 42}", True),
        ({"action": "answer", "text": "42"}, "{'action': 'answer', 'text': '24'}", False),
        ({"action": "answer"}, "{'action': 'answer', 'text': 'whatever'}", True),
        ({"action": "scroll"}, "{'action': 'scroll'}", True),
        ({"action": "scroll", "value": "down"}, "{'action': 'scroll', 'value': down}", True),
        ({"action": "scroll", "value": "down"}, "{'action': 'scroll', 'value': 'up'}", False),
        ({"action": "hotkey", "value": "Control + A"}, "{'action': 'hotkey', 'value': 'ctrl+a'}", True),
        ({"action": "hotkey", "value": "Delete"}, "{'action': 'hotkey', 'value': 'Enter'}", False),
        ({"action": "press_enter"}, "{'action': 'press_enter'}", True),
        ({"action": "wait"}, "{'action': 'wait', 'time': 3}", True),
    ],
)
def test_contents_are_checked_where_the_record_tells_them(goal, said, is_right):
    said = f"<think>so</think><action>{said}</action>"
    assert rewards(said, goal, (1, 1), contents=False) == {"action": 1, "coordinate": 1, "format": 1}
    assert rewards(said, goal, (1, 1), contents=True) == {"action": 1, "coordinate": is_right, "format": 1}


def test_drags_are_checked_at_both_ends_in_the_records_pixels():
    """Of a picture that the model sees at half its width and a third of its height."""
    goal, scale = {"action": "drag", "bbox": [10, 30, 20, 39], "to": [100, 30, 104, 39]}, (2.0, 3.0)

    def checked(start: list, end: list) -> float:
        said = f"<think>so</think><action>{{'action': 'drag', 'from': {start}, 'to': {end}}}</action>"
        assert rewards(said, goal, scale, contents=False)["coordinate"] == 1
        return rewards(said, goal, scale, contents=True)["coordinate"]

    assert checked([5, 10], [50, 13]) == checked([10, 13], [52, 10]) == 1
    assert checked([11, 10], [50, 13]) == checked([5, 14], [50, 13]) == 0, "begins beside its box"
    assert checked([5, 10], [53, 13]) == checked([5, 10], [49, 13]) == 0, "ends beside its box"


@given(st.text(max_size=60), st.sampled_from(sorted(ACTIONS)), st.booleans())
def test_nothing_that_is_said_raises(text, action, contents):
    goal = {"action": action, "bbox": [1, 2, 3, 4], "text": "a", "value": "b", "to": [1, 2, 3, 4]}
    for said in (text, f"<action>{{'action': '{action}', {text}}}</action>"):
        assert set(rewards(said, goal, (1.5, 2), contents).values()) <= {0.0, 1.0}


def test_a_number_of_thousands_of_digits_is_no_place():
    said = f"<action>{{'action': 'click', 'coordinate': [{'9' * 5000}, 1]}}</action>"
    assert rewards(said, {"action": "click", "bbox": [0, 0, 9, 9]}, (1, 1), False)["coordinate"] == 0
