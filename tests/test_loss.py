"""What is minimised, against numbers worked out by hand, the papers' formulas, and TRL's loss."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from random import Random
from statistics import mean
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minirl.config import LossConfig
from minirl.loss import CLIP_LOW, likelihood_loss, policy_loss, turn_weights

CLIP = LossConfig(clip_high=0.28)  # ratios are clipped to 0.8 .. 1.28


def of_ratios(
    ratios: Sequence[float],
    advantages: Sequence[float],
    weights: Sequence[float] | None = None,
    config: LossConfig = CLIP,
    behind: Sequence[float] | None = None,
) -> tuple[float, dict[str, float], list[float]]:
    """Loss, metrics and gradient for tokens whose probability has changed by these ratios; `behind` is by how
    much the reference's log-probs are above theirs."""
    old_N = torch.tensor([-1.0] * len(ratios))
    logprobs_N = (old_N + torch.tensor([log(r) for r in ratios])).requires_grad_()
    ref_N = None if behind is None else logprobs_N.detach() + torch.tensor(behind)
    weight_N = torch.tensor(weights or [1.0] * len(ratios))
    loss, sums = policy_loss(logprobs_N, old_N, ref_N, torch.tensor(advantages), weight_N, config)
    loss.backward()
    return loss.item(), {name: value.item() for name, value in sums.items()}, logprobs_N.grad.tolist()


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
        (2.0, 0.0, 0.0, 0.0),  # no advantage, no gradient
    ],
)
def test_clipping_on_either_side(ratio, advantage, loss, gradient):
    value, _, (grad,) = of_ratios([ratio], [advantage])
    assert value == pytest.approx(loss, rel=1e-6)
    assert grad == pytest.approx(gradient, rel=1e-6, abs=0)


def test_the_loss_is_the_weighted_sum():
    # 0.5 * (-1.28 * 1) + 0.25 * (1.5 * 1) + 0.25 * (-1 * 3) = -0.64 + 0.375 - 0.75
    loss, _, gradient = of_ratios([2.0, 1.5, 1.0], [1.0, -1.0, 3.0], weights=[0.5, 0.25, 0.25])
    assert loss == pytest.approx(-1.015)
    assert gradient == pytest.approx([0.0, 0.375, -0.75])


def test_metrics_count_only_what_the_clip_changed():
    """Ratios 1.5 and 0.5 are outside on the harmless side for the last two tokens."""
    _, sums, _ = of_ratios([1.5, 0.5, 1.1, 1.5, 0.5], [1.0, -1.0, 1.0, -1.0, 1.0])
    gaps = {"gap": 2 * log(1.5) + 2 * log(2) + log(1.1), "gap_max": log(2)}  # of log-probs, either way
    counts = {"tokens": 5, "clipped": 2, "clipped_high": 1}
    assert sums == pytest.approx({"ratio": 5.1, "ratio_max": 1.5, **counts, **gaps})


# k3 = exp(d) - d - 1 with d = ref - logprob; its gradient with respect to the log-prob is 1 - exp(d).
@pytest.mark.parametrize(
    ("behind", "k3", "gradient"),
    [
        (log(2), 2 - log(2) - 1, -1.0),  # half as likely as in the reference: pulled up
        (-log(2), 0.5 + log(2) - 1, 0.5),  # twice as likely: pushed down, more gently
    ],
)
def test_k3_by_hand(behind, k3, gradient):
    loss, sums, (grad,) = of_ratios([1.0], [0.0], [0.5], LossConfig(kl=0.1), [behind])
    assert loss == pytest.approx(0.5 * 0.1 * k3, abs=1e-7)
    assert grad == pytest.approx(0.5 * 0.1 * gradient, abs=1e-7)
    assert sums["kl"] == pytest.approx(k3, abs=1e-6)  # the metric is the divergence itself


INF = float("inf")


