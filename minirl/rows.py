"""Rows: what one forward pass reads, and how much each of its tokens counts.

    groups -> make_rows -> minibatches -> weighted -> balance -> collate -> loss

Every turn is a row: its prompt exactly as sampled, then its response. `collate` is the plain layout, which
computes the shared beginnings of a trajectory's turns again for each; minirl/prefix_tree.py is checked by it.

Shape suffixes: B rows, L padded row length, N response tokens of all rows.
"""

from __future__ import annotations

import functools
import io
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from minirl.config import LossConfig
from minirl.context import answer_start
from minirl.loss import turn_weights
from minirl.model import Encoded, Preprocessor, encode, padded_inputs
from minirl.types import Group, ImageStore, Trajectory

BLANK = "blank"  # names a picture that is in no store, for rows that must show one and have none


@dataclass(frozen=True)
class Row:
    """One turn: `ids[start:]` is the sampled response; `old`, `weights` and `ref` are of its tokens.

    For the prompt 1 2 3 9 9 4 and the response 7 2: ids (1, 2, 3, 9, 9, 4, 7, 2), start 6; the log-prob of
    7 is read at position 5 and that of 2 at position 6.
    """

    ids: tuple[int, ...]
    start: int
    images: tuple[str, ...]
    old: tuple[float, ...]  # the log-probs that importance ratios start from
    advantage: float
    shared: int = 0  # how many ids are the trajectory's trunk
    weights: tuple[float, ...] = ()  # in the loss (minirl/loss.py)
    ref: tuple[float, ...] = ()  # the reference model's log-probs, if there is one
    index: int = 0  # among the rows that are scored together

    @property
    def length(self) -> int:
        """Return the number of response tokens."""
        return len(self.ids) - self.start


@dataclass(frozen=True)
class TrajectoryRows:
    """One trajectory as rows; `group` numbers the group that it belongs to."""

    group: int
    rows: Sequence[Row]


def make_rows(
    groups: Sequence[Group], config: LossConfig, preprocessor: Preprocessor
) -> list[TrajectoryRows]:
    """Return a step's trajectories to train on: for filtered behaviour cloning the successes, and never an
    invalid one, which the KL term would train even with an advantage of 0. ValueError if there is none."""
    tokenizer = preprocessor.tokenizer if config.tokens == "answer" else None
    trajectories = [
        TrajectoryRows(number, turn_rows(trajectory, advantage, tokenizer))
        for number, group in enumerate(groups)
        for trajectory, advantage in zip(group.trajectories, group.advantages, strict=True)
        if trajectory.valid and (advantage or config.method != "filtered-bc")
    ]
    if not trajectories:
        raise ValueError("no success to learn from; the warm start must succeed sometimes")
    return trajectories


