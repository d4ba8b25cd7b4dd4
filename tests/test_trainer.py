"""Updates that do not depend on how they are cut up, and what they learn from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from training import distance, equal, nothing, rows_of, scored, weights

from minirl.distributed import full_tensor
from minirl.rows import turn_rows
from minirl.trainer import Trainer
from minirl.types import Group, Trajectory


def on_policy(trainer: Trainer, groups: list[Group]) -> list[Group]:
    """The same groups with the log-probs that the trainer's model gives them now."""

    def rescored(trajectory: Trajectory) -> Trajectory:
        new = scored(trainer, turn_rows(trajectory, 0.0))
        pairs = zip(trajectory.turns, new, strict=True)
        return replace(trajectory, turns=tuple(replace(t, logprobs=tuple(lp.tolist())) for t, lp in pairs))

    return [replace(g, trajectories=tuple(map(rescored, g.trajectories))) for g in groups]


# --- reinforcement ---------------------------------------------------------------------------------


def test_the_loss_and_metrics_of_a_first_update_by_hand(new_trainer, groups):
    """On policy every ratio is 1, so the loss is minus the mean advantage of the 11 turns: the episodes
    of 2, 1, 3, 1, 2, 2 turns have (2 + 0.5 - 4.5 - 0.5 + 3 - 2) = -1.5 together."""
    trainer, ticks = new_trainer(), []
    metrics = trainer.rl_step(on_policy(trainer, groups), seed=0, tick=lambda: ticks.append(1))
    assert metrics["loss"] == pytest.approx(1.5 / 11, abs=1e-4)
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["clip_fraction"] == 0
    assert metrics["updates"] == len(ticks) == 1
    assert metrics["lr"] == 1e-3 and metrics["grad_norm"] > 0
    assert 0 < metrics["entropy"] < 6.8  # at most the logarithm of the vocabulary


def test_good_episodes_become_more_likely_and_bad_ones_less(new_trainer, groups):
    trainer = new_trainer()
    groups = on_policy(trainer, groups)
    rows = rows_of(groups)
    trainer.rl_step(groups, seed=0, tick=nothing)
    moved = {1: 0.0, -1: 0.0}
    for row, logprobs_N in zip(rows, scored(trainer, rows), strict=True):
        moved[1 if row.advantage > 0 else -1] += (logprobs_N - torch.tensor(row.old)).sum().item()
    assert moved[1] > 0 > moved[-1]


@pytest.mark.parametrize("layout, micro_tokens", [("per-turn", 10_000), ("per-turn", 1), ("tree", 30)])
def test_layout_and_micro_batches_change_nothing(new_trainer, groups, layout, micro_tokens):
    """One prefix tree for all 11 turns, one padded batch, a row for each turn, several small trees: the same
    gradient and the same weights."""
    whole = new_trainer(lr=1e-4, micro_tokens=10_000)
    cut = new_trainer(lr=1e-4, micro_tokens=micro_tokens, layout=layout)
    start = weights(whole)
    results = [trainer.rl_step(groups, seed=0, tick=nothing) for trainer in (whole, cut)]
    assert results[0] == pytest.approx(results[1], abs=1e-4)
    gradients = [{n: w.grad for n, w in t.policy.model.named_parameters()} for t in (whole, cut)]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4, msg=name)
    # Adam turns a gradient of rounding errors into a full step, so single weights may differ a little more
    after = weights(cut)
    moved = distance(weights(whole), start)
    assert moved > 0.01 and distance(weights(whole), after) < 1e-3 * moved


def test_every_epoch_goes_over_every_minibatch(new_trainer, groups):
    trainer, epochs = new_trainer(epochs=3, minibatch_turns=6), [[]]
    update = trainer._update
    trainer._update = lambda rows, *rest: epochs[-1].append(rows) or update(rows, *rest)
    metrics = trainer.rl_step(groups, seed=5, tick=lambda: epochs.append([]))
    assert epochs.pop() == []  # one tick behind every epoch
    assert len(epochs) == 3 and metrics["updates"] == sum(map(len, epochs)) > 3
    orders = [[row for rows in epoch for row in rows] for epoch in epochs]
    for order in orders:
        assert sorted(row.ids for row in order) == sorted(row.ids for row in rows_of(groups))
    assert orders[0] != orders[1] != orders[2]  # each in its own order