def alone_among(size: int, gap: float, behind: float, advantage: float, config: LossConfig) -> Tensor:
    """The gradient of a batch in which the first token alone is `gap` nats above the sampler's log-prob and
    `behind` below the reference's."""
    logprobs_N = torch.full((size,), -2.0)
    logprobs_N[0] = -92.0
    old_N, ref_N = logprobs_N.clone(), logprobs_N.clone()
    old_N[0] -= gap
    ref_N[0] += behind
    logprobs_N.requires_grad_()
    weight_N = torch.full((size,), 1 / size)
    loss, _ = policy_loss(logprobs_N, old_N, ref_N, torch.full((size,), advantage), weight_N, config)
    loss.backward()
    assert loss.isfinite()
    return logprobs_N.grad


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("gap", "behind", "gradient"),
    [
        (90, 0, 0.0),  # clipped or, with a negative advantage, bounded
        (-90, 0, 0.0),
        (INF, 0, 0.0),  # the sampler gave it no probability
        (0, 90, 0.04 * (1 - exp(5))),  # pulled up as at 5 nats
        (0, -90, 0.04),
    ],
)
def test_a_token_far_away_has_a_finite_gradient_and_leaves_the_others_theirs(
    gap, behind, gradient, advantage
):
    first, *others = 3 * alone_among(3, gap, behind, advantage, LossConfig(kl=0.04)).double()
    on_policy = -advantage if gap == 0 else 0.0
    assert first.item() == pytest.approx(on_policy + gradient, abs=1e-4)
    assert [grad.item() for grad in others] == pytest.approx([-advantage] * 2)


@pytest.mark.parametrize(
    ("gap", "behind", "advantage"),
    [
        *((gap, 0.0, -1.0) for gap in (2.2, 5, 8, 12, 19, 90)),
        *((0.0, behind, 0.1) for behind in (5, 12, 20, 90)),
    ],
)
@pytest.mark.parametrize("kl", [0.001, 0.04])
def test_with_a_dual_clip_one_token_of_10_000_is_never_a_tenth_of_the_update(gap, behind, advantage, kl):
    def share(dual_clip: float | None) -> float:
        config = LossConfig(kl=kl, dual_clip=dual_clip)
        size_N = alone_among(10_000, gap, behind, advantage, config).abs().double()
        return (size_N[0] / size_N.sum()).item()

    assert share(10.0) < 0.1
    assert gap not in (12, 19) or share(None) > 0.9, "the control"


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(12.0, -2.0, 20.0, 0.0), (9.0, -2.0, 18.0, 18.0), (12.0, 2.0, -2.56, 0.0), (0.5, -2.0, 1.6, 0.0)],
)
def test_a_dual_clip_by_hand(ratio, advantage, loss, gradient):
    value, sums, (grad,) = of_ratios([ratio], [advantage], config=replace(CLIP, dual_clip=10.0))
    assert (value, grad) == (pytest.approx(loss), pytest.approx(gradient))
    assert sums["clipped"] == (gradient == 0) and sums["clipped_high"] == (gradient == 0 and ratio > 1)


def test_ordinary_tokens_are_as_without_any_bound_to_the_bit():
    """The plain formula, value and gradient, up to 4.9 nats either way."""
    noise_5N = torch.rand(5, 500, generator=torch.Generator().manual_seed(0))
    logprobs_N = (-10 * noise_5N[0]).requires_grad_()
    old_N, ref_N = (logprobs_N.detach() + 9.8 * (noise_N - 0.5) for noise_N in noise_5N[1:3])
    advantage_N, weight_N = noise_5N[3] - 0.5, noise_5N[4]
    ratio_N, behind_N = (logprobs_N - old_N).exp(), ref_N - logprobs_N
    clipped_N = ratio_N.clamp(0.8, 1.28)
    plain_N = torch.maximum(-ratio_N * advantage_N, -clipped_N * advantage_N)
    plain = (weight_N * (plain_N + 0.04 * (behind_N.exp() - behind_N - 1))).sum()
    loss, _ = policy_loss(logprobs_N, old_N, ref_N, advantage_N, weight_N, replace(CLIP, kl=0.04))
    assert loss == plain
    ours, theirs = (torch.autograd.grad(value, logprobs_N)[0] for value in (loss, plain))
    assert torch.equal(ours, theirs)


def test_without_kl_nothing_of_a_reference_counts():
    loss, sums, _ = of_ratios([1.0], [1.0], config=LossConfig(kl=0.0), behind=[3.0])
    assert loss == -1.0 and "kl" not in sums


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_token_of_weight_0_is_in_no_statistic_and_has_no_gradient(kl):
    """The other two tokens' loss, metrics and gradient are what they are without it."""
    config = LossConfig(kl=kl)
    three = of_ratios([1.5, 40.0, 0.9], [1.0, -7.0, -1.0], [0.5, 0.0, 0.25], config, [0.2, 3.0, -0.1])
    two = of_ratios([1.5, 0.9], [1.0, -1.0], [0.5, 0.25], config, [0.2, -0.1])
    assert three[0] == pytest.approx(two[0])
    assert three[1] == pytest.approx(two[1]) and three[1]["tokens"] == 2
    assert three[2] == pytest.approx([two[2][0], 0.0, two[2][1]]) and three[2][1] == 0.0


