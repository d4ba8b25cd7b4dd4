"""Plan a run's memory: the bytes on each GPU, whether they fit, and if not, flags to try.

Stands behind `python train.py RECIPE --plan 8x80`. With P parameters sharded by FSDP2 over S = gpus /
replicas, and e bytes in the compute dtype: weights and gradients are 4 P / S each, AdamW's moments 8 P / S, a
reference (with a KL term) 4 P / S. Gathered are the root and two layers, one of them prefetched, and their
gradients, a layer's in float32 too. vLLM has e P and a KV cache, which it drops for the update, as gradients
are dropped after it; a local judge has e P and a KV cache of its own. With --model.lora the weights are
e P / S, gathered as they are, and the 4, 4 and 8 bytes are the adapters'; there is no reference, and beside a
layer is one merged weight, in float32 and e, with its input and its output's gradient in float32. Weights
that --model.base-bits packs have 9/16 bytes, on every GPU, and are gathered nowhere.
Fragmentation is not counted; a GB is 1e9 bytes.
"""

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from minirl.config import Config
from minirl.console import print_table, say
from minirl.judges.judge import JUDGE_BATCH
from minirl.model import blueprint, frozen

MODELS = Path(__file__).parent / "models"  # the sizes of those that recipes name, for want of a network
GB = 10**9
EPISODES_PER_CONTEXT = 16  # of the smallest KV cache: most episodes wait for their browser
CUDA_BYTES = 2 * GB  # assumed: CUDA's context, NCCL's buffers, cuBLAS's workspace
VLLM_BYTES = 3 * GB  # assumed: CUDA graphs, a prefill's activations, images being encoded
JUDGE_TOKENS = 8192  # assumed: of a local judge's question and its answer
CHUNK = 64  # tokens, of which a gated delta rule has one state
LIGER_BYTES = 4 * 4 * 2048 * 4096  # its backward pass: four float32 blocks of 2048 tokens x 4096 words
# First what hardly slows training, then what does, what is learned, the CPU's memory, length
REMEDIES = """--batch.micro-tokens as few as --agent.context-tokens, --optim.replicas 1,
--model.gradient-checkpointing, fewer --browser.episodes, --model.freeze-vision always, --optim.offload, half
the --agent.context-tokens and --batch.micro-tokens"""


def layer_bytes(layer: Any, e: int) -> tuple[int, int, int]:
    """Return the width h of a decoder layer or vision block, the bytes per token or patch that autograd saves
    of it, and those of the gradients alive at once: three of the MLP's width, two of the layer's.

    With query and key widths q and k and MLP width i: norms, 4h; query, key, value and attention's output,
    2q + 2k; the MLP, 4i; norms of queries and keys, q + k; all norms' inputs in float32. A vision block:
    LayerNorms, 4h; qkv, rotated queries and keys, attention's output, 7h; an MLP without a gate, 2i. A gated
    delta layer, by flash-linear-attention, of c channels, v of them values: convolution and SiLU, 3c; the
    heads' queries and keys, the rule, gate and norm, 5v, and 3v in float32. Alive at once are also the states
    of chunks and their gradients.
    """
    # the names are those of Llama, Qwen2, Qwen3 and the Qwen-VLs
    parts: dict[str, Any] = {name.rpartition(".")[2]: part for name, part in layer.named_modules()}
    inner = (parts.get("down_proj") or parts["linear_fc2"]).in_features
    saved = 4 * inner if "gate_proj" in parts else 2 * inner
    in_float32 = 0
    states = 0
    if "linear_attn" in parts:
        delta = parts["linear_attn"]
        width = delta.hidden_size
        saved += 4 * width + 3 * delta.conv_dim + 5 * delta.value_dim
        in_float32 += 3 * delta.value_dim
        states = 2 * delta.value_dim * delta.head_k_dim // CHUNK
    elif "qkv" in parts:
        width = parts["qkv"].in_features
        saved += 11 * width
    else:
        width = parts["q_proj"].in_features
        heads = parts["q_proj"].out_features + parts["k_proj"].out_features
        saved += 4 * width + 2 * heads
        if "q_norm" in parts:
            saved += heads
            in_float32 += heads
    if not any(isinstance(part, nn.LayerNorm) for part in parts.values()):
        in_float32 += 2 * width
    return width, e * saved + 4 * in_float32, e * (3 * inner + 2 * width + states)


@functools.cache
def meta_model(path: str) -> tuple[Any, Any]:
    """Return a checkpoint's model without weights, and its vision tower or None. ValueError if none."""
    known = MODELS / Path(path).name
    model: Any = blueprint(str(known) if known.is_dir() else path)
    return model, model.model.visual if hasattr(model.config, "vision_config") else None


