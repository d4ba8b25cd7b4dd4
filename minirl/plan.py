"""The memory plan: what each GPU holds, whether it fits, and if not, which flags make it fit.

Stands behind `python train.py RECIPE --plan --gpus 8 --gpu-gb 80`. Nothing is allocated: shapes come from the
model on torch's meta device. What is counted, for P parameters sharded by FSDP2 over S = gpus / replicas:

    weights, gradients     4 P / S each (float32; gradients stay until the next update sets them free)
    AdamW moments          8 P / S, of trained parameters only, as gradients
    gathered               in the compute dtype (e bytes): the root unit (embeddings, head, norms, vision
                           mergers), which stays from forward to backward, and two layers, one of them
                           prefetched; gradients of root and layer before they are scattered, in float32 too
    reference              with a KL term: float32 shards like the policy's, and its gathered root
    activations            see `Block` and `activations`; a row of --batch.micro-tokens tokens
    sampler                vLLM in this process: all weights in the compute dtype, and its KV cache

Rollout and update take turns. The sampler's weights go to the CPU for the update (sleep level 1) and its cache
is dropped. With --optim.offload the shards are on the CPU. A KV cache too small for all episodes makes vLLM
wait and recompute, so a full context for every EPISODES_PER_CONTEXT episodes is the least that fits: most
episodes wait for their browser, and most contexts are far from full.

Not counted: the caching allocator's fragmentation. It takes what a card has above its nominal size: a GB is
1e9 bytes here, and 80 GB cards have 85e9.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from minirl import tiny
from minirl.config import Config
from minirl.log import CONSOLE, say
from minirl.model import _settings

GB = 1e9
EPISODES_PER_CONTEXT = 16  # so many episodes share a full context's worth of KV cache, at least
CUDA_BYTES = 2e9  # assumed: CUDA's context, NCCL's buffers, cuBLAS's workspace
VLLM_BYTES = 3e9  # assumed: CUDA graphs, a prefill's activations, images being encoded
LIGER_BYTES = 4 * 4 * 2048 * 4096  # four float32 blocks of 2048 tokens x 4096 words in the backward pass
ENTROPY_BYTES = 5 * 4 * 256  # per word: five float32 blocks of 256 tokens, as loss.token_entropies has them


@dataclass(frozen=True)
class Block:
    """What autograd keeps of one decoder layer or vision block, in numbers per token or patch.

    A decoder layer of width h, query and key widths q and k, MLP width i keeps, in the compute dtype: for each
    of two norms its normalised input and its output, 4h; for attention query, key, value, output, 2q + 2k; for
    the MLP the gate, its SiLU, up and their product, 4i. And in float32 the norms' inputs, 2h. Norms of
    queries and keys (Qwen3) add q + k in each. The rotary tables are shared by all layers and not counted.
    Qwen3-VL-4B: h 2560, q 4096, k 1024, i 9728: 2 * (10240 + 10240 + 38912 + 5120) + 4 * (5120 + 5120)
    = 169984 bytes, or 5.6 GB for 32768 tokens; 36 such layers are 201 GB, their inputs alone 6 GB.

    A vision block has a fused qkv (3h, kept whole because values are a view of it), rotated queries and keys,
    and attention's output per image and joined, 7h; LayerNorm keeps no float32 copy, and an MLP without a
    gate 2i. Qwen3-VL-4B: 2 * (11 * 1024 + 2 * 4096) = 38912 bytes per patch.
    """

    count: int
    width: int
    kept: int  # elements in the compute dtype
    wide: int  # elements in float32
    inner: int  # the MLP's width

    def saved(self, size: int) -> int:
        return size * self.kept + 4 * self.wide

    def passing(self, size: int) -> int:
        """Gradients that the backward pass holds at once: three of the MLP's width, two of the layer's."""
        return size * (3 * self.inner + 2 * self.width)


@dataclass(frozen=True)
class Shapes:
    """A model in numbers."""

    parameters: int  # tied ones once
    visual: int  # of them in the vision tower
    root: int  # outside the layers and blocks that FSDP shards one by one
    unit: int  # the largest of these
    vocabulary: int
    kv: int  # elements of the KV cache per token, all layers
    text: Block
    vision: Block | None
    patch: int = 0  # pixels on a patch's side
    merge: int = 1  # patches on the side of what becomes one token
    pixels: int = 0  # numbers in a patch
    mergers: int = 0


def block_of(layers: nn.ModuleList) -> Block:
    """Counts a layer by its parts' names, which Llama, Qwen2, Qwen3 and the Qwen-VLs share."""
    parts = {name.rpartition(".")[2]: module for name, module in layers[0].named_modules()}
    inner = parts["down_proj" if "down_proj" in parts else "linear_fc2"].in_features
    fused = "qkv" in parts
    width = parts["qkv" if fused else "q_proj"].in_features
    queries, keys = (0, 0) if fused else (parts["q_proj"].out_features, parts["k_proj"].out_features)
    normed = queries + keys if "q_norm" in parts else 0
    layer_norm = any(isinstance(module, nn.LayerNorm) for module in parts.values())
    kept = 4 * width + (7 * width if fused else 2 * queries + 2 * keys) + normed
    kept += (4 if "gate_proj" in parts else 2) * inner
    return Block(len(layers), width, kept, normed + (0 if layer_norm else 2 * width), inner)