def test_a_micro_batch_of_such_tokens_alone_counts_for_nothing():
    loss, sums, gradient = of_ratios([1.5, 0.5], [1.0, 1.0], [0.0, 0.0], LossConfig(kl=0.1), [1.0, 1.0])
    assert loss == 0.0 and gradient == [0.0, 0.0]
    assert len(sums) == 8 and not any(sums.values())


@pytest.mark.parametrize("weighting", ["webagent-r1", "grpo"])
def test_in_a_part_of_the_step_trajectories_weigh_as_in_the_whole(weighting):
    """A group of three and one of one, cut into two minibatches: the group's lone member in the second must
    not weigh as much as its whole group. Each half's weights are twice those of the whole step."""
    config, groups, lengths = LossConfig(weighting=weighting), [0, 0, 0, 1], [[2], [4, 1], [3], [5]]
    whole = turn_weights(groups, lengths, config, Counter(groups))
    sizes = {0: 3, 1: 1}
    halves = [turn_weights(groups[i : i + 2], lengths[i : i + 2], config, sizes) for i in (0, 2)]
    for own, expected in zip([*halves[0], *halves[1]], whole, strict=True):
        assert own == pytest.approx([2 * w for w in expected])
    # the control: what counting here alone would give
    alone = turn_weights(groups[2:], lengths[2:], config, Counter(groups[2:]))
    assert alone[0] != pytest.approx(halves[1][0])


# The group of each trajectory with the lengths of its responses, in any order.
MINIBATCHES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=5)), min_size=1, max_size=12
)
Tree = list[list[list[list[float]]]]  # group, trajectory, turn, token


def webagent_r1(tree: Tree) -> float:
    """M-GRPO as the paper writes it: the mean over tasks, episodes, turns, tokens."""
    return mean(mean(mean(mean(turn) for turn in episode) for episode in group) for group in tree)


FORMULAS = {
    LossConfig(weighting="webagent-r1"): webagent_r1,
    # all turns of the minibatch are alike
    LossConfig(): lambda tree: mean(mean(turn) for group in tree for episode in group for turn in episode),
    # the sum over a trajectory's turns, averaged over trajectories
    LossConfig(weighting="openwebrl-paper"): lambda tree: mean(
        sum(mean(turn) for turn in episode) for group in tree for episode in group
    ),
    # a trajectory is one long response
    LossConfig(weighting="grpo"): lambda tree: mean(
        mean(mean(sum(episode, [])) for episode in group) for group in tree
    ),
    LossConfig(weighting="token-mean"): lambda tree: mean(
        value for group in tree for episode in group for turn in episode for value in turn
    ),
}


@pytest.mark.parametrize("config", FORMULAS, ids=lambda c: c.weighting)
@given(minibatch=MINIBATCHES, seed=st.integers(0, 99))
def test_the_weighted_sum_is_the_formula(config, minibatch, seed):
    """The paper's nested means over any per-token values, against weights times values."""
    random = Random(seed)
    values = [[[random.uniform(-2, 2) for _ in range(n)] for n in own] for _, own in minibatch]
    numbers, lengths = zip(*minibatch, strict=True)
    by_group = defaultdict(list)
    for number, episode in zip(numbers, values, strict=True):
        by_group[number].append(episode)
    names = [f"task {number}" for number in numbers]
    weights = turn_weights(names, lengths, config, Counter(names))
    pairs = zip(itertools.chain(*weights), itertools.chain(*values), strict=True)
    weighted = sum(w * value for w, turn in pairs for value in turn)
    assert weighted == pytest.approx(FORMULAS[config](list(by_group.values())), abs=1e-9)


def test_likelihood_by_hand():
    """The advantage of filtered behaviour cloning is 1 or 0, that of AWR anything up to its limit."""
    logprobs_N = torch.tensor([-1.0, -3.0, -2.0], requires_grad=True)
    value = likelihood_loss(logprobs_N, torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.5, 0.25, 0.25]))
    value.backward()
    assert value.item() == pytest.approx(0.5 * 1 * 1 + 0.25 * 2 * 3 + 0.25 * 0 * 2)
    assert logprobs_N.grad.tolist() == pytest.approx([-0.5, -0.5, 0.0])


