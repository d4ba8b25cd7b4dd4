"""The policy: rows of ids and images in, log-probs of chosen tokens out, on as many ranks as there are.

Stands between rows and the trainer. The weights are sharded with FSDP2 (with replicas, HSDP): each decoder
layer and vision block is a unit; the policy is the root, which holds embeddings, head and norms. Shape
suffixes: B rows, L padded row length, N scored tokens of all rows, V vocabulary, H hidden size.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from minirl import four_bit, lora, prefix_tree
from minirl.config import Config
from minirl.distributed import Ranks
from minirl.loss import token_entropies, token_logprobs
from minirl.model import Preprocessor, compute_dtype, frozen

NEVER = -1e30  # added to a suppressed token's logit; finite, because blocks of logits get multiplied by 0


class Policy(nn.Module):
    """The trained model, and the distribution that is sampled from it. All that needs weights is in
    `forward`: a sharded module gathers them when it is called."""

    suppressed_V: Tensor  # with NEVER for tokens that the sampler can't choose

    def __init__(self, model: PreTrainedModel, preprocessor: Preprocessor, temperature: float):
        super().__init__()
        self.model: Any = model
        self.temperature = temperature
        head = self.model.get_output_embeddings()
        mask_V = torch.zeros(head.weight.shape[0], device=head.weight.device)
        mask_V[list(preprocessor.suppressed)] = NEVER
        self.register_buffer("suppressed_V", mask_V, persistent=False)

    def forward(
        self, inputs: dict[str, Any], sources_N: Tensor, targets_N: Tensor, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probs (N,) of `targets_N`, read at flat positions `sources_N`, and entropies."""
        hidden_BLH = self.model.model(**inputs, use_cache=False).last_hidden_state
        hidden_NH = hidden_BLH.flatten(0, 1)[sources_N]
        head = (self.model.get_output_embeddings().weight, self.suppressed_V, self.temperature)
        logprobs_N = token_logprobs(hidden_NH, targets_N, *head)
        logprobs_N = logprobs_N.masked_fill(self.suppressed_V[targets_N] < 0, float("-inf"))
        entropies_N = token_entropies(hidden_NH, *head) if entropy else None
        return logprobs_N, entropies_N


def make_policy(
    model: PreTrainedModel, preprocessor: Preprocessor, config: Config, ranks: Ranks, train: bool = True
) -> Policy:
    """Return the model as a policy on this rank, whole on one rank in float32 without --optim.offload, else
    sharded; what is trained is float32. ValueError if model or machine can't do what the config asks."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length, for up to a second
    text = model.config.get_text_config()
    names = ("logits_scaling", "logit_scale", "final_logit_softcapping")
    if any(getattr(text, name, None) not in (None, 1) for name in names):
        raise ValueError("--model.path: this model scales its logits, which is not done here; choose another")
    policy = Policy(model, preprocessor, config.sampler.temperature)
    policy.requires_grad_(train)
    dtype = compute_dtype(config.model, ranks.device)
    if config.model.lora:
        lora.attach(model, config.model.lora, config.seed, dtype)
    if config.model.base_bits == 4:
        four_bit.pack(model)
    if train and config.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in frozen(model, config.model):
        module.requires_grad_(False)
    if config.batch.layout == "tree":
        prefix_tree.enable(model)
    if ranks.world_size == 1 and dtype == torch.float32 and not config.optim.offload:
        return policy.to(ranks.device).float()
    if config.optim.offload and ranks.device.type != "cuda":
        raise ValueError("--optim.offload moves weights off a GPU; there is none")
    # inputs are cast at the root alone: inside, rotary tables are float32 on purpose
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    inner = replace(precision, cast_forward_inputs=False)
    if config.model.lora:  # a frozen weight has its type, and what adapts it stays float32
        inner = replace(inner, param_dtype=None)
    offload = CPUOffloadPolicy() if config.optim.offload else OffloadPolicy()
    shard = partial(fully_shard, mesh=ranks.mesh(config.optim.replicas), offload_policy=offload)
    for module in list(model.modules()):
        if isinstance(module, GradientCheckpointingLayer):
            shard(module, mp_policy=inner)
    shard(policy, mp_policy=precision)
    return policy if config.model.lora else policy.float()
