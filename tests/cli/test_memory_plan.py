"""The memory plan: numbers counted by hand, numbers measured in autograd, and advice that holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from minirl import tree_attention
from minirl.cli.memory_plan import (
    CACHE,
    GB,
    SAMPLED,
    VLLM,
    activations,
    advice,
    changed,
    plan,
    row_patches,
    shapes_of,
    show,
)
from minirl.config import AgentConfig, BatchConfig, BrowserConfig, Config, JudgeConfig, ModelConfig
from minirl.tree_attention import Chain, Tree

HIDDEN, INNER, LAYERS, QUERIES, KEYS, WORDS = 64, 224, 4, 64, 16, 512


DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def llama() -> Path:
    """A Llama of 4 layers: width 64, 8 heads of 8, 2 of them for keys, 512 words, tied; a config alone."""
    return DATA / "llama"


@pytest.fixture
def qwen_4b() -> Path:
    """Qwen3-VL-4B's config, without weights."""
    return DATA / "qwen3_vl_4b"


def small(path: Path, **values) -> Config:
    config = Config(
        recipe="llama",
        model=ModelConfig(path=str(path)),
        agent=AgentConfig(kind="text", context_tokens=1024, response_tokens=64),
        browser=BrowserConfig(episodes=32),
        batch=BatchConfig(micro_tokens=2048),
    )
    return changed(config, values)


def big(path: Path, **values) -> Config:
    config = Config(recipe="4b", model=ModelConfig(path=str(path)), browser=BrowserConfig(episodes=16))
    return changed(config, values)


def test_items_by_hand(llama):
    layer = HIDDEN * (2 * QUERIES + 2 * KEYS + 3 * INNER + 2)
    root = WORDS * HIDDEN + HIDDEN
    parameters = LAYERS * layer + root
    out = plan(small(llama), gpus=2, gpu_gb=8)
    assert out.update["weights"] == out.update["gradients"] == 4 * parameters // 2
    assert out.update["AdamW moments"] == 8 * parameters // 2
    assert out.update["gathered weights"] == 2 * (root + 2 * layer)
    assert out.update["gathered gradients"] == 2 * root + 6 * layer
    assert out.update["reference"] == 0
    assert out.rollout["sampler weights"] == 2 * parameters and out.cpu == 0
    assert out.context == 2 * LAYERS * KEYS * 2 * 1024
    assert out.rollout[CACHE] == 2 * out.context  # one for 16 episodes
    assert "sampler weights" not in out.update and "activations" not in out.rollout
    per_layer = 2 * (4 * HIDDEN + 2 * QUERIES + 2 * KEYS + 4 * INNER) + 4 * 2 * HIDDEN
    assert out.update["activations"] == 2048 * (LAYERS * per_layer + 8 * HIDDEN)
    assert out.total == max(sum(out.rollout.values()), sum(out.update.values()))
    assert out.fits


def test_contexts_fill_the_samplers_share(llama):
    out = plan(small(llama, **{"sampler.gpu_memory": 0.7}), gpus=1, gpu_gb=8)
    assert out.rollout[SAMPLED] + out.rollout[VLLM] + out.contexts * out.context == pytest.approx(0.7 * 8e9)
    least, most = out.shares
    sampler = out.rollout[SAMPLED] + out.rollout[VLLM] + out.rollout[CACHE]
    assert least == pytest.approx(sampler / 8e9) and least < 0.7 < most < 1
    assert most == pytest.approx(1 - (sum(out.rollout.values()) - sampler) / 8e9)


def test_a_reference_costs_shards(llama):
    out = plan(small(llama, **{"loss.kl": 0.01}), gpus=2, gpu_gb=8)
    assert out.update["reference"] == out.update["weights"]


def test_a_judge_of_our_own_stays_on_the_gpu(llama):
    config = small(llama)
    alone = plan(config, gpus=2, gpu_gb=8)
    both = plan(replace(config, judge=JudgeConfig(path=str(llama))), gpus=2, gpu_gb=8)
    weights = both.rollout[SAMPLED]  # the same model
    assert sum(both.rollout.values()) - sum(alone.rollout.values()) == weights
    assert sum(both.update.values()) - sum(alone.update.values()) == weights and both.cpu == alone.cpu
    assert alone.shares[1] - both.shares[1] == pytest.approx(weights / (8 * GB))


def test_twice_the_gpus_halve_what_is_sharded(qwen_4b):
    config = big(qwen_4b, **{"loss.kl": 0.01})
    one, two = plan(config, 4, 80), plan(config, 8, 80)
    for item in ("weights", "gradients", "AdamW moments"):
        assert one.update[item] == pytest.approx(2 * two.update[item], abs=2)
    for item in ("gathered weights", "activations", "one layer or the head"):
        assert one.update[item] == two.update[item]
    copies = plan(changed(config, {"optim.replicas": 2}), 8, 80)
    assert copies.update == one.update and copies.rollout == one.rollout


