"""LoRA: what full training's gradients say, sampled as it is trained, on a base that nothing moves."""

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_checkpoint import logits
from training import CPU, equal, learn, logprobs_of, make_trainer, rows_of, save_text_model, scored, weights
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from minirl import lora
from minirl.checkpoint import Checkpoints
from minirl.config import LossConfig
from minirl.distributed import full_tensor
from minirl.experiment import Experiment
from minirl.rows import Row, make_rows
from minirl.samplers.huggingface import HfSampler
from minirl.trainer import Trainer
from minirl.types import Prompt, Request, Sample, Sampling

HOT = Sampling(temperature=0.8)
NEAR = 1e-4  # nats, of two log-probs that are the same


def adapters(trainer: Trainer) -> dict[str, torch.Tensor]:
    named = lora.adapters_of(trainer.policy.model)
    return {name: full_tensor(weight.detach()).clone() for name, weight in named.items()}


def base(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All weights but the adapters, as they lie in memory."""
    model = trainer.policy.model
    names = dict(model.named_parameters()).keys() - lora.adapters_of(model).keys()
    return {name: full_tensor(model.get_parameter(name).detach()).clone() for name in names}


def gradients(trainer: Trainer, rows: list[Row]) -> dict[str, torch.Tensor]:
    """Of one update of imitation."""
    found: dict[str, torch.Tensor] = {}
    named = dict(trainer.policy.model.named_parameters())

    def note(*_: Any) -> None:
        found.update({name: weight.grad.clone() for name, weight in named.items() if weight.grad is not None})

    trainer.optimizer.register_step_pre_hook(note)
    trainer.sft_update(rows, lr=1e-3)
    return found


def taught(trainer: Trainer, groups, updates: int = 3) -> Trainer:
    """After so many updates, in which both factors have moved."""
    for step in range(updates):
        learn(trainer, groups, step)
    assert all(weight.any() for weight in adapters(trainer).values())
    return trainer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_switched_off_or_untrained_it_is_the_base_to_the_bit(new_trainer, groups, dtype):
    rows = rows_of(groups)
    plain = new_trainer(model={"dtype": dtype})
    trainer = new_trainer(lr=1e-4, model={"lora": 4, "dtype": dtype})
    expected = scored(plain, rows)
    assert all(map(torch.equal, scored(trainer, rows), expected))
    assert equal(weights(trainer), weights(plain))
    taught(trainer, groups)
    assert not any(map(torch.equal, scored(trainer, rows), expected))
    with lora.switched_off(trainer.policy):
        assert all(map(torch.equal, scored(trainer, rows), expected))
    assert not any(map(torch.equal, scored(trainer, rows), expected)), "it stays off"


def test_what_is_adapted_and_what_is_trained(new_trainer, groups):
    """Seven layers in each of two decoder layers; with the optimizer's moments nothing else moves."""
    trainer = new_trainer(model={"lora": 4})
    before = base(trainer)
    found = adapters(trainer)
    names = {name.rpartition(".")[0].rpartition(".")[2] for name in found}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(found) == 2 * 2 * 7 and all(".language_model.layers." in name for name in found)
    for name, weight in found.items():
        assert weight.dtype == torch.float32 and 4 in weight.shape
        assert weight.any() == name.endswith("lora_A")
        assert weight.abs().max() <= weight.shape[1] ** -0.5 or name.endswith("lora_B")
    assert len(trainer.optimizer.state) == len(found)
    taught(trainer, groups)
    trainer.sft_update(rows_of(groups), lr=1e-3)
    assert equal(base(trainer), before)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3


def expected_gradients(trainer: Trainer, plain: dict[str, torch.Tensor], scale: float) -> dict:
    """dA = s B^T dW and dB = s dW A^T, of the gradients of a model whose weights are W'."""
    expected = {}
    for name, weight in adapters(trainer).items():
        layer, _, factor = name.rpartition(".")
        gradient = plain[f"{layer}.weight"]
        if factor == "lora_B":
            expected[f"{layer}.lora_A"] = scale * weight.T @ gradient
        else:
            expected[f"{layer}.lora_B"] = scale * gradient @ weight.T
    return expected


@pytest.mark.parametrize(("rank", "bits"), [(1, 16), (16, 16), (16, 4)])
def test_gradients_are_those_of_the_merged_weights(new_trainer, groups, rank, bits):
    """Of a plain model, turn by turn, against prefix trees with gradient checkpointing and Liger's head. The
    controls: another scale, and an A that is frozen."""
    settings = {"lora": rank, "base_bits": bits, "gradient_checkpointing": True}
    unclipped = {"grad_clip": 1e9}
    trainer = taught(new_trainer(lr=1e-4, model=settings, sft=unclipped), groups)
    plain = new_trainer(layout="per-turn", sft=unclipped)
    plain.policy.model.load_state_dict(weights(trainer), strict=False)
    rows = rows_of(groups)
    theirs = gradients(plain, rows)
    expected = expected_gradients(trainer, theirs, 2.0)
    doubled = expected_gradients(trainer, theirs, 4.0)
    found = gradients(trainer, rows)
    size = max(gradient.abs().max() for gradient in expected.values()).item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * size)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(found, doubled, rtol=1e-4, atol=1e-6 * size)
    for name, weight in lora.adapters_of(trainer.policy.model).items():
        weight.requires_grad_(name.endswith("lora_B"))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients(trainer, rows), expected, rtol=1e-4, atol=1e-6 * size)


