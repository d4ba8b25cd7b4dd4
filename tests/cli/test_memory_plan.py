"""The memory plan: numbers counted by hand, numbers measured in autograd, and remedies that help."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from minirl import prefix_tree
from minirl.cli.command_line import read_flags
from minirl.cli.memory_plan import (
    GB,
    MODELS,
    activations,
    layer_bytes,
    meta_model,
    plan,
    row_patches,
    show,
    size,
)
from minirl.config import AgentConfig, BatchConfig, BrowserConfig, Config, JudgeConfig, ModelConfig
from minirl.judges.settings import RECIPES as JUDGES
from minirl.recipes import RECIPES, openwebrl_4b, tiny
from minirl.tree_attention import Chain

HIDDEN, INNER, LAYERS, QUERIES, KEYS, WORDS = 64, 224, 4, 64, 16, 512
# without weights; 4 layers: width 64, 8 heads of 8, 2 of them for keys, 512 words, tied
LLAMA = str(Path(__file__).parents[1] / "data/llama")
QWEN_4B = str(MODELS / "Qwen3-VL-4B-Thinking")


def changed(config: Config, values: dict[str, Any]) -> Config:
    for name, value in values.items():
        part, field = name.split(".")
        config = replace(config, **{part: replace(vars(config)[part], **{field: value})})
    return config


def small(gpus: int = 2, gpu_gb: int = 8, **values) -> Config:
    config = Config(
        recipe="llama",
        plan=f"{gpus}x{gpu_gb}",
        model=ModelConfig(path=LLAMA),
        agent=AgentConfig(kind="text", context_tokens=1024, response_tokens=64),
        browser=BrowserConfig(episodes=64),
        batch=BatchConfig(micro_tokens=2048),
    )
    return changed(config, values)


def big(gpus: int, gpu_gb: int = 80, **values) -> Config:
    model, browser = ModelConfig(path=QWEN_4B), BrowserConfig(episodes=16)
    return changed(Config(recipe="4b", plan=f"{gpus}x{gpu_gb}", model=model, browser=browser), values)


def test_items_by_hand():
    layer = HIDDEN * (2 * QUERIES + 2 * KEYS + 3 * INNER + 2)
    root = WORDS * HIDDEN + HIDDEN
    parameters = LAYERS * layer + root
    out = plan(small())
    assert out.shards["weights"] == out.update["gradients"] == 4 * parameters // 2
    assert out.shards["AdamW moments"] == 8 * parameters // 2
    assert out.update["gathered weights"] == 2 * (root + 2 * layer)
    assert out.update["gathered gradients"] == 2 * root + 6 * layer
    assert "reference" not in out.shards
    assert out.sampler["sampler weights"] == 2 * parameters and out.cpu == 0
    context = 2 * LAYERS * KEYS * 2 * 1024
    assert out.sampler["KV cache, at least"] == 2 * context  # one for 16 of this GPU's 32 episodes
    per_layer = 2 * (4 * HIDDEN + 2 * QUERIES + 2 * KEYS + 4 * INNER) + 4 * 2 * HIDDEN
    assert out.update["activations"] == 2048 * (LAYERS * per_layer + 8 * HIDDEN)
    phases = sum(out.sampler.values()), sum(out.update.values())
    assert out.total == sum(out.shards.values()) + max(phases)


def test_a_reference_and_a_local_judge_stay_on_the_gpu():
    config = small()
    alone, both = plan(config), plan(replace(config, judge=JudgeConfig(path=LLAMA)))
    weights = both.sampler["sampler weights"]  # the same model
    cache = 4 * 8192 * 2 * 2 * LAYERS * KEYS  # four questions of 8,192 tokens
    assert sum(both.shards.values()) - sum(alone.shards.values()) == weights + cache
    assert (both.sampler, both.update, both.cpu) == (alone.sampler, alone.update, alone.cpu)
    out = plan(small(**{"loss.kl": 0.01}))
    assert out.shards["reference"] == out.shards["weights"]


def test_twice_the_gpus_halve_what_is_sharded():
    config = big(4, **{"loss.kl": 0.01})
    one, two = plan(config), plan(replace(config, plan="8x80"))
    for item in ("weights", "AdamW moments"):
        assert one.shards[item] == pytest.approx(2 * two.shards[item], abs=2)
    gradients = two.update["gradients"]
    assert one.update == two.update | {"gradients": 2 * gradients} and one.sampler == two.sampler
    copies = plan(changed(replace(config, plan="8x80"), {"optim.replicas": 2}))
    assert (copies.shards, copies.update, copies.sampler) == (one.shards, one.update, one.sampler)
    with pytest.raises(ValueError, match="--optim.replicas does not divide the GPUs of --plan, 8"):
        plan(changed(replace(config, plan="8x80"), {"optim.replicas": 3}))


def test_a_model_of_4b():
    model, tower = meta_model(QWEN_4B)
    layers = model.get_decoder().layers[0], tower.blocks[0]
    assert [layer_bytes(layer, 2)[1] for layer in layers] == [169984, 2 * (11 * 1024 + 8192)]
    config = big(8)  # 1280 x 1000 pixels: 1250 tokens of 2 x 2 patches, and 256 of a response
    assert plan(config).sampler["KV cache, at least"] == 147456 * 32768
    assert row_patches(config, tower.config) == 32768 // (1250 + 256) * 1250 * 4
    assert plan(config).total > 80 * GB  # 201 GB of decoder layers in a row
    assert plan(changed(config, {"model.gradient_checkpointing": True})).total < 80 * GB


@pytest.mark.parametrize(("gpus", "gpu_gb"), [(8, 80), (1, 141)])
def test_the_defaults_fit_the_recipe_of_4b(gpus, gpu_gb):
    """vLLM's share among them: enough for the sampler, and the rest for what the trainer keeps meanwhile."""
    recipe = openwebrl_4b()
    model = replace(recipe.model, path=QWEN_4B)
    fits = plan(replace(recipe, model=model, plan=f"{gpus}x{gpu_gb}"))
    least, kept = (sum(part.values()) / GB / gpu_gb for part in (fits.sampler, fits.shards))
    assert fits.total < gpu_gb * GB and least < recipe.sampler.gpu_memory < 0.9 - kept, "a tenth is spare"