Turns = list[list[Tensor]]  # of each trajectory
# Two groups of three trajectories, of unequal turns of unequal length.
TRL_GROUPS = [0, 0, 0, 1, 1, 1]
TRL_LENGTHS = [[3, 1], [2], [1, 4, 2], [5], [2, 2], [1]]
TRL_ADVANTAGES = [1.1, -0.4, -0.7, 0.3, -1.2, 0.9]
LONGEST = 40  # tokens of a completion, by which Dr. GRPO divides


class Result(NamedTuple):
    loss: float
    gradient: list[float]  # with respect to the log-probs
    clipped: float  # share of the tokens
    kl: float  # mean over the tokens

    def near(self, other: "Result") -> bool:
        values, others = ([r.loss, *r.gradient, r.clipped, r.kl] for r in (self, other))
        return values == pytest.approx(others, rel=0, abs=1e-6)


def trl_numbers() -> tuple[Tensor, Turns]:
    """A leaf with all tokens' log-probs, and the turns; a token's columns are log-prob, old, ref, advantage
    and 1, for sampled."""
    generator = torch.Generator().manual_seed(0)
    noise_N3 = torch.randn(sum(map(sum, TRL_LENGTHS)), 3, generator=generator, dtype=torch.float64)
    leaf_N = (noise_N3[:, 0] * 0.3 - 1).requires_grad_()
    old_N, ref_N = (leaf_N.detach()[:, None] + noise_N3[:, 1:] * 0.4).T
    advantages = [a for own, a in zip(TRL_LENGTHS, TRL_ADVANTAGES, strict=True) for _ in range(sum(own))]
    advantage_N = torch.tensor(advantages, dtype=torch.float64)
    columns_NC = torch.stack((leaf_N, old_N, ref_N, advantage_N, torch.ones_like(old_N)), -1)
    turns = iter(columns_NC.split(list(itertools.chain(*TRL_LENGTHS))))
    return leaf_N, [[next(turns) for _ in own] for own in TRL_LENGTHS]


Batches = list[list[Tensor]]  # of TRL's sequences; the mean of their losses is taken


def per_turn(trajectories: Turns) -> Batches:
    """One of TRL's sequences for each turn."""
    return [[turn for own in trajectories for turn in own]]


def turns_of_each(trajectories: Turns) -> Batches:
    """A batch for each trajectory, with a sequence for each turn: M-GRPO averages turns within an episode."""
    return trajectories


def per_trajectory(trajectories: Turns) -> Batches:
    """One for each trajectory, with two tokens from the environment after each turn: TRL masks them out."""
    between = torch.tensor([[-3.0, -2.0, -1.0, 5.0, 0.0]] * 2, dtype=torch.float64)
    return [[torch.cat([part for turn in own for part in (turn, between)]) for own in trajectories]]


def of_trl(loss_type: str, layout: Callable[[Turns], Batches], config: LossConfig) -> Result:
    """From TRL's own code, batch by batch."""
    leaf_N, trajectories = trl_numbers()
    loss, clipped, kl, tokens = torch.tensor(0.0, dtype=torch.float64), 0.0, 0.0, 0.0
    batches = layout(trajectories)
    for rows in batches:
        own_loss, own_clipped, own_kl = trl_batch(loss_type, rows, config)
        n = torch.cat(rows)[:, -1].sum().item()
        loss = loss + own_loss / len(batches)
        clipped, kl, tokens = clipped + n * own_clipped, kl + n * own_kl, tokens + n
    if loss_type == "dr_grpo":  # over a constant, not over the tokens
        loss = loss * len(batches[0]) * LONGEST / tokens
    if config.weighting == "openwebrl-paper":  # turns are summed up, not averaged
        loss = loss * sum(map(len, TRL_LENGTHS)) / len(TRL_LENGTHS)
    (gradient_N,) = torch.autograd.grad(loss, leaf_N)
    return Result(loss.item(), gradient_N.tolist(), clipped / tokens, kl / tokens)


