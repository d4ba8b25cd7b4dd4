"""The clipped surrogate with a weight and an advantage for every response token.

    loss = sum over tokens of  weight * max(-ratio * A, -clip(ratio, 1 - low, 1 + high) * A)

where ratio = exp(logprob - old logprob), and the old log-probs are the sampler's own. Pure functions:
tensors in, loss and metrics out. OpenWebRL section 3.4 (and DAPO's asymmetric clip). The weight says how
tokens are averaged; denominators are of the whole minibatch, so that splitting it into micro-batches
changes nothing:

    openwebrl   1 / (|response| * turns of the minibatch): the mean over turns of each turn's token mean,
                without a 1/T, so that a long trajectory counts for more than a short one
"""

from __future__ import annotations

import torch
from torch import Tensor

from minirl.config import LossConfig


def openwebrl_weights(length_N: Tensor, turns: int) -> Tensor:
    """Token weights from each token's response length and the number of turns in the minibatch."""
    return 1 / (length_N * turns)


def policy_loss(
    logprobs_N: Tensor, old_N: Tensor, advantage_N: Tensor, weight_N: Tensor, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted clipped loss, and sums over tokens for the metrics (divide by "tokens")."""
    ratio_N = (logprobs_N - old_N).exp()
    clipped_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    per_token_N = torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)
    loss = (weight_N * per_token_N).sum()
    with torch.no_grad():
        cut_N = (clipped_N != ratio_N) & (per_token_N > -ratio_N * advantage_N)
        sums = {
            "tokens": torch.tensor(float(len(ratio_N))),
            "ratio": ratio_N.sum(),
            "ratio_max": ratio_N.max(),
            "clipped": cut_N.sum(),
        }
    return loss, sums


def imitation_loss(logprobs_N: Tensor, tokens: int) -> Tensor:
    """Behaviour cloning: the mean over the batch's response tokens of -log p."""
    return -logprobs_N.sum() / tokens
