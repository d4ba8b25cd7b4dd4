"""Plan a run's memory: the bytes on each GPU, whether they fit, and if not, flags to try.

Stands behind `python train.py RECIPE --plan --gpus 8 --gpu-gb 80`. With P parameters sharded by FSDP2 over
S = gpus / replicas, and e bytes in the compute dtype: weights and gradients are 4 P / S each, AdamW's moments
8 P / S, a reference (with a KL term) 4 P / S. Gathered are the root and two layers, one of them prefetched,
and their gradients, a layer's in float32 too. vLLM has e P and a KV cache, which it drops for the update, as
gradients are dropped after it; a judge of our own has e P. Fragmentation is not counted; a GB is 1e9 bytes.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from minirl.config import Config
from minirl.console import CONSOLE, new_table, say
from minirl.model import blueprint

GB = 10**9
EPISODES_PER_CONTEXT = 16  # of the least KV cache: most episodes wait for their browser
CUDA_BYTES = 2 * GB  # assumed: CUDA's context, NCCL's buffers, cuBLAS's workspace
VLLM_BYTES = 3 * GB  # assumed: CUDA graphs, a prefill's activations, images being encoded
LIGER_BYTES = 4 * 4 * 2048 * 4096  # its backward pass: four float32 blocks of 2048 tokens x 4096 words
ENTROPY_BYTES = 5 * 4 * 256  # a word's, in loss.token_entropies: five float32 blocks of 256 tokens
# First what hardly slows training, then what does, what is learned, the CPU's memory, length
REMEDIES = """--batch.micro-tokens as few as --agent.context-tokens, --optim.replicas 1,
--model.gradient-checkpointing, fewer --browser.episodes, --model.freeze-vision, --optim.offload, half the
--agent.context-tokens and --batch.micro-tokens"""


def layer_bytes(layer: Any, e: int) -> tuple[int, int, int]:
    """Return the width h of a decoder layer or vision block, the bytes per token or patch that autograd keeps
    of it, and those of the gradients alive at once: three of the MLP's width, two of the layer's.

    With query and key widths q and k and MLP width i: norms, 4h; query, key, value and attention's output,
    2q + 2k; the MLP, 4i; norms of queries and keys, q + k; all norms' inputs in float32. A vision block:
    LayerNorms, 4h; qkv, rotated queries and keys, attention's output, 7h; an MLP without a gate, 2i.
    """
    # the names are those of Llama, Qwen2, Qwen3 and the Qwen-VLs
    parts: dict[str, Any] = {name.rpartition(".")[2]: part for name, part in layer.named_modules()}
    inner = parts["down_proj" if "down_proj" in parts else "linear_fc2"].in_features
    kept, wide = inner * (4 if "gate_proj" in parts else 2), 0
    if "qkv" in parts:
        width = parts["qkv"].in_features
        kept += 11 * width
    else:
        query, key = parts["q_proj"], parts["k_proj"]
        width, heads = query.in_features, query.out_features + key.out_features
        wide = heads if "q_norm" in parts else 0
        kept += 4 * width + 2 * heads + wide
    if not any(isinstance(part, nn.LayerNorm) for part in parts.values()):
        wide += 2 * width
    return width, e * kept + 4 * wide, e * (3 * inner + 2 * width)


@functools.cache
def meta_model(path: str) -> tuple[Any, Any]:
    """Return a checkpoint's model without weights, and its vision tower or None. ValueError if none."""
    if path == "tiny":
        raise ValueError("--plan counts a checkpoint's memory, and tiny has none yet: give another recipe")
    model: Any = blueprint(path)
    return model, model.model.visual if hasattr(model.config, "vision_config") else None


def size(module: nn.Module | None) -> int:
    return sum(weight.numel() for weight in module.parameters()) if module else 0


