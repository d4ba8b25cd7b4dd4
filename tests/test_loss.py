"""The clipped surrogate and its weights, by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from minirl.config import LossConfig
from minirl.loss import imitation_loss, openwebrl_weights, policy_loss

CLIP = LossConfig(clip_low=0.2, clip_high=0.28)  # ratios are clipped to 0.8 .. 1.28


def of_ratios(ratios, advantages, weights=None, config=CLIP):
    """Loss, metrics and gradient for tokens whose probability has changed by these ratios."""
    old_N = torch.tensor([-1.0] * len(ratios))
    logprobs_N = (old_N + torch.tensor([log(r) for r in ratios])).requires_grad_()
    weight_N = torch.tensor(weights or [1.0] * len(ratios))
    loss, sums = policy_loss(logprobs_N, old_N, torch.tensor(advantages), weight_N, config)
    loss.backward()
    return loss.item(), sums, logprobs_N.grad.tolist()


# The gradient of -ratio * A with respect to the log-prob is -ratio * A, and 0 where the ratio is clipped.
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -1.28 * 2, 0.0),  # better, and already much more likely: clipped
        (0.5, 2.0, -0.5 * 2, -0.5 * 2),  # better, but less likely: pulled up
        (1.5, -2.0, 1.5 * 2, 1.5 * 2),  # worse, but more likely: pushed down
        (0.5, -2.0, 0.8 * 2, 0.0),  # worse, and already much less likely: clipped
        (1.25, 2.0, -1.25 * 2, -1.25 * 2),  # within 1.28: the upper side is the wider one
        (0.75, -2.0, 0.8 * 2, 0.0),  # beyond 0.8: the lower side is the narrower one
        (0.85, -2.0, 0.85 * 2, 0.85 * 2),
        (1.0, 2.0, -2.0, -2.0),
        (1.0, -2.0, 2.0, 2.0),
    ],
)
def test_clipping_on_either_side(ratio, advantage, loss, gradient):
    value, _, (grad,) = of_ratios([ratio], [advantage])
    assert value == pytest.approx(loss, rel=1e-6)
    assert grad == pytest.approx(gradient, rel=1e-6, abs=0)


def test_a_symmetric_clip_cuts_what_the_asymmetric_one_lets_pass():
    _, _, (grad,) = of_ratios([1.25], [2.0], config=LossConfig(clip_low=0.2, clip_high=0.2))
    assert grad == 0.0


def test_the_loss_is_the_weighted_sum():
    # 0.5 * (-1.28 * 1) + 0.25 * (1.5 * 1) + 0.25 * (-1 * 3) = -0.64 + 0.375 - 0.75
    loss, _, gradient = of_ratios([2.0, 1.5, 1.0], [1.0, -1.0, 3.0], weights=[0.5, 0.25, 0.25])
    assert loss == pytest.approx(-1.015)
    assert gradient == pytest.approx([0.0, 0.375, -0.75])


def test_no_advantage_no_gradient():
    _, _, gradient = of_ratios([0.5, 1.0, 2.0], [0.0, 0.0, 0.0])
    assert gradient == [0.0, 0.0, 0.0]


def test_metrics_count_only_what_the_clip_changed():
    """Ratios 1.5 and 0.5 are outside on the harmless side for the last two tokens."""
    _, sums, _ = of_ratios([1.5, 0.5, 1.1, 1.5, 0.5], [1.0, -1.0, 1.0, -1.0, 1.0])
    assert {name: value.item() for name, value in sums.items()} == pytest.approx(
        {"tokens": 5, "ratio": 5.1, "ratio_max": 1.5, "clipped": 2}
    )


def test_openwebrl_weights_of_turns_of_unequal_length():
    """Two turns, of 1 and 4 tokens: each turn weighs a half, whatever its length."""
    weights = openwebrl_weights(torch.tensor([1.0, 4.0, 4.0, 4.0, 4.0]), turns=2)
    assert weights.tolist() == [0.5, 0.125, 0.125, 0.125, 0.125]


def test_openwebrl_does_not_divide_by_the_turns_of_a_trajectory():
    """Of 4 turns in the minibatch three belong to one trajectory: it counts three times the other's."""
    lengths = torch.tensor([2.0, 2.0] * 4)
    weights = openwebrl_weights(lengths, turns=4)
    assert weights[:6].sum().item() == pytest.approx(0.75) and weights[6:].sum().item() == pytest.approx(0.25)


def test_imitation_is_the_mean_over_all_tokens_of_the_batch():
    # two of the batch's five tokens: (1 + 3) / 5
    logprobs_N = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss = imitation_loss(logprobs_N, tokens=5)
    loss.backward()
    assert loss.item() == pytest.approx(0.8)
    assert logprobs_N.grad.tolist() == pytest.approx([-0.2, -0.2])
