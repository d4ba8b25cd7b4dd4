"""Gated delta layers in a prefix tree: a chain goes on from the state in which its prefix has left them.

Three of four layers of Qwen3.5 and Qwen3-Next have no attention. They keep a state, per head a matrix that
each token decays and writes to, and before it a convolution of every token with the three before it ("Gated
Delta Networks", arXiv 2412.06464). What stands before a token in the row is not what came before it, and no
mask can help. So chains are cut where others leave them: a trunk `abcdef`, with `xy` behind its b and `z`
behind its d, has the segments

    row              a b | c d | e f | x y | z
    segment           0     1     2     3    4
    goes on from     -1     0     1     0    1
    convolved        ab    cd    ef    xy    z     each behind its own last three: -, -ab, bcd, -ab, bcd

transformers' layers pass what the model is called with on to the two functions that do this, and `enable`
puts those below in their place. Without a `tree` they do what they did; one row per turn is the oracle.

Shape suffixes: L tokens of the row, C channels, W tokens that a convolution sees, H heads, D head size, N
segments of a level.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from minirl.tree_attention import Tree

LAYERS = {"Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"}
Function = Callable[..., Any]
Inputs = tuple[Tensor, ...]  # query, key and value (1, L, H, D), log decay and beta (1, L, H)


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
        context = last[segment.before]
        sequence = context + list(range(segment.start, segment.end))
        last[number] = sequence[-width:]
        kept += range(len(places) + width, len(places) + len(sequence))
        places += sequence
    return torch.tensor(places), torch.tensor(kept)


def tree_convolution(convolve: Function, x_1CL: Tensor, weight_CW: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the convolution (1, C, L) of every token with those before it in its own sequence."""
    tree: Tree | None = kwargs.pop("tree", None)
    if tree is None:
        return convolve(x_1CL, weight_CW, *args, **kwargs)
    places, kept = with_context(tree, weight_CW.shape[1] - 1)
    x_LC = F.pad(x_1CL[0].T, (0, 0, 0, 1))
    wide_LC = x_LC.index_select(0, places.to(x_LC.device))
    wide_1CL = convolve(wide_LC.T[None], weight_CW, *args, **kwargs)
    return wide_1CL[0].T.index_select(0, kept.to(x_LC.device)).T[None]


def tree_rule(
    rule: Function, *qkv: Tensor, g: Tensor, beta: Tensor, tree: Tree | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the gated delta rule's outputs (1, L, H, D), and no state with a tree, which has many."""
    if tree is None:
        return rule(*qkv, g=g, beta=beta, **kwargs)
    kwargs |= {"output_final_state": True}
    segments = cut(tree)
    lengths = [segment.end - segment.start for segment in segments]
    # one split each, whose backward pass is one copy
    inputs = list(zip(*[x.split(lengths, 1) for x in (*qkv, g, beta)], strict=True))
    outputs: dict[int, Tensor] = {}
    states: dict[int, Tensor] = {}
    for level in range(1 + max(segment.level for segment in segments)):
        numbers = [n for n, segment in enumerate(segments) if segment.level == level]
        initial = [states[segments[n].before] for n in numbers] if level else None
        results = advance(rule, [inputs[n] for n in numbers], initial, kwargs)
        for n, (output, state) in zip(numbers, results, strict=True):
            outputs[n] = output
            states[n] = state
    return torch.cat([outputs[n] for n in range(len(segments))], 1), None


def advance(
    rule: Function, inputs: Sequence[Inputs], initial: Sequence[Tensor] | None, options: dict[str, Any]
) -> list[tuple[Tensor, Tensor]]:
    """Return each segment's outputs and last state (1, H, D, D), given its inputs and first state."""
    options = dict(options)
    if not (inputs[0][0].is_cuda and has_fla()):
        results = []
        for n, (q, k, v, g, beta) in enumerate(inputs):
            options["initial_state"] = initial[n] if initial else None
            results.append(rule(q, k, v, g=g, beta=beta, **options))
        return results
    # fla's kernel takes many sequences in one row, told apart by where they begin
    q, k, v, g, beta = [torch.cat(parts, 1) for parts in zip(*inputs, strict=True)]
    lengths = [parts[0].shape[1] for parts in inputs]
    options["cu_seqlens"] = torch.tensor([0, *lengths], device=q.device).cumsum(0)
    options["initial_state"] = torch.cat(list(initial)) if initial else None
    output, state_NHDD = rule(q, k, v, g=g, beta=beta, **options)
    return list(zip(output.split(lengths, 1), state_NHDD.split(1), strict=True))


@functools.cache
def has_fla() -> bool:
    """Return True if transformers' layers use flash-linear-attention: where it can be imported."""
    try:
        importlib.import_module("fla.ops.gated_delta_rule")
    except Exception:  # what transformers takes for its absence
        return False
    return True


def enable(model: PreTrainedModel) -> None:
    """Make a model's gated delta layers understand `tree=`. ValueError if it has others without attention."""
    layers = [part for name, part in model.named_modules() if name.endswith(".linear_attn")]
    kinds = {type(layer) for layer in layers}
    layer_types = model.config.get_text_config().layer_types
    if len(layers) < layer_types.count("linear_attention") or {kind.__name__ for kind in kinds} - LAYERS:
        raise ValueError("prefix trees do not know these layers; use --batch.layout per-turn")
    replacements = {"causal_conv1d_fn": tree_convolution, "torch_chunk_gated_delta_rule": tree_rule}
    for kind in kinds:
        module = sys.modules[kind.__module__]
        for name, replacement in replacements.items():
            original = getattr(module, name)
            if getattr(original, "func", None) is not replacement:
                setattr(module, name, functools.partial(replacement, original))
