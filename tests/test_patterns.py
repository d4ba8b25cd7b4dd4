"""No reader of what a model says takes quadratic time."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from minirl.agents import openwebrl, openwebrl_actions, webagent_r1
from minirl.benchmarks.recorded import read_history
from minirl.judges.parsers import read_verdict
from minirl.worlds.authoring import WRITTEN

# From n to 16n repeats: linear is 16, three times that where a cache overflows; quadratic is 256
MAX_GROWTH = 64.0
LOOKS = ((128, 1), (128, 3), (400, 3), (400, 5))  # repeats and attempts; a busy machine is looked at again
BEGINNINGS = ["", "the verdict", "so</think>", "<answer>do(", "Step 1: <think>"]
WORDS = ["the ", "not ", "verdict:", " ", "success\n", "status: ", ". status: ", "- ", "1. ", "\n", "{", "}"]
WORDS += ['"', "'", "<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "<verdict>", "*", "a+"]
WORDS += ["Step 1: <think>", "</think><action>"]
WORDS += ["=== a\n", "=== end\n", "1,", "1 ", ",", "[", "1", "-", ".", "do(", "do (", ")", "do(''", "#"]


def call(value: Any) -> str:
    record = {"name": "click", "arguments": {"point_2d": value}}
    return f"so</think><tool_call>{json.dumps(record)}</tool_call>"


READERS: dict[str, Callable[[str], Any]] = {"verdict": read_verdict, "keys": openwebrl_actions.normal}
READERS |= {"openwebrl": openwebrl.parse, "webagent-r1": webagent_r1.parse}
READERS["authored files"] = WRITTEN.findall
READERS["point"] = lambda text: openwebrl.parse(call(text))
READERS["number"] = lambda text: openwebrl.parse(call([text, text]))
READERS["history"] = read_history
READERS["element"] = lambda text: webagent_r1.parse(f'do(action="Click", element="{text}")')


def seconds(read: Callable[[str], Any], text: str, attempts: int) -> float:
    times = []
    for _ in range(attempts):
        start = time.thread_time_ns()
        read(text)
        times.append(time.thread_time_ns() - start)
    return min(times) + 1000  # a call's own share


def is_linear(read: Callable[[str], Any], beginning: str, word: str) -> bool:
    for repeats, attempts in LOOKS:
        short = seconds(read, beginning + word * repeats, attempts)
        long = seconds(read, beginning + word * 16 * repeats, attempts)
        if long / short < MAX_GROWTH:
            return True
    return False


@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_takes_linear_time(reader):
    slow = [
        (start, word) for start in BEGINNINGS for word in WORDS if not is_linear(READERS[reader], start, word)
    ]
    assert not slow


def test_a_quadratic_reader_would_be_found():
    assert not is_linear(re.compile(r"\s*x").search, "", " ")
