"""Gated delta layers in a prefix tree: a chain goes on from the state in which its prefix has left them.

Three of four layers of Qwen3.5 and Qwen3-Next have no attention. They keep a state, per head a matrix that
each token decays and writes to, and before it a convolution of every token with the three before it ("Gated
Delta Networks", arXiv 2412.06464). A token's neighbour in the row may be of another sequence, and no mask
can help. So chains are cut where others leave them: a trunk `abcdef`, with `xy` behind its b and `z`
behind its d, has the segments

    row              a b | c d | e f | x y | z
    segment           0     1     2     3    4
    goes on from     -1     0     1     0    1
    convolved        ab    cd    ef    xy    z     each behind its own last three: ---, -ab, bcd, -ab, bcd

transformers' layers hand what the model is called with to two functions, which `enable` replaces by those
below. Without a `tree` they do what they did; one row per turn is the oracle.

Shape suffixes: L tokens of the row, C channels, W tokens that a convolution sees, H heads, D head size.
"""

import functools
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_linear_attention_available

from minirl.tree_attention import Tree

LAYERS = {"Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"}
Function = Callable[..., Any]


class Segment(NamedTuple):
    """A stretch [start, end) of the row that no other chain leaves before its end."""

    start: int
    end: int
    before: int  # the number of the segment that it goes on from, or -1
    level: int  # how many come before it in its own sequence


@functools.lru_cache(4)  # all layers of a pass ask for the same
def cut(tree: Tree) -> tuple[Segment, ...]:
    """Return a row's segments, in its order."""
    places = {0}
    leaves = {}  # by where a chain starts, the place behind the last token of its prefix
    for chain in tree:
        leaves[chain.start] = chain.prefix[-1][1] if chain.prefix else 0
        places |= {chain.end, leaves[chain.start]}
    segments: list[Segment] = []
    numbers = {0: -1}  # by where it ends
    for start, end in pairwise(sorted(places)):
        before = numbers[leaves.get(start, start)]
        level = segments[before].level + 1 if before >= 0 else 0
        numbers[end] = len(segments)
        segments.append(Segment(start, end, before, level))
    return tuple(segments)


@functools.lru_cache(4)
def with_context(tree: Tree, width: int) -> tuple[Tensor, Tensor]:
    """Return the places of a longer row, in which every segment stands behind the last `width` tokens of what
    it goes on from, and where in that row the segments are. The place behind the tree's last is nothing."""
    places: list[int] = []
    kept: list[int] = []
    last = {-1: [tree[-1].end] * width}  # the ends of the sequences up to each segment
    for number, segment in enumerate(cut(tree)):
        sequence = last[segment.before] + list(range(segment.start, segment.end))
        last[number] = sequence[-width:]
        kept += range(len(places) + width, len(places) + len(sequence))
        places += sequence
    return torch.tensor(places), torch.tensor(kept)


def tree_convolution(
    convolve: Function, x_1CL: Tensor, weight_CW: Tensor, *args: Any, tree: Tree | None = None, **kwargs: Any
) -> Tensor:
    """Return the convolution (1, C, L) of every token with those before it in its own sequence."""
    if not tree:
        return convolve(x_1CL, weight_CW, *args, **kwargs)
    places, kept = with_context(tree, weight_CW.shape[1] - 1)
    x_LC = F.pad(x_1CL[0].T, (0, 0, 0, 1))
    longer_LC = x_LC.index_select(0, places.to(x_LC.device))
    longer_1CL = convolve(longer_LC.T[None], weight_CW, *args, **kwargs)
    return longer_1CL[0].T.index_select(0, kept.to(x_LC.device)).T[None]


def tree_rule(
    rule: Function, *qkv: Tensor, g: Tensor, beta: Tensor, tree: Tree | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the gated delta rule's outputs (1, L, H, D), and no state with a tree, which has many."""
    if not tree:
        return rule(*qkv, g=g, beta=beta, **kwargs)
    segments = cut(tree)
    lengths = [segment.end - segment.start for segment in segments]
    # one split of each, whose backward pass is one copy
    inputs = list(zip(*[x.split(lengths, 1) for x in (*qkv, g, beta)], strict=True))

    # fla's kernel takes many sequences in one row, told apart by where they end
    together = g.is_cuda and is_flash_linear_attention_available()
    groups: dict[int, list[int]] = {}
    for n, segment in enumerate(segments):
        groups.setdefault(segment.level if together else n, []).append(n)

    outputs: dict[int, Tensor] = {}
    H, D = qkv[2].shape[2:]
    states = {-1: g.new_zeros(1, H, qkv[1].shape[3], D, dtype=torch.float32)}
    for numbers in groups.values():
        chosen = [inputs[n] for n in numbers]
        q, k, v, decay, strength = [torch.cat(parts, 1) for parts in zip(*chosen, strict=True)]
        sizes = [lengths[n] for n in numbers]
        kwargs["initial_state"] = torch.cat([states[segments[n].before] for n in numbers])
        kwargs["output_final_state"] = True
        kwargs["cu_seqlens"] = torch.tensor([0, *sizes], device=g.device).cumsum(0)
        output, last = rule(q, k, v, g=decay, beta=strength, **kwargs)
        outputs.update(zip(numbers, output.split(sizes, 1), strict=True))
        states.update(zip(numbers, last.split(1), strict=True))
    return torch.cat([outputs[n] for n in range(len(segments))], 1), None


def enable(model: PreTrainedModel) -> None:
    """Make a model's gated delta layers understand `tree=`. ValueError for other layers without attention."""
    layers = [part for name, part in model.named_modules() if name.endswith(".linear_attn")]
    kinds = {type(layer) for layer in layers}
    if not layers or {kind.__name__ for kind in kinds} - LAYERS:
        raise ValueError("prefix trees do not know these layers; use --batch.layout per-turn")
    replacements = {"causal_conv1d_fn": tree_convolution, "torch_chunk_gated_delta_rule": tree_rule}
    for kind in kinds:
        module = sys.modules[kind.__module__]
        for name, replacement in replacements.items():
            original = getattr(module, name)
            if getattr(original, "func", None) is not replacement:
                setattr(module, name, functools.partial(replacement, original))
