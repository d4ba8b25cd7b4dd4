"""Rows: what one forward pass reads, and which of its tokens are trained with what.

Stands between groups and the loss: groups become members (trajectories as rows), members minibatches,
minibatches micro-batches for each rank. Here every turn is a row of its own: its prompt exactly as sampled,
then its response. The prompts of a trajectory share most of their tokens, so this layout computes many of
them again for every turn; it is the plain one, against which any cleverer one can be checked.

Shape suffixes: B rows, L padded row length, N response tokens of all rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minirl.config import LossConfig
from minirl.loss import turn_weights
from minirl.model import BLANK, BLANK_PNG, Preprocessor, positions
from minirl.types import Group, Trajectory


@dataclass(frozen=True)
class Row:
    """One turn: `ids[start:]` is the sampled response; `old`, `weights` and `ref` are of its tokens.

    For the prompt 1 2 3 9 9 4 and the response 7 2: ids (1, 2, 3, 9, 9, 4, 7, 2), start 6; the log-prob of
    7 is read at position 5 and that of 2 at position 6. The first `shared` ids are the trajectory's trunk.
    `old` are the log-probs that importance ratios start from, `ref` the reference model's, if there is one;
    `weights` say how much a token counts in the loss (minirl/loss.py).
    """

    ids: tuple[int, ...]
    start: int
    images: tuple[str, ...]
    old: tuple[float, ...]
    advantage: float
    shared: int = 0
    weights: tuple[float, ...] = ()
    ref: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        """Of the response."""
        return len(self.ids) - self.start


@dataclass(frozen=True)
class TrajectoryRows:
    """One trajectory of a group, as rows."""

    group: int
    rows: tuple[Row, ...]


def everything(response_ids: tuple[int, ...]) -> int:
    """All of a response counts."""
    return 0


def turn_rows(
    trajectory: Trajectory, advantage: float, first: Callable[[tuple[int, ...]], int] = everything
) -> tuple[Row, ...]:
    """A row for every turn of a trajectory; its tokens have weight 1 from the `first` that counts."""
    rows = []
    if any(turn.text and not turn.response_ids for turn in trajectory.turns):
        raise ValueError(f"{trajectory.task.id} was said by a served model: clone it, with --sft.demos")
    for t, turn in enumerate(trajectory.turns):
        prompt, skipped = trajectory.prompt_ids(t), first(turn.response_ids)
        weights = (0.0,) * skipped + (1.0,) * (len(turn.response_ids) - skipped)
        ids = prompt + turn.response_ids
        rows.append(Row(ids, len(prompt), turn.images, turn.logprobs, advantage, turn.shared, weights))
    return tuple(rows)


def members_of(
    groups: Sequence[Group], first: Callable[[tuple[int, ...]], int] = everything
) -> list[TrajectoryRows]:
    """All trajectories of a step, but for the invalid ones that groups may hold: those have no gradient, and
    an advantage of 0 would not keep them from the KL term's."""
    return [
        TrajectoryRows(number, turn_rows(trajectory, advantage, first))
        for number, group in enumerate(groups)
        for trajectory, advantage in zip(group.trajectories, group.advantages, strict=True)
        if trajectory.valid
    ]


def minibatches(members: Sequence[TrajectoryRows], turns: int, seed: int) -> Iterator[list[TrajectoryRows]]:
    """Whole trajectories in random order, about `turns` turns at a time.

    The last minibatch joins the one before if it has less than half of that, so that no update rests on
    a few turns only.
    """
    shuffled = random.Random(seed).sample(members, len(members))
    batches: list[list[TrajectoryRows]] = [[]]
    size = 0
    for member in shuffled:
        if size >= turns:
            batches.append([])
            size = 0
        batches[-1].append(member)
        size += len(member.rows)
    if len(batches) > 1 and size < turns / 2:
        last = batches.pop()
        batches[-1] += last
    yield from batches


def weighted(
    members: Sequence[TrajectoryRows], config: LossConfig, step: Mapping[int, int] | None = None
) -> list[Row]:
    """The rows of a minibatch; each token's weight times what `turn_weights` gives its turn."""
    lengths = [[sum(w > 0 for w in row.weights) for row in member.rows] for member in members]
    per_turn = turn_weights([member.group for member in members], lengths, config, step)
    return [
        replace(row, weights=tuple(w * share for w in row.weights))
        for member, shares in zip(members, per_turn, strict=True)
        for row, share in zip(member.rows, shares, strict=True)
    ]


# --- what goes through the model together, and on which rank ------------------------------------------


class MicroBatch(NamedTuple):
    """Rows for one forward pass, and how many tokens it computes."""

    rows: list[Row]
    tokens: int


