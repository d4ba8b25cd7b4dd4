"""Wilson's interval and paired differences, by hand and checked against other ways to the same numbers."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.evaluation.results import paired
from minirl.judges.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # z^2 = 3.8416; denominator 1.38416; centre (0.5 + 0.19208) / 1.38416 = 0.5
        # half = 1.96 * sqrt(0.025 + 0.009604) / 1.38416 = 1.96 * 0.186022 / 1.38416 = 0.263411
        (5, 10, 0.236589, 0.763411),
        # at the edges it stays inside and keeps its width: high = z^2 / (n + z^2)
        (0, 20, 0.0, 3.8416 / 23.8416),
        (20, 20, 20 / 23.8416, 1.0),
        (0, 0, 0.0, 1.0),  # nothing measured, nothing known
    ],
)
def test_wilsons_interval_by_hand(successes, n, low, high):
    interval = wilson(successes, n)
    assert interval == pytest.approx((low, high), abs=1e-6)
    assert (interval[0] == 0.0) is (successes == 0) and (interval[1] == 1.0) is (successes == n)
    mirrored = wilson(n - successes, n)
    assert mirrored == pytest.approx((1 - interval[1], 1 - interval[0])), "success and failure swapped"


def tasks(*outcomes: bool | list[bool]) -> dict[str, list[bool]]:
    return {f"t{i}": o if isinstance(o, list) else [o] for i, o in enumerate(outcomes)}


def test_ten_tasks_by_hand():
    """3 solved by the second alone, 1 by the first alone, 4 by both, 2 by neither."""
    first = tasks(*[False] * 3, True, *[True] * 4, *[False] * 2)
    second = tasks(*[True] * 3, False, *[True] * 4, *[False] * 2)
    p = paired(first, second)
    # centre (3 - 1) / 12 = 1/6; variance ((3 + 1 + 1) / 12 - 1/36) / 12 = (7/18) / 12 = 7/216
    half = 1.96 * sqrt(7 / 216)
    assert (p.tasks, p.better, p.worse, p.unpaired) == (10, 3, 1, 0)
    assert (p.first, p.second, p.difference) == pytest.approx((0.5, 0.7, 0.2))
    assert (p.low, p.high) == pytest.approx((1 / 6 - half, 1 / 6 + half))


def test_several_seeds_by_hand():
    """Differences of the tasks' means: 1/2, 0, -1/2 and 1."""
    first = tasks([True, False], [True], [True, True], [False, False, False])
    second = tasks([True, True], [True, True], [False, True], [True])
    p = paired(first, second)
    # sum 1, sum of squares 1.5; centre 1/6; variance (2.5/6 - 1/36) / 6 = (7/18) / 6 = 7/108
    assert p.difference == pytest.approx(0.25) and (p.better, p.worse) == (2, 1)
    assert (p.low, p.high) == pytest.approx((1 / 6 - 1.96 * sqrt(7 / 108), 1 / 6 + 1.96 * sqrt(7 / 108)))


def test_agreement_on_all_tasks_proves_little():
    p = paired(tasks(*[True] * 20), tasks(*[True] * 20))
    # centre 0, variance 1 / 22^2; the plain normal interval would be [0, 0]
    assert (p.difference, p.low, p.high) == pytest.approx((0, -1.96 / 22, 1.96 / 22))


@pytest.mark.parametrize(
    ("both", "only_first", "only_second", "n"), [(0.5, 0.1, 0.2, 30), (0.9, 0.0, 0.02, 50)]
)
def test_the_interval_covers_the_true_difference_as_often_as_it_says(both, only_first, only_second, n):
    generator = np.random.default_rng(1)
    shares = [both, only_first, only_second, 1 - both - only_first - only_second]
    covered = 0
    for _ in range(1000):
        kind = generator.choice(4, size=n, p=shares)
        p = paired(tasks(*np.isin(kind, [0, 1]).tolist()), tasks(*np.isin(kind, [0, 2]).tolist()))
        covered += p.low <= only_second - only_first <= p.high
    assert covered >= 935  # 950 less two standard deviations of the count


def test_tasks_that_only_one_has_met_are_left_out_and_counted():
    p = paired({"a": [True], "b": [False]}, {"a": [True], "c": [True]})
    assert (p.tasks, p.unpaired, p.difference) == (1, 2, 0.0)


SEEDS = st.lists(st.booleans(), min_size=1, max_size=3)
RUNS = st.dictionaries(st.sampled_from("abcdefgh"), SEEDS, min_size=8)


@given(RUNS, RUNS)
def test_swapping_the_two_turns_the_interval_round(first, second):
    p, q = paired(first, second), paired(second, first)
    assert (p.low, p.high, p.difference) == pytest.approx((-q.high, -q.low, -q.difference))
    assert (p.better, p.worse) == (q.worse, q.better)
    assert -1 <= p.low <= p.difference <= p.high <= 1
