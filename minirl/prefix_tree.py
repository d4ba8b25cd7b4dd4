"""Prefix trees: many turns in one row, every shared token computed once.

Stands between rows and the forward pass. The turns of a trajectory share its trunk (system, task, past
reasoning and feedback), the trajectories of a group system and task. A `Forest` lays turns out as chains,

    chain 0   system task | tabs 1 | response 1 feedback 1 tabs 2 | response 2 feedback 2 tabs 3
    chain 1               |        \\ screenshot 1 response 1        (prefix: chain 0 up to tabs 1)
    chain 2               |                                \\ screenshot 2 response 2   (up to tabs 2)
    ...

and minirl/tree_attention.py lets a chain see its prefix and, causally, itself. A token has the position that
it would have had alone, so hidden states, log-probs and gradients are exactly those of one row per turn.
Shape suffixes: L row length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import torch

from minirl.model import Encoded, Picture, Preprocessor, image_starts, padded_inputs
from minirl.rows import Batch, MicroBatch, Row, encode_row, with_targets
from minirl.tree_attention import Chain, Range
from minirl.types import ImageStore


@dataclass
class Forest:
    """Sequences in one row, equal beginnings once: 1 2 3 4 and 1 2 5 are 1 2 3 4 5, with two chains."""

    keys: list[np.ndarray] = field(default_factory=list)  # per chain: its tokens, images told apart
    chains: list[Chain] = field(default_factory=list)
    # which chain goes on behind so many tokens of a chain with which key; roots are behind none of chain -1
    branches: dict[tuple[int, int, int], int] = field(default_factory=dict)
    size: int = 0

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Lay out a sequence; return the places of its tokens in the row."""
        ranges: list[Range] = []
        at, chain, offset = 0, -1, 0
        while at < len(keys) and (branch := (chain, offset, int(keys[at]))) in self.branches:
            chain = self.branches[branch]
            offset, start = common(self.keys[chain], keys[at:]), self.chains[chain].start
            ranges = join(ranges, (start, start + offset))
            at += offset
        if at < len(keys):
            own = (self.size, self.size + len(keys) - at)
            self.branches[chain, offset, int(keys[at])] = len(self.chains)
            self.keys.append(keys[at:])
            self.chains.append(Chain(*own, tuple(ranges)))
            self.size = own[1]
            ranges = join(ranges, own)
        return np.concatenate([np.arange(*each) for each in ranges])


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
    """Return the row's ids, with each image's pads replaced by a negative number made from its name."""
    ids = np.array(row.ids, dtype=np.int64)
    pads = np.flatnonzero(ids == pad)
    runs = np.split(pads, np.flatnonzero(np.diff(pads) != 1) + 1) if row.images else []
    assert len(runs) == len(row.images), "every image has one run of pads"
    for places, name in zip(runs, row.images, strict=True):
        ids[places] = -1 - (int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1)
    return ids


def micro_batches(rows: Sequence[Row], tokens: int, pad: int, limit: int) -> list[MicroBatch]:
    """Return rows that begin alike together, in forests of at most `tokens` tokens if they can."""
    parts, forest = [], Forest()
    for row in sorted(rows, key=lambda row: row.ids):
        keys = image_keys(row, pad)
        if len(keys) > limit:
            raise ValueError(f"--batch.micro-tokens {limit} is less than one turn's {len(keys)} tokens")
        forest.add(keys)
        if not parts or forest.size > tokens:
            parts.append(MicroBatch([], 0))
            forest = Forest()
            forest.add(keys)
        parts[-1] = MicroBatch([*parts[-1].rows, row], forest.size)
    return parts


def pack(rows: Sequence[Row], preprocessor: Preprocessor, images: ImageStore, device: torch.device) -> Batch:
    """Return a batch of one row; `inputs["tree"]` holds its chains for the attention."""
    forest, pad = Forest(), preprocessor.pad
    keys = [image_keys(row, pad) for row in rows]
    # trunks first, the longest before its own beginnings, so that each is one chain in one piece
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
        if preprocessor.images:
            sizes = [len(patches) // preprocessor.images.merge**2 for patches, _ in own.pictures]
            starts = place[image_starts(own.ids_L, sizes, pad)].tolist()
            pictures |= zip(starts, own.pictures, strict=True)
    ordered = [pictures[start] for start in sorted(pictures)]
    inputs = padded_inputs([Encoded(ids_L, position_3L, ordered)], preprocessor, device)
    # nothing is padding: or transformers takes jumping positions for packed documents and makes a mask
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    sources = [place[row.start - 1 : -1] for row, place in zip(rows, places, strict=True)]
    return with_targets(inputs | {"tree": tuple(forest.chains)}, rows, sources, device)
