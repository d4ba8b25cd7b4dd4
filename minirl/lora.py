"""LoRA: low-rank adapters of the text model's linear layers, beside a base that stays as it is.

    W' = W + s B A        W (out, in) is frozen, in the computing type; s = alpha / r = 2
                          A (r, in) and B (out, r) are trained, in float32; B begins as 0

Stands between model and policy. A layer multiplies with W' itself, which is summed in float32 and rounded
once: the very number that the sampler is given, so that the two differ no more than in full training. W is
only read, so nothing drifts by being merged and unmerged. LoRA (arXiv 2106.09685).

Plain torch, and not PEFT, whose format is written all the same. PEFT's layers compute W x + s B (A x). In
bfloat16 that is another policy than the merged weights, which are sampled from, as most of s B A is smaller
than the rounding of W: 0.008 nats a token apart in the mean on a model of two layers, where this is 0 apart.
And its wrapped modules bear other names than sampler, shards and checkpoints know.
Deviations:
1. alpha is 2 r, so s is the same at any rank. A is uniform within 1 / sqrt(in), as PEFT's, not Gaussian.
2. All linear layers of the text model are adapted, not the attention's alone. Embeddings, head and vision
   tower are frozen.
3. Gradients pass the rounding of W' as if there were none.
4. Learning rates are `RATE` times those of full training (LoRA Without Regret, Thinking Machines, 2025).
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from minirl.distributed import full_tensor
from minirl.model import QuickLinear, linear

SCALE = 2.0  # s
RATE = 10.0  # the learning rate, as a multiple of --optim.lr and --sft.lr


class LoraLinear(QuickLinear):
    """A frozen linear layer with an adapter; its `weight` and `bias` keep their names."""

    lora_A: nn.Parameter  # (r, in)
    lora_B: nn.Parameter  # (out, r)
    active = True

    def forward(self, input: Tensor) -> Tensor:
        if not self.active:
            return super().forward(input)
        return AdaptedProduct.apply(input, self, self.lora_A, self.lora_B, self.bias)

    def merged(self, device: torch.device) -> Tensor:
        """Return W', whole and without a gradient; a collective call."""
        parts = [full_tensor(part.detach()) for part in (self.weight, self.lora_A, self.lora_B)]
        return merge(*[part.to(device) for part in parts])


class AdaptedProduct(torch.autograd.Function):
    """x @ W'.T + bias. W' is made again for the backward pass, which never holds W's gradient (out, in)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: LoraLinear, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, a, b)
        ctx.layer = layer  # and not its weight, which may be unpacked for one layer at a time
        return linear(x, merge(layer.weight, a, b), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b = ctx.saved_tensors
        grad_x = linear(grad, merge(ctx.layer.weight, a, b).T) if ctx.needs_input_grad[0] else None
        grad_NO = grad.flatten(0, -2).float()
        x_NI = x.flatten(0, -2).float()
        grad_a = SCALE * (grad_NO @ b).T @ x_NI
        grad_b = SCALE * grad_NO.T @ (x_NI @ a.T)
        return grad_x, None, grad_a, grad_b, None


def merge(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return W' = W + s B A in W's type. For W = [[1.0]], A = [[0.5]] and B = [[3.0]] it is [[4.0]]."""
    return torch.addmm(weight.float(), b, a, alpha=SCALE).to(weight.dtype)


def attach(model: PreTrainedModel, rank: int, seed: int, dtype: torch.dtype) -> None:
    """Freeze a model in the computing type and adapt its text model's linear layers. At first its outputs are
    as before. ValueError if there is nothing to adapt."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
        weight.requires_grad_(False)
    layers = [module for module in model.get_decoder().modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("--model.lora: this model has no linear layers to adapt; leave it out")
    for layer in layers:
        layer.__class__ = LoraLinear
        layer.lora_A = nn.Parameter(torch.zeros(rank, layer.in_features))
        layer.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
    model.load_state_dict(new_adapters(model, seed), strict=False)


def new_adapters(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Return untrained adapters for all adapted layers, by name; equal on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    adapters = {}
    for name, weight in adapters_of(model).items():
        whole = torch.zeros(weight.shape)
        if name.endswith("lora_A"):
            bound = weight.shape[1] ** -0.5
            whole.uniform_(-bound, bound, generator=generator)
        adapters[name] = whole
    return adapters


def adapters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's adapters by name, not copies of them; {} if it has none."""
    named = model.named_parameters()
    return {name: weight for name, weight in named if name.endswith((".lora_A", ".lora_B"))}


@contextlib.contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Compute with the base alone inside the block: the reference of a KL term."""
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for layer in layers:
        layer.active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.active = True


def save_adapters(adapters: dict[str, Tensor], rank: int, base: str, folder: Path) -> None:
    """Write whole adapters of the model at `base` as PEFT does: adapter_model.safetensors, which names
    layers.0.q_proj.lora_A as base_model.model.layers.0.q_proj.lora_A.weight, and adapter_config.json."""
    tensors = {f"base_model.model.{name}.weight": weight for name, weight in adapters.items()}
    layers = {name.rpartition(".")[0] for name in adapters}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": SCALE * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(layers),  # whole names: a vision tower may have layers of the same name
        "inference_mode": True,
    }
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
