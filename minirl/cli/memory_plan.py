"""The memory plan: what each GPU holds, whether it fits, and if not, which flags make it fit.

Stands behind `python train.py RECIPE --plan --gpus 8 --gpu-gb 80`. Nothing is allocated: the model is made
on torch's meta device. For P parameters, sharded by FSDP2 over S = gpus / replicas, and a compute dtype of e
bytes:

    weights, gradients  4 P / S each; gradients stay until the next update
    AdamW moments       8 P / S; like gradients, of trained parameters only
    reference           with a KL term: 4 P / S
    gathered            the root (all outside layers) from forward to backward, and two layers, one of them
                        prefetched; their gradients until they are scattered, a layer's in float32 too
    activations         of a row of --batch.micro-tokens tokens: see `Block` and `activations`
    sampler             vLLM in this process: e P, and a KV cache
    a judge of our own  its share, --judge.gpu-memory, and CUDA's context in its process

Rollout and update take turns: for the update vLLM drops its weights and its cache (sleep level 2), and the
judge's moves its weights to the CPU. With --optim.offload the shards are always on the CPU. A small cache
makes vLLM wait and recompute, so the least that fits is a full context for every EPISODES_PER_CONTEXT
episodes: most wait for their browser, and most contexts are far from full. vLLM fills the share of the memory
that it is given, --sampler.gpu-memory, with its cache. Fragmentation is not counted; it takes what a card has
above its nominal size: a GB is 1e9 bytes here, and 80 GB cards have 85e9.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from minirl.config import Config
from minirl.console import CONSOLE, say
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
    """What autograd keeps of one decoder layer or vision block, in numbers per token or patch.

    A decoder layer of width h, query and key widths q and k and MLP width i keeps in the compute dtype: two
    norms' normalised inputs and outputs, 4h; query, key, value and what attention returns, 2q + 2k; gate, its
    SiLU, up and their product, 4i. And the norms' inputs in float32, 2h. Qwen3's norms of queries and keys
    add q + k to each. The rotary tables are the same for all layers, and left out.
    Qwen3-VL-4B (h 2560, q 4096, k 1024, i 9728): 2 * (10240 + 10240 + 38912 + 5120) + 4 * (5120 + 5120) =
    169984 bytes; 32768 tokens in 36 layers are 201 GB, the layers' inputs alone 6 GB.

    A vision block: LayerNorms, 4h, without float32; the fused qkv, of which values are a view, rotated
    queries and keys, what attention returns per image and joined, 7h; an MLP without a gate, 2i. Qwen3-VL-4B:
    2 * (11 * 1024 + 2 * 4096) = 38912 bytes.
    """

    count: int
    width: int
    kept: int  # numbers in the compute dtype
    wide: int  # numbers in float32
    inner: int  # the MLP's width

    def saved(self, size: int) -> int:
        return size * self.kept + 4 * self.wide

    def passing(self, size: int) -> int:
        """Gradients alive at once in the backward pass: three of the MLP's width, two of the layer's."""
        return size * (3 * self.inner + 2 * self.width)


@dataclass(frozen=True)
class Shapes:
    """A model in numbers; without a vision tower the last six are nothing."""

    parameters: int  # tied ones once
    root: int  # of them outside the layers and blocks that FSDP gathers one at a time
    unit: int  # of them in the largest of these
    vocabulary: int
    cache: int  # numbers in the KV cache per token
    text: Block
    vision: Block | None = None
    visual: int = 0  # parameters
    patch: int = 1  # pixels on a patch's side
    merge: int = 1  # patches on the side of a token
    pixels: int = 0  # numbers in a patch
    mergers: int = 0


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def block_of(layers: nn.ModuleList) -> Block:
    """Counts a layer by its parts' names, which Llama, Qwen2, Qwen3 and the Qwen-VLs share."""
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
    """Reads a checkpoint's config, not its weights. ValueError if there is none."""
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
    tower = model.model.visual
    return replace(
        shapes,
        vision=block_of(tower.blocks),
        visual=size(tower),
        patch=model.config.vision_config.patch_size,
        merge=model.config.vision_config.spatial_merge_size,
        pixels=tower.patch_embed.proj.weight[0].numel(),
        mergers=sum(type(module).__name__.endswith("PatchMerger") for module in tower.modules()),
    )


def image_tokens(config: Config, shapes: Shapes) -> int:
    """Tokens of a screenshot, which is the browser's window, scaled down to --model.max-pixels."""
    pixels = min(config.browser.width * config.browser.height, config.model.max_pixels or 2**31)
    return math.ceil(pixels / (shapes.patch * shapes.merge) ** 2) if shapes.vision else 0


