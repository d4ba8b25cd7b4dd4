"""oneDNN's products against PyTorch's own, values and gradients, and where they are not used."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minirl.onednn_linear import FEWEST_ROWS, Product, QuickLinear, quicken

SHAPES = [(FEWEST_ROWS,), (2, FEWEST_ROWS), (3, 5, 2 * FEWEST_ROWS)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_the_plain_layer(shape, bias):
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias)
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert type(quick) is QuickLinear
    x, grad = torch.randn(*shape, 48), torch.randn(*shape, 80)
    found = []
    for layer in (plain, quick):
        inputs = x.clone().requires_grad_()
        out = layer(inputs)
        out.backward(grad)
        found.append([out, inputs.grad, *(weight.grad for weight in layer.parameters())])
    for own, reference in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-5, atol=1e-4)
    assert not torch.equal(found[0][1], torch.zeros_like(found[0][1]))


def test_transposed_inputs_and_frozen_weights():
    torch.manual_seed(0)
    weight = torch.randn(80, 48)
    x = torch.randn(48, 100, requires_grad=True)
    out = Product.apply(x.T, weight, None)
    out.sum().backward()
    torch.testing.assert_close(out, x.T @ weight.T, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x.grad, weight.sum(0)[:, None].expand(48, 100), rtol=1e-5, atol=1e-4)


def test_the_gradient_is_the_slope():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(70, 8), torch.randn(6, 8, requires_grad=True), torch.zeros(6)
    Product.apply(x, weight, bias).square().sum().backward()
    step = torch.zeros_like(weight)
    step[2, 3] = 1e-2
    with torch.no_grad():
        up, down = (Product.apply(x, weight + s, bias).double().square().sum() for s in (step, -step))
    assert weight.grad[2, 3].item() == pytest.approx(((up - down) / 2e-2).item(), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_left_to_pytorch(dtype):
    layer = nn.Linear(16, 16).to(dtype)
    quicken(layer)
    x = torch.randn(FEWEST_ROWS, 16, dtype=dtype)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_few_rows_are_left_to_pytorch(monkeypatch):
    layer = nn.Linear(16, 16)
    quicken(layer)
    calls = []
    monkeypatch.setattr(Product, "apply", lambda *args: calls.append(args))
    layer(torch.randn(1, FEWEST_ROWS - 1, 16))
    assert not calls
    layer(torch.randn(1, FEWEST_ROWS, 16))
    assert calls


def test_weights_keep_their_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    names = list(model.state_dict())
    quicken(model)
    assert list(model.state_dict()) == names and isinstance(model[0], nn.Linear)
