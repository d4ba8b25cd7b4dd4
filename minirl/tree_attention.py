"""Attention in a prefix tree: each chain sees its prefix and, causally, itself.

Registered with transformers, so that the models' own code calls it. Three kernels compute the same thing:

    segment  chain by chain with PyTorch's SDPA, on any device
    flex     FlexAttention with a block mask, compiled; CUDA (forward passes alone would run on a CPU)
    flash    flash-attn's varlen kernel: a chain's queries against gathered copies of what it sees; CUDA

All take a `Tree`. A dense mask would be exact too, but computes all of L x L, which is the work of the turns
one by one. Models with layers that are not full attention (linear, sliding window) are refused.

Shape suffixes: L row length, A attention heads, D head size, C chains, S tokens seen by all chains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from minirl.console import say

Range = tuple[int, int]
Kernel = Callable[[Tensor, Tensor, Tensor, "Tree", float | None], Tensor]


@dataclass(frozen=True)
class Chain:
    """A stretch [start, end) of the row whose tokens follow one another; `prefix` are the ranges of the
    row that come before it in its own sequence, in order: Chain(5, 9, ((0, 3),)) continues after token 2."""

    start: int
    end: int
    prefix: tuple[Range, ...] = ()

    @property
    def seen(self) -> tuple[Range, ...]:
        """The prefix and itself: all that its last token sees."""
        return (*self.prefix, (self.start, self.end))


@dataclass(frozen=True)
class Tree:
    """The chains of a row, in the row's order; what a kernel needs beside them is made once for all
    layers."""

    chains: tuple[Chain, ...]
    device: torch.device = torch.device("cpu")

    @functools.cached_property
    def visible_LC(self) -> tuple[Tensor, Tensor]:
        """For every token its chain (L,), and (C, L) what each chain's tokens see of the row, themselves
        apart from causality: with chains (0, 4) and (4, 5, prefix (0, 2)) they are 0 0 0 0 1 and 1 1 1 1 0 /
        1 1 0 0 1.
        """
        size = self.chains[-1].end
        chain_L = torch.empty(size, dtype=torch.int64)
        seen_CL = torch.zeros(len(self.chains), size, dtype=torch.bool)
        for c, chain in enumerate(self.chains):
            chain_L[chain.start : chain.end] = c
            for start, end in chain.seen:
                seen_CL[c, start:end] = True
        return chain_L.to(self.device), seen_CL.to(self.device)

    @functools.cached_property
    def varlen(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Which tokens the chains see, chain after chain (S,); cumulative numbers (C + 1,) of own and of seen
        tokens; and the largest of either."""
        seen = [torch.cat([torch.arange(*each) for each in chain.seen]) for chain in self.chains]
        own = torch.tensor([0] + [chain.end - chain.start for chain in self.chains])
        all_seen = torch.tensor([0] + [len(tokens) for tokens in seen])
        tensors = (torch.cat(seen), own.cumsum(0).int(), all_seen.cumsum(0).int())
        return *(tensor.to(self.device) for tensor in tensors), int(own.max()), int(all_seen.max())

    @functools.cached_property
    def block_mask(self) -> BlockMask:
        """FlexAttention's mask: prefixes lie before their chains in the row, so causality is one
        comparison."""
        chain_L, seen_CL = self.visible_LC

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (k <= q) & seen_CL[chain_L[q], k]

        return create_block_mask(sees, None, None, len(chain_L), len(chain_L), device=self.device)


# --- chain by chain ---------------------------------------------------------------------------------


def heads_of(x_1ALD: Tensor, chain: Chain) -> Tensor:
    """What a chain sees: its prefix and itself, (1, A, prefix + own, D)."""
    parts = [x_1ALD[:, :, start:end] for start, end in chain.seen]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """One chain's queries against what it sees: causal, aligned at the end."""
    own, seen = q.shape[2], k.shape[2]
    mask = None if own == seen else torch.ones(own, seen, dtype=torch.bool, device=q.device).tril(seen - own)
    shared = q.shape[1] // k.shape[1]  # repeated: with a mask, no fast kernel of CUDA takes grouped heads
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)


class TreeAttention(torch.autograd.Function):
    """Attention chain by chain, on any device. The backward pass computes each chain's attention again and
    adds its gradients in place: autograd on slices would write a full-length gradient for every chain."""

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
            own = slice(chain.start, chain.end)
            seen = [x.detach().requires_grad_() for x in (heads_of(k, chain), heads_of(v, chain))]
            asked = q[:, :, own].detach().requires_grad_()
            with torch.enable_grad():
                out = attend(asked, *seen, ctx.scale)
            parts = torch.autograd.grad(out, (asked, *seen), grad[:, :, own])
            grads[0][:, :, own] += parts[0]
            for total, part in zip(grads[1:], parts[1:], strict=True):
                at = 0
                for start, end in chain.seen:
                    total[:, :, start:end] += part[:, :, at : at + end - start]
                    at += end - start
        return (*grads, None, None)


