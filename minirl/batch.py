"""Rows: what one forward pass reads, and which of its tokens are trained with what.

Stands between groups and the loss. Here every turn is a row of its own: its prompt exactly as sampled,
then its response. The prompts of a trajectory share most of their tokens, so this layout computes many of
them again for every turn; it is the plain one, against which any cleverer one can be checked.

Shape suffixes: B rows, L padded row length, N response tokens of all rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.model import Language, positions
from minirl.types import Group, Trajectory


@dataclass(frozen=True)
class Row:
    """One turn: `ids[start:]` is the sampled response; `old` are the sampler's log-probs of it.

    For the prompt 1 2 3 9 9 4 and the response 7 2: ids (1, 2, 3, 9, 9, 4, 7, 2), start 6; the log-prob of
    7 is read at position 5 and that of 2 at position 6. The first `shared` ids are the trajectory's trunk.
    """

    ids: tuple[int, ...]
    start: int
    images: tuple[str, ...]
    old: tuple[float, ...]
    advantage: float
    shared: int = 0


def turn_rows(trajectory: Trajectory, advantage: float) -> list[Row]:
    """A row for every turn of a trajectory."""
    rows = []
    for t, turn in enumerate(trajectory.turns):
        prompt = trajectory.prompt_ids(t)
        rows.append(
            Row(prompt + turn.response_ids, len(prompt), turn.images, turn.logprobs, advantage, turn.shared)
        )
    return rows


def minibatches(groups: Sequence[Group], turns: int, seed: int) -> Iterator[list[Row]]:
    """All rows of a step in random order, in whole trajectories, about `turns` turns at a time.

    The last minibatch joins the one before if it has less than half of that, so that no update rests on
    a few turns only.
    """
    pairs = [p for g in groups for p in zip(g.trajectories, g.advantages, strict=True)]
    random.Random(seed).shuffle(pairs)
    batches: list[list[Row]] = [[]]
    for trajectory, advantage in pairs:
        if len(batches[-1]) >= turns:
            batches.append([])
        batches[-1] += turn_rows(trajectory, advantage)
    if len(batches) > 1 and len(batches[-1]) < turns / 2:
        last = batches.pop()
        batches[-1] += last
    yield from batches


def micro_batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Rows of similar length together, at most `tokens` tokens with padding."""
    ordered = sorted(rows, key=lambda row: len(row.ids))
    part: list[Row] = []
    for row in ordered:
        if part and len(row.ids) * (len(part) + 1) > tokens:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


@dataclass(frozen=True)
class Batch:
    """One forward pass: the model's inputs, and for each of N response tokens the flat position that
    predicts it, the token, its old log-prob, its advantage, and the length of its response."""

    inputs: dict[str, Tensor]
    sources_N: Tensor
    targets_N: Tensor
    old_N: Tensor
    advantage_N: Tensor
    length_N: Tensor

    @property
    def tokens(self) -> int:
        return self.inputs["input_ids"].numel()


def collate(
    rows: Sequence[Row], language: Language, image: Callable[[str], bytes], device: torch.device
) -> Batch:
    """Right-padded rows as tensors. `image` finds a screenshot by its hash."""
    B, L = len(rows), max(len(row.ids) for row in rows)
    ids_BL = np.zeros((B, L), dtype=np.int64)
    attention_BL = np.zeros((B, L), dtype=np.int64)
    position_3BL = np.zeros((3, B, L), dtype=np.int64)
    patches, grids, sources = [], [], []
    images, merge = language.images, language.images.merge if language.images else 1
    for b, row in enumerate(rows):
        n = len(row.ids)
        prepared = [images.prepare(image(name)) for name in row.images] if images else []
        ids_BL[b, :n] = row.ids
        attention_BL[b, :n] = 1
        row_grids = [grid for _, grid in prepared]
        position_3BL[:, b, :n] = positions(ids_BL[b, :n], row_grids, language.pad, merge)
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
    lengths = [len(row.ids) - row.start for row in rows]
    return Batch(
        inputs=inputs,
        sources_N=torch.from_numpy(np.concatenate(sources)).to(device),
        targets_N=torch.tensor([i for row in rows for i in row.ids[row.start :]], device=device),
        old_N=torch.tensor([lp for row in rows for lp in row.old], device=device),
        advantage_N=torch.tensor(np.repeat([r.advantage for r in rows], lengths), device=device).float(),
        length_N=torch.tensor(np.repeat(lengths, lengths), device=device).float(),
    )