def test_frozen_vision_and_offload():
    whole, (model, tower) = plan(big(1)), meta_model(QWEN_4B)
    frozen = plan(big(1, **{"model.freeze_vision": "always"}))
    saved = whole.shards["AdamW moments"] - frozen.shards["AdamW moments"]
    assert saved == 8 * size(tower)
    assert whole.shards["weights"] == frozen.shards["weights"]
    assert whole.update["activations"] > frozen.update["activations"]
    lower = plan(big(1, **{"model.freeze": 2}))
    still = [model.get_input_embeddings(), *model.get_decoder().layers[:2]]
    assert lower.update["gradients"] == whole.update["gradients"] - 4 * sum(map(size, still))
    away = plan(big(1, **{"optim.offload": True}))
    assert not {"weights", "AdamW moments"} & set(away.shards) and away.update["gradients"] == 0
    assert away.cpu - whole.cpu == 16 * size(model)


def test_adapters_by_hand():
    """Rank 4 of seven layers in each of four: 2 x 4 x (width + other width). The base stays in bfloat16."""
    pairs = [(HIDDEN, QUERIES)] * 2 + [(HIDDEN, KEYS)] * 2 + [(HIDDEN, INNER)] * 3
    trained = 4 * LAYERS * sum(map(sum, pairs))
    whole, adapted = plan(small(1)), plan(small(1, **{"model.lora": 4, "loss.kl": 0.01}))
    assert adapted.shards["frozen weights"] == whole.shards["weights"] / 2
    assert adapted.shards["adapters"] == adapted.update["gradients"] == 4 * trained
    assert adapted.shards["AdamW moments"] == 8 * trained
    assert "reference" not in adapted.shards and "weights" not in adapted.shards
    assert adapted.sampler == whole.sampler
    assert adapted.update["activations"] == whole.update["activations"]
    merging = 6 * HIDDEN * INNER + 4 * 2048 * (HIDDEN + INNER)  # W' in both types, inputs and gradients
    head = 4 * HIDDEN * WORDS
    heads = [out.update["one layer or the head"] for out in (whole, adapted)]
    assert heads[1] - heads[0] == merging - head
    away = plan(small(1, **{"model.lora": 4, "optim.offload": True}))
    assert away.cpu == whole.shards["weights"] / 2 + 16 * trained
    linear = LAYERS * sum(a * b for a, b in pairs)
    packed = plan(small(1, **{"model.lora": 4, "model.base_bits": 4}))
    assert packed.shards["packed weights"] == linear * 9 / 16  # half a byte, and a scale of 4 for every 64
    assert adapted.shards["frozen weights"] - packed.shards["frozen weights"] == 2 * linear