def trl_batch(loss_type: str, rows: list[Tensor], config: LossConfig) -> tuple[Tensor, float, float]:
    """TRL's loss, clipped share and KL, with a stand-in for a trainer that would have a model."""
    pytest.importorskip("trl")
    from trl import GRPOTrainer  # slow to import, so only where it is used

    columns = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).unbind(-1)
    new_BT, old_BT, ref_BT, advantage_BT, sampled_BT = columns
    there_BT = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new_BT, torch.zeros_like(old_BT), None),
        loss_type=loss_type,
        beta=config.kl,
        epsilon_low=CLIP_LOW,
        epsilon_high=config.clip_high,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=config.dual_clip, steps_per_generation=1),
        importance_sampling_level="token",
        max_completion_length=LONGEST,
        use_vllm=False,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": there_BT[:, :1],
        "prompt_mask": there_BT[:, :1],
        "completion_ids": there_BT,
        "completion_mask": there_BT,
        "tool_mask": sampled_BT,
        "advantages": advantage_BT,
        "old_per_token_logps": old_BT,
        "ref_per_token_logps": ref_BT,
        "num_items_in_batch": sampled_BT.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    metrics = trainer._metrics["train"]
    (clipped,), (kl,) = metrics["clip_ratio/region_mean"], metrics.get("kl", [0.0])
    return loss, clipped, kl


def of_minirl(config: LossConfig) -> Result:
    """From minirl's, on the same numbers."""
    leaf_N, trajectories = trl_numbers()
    new_N, old_N, ref_N, advantage_N, _ = torch.cat(per_turn(trajectories)[0]).unbind(-1)
    weights = itertools.chain(*turn_weights(TRL_GROUPS, TRL_LENGTHS, config, Counter(TRL_GROUPS)))
    pairs = zip(weights, itertools.chain(*TRL_LENGTHS), strict=True)
    weight_N = torch.tensor([w for w, n in pairs for _ in range(n)], dtype=torch.float64)
    loss, sums = policy_loss(new_N, old_N, ref_N, advantage_N, weight_N, config)
    (gradient_N,) = torch.autograd.grad(loss, leaf_N)
    clipped, kl = (float(sums.get(name, 0.0) / sums["tokens"]) for name in ("clipped", "kl"))
    return Result(loss.item(), gradient_N.tolist(), clipped, kl)


# TRL's loss, what one of its sequences is, and the weighting that computes the same. Its `grpo` is the mean
# over sequences of their token means, its `bnpo` and `dapo` are the mean over tokens, of the local batch and
# of all, its `dr_grpo` is that times a constant. AutoWebWorld's is the first.
SAME = [
    ("grpo", per_trajectory, LossConfig(weighting="grpo")),
    ("grpo", turns_of_each, LossConfig(weighting="webagent-r1")),
    ("grpo", per_turn, LossConfig(weighting="openwebrl-paper")),
    ("dr_grpo", per_trajectory, LossConfig(weighting="token-mean")),
    ("bnpo", per_trajectory, LossConfig(weighting="token-mean")),
    ("dapo", per_trajectory, LossConfig(weighting="token-mean")),
    ("grpo", per_turn, LossConfig(weighting="openwebrl")),
]
same = pytest.mark.parametrize(
    ("loss_type", "layout", "config"), SAME, ids=[f"{a}-{b.__name__}-{c.weighting}" for a, b, c in SAME]
)
beside_trl = pytest.mark.more  # which takes seconds to import; the same by hand and by formula is above


@same
@beside_trl
@pytest.mark.parametrize("clip", [0.28, 0.2, 0.5])
@pytest.mark.parametrize("kl", [0.0, 0.04])
def test_trl_computes_the_same(loss_type, layout, config, clip, kl):
    config = replace(config, clip_high=clip, kl=kl)
    ours = of_minirl(config)
    assert ours.near(of_trl(loss_type, layout, config))
    assert 0 < ours.clipped < 1 and (ours.kl > 0) == (kl > 0)  # neither is idle


@beside_trl
def test_trls_two_sided_clip_is_the_dual_clip():
    config = LossConfig(weighting="token-mean", dual_clip=1.3)
    ours, theirs = of_minirl(config), of_trl("dapo", per_trajectory, config)
    assert ours.near(theirs._replace(clipped=ours.clipped)), "which does not count what it bounds so"
    assert ours.clipped > theirs.clipped and not ours.near(of_minirl(replace(config, dual_clip=None)))


@same
@beside_trl
@pytest.mark.parametrize("kl", [0.0, 0.04])
def test_no_other_weighting_clip_or_kl_matches_trl(loss_type, layout, config, kl):
    """The control: of all weightings only one is near, and that with no other clip and no other KL."""
    theirs = of_trl(loss_type, layout, replace(config, kl=kl))
    assert [c for c in FORMULAS if of_minirl(replace(c, kl=kl)).near(theirs)] == [config]
    for change in ({"kl": kl, "clip_high": 0.5}, {"kl": kl + 0.01}):
        assert not of_minirl(replace(config, **change)).near(theirs)
