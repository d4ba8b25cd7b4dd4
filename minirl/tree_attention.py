"""Attention in a prefix tree: each chain sees its prefix and, causally, itself.

Registered with transformers, so that the models' own code calls it. Two ways compute the same thing:
JoinedAttention, in pieces that are joined by their log-sum-exp, and where no flash kernel takes the tensors
(float32 on a GPU) segment_attention, PyTorch's SDPA of each chain, which is slower and the one to read first.
A dense mask would be exact too, but computes all of L x L.

Shape suffixes: L tokens of the row or of a chain in it, A attention heads, K heads of keys and values (each
for A / K attention heads), D head size, S tokens of a piece or of all that a chain sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

Range = tuple[int, int]  # tokens [start, end) of the row


@dataclass(frozen=True)
class Chain:
    """A stretch [start, end) of the row, and the ranges that come before it in its own sequence, in order."""

    start: int
    end: int
    prefix: tuple[Range, ...] = ()  # Chain(5, 9, ((0, 3),)) continues after token 2

    @property
    def visible(self) -> tuple[Range, ...]:
        """Return all that its last token sees: the prefix and itself."""
        return (*self.prefix, (self.start, self.end))


Tree = tuple[Chain, ...]  # all of a row, in its order


def segment_attention(
    q_1ALD: Tensor, k_1KLD: Tensor, v_1KLD: Tensor, tree: Tree, scale: float | None
) -> Tensor:
    """Return attention (1, A, L, D) chain by chain, each against a copy of all that it sees."""
    sharing = q_1ALD.shape[1] // k_1KLD.shape[1]
    # with a mask, CUDA's kernels take no heads that share a key head
    k_1ALD = k_1KLD.repeat_interleave(sharing, 1)
    v_1ALD = v_1KLD.repeat_interleave(sharing, 1)
    outputs = []
    for chain in tree:
        q = q_1ALD[:, :, chain.start : chain.end]
        k = torch.cat([k_1ALD[:, :, start:end] for start, end in chain.visible], 2)
        v = torch.cat([v_1ALD[:, :, start:end] for start, end in chain.visible], 2)
        # all of the prefix is seen, and of the chain itself what comes before
        L = q.shape[2]
        S = k.shape[2]
        mask_LS = torch.ones(L, S, dtype=torch.bool, device=q.device).tril(S - L)
        outputs.append(F.scaled_dot_product_attention(q, k, v, mask_LS, scale=scale))
    return torch.cat(outputs, 2)


# Attention that returns its log-sum-exps beside the outputs, and its backward pass, which takes them
FLASH_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
FLASH = torch.ops.aten._scaled_dot_product_flash_attention
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward


def piece(
    q_1ALD: Tensor, k_1KSD: Tensor, v_1KSD: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention to one piece, (1, A, L, D), and its log-sum-exps, (1, A, L) in float32."""
    if q_1ALD.is_cuda:  # its kernel knows heads that share a key head
        out, sums, *_ = FLASH(q_1ALD, k_1KSD, v_1KSD, 0.0, causal, scale=scale)
        return out, sums
    heads = k_1KSD.shape[1]
    sharing = q_1ALD.shape[1] // heads
    if causal:
        k_1ASD = k_1KSD.repeat_interleave(sharing, 1)
        v_1ASD = v_1KSD.repeat_interleave(sharing, 1)
        return FLASH_CPU(q_1ALD, k_1ASD, v_1ASD, 0.0, True, scale=scale)
    # where each token sees the whole piece, the heads that share a key head can be one with more tokens
    out, sums = FLASH_CPU(fold(q_1ALD, heads), k_1KSD, v_1KSD, 0.0, False, scale=scale)
    return unfold(out, sharing), unfold(sums, sharing)


