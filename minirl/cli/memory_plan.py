"""Plan a run's memory: the bytes on each GPU, whether they fit, and if not, flags that make them fit.

Stands behind `python train.py RECIPE --plan --gpus 8 --gpu-gb 80`. The model is made on torch's meta device.
With P parameters sharded by FSDP2 over S = gpus / replicas, and e bytes in the compute dtype: weights and
gradients are 4 P / S each, AdamW's moments 8 P / S, a reference (with a KL term) 4 P / S. Gathered are the
root and two layers, one of them prefetched, and their gradients, a layer's in float32 too. Activations are
those of a row of --batch.micro-tokens tokens. vLLM has e P and a KV cache, a judge of our own e P.

For the update vLLM drops its weights and cache (sleep level 2). With --optim.offload shards are on the CPU.
The least cache is a context for EPISODES_PER_CONTEXT episodes, as most wait for their browser. Fragmentation
is not counted: a GB is 1e9 bytes, and 80 GB cards have 85e9.
"""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from minirl.config import Config
from minirl.console import CONSOLE, new_table, say
from minirl.model import blueprint
from minirl.tiny import checkpoints as tiny

GB = 10**9
EPISODES_PER_CONTEXT = 16
CUDA_BYTES = 2 * GB  # assumed: CUDA's context, NCCL's buffers, cuBLAS's workspace
VLLM_BYTES = 3 * GB  # assumed: CUDA graphs, a prefill's activations, images being encoded
LIGER_BYTES = 4 * 4 * 2048 * 4096  # its backward pass: four float32 blocks of 2048 tokens x 4096 words
ENTROPY_BYTES = 5 * 4 * 256  # a word's, in loss.token_entropies: five float32 blocks of 256 tokens
SAMPLED, CACHE, VLLM = "sampler weights", "KV cache, at least", "vLLM's own (assumed)"


@dataclass(frozen=True)
class Block:
    """The numbers per token or patch that autograd keeps of one decoder layer or vision block.

    A decoder layer of width h, query and key widths q and k and MLP width i keeps in the compute dtype: two
    norms' normalised inputs and outputs, 4h; query, key, value and attention's output, 2q + 2k; gate, its
    SiLU, up and their product, 4i; norms of queries and keys add q + k. In float32: these norms' inputs.
    Qwen3-VL-4B (h 2560, q 4096, k 1024, i 9728): 2 * (10240 + 10240 + 38912 + 5120) + 4 * (5120 + 5120) =
    169984 bytes; 32768 tokens in 36 layers are 201 GB, the layers' inputs alone 6 GB.

    A vision block: LayerNorms, 4h, without float32; the fused qkv, rotated queries and keys, attention's
    output per image and joined, 7h; an MLP without a gate, 2i. Qwen3-VL-4B: 2 * (11 * 1024 + 8192) = 38912.
    """

    count: int
    width: int
    kept: int  # numbers in the compute dtype
    wide: int  # numbers in float32
    inner: int  # the MLP's width


@dataclass(frozen=True)
class Shapes:
    """A model in numbers; without a vision tower the last six have no meaning."""

    parameters: int  # tied ones once
    root: int  # of them outside the layers and blocks that FSDP gathers one at a time
    unit: int  # of them in the largest of these
    vocabulary: int
    cache: int  # numbers in the KV cache per token
    text: Block
    vision: Block = Block(0, 0, 0, 0, 0)
    visual: int = 0  # parameters
    patch: int = 1  # pixels on a patch's side
    merge: int = 1  # patches on the side of a token
    pixels: int = 0  # numbers in a patch
    mergers: int = 0


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def block_of(layers: nn.ModuleList) -> Block:
    """Count a layer by its parts' names, which Llama, Qwen2, Qwen3 and the Qwen-VLs share."""
    parts = {name.rpartition(".")[2]: module for name, module in layers[0].named_modules()}
    inner = parts["down_proj" if "down_proj" in parts else "linear_fc2"].in_features
    mlp = inner * (4 if "gate_proj" in parts else 2)
    if "qkv" in parts:
        width = parts["qkv"].in_features
        wide = 0 if any(isinstance(module, nn.LayerNorm) for module in parts.values()) else 2 * width
        return Block(len(layers), width, 11 * width + mlp, wide, inner)
    width, heads = parts["q_proj"].in_features, parts["q_proj"].out_features + parts["k_proj"].out_features
    normed = heads if "q_norm" in parts else 0
    return Block(len(layers), width, 4 * width + 2 * heads + mlp + normed, 2 * width + normed, inner)