@functools.lru_cache
def shapes_of(path: str) -> Shapes:
    """Reads a checkpoint's config, not its weights. ValueError if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        if path == "tiny":
            disable_progress_bar()  # transformers' own
            path = str(tiny.build(Path(folder) / "model", tiny.corpus([], "http://shop.test/"), seed=0))
        settings = _settings(path)
    auto = AutoModelForImageTextToText if hasattr(settings, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(settings)
    units = [size(m) for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    layers = model.get_decoder().layers
    keys = layers[0].self_attn.k_proj.out_features
    shapes = Shapes(
        parameters=size(model),
        visual=0,
        root=size(model) - sum(units),
        unit=max(units),
        vocabulary=model.get_output_embeddings().out_features,
        kv=2 * len(layers) * keys,
        text=block_of(layers),
        vision=None,
    )
    if not hasattr(settings, "vision_config"):
        return shapes
    tower = model.model.visual
    return replace(
        shapes,
        visual=size(tower),
        vision=block_of(tower.blocks),
        patch=settings.vision_config.patch_size,
        merge=settings.vision_config.spatial_merge_size,
        pixels=tower.patch_embed.proj.weight[0].numel(),
        mergers=sum(type(module).__name__.endswith("PatchMerger") for module in tower.modules()),
    )


def size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def image_tokens(config: Config, shapes: Shapes) -> int:
    """Tokens of a screenshot, which is the browser's window, scaled down to --model.max-pixels."""
    if shapes.vision is None:
        return 0
    pixels = min(config.browser.width * config.browser.height, config.model.max_pixels or 2**31)
    return math.ceil(pixels / (shapes.patch * shapes.merge) ** 2)