def opened(trainer: Trainer) -> contextlib.AbstractAsyncContextManager:
    """The sampler that a run would have."""
    parts: Any = (SimpleNamespace(),) * 3
    return Experiment(trainer.config, *parts, trainer.preprocessor, trainer.ranks, trainer).sampler()


async def sample(sampler: Any, prompts: list[Prompt]) -> list[Sample]:
    requests = [Request(prompt, seed, 12, HOT) for seed, prompt in enumerate(prompts)]
    return await asyncio.gather(*map(sampler.generate, requests))


def gap(trainer: Trainer, prompts: list[Prompt], samples: list[Sample]) -> float:
    """The largest difference between a sampler's log-probs and the trainer's."""
    policy, gaps = trainer.policy.eval(), []
    policy.temperature = HOT.temperature
    for prompt, said in zip(prompts, samples, strict=True):
        pictures = {str(n): png for n, png in enumerate(prompt.images)}
        row = Row(prompt.ids + said.ids, len(prompt.ids), tuple(pictures), said.logprobs, 1.0)
        logprobs_N = logprobs_of(policy, [row], trainer.preprocessor, pictures)
        gaps.append((logprobs_N - torch.tensor(said.logprobs)).abs().max().item())
    return max(gaps)


@pytest.mark.parametrize("rank", [16, pytest.param(1, marks=pytest.mark.more)])
async def test_what_is_sampled_is_what_is_trained(new_trainer, groups, prompts, rank, monkeypatch):
    """Before a sync they differ, after it they are equal. After 50 of them nothing has drifted; the control
    is a sampler on the trainer's own model, into which W' is written and then merged again."""
    trainer = new_trainer(lr=1e-3, model={"lora": rank})
    pristine = base(trainer)
    async with opened(trainer) as sampler:
        for step in range(3):
            assert gap(trainer, prompts, await sample(sampler, prompts)) < NEAR
            learn(trainer, groups, step)
            assert gap(trainer, prompts, await sample(sampler, prompts)) > 10 * NEAR
            sampler.sync(trainer.weights())
        once = await sample(sampler, prompts)
        assert gap(trainer, prompts, once) < NEAR
        for _ in range(50):
            sampler.sync(trainer.weights())
        often = await sample(sampler, prompts)
        assert [said.ids for said in often] == [said.ids for said in once]
        for one, other in zip(once, often, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6, rel=0)
        assert equal(base(trainer), pristine)
        monkeypatch.setattr(lora, "SCALE", 4.0)  # of what is streamed alone
        sampler.sync(list(trainer.weights()))
        monkeypatch.undo()
        assert gap(trainer, prompts, await sample(sampler, prompts)) > 10 * NEAR
    HfSampler(trainer.policy.model, trainer.preprocessor).sync(trainer.weights())
    assert not equal(base(trainer), pristine)


