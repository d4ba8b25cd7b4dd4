"""Prefix trees: many turns in one row, every shared token computed once.

Stands between rows and the forward pass. The turns of a trajectory share its trunk (system, task, past
reasoning and feedback), the trajectories of a group system and task. A `Forest` lays turns out as chains,

    chain 0   system task | tabs 1 | response 1 feedback 1 tabs 2 | response 2 feedback 2 tabs 3
    chain 1               |        \\ screenshot 1 response 1        (prefix: chain 0 up to tabs 1)
    chain 2               |                                \\ screenshot 2 response 2   (up to tabs 2)
    ...

and minirl/tree_attention.py lets a chain see its prefix and, causally, itself. A token has the position that
it would have had alone, so hidden states, log-probs and gradients are exactly those of one row per turn.
Chains branch behind the longest common prefix: no number of screenshots or tasks is a special case.

Shape suffixes: L row length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import torch

from minirl.model import Encoded, Picture, Preprocessor, image_starts, padded_inputs
from minirl.rows import Batch, MicroBatch, Row, encode_row, with_targets
from minirl.tree_attention import Chain, Range, Tree
from minirl.types import ImageStore


@dataclass
class Forest:
    """Sequences laid out in one row, equal beginnings once: adding 1 2 3 4, then 1 2 5, gives the row
    1 2 3 4 5 with the chains (0, 4) and (4, 5, prefix (0, 2))."""

    keys: list[np.ndarray] = field(default_factory=list)  # per chain: its tokens, images told apart
    chains: list[Chain] = field(default_factory=list)
    # which chain follows the first `offset` tokens of a chain with which key; the roots follow (-1, 0)
    branches: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    size: int = 0

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Lay out a sequence; return the places of its tokens in the row."""
        ranges, at, chain, offset = self._follow(keys)
        if at < len(keys):
            self.branches.setdefault((chain, offset), {})[int(keys[at])] = len(self.chains)
            self.keys.append(keys[at:])
            own = (self.size, self.size + len(keys) - at)
            self.chains.append(Chain(*own, tuple(ranges)))
            self.size = own[1]
            ranges = join(ranges, own)
        return np.concatenate([np.arange(*each) for each in ranges])

    def unshared(self, keys: np.ndarray) -> int:
        """Return how many tokens `add` would lay out anew."""
        return len(keys) - self._follow(keys)[1]

    def _follow(self, keys: np.ndarray) -> tuple[list[Range], int, int, int]:
        """Follow a sequence as far as it is laid out: its ranges of the row, how many tokens they hold, the
        chain in which it ends (-1: none) and how many of that chain's tokens it has."""
        ranges: list[Range] = []
        at, chain, offset = 0, -1, 0
        while at < len(keys) and int(keys[at]) in (following := self.branches.get((chain, offset), {})):
            chain = following[int(keys[at])]
            offset, start = common(self.keys[chain], keys[at:]), self.chains[chain].start
            ranges = join(ranges, (start, start + offset))
            at += offset
        return ranges, at, chain, offset


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the longest common prefix."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def join(ranges: list[Range], last: Range) -> list[Range]:
    """Append a range, merged with the one before where they touch."""
    if ranges and ranges[-1][1] == last[0]:
        return [*ranges[:-1], (ranges[-1][0], last[1])]
    return [*ranges, last]


def image_keys(row: Row, pad: int) -> np.ndarray:
    """Return the row's ids, with each image's pads replaced by a negative number made from its name, so that
    two screenshots part at their first pad."""
    ids = np.array(row.ids, dtype=np.int64)
    pads = np.flatnonzero(ids == pad)
    runs = np.split(pads, np.flatnonzero(np.diff(pads) != 1) + 1) if row.images else []
    assert len(runs) == len(row.images), "every image has one run of pads"
    for places, name in zip(runs, row.images, strict=True):
        ids[places] = -1 - (int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1)
    return ids


def micro_batches(rows: Sequence[Row], tokens: int, pad: int, limit: int) -> list[MicroBatch]:
    """Return rows that begin alike together, as many as fit into a forest of `tokens` tokens. A longer row
    stands alone; ValueError beyond `limit` tokens."""
    parts, forest = [], Forest()
    for row in sorted(rows, key=lambda row: row.ids):
        keys = image_keys(row, pad)
        if len(keys) > limit:
            raise ValueError(f"--batch.micro-tokens {limit} is less than one turn's {len(keys)} tokens")
        if not parts or forest.size + forest.unshared(keys) > tokens:
            parts.append(MicroBatch([], 0))
            forest = Forest()
        forest.add(keys)
        parts[-1] = MicroBatch([*parts[-1].rows, row], forest.size)
    return parts


def pack(rows: Sequence[Row], preprocessor: Preprocessor, images: ImageStore, device: torch.device) -> Batch:
    """Return one forest as a batch of one row; `inputs["tree"]` holds its chains for the attention."""
    forest, pad = Forest(), preprocessor.pad
    keys = [image_keys(row, pad) for row in rows]
    # Trunks first, the longest before its own beginnings, so that each is one chain in one piece.
    trunks = [k[: row.shared] for k, row in zip(keys, rows, strict=True) if row.shared]
    for trunk in sorted(trunks, key=len, reverse=True):
        forest.add(trunk)
    places = [forest.add(k) for k in keys]
    ids_L = np.zeros(forest.size, dtype=np.int64)
    position_3L = np.zeros((3, forest.size), dtype=np.int64)
    pictures: dict[int, Picture] = {}  # by the place of the first pad
    for row, place in zip(rows, places, strict=True):
        own = encode_row(row, preprocessor, images)
        ids_L[place], position_3L[:, place] = own.ids_L, own.position_3L
        if own.pictures:
            sizes = [len(patches) // preprocessor.images.merge**2 for patches, _ in own.pictures]
            starts = place[image_starts(own.ids_L, sizes, pad)].tolist()
            pictures |= zip(starts, own.pictures, strict=True)
    ordered = [pictures[start] for start in sorted(pictures)]
    inputs = padded_inputs([Encoded(ids_L, position_3L, ordered)], preprocessor, device)
    # nothing is padding; without saying so, transformers takes jumping positions for packed documents
    # and makes an L x L mask, which nothing would read
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    sources = [place[row.start - 1 : -1] for row, place in zip(rows, places, strict=True)]
    return with_targets(inputs | {"tree": Tree(tuple(forest.chains))}, rows, sources, device)
