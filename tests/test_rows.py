"""Rows, minibatches and tensors: which token is trained, from which position, with what."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import CPU, TASK, group_of

from minirl.config import LossConfig
from minirl.console import CONSOLE
from minirl.rows import (
    Row,
    TrajectoryRows,
    balance,
    collate,
    filter_by_length,
    make_rows,
    micro_batches,
    minibatches,
    turn_rows,
)
from minirl.types import Group, RunEnds, Stop, Trajectory, Turn


def test_the_rows_of_a_trajectory():
    """A prefix of five; the first turn branched off after three of them, the second after all."""
    first = Turn(3, (9, 9, 4), (7, 2), (-0.1, -0.7), "", images=("a",))
    second = Turn(5, (9, 4), (8, 8, 2), (-0.3, -0.2, -0.1), "", images=("b", "c"))
    trajectory = Trajectory(TASK, 0, prefix=(1, 2, 3, 5, 6), turns=(first, second))
    assert turn_rows(trajectory, advantage=0.5) == (
        Row((1, 2, 3, 9, 9, 4, 7, 2), 6, ("a",), (-0.1, -0.7), 0.5, 3, (1.0, 1.0)),
        Row((1, 2, 3, 5, 6, 9, 4, 8, 8, 2), 7, ("b", "c"), (-0.3, -0.2, -0.1), 0.5, 5, (1.0, 1.0, 1.0)),
    )


def test_a_masked_trajectory_makes_no_rows():
    """Not even ones of advantage 0, which the KL term would pull at. A success on its side keeps its own."""
    turns = (Turn(0, (1,), (7, 2), (-0.1, -0.7), ""),)
    good, broken = Trajectory(TASK, 0, turns=turns), Trajectory(TASK, 1, turns=turns, stop=Stop.JUDGE_ERROR)
    group = group_of((broken, good, replace(broken, turns=())), 0.0, 1.2, 0.0)
    (kept,) = make_rows([group], LossConfig(kl=0.1))
    assert kept.rows == turn_rows(good, 1.2)


def test_filtered_cloning_takes_the_successes_and_needs_one():
    bad, good = (Trajectory(TASK, m, turns=(Turn(0, (1,), (7 + m, 2), (-0.1, -0.7), ""),)) for m in (0, 1))
    config = LossConfig("filtered-bc")
    kept = make_rows([group_of((bad,), 0.0), group_of((bad, good), 0.0, 1.0)], config)
    assert kept == [TrajectoryRows(1, turn_rows(good, 1.0))]
    with pytest.raises(RunEnds, match="no success to learn from"):
        make_rows([group_of((bad,), 0.0)], config)


def groups_of(*turns: int) -> list[Group]:
    """One group whose trajectories have so many turns; the first id of a row names its trajectory."""
    trajectories = tuple(
        Trajectory(TASK, m, prefix=(100 + m,), turns=(Turn(1, (), (7,), (-0.5,), ""),) * n)
        for m, n in enumerate(turns)
    )
    return [group_of(trajectories, *map(float, range(len(turns))))]


def cut(groups: list[Group], turns: int, seed: int = 0) -> list[list[Row]]:
    """The rows of each minibatch."""
    parts = minibatches(make_rows(groups, LossConfig()), turns, seed)
    return [[row for trajectory in part for row in trajectory.rows] for part in parts]


def names(batches: list[list[Row]]) -> list[list[int]]:
    return [[row.ids[0] - 100 for row in rows] for rows in batches]


def of_length(n: int) -> Row:
    return Row((7,) * n, 1, (), (-0.5,) * (n - 1), 0.0)


def test_demonstrations_that_are_too_long_for_a_row_are_named_and_left_out():
    lengths = [(3, 9), (10,), (4, 11, 2), (25,), (2,)]
    examples = [TrajectoryRows(n, tuple(map(of_length, each))) for n, each in enumerate(lengths)]
    with CONSOLE.capture() as said:
        assert filter_by_length(examples, 25, "--batch.micro-tokens", "demonstration") == examples
    assert not said.get()
    with CONSOLE.capture() as said:
        kept = filter_by_length(examples, 10, "--batch.micro-tokens", "demonstration")
    assert [example.group for example in kept] == [0, 1, 4]
    words = " ".join(said.get().split())
    assert "2 demonstrations were longer than --batch.micro-tokens, and were left out, of 5" in words
    assert "the longest has 25 tokens" in words
    with pytest.raises(ValueError, match="no demonstration has at most --batch.micro-tokens 1 tokens; .* 25"):
        filter_by_length(examples, 1, "--batch.micro-tokens", "demonstration")


def test_minibatches_are_whole_trajectories_with_their_own_advantages():
    batches = cut(groups_of(3, 1, 4, 2, 5, 3), turns=4, seed=0)
    assert len(batches) > 1
    assert Counter(sum(names(batches), [])) == {0: 3, 1: 1, 2: 4, 3: 2, 4: 5, 5: 3}  # every row once
    for rows in names(batches):
        for m, size in enumerate([3, 1, 4, 2, 5, 3]):
            assert rows.count(m) in (0, size)
    assert all(row.advantage == row.ids[0] - 100 for rows in batches for row in rows)


@pytest.mark.parametrize(
    ("turns", "sizes"),
    [
        ([3] * 6, [6, 6, 6]),  # it is full with the trajectory that reaches its size
        ([1] * 8, [4, 4]),
        ([1] * 9, [4, 5]),  # one turn is less than half of four
        ([1] * 10, [4, 4, 2]),  # two are not
        ([1], [1]),  # there is none before
    ],
)
def test_a_minibatch_reaches_its_size_and_a_short_last_one_joins_the_one_before(turns, sizes):
    assert [len(rows) for rows in cut(groups_of(*turns), turns=4)] == sizes


def test_every_seed_shuffles_in_its_own_way_and_mixes_groups():
    (group,) = groups_of(*[1] * 12)
    orders = [sum(names(cut([group], 4, seed)), []) for seed in (0, 0, 1, 2)]
    assert orders[0] == orders[1] != sorted(orders[0])
    assert len({tuple(order) for order in orders}) == 3
    other = tuple(replace(t, prefix=(200,)) for t in group)
    assert {row.ids[0] == 200 for row in cut([group, other], turns=12)[0]} == {True, False}


def test_micro_batches_by_hand():
    """At most 10 tokens with padding: 3 and 4 take 8; with 5 they would take 15; 12 is alone anyway."""
    rows = [of_length(n) for n in (5, 12, 3, 4, 5)]
    lengths = [[len(row.ids) for row in part.rows] for part in micro_batches(rows, tokens=10)]
    assert lengths == [[3, 4], [5, 5], [12]]


@given(st.lists(st.integers(2, 40), max_size=12), st.integers(1, 100))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths, tokens):
    parts = micro_batches([of_length(n) for n in lengths], tokens)
    assert sorted(len(row.ids) for part in parts for row in part.rows) == sorted(lengths)
    for part in parts:
        assert part.tokens == max(len(row.ids) for row in part.rows) * len(part.rows)
        assert len(part.rows) == 1 or part.tokens <= tokens


def test_balance_by_hand():
    """Six rows of 10 tokens. With a budget of 20, three parts for two ranks are cut into four of at most
    ceil(60 / 4) = 15 tokens' place."""
    cases = {(40, 2): [[40], [20]], (40, 3): [[20], [20], [20]], (60, 1): [[60]], (20, 2): [[20, 20], [20]]}
    for (budget, ranks), expected in cases.items():
        shares = balance([of_length(10)] * 6, budget, ranks, micro_batches)
        assert [[part.tokens for part in share] for share in shares] == expected


def test_tensors_by_hand(preprocessor):
    """Rows of 6 and 4 ids, padded to 6: the response 15 16 is read at flat positions 3 and 4, the response
    21 22 23 of the second row at 6 + 0, 6 + 1 and 6 + 2."""
    rows = [
        Row((11, 12, 13, 14, 15, 16), 4, (), (-0.1, -0.2), 0.5),
        Row((20, 21, 22, 23), 1, (), (-0.3, -0.4, -0.5), -1.5),
    ]
    batch = collate(rows, preprocessor, {}, CPU)
    assert batch.inputs["input_ids"].tolist() == [[11, 12, 13, 14, 15, 16], [20, 21, 22, 23, 0, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    axis = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0]]
    assert batch.inputs["position_ids"].tolist() == [axis] * 3  # time, height, width
    text = collate(rows, replace(preprocessor, images=None), {}, CPU)
    assert text.inputs["position_ids"].tolist() == axis and "pixel_values" not in batch.inputs
    assert batch.sources_N.tolist() == [3, 4, 6, 7, 8]
    assert batch.targets_N.tolist() == [15, 16, 21, 22, 23]
    assert batch.old_N.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5])
    assert batch.advantage_N.tolist() == [0.5, 0.5, -1.5, -1.5, -1.5]