@functools.lru_cache
def shapes_of(path: str) -> Shapes:
    """Return the numbers of a checkpoint, from its config alone. ValueError if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        if path == "tiny":
            disable_progress_bar()  # of its weights being saved
            path = str(tiny.build(Path(folder) / "model", tiny.corpus([], "http://shop.test/"), seed=0))
        model = blueprint(path)
    units = [size(module) for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    layers, total = model.get_decoder().layers, size(model)
    words = model.get_output_embeddings().out_features
    cache = 2 * len(layers) * layers[0].self_attn.k_proj.out_features
    shapes = Shapes(total, total - sum(units), max(units), words, cache, block_of(layers))
    if not hasattr(model.config, "vision_config"):
        return shapes
    tower, vision = model.model.visual, model.config.vision_config
    return replace(
        shapes,
        vision=block_of(tower.blocks),
        visual=size(tower),
        patch=vision.patch_size,
        merge=vision.spatial_merge_size,
        pixels=tower.patch_embed.proj.weight[0].numel(),
        mergers=sum(type(module).__name__.endswith("PatchMerger") for module in tower.modules()),
    )


def image_tokens(config: Config, shapes: Shapes) -> int:
    """Return the tokens of a screenshot: the browser's window, scaled down to --model.max-pixels."""
    pixels = min(config.browser.width * config.browser.height, config.model.max_pixels or 2**31)
    return math.ceil(pixels / (shapes.patch * shapes.merge) ** 2) if shapes.vision.count else 0


