"""Prefix trees: many turns in one row, every shared token computed once.

Stands between groups and the forward pass. The turns of a trajectory share its trunk (system, task, past
reasoning and feedback) and differ in the newest screenshot and response; the trajectories of a group share
system and task. A `Forest` lays the turns out as chains of tokens,

    chain 0   system task | tabs 1 | response 1 feedback 1 tabs 2 | response 2 feedback 2 tabs 3
    chain 1               |        \\ screenshot 1 response 1        (prefix: chain 0 up to tabs 1)
    chain 2               |                                \\ screenshot 2 response 2   (up to tabs 2)
    ...

and `tree_attention` lets a chain see its prefix and, causally, itself. A token sits at the position that
it would have had alone, so the hidden states, log-probs and gradients are those of one row per turn: it is
the same computation, not an approximation. Where chains branch is found by longest common prefix, so that
several screenshots in the prompt, groups, single-turn tasks and equal prompts of different tasks are no
special cases. Linear work falls from the sum of all turns' lengths to the length of the tree.

Images count as what they show: two different screenshots have equal ids, and part at their first pad.

Shape suffixes: L row length, N response tokens, A attention heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from minirl.batch import Batch, Row, with_targets
from minirl.model import Language, positions

Range = tuple[int, int]


@dataclass(frozen=True)
class Chain:
    """A stretch [start, end) of the row whose tokens follow one another; `prefix` are the ranges of the
    row that come before it in its own sequence, in order: Chain(5, 9, ((0, 3),)) continues after token 2."""

    start: int
    end: int
    prefix: tuple[Range, ...] = ()


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


def micro_batches(rows: Sequence[Row], tokens: int, pad: int) -> Iterator[list[Row]]:
    """Rows in order, as many as fit into a forest of `tokens` tokens; ancestors are repeated where a
    trajectory is split. ValueError if one row alone does not fit."""
    part, forest = [], Forest()
    for row in rows:
        keys = image_keys(row, pad)
        if len(keys) > tokens:
            raise ValueError(f"--batch.micro-tokens {tokens} is less than one turn's {len(keys)} tokens")
        if forest.size + forest.unshared(keys) > tokens:
            yield part
            part, forest = [], Forest()
        forest.add(keys)
        part.append(row)
    if part:
        yield part


def pack(
    rows: Sequence[Row], language: Language, image: Callable[[str], bytes], device: torch.device
) -> Batch:
    """One forest as a batch of one row: ids, positions, images in the row's order, and for each response
    token the place that predicts it. `inputs["tree"]` holds the chains for `tree_attention`."""
    forest = Forest()
    keys = [image_keys(row, language.pad) for row in rows]
    # Trunks first, the longest before its own beginnings, so that each is one chain in one piece.
    for n in sorted(range(len(rows)), key=lambda n: -rows[n].shared):
        if rows[n].shared:
            forest.add(keys[n][: rows[n].shared])
    places = [forest.add(k) for k in keys]
    ids_L = np.zeros(forest.size, dtype=np.int64)
    position_3L = np.zeros((3, forest.size), dtype=np.int64)
    pictures: dict[int, tuple[Tensor, tuple[int, int, int]]] = {}  # by the place of the first pad
    images, merge = language.images, language.images.merge if language.images else 1
    for row, place in zip(rows, places, strict=True):
        ids = np.array(row.ids, dtype=np.int64)
        prepared = [images.prepare(image(name)) for name in row.images] if images else []
        ids_L[place] = ids
        position_3L[:, place] = positions(ids, [grid for _, grid in prepared], language.pad, merge)
        starts = np.flatnonzero((ids == language.pad) & (np.roll(ids, 1) != language.pad))
        pictures |= {int(place[s]): p for s, p in zip(starts, prepared, strict=True)}
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(ids_L)[None].to(device),
        "position_ids": torch.from_numpy(position_3L if images else position_3L[0])[..., None, :].to(device),
        "tree": tuple(forest.chains),
    }
    if pictures:
        ordered = [pictures[start] for start in sorted(pictures)]
        inputs["pixel_values"] = torch.cat([pixels for pixels, _ in ordered]).to(device)
        inputs["image_grid_thw"] = torch.tensor([grid for _, grid in ordered], device=device)
    sources = [place[row.start - 1 : -1] for row, place in zip(rows, places, strict=True)]
    return with_targets(inputs, rows, sources, device)


# --- attention -------------------------------------------------------------------------------------


def heads_of(x_1ALD: Tensor, chain: Chain) -> Tensor:
    """What a chain sees: its prefix and itself, (1, A, prefix + own, D)."""
    ranges = [*chain.prefix, (chain.start, chain.end)]
    parts = [x_1ALD[:, :, start:end] for start, end in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """One chain's queries against what it sees: causal, aligned at the end."""
    own, seen = q.shape[2], k.shape[2]
    mask = None if own == seen else torch.ones(own, seen, dtype=torch.bool, device=q.device).tril(seen - own)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


class TreeAttention(torch.autograd.Function):
    """Attention chain by chain. The backward pass computes each chain's attention again and adds its
    gradients in place: autograd on slices would write a full-length gradient for every chain."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, chains: tuple[Chain, ...], scale: float | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.chains, ctx.scale = chains, scale
        out = torch.empty_like(q)
        for chain in chains:
            own = slice(chain.start, chain.end)
            out[:, :, own] = attend(q[:, :, own], heads_of(k, chain), heads_of(v, chain), scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (q, k, v)]
        for chain in ctx.chains:
            own = (chain.start, chain.end)
            seen = [x.detach().requires_grad_() for x in (heads_of(k, chain), heads_of(v, chain))]
            asked = q[:, :, own[0] : own[1]].detach().requires_grad_()
            with torch.enable_grad():
                out = attend(asked, *seen, ctx.scale)
            parts = torch.autograd.grad(out, (asked, *seen), grad[:, :, own[0] : own[1]])
            grads[0][:, :, own[0] : own[1]] += parts[0]
            for total, part in zip(grads[1:], parts[1:], strict=True):
                at = 0
                for start, end in (*chain.prefix, own):
                    total[:, :, start:end] += part[:, :, at : at + end - start]
                    at += end - start
        return (*grads, None, None)


def tree_attention(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: tuple[Chain, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """For transformers' AttentionInterface: q (1, A, L, D) to (1, L, A, D). Without a tree it is plain
    SDPA, so that the same model also samples and trains in the per-turn layout."""
    if tree is None:
        return sdpa_attention_forward(module, q, k, v, attention_mask, dropout, scaling, **kwargs)
    assert q.shape[0] == 1 and q.shape[2] == k.shape[2] == tree[-1].end, "one packed row, without a cache"
    return TreeAttention.apply(q, k, v, tree, scaling).transpose(1, 2).contiguous(), None


def enable(model: PreTrainedModel) -> None:
    """Makes the model's text layers understand `tree=`. ValueError for layers it would be wrong for."""
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(text, "sliding_window", None):
        raise ValueError(
            f"{model.config.model_type} has layers ({', '.join(sorted(kinds))}) for which prefix trees would "
            "be wrong; use --batch.layout per-turn"
        )
    AttentionInterface.register("tree", tree_attention)
    AttentionMaskInterface.register("tree", sdpa_mask)
    vision = hasattr(model.config, "vision_config")
    model.set_attn_implementation({"text_config": "tree", "vision_config": "sdpa"} if vision else "tree")
