"""Prefix trees: many turns in one row, every shared token computed once.

Stands between groups and the forward pass. The turns of a trajectory share its trunk (system, task, past
reasoning and feedback) and differ in the newest screenshot and response; the trajectories of a group share
system and task. A `Forest` lays the turns out as chains of tokens,

    chain 0   system task | tabs 1 | response 1 feedback 1 tabs 2 | response 2 feedback 2 tabs 3
    chain 1               |        \\ screenshot 1 response 1        (prefix: chain 0 up to tabs 1)
    chain 2               |                                \\ screenshot 2 response 2   (up to tabs 2)
    ...

and minirl/tree_attention.py lets a chain see its prefix and, causally, itself. A token sits at the
position that
it would have had alone, so the hidden states, log-probs and gradients are those of one row per turn: it is
the same computation, not an approximation. Where chains branch is found by longest common prefix, so that
several screenshots in the prompt, groups, single-turn tasks and equal prompts of different tasks are no
special cases. Linear work falls from the sum of all turns' lengths to the length of the tree.

Images count as what they show: two different screenshots have equal ids, and part at their first pad.

Shape suffixes: L row length, N response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minirl.model import Preprocessor, positions
from minirl.rows import Batch, MicroBatch, Row, with_targets
from minirl.tree_attention import Chain, Range, Tree


@dataclass
class Forest:
    """Sequences laid out in one row, equal beginnings once.

    Adding 1 2 3 4, then 1 2 5, gives the row 1 2 3 4 5 with the chains (0, 4) and (4, 5, prefix (0, 2)).
    `add` returns the places of the sequence's tokens in the row.
    """

    keys: list[np.ndarray] = field(default_factory=list)  # per chain: its tokens, images told apart
    chains: list[Chain] = field(default_factory=list)
    branches: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    size: int = 0

    def add(self, keys: np.ndarray) -> np.ndarray:
        ranges: list[Range] = []
        at, chain, offset = 0, -1, 0  # how far the sequence has been followed, and where that is
        while at < len(keys):
            following = self.branches.get((chain, offset), {}).get(int(keys[at]))
            if following is None:
                following = self._branch(chain, offset, keys[at:], tuple(ranges))
            same = common(self.keys[following], keys[at:])
            start = self.chains[following].start
            ranges = join(ranges, (start, start + same))
            at, chain, offset = at + same, following, same
        return np.concatenate([np.arange(s, e) for s, e in ranges])

    def unshared(self, keys: np.ndarray) -> int:
        """How many tokens `add` would lay out anew."""
        at, chain, offset = 0, -1, 0
        while at < len(keys):
            following = self.branches.get((chain, offset), {}).get(int(keys[at]))
            if following is None:
                return len(keys) - at
            offset = common(self.keys[following], keys[at:])
            at, chain = at + offset, following
        return 0

    def _branch(self, chain: int, offset: int, keys: np.ndarray, prefix: tuple[Range, ...]) -> int:
        number = len(self.chains)
        self.branches.setdefault((chain, offset), {})[int(keys[0])] = number
        self.keys.append(keys)
        self.chains.append(Chain(self.size, self.size + len(keys), prefix))
        self.size += len(keys)
        return number


def common(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def join(ranges: list[Range], last: Range) -> list[Range]:
    """Appends a range, melted into the one before where they touch."""
    if ranges and ranges[-1][1] == last[0]:
        return [*ranges[:-1], (ranges[-1][0], last[1])]
    return [*ranges, last]


# --- rows ------------------------------------------------------------------------------------------


def image_keys(row: Row, pad: int) -> np.ndarray:
    """The row's ids, with each image's pads replaced by a negative number that stands for its content."""
    ids = np.array(row.ids, dtype=np.int64)
    if not row.images:
        return ids
    pads = np.flatnonzero(ids == pad)
    runs = np.split(pads, np.flatnonzero(np.diff(pads) != 1) + 1)
    assert len(runs) == len(row.images), "every image has one run of pads"
    for places, name in zip(runs, row.images, strict=True):
        ids[places] = -1 - (int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1)
    return ids


def micro_batches(rows: Sequence[Row], limit: int, pad: int, tokens: int) -> Iterator[MicroBatch]:
    """Rows in order, as many as fit into a forest of `tokens` tokens; ancestors are repeated where a
    trajectory is split. A row longer than that stands alone; ValueError if it is longer than `limit`."""
    part, forest = [], Forest()
    for row in rows:
        keys = image_keys(row, pad)
        if len(keys) > limit:
            raise ValueError(f"--batch.micro-tokens {limit} is less than one turn's {len(keys)} tokens")
        if part and forest.size + forest.unshared(keys) > tokens:
            yield MicroBatch(part, forest.size)
            part, forest = [], Forest()
        forest.add(keys)
        part.append(row)
    if part:
        yield MicroBatch(part, forest.size)


def pack(
    rows: Sequence[Row], preprocessor: Preprocessor, image: Callable[[str], bytes], device: torch.device
) -> Batch:
    """One forest as a batch of one row: ids, positions, images in the row's order, and for each response
    token the place that predicts it. `inputs["tree"]` holds the chains for the attention."""
    forest = Forest()
    keys = [image_keys(row, preprocessor.pad) for row in rows]
    # Trunks first, the longest before its own beginnings, so that each is one chain in one piece.
    for n in sorted(range(len(rows)), key=lambda n: -rows[n].shared):
        if rows[n].shared:
            forest.add(keys[n][: rows[n].shared])
    places = [forest.add(k) for k in keys]
    ids_L = np.zeros(forest.size, dtype=np.int64)
    position_3L = np.zeros((3, forest.size), dtype=np.int64)
    pictures: dict[int, tuple[Tensor, tuple[int, int, int]]] = {}  # by the place of the first pad
    images, merge = preprocessor.images, preprocessor.images.merge if preprocessor.images else 1
    for row, place in zip(rows, places, strict=True):
        ids = np.array(row.ids, dtype=np.int64)
        prepared = [images.prepare(image(name)) for name in row.images] if images else []
        ids_L[place] = ids
        position_3L[:, place] = positions(ids, [grid for _, grid in prepared], preprocessor.pad, merge)
        starts = np.flatnonzero((ids == preprocessor.pad) & (np.roll(ids, 1) != preprocessor.pad))
        pictures |= {int(place[s]): p for s, p in zip(starts, prepared, strict=True)}
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(ids_L)[None].to(device),
        "position_ids": torch.from_numpy(position_3L if images else position_3L[0])[..., None, :].to(device),
        # nothing is padding; without saying so, transformers takes jumping positions for packed documents
        # and makes an L x L mask, which nobody would read
        "attention_mask": torch.ones(1, forest.size, dtype=torch.int64, device=device),
        "tree": Tree(tuple(forest.chains), device),
    }
    if pictures:
        ordered = [pictures[start] for start in sorted(pictures)]
        inputs["pixel_values"] = torch.cat([pixels for pixels, _ in ordered]).to(device)
        inputs["image_grid_thw"] = torch.tensor([grid for _, grid in ordered], device=device)
    sources = [place[row.start - 1 : -1] for row, place in zip(rows, places, strict=True)]
    return with_targets(inputs, rows, sources, device)
