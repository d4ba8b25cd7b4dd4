"""Rows: what one forward pass reads, and how much each of its tokens counts.

    groups -> make_rows -> minibatches -> weighted -> balance -> collate -> loss

Every turn is a row: its prompt exactly as sampled, then its response. `collate` is the plain layout, which
computes what turns share again for each, and by which minirl/prefix_tree.py is checked. Shape suffixes: B
rows, L padded row length, N response tokens of all rows. Deviation from OpenWebRL (256 turns an update in
table 7; 128 in cloning, appendix A.5):
1. A minibatch is whole trajectories, about so many turns, the last one from half to one and a half times
   that. The released code shuffles single turns, and in reinforcement leaves out what is less than a whole
   minibatch. Prefix trees want a trajectory's turns together: single ones take 2.0 times the tokens in
   episodes of 15 turns, 2.7 times in those of 30, 1.1 times in the tiny recipe (benchmarks/minibatches.py).
"""

import io
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from minirl.config import LossConfig
from minirl.console import say
from minirl.loss import turn_weights
from minirl.model import Encoded, Preprocessor, encode, padded_inputs
from minirl.types import Group, ImageStore, Json, RunEnds, Trajectory

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
    shared: int = 0  # how many ids are the trajectory's prefix
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

    @property
    def longest(self) -> int:
        """Return the tokens of the longest row."""
        return max(len(row.ids) for row in self.rows)


def make_rows(groups: list[Group], config: LossConfig) -> list[TrajectoryRows]:
    """Return the trajectories to train on: valid ones (a KL term would train others even with an advantage
    of 0), and of these, for filtered behaviour cloning, the successes. RunEnds if there is none."""
    trajectories = []
    for number, group in enumerate(groups):
        for trajectory in group:
            advantage = trajectory.advantage or 0.0
            if trajectory.valid and (advantage or config.method != "filtered-bc"):
                trajectories.append(TrajectoryRows(number, turn_rows(trajectory, advantage)))
    if not trajectories:
        raise RunEnds("no success to learn from; the warm start must succeed sometimes")
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
        prompt = trajectory.prompt_ids(t)
        turn_advantage = advantage if turn.advantage is None else turn.advantage
        row = Row(
            ids=prompt + turn.response_ids,
            start=len(prompt),
            images=turn.images,
            old=turn.logprobs,
            advantage=turn_advantage,
            shared=turn.shared,
            weights=(1.0,) * len(turn.response_ids),
        )
        rows.append(row)
    return tuple(rows)


def filter_by_length(
    examples: list[TrajectoryRows], limit: int, flag: str, name: str
) -> list[TrajectoryRows]:
    """Return the examples whose turns all have at most `limit` tokens, which is `flag`; print how many have
    not. ValueError if none has."""
    fitting = [example for example in examples if example.longest <= limit]
    longest = max(example.longest for example in examples)
    if not fitting:
        raise ValueError(f"no {name} has at most {flag} {limit} tokens; raise it: the longest has {longest}")
    if len(fitting) < len(examples):
        too_long = f"{len(examples) - len(fitting)} {name}s were longer than {flag}, and were left out"
        say(f"{too_long}, of {len(examples)}; the longest has {longest} tokens")
    return fitting


def minibatches(trajectories: Sequence[TrajectoryRows], turns: int, seed: int) -> list[list[TrajectoryRows]]:
    """Return whole trajectories in random order, about `turns` turns at a time, at the end at least half."""
    batches = []
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
    groups = [trajectory.group for trajectory in minibatch]
    lengths = [[row.length for row in trajectory.rows] for trajectory in minibatch]
    rows = []
    for trajectory, turns in zip(minibatch, turn_weights(groups, lengths, config, sizes), strict=True):
        for row, weight in zip(trajectory.rows, turns, strict=True):
            weights = tuple(token_weight * weight for token_weight in row.weights)
            rows.append(replace(row, weights=weights))
    return rows


class MicroBatch(NamedTuple):
    """Rows for one forward pass, and how many tokens it computes, padding included."""

    rows: list[Row]
    tokens: int


def micro_batches(rows: Sequence[Row], tokens: int) -> list[MicroBatch]:
    """Return rows of similar length together, at most `tokens` tokens with padding."""
    parts = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        # the row is the longest so far: with it, all rows are padded to its length
        if not parts or len(row.ids) * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(row)
    return [MicroBatch(part, len(part[-1].ids) * len(part)) for part in parts]