def test_a_model_of_4b(qwen_4b):
    shapes = shapes_of(str(qwen_4b))
    assert 4.2e9 < shapes.parameters < 4.6e9
    saved = [2 * block.kept + 4 * block.wide for block in (shapes.text, shapes.vision)]
    assert saved == [169984, 38912]  # the docstring's examples
    assert 2 * shapes.cache == 147456
    config = big(qwen_4b)  # 1280 x 1000 pixels: 1250 tokens of 2 x 2 patches, and 256 of a response
    assert row_patches(config, shapes) == 32768 // (1250 + 256) * 1250 * 4
    assert not plan(config, 8, 80).fits  # 201 GB of decoder layers in a row
    assert plan(changed(config, {"model.gradient_checkpointing": True}), 8, 80).fits


def test_frozen_vision_and_offload(qwen_4b):
    shapes, whole = shapes_of(str(qwen_4b)), plan(big(qwen_4b), 1, 80)
    frozen = plan(big(qwen_4b, **{"model.freeze_vision": True}), 1, 80)
    assert whole.update["AdamW moments"] - frozen.update["AdamW moments"] == 8 * shapes.visual
    assert whole.update["weights"] == frozen.update["weights"]
    assert whole.update["activations"] > frozen.update["activations"]
    away = plan(big(qwen_4b, **{"optim.offload": True}), 1, 80)
    assert away.update["weights"] == away.update["gradients"] == away.update["AdamW moments"] == 0
    assert away.cpu - whole.cpu == 16 * shapes.parameters


@pytest.mark.parametrize(("gpus", "gpu_gb"), [(1, 24), (8, 80), (2, 48)])
def test_advice_holds(qwen_4b, gpus, gpu_gb):
    """Its flags make the plan that it shows, which fits, and needs the last of them."""
    config = big(qwen_4b)
    flags, after = advice(plan(config, gpus, gpu_gb))[0]
    given = dict(flag.split(" ") if " " in flag else (flag, True) for flag in flags[2:].split(" --"))
    values = {name.replace("-", "_"): value if value is True else int(value) for name, value in given.items()}
    again = plan(changed(config, values), gpus, gpu_gb)
    assert again == after and again.fits
    values.popitem()
    if values.get("batch.micro_tokens", 0) <= values.get("agent.context_tokens", 32768):
        assert not plan(changed(config, values), gpus, gpu_gb).fits


def test_advice_is_in_its_order_and_ends_where_it_fits(qwen_4b):
    tight = plan(big(qwen_4b), 8, 80)
    assert [flags for flags, _ in advice(tight)] == ["--model.gradient-checkpointing"]
    fits = plan(big(qwen_4b, **{"model.gradient_checkpointing": True}), 8, 80)
    assert advice(fits) == []
    (first, _), *_ = advice(plan(big(qwen_4b, **{"batch.micro_tokens": 65536}), 8, 80))
    assert first == "--batch.micro-tokens 32768 --model.gradient-checkpointing"


def test_more_gpus_are_another_way(qwen_4b):
    tight = plan(big(qwen_4b, **{"model.gradient_checkpointing": True}), 1, 60)
    (_, first), (flags, more) = advice(tight)
    assert not tight.fits and first.fits and more.fits and flags == f"--gpus {more.gpus}" and more.gpus > 1


def test_where_nothing_fits(qwen_4b, capsys):
    tight = plan(big(qwen_4b), 1, 8)
    ((flags, after),) = advice(tight)
    assert not after.fits and after.total < tight.total and "--optim.offload" in flags
    show(tight)
    assert f"nothing fits; {after.total / 1e9 - 8:.1f} GB are missing" in capsys.readouterr().out


def test_show_fits_on_a_screen(llama, capsys):
    show(plan(small(llama), 1, 24))
    said = capsys.readouterr().out
    assert "sampler weights" in said and "reference" not in said
    assert "it fits, with" in said


def test_the_tiny_recipe_has_a_plan():
    assert plan(Config(recipe="tiny"), 1, 80).update["weights"] > 4 * 900_000


@pytest.mark.parametrize(
    ("values", "gpus", "gpu_gb", "words"),
    [
        ({}, 0, 80, "--gpus"),
        ({}, 1, 0, "--gpu-gb"),
        ({}, 1, float("nan"), "--gpu-gb"),
        ({"optim.replicas": 3}, 8, 80, "--optim.replicas 3"),
        ({"model.freeze_vision": True}, 8, 80, "--model.freeze-vision"),
        ({"model.path": "/nowhere"}, 8, 80, "--model.path"),
    ],
)
def test_mistakes_name_the_flag(llama, values, gpus, gpu_gb, words):
    with pytest.raises(ValueError, match=words):
        plan(small(llama, **values), gpus, gpu_gb)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_activations_are_what_autograd_keeps(llama, dtype, checkpointing, tree):
    """Bytes of all tensors that the forward pass saves, weights apart, each storage once."""
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(llama)).to(dtype).train()
    tokens, inputs = 256, {}
    if tree:
        tree_attention.enable(model, "segment")
        inputs = {"tree": Tree((Chain(0, tokens),)), "position_ids": torch.arange(tokens)[None]}
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False, **inputs)
    measured = sum(storage.nbytes() for storage in kept.values())
    expected, _ = activations(shapes_of(str(llama)), tokens, 0, dtype.itemsize, checkpointing, False)
    assert measured == pytest.approx(expected, rel=0.3 if checkpointing else 0.1)