# --- chain by chain, on a CPU ---------------------------------------------------------------------------

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class CpuTreeAttention(torch.autograd.Function):
    """The same on the CPU, with its flash kernel called directly: nothing is masked, copied or recomputed.

    A chain's attention is that to itself, causal, and that to each range of its prefix, of which every query
    sees all. The kernel returns the logarithms of the softmax denominators beside the outputs, which is what
    it takes to join the pieces; and given the joint ones, its backward pass gives each piece's gradients.
    Towards the prefix, the query heads that share a key head are so many more queries of one head.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, chains: tuple[Chain, ...], scale: float | None
    ) -> Tensor:
        heads, shared = k.shape[1], q.shape[1] // k.shape[1]
        out, sums = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        for chain in chains:
            own = slice(chain.start, chain.end)
            own_kv = [x[:, :, own].repeat_interleave(shared, 1) for x in (k, v)]
            pieces = [FLASH(q[:, :, own], *own_kv, 0.0, True, scale=scale)]
            q_folded = fold(q[:, :, own], heads)
            for start, end in chain.prefix:
                seen = (k[:, :, start:end], v[:, :, start:end])
                piece = FLASH(q_folded, *seen, 0.0, False, scale=scale)
                pieces.append(tuple(unfold(x, shared) for x in piece))
            total = torch.stack([piece_sums for _, piece_sums in pieces]).logsumexp(0)
            out[:, :, own] = sum(o * (s - total).exp()[..., None].to(o.dtype) for o, s in pieces)
            sums[:, :, own] = total
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.chains, ctx.scale = chains, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        heads, shared = k.shape[1], q.shape[1] // k.shape[1]
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for chain in ctx.chains:
            own = slice(chain.start, chain.end)
            g, asked, o, s = (x[:, :, own] for x in (grad, q, out, sums))
            own_kv = [x[:, :, own].repeat_interleave(shared, 1) for x in (k, v)]
            parts = FLASH_BACKWARD(g, asked, *own_kv, o, s, 0.0, True, scale=ctx.scale)
            dq[:, :, own] += parts[0]
            for total, part in zip((dk, dv), parts[1:], strict=True):
                total[:, :, own] += part.unflatten(1, (heads, shared)).sum(2)
            g, asked, o, s = (fold(x, heads) for x in (g, asked, o, s))
            for start, end in chain.prefix:
                seen = (k[:, :, start:end], v[:, :, start:end])
                parts = FLASH_BACKWARD(g, asked, *seen, o, s, 0.0, False, scale=ctx.scale)
                dq[:, :, own] += unfold(parts[0], shared)
                dk[:, :, start:end] += parts[1]
                dv[:, :, start:end] += parts[2]
        return dq, dk, dv, None, None


def fold(x: Tensor, heads: int) -> Tensor:
    """(1, A, L, ...) to (1, heads, A / heads * L, ...): the heads of a group, one after another."""
    return x.unflatten(1, (heads, -1)).flatten(2, 3)


def unfold(x: Tensor, shared: int) -> Tensor:
    """The inverse of `fold`."""
    return x.unflatten(2, (shared, -1)).flatten(1, 2)


# --- the other kernels -------------------------------------------------------------------------------


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)


def flex(q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
    kernel = compiled_flex() if q.is_cuda else flex_attention
    grouped = q.shape[1] != k.shape[1]
    return kernel(q, k, v, block_mask=tree.block_mask, scale=scale, enable_gqa=grouped)


def flash(q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
    from flash_attn import flash_attn_varlen_func  # CUDA only

    return varlen(flash_attn_varlen_func, q, k, v, tree, scale)


def varlen(
    kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None
) -> Tensor:
    """One call for all chains: (1, A, L, D) to the kernel's (L, A, D) and back. The kernel aligns a chain's
    queries with the end of what it sees."""
    seen_S, own_C, all_C, most_own, most_seen = tree.varlen
    q_LAD, k_SAD, v_SAD = q[0].transpose(0, 1), k[0].transpose(0, 1)[seen_S], v[0].transpose(0, 1)[seen_S]
    out_LAD = kernel(q_LAD, k_SAD, v_SAD, own_C, all_C, most_own, most_seen, softmax_scale=scale, causal=True)
    return out_LAD.transpose(0, 1)[None]


def segment(q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
    function = CpuTreeAttention if q.device.type == "cpu" else TreeAttention
    return function.apply(q, k, v, tree.chains, scale)


# --- registration ------------------------------------------------------------------------------------


def register(name: str, kernel: Kernel) -> None:
    """Makes `name` an attention implementation of transformers."""

    def attention(
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        tree: Tree | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """q (1, A, L, D) to (1, L, A, D). Without a tree it is plain SDPA, so that the same model also
        samples and trains in the per-turn layout."""
        if tree is None:
            return sdpa_attention_forward(module, q, k, v, attention_mask, dropout, scaling, **kwargs)
        size = tree.chains[-1].end
        assert q.shape[0] == 1 and q.shape[2] == k.shape[2] == size, "one packed row, without a cache"
        return kernel(q, k, v, tree, scaling).transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def available(attention: str, cuda: bool) -> Kernel:
    """The kernel of `--model.attention`; where it can't run, one line and the segment loop."""
    if attention in ("auto", "segment"):
        return segment
    if not cuda:
        say(f"--model.attention {attention} needs CUDA; using segment")
        return segment
    if attention == "flex":
        return flex
    try:
        import flash_attn  # noqa: F401
    except ImportError:
        say("--model.attention flash: flash-attn is not installed (pip install flash-attn); using segment")
        return segment
    return flash


def enable(model: PreTrainedModel, attention: str = "auto") -> None:
    """Makes the model's text layers understand `tree=`. ValueError for layers it would be wrong for."""
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(text, "sliding_window", None):
        raise ValueError(
            f"{model.config.model_type} has layers ({', '.join(sorted(kinds))}) for which prefix trees would "
            "be wrong; use --batch.layout per-turn"
        )
    kernel = available(attention, torch.cuda.is_available())
    name = f"tree_{kernel.__name__}"
    register(name, kernel)
    vision = hasattr(model.config, "vision_config")
    model.set_attn_implementation({"text_config": name, "vision_config": "sdpa"} if vision else name)
