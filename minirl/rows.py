"""Rows: what one forward pass reads, and how much each of its tokens counts.

    groups -> make_rows -> minibatches -> weighted -> balance -> collate -> loss

Every turn is a row: its prompt exactly as sampled, then its response. `collate` is the plain layout, which
computes what turns share again for each, and by which minirl/prefix_tree.py is checked. Shape suffixes: B
rows, L padded row length, N response tokens of all rows.
"""

import io
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from minirl.config import LossConfig
from minirl.console import say
from minirl.loss import turn_weights
from minirl.model import Encoded, Preprocessor, encode, padded_inputs
from minirl.types import Group, ImageStore, Trajectory

BLANK = "blank"  # names BLANK_PNG, which is in no store: for rows that must show a picture and have none
BLANK_PNG = io.BytesIO()
Image.new("RGB", (32, 32)).save(BLANK_PNG, "PNG")


@dataclass(frozen=True)
class Row:
    """One turn: `ids[start:]` is the sampled response, whose tokens `old`, `weights` and `ref` belong to. Of
    ids (1, 2, 3, 9, 9, 4, 7, 2) and start 6 the log-prob of 7 is read at position 5, that of 2 at 6."""

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
        return len(self.ids) - self.start


@dataclass(frozen=True)
class TrajectoryRows:
    group: int  # the number of the trajectory's group
    rows: Sequence[Row]


def make_rows(groups: list[Group], config: LossConfig) -> list[TrajectoryRows]:
    """Return the trajectories to train on: no invalid one, which a KL term would train even with an advantage
    of 0, and for filtered behaviour cloning the successes. ValueError if there is none."""
    trajectories = [
        TrajectoryRows(number, turn_rows(trajectory, trajectory.advantage or 0.0))
        for number, group in enumerate(groups)
        for trajectory in group
        if trajectory.valid and (trajectory.advantage or config.method != "filtered-bc")
    ]
    if not trajectories:
        raise ValueError("no success to learn from; the warm start must succeed sometimes")
    return trajectories


def turn_rows(trajectory: Trajectory, advantage: float) -> tuple[Row, ...]:
    """Return a row for every trained turn, with weight 1 for its response tokens. ValueError if a served
    model wrote them, which gives no ids."""
    if any(turn.text and not turn.response_ids for turn in trajectory.turns):
        raise ValueError(f"{trajectory.task.id} was said by a served model: clone it, with --sft.demos")
    rows = []
    for t, turn in enumerate(trajectory.turns):
        if not turn.trained:
            continue
        prompt, response = trajectory.prompt_ids(t), turn.response_ids
        weights = (1.0,) * len(response)
        args = (prompt + response, len(prompt), turn.images, turn.logprobs, advantage, turn.shared, weights)
        rows.append(Row(*args))
    return tuple(rows)


def filter_by_length(examples: list[TrajectoryRows], most: int, flag: str, name: str) -> list[TrajectoryRows]:
    """Return the examples whose turns all have at most `most` tokens, which is `flag`; say how many have not.
    ValueError if none has."""
    longest = [max(len(row.ids) for row in example.rows) for example in examples]
    fitting = [example for example, tokens in zip(examples, longest, strict=True) if tokens <= most]
    if not fitting:
        raise ValueError(f"no {name} has at most {flag} {most} tokens; the longest has {max(longest)}")
    if left_out := len(examples) - len(fitting):
        others = f"{left_out} {name}s were longer than {flag}, and were left out"
        say(f"{others}, of {len(examples)}; the longest has {max(longest)} tokens")
    return fitting


def minibatches(trajectories: Sequence[TrajectoryRows], turns: int, seed: int) -> list[list[TrajectoryRows]]:
    """Return whole trajectories in random order, about `turns` turns at a time, at the end at least half."""
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


def weighted(minibatch: list[TrajectoryRows], config: LossConfig, sizes: Mapping[int, int]) -> list[Row]:
    """Return a minibatch's rows, with each token's weight multiplied by its turn's from `turn_weights`."""
    lengths = [[row.length for row in trajectory.rows] for trajectory in minibatch]
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


def micro_batches(rows: Sequence[Row], tokens: int) -> list[MicroBatch]:
    """Return rows of similar length together, at most `tokens` tokens with padding."""
    parts: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if not parts or len(row.ids) * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(row)
    return [MicroBatch(part, len(part[-1].ids) * len(part)) for part in parts]


def balance(
    rows: Sequence[Row], budget: int, ranks: int, cut: Callable[[Sequence[Row], int], list[MicroBatch]]
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches, of at most `budget` tokens and nearly equal size: six rows of 10
    tokens with a budget of 40 are 40 and 20, but for three ranks 20 each. Pieces grow by tenths until few
    enough."""
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


def resized(row: Row, preprocessor: Preprocessor, images: ImageStore) -> Row:
    """Return the row with as many pads for each screenshot as `preprocessor` makes of it."""
    sizes, ids = map(preprocessor.image_tokens, map(images.get, row.images)), []
    for is_pad, run in groupby(row.ids[: row.start], preprocessor.pad.__eq__):
        ids += [preprocessor.pad] * next(sizes) if is_pad else run
    return replace(row, ids=(*ids, *row.ids[row.start :]), start=len(ids))


def dummy_row(preprocessor: Preprocessor) -> Row:
    """Return a turn of weight 0, for a rank without rows or without a screenshot: one that does not go
    through the whole model keeps the others waiting for its gradients."""
    end, images = preprocessor.end[0], (BLANK,) if preprocessor.images else ()
    pads = preprocessor.image_tokens(BLANK_PNG.getvalue()) if images else 0
    ids = (preprocessor.pad,) * pads + (end, end)
    return Row(ids, len(ids) - 1, images, (0.0,), 0.0, weights=(0.0,), ref=(0.0,), index=-1)


@dataclass(frozen=True)
class Batch:
    """One forward pass: the model's inputs, and for each response token the numbers for its loss."""

    rows: Sequence[Row]
    inputs: dict[str, Any]
    sources_N: Tensor  # the flat positions that predict the tokens
    targets_N: Tensor  # the tokens
    old_N: Tensor
    ref_N: Tensor | None  # None without a reference
    advantage_N: Tensor
    weight_N: Tensor


def encode_row(row: Row, preprocessor: Preprocessor, images: ImageStore) -> Encoded:
    names = row.images if preprocessor.images else ()
    pngs = [BLANK_PNG.getvalue() if name == BLANK else images.get(name) for name in names]
    return encode(row.ids, pngs, preprocessor)


def collate(rows: list[Row], preprocessor: Preprocessor, images: ImageStore, device: torch.device) -> Batch:
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
