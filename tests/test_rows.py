"""Rows, minibatches and tensors: which token is trained, from which position, with what."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from minirl.config import LossConfig
from minirl.policy import Policy
from minirl.rows import Row, collate, members_of, micro_batches, minibatches, turn_rows, weighted
from minirl.types import Group, Stop, Task, Trajectory, Turn

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
CPU = torch.device("cpu")


def no_image(name: str) -> bytes:
    raise AssertionError(f"nobody named an image, but {name} was wanted")


# --- rows ------------------------------------------------------------------------------------------


def test_the_rows_of_a_trajectory():
    """A trunk of five; the first turn branched off after three of them, the second after all."""
    trajectory = Trajectory(
        TASK,
        member=0,
        trunk=(1, 2, 3, 5, 6),
        turns=(
            Turn(3, (9, 9, 4), (7, 2), (-0.1, -0.7), "", images=("a",)),
            Turn(5, (9, 4), (8, 8, 2), (-0.3, -0.2, -0.1), "", images=("b", "c")),
        ),
    )
    assert turn_rows(trajectory, advantage=0.5) == (
        Row((1, 2, 3, 9, 9, 4, 7, 2), 6, ("a",), (-0.1, -0.7), 0.5, 3, (1.0, 1.0)),
        Row((1, 2, 3, 5, 6, 9, 4, 8, 8, 2), 7, ("b", "c"), (-0.3, -0.2, -0.1), 0.5, 5, (1.0, 1.0, 1.0)),
    )


def test_a_masked_trajectory_makes_no_rows():
    """Not even ones of advantage 0, which the KL term would pull at. A success on its side keeps its own."""
    turns = (Turn(0, (1,), (7, 2), (-0.1, -0.7), ""),)
    good, broken = Trajectory(TASK, 0, turns=turns), Trajectory(TASK, 1, turns=turns, stop=Stop.JUDGE_ERROR)
    (member,) = members_of([Group(TASK, (broken, good, replace(broken, turns=())), (0.0, 1.2, 0.0))])
    assert member.rows == turn_rows(good, 1.2)


# --- minibatches -----------------------------------------------------------------------------------


def groups_of(*turns: int) -> list[Group]:
    """One group whose trajectories have so many turns; the first id of a row names its trajectory."""
    trajectories = tuple(
        Trajectory(TASK, m, trunk=(100 + m,), turns=(Turn(1, (), (7,), (-0.5,), ""),) * n)
        for m, n in enumerate(turns)
    )
    return [Group(TASK, trajectories, tuple(float(m) for m in range(len(turns))))]


def cut(groups: list[Group], turns: int, seed: int) -> list[list[Row]]:
    """The rows of each minibatch."""
    parts = minibatches(members_of(groups), turns, seed)
    return [[row for member in part for row in member.rows] for part in parts]


def names(batches: list[list[Row]]) -> list[list[int]]:
    return [[row.ids[0] - 100 for row in rows] for rows in batches]


def test_minibatches_are_whole_trajectories_with_their_own_advantages():
    batches = cut(groups_of(3, 1, 4, 2, 5, 3), turns=4, seed=0)
    assert len(batches) > 1
    assert Counter(sum(names(batches), [])) == {0: 3, 1: 1, 2: 4, 3: 2, 4: 5, 5: 3}  # every row once
    for rows in names(batches):
        for m, size in enumerate([3, 1, 4, 2, 5, 3]):
            assert rows.count(m) in (0, size)
    assert all(row.advantage == row.ids[0] - 100 for rows in batches for row in rows)


def test_a_minibatch_is_full_with_the_trajectory_that_reaches_its_size():
    batches = cut(groups_of(*[3] * 6), turns=4, seed=0)
    assert [len(rows) for rows in batches] == [6, 6, 6]


def test_a_short_last_minibatch_joins_the_one_before():
    def sizes(n: int) -> list[int]:
        return [len(rows) for rows in cut(groups_of(*[1] * n), turns=4, seed=0)]

    assert sizes(8) == [4, 4]
    assert sizes(9) == [4, 5]  # one turn is less than half of four
    assert sizes(10) == [4, 4, 2]  # two are not
    assert sizes(1) == [1]  # there is none before


def test_every_seed_shuffles_in_its_own_way():
    groups = groups_of(*[1] * 12)
    orders = [sum(names(cut(groups, 4, seed)), []) for seed in (0, 0, 1, 2)]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != sorted(orders[0])


def test_minibatches_mix_groups():
    one, two = groups_of(*[1] * 6), groups_of(*[1] * 6)
    two = [replace(two[0], trajectories=tuple(replace(t, trunk=(200,)) for t in two[0].trajectories))]
    first = cut(one + two, turns=6, seed=0)[0]
    assert {row.ids[0] == 200 for row in first} == {True, False}


# --- micro-batches ---------------------------------------------------------------------------------


def of_length(n: int) -> Row:
    return Row((7,) * n, 1, (), (-0.5,) * (n - 1), 0.0)


def test_micro_batches_by_hand():
    """At most 10 tokens with padding: 3 and 4 take 8; with 5 they would take 15; 12 is alone anyway."""
    rows = [of_length(n) for n in (5, 12, 3, 4, 5)]
    lengths = [[len(row.ids) for row in part.rows] for part in micro_batches(rows, tokens=10)]
    assert lengths == [[3, 4], [5, 5], [12]]


@given(st.lists(st.integers(2, 40), max_size=12), st.integers(1, 100))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths, tokens):
    cut = list(micro_batches([of_length(n) for n in lengths], tokens))
    parts = [part.rows for part in cut]
    assert [part.tokens for part in cut] == [max(len(row.ids) for row in part) * len(part) for part in parts]
    assert sorted(len(row.ids) for part in parts for row in part) == sorted(lengths)
    for part in parts:
        assert len(part) == 1 or max(len(row.ids) for row in part) * len(part) <= tokens


# --- tensors ---------------------------------------------------------------------------------------


def test_tensors_by_hand(preprocessor):
    """Rows of 6 and 4 ids, padded to 6: the response 15 16 is read at flat positions 3 and 4, the response
    22 23 of the second row at 6 + 1 and 6 + 2."""
    rows = [
        Row((11, 12, 13, 14, 15, 16), 4, (), (-0.1, -0.2), 0.5),
        Row((20, 21, 22, 23), 2, (), (-0.3, -0.4), -1.5),
    ]
    batch = collate(rows, preprocessor, no_image, CPU)
    assert batch.inputs["input_ids"].tolist() == [[11, 12, 13, 14, 15, 16], [20, 21, 22, 23, 0, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    for axis in batch.inputs["position_ids"].tolist():
        assert axis == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0]]
    assert len(batch.inputs["position_ids"]) == 3  # time, height, width
    assert "pixel_values" not in batch.inputs
    assert batch.sources_N.tolist() == [3, 4, 7, 8]
    assert batch.targets_N.tolist() == [15, 16, 22, 23]
    assert batch.old_N.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert batch.advantage_N.tolist() == [0.5, 0.5, -1.5, -1.5]
    assert batch.tokens == 12


def test_responses_of_unequal_length_keep_their_own(preprocessor):
    rows = [Row((11, 12, 13), 2, (), (-0.1,), 0.5), Row((20, 21, 22, 23), 1, (), (-0.2, -0.3, -0.4), 2.0)]
    batch = collate(rows, preprocessor, no_image, CPU)
    assert batch.advantage_N.tolist() == [0.5, 2.0, 2.0, 2.0]
    assert batch.sources_N.tolist() == [1, 4, 5, 6]


def test_every_target_is_the_token_behind_its_source(preprocessor):
    rows = [Row(tuple(range(20 + n, 40)), 5, (), (0.0,) * (15 - n), 0.0) for n in (0, 3, 7)]
    batch = collate(rows, preprocessor, no_image, CPU)
    behind = batch.inputs["input_ids"].flatten()[batch.sources_N + 1]
    assert behind.tolist() == batch.targets_N.tolist()
    assert len(behind) == sum(len(row.ids) - row.start for row in rows)


def test_a_text_model_has_one_axis_of_positions(preprocessor):
    batch = collate([of_length(3)], replace(preprocessor, images=None), no_image, CPU)
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2]]


@pytest.fixture
def pictures(png):
    return {"wide": png(96, 64, 1), "high": png(32, 96, 2), "small": png(32, 32, 3)}


def with_images(preprocessor, *images: str) -> tuple[int, ...]:
    """Ids of a prompt that shows the named pictures of 6, 3 and 1 pads."""
    pads = {"wide": 6, "high": 3, "small": 1}
    start, end = (preprocessor.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    ids: tuple[int, ...] = (1, 40, 41)
    for image in images:
        ids += (start, *[preprocessor.pad] * pads[image], end, 42)
    return ids


@pytest.fixture
def picture_rows(preprocessor) -> list[Row]:
    """Five rows of different lengths with zero to two pictures."""
    shown = [("wide",), (), ("small", "high"), ("high", "wide"), ("wide",)]
    rows = []
    for n, images in enumerate(shown):
        prompt = with_images(preprocessor, *images)
        response = tuple(range(50 + n, 53 + 3 * n)) + (2,)
        rows.append(Row(prompt + response, len(prompt), images, (-1.0,) * len(response), 0.0))
    return rows


def test_pictures_stand_in_the_order_of_their_pads(preprocessor, pictures, picture_rows):
    batch = collate(picture_rows, preprocessor, pictures.__getitem__, CPU)
    prepared = [preprocessor.images.prepare(pictures[name]) for row in picture_rows for name in row.images]
    assert torch.equal(batch.inputs["pixel_values"], torch.cat([pixels for pixels, _ in prepared]))
    assert batch.inputs["image_grid_thw"].tolist() == [
        [1, 4, 6], [1, 2, 2], [1, 6, 2], [1, 6, 2], [1, 4, 6], [1, 4, 6],
    ]  # fmt: skip


def test_padding_and_company_do_not_change_log_probs(preprocessor, model, pictures, picture_rows):
    """Each row alone, all together, and in micro-batches: the same numbers."""
    policy = Policy(model, preprocessor, temperature=0.8)

    def scored(rows: list[Row]) -> dict[Row, torch.Tensor]:
        batch = collate(rows, preprocessor, pictures.__getitem__, CPU)
        with torch.no_grad():
            logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
        return dict(zip(rows, logprobs_N.split([len(row.ids) - row.start for row in rows]), strict=True))

    together = scored(picture_rows)
    assert collate(picture_rows, preprocessor, pictures.__getitem__, CPU).inputs["attention_mask"].min() == 0
    parts = [scored(part.rows) for part in micro_batches(picture_rows, tokens=40)]
    assert 1 < len(parts) < 5
    for row in picture_rows:
        alone = scored([row])[row]
        (in_part,) = (part[row] for part in parts if row in part)
        torch.testing.assert_close(together[row], alone, atol=1e-5, rtol=0)
        torch.testing.assert_close(in_part, alone, atol=1e-5, rtol=0)


def test_the_pictures_matter_and_go_to_their_own_rows(preprocessor, model, pictures, picture_rows):
    """The control of the test above: another picture gives other numbers, in its row only."""
    policy = Policy(model, preprocessor, temperature=1.0)
    rows = [picture_rows[0], picture_rows[4]]  # both show "wide"
    changed = [rows[0], replace(rows[1], images=("other",))]
    everything = pictures | {"other": inverted(pictures["wide"])}
    scored = []
    for each in (rows, changed):
        batch = collate(each, preprocessor, everything.__getitem__, CPU)
        with torch.no_grad():
            scored.append(policy(batch.inputs, batch.sources_N, batch.targets_N)[0])
    first = len(rows[0].old)
    torch.testing.assert_close(scored[0][:first], scored[1][:first], atol=1e-5, rtol=0)
    assert (scored[0][first:] - scored[1][first:]).abs().max() > 1e-3


def inverted(png: bytes) -> bytes:
    out = io.BytesIO()
    ImageOps.invert(Image.open(io.BytesIO(png)).convert("RGB")).save(out, "PNG")
    return out.getvalue()


def test_positions_of_a_batch_are_those_of_transformers(preprocessor, model, pictures, picture_rows):
    batch = collate(picture_rows, preprocessor, pictures.__getitem__, CPU)
    ids_BL, attention_BL = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    theirs, _ = model.model.get_rope_index(
        ids_BL,
        mm_token_type_ids=(ids_BL == preprocessor.pad).int(),
        image_grid_thw=batch.inputs["image_grid_thw"],
        attention_mask=attention_BL,
    )
    real = attention_BL.bool()
    assert torch.equal(batch.inputs["position_ids"][:, real], theirs[:, real])


# --- the text agent's answers alone ------------------------------------------------------------------


def test_what_does_not_count_has_no_weight_and_no_share():
    """Of responses of two and three tokens only the last counts: one token a turn, two turns."""
    turns = (Turn(0, (1,), (7, 2), (-0.1, -0.7), ""), Turn(0, (1,), (8, 8, 2), (-0.1, -0.2, -0.7), ""))
    group = Group(TASK, (Trajectory(TASK, 0, turns=turns),), (1.0,))
    config = LossConfig(weighting="webagent-r1")
    answers = weighted(members_of([group], lambda ids: len(ids) - 1), config)
    assert [row.weights for row in answers] == [(0.0, 0.5), (0.0, 0.0, 0.5)]
    whole = weighted(members_of([group]), config)  # the control
    assert [row.weights for row in whole] == [(0.25, 0.25), (1 / 6, 1 / 6, 1 / 6)]