def micro_batches(rows: Sequence[Row], tokens: int) -> Iterator[MicroBatch]:
    """Rows of similar length together, at most `tokens` tokens with padding."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    part: list[Row] = []
    for row in ordered:
        if part and len(row.ids) * (len(part) + 1) > tokens:
            yield MicroBatch(part, len(part[-1].ids) * len(part))
            part = []
        part.append(row)
    if part:
        yield MicroBatch(part, len(part[-1].ids) * len(part))


def share_out(parts: Sequence[MicroBatch], ranks: int) -> list[list[MicroBatch]]:
    """Micro-batches for each rank, in number alike: the largest first, each to the rank that has least so
    far and not its full number."""
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    most, tokens = -(-len(parts) // ranks), [0] * ranks
    for part in sorted(parts, key=lambda part: -part.tokens):
        least = min((r for r in range(ranks) if len(shares[r]) < most), key=tokens.__getitem__)
        shares[least].append(part)
        tokens[least] += part.tokens
    return shares


def dummy_row(preprocessor: Preprocessor) -> Row:
    """A turn that counts for nothing. Every rank must go through the whole model in every micro-batch, or
    the others wait for its gradients for ever: a rank that has run out of rows, or whose rows show no
    screenshot, takes this one (in addition)."""
    end = preprocessor.end[0]
    ids: tuple[int, ...] = (end,)
    if preprocessor.images is not None:
        ids = (*(preprocessor.pad,) * preprocessor.image_tokens(BLANK_PNG), end)
    images = (BLANK,) if preprocessor.images else ()
    return Row((*ids, end), len(ids), images, (0.0,), 0.0, weights=(0.0,), ref=(0.0,))


@dataclass(frozen=True)
class Batch:
    """One forward pass: the model's inputs, and for each of N response tokens the flat position that
    predicts it, the token, and what the loss needs of it."""

    inputs: dict[str, Any]
    sources_N: Tensor
    targets_N: Tensor
    old_N: Tensor
    ref_N: Tensor | None  # None without a reference
    advantage_N: Tensor
    weight_N: Tensor

    @property
    def tokens(self) -> int:
        return self.inputs["input_ids"].numel()


def collate(
    rows: Sequence[Row], preprocessor: Preprocessor, image: Callable[[str], bytes], device: torch.device
) -> Batch:
    """Right-padded rows as tensors. `image` finds a screenshot by its hash."""
    B, L = len(rows), max(len(row.ids) for row in rows)
    ids_BL = np.zeros((B, L), dtype=np.int64)
    attention_BL = np.zeros((B, L), dtype=np.int64)
    position_3BL = np.zeros((3, B, L), dtype=np.int64)
    patches, grids, sources = [], [], []
    images, merge = preprocessor.images, preprocessor.images.merge if preprocessor.images else 1
    for b, row in enumerate(rows):
        n = len(row.ids)
        prepared = [images.prepare(image(name)) for name in row.images] if images else []
        ids_BL[b, :n] = row.ids
        attention_BL[b, :n] = 1
        row_grids = [grid for _, grid in prepared]
        position_3BL[:, b, :n] = positions(ids_BL[b, :n], row_grids, preprocessor.pad, merge)
        sources.append(b * L + np.arange(row.start - 1, n - 1))
        patches += [pixels for pixels, _ in prepared]
        grids += row_grids
    inputs = {
        "input_ids": torch.from_numpy(ids_BL),
        "attention_mask": torch.from_numpy(attention_BL),
        "position_ids": torch.from_numpy(position_3BL if images else position_3BL[0]),
    }
    if patches:
        inputs |= {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}
    return with_targets({name: tensor.to(device) for name, tensor in inputs.items()}, rows, sources, device)


def with_targets(
    inputs: dict[str, Any], rows: Sequence[Row], sources: Sequence[np.ndarray], device: torch.device
) -> Batch:
    """A batch from a layout's inputs and, per row, the places that predict its response tokens."""

    def flat(values: Iterable[Sequence[float]]) -> Tensor:
        return torch.tensor([v for row in values for v in row], dtype=torch.float32, device=device)

    return Batch(
        inputs=inputs,
        sources_N=torch.from_numpy(np.concatenate(sources)).to(device),
        targets_N=torch.tensor([i for row in rows for i in row.ids[row.start :]], device=device),
        old_N=flat(row.old for row in rows),
        ref_N=flat(row.ref for row in rows) if all(row.ref for row in rows) else None,
        advantage_N=flat([row.advantage] * row.length for row in rows),
        weight_N=flat(row.weights for row in rows),
    )