def patches(config: Config, shapes: Shapes) -> int:
    """Patches in a row. A turn's typical tokens are assumed to be its screenshots and a quarter of the longest
    response; what turns share is counted once in a tree, so this many turns are about the most in a row."""
    each = image_tokens(config, shapes)
    turn = config.agent.screenshots * each + config.agent.response_tokens // 4
    images = max(1, config.batch.micro_tokens // turn) * config.agent.screenshots
    return images * each * shapes.merge**2


def activations(
    shapes: Shapes, tokens: int, patches: int, size: int, checkpointing: bool, freeze_vision: bool
) -> tuple[int, int]:
    """Bytes of one row: what the forward pass leaves for the backward pass, and the most that either needs
    for a moment beside it. `size` is the compute dtype's in bytes.

    With checkpointing a layer leaves its input, and one layer at a time is whole again. The moment's needs are
    the largest of: a decoder layer, a vision block, the head. Log-probs never hold (N, V) logits, but Liger's
    backward pass holds the head's whole gradient in float32, (V, H), beside the hidden states' (N, H). N is
    at most the row.
    """
    text, vision = shapes.text, shapes.vision
    left = tokens * text.width * (4 + 3 * size)  # the last norm, and the hidden states that are scored
    left += patches * shapes.pixels * (4 + size)
    head = 4 * text.width * (shapes.vocabulary + tokens) + LIGER_BYTES
    moments = [head, ENTROPY_BYTES * shapes.vocabulary]
    blocks = [(text, tokens)]
    if vision is not None and not freeze_vision:
        blocks.append((vision, patches))
        left += patches * shapes.mergers * 3 * size * vision.width  # a merger's norm, first layer, GELU
    for block, length in blocks:
        saved = block.saved(size)
        left += block.count * length * (size * block.width if checkpointing else saved)
        moments.append(length * (block.passing(size) + (saved if checkpointing else 0)))
    return left, max(moments)


# --- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Bytes per GPU in both phases, by item. `cpu`: bytes of CPU memory for each GPU."""

    config: Config
    gpus: int
    gpu_gb: float
    rollout: dict[str, int]
    update: dict[str, int]
    cpu: int
    context: int  # KV cache of one full context

    @property
    def total(self) -> int:
        return max(sum(self.rollout.values()), sum(self.update.values()))

    @property
    def fits(self) -> bool:
        return self.total <= self.gpu_gb * GB

    @property
    def contexts(self) -> float:
        """How many full contexts fit into what the rollout leaves for the KV cache; 0 without a sampler."""
        cache = self.rollout.get("KV cache, at least", 0)
        return (
            max(0.0, self.gpu_gb * GB - sum(self.rollout.values()) + cache) / self.context if cache else 0.0
        )


def plan(config: Config, gpus: int, gpu_gb: float) -> Plan:
    """What a run would hold on each of its GPUs. ValueError for a machine that there can't be."""
    replicas = config.optim.replicas
    if gpus < 1:
        raise ValueError("--gpus must be at least 1")
    if not gpu_gb > 0:
        raise ValueError("--gpu-gb must be above 0, for example 80")
    if gpus % replicas:
        raise ValueError(f"--optim.replicas {replicas} does not divide --gpus {gpus}; use a divisor, or 1")
    shapes, shard = shapes_of(config.model.path), gpus // replicas
    frozen = config.model.freeze_vision
    if frozen and shapes.vision is None:
        raise ValueError("--model.freeze-vision: this model has no vision tower; leave the flag out")
    e = 4 if config.model.dtype == "float32" else 2
    trained = shapes.parameters - (shapes.visual if frozen else 0)
    kept = {
        "weights": 4 * shapes.parameters // shard,
        "gradients": 4 * trained // shard,
        "AdamW moments": 8 * trained // shard,
        "reference": 4 * shapes.parameters // shard if config.loss.kl else 0,
    }
    cpu = sum(kept.values()) if config.optim.offload else 0
    if config.optim.offload:
        kept = dict.fromkeys(kept, 0)
    if config.loss.kl:  # an FSDP root that has no backward pass is never freed
        kept["reference"] += e * shapes.root
    kept["CUDA, NCCL (assumed)"] = int(CUDA_BYTES)
    context = e * shapes.kv * config.agent.context_tokens
    least = math.ceil(config.browser.episodes / EPISODES_PER_CONTEXT)
    sampler = {
        "sampler weights": e * shapes.parameters,
        "KV cache, at least": least * context,
        "vLLM's own (assumed)": int(VLLM_BYTES),
    }
    if config.sampler.kind == "remote":
        sampler = {}
    left, moment = activations(
        shapes,
        config.batch.micro_tokens,
        patches(config, shapes),
        e,
        config.model.gradient_checkpointing,
        frozen,
    )
    update = {
        "gathered weights": e * (shapes.root + 2 * shapes.unit),
        "gathered gradients": e * shapes.root + (e + 4) * shapes.unit,
        "activations": left,
        "one layer or the head": moment,
    }
    cpu += sampler.get("sampler weights", 0)
    return Plan(config, gpus, gpu_gb, kept | sampler, kept | update, cpu, context)


# --- what would fit --------------------------------------------------------------------------------

Change = tuple[int, str, Callable[[Config], Config]]  # cost, flags, what they do


@dataclass(frozen=True)
class Fix:
    """Flags, and the plan that they lead to."""

    flags: str
    plan: Plan


def changes(config: Config) -> list[list[Change]]:
    """What can be given up; one of each list at most. The costs only put combinations in order: what hardly
    slows training, what slows it, what changes what is learned, the CPU's slow memory, shorter episodes."""
    shapes, context = shapes_of(config.model.path), config.agent.context_tokens

    def row(tokens: int, config: Config) -> Config:
        agent = replace(config.agent, context_tokens=min(tokens, context))
        return replace(config, agent=agent, batch=replace(config.batch, micro_tokens=tokens))

    def episodes(number: int, config: Config) -> Config:
        return replace(config, browser=replace(config.browser, episodes=number))

    rows: list[Change] = []
    if config.batch.micro_tokens > context:
        rows.append((1, f"--batch.micro-tokens {context}", functools.partial(row, context)))
    shortest = config.agent.screenshots * image_tokens(config, shapes) + 2 * config.agent.response_tokens
    for cost, tokens in ((128, context // 2), (256, context // 4)):
        if tokens >= shortest:
            flags = f"--agent.context-tokens {tokens} --batch.micro-tokens {tokens}"
            rows.append((cost, flags, functools.partial(row, tokens)))
    halves = [(8 * n, config.browser.episodes >> n) for n in (1, 2, 3) if config.browser.episodes >> n]
    out = [rows, [(c, f"--browser.episodes {n}", functools.partial(episodes, n)) for c, n in halves]]
    model, optim = config.model, config.optim
    if optim.replicas > 1:
        out.append([(2, "--optim.replicas 1", lambda c: replace(c, optim=replace(c.optim, replicas=1)))])
    if not model.gradient_checkpointing:
        flag = "--model.gradient-checkpointing"
        out.append([(4, flag, lambda c: replace(c, model=replace(c.model, gradient_checkpointing=True)))])
    if shapes.vision and not model.freeze_vision:
        flag = "--model.freeze-vision"
        out.append([(32, flag, lambda c: replace(c, model=replace(c.model, freeze_vision=True)))])
    if not optim.offload:
        out.append([(64, "--optim.offload", lambda c: replace(c, optim=replace(c.optim, offload=True)))])
    return out


def advice(plan_: Plan, most: int = 3) -> list[Fix]:
    """Flags with which a plan that does not fit would: up to `most` ways, the cheapest in speed first, none
    with a flag that it could do without. If nothing fits, the one that comes closest, whose plan does not.

    Every combination's plan is computed; there are a few hundred, of microseconds each.
    """
    if plan_.fits:
        return []
    nothing: Change = (0, "", lambda config: config)
    combinations = [list(c) for c in itertools.product(*([nothing, *each] for each in changes(plan_.config)))]
    found: list[tuple[set[str], Fix]] = []
    closest = Fix("", plan_)
    for combination in sorted(combinations, key=lambda c: sum(cost for cost, _, _ in c)):
        config = plan_.config
        for _, _, change in combination:
            config = change(config)
        words = [flags for _, flags, _ in combination if flags]
        fix = Fix(" ".join(words), plan(config, plan_.gpus, plan_.gpu_gb))
        if fix.plan.total < closest.plan.total:
            closest = fix
        if fix.plan.fits and not any(before <= set(words) for before, _ in found):
            found.append((set(words), fix))
    return [fix for _, fix in found[:most]] or [closest]


def enough_gpus(plan_: Plan) -> int:
    """How many GPUs of this size would do, in doublings up to 1024; 0 if that is not enough."""
    counts = (plan_.gpus << n for n in range(11))
    return next((n for n in counts if n <= 1024 and plan(plan_.config, n, plan_.gpu_gb).fits), 0)


def show(plan_: Plan) -> None:
    """Prints the plan as a table, the room it leaves, and what would make it fit."""
    machine = f"{plan_.gpus} GPU{'s' * (plan_.gpus > 1)} of {plan_.gpu_gb:g} GB"
    table = Table(title=f"{plan_.config.recipe} on {machine}: GB on each", title_justify="left")
    table.add_column("")
    table.add_column("rollout", justify="right")
    table.add_column("update", justify="right")
    phases = (plan_.rollout, plan_.update)
    for item in plan_.rollout | plan_.update:
        if any(phase.get(item) for phase in phases):
            table.add_row(item, *(f"{phase[item] / GB:.2f}" if item in phase else "" for phase in phases))
    table.add_section()
    table.add_row("total", *(f"{sum(phase.values()) / GB:.2f}" for phase in phases), style="bold")
    CONSOLE.print(table)
    if plan_.cpu:
        say(f"and {plan_.cpu / GB:.1f} GB of CPU memory for each GPU")
    if plan_.contexts:
        tokens = plan_.config.agent.context_tokens
        say(f"the KV cache can take {plan_.contexts:.1f} contexts of {tokens} tokens")
    spare = plan_.gpu_gb - plan_.total / GB
    if plan_.fits:
        say(f"it fits, with {spare:.1f} GB to spare", "bold green")
        return
    say(f"it does not fit: {-spare:.1f} GB too much", "bold red")
    for fix in advice(plan_):
        after = fix.plan.total / GB
        if fix.plan.fits:
            say(f"fits with {fix.flags} ({after:.1f} GB)")
            continue
        short = f"no flags make it fit; the closest, {fix.flags or 'as it is'}, needs {after:.1f} GB"
        gpus = enough_gpus(fix.plan)
        say(short + (f", and fits on {gpus} GPUs" if gpus else ", however many GPUs"))