def size(module: nn.Module) -> int:
    """Return how many parameters a module has."""
    return sum(weight.numel() for weight in module.parameters())


def cache_bytes(model: Any, e: int, tokens: int) -> int:
    """Return the bytes that a context of so many tokens has in the KV cache."""
    total = 0
    for layer in model.get_decoder().layers:
        if hasattr(layer, "linear_attn"):
            delta = layer.linear_attn  # a state in float32, and the convolution's last inputs
            total += 4 * delta.value_dim * delta.head_k_dim + e * delta.conv_dim * delta.conv_kernel_size
        else:
            total += 2 * e * layer.self_attn.k_proj.out_features * tokens
    return total


def adapted(config: Config, model: Any) -> list[Any]:
    """Return the layers that --model.lora adapts."""
    if not config.model.lora:
        return []
    return [layer for layer in model.get_decoder().modules() if isinstance(layer, nn.Linear)]


def trained_size(config: Config, model: Any) -> int:
    """Return how many parameters are trained."""
    layers = adapted(config, model)
    if layers:
        return config.model.lora * sum(layer.in_features + layer.out_features for layer in layers)
    return size(model) - sum(map(size, frozen(model, config.model)))


def packed_size(config: Config, model: Any) -> int:
    """Return how many parameters --model.base-bits packs."""
    if config.model.base_bits != 4:
        return 0
    return sum(layer.weight.numel() for layer in adapted(config, model))


def row_patches(config: Config, vision: Any) -> int:
    """Return the patches in a row, if a turn adds its screenshots and a quarter of the longest response.

    A prefix tree has the turns' common part once, so there can hardly be more.
    """
    pixels = config.browser.width * config.browser.height
    if config.model.max_pixels:
        pixels = min(pixels, config.model.max_pixels)
    screenshot = math.ceil(pixels / (vision.patch_size * vision.spatial_merge_size) ** 2)  # in tokens
    per_turn = config.agent.screenshots * screenshot
    turns = config.batch.micro_tokens // (per_turn + config.agent.response_tokens // 4)
    return max(1, turns) * per_turn * vision.spatial_merge_size**2


def activations(config: Config, e: int) -> tuple[int, int]:
    """Return the bytes of a row: those that the forward pass leaves for the backward pass, and the most that
    is beside them at a time: a layer, or the head, which needs more than the entropies.

    Liger never holds (N, V) logits, but, in float32, the gradients of the head (V, H) and of the hidden
    states (N, H). Attention's own blocks are small and left out.
    """
    model, tower = meta_model(config.model.path)
    tokens = config.batch.micro_tokens
    head = model.lm_head
    adapters = adapted(config, model)
    left = tokens * head.in_features * (4 + 2 * e)  # the last norm
    words = 0 if adapters else head.out_features  # a frozen head has no gradient
    moments = [4 * head.in_features * (words + tokens) + LIGER_BYTES]
    merging = [0]
    for layer in adapters:
        both = layer.in_features + layer.out_features
        merging.append((4 + e) * layer.weight.numel() + 4 * tokens * both)
    stacks = [(model.get_decoder().layers, tokens)]
    if tower:
        patches = row_patches(config, tower.config)
        trained = 0 if adapters or config.model.freeze_vision == "always" else patches
        stacks.append((tower.blocks, trained))
        mergers = sum(type(module).__name__.endswith("PatchMerger") for module in tower.modules())
        width, _, _ = layer_bytes(tower.blocks[0], e)
        left += patches * tower.patch_embed.proj.weight[0].numel() * (4 + e)  # the images
        left += trained * mergers * 3 * e * width  # norm, first layer, GELU
    for layers, length in stacks:
        for layer in layers:
            width, saved, passing = layer_bytes(layer, e)
            if config.model.gradient_checkpointing:  # what it would save is computed again, beside the rest
                passing += saved
                saved = e * width
            left += length * saved
            moments.append(length * passing)
    return left, max(moments) + max(merging)


@dataclass(frozen=True)
class Plan:
    """Bytes by item on each GPU, and `cpu` bytes of CPU memory for each."""

    title: str
    gpu_gb: float
    shards: dict[str, int]  # in both phases, with what else stays
    sampler: dict[str, int]  # in rollouts
    update: dict[str, int]
    cpu: int
    share: float  # of the GPU's memory, --sampler.gpu-memory

    @property
    def total(self) -> int:
        phases = sum(self.sampler.values()), sum(self.update.values())
        return sum(self.shards.values()) + max(phases)