def test_the_page_for_one_gpu_says_what_is_planned():
    """Its commands for reinforcement, each on its GPU; the table's numbers are theirs."""
    page = (Path(__file__).parents[2] / "docs/one_gpu.md").read_text()
    lines = page.replace("\\\n", " ").splitlines()
    lines = [line for line in lines if line.startswith("python train.py")]
    rows = [line for line in page.splitlines() if line.startswith("|")]  # the table of ranks is indented
    table = [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in rows]
    assert len(lines) == 6 == len(table[0]) - 1
    for column, line in enumerate(lines, start=1):
        title, *cells = [row[column] for row in table if "---" not in row[1]]
        gpu_gb = int(title.split()[1])
        recipe, *flags = shlex.split(line.replace("$T", ""))[2:]
        config = read_flags(RECIPES[recipe.replace("-", "_")](), flags, "train.py", "")
        model = replace(config.model, path=str(MODELS / config.model.path.partition("/")[2]))
        out = plan(replace(config, model=model, plan=f"1x{gpu_gb}"))
        shards, update = out.shards, out.update
        adapters = shards.get("adapters", 0) + shards.get("AdamW moments", 0)
        gathered = update["gathered weights"] + update["gathered gradients"]
        base = sum(shards.values())
        expected = [shards.get("frozen weights", 0), adapters, shards.get("packed weights", 0)]
        expected += [shards["CUDA, NCCL (assumed)"], *out.sampler.values(), base + sum(out.sampler.values())]
        expected += [update["gradients"], gathered, update["activations"], update["one layer or the head"]]
        expected += [base + sum(update.values()), out.cpu]
        assert [float(cell) for cell in cells] == pytest.approx([n / GB for n in expected], abs=0.06), title
        assert out.total < gpu_gb * GB
        least, most = sum(out.sampler.values()) / GB / gpu_gb, 1 - base / GB / gpu_gb
        assert least < config.sampler.gpu_memory < most


def test_each_remedy_makes_the_plan_smaller(capsys):
    """One after the other, in the order in which they are told, on eight GPUs and long rows."""
    config = big(8, 8, **{"batch.micro_tokens": 65536, "optim.replicas": 2})
    config = changed(config, {"browser.episodes": 512, "agent.context_tokens": 32768})
    steps = [
        ("--batch.micro-tokens", {"batch.micro_tokens": 32768}),
        ("--optim.replicas 1", {"optim.replicas": 1}),
        ("--model.gradient-checkpointing", {"model.gradient_checkpointing": True}),
        ("--browser.episodes", {"browser.episodes": 64}),
        ("--model.freeze-vision always", {"model.freeze_vision": "always"}),
        ("--optim.offload", {"optim.offload": True}),
        ("half the", {"agent.context_tokens": 16384, "batch.micro_tokens": 16384}),
    ]
    show(plan(config))
    said = " ".join(capsys.readouterr().out.split())
    assert "GB too much" in said
    places = [said.index(words) for words, _ in steps]
    assert places == sorted(places)
    for _, values in steps:
        both = plan(config), plan(config := changed(config, values))
        totals = [sum((p.shards | p.sampler | p.update).values()) for p in both]
        assert totals[1] < totals[0], values


def test_show_names_every_item_the_share_and_the_room(capsys):
    shown = plan(small(1, 24))
    show(shown)
    said = capsys.readouterr().out
    for item in (shown.shards | shown.sampler | shown.update).keys() | {"it fits, with", "total"}:
        assert item in said
    least, most = sum(shown.sampler.values()) / 24e9, 1 - sum(shown.shards.values()) / 24e9
    assert f"must lie between {least:.2f} and {most:.2f}" in said


