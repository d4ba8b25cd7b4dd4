"""A frozen base in four bits (NF4), under adapters that are trained: QLoRA, arXiv 2305.14314.

    W ~ code[index] x scale      an index of 4 bits a weight, a float32 scale for every 64: 0.5625 bytes

Stands between model and adapters. bitsandbytes packs and unpacks; the layer is lora.py's, whose `weight` is
unpacked whenever it is asked for. So the policy is W' = unpacked W + s B A, rounded once, and the sampler is
given that very number: packing moves the base once, before anything is sampled, and opens no gap between
sampler and trainer. Packed weights are not sharded: every rank has them all.
Deviations:
1. The scales are not packed in their turn (double quantisation, 0.37 bits a weight).
2. Memory is not paged between GPU and CPU.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minirl.lora import LoraLinear


class PackedLinear(LoraLinear):
    """An adapted layer whose frozen weight is packed; `pack` comes before anything else."""

    codes: Tensor  # two indices a byte
    scales: Tensor  # one for every 64 weights
    state: Any  # bitsandbytes' own: size of blocks, kind of codes

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the weight (out, in), unpacked, in the computing type."""
        from bitsandbytes.functional import dequantize_4bit

        self.state.absmax = self.scales  # which moves between devices as the layer does
        return dequantize_4bit(self.codes, self.state).view(self.out_features, self.in_features)

    def pack(self, weight: Tensor) -> None:
        """Take a weight (out, in); it is rounded to the nearest that four bits can say."""
        from bitsandbytes.functional import quantize_4bit

        # as one row: on a CPU rows shorter than a block are unpacked wrongly (bitsandbytes 0.50)
        codes, self.state = quantize_4bit(weight.detach().flatten(), quant_type="nf4")
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", self.state.absmax, persistent=False)


def pack(model: nn.Module) -> None:
    """Pack the frozen weights of a model's adapted layers. ValueError without bitsandbytes."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError('--model.base-bits 4 needs bitsandbytes: pip install "minirl-web[bits]"') from error
    layers: list[Any] = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for layer in layers:
        weight = layer.weight
        del layer.weight
        layer.__class__ = PackedLinear
        layer.pack(weight)


def packed_layers(model: nn.Module) -> dict[str, PackedLinear]:
    """Return a model's packed layers, by the names that their weights would have."""
    return {f"{name}.weight": part for name, part in model.named_modules() if isinstance(part, PackedLinear)}


def packed_shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a model's packed weights, by name."""
    layers = packed_layers(model).items()
    return {name: torch.Size((layer.out_features, layer.in_features)) for name, layer in layers}


def take_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack those of the weights that a model holds packed; return the others."""
    layers = packed_layers(model)
    for name, layer in layers.items():
        layer.pack(weights[name].to(layer.codes.device, layer.state.dtype))
    return {name: weight for name, weight in weights.items() if name not in layers}
