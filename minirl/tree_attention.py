"""Attention in a prefix tree: each chain sees its prefix and, causally, itself.

Registered with transformers, so that the models' own code calls it. Two ways compute the same thing:
JoinedAttention, in pieces that are joined by their log-sum-exp, and where no flash kernel takes the tensors
(float32 on a GPU) segment_attention, PyTorch's SDPA of each chain, which is slower and the one to read first.
A dense mask would be exact too, but computes all of L x L. Shape suffixes: L row length, A attention heads,
D head size, K heads of keys and values, S tokens of a piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends.cuda import SDPAParams, can_use_flash_attention
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
    def seen(self) -> tuple[Range, ...]:
        """Return all that its last token sees: the prefix and itself."""
        return (*self.prefix, (self.start, self.end))


Tree = tuple[Chain, ...]  # all of a row, in its order


def segment_attention(q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
    """Return attention chain by chain, each against a copy of all that it sees."""
    out, shared = [], q.shape[1] // k.shape[1]
    # a trunk's gradients come from many chains and are added in float32
    k_and_v = torch.stack([k, v]).float()
    for chain in tree:
        own = chain.end - chain.start
        seen = torch.cat([k_and_v[..., start:end, :] for start, end in chain.seen], -2).to(k.dtype)
        before = seen.shape[-2] - own
        how: dict[str, Any] = {"is_causal": True, "scale": scale}
        if before:
            mask = torch.ones(own, before + own, dtype=torch.bool, device=q.device).tril(before)
            how = {"attn_mask": mask, "scale": scale}
        keys, values = seen.repeat_interleave(shared, 2)  # with a mask, CUDA's kernels take no grouped heads
        out.append(F.scaled_dot_product_attention(q[:, :, chain.start : chain.end], keys, values, **how))
    return torch.cat(out, 2)


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
        return FLASH(q_1ALD, k_1KSD, v_1KSD, 0.0, causal, scale=scale)[:2]
    heads, shared = k_1KSD.shape[1], q_1ALD.shape[1] // k_1KSD.shape[1]
    if causal:
        kv = [x.repeat_interleave(shared, 1) for x in (k_1KSD, v_1KSD)]
        return FLASH_CPU(q_1ALD, *kv, 0.0, True, scale=scale)
    out, sums = FLASH_CPU(fold(q_1ALD, heads), k_1KSD, v_1KSD, 0.0, False, scale=scale)
    return unfold(out, shared), unfold(sums, shared)


def piece_backward(
    grad: Tensor, qkv: Sequence[Tensor], joined: Sequence[Tensor], causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a piece's gradients of q, k and v, given the outputs and log-sum-exps of all pieces together."""
    (q, k, v), (out, sums) = qkv, joined
    if q.is_cuda:
        sums = sums.contiguous()  # the kernel takes its strides for granted
        unused = (None, None, q.shape[2], k.shape[2], 0.0, causal, *[q.new_empty(2, dtype=torch.uint64)] * 2)
        return FLASH_BACKWARD(grad, q, k, v, out, sums, *unused, scale=scale)
    heads, shared = k.shape[1], q.shape[1] // k.shape[1]
    if causal:
        kv = [x.repeat_interleave(shared, 1) for x in (k, v)]
        dq, *dkv = FLASH_CPU_BACKWARD(grad, q, *kv, out, sums, 0.0, True, scale=scale)
        dk, dv = (x.unflatten(1, (heads, shared)).sum(2) for x in dkv)
        return dq, dk, dv
    grad, q, out, sums = (fold(x, heads) for x in (grad, q, out, sums))
    dq, dk, dv = FLASH_CPU_BACKWARD(grad, q, k, v, out, sums, 0.0, False, scale=scale)
    return unfold(dq, shared), dk, dv


class JoinedAttention(torch.autograd.Function):
    """Attention chain by chain in pieces: to the chain itself, causal, and to each range of its prefix,
    joined by their softmax denominators' logarithms, which the kernel's backward pass takes."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tree: Tree, scale: float | None) -> Tensor:
        out, sums = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        for chain in tree:
            own = slice(chain.start, chain.end)
            pieces = [
                piece(q[:, :, own], k[:, :, start:end], v[:, :, start:end], start == chain.start, scale)
                for start, end in chain.seen
            ]
            total = torch.stack([piece_sums for _, piece_sums in pieces]).logsumexp(0)
            out[:, :, own] = sum(o * (s - total).exp()[..., None] for o, s in pieces)  # in float32
            sums[:, :, own] = total
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.tree, ctx.scale = tree, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        for chain in ctx.tree:
            own = slice(chain.start, chain.end)
            g, own_q, o, s = (x[:, :, own] for x in (grad, q, out, sums))
            for start, end in chain.seen:
                qkv = own_q, k[:, :, start:end], v[:, :, start:end]
                parts = piece_backward(g, qkv, (o, s), start == chain.start, ctx.scale)
                dq[:, :, own] += parts[0]
                dk[:, :, start:end] += parts[1]
                dv[:, :, start:end] += parts[2]
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def fold(x: Tensor, heads: int) -> Tensor:
    """Return (1, A, L, ...) as (1, heads, A / heads * L, ...): the heads of a group, one after another."""
    return x.unflatten(1, (heads, -1)).flatten(2, 3)


def unfold(x: Tensor, shared: int) -> Tensor:
    return x.unflatten(2, (shared, -1)).flatten(1, 2)


def joinable(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if a kernel that returns log-sum-exps takes these tensors."""
    if not q.is_cuda:
        return True
    return q.shape[-1] % 8 == 0 and can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, True, True))


def tree_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Return attention in transformers' form, (1, L, A, D); without a `tree` plain SDPA, for sampling."""
    tree: Tree | None = kwargs.pop("tree", None)
    if tree is None:
        return sdpa_attention_forward(module, q, k, v, attention_mask, **kwargs)
    assert q.shape[0] == 1 and q.shape[2] == k.shape[2] == tree[-1].end, "one packed row, without a cache"
    attend: Any = JoinedAttention.apply if joinable(q, k, v) else segment_attention
    return attend(q, k, v, tree, kwargs.get("scaling")).transpose(1, 2).contiguous(), None


def enable(model: PreTrainedModel) -> None:
    """Make the model's text layers understand `tree=`. ValueError for layers it would be wrong for."""
    text = model.config.get_text_config()
    partial = set(getattr(text, "layer_types", None) or []) - {"full_attention"}
    if partial or getattr(text, "sliding_window", None):
        raise ValueError("prefix trees need layers of full attention; use --batch.layout per-turn")
    AttentionInterface.register("tree", tree_attention)
    AttentionMaskInterface.register("tree", sdpa_mask)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length, for up to a second
    vision = hasattr(model.config, "vision_config")
    model.set_attn_implementation({"text_config": "tree", "vision_config": "sdpa"} if vision else "tree")