@pytest.mark.parametrize(("share", "fits"), [(0.5, False), (0.7, True), (0.95, False)])
def test_what_vllm_gets_must_fit_too(share, fits, capsys):
    """4B on one GPU of 24 GB by offload: the default share of 0.5 holds neither weights nor cache."""
    tight = {"optim.offload": True, "model.freeze_vision": "always", "model.gradient_checkpointing": True}
    config = changed(big(1, 24, **tight), {"agent.context_tokens": 16384, "batch.micro_tokens": 16384})
    config = changed(config, {"browser.episodes": 16, "sampler.gpu_memory": share})
    show(plan(config))
    said = capsys.readouterr().out
    assert ("it fits, with" in said) is fits
    assert (f"it does not fit: --sampler.gpu-memory is {share}" in said) is not fits


BILLIONS = {"Qwen3-VL-4B": 4.44, "Qwen3-VL-8B": 8.77, "Qwen2.5-3B": 3.09, "Llama-3.1-8B": 8.03}
BILLIONS |= {"Qwen2.5-VL-3B": 3.75, "Qwen2.5-VL-7B": 8.29, "Qwen3.5": 4.54}


@pytest.mark.parametrize("recipe", [*list(RECIPES)[3:], "judge_4b", "judge_8b"])
def test_the_models_of_the_papers_are_planned_without_a_network(recipe):
    path = (RECIPES | JUDGES)[recipe]().model.path
    model, _ = meta_model(path)
    expected = BILLIONS[path.partition("/")[2].rpartition("-")[0]]  # as their makers count
    assert size(model) / 1e9 == pytest.approx(expected, abs=0.006)


def test_the_states_of_a_hybrid_by_hand():
    """24 of Qwen3.5-4B's 32 layers have, instead of keys and values, 32 heads' states of 128 x 128 numbers
    in float32, and four inputs of a convolution of 8,192 channels. The others' have 4 heads of 256."""
    config = big(1, **{"model.path": "Qwen/Qwen3.5-4B", "agent.context_tokens": 32768})
    states = 24 * (4 * 32 * 128 * 128 + 2 * 4 * 8192)
    assert plan(config).sampler["KV cache, at least"] == 8 * 2 * 2 * 4 * 256 * 32768 + states
    layers = meta_model("Qwen/Qwen3.5-4B")[0].get_decoder().layers
    width, saved, passing = layer_bytes(layers[0], 2)
    norms, mlp, delta = 4 * 2560, 4 * 9216, 3 * 8192 + 5 * 4096
    assert (width, saved) == (2560, 2 * (norms + mlp + delta) + 4 * (2 * 2560 + 3 * 4096))
    assert passing == 2 * (3 * 9216 + 2 * 2560 + 2 * 32 * 128 * 128 // 64)
    assert layer_bytes(layers[3], 2)[2] == 2 * (3 * 9216 + 2 * 2560), "full attention has no state"


def test_mistakes_name_the_flag():
    with pytest.raises(ValueError, match="^nowhere can't be loaded"):
        plan(small(8, 80, **{"model.path": "nowhere"}))
    with pytest.raises(ValueError, match="--plan: a tiny model fits anywhere"):  # no hub is asked for it
        plan(small(8, 80, **{"model.path": "tiny"}))
    for machine in ("8", "0x80", "eight", "8x"):
        with pytest.raises(ValueError, match=f"--plan {machine}: write 8x80"):
            plan(replace(tiny(), plan=machine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_activations_are_what_autograd_keeps(dtype, checkpointing, tree):
    """Bytes of all tensors that the forward pass saves, weights apart, each storage once."""
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(LLAMA)).to(dtype).train()
    tokens, inputs = 256, {}
    if tree:
        prefix_tree.enable(model)
        inputs = {"tree": (Chain(0, tokens),), "position_ids": torch.arange(tokens)[None]}
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
    values = {"batch.micro_tokens": tokens, "model.gradient_checkpointing": checkpointing}
    expected, _ = activations(small(**values), dtype.itemsize)
    assert measured == pytest.approx(expected, rel=0.3 if checkpointing else 0.1)