def test_without_advantages_there_is_no_gradient(new_trainer, groups):
    trainer = new_trainer()
    metrics = trainer.rl_step([replace(g, advantages=(0.0,) * 3) for g in groups], 0, nothing)
    assert metrics["loss"] == 0 and metrics["grad_norm"] == 0
    for name, weight in trainer.policy.model.named_parameters():
        assert weight.grad is None or not weight.grad.any(), name


# --- imitation -------------------------------------------------------------------------------------


def test_imitation_is_the_mean_over_tokens_however_it_is_cut(new_trainer, groups):
    rows = rows_of(groups)
    for layout, micro_tokens in (("tree", 10_000), ("per-turn", 10_000), ("per-turn", 1)):
        trainer = new_trainer(micro_tokens=micro_tokens, layout=layout)
        expected = -torch.cat(scored(trainer, rows)).mean().item()
        assert trainer.sft_step(rows, lr=1e-3) == pytest.approx(expected, abs=1e-5)
        assert trainer.sft_step(rows, lr=1e-3) < expected


def test_imitation_uses_the_rate_it_is_given(new_trainer, groups):
    trainer = new_trainer(lr=1e-3)
    before = weights(trainer)
    trainer.sft_step(rows_of(groups), lr=0.0)
    assert equal(weights(trainer), before)
    trainer.sft_step(rows_of(groups), lr=1e-5)
    moved = max((weights(trainer)[name] - before[name]).abs().max().item() for name in before)
    assert moved == pytest.approx(1e-5, rel=0.5)  # an early step of Adam is about one rate long


# --- gradients that are no numbers -----------------------------------------------------------------


def poisoned(groups: list[Group]) -> list[Group]:
    """The sampler's log-prob of one token is not a number."""
    first, *rest = groups[0].trajectories
    turn = replace(first.turns[0], logprobs=(float("nan"), *first.turns[0].logprobs[1:]))
    first = replace(first, turns=(turn, *first.turns[1:]))
    return [replace(groups[0], trajectories=(first, *rest)), *groups[1:]]


def test_an_update_without_a_finite_gradient_changes_nothing(new_trainer, groups):
    trainer = new_trainer()
    before = weights(trainer)
    trainer.rl_step(poisoned(groups), 0, nothing)
    assert equal(weights(trainer), before)
    assert not any(moment.any() for state in trainer.optimizer.state.values() for moment in state.values())
    trainer.rl_step(groups, 0, nothing)
    assert all(weight.isfinite().all() for weight in weights(trainer).values())
    assert not equal(weights(trainer), before)


def test_three_such_updates_in_a_row_end_the_training(new_trainer, groups):
    trainer = new_trainer()
    bad = poisoned(groups)
    for step in (bad, bad, groups, bad, bad):  # a good one in between forgives the first two
        trainer.rl_step(step, 0, nothing)
    with pytest.raises(ValueError, match="3 updates in a row had no finite gradient"):
        trainer.rl_step(bad, 0, nothing)


# --- mixed precision -------------------------------------------------------------------------------


def trained(trainer) -> dict[str, torch.Tensor]:
    """The weights as the optimizer has them."""
    return {name: full_tensor(w.detach()).clone() for name, w in trainer.policy.model.named_parameters()}


def test_weights_stay_float32_where_bfloat16_computes(new_trainer, groups):
    """A step of 1e-6 is below what a bfloat16 weight of 0.1 can tell; the log-probs are nearly the same. What
    a sampler is given is what is computed with."""
    exact, half = new_trainer(lr=1e-6), new_trainer(lr=1e-6, model={"dtype": "bfloat16"})
    before = trained(half)
    assert all(weight.dtype == torch.float32 for weight in before.values())
    assert all(weight.dtype == torch.bfloat16 for _, weight in half.weights())
    metrics = [trainer.rl_step(groups, 0, nothing) for trainer in (exact, half)]
    assert metrics[0] != metrics[1] and metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], abs=0.05)
    moved = max((trained(half)[name] - before[name]).abs().max().item() for name in before)
    assert moved == pytest.approx(1e-6, rel=0.5)
    there = trained(exact)
    assert distance(trained(half), there) < 1e-3 * sum((w**2).sum().item() for w in there.values()) ** 0.5