def machine_of(text: str) -> tuple[int, float]:
    """Return how many GPUs a --plan names, and the GB of each. ValueError if it names none.

    >>> machine_of("8x80")
    (8, 80.0)
    """
    numbers = re.fullmatch(r"([1-9]\d*)x(\d+(?:\.\d+)?)", text)
    if not numbers:
        raise ValueError(f"--plan {text}: write 8x80 for eight GPUs of 80 GB")
    return int(numbers[1]), float(numbers[2])


def plan(config: Config) -> Plan:
    """Return the bytes that a run would hold on each GPU of --plan's machine."""
    gpus, gpu_gb = machine_of(config.plan or "")
    if config.model.path == "tiny":
        raise ValueError("--plan: a tiny model fits anywhere; name a larger recipe, such as openwebrl-4b")
    sharing, rest = divmod(gpus, config.optim.replicas)  # GPUs that share one copy of the weights
    if rest:
        raise ValueError(f"--optim.replicas does not divide the GPUs of --plan, {gpus}")
    model, _ = meta_model(config.model.path)
    e = 4 if config.model.dtype == "float32" else 2
    parameters = size(model)
    trained = trained_size(config, model)
    packed = packed_size(config, model)
    adapters = config.model.lora > 0

    # what stays in both phases
    weights = 4 * parameters // sharing
    gradients = 4 * trained // sharing
    shards = {"weights": weights}
    if adapters:
        shards = {"frozen weights": e * (parameters - packed) // sharing, "adapters": gradients}
    shards["AdamW moments"] = 2 * gradients
    if config.loss.kl and not adapters:
        shards["reference"] = weights
    cpu = 0
    if config.optim.offload:
        cpu = sum(shards.values()) + gradients
        shards = {}
        gradients = 0
    shards["CUDA, NCCL (assumed)"] = CUDA_BYTES
    if config.model.base_bits == 4:
        shards["packed weights"] = 9 * packed // 16  # half a byte, and 4 for every 64; on every GPU
    if config.judge.path:
        judge, _ = meta_model(config.judge.path)
        shards["the judge's weights"] = e * size(judge)
        shards["its KV cache (assumed)"] = JUDGE_BATCH * cache_bytes(judge, e, JUDGE_TOKENS)

    # the sampler's
    contexts = math.ceil(config.browser.episodes / gpus / EPISODES_PER_CONTEXT)
    sampler = {
        "sampler weights": e * parameters,
        "KV cache, at least": contexts * cache_bytes(model, e, config.agent.context_tokens),
        "vLLM (assumed)": VLLM_BYTES,
    }

    # the update's
    units = [size(module) for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    root = parameters - sum(units)
    left, moment = activations(config, e)
    # of adapters they are next to nothing
    gathered = 0 if adapters else e * root + (e + 4) * max(units)
    update = {
        "gradients": gradients,
        "gathered weights": e * (root if packed else root + 2 * max(units)),
        "gathered gradients": gathered,
        "activations": left,
        "one layer or the head": moment,
    }
    title = f"{config.recipe} on {gpus} x {gpu_gb:g} GB"
    return Plan(title, gpu_gb, shards, sampler, update, cpu, config.sampler.gpu_memory)


def show(plan: Plan) -> None:
    """Print the plan as a table, and the room that it leaves or the flags to try."""
    phases = (plan.shards | plan.sampler, plan.shards | plan.update)
    rows = []
    for item in phases[0] | phases[1]:
        rows.append([item, *[f"{phase.get(item, 0) / GB:.2f}" for phase in phases]])
    rows.append(["total", *[f"{sum(phase.values()) / GB:.2f}" for phase in phases]])
    print_table(["GB on each", "rollout", "update"], rows, title=plan.title)
    say(f"CPU memory for each GPU: {plan.cpu / GB:.1f} GB")
    spare = plan.gpu_gb - plan.total / GB
    if spare >= 0:
        least = sum(plan.sampler.values()) / GB / plan.gpu_gb
        most = 1 - sum(plan.shards.values()) / GB / plan.gpu_gb
        say(f"vLLM's share, --sampler.gpu-memory, must lie between {least:.2f} and {most:.2f}")
        if least <= plan.share <= most:
            say(f"it fits, with {spare:.1f} GB to spare", "bold green")
        else:
            say(f"it does not fit: --sampler.gpu-memory is {plan.share:g}", "bold red")
    else:
        say(f"it does not fit: {-spare:.1f} GB too much", "bold red")
        say(f"try, in this order: {' '.join(REMEDIES.split())}")