def test_in_bfloat16_the_streamed_weight_is_the_multiplied_one(new_trainer, groups):
    """To the bit: a plain model of these weights gives the same log-probs, though W + s B A is rounded. The
    control multiplies as PEFT does."""
    trainer = taught(new_trainer(lr=1e-4, model={"lora": 16, "dtype": "bfloat16"}), groups)
    plain = new_trainer(model={"dtype": "bfloat16"})
    rows = rows_of(groups)
    assert all(weight.dtype == torch.bfloat16 for weight in base(trainer).values())
    assert all(weight.dtype == torch.float32 for weight in adapters(trainer).values())
    streamed = weights(trainer)
    with torch.no_grad():
        for name, weight in plain.policy.model.named_parameters():
            assert streamed[name].dtype == torch.bfloat16
            weight.to_local().copy_(streamed[name])
    expected = torch.cat(scored(plain, rows))
    assert torch.equal(torch.cat(scored(trainer, rows)), expected)

    def unmerged(self: lora.LoraLinear, x: torch.Tensor) -> torch.Tensor:
        added = lora.SCALE * x.float() @ self.lora_A.T @ self.lora_B.T
        return (x @ self.weight.T + added).to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lora.LoraLinear, "forward", unmerged)
        assert (torch.cat(scored(trainer, rows)) - expected).abs().mean() > 1e-3


def test_without_adapters_it_is_its_own_reference(new_trainer, groups):
    """No second model; the divergence of a first update is 0, of a second it is not."""
    loss = LossConfig(kl=0.1)
    trainer = new_trainer(lr=1e-3, loss=loss, model={"lora": 4})
    trainer.keep_reference()
    assert trainer.reference is trainer.policy
    first, second = learn(trainer, groups, 0), learn(trainer, groups, 1)
    assert first["kl"] == pytest.approx(0, abs=1e-7) and second["kl"] > 1e-4
    full = new_trainer(lr=1e-3, loss=loss)
    full.keep_reference()
    assert learn(full, groups, 0)["loss"] == pytest.approx(first["loss"], abs=1e-6)


def test_the_rates_are_ten_times_those_of_full_training(new_trainer, groups):
    trainer = new_trainer(lr=1e-4, model={"lora": 4}, sft={"max_steps": 1, "lr": 3e-5, "held_back": 0.0})
    assert learn(trainer, groups)["lr"] == pytest.approx(1e-3)
    list(trainer.clone(make_rows(groups, LossConfig()), seed=0))
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4)


def test_cloning_ends_with_the_best_adapters(new_trainer, groups):
    """Those that are held back decide, and the base is copied nowhere."""
    sft = {"batch": 4, "epochs": 9, "max_steps": 4, "lr": 1e-3, "held_back": 0.34}
    trainer = new_trainer(model={"lora": 4}, sft=sft)
    before = base(trainer)
    found = list(trainer.clone(make_rows(groups, LossConfig()), seed=7))
    assert found[-1]["validation"] < 10 and equal(base(trainer), before)