def row_patches(config: Config, shapes: Shapes) -> int:
    """Return the patches in a row, if a turn adds its screenshots and a quarter of the longest response; a
    prefix tree has the turns' common part once, so there can hardly be more."""
    each, shown = image_tokens(config, shapes), config.agent.screenshots
    turns = max(1, config.batch.micro_tokens // (shown * each + config.agent.response_tokens // 4))
    return turns * shown * each * shapes.merge**2


def activations(
    shapes: Shapes, tokens: int, patches: int, size: int, checkpointing: bool, freeze_vision: bool
) -> tuple[int, int]:
    """Return the bytes of one row: those that forward leaves for backward, and the most beside it at a time.

    `size`: of the compute dtype, in bytes. With checkpointing a layer leaves its input, and one layer at a
    time is whole again. The moments: a decoder layer, a vision block, the entropies, the head. Liger never
    holds (N, V) logits, but, whole and in float32, the gradients of the head (V, H) and of the hidden states
    (N, H), N <= tokens. Attention's own blocks (a chain's mask and gathered keys) are small and left out.
    """
    width, seen = shapes.text.width, 0 if freeze_vision else patches
    left = tokens * width * (4 + 2 * size) + patches * shapes.pixels * (4 + size)  # last norm; images
    left += seen * shapes.mergers * 3 * size * shapes.vision.width  # norm, first layer, GELU
    moments = [4 * width * (shapes.vocabulary + tokens) + LIGER_BYTES, ENTROPY_BYTES * shapes.vocabulary]
    for block, length in ((shapes.text, tokens), (shapes.vision, seen)):
        saved = size * block.kept + 4 * block.wide
        left += block.count * length * (size * block.width if checkpointing else saved)
        # gradients alive at once: three of the MLP's width, two of the layer's
        passing = size * (3 * block.inner + 2 * block.width)
        moments.append(length * (passing + (saved if checkpointing else 0)))
    return left, max(moments)


@dataclass(frozen=True)
class Plan:
    """Bytes on each GPU by item, in both phases, and `cpu` bytes of CPU memory for each GPU."""

    config: Config
    gpus: int
    gpu_gb: float
    rollout: dict[str, int]
    update: dict[str, int]
    cpu: int
    context: int  # bytes of a full context in the KV cache

    @property
    def total(self) -> int:
        """The bytes of the larger phase."""
        return max(sum(self.rollout.values()), sum(self.update.values()))

    @property
    def fits(self) -> bool:
        return self.total <= self.gpu_gb * GB

    @property
    def shares(self) -> tuple[float, float]:
        """The least --sampler.gpu-memory, which the sampler needs, and the largest, which the rest leaves."""
        sampler = sum(self.rollout[item] for item in (SAMPLED, CACHE, VLLM))
        others = sum(self.rollout.values()) - sampler
        return sampler / (self.gpu_gb * GB), 1 - others / (self.gpu_gb * GB)

    @property
    def contexts(self) -> float:
        """How many full contexts the KV cache holds, which fills up vLLM's share of the memory."""
        share = self.config.sampler.gpu_memory * self.gpu_gb * GB
        return max(0.0, (share - self.rollout[SAMPLED] - self.rollout[VLLM]) / self.context)


def plan(config: Config, gpus: int, gpu_gb: float) -> Plan:
    """Return the bytes that a run would hold on each of its GPUs. ValueError for what can't be."""
    replicas, frozen = config.optim.replicas, config.model.freeze_vision
    if gpus < 1:
        raise ValueError("--gpus must be at least 1")
    if not gpu_gb > 0:
        raise ValueError("--gpu-gb must be above 0, for example 80")
    if gpus % replicas:
        raise ValueError(f"--optim.replicas {replicas} does not divide --gpus {gpus}; use a divisor, or 1")
    shapes, shard = shapes_of(config.model.path), gpus // replicas
    if frozen and not shapes.vision.count:
        raise ValueError("--model.freeze-vision: this model has no vision tower; leave it out")
    e = 4 if config.model.dtype == "float32" else 2
    weights = 4 * shapes.parameters // shard
    gradients = 4 * (shapes.parameters - (shapes.visual if frozen else 0)) // shard
    shards = {"weights": weights, "gradients": gradients, "AdamW moments": 2 * gradients}
    shards["reference"] = weights if config.loss.kl else 0
    cpu = 0  # a sleeping sampler keeps buffers, hardly anything
    if config.optim.offload:
        cpu, shards = sum(shards.values()), dict.fromkeys(shards, 0)
    shards["CUDA, NCCL (assumed)"] = CUDA_BYTES
    if config.judge.path:
        shards["the judge's weights"] = e * shapes_of(config.judge.path).parameters
    context = e * shapes.cache * config.agent.context_tokens
    cache = math.ceil(config.browser.episodes / EPISODES_PER_CONTEXT) * context
    sampler = {SAMPLED: e * shapes.parameters, CACHE: cache, VLLM: VLLM_BYTES}
    row = config.batch.micro_tokens, row_patches(config, shapes)
    left, moment = activations(shapes, *row, e, config.model.gradient_checkpointing, frozen)
    update = {
        "gathered weights": e * (shapes.root + 2 * shapes.unit),
        "gathered gradients": e * shapes.root + (e + 4) * shapes.unit,
        "activations": left,
        "one layer or the head": moment,
    }
    return Plan(config, gpus, gpu_gb, shards | sampler, shards | update, cpu, context)


def steps(config: Config) -> list[dict[str, Any]]:
    """Return the settings that can be given up, in the order of the advice: those that hardly slow training,
    those that do, a change of what is learned, the CPU's memory, short episodes."""
    shapes, context = shapes_of(config.model.path), config.agent.context_tokens
    shortest = config.agent.screenshots * image_tokens(config, shapes) + 2 * config.agent.response_tokens
    contexts = [tokens for tokens in (context // 2, context // 4) if tokens >= shortest]
    episodes = filter(None, (config.browser.episodes >> n for n in (1, 2, 3)))
    return [
        {"batch.micro_tokens": min(context, config.batch.micro_tokens)},
        {"optim.replicas": 1},
        {"model.gradient_checkpointing": True},
        *({"browser.episodes": fewer} for fewer in episodes),
        *([{"model.freeze_vision": True}] if shapes.vision.count else []),
        {"optim.offload": True},
        *({"agent.context_tokens": n, "batch.micro_tokens": n} for n in contexts),
    ]


def changed(config: Config, values: dict[str, Any]) -> Config:
    """Return the config with other values: {"optim.offload": True}."""
    for name, value in values.items():
        part, field = name.split(".")
        config = replace(config, **{part: replace(vars(config)[part], **{field: value})})
    return config


def advice(tight: Plan) -> list[tuple[str, Plan]]:
    """Return flags that make a plan fit, with the plan that they lead to: the steps that save memory, one
    after the other until it fits, or all of them; and more GPUs instead, if eight times as many suffice."""
    values: dict[str, Any] = {}
    after = tight
    for step in steps(tight.config):
        further = plan(changed(tight.config, values | step), tight.gpus, tight.gpu_gb)
        if not after.fits and further.total < after.total:
            values, after = values | step, further
    flags = [f"--{name.replace('_', '-')}" + ("" if v is True else f" {v}") for name, v in values.items()]
    found = [(" ".join(flags), after)] if values else []
    larger = [plan(tight.config, times * tight.gpus, tight.gpu_gb) for times in (2, 4, 8)]
    enough = [(f"--gpus {more.gpus}", more) for more in larger if more.fits and not tight.fits]
    return found + enough[:1]


def show(shown: Plan) -> None:
    """Print the plan as a table, the room that it leaves, and flags that would make it fit."""
    phases = shown.rollout, shown.update
    machine = f"{shown.gpus} GPU{'s' * (shown.gpus > 1)} of {shown.gpu_gb:g} GB"
    table = new_table("item", "rollout", "update", title=f"{shown.config.recipe} on {machine}: GB on each")
    for item in shown.rollout | shown.update:
        found = [phase.get(item, 0) for phase in phases]
        if any(found):
            table.add_row(item, *(f"{number / GB:.2f}" if number else "" for number in found))
    table.add_section()
    table.add_row("total", *(f"{sum(phase.values()) / GB:.2f}" for phase in phases), style="bold")
    CONSOLE.print(table)
    say(f"CPU memory for each GPU: {shown.cpu / GB:.1f} GB")
    share, (least, most) = shown.config.sampler.gpu_memory, shown.shares
    style = "" if least <= share <= most else "bold red"
    say(f"vLLM's share, --sampler.gpu-memory: {share:g}; at least {least:.2f}, at most {most:.2f}", style)
    say(f"room in it for {shown.contexts:.1f} contexts of {shown.config.agent.context_tokens} tokens")
    spare = shown.gpu_gb - shown.total / GB
    if shown.fits:
        say(f"it fits, with {spare:.1f} GB to spare", "bold green")
        return
    say(f"it does not fit: {-spare:.1f} GB too much", "bold red")
    for flags, after in advice(shown):
        lack = after.total / GB - after.gpu_gb
        outcome = "fits with" if after.fits else f"nothing fits; {lack:.1f} GB are missing even with"
        say(f"{outcome} {flags} ({after.total / GB:.1f} GB)")
