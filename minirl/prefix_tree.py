"""Prefix trees: many turns in one row, every shared token computed once.

Stands between rows and the forward pass. The turns of a trajectory share its prefix (system, task, past
reasoning and feedback), the trajectories of a group system and task. A `Forest` lays turns out as chains,

    chain 0   system task | tabs 1 | response 1 feedback 1 tabs 2 | response 2 feedback 2 tabs 3
    chain 1               |        \\ screenshot 1 response 1        (prefix: chain 0 up to tabs 1)
    chain 2               |                                \\ screenshot 2 response 2   (up to tabs 2)
    ...

and minirl/tree_attention.py lets a chain see its prefix and, causally, itself; in layers without attention it
goes on from its prefix's state (minirl/tree_recurrence.py). A token has the position that it would have had
alone, so hidden states, log-probs and gradients are those of one row per turn, up to rounding.
Shape suffixes: L row length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from minirl import tree_attention, tree_recurrence
from minirl.model import Encoded, Picture, Preprocessor, image_starts, is_hybrid, padded_inputs, request_seed
from minirl.rows import Batch, MicroBatch, Row, encode_row, with_targets
from minirl.tree_attention import Chain, Range
from minirl.types import ImageStore


@dataclass
class Forest:
    """Sequences in one row, equal beginnings once: 1 2 3 4 and 1 2 5 are 1 2 3 4 5, with two chains."""

    keys: list[np.ndarray] = field(default_factory=list)  # per chain: its tokens, images told apart
    chains: list[Chain] = field(default_factory=list)
    # by chain, tokens of it, and next key: the chain that branches off there; roots are at (-1, 0, key)
    branches: dict[tuple[int, int, int], int] = field(default_factory=dict)
    size: int = 0

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Lay out a sequence; return the places of its tokens in the row."""
        ranges = []
        chain = -1
        offset = 0
        done = 0
        # follow the chains that begin as the sequence does
        while done < len(keys):
            branch = self.branches.get((chain, offset, int(keys[done])))
            if branch is None:
                break
            chain = branch
            offset = common_prefix(self.keys[chain], keys[done:])
            start = self.chains[chain].start
            ranges = join(ranges, (start, start + offset))
            done += offset
        # what no chain has becomes a chain of its own
        if done < len(keys):
            rest = keys[done:]
            start = self.size
            end = start + len(rest)
            self.branches[chain, offset, int(rest[0])] = len(self.chains)
            self.keys.append(rest)
            self.chains.append(Chain(start, end, tuple(ranges)))
            self.size = end
            ranges = join(ranges, (start, end))
        return np.concatenate([np.arange(start, end) for start, end in ranges])


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the longest common prefix."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def join(ranges: list[Range], last: Range) -> list[Range]:
    """Return the ranges and one more, merged with the last one if they touch."""
    if ranges:
        start, end = ranges[-1]
        if end == last[0]:
            return [*ranges[:-1], (start, last[1])]
    return [*ranges, last]


def image_keys(row: Row, pad: int) -> np.ndarray:
    """Return the row's ids, with each image's pads replaced by a negative number made from its name."""
    keys = np.array(row.ids, dtype=np.int64)
    runs = []
    if row.images:
        pads = np.flatnonzero(keys == pad)
        gaps = np.flatnonzero(np.diff(pads) != 1)
        runs = np.split(pads, gaps + 1)
    assert len(runs) == len(row.images), "every image has one run of pads"
    for places, name in zip(runs, row.images, strict=True):
        keys[places] = -1 - request_seed(name)
    return keys


def micro_batches(rows: Sequence[Row], tokens: int, pad: int, limit: int) -> list[MicroBatch]:
    """Return rows that begin alike together, in forests of at most `tokens` tokens if they can."""
    parts = []
    forest = Forest()
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
    keys = [image_keys(row, preprocessor.pad) for row in rows]
    forest = lay_out_trunks(rows, keys)
    places = [forest.add(row_keys) for row_keys in keys]

    # ids and positions of each turn, as it would have them alone, at its places
    ids_L = np.zeros(forest.size, dtype=np.int64)
    position_3L = np.zeros((3, forest.size), dtype=np.int64)
    pictures: dict[int, Picture] = {}  # by the place of the first pad
    for row, place in zip(rows, places, strict=True):
        encoded = encode_row(row, preprocessor, images)
        ids_L[place] = encoded.ids_L
        position_3L[:, place] = encoded.position_3L
        if preprocessor.images:
            merged = preprocessor.images.merge**2
            sizes = [len(patches) // merged for patches, _ in encoded.pictures]
            starts = place[image_starts(encoded.ids_L, sizes, preprocessor.pad)]
            pictures.update(zip(starts.tolist(), encoded.pictures, strict=True))
    ordered = [pictures[start] for start in sorted(pictures)]
    inputs = padded_inputs([Encoded(ids_L, position_3L, ordered)], preprocessor, device)

    # nothing is padding: or transformers takes jumping positions for packed documents and makes a mask
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    sources = [place[row.start - 1 : -1] for row, place in zip(rows, places, strict=True)]
    return with_targets(inputs | {"tree": tuple(forest.chains)}, rows, sources, device)


def lay_out_trunks(rows: Sequence[Row], keys: Sequence[np.ndarray]) -> Forest:
    """Return a forest with the prefixes alone, the longest first.

    If a turn came before its trajectory's whole prefix, its chain would hold the first part of that, others
    the rest: later turns would see several ranges, each a kernel call of attention.
    """
    forest = Forest()
    prefixes = []
    for row, row_keys in zip(rows, keys, strict=True):
        if row.shared:
            prefixes.append(row_keys[: row.shared])
    for prefix in sorted(prefixes, key=len, reverse=True):
        forest.add(prefix)
    return forest


def enable(model: PreTrainedModel) -> None:
    """Make the model's text layers understand `tree=`. ValueError for layers it would be wrong for."""
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or [])
    if kinds - {"full_attention", "linear_attention"} or getattr(text, "sliding_window", None):
        raise ValueError(
            "prefix trees need full attention or a gated delta rule; use --batch.layout per-turn"
        )
    if is_hybrid(model):
        tree_recurrence.enable(model)
    tree_attention.enable(model)