def piece_backward(
    grad_1ALD: Tensor, qkv: Sequence[Tensor], joined: Sequence[Tensor], causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a piece's gradients of q, k and v, given the outputs and log-sum-exps of all pieces together."""
    q, k, v = qkv
    out, sums = joined
    if q.is_cuda:
        seed = q.new_empty(2, dtype=torch.uint64)  # of dropout, which there is none of
        lengths = (None, None, q.shape[2], k.shape[2])
        sums = sums.contiguous()  # the kernel takes its strides for granted
        return FLASH_BACKWARD(grad_1ALD, q, k, v, out, sums, *lengths, 0.0, causal, seed, seed, scale=scale)
    heads = k.shape[1]
    sharing = q.shape[1] // heads
    if causal:
        k = k.repeat_interleave(sharing, 1)
        v = v.repeat_interleave(sharing, 1)
        dq, dk, dv = FLASH_CPU_BACKWARD(grad_1ALD, q, k, v, out, sums, 0.0, True, scale=scale)
        dk = dk.unflatten(1, (heads, sharing)).sum(2)
        dv = dv.unflatten(1, (heads, sharing)).sum(2)
        return dq, dk, dv
    grad = fold(grad_1ALD, heads)
    q = fold(q, heads)
    out = fold(out, heads)
    sums = fold(sums, heads)
    dq, dk, dv = FLASH_CPU_BACKWARD(grad, q, k, v, out, sums, 0.0, False, scale=scale)
    return unfold(dq, sharing), dk, dv


class JoinedAttention(torch.autograd.Function):
    """Attention chain by chain in pieces: to the chain itself, causal, and to each range of its prefix,
    joined by their softmax denominators' logarithms, which the kernel's backward pass takes."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
        out_1ALD = torch.empty_like(q)
        sums_1AL = q.new_empty(q.shape[:3], dtype=torch.float32)
        for chain in tree:
            place = slice(chain.start, chain.end)
            pieces = []
            for start, end in chain.visible:
                causal = start == chain.start
                keys = k[:, :, start:end]
                values = v[:, :, start:end]
                pieces.append(piece(q[:, :, place], keys, values, causal, scale))
            total = torch.stack([sums for _, sums in pieces]).logsumexp(0)
            weighted = []
            for out, sums in pieces:
                share = (sums - total).exp()[..., None]  # in float32, as the log-sum-exps are
                weighted.append(out * share)
            out_1ALD[:, :, place] = sum(weighted)
            sums_1AL[:, :, place] = total
        ctx.save_for_backward(q, k, v, out_1ALD, sums_1AL)
        ctx.tree = tree
        ctx.scale = scale
        return out_1ALD

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        dq = torch.zeros_like(q, dtype=torch.float32)
        dk = torch.zeros_like(k, dtype=torch.float32)
        dv = torch.zeros_like(v, dtype=torch.float32)
        for chain in ctx.tree:
            place = slice(chain.start, chain.end)
            joined = out[:, :, place], sums[:, :, place]
            for start, end in chain.visible:
                visible = slice(start, end)
                qkv = q[:, :, place], k[:, :, visible], v[:, :, visible]
                causal = start == chain.start
                parts = piece_backward(grad[:, :, place], qkv, joined, causal, ctx.scale)
                dq[:, :, place] += parts[0]
                dk[:, :, visible] += parts[1]
                dv[:, :, visible] += parts[2]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def fold(x: Tensor, heads: int) -> Tensor:
    """Return (1, A, L, ...) as (1, heads, A / heads * L, ...): the heads of a group, one after another."""
    return x.unflatten(1, (heads, -1)).flatten(2, 3)


def unfold(x: Tensor, sharing: int) -> Tensor:
    """Return what `fold` made, (1, K, sharing * L, ...), as (1, A, L, ...)."""
    return x.unflatten(2, (sharing, -1)).flatten(1, 2)


def tree_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Return attention in transformers' form, (1, L, A, D); without a `tree` plain SDPA, for sampling."""
    tree: Tree | None = kwargs.pop("tree", None)
    if not tree:
        return sdpa_attention_forward(module, q, k, v, attention_mask, **kwargs)
    assert q.shape[0] == 1, "one packed row"
    assert q.shape[2] == k.shape[2] == tree[-1].end, "all of the row, without a cache"
    no_kernel = q.is_cuda and q.dtype == torch.float32
    attend: Any = segment_attention if no_kernel else JoinedAttention.apply
    out_1ALD = attend(q, k, v, tree, kwargs.get("scaling"))
    return out_1ALD.transpose(1, 2).contiguous(), None


def enable(model: PreTrainedModel) -> None:
    """Make the attention of a model's text layers understand `tree=`."""
    AttentionInterface.register("tree", tree_attention)
    AttentionMaskInterface.register("tree", sdpa_mask)
    if hasattr(model.config, "vision_config"):
        model.set_attn_implementation({"text_config": "tree", "vision_config": "sdpa"})
    else:
        model.set_attn_implementation("tree")