def balance(
    rows: Sequence[Row], budget: int, ranks: int, cut: Callable[[Sequence[Row], int], list[MicroBatch]]
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches, of at most `budget` tokens, cut finer only where a rank would have
    none: six rows of 10 tokens with a budget of 40 are 40 and 20, but for three ranks 20 each. Pieces grow
    by tenths until few enough."""
    parts = cut(rows, budget)
    target = math.ceil(len(parts) / ranks) * ranks
    if len(parts) < target:
        # ranks without a part would wait: cut finer, then coarser until there are few enough
        tokens = math.ceil(sum(part.tokens for part in parts) / target)
        parts = cut(rows, tokens)
        while len(parts) > target and tokens < budget:
            tokens = min(budget, math.ceil(1.1 * tokens))
            parts = cut(rows, tokens)
    # the largest first, each to the rank that has fewest tokens so far, and not its full number of parts
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    full = math.ceil(len(parts) / ranks)
    for part in sorted(parts, key=lambda part: -part.tokens):
        with_room = [rank for rank in range(ranks) if len(shares[rank]) < full]
        rank = min(with_room, key=lambda rank: loads[rank])
        shares[rank].append(part)
        loads[rank] += part.tokens
    return shares


def dummy_row(preprocessor: Preprocessor) -> Row:
    """Return a turn of weight 0, for a rank without rows or without a screenshot: FSDP needs every rank to
    run every module, and the others would wait for its gradients."""
    end = preprocessor.end[0]
    ids = (end, end)
    images = ()
    if preprocessor.images:
        pads = preprocessor.image_tokens(BLANK_PNG.getvalue())
        ids = (preprocessor.pad,) * pads + ids
        images = (BLANK,)
    return Row(ids, len(ids) - 1, images, (0.0,), 0.0, weights=(0.0,), ref=(0.0,), index=-1)


@dataclass(frozen=True)
class Batch:
    """One forward pass: the model's inputs, and for each response token the numbers for its loss."""

    rows: Sequence[Row]
    inputs: Json
    sources_N: Tensor  # the flat positions that predict the tokens
    targets_N: Tensor  # the tokens
    old_N: Tensor
    ref_N: Tensor | None  # None without a reference
    advantage_N: Tensor
    weight_N: Tensor


def encode_row(row: Row, preprocessor: Preprocessor, images: ImageStore) -> Encoded:
    """Return a row's ids, positions and pictures, as minirl/model.py encodes them."""
    names = row.images if preprocessor.images else ()
    pngs = [BLANK_PNG.getvalue() if name == BLANK else images.get(name) for name in names]
    return encode(row.ids, pngs, preprocessor)


def collate(rows: list[Row], preprocessor: Preprocessor, images: ImageStore, device: torch.device) -> Batch:
    """Return right-padded rows as tensors."""
    encoded = [encode_row(row, preprocessor, images) for row in rows]
    inputs = padded_inputs(encoded, preprocessor, device)
    L = inputs["input_ids"].shape[1]
    lengths_B1 = torch.tensor([[len(row.ids)] for row in rows], device=device)
    inputs["attention_mask"] = (torch.arange(L, device=device) < lengths_B1).long()
    # a token is predicted at the position before it
    sources = []
    for b, row in enumerate(rows):
        places = np.arange(row.start - 1, len(row.ids) - 1)
        sources.append(b * L + places)
    return with_targets(inputs, rows, sources, device)


def with_targets(
    inputs: Json, rows: Sequence[Row], sources: Sequence[np.ndarray], device: torch.device
) -> Batch:
    """Return a batch of a layout's inputs and, per row, the places that predict its response tokens."""

    def flat(values: Iterable[Sequence[float]]) -> Tensor:
        return torch.tensor(list(chain.from_iterable(values)), dtype=torch.float32, device=device)

    targets = [token for row in rows for token in row.ids[row.start :]]
    return Batch(
        rows=rows,
        inputs=inputs,
        sources_N=torch.from_numpy(np.concatenate(sources)).to(device),
        targets_N=torch.tensor(targets, device=device),
        old_N=flat(row.old for row in rows),
        ref_N=flat(row.ref for row in rows) if all(row.ref for row in rows) else None,
        advantage_N=flat([row.advantage] * row.length for row in rows),
        weight_N=flat(row.weights for row in rows),
    )
