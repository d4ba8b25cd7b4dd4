"""The loss: a weight and an advantage for every response token. Stands between rows and the optimizer.

    grpo         sum of  w * [ max(-ratio * A, -clip(ratio, 1 - low, 1 + high) * A)  +  kl * k3 ]
    filtered-bc  sum of  w * -logprob, over the successes only (online: each step's own)
    awr          sum of  w * -logprob * exp(A / temperature), A = reward - group mean
    imitation    filtered-bc on demonstrations

ratio = exp(logprob - old), where old is the sampler's log-prob or, with `--loss.old recompute`, the trainer's
before the step's first update; then a token's weight is multiplied by min(trainer / sampler, correction),
truncated importance sampling. k3 = exp(ref - logprob) - (ref - logprob) - 1, never negative, zero at the
reference. Every log-prob is of the tempered distribution over the tokens that the sampler may choose.

The papers differ in how tokens are averaged, which is all in w. In a minibatch, |r| is the length of a
response, T the turns of its trajectory, G the trajectories of its group:

    openwebrl    1 / (|r| * turns of the minibatch)     mean over turns of each turn's token mean, as in the
                 released code; the paper's formula divides by the trajectories (`--loss.over trajectories`).
    webagent-r1  1 / (|r| * T * G * groups)             mean over tokens, turns, group, tasks: M-GRPO. The
                 released code takes one token mean per trajectory, which is `grpo` here.
    grpo         1 / (tokens of the trajectory * G * groups)
    token-mean   1 / (tokens of the minibatch)          DAPO

Denominators are of the whole minibatch, over all ranks, so that cutting it up changes nothing. OpenWebRL
section 3.4, WebAgent-R1 section 3 (its baselines: section 4). Asymmetric clip: DAPO.

Shape suffixes: N response tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase
from torch import Tensor

from minirl.config import LossConfig


def token_logprobs(
    hidden_NH: Tensor, targets_N: Tensor, weight_VH: Tensor, bias_V: Tensor, temperature: float
) -> Tensor:
    """Return log softmax((hidden @ weight.T + bias) / temperature) at the targets, (N,) in float32. In both
    passes Liger goes over blocks of the vocabulary, so that there are never (N, V) logits."""
    args = (hidden_NH[None], weight_VH, targets_N[None])
    return LigerFusedLinearPPOBase.chunk_forward(*args, bias=bias_V, temperature=temperature)[0]


@torch.no_grad()
def token_entropies(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor, temperature: float, chunk: int = 256
) -> Tensor:
    """Return the entropies (N,) of the same distributions; a metric, without gradient."""
    out = []
    for part_nH in hidden_NH.split(chunk):
        logits_nV = (part_nH @ weight_VH.T + bias_V).float() / temperature
        logprobs_nV = logits_nV.log_softmax(-1)
        out.append(-(logprobs_nV.exp() * logprobs_nV.clamp_min(-1e4)).sum(-1))
    return torch.cat(out)


def turn_weights(
    groups: Sequence[int],
    lengths: Sequence[Sequence[int]],
    config: LossConfig,
    sizes: Mapping[int, int] | None = None,
) -> list[list[float]]:
    """Return the weight of each token of every turn of a minibatch's trajectories.

    Trajectory i belongs to group `groups[i]`, and its responses are `lengths[i]` long. `sizes` says how many
    trajectories each group has in the whole step (by default: here), so that a group's only one in this
    minibatch does not get the weight of all.

    Two trajectories of one group, of one turn of 2 tokens and of two turns of 4 and 1 tokens:

    >>> [[round(w, 4) for w in row] for row in turn_weights([0, 0], [[2], [4, 1]], LossConfig())]
    [[0.1667], [0.0833, 0.3333]]
    >>> turn_weights([0, 0], [[2], [4, 1]], LossConfig(weighting="webagent-r1"))
    [[0.25], [0.0625, 0.25]]
    """
    sizes = sizes or Counter(groups)
    mean_size = sum(sizes.values()) / len(sizes)
    over = sum(map(len, lengths)) if config.over == "turns" else len(lengths)
    tokens = sum(map(sum, lengths))
    shares = [mean_size / sizes[group] / len(groups) for group in groups]  # 1 / (G * groups), if all are here
    weight = {
        "openwebrl": lambda n, own, share: 1 / (n * over),
        "webagent-r1": lambda n, own, share: share / (n * len(own)),
        "grpo": lambda n, own, share: share / sum(own),
        "token-mean": lambda n, own, share: 1 / tokens,
    }[config.weighting]
    return [[weight(n, own, share) for n in own] for own, share in zip(lengths, shares, strict=True)]


def truncated_correction(trainer: Sequence[float], sampler: Sequence[float], limit: float) -> list[float]:
    """Return min(p trainer / p sampler, limit) for every token; all 1 if the limit is 0."""
    if not limit:
        return [1.0] * len(trainer)
    difference = torch.tensor(trainer) - torch.tensor(sampler)
    return difference.exp().clamp_max(limit).tolist()


def policy_loss(
    logprobs_N: Tensor,
    old_N: Tensor,
    ref_N: Tensor | None,
    advantage_N: Tensor,
    weight_N: Tensor,
    config: LossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted clipped loss, and sums over the tokens of positive weight (divide by "tokens")."""
    counts_N = weight_N > 0  # by selection: 0 times an overflow would be no number
    logprobs_N, old_N, advantage_N = logprobs_N[counts_N], old_N[counts_N], advantage_N[counts_N]
    ratio_N = (logprobs_N - old_N).exp()
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    per_token_N = torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)
    sums = {
        "tokens": torch.tensor(float(len(ratio_N))),
        "ratio": ratio_N.detach().sum(),
        "ratio_max": ratio_N.detach().max() if len(ratio_N) else torch.tensor(0.0),
        "clipped": (per_token_N > -ratio_N * advantage_N).sum(),
    }
    if config.kl:
        assert ref_N is not None, "the reference's log-probs"
        behind_N = ref_N[counts_N] - logprobs_N
        k3_N = behind_N.exp() - behind_N - 1
        per_token_N = per_token_N + config.kl * k3_N
        sums["kl"] = k3_N.detach().sum()
    return (weight_N[counts_N] * per_token_N).sum(), sums


def likelihood_loss(logprobs_N: Tensor, advantage_N: Tensor, weight_N: Tensor) -> Tensor:
    """Return the weighted negative log-likelihood: imitation, filtered behaviour cloning and AWR."""
    return -(weight_N * advantage_N * logprobs_N).sum()