def row_patches(config: Config, vision: Any) -> int:
    """Return the patches in a row, if a turn adds its screenshots and a quarter of the longest response; a
    prefix tree has the turns' common part once, so there can hardly be more."""
    pixels = min(config.browser.width * config.browser.height, config.model.max_pixels or 2**31)
    screenshot = math.ceil(pixels / (vision.patch_size * vision.spatial_merge_size) ** 2)  # in tokens
    seen = config.agent.screenshots * screenshot
    turns = max(1, config.batch.micro_tokens // (seen + config.agent.response_tokens // 4))
    return turns * seen * vision.spatial_merge_size**2


def activations(config: Config, e: int) -> tuple[int, int]:
    """Return the bytes of a row: those that forward leaves for backward, and the most beside it at a time: a
    layer, or the entropies, or the head. Liger never holds (N, V) logits, but, in float32, the gradients of
    the head (V, H) and of the hidden states (N, H). Attention's own blocks are small and left out."""
    (model, tower), tokens = meta_model(config.model.path), config.batch.micro_tokens
    head, checkpointing = model.lm_head, config.model.gradient_checkpointing
    left = tokens * head.in_features * (4 + 2 * e)  # the last norm
    moments = [4 * head.in_features * (head.out_features + tokens) + LIGER_BYTES]
    moments += [ENTROPY_BYTES * head.out_features]
    parts = [(model.get_decoder().layers, tokens)]
    if tower:
        patches = row_patches(config, tower.config)
        seen = 0 if config.model.freeze_vision else patches
        parts.append((tower.blocks, seen))
        mergers = sum(type(module).__name__.endswith("PatchMerger") for module in tower.modules())
        left += patches * tower.patch_embed.proj.weight[0].numel() * (4 + e)  # the images
        left += seen * mergers * 3 * e * layer_bytes(tower.blocks[0], e)[0]  # norm, first layer, GELU
    for layers, length in parts:
        width, saved, passing = layer_bytes(layers[0], e)
        left += len(layers) * length * (e * width if checkpointing else saved)
        moments.append(length * (passing + saved * checkpointing))
    return left, max(moments)


@dataclass(frozen=True)
class Plan:
    """Bytes by item on each GPU, and `cpu` bytes of CPU memory for each."""

    config: Config
    shards: dict[str, int]  # in both phases, with what else stays
    sampler: dict[str, int]  # in rollouts
    update: dict[str, int]
    cpu: int

    @property
    def total(self) -> int:
        return sum(self.shards.values()) + max(sum(self.sampler.values()), sum(self.update.values()))

    @property
    def fits(self) -> bool:
        return self.total <= self.config.gpu_gb * GB


def plan(config: Config) -> Plan:
    """Return the bytes that a run would hold on each of its GPUs. ValueError for what can't be."""
    gpus, replicas, frozen = config.gpus, config.optim.replicas, config.model.freeze_vision
    if gpus % replicas:
        raise ValueError(f"--optim.replicas {replicas} does not divide --gpus {gpus}; use a divisor, or 1")
    (model, tower), e = meta_model(config.model.path), 4 if config.model.dtype == "float32" else 2
    parameters, trained = size(model), size(model) - size(tower if frozen else None)
    weights, gradients = (4 * count * replicas // gpus for count in (parameters, trained))
    shards = {"weights": weights, "AdamW moments": 2 * gradients}
    if config.loss.kl:
        shards["reference"] = weights
    cpu = 0
    if config.optim.offload:
        cpu, shards, gradients = sum(shards.values()) + gradients, {}, 0
    shards["CUDA, NCCL (assumed)"] = CUDA_BYTES
    if config.judge.path:
        shards["the judge's weights"] = e * size(meta_model(config.judge.path)[0])

    layers = model.get_decoder().layers
    context = 2 * e * len(layers) * layers[0].self_attn.k_proj.out_features * config.agent.context_tokens
    cache = math.ceil(config.browser.episodes / gpus / EPISODES_PER_CONTEXT) * context
    sampler = {"sampler weights": e * parameters, "KV cache, at least": cache, "vLLM (assumed)": VLLM_BYTES}

    units = [size(module) for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    (left, moment), root, unit = activations(config, e), parameters - sum(units), max(units)
    update = {"gradients": gradients, "gathered weights": e * (root + 2 * unit)}
    update["gathered gradients"] = e * root + (e + 4) * unit
    update |= {"activations": left, "one layer or the head": moment}
    return Plan(config, shards, sampler, update, cpu)


def show(shown: Plan) -> None:
    """Print the plan as a table, and the room that it leaves or the flags to try."""
    config, spare = shown.config, shown.config.gpu_gb - shown.total / GB
    title = f"{config.recipe} on {config.gpus} x {config.gpu_gb:g} GB"
    table = new_table("GB on each", "rollout", "update", title=title)
    phases = (shown.shards | shown.sampler, shown.shards | shown.update)
    for item in phases[0] | phases[1]:
        table.add_row(item, *(f"{phase[item] / GB:.2f}" if item in phase else "" for phase in phases))
    table.add_section()
    table.add_row("total", *(f"{sum(phase.values()) / GB:.2f}" for phase in phases), style="bold")
    CONSOLE.print(table)
    say(f"CPU memory for each GPU: {shown.cpu / GB:.1f} GB")
    if shown.fits:
        least, others = (sum(part.values()) / GB / config.gpu_gb for part in (shown.sampler, shown.shards))
        say(f"vLLM's share, --sampler.gpu-memory, must lie between {least:.2f} and {1 - others:.2f}")
        return say(f"it fits, with {spare:.1f} GB to spare", "bold green")
    say(f"it does not fit: {-spare:.1f} GB too much", "bold red")
    say(f"try, in this order: {' '.join(REMEDIES.split())}")