def test_a_resumed_run_goes_on_as_if_never_interrupted(new_trainer, groups, tmp_path):
    """From a clone, on which adapters begin anew; the shards hold adapters and their moments alone."""
    make = lambda: Checkpoints(new_trainer(model={"lora": 4}), tmp_path)  # noqa: E731
    first = make()
    learn(first.trainer, groups, 0)
    first.export("sft", {"step": 0})
    cloned = weights(first.trainer)

    running = make()
    running.start_from(tmp_path / "sft")
    assert equal(base(running.trainer), cloned) and equal(weights(running.trainer), cloned)
    assert equal(adapters(running.trainer), adapters(make().trainer))
    learn(running.trainer, groups, 0)
    running.save("step_00001", {"step": 1})
    learn(running.trainer, groups, 1)
    running.finish()
    shard = {}
    for file in (tmp_path / "step_00001/shards").glob("*.safetensors"):
        shard |= load_file(file)
    assert {name.rpartition(".")[2] for name in shard} == {"lora_A", "lora_B"} and len(shard) == 4 * 28

    resumed = make()
    resumed.trainer.sft_update(rows_of(groups), lr=1e-2)  # whatever it was before
    resumed.start_from(tmp_path / "sft")
    resumed.trainer.reset_optimizer()
    assert resumed.resume() == {"step": 1}
    learn(resumed.trainer, groups, 1)
    assert equal(weights(resumed.trainer), weights(running.trainer))
    assert equal(adapters(resumed.trainer), adapters(running.trainer))
    settings = json.loads((tmp_path / "step_00001/adapter/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "sft")
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)


@pytest.fixture(params=["visual", "text"])
def adapted(request, tiny_folder, preprocessor, ranks, groups, tmp_path) -> tuple[Trainer, Path]:
    """A trained policy with pictures, and one without, and their checkpoints."""
    folder, model_groups = tiny_folder, groups
    if request.param == "text":
        folder = save_text_model(tmp_path / "text", preprocessor, "Qwen2")
        turns = lambda t: tuple(replace(turn, images=(), suffix=(43,)) for turn in t.turns)  # noqa: E731
        model_groups = [tuple(replace(t, turns=turns(t)) for t in group) for group in groups]
    trainer = make_trainer(folder, ranks, lr=1e-3, model={"lora": 4})
    taught(trainer, model_groups)
    Checkpoints(trainer, tmp_path).export("best", {"step": 3})
    return trainer, tmp_path / "best"


def logits_of(model: Any, trainer: Trainer) -> torch.Tensor:
    if trainer.preprocessor.images:
        return logits(model, trainer.preprocessor)
    with torch.no_grad():
        return model(input_ids=torch.arange(10, 60)[None]).logits


def load(path: str, trainer: Trainer) -> Any:
    auto = AutoModelForImageTextToText if trainer.preprocessor.images else AutoModelForCausalLM
    return auto.from_pretrained(path, dtype=torch.float32).to(CPU).eval()


def test_plain_transformers_reads_the_merged_weights_and_peft_the_adapters(adapted):
    """Also where PEFT is installed, with which transformers adds adapters that lie beside weights. Base and
    adapters are our logits, too; the control is another alpha."""
    trainer, folder = adapted
    ours = logits_of(trainer.policy.model.eval(), trainer)
    torch.testing.assert_close(logits_of(load(str(folder), trainer), trainer), ours, atol=1e-5, rtol=0)
    before = logits_of(load(trainer.config.model.path, trainer), trainer)
    assert (before - ours).abs().max() > 1e-2

    peft = pytest.importorskip("peft")
    settings = folder / "adapter/adapter_config.json"
    path = json.loads(settings.read_text())["base_model_name_or_path"]
    theirs = peft.PeftModel.from_pretrained(load(path, trainer), folder / "adapter").eval()
    loaded = {name for name, _ in theirs.named_parameters() if ".lora_" in name}
    assert len(loaded) == len(adapters(trainer))
    torch.testing.assert_close(logits_of(theirs, trainer), ours, atol=1e-5, rtol=0)
    settings.write_text(settings.read_text().replace('"lora_alpha": 8.0', '"lora_alpha": 16.0'))
    doubled = peft.PeftModel.from_pretrained(load(path, trainer), folder / "adapter").eval()
    assert (logits_of(doubled, trainer) - ours).abs().max() > 1e-2