def row_patches(config: Config, shapes: Shapes) -> int:
    """Patches in a row. A turn is assumed to add its screenshots and a quarter of the longest response; what
    turns share is in a tree once, so there can hardly be more."""
    each, shown = image_tokens(config, shapes), config.agent.screenshots
    turns = max(1, config.batch.micro_tokens // (shown * each + config.agent.response_tokens // 4))
    return turns * shown * each * shapes.merge**2


def activations(
    shapes: Shapes, tokens: int, patches: int, size: int, checkpointing: bool, freeze_vision: bool
) -> tuple[int, int]:
    """Bytes of one row: what forward leaves for backward, and the most that is needed for a moment beside it.

    `size`: of the compute dtype, in bytes. With checkpointing a layer leaves its input, and one layer at a
    time is whole again. The moments: a decoder layer, a vision block, the entropies, the head. Liger never
    holds (N, V) logits, but, whole and in float32, the gradients of the head (V, H) and of the hidden states
    (N, H), N <= tokens. Attention's own blocks (a chain's mask and gathered keys) are small and left out.
    """
    width = shapes.text.width
    left = tokens * width * (4 + 2 * size) + patches * shapes.pixels * (4 + size)  # last norm; images
    moments = [4 * width * (shapes.vocabulary + tokens) + LIGER_BYTES, ENTROPY_BYTES * shapes.vocabulary]
    blocks = [(shapes.text, tokens)]
    if shapes.vision and not freeze_vision:
        blocks.append((shapes.vision, patches))
        left += patches * shapes.mergers * 3 * size * shapes.vision.width  # norm, first layer, GELU
    for block, length in blocks:
        saved = block.saved(size)
        left += block.count * length * (size * block.width if checkpointing else saved)
        moments.append(length * (block.passing(size) + (saved if checkpointing else 0)))
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
        """The larger phase's."""
        return max(sum(self.rollout.values()), sum(self.update.values()))

    @property
    def fits(self) -> bool:
        return self.total <= self.gpu_gb * GB

    @property
    def shares(self) -> tuple[float, float]:
        """The least --sampler.gpu-memory, which is what the sampler needs, and the largest, what is left."""
        sampler = sum(self.rollout[item] for item in (SAMPLED, CACHE, VLLM))
        others = sum(self.rollout.values()) - sampler
        return sampler / (self.gpu_gb * GB), 1 - others / (self.gpu_gb * GB)

    @property
    def contexts(self) -> float:
        """How many full contexts the KV cache holds, which fills up vLLM's share of the memory."""
        share = self.config.sampler.gpu_memory * self.gpu_gb * GB
        return max(0.0, (share - self.rollout[SAMPLED] - self.rollout[VLLM]) / self.context)


def plan(config: Config, gpus: int, gpu_gb: float) -> Plan:
    """What a run would hold on each of its GPUs. ValueError for what can't be."""
    replicas, frozen = config.optim.replicas, config.model.freeze_vision
    if gpus < 1:
        raise ValueError("--gpus must be at least 1")
    if not gpu_gb > 0:
        raise ValueError("--gpu-gb must be above 0, for example 80")
    if gpus % replicas:
        raise ValueError(f"--optim.replicas {replicas} does not divide --gpus {gpus}; use a divisor, or 1")
    shapes, shard = shapes_of(config.model.path), gpus // replicas
    if frozen and shapes.vision is None:
        raise ValueError("--model.freeze-vision: this model has no vision tower; leave it out")
    e = 4 if config.model.dtype == "float32" else 2
    trained = shapes.parameters - (shapes.visual if frozen else 0)
    shards = {
        "weights": 4 * shapes.parameters // shard,
        "gradients": 4 * trained // shard,
        "AdamW moments": 8 * trained // shard,
        "reference": 4 * shapes.parameters // shard if config.loss.kl else 0,
    }
    cpu = 0  # a sleeping sampler keeps buffers, hardly anything
    if config.optim.offload:
        cpu, shards = sum(shards.values()), dict.fromkeys(shards, 0)
    shards["CUDA, NCCL (assumed)"] = CUDA_BYTES
    judge = {}
    if config.judge.path:
        shards["the judge's CUDA (assumed)"] = CUDA_BYTES
        judge["the judge's share"] = int(config.judge.gpu_memory * gpu_gb * GB)
        cpu += e * shapes_of(config.judge.path).parameters
    context = e * shapes.cache * config.agent.context_tokens
    sampler = {
        SAMPLED: e * shapes.parameters,
        CACHE: math.ceil(config.browser.episodes / EPISODES_PER_CONTEXT) * context,
        VLLM: VLLM_BYTES,
    }
    row = config.batch.micro_tokens, row_patches(config, shapes)
    left, moment = activations(shapes, *row, e, config.model.gradient_checkpointing, frozen)
    update = {
        "gathered weights": e * (shapes.root + 2 * shapes.unit),
        "gathered gradients": e * shapes.root + (e + 4) * shapes.unit,
        "activations": left,
        "one layer or the head": moment,
    }
    return Plan(config, gpus, gpu_gb, shards | sampler | judge, shards | update, cpu, context)


# --- what would fit --------------------------------------------------------------------------------


def changes(config: Config) -> list[list[tuple[int, dict[str, Any]]]]:
    """What can be given up, at most one of each list, with a cost that only puts combinations in order: what
    hardly slows training, then what does, what changes what is learned, the CPU's memory, short episodes."""
    shapes, context = shapes_of(config.model.path), config.agent.context_tokens
    rows = [(1, {"batch.micro_tokens": context})] if config.batch.micro_tokens > context else []
    shortest = config.agent.screenshots * image_tokens(config, shapes) + 2 * config.agent.response_tokens
    for cost, tokens in ((128, context // 2), (256, context // 4)):
        if tokens >= shortest:
            rows.append((cost, {"agent.context_tokens": tokens, "batch.micro_tokens": tokens}))
    fewer = [(8 * n, {"browser.episodes": config.browser.episodes >> n}) for n in (1, 2, 3)]
    out = [rows, [(cost, values) for cost, values in fewer if values["browser.episodes"]]]
    if config.optim.replicas > 1:
        out.append([(2, {"optim.replicas": 1})])
    if not config.model.gradient_checkpointing:
        out.append([(4, {"model.gradient_checkpointing": True})])
    if shapes.vision and not config.model.freeze_vision:
        out.append([(32, {"model.freeze_vision": True})])
    if not config.optim.offload:
        out.append([(64, {"optim.offload": True})])
    return out


def changed(config: Config, values: dict[str, Any]) -> Config:
    for name, value in values.items():
        part, field = name.split(".")
        config = replace(config, **{part: replace(vars(config)[part], **{field: value})})
    return config


def advice(tight: Plan, most: int = 3) -> list[tuple[str, Plan]]:
    """Flags that make a plan fit, with the plans that they lead to: up to `most`, the cheapest in speed
    first, none with a flag more than another one needs. If nothing fits, the one that comes closest.

    Every combination's plan is computed: a few hundred, in milliseconds.
    """
    if tight.fits:
        return []
    choices = [[(0, {}), *each] for each in changes(tight.config)]
    tried: list[tuple[str, Plan]] = []
    fitting: list[tuple[set[str], str, Plan]] = []
    for combination in sorted(itertools.product(*choices), key=lambda c: sum(cost for cost, _ in c)):
        values = {name: value for _, part in combination for name, value in part.items()}
        flags = [f"--{n.replace('_', '-')}" + ("" if v is True else f" {v}") for n, v in values.items()]
        after = plan(changed(tight.config, values), tight.gpus, tight.gpu_gb)
        tried.append((" ".join(flags), after))
        if after.fits and not any(names <= values.keys() for names, _, _ in fitting):
            fitting.append((set(values), " ".join(flags), after))
    return [fix[1:] for fix in fitting[:most]] or [min(tried, key=lambda fix: fix[1].total)]


def show(shown: Plan) -> None:
    """Prints the plan as a table, the room that it leaves, and what would make it fit."""
    machine = f"{shown.gpus} GPU{'s' * (shown.gpus > 1)} of {shown.gpu_gb:g} GB"
    table = Table(title=f"{shown.config.recipe} on {machine}: GB on each", title_justify="left")
    table.add_column("item")
    phases = {"rollout": shown.rollout, "update": shown.update}
    for name in phases:
        table.add_column(name, justify="right")
    for item in shown.rollout | shown.update:
        found = [phase.get(item, 0) for phase in phases.values()]
        if any(found):
            table.add_row(item, *(f"{number / GB:.2f}" if number else "" for number in found))
    table.add_section()
    table.add_row("total", *(f"{sum(phase.values()) / GB:.2f}" for phase in phases.values()), style="bold")
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
        verdict = "fits with" if after.fits else f"nothing fits; {lack:.1f} GB are missing even with"
        say(f"{verdict} {flags or 'these flags'} ({after.total / GB:.1f} GB)")