def turn_rows(
    trajectory: Trajectory, advantage: float, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[Row, ...]:
    """Return a row for every turn of a trajectory. Response tokens have weight 1; with a tokenizer those
    before `<answer>` have weight 0. ValueError if a served model said them, which gives no ids."""
    if any(turn.text and not turn.response_ids for turn in trajectory.turns):
        raise ValueError(f"{trajectory.task.id} was said by a served model: clone it, with --sft.demos")
    rows = []
    for t, turn in enumerate(trajectory.turns):
        prompt, response = trajectory.prompt_ids(t), turn.response_ids
        untrained = answer_start(tokenizer, response) if tokenizer else 0
        weights = (0.0,) * untrained + (1.0,) * (len(response) - untrained)
        old, ids = turn.logprobs, prompt + response
        rows.append(Row(ids, len(prompt), turn.images, old, advantage, turn.shared, weights))
    return tuple(rows)


def minibatches(trajectories: Sequence[TrajectoryRows], turns: int, seed: int) -> list[list[TrajectoryRows]]:
    """Return whole trajectories in random order, about `turns` turns at a time. A last minibatch of less than
    half of that joins the one before, so that no update rests on a few turns only."""
    batches: list[list[TrajectoryRows]] = []
    size = turns
    for trajectory in random.Random(seed).sample(trajectories, len(trajectories)):
        if size >= turns:
            batches.append([])
            size = 0
        batches[-1].append(trajectory)
        size += len(trajectory.rows)
    if len(batches) > 1 and size < turns / 2:
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches


def weighted(
    minibatch: Sequence[TrajectoryRows], config: LossConfig, sizes: Mapping[int, int] | None = None
) -> list[Row]:
    """Return a minibatch's rows, with each token's weight multiplied by its turn's from `turn_weights`;
    `sizes` are the numbers of trajectories that each group has in the whole step."""
    lengths = [[sum(w > 0 for w in row.weights) for row in trajectory.rows] for trajectory in minibatch]
    per_turn = turn_weights([trajectory.group for trajectory in minibatch], lengths, config, sizes)
    return [
        replace(row, weights=tuple(w * share for w in row.weights))
        for trajectory, shares in zip(minibatch, per_turn, strict=True)
        for row, share in zip(trajectory.rows, shares, strict=True)
    ]


class MicroBatch(NamedTuple):
    """Rows for one forward pass, and how many tokens it computes, padding included."""

    rows: list[Row]
    tokens: int


Cut = Callable[[Sequence[Row], int], list[MicroBatch]]  # rows into micro-batches of so many tokens


def micro_batches(rows: Sequence[Row], tokens: int) -> list[MicroBatch]:
    """Return rows of similar length together, at most `tokens` tokens with padding."""
    parts: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if not parts or len(row.ids) * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(row)
    return [MicroBatch(part, len(part[-1].ids) * len(part)) for part in parts]


def balance(rows: Sequence[Row], budget: int, ranks: int, cut: Cut) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches: of at most `budget` tokens and nearly equal size, and at most one
    more on one rank than on another.

    With a budget of 40, six rows of 10 tokens make micro-batches of 40 and 20, one for each of two ranks. Of
    three ranks one would have nothing to do, so the pieces are of 60 / 3 = 20 tokens; where rows don't fill
    these to the last token, the size grows by a tenth until the pieces are few enough.
    """
    parts = cut(rows, budget)
    wanted = math.ceil(len(parts) / ranks) * ranks
    if len(parts) < wanted:
        tokens = math.ceil(sum(part.tokens for part in parts) / wanted)
        while len(parts := cut(rows, tokens)) > wanted and tokens < budget:
            tokens = min(budget, math.ceil(1.1 * tokens))
    # the largest first, each to the rank that has fewest tokens so far, and not its full number of parts
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    most = math.ceil(len(parts) / ranks)
    for part in sorted(parts, key=lambda part: -part.tokens):
        open_shares = (share for share in shares if len(share) < most)
        min(open_shares, key=lambda share: sum(p.tokens for p in share)).append(part)
    return shares


def dummy_row(preprocessor: Preprocessor) -> Row:
    """Return a turn of weight 0, for a rank that has no rows left or none with a screenshot: it must go
    through the whole model in every micro-batch, or the others wait for its gradients for ever."""
    end = preprocessor.end[0]
    ids, images = (end, end), ()
    if preprocessor.images is not None:
        ids, images = (*(preprocessor.pad,) * preprocessor.image_tokens(blank_png()), *ids), (BLANK,)
    return Row(ids, len(ids) - 1, images, (0.0,), 0.0, weights=(0.0,), ref=(0.0,), index=-1)


@functools.cache
def blank_png() -> bytes:
    """Return the picture that is named BLANK."""
    out = io.BytesIO()
    Image.new("RGB", (32, 32)).save(out, "PNG")
    return out.getvalue()


@dataclass(frozen=True)
class Batch:
    """One forward pass: the model's inputs, and for each of N response tokens, row after row, the flat
    position that predicts it, the token, and the numbers for its loss."""

    rows: Sequence[Row]
    inputs: dict[str, Any]
    sources_N: Tensor
    targets_N: Tensor
    old_N: Tensor
    ref_N: Tensor | None  # None without a reference
    advantage_N: Tensor
    weight_N: Tensor


def encode_row(row: Row, preprocessor: Preprocessor, images: ImageStore) -> Encoded:
    """Return the row as its model reads it."""
    shown = row.images if preprocessor.images else ()
    return encode(row.ids, [blank_png() if s == BLANK else images.get(s) for s in shown], preprocessor)


def collate(
    rows: Sequence[Row], preprocessor: Preprocessor, images: ImageStore, device: torch.device
) -> Batch:
    """Return right-padded rows as tensors."""
    inputs = padded_inputs([encode_row(row, preprocessor, images) for row in rows], preprocessor, device)
    L = inputs["input_ids"].shape[1]
    lengths_B1 = torch.tensor([[len(row.ids)] for row in rows], device=device)
    inputs["attention_mask"] = (torch.arange(L, device=device) < lengths_B1).long()
    sources = [b * L + np.arange(row.start - 1, len(row.ids) - 1) for b, row in enumerate(rows)]
    return with_targets(inputs, rows, sources, device)


def with_targets(
    inputs: dict[str, Any], rows: Sequence[Row], sources: Sequence[np.ndarray], device: torch.device
) -> Batch:
    """Return a batch of a layout's inputs and, per row, the places that predict its response tokens."""

    def flat(values: Iterable[Sequence[float]]) -> Tensor:
        return torch.tensor([v for row in values for v in row], dtype=torch.float32, device=device)

    return Batch(
        rows=rows,
        inputs=inputs,
        sources_N=torch.from_numpy(np.concatenate(sources)).to(device),
        targets_N=torch.tensor([i for row in rows for i in row.ids[row.start :]], device=device),
        old_N=flat(row.old for row in rows),
        ref_N=flat(row.ref for row in rows) if all(row.ref for row in rows) else None,
        advantage_N=flat([row.advantage] * row.length for row in rows),
        weight_N=flat(row.weights for row in rows),
    )
