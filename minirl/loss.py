"""The loss: a weight and an advantage for every response token. Stands between rows and the optimizer.

    grpo         sum of  w * [ max(-ratio * A, -clip(ratio, 1 - low, 1 + high) * A)  +  kl * k3 ]
    filtered-bc  sum of  w * -logprob, over the successes only (or demonstrations: imitation)
    awr          sum of  w * -logprob * exp(A), A = reward - group mean

ratio = exp(logprob - old), where old is the sampler's log-prob, by which the episodes were drawn. (In
WebAgent-R1's code the trainer computes it again: one more forward pass, which hides how far they are apart.)
k3 = exp(ref - logprob) - (ref - logprob) - 1. How tokens are averaged is all in w: with |r| the length of a
response, T the turns of its trajectory, G the trajectories of its group

    openwebrl        1 / (|r| * turns of the minibatch), as in the released code
    openwebrl-paper  1 / (|r| * trajectories of the minibatch), the paper's formula
    webagent-r1      1 / (|r| * T * G * groups), M-GRPO; the released code's is `grpo` here
    grpo             1 / (tokens of the trajectory * G * groups)
    token-mean       1 / (tokens of the minibatch), DAPO, as the asymmetric clip

Denominators are of the whole minibatch, over all ranks, so that cutting it up changes nothing. OpenWebRL,
section 4.4, WebAgent-R1, sections 2.3 and 3.2. Suffixes: N response tokens, H hidden size, V vocabulary.
Deviations, which no ordinary token meets:
1. A ratio is at most e^20, without a gradient there: float32 ends at e^88, and 0 times infinity is NaN.
2. k3 goes on as a line where the reference is more than 5 nats above, so that one token can't be the whole
   update. It still pulls towards the reference.
3. `--loss.dual-clip C` bounds a token's loss at C * |A| where A is negative (arXiv 1912.09729); no paper's
   recipe sets it.
"""

import math
from collections.abc import Mapping

import torch
from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase
from torch import Tensor

from minirl.config import LossConfig

CLIP_LOW = 0.2  # of all three papers
MAX_LOG_RATIO = 20.0
MAX_BEHIND = 5.0  # nats that the reference is above, from which on k3 is a line


def token_logprobs(
    hidden_NH: Tensor, targets_N: Tensor, weight_VH: Tensor, bias_V: Tensor, temperature: float
) -> Tensor:
    """Return log softmax((hidden @ weight.T + bias) / temperature) at the targets, (N,) in float32, over
    blocks of the vocabulary: there are never (N, V) logits."""
    args = (hidden_NH[None], weight_VH, targets_N[None])
    return LigerFusedLinearPPOBase.chunk_forward(*args, bias=bias_V, temperature=temperature)[0]


@torch.no_grad()
def token_entropies(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor, temperature: float) -> Tensor:
    """Return the entropies (N,) of the same distributions."""
    out = []
    for part_nH in hidden_NH.split(256):
        logits_nV = (part_nH @ weight_VH.T + bias_V).float() / temperature
        logprobs_nV = logits_nV.log_softmax(-1)
        out.append(-(logprobs_nV.exp() * logprobs_nV.clamp_min(-1e4)).sum(-1))
    return torch.cat(out)


def turn_weights(
    groups: list[int], lengths: list[list[int]], config: LossConfig, sizes: Mapping[int, int]
) -> list[list[float]]:
    """Return the weight of each token of every turn. Trajectory i belongs to group `groups[i]`, its responses
    are `lengths[i]` long, and each group has `sizes` trajectories in the whole step. For groups [0, 0],
    lengths [[2], [4, 1]] and sizes {0: 2} WebAgent-R1's are [[0.25], [0.0625, 0.25]]."""
    mean_size = sum(sizes.values()) / len(sizes)
    turns = sum(len(responses) for responses in lengths)
    tokens = sum(sum(responses) for responses in lengths)
    weights = []
    for group, responses in zip(groups, lengths, strict=True):
        share = mean_size / sizes[group] / len(groups)  # 1 / (G * groups), if all of the step are here
        match config.weighting:
            case "openwebrl":
                each_turn = [1 / (n * turns) for n in responses]
            case "openwebrl-paper":
                each_turn = [1 / (n * len(lengths)) for n in responses]
            case "webagent-r1":
                each_turn = [share / (n * len(responses)) for n in responses]
            case "grpo":
                each_turn = [share / sum(responses)] * len(responses)
            case "token-mean":
                each_turn = [1 / tokens] * len(responses)
        weights.append(each_turn)
    return weights


def policy_loss(
    logprobs_N: Tensor,
    old_N: Tensor,
    ref_N: Tensor | None,
    advantage_N: Tensor,
    weight_N: Tensor,
    config: LossConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted clipped loss, and sums over the tokens of positive weight (divide by "tokens")."""
    counts_N = weight_N > 0  # selected, not multiplied: 0 times infinity is NaN
    logprobs_N = logprobs_N[counts_N]
    old_N = old_N[counts_N]
    advantage_N = advantage_N[counts_N]
    gap_N = logprobs_N - old_N
    ratio_N = gap_N.clamp(max=MAX_LOG_RATIO).exp()
    clipped_N = ratio_N.clamp(1 - CLIP_LOW, 1 + config.clip_high)
    per_token_N = torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)
    if config.dual_clip:
        per_token_N = per_token_N.minimum(config.dual_clip * advantage_N.abs())
    with torch.no_grad():
        is_clipped_N = per_token_N != -ratio_N * advantage_N
        sums = {
            "tokens": counts_N.sum(),
            "ratio": ratio_N.sum(),
            "ratio_max": ratio_N.max() if len(ratio_N) else torch.tensor(0.0),
            "gap": gap_N.abs().sum(),
            "gap_max": gap_N.abs().max() if len(gap_N) else torch.tensor(0.0),
            "clipped": is_clipped_N.sum(),
            "clipped_high": (is_clipped_N & (ratio_N > 1)).sum(),
        }
    if config.kl:
        assert ref_N is not None, "the reference's log-probs"
        behind_N = ref_N[counts_N] - logprobs_N
        line_N = math.exp(MAX_BEHIND) * (behind_N - MAX_BEHIND).relu()
        k3_N = behind_N.clamp(max=MAX_BEHIND).exp() + line_N - behind_N - 1
        per_token_N = per_token_N + config.kl * k3_N
        sums["kl"] = k3_N.detach().sum()
    return (weight_N[counts_N] * per_token_N).sum(), sums


def likelihood_loss(logprobs_N: Tensor, advantage_N: Tensor, weight_N: Tensor) -> Tensor:
    """Return the weighted negative log-likelihood: imitation, filtered behaviour cloning and AWR."""
    return -(weight_N * advantage_N * logprobs_N).sum()
