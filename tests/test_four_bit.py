"""A base in four bits: what bitsandbytes makes of a weight, and that what is sampled is what is trained."""

import sys

import pytest
import torch
from test_lora import base, taught
from training import equal, rows_of, scored, weights

from minirl import four_bit, lora
from minirl.checkpoint import Checkpoints
from minirl.cli.command_line import check
from minirl.config import Config, ModelConfig

PACKED = {"lora": 4, "base_bits": 4}


def layer_of(weight: torch.Tensor) -> four_bit.PackedLinear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.__class__ = four_bit.PackedLinear
    del layer.weight
    layer.pack(weight)
    return layer


def test_a_block_by_hand():
    """Of 64 weights whose largest is 2: the ends, 0 and a code times 2 stay; 1.3 / 2 lies between the codes
    0.5626 and 0.7230, nearer to the latter."""
    weight = torch.zeros(2, 32)
    weight[0, :5] = torch.tensor([2.0, -2.0, 0.0, 2 * 0.7229568, 1.3])
    expected = weight.clone()
    expected[0, 4] = 2 * 0.7229568
    layer = layer_of(weight)
    torch.testing.assert_close(layer.weight, expected, rtol=0, atol=1e-6)
    assert layer.codes.numel() == 32 and layer.scales.tolist() == [2.0]


@pytest.mark.parametrize("shape", [(64, 32), (48, 32), (7, 100), (96, 256)])
def test_no_shape_is_unpacked_wrongly(shape):
    """Of normal weights less than a tenth of the deviation is lost, and 0.5625 bytes a weight are kept."""
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    layer = layer_of(weight)
    assert layer.weight.shape == shape
    assert (layer.weight - weight).abs().mean() < 0.09
    kept = layer.codes.nbytes + layer.scales.nbytes
    assert kept == pytest.approx(weight.numel() * 9 / 16, abs=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_streamed_is_what_is_trained(new_trainer, groups, dtype):
    """A plain model of the streamed weights gives the same log-probs to the bit. The control is the base as
    it was before: packing moves log-probs, of both sides alike."""
    trainer = taught(new_trainer(lr=1e-4, model=PACKED | {"dtype": dtype}), groups)
    plain = new_trainer(model={"dtype": dtype})
    rows = rows_of(groups)
    whole = torch.cat(scored(plain, rows))
    streamed = weights(trainer)
    assert streamed.keys() == weights(plain).keys()
    with torch.no_grad():
        for name, weight in plain.policy.model.named_parameters():
            (weight.to_local() if hasattr(weight, "to_local") else weight).copy_(streamed[name])
    expected = torch.cat(scored(plain, rows))
    assert torch.equal(torch.cat(scored(trainer, rows)), expected)
    assert (expected - whole).abs().mean() > 1e-3


def test_switched_off_it_is_the_packed_base_which_nothing_moves(new_trainer, groups):
    trainer = new_trainer(lr=1e-4, model=PACKED)
    rows = rows_of(groups)
    expected = scored(trainer, rows)
    before = base(trainer) | packed_of(trainer)
    taught(trainer, groups)
    with lora.switched_off(trainer.policy):
        assert all(map(torch.equal, scored(trainer, rows), expected))
    assert equal(base(trainer) | packed_of(trainer), before)


def packed_of(trainer) -> dict[str, torch.Tensor]:
    layers = four_bit.packed_layers(trainer.policy.model)
    assert len(layers) == 2 * 7
    return {name: layer.weight for name, layer in layers.items()}


def test_a_run_begins_on_a_clone_and_is_resumed(new_trainer, groups, tmp_path):
    """The clone's merged weights are packed anew; a resumed run has the same base and its adapters."""
    first = Checkpoints(new_trainer(lr=1e-4, model=PACKED), tmp_path)
    taught(first.trainer, groups)
    first.export("sft", {"step": 0})
    cloned = weights(first.trainer)

    running = Checkpoints(new_trainer(lr=1e-4, model=PACKED), tmp_path)
    running.start_from(tmp_path / "sft")
    for name, weight in packed_of(running.trainer).items():
        assert torch.equal(weight, layer_of(cloned[name]).weight)
    taught(running.trainer, groups)
    running.save("step_00001", {"step": 1})
    running.finish()

    resumed = Checkpoints(new_trainer(lr=1e-4, model=PACKED), tmp_path)
    resumed.start_from(tmp_path / "sft")
    assert resumed.resume()["step"] == 1
    assert equal(weights(resumed.trainer), weights(running.trainer))


def test_it_needs_adapters_and_the_package(new_trainer, monkeypatch):
    with pytest.raises(ValueError, match="add --model.lora 16"):
        check(Config(recipe="tiny", model=ModelConfig(base_bits=4)))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"pip install .*bits"):
        new_trainer(model=PACKED)
