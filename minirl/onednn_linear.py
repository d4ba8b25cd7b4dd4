"""Linear layers of float32 on a CPU, through oneDNN; in other types and for a few rows PyTorch's own.

PyTorch gives matrix products of float32 to MKL, which reached about half of oneDNN's speed on the one
processor where both were measured, an AMD EPYC; the results are as exact.
"""

from typing import Any

import torch
from torch import Tensor, nn

FEWEST_ROWS = 64  # below, the call itself costs more than the product


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias; the tensors may be transposed views."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_NO, x_NI = grad.flatten(0, -2), x.flatten(0, -2)
        grad_x = product(grad, weight.T) if needs_x else None
        grad_weight = product(grad_NO.T, x_NI.T) if needs_weight else None
        return grad_x, grad_weight, grad_NO.sum(0) if needs_bias else None


class QuickLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        plain = x.device.type == "cpu" and x.dtype == self.weight.dtype == torch.float32
        if not plain or x.shape[:-1].numel() < FEWEST_ROWS:
            return super().forward(x)
        return Product.apply(x, self.weight, self.bias)


def quicken(model: nn.Module) -> None:
    """Turn a model's linear layers into QuickLinear, with the same weights, where PyTorch has oneDNN."""
    if torch.backends.mkldnn.is_available():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = QuickLinear
