"""Updates that do not depend on how they are cut up, and what they learn from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from training import distance, equal, learn, make_trainer, rows_of, save_text_model, scored, weights

from minirl.config import LossConfig, SftConfig
from minirl.distributed import full_tensor
from minirl.rows import Row, TrajectoryRows, make_rows, turn_rows
from minirl.trainer import Trainer, cloning_batches
from minirl.types import Group, Trajectory


def on_policy(trainer: Trainer, groups: list[Group]) -> list[Group]:
    """The same groups with the log-probs that the trainer's model gives them now."""

    def rescored(trajectory: Trajectory) -> Trajectory:
        new = scored(trainer, turn_rows(trajectory, 0.0))
        pairs = zip(trajectory.turns, new, strict=True)
        return replace(trajectory, turns=tuple(replace(t, logprobs=tuple(lp.tolist())) for t, lp in pairs))

    return [replace(g, trajectories=tuple(map(rescored, g.trajectories))) for g in groups]


def test_the_loss_and_metrics_of_a_first_update_by_hand(new_trainer, groups):
    """On policy every ratio is 1, so the loss is minus the mean advantage of the 11 turns: the episodes
    of 2, 1, 3, 1, 2, 2 turns have (2 + 0.5 - 4.5 - 0.5 + 3 - 2) = -1.5 together."""
    trainer, ticks = new_trainer(), []
    metrics = learn(trainer, on_policy(trainer, groups), 0, lambda: ticks.append(1))
    found = [metrics[name] for name in ("loss", "ratio_mean", "ratio_max", "clip_fraction")]
    assert found == pytest.approx([1.5 / 11, 1, 1, 0], abs=1e-4) and found[-1] == 0
    assert metrics["updates"] == len(ticks) == 1
    assert metrics["lr"] == 1e-3 and metrics["grad_norm"] > 0
    assert 0 < metrics["entropy"] < 6.8  # at most the logarithm of the vocabulary


def test_good_episodes_become_more_likely_and_bad_ones_less(new_trainer, groups):
    trainer = new_trainer()
    groups = on_policy(trainer, groups)
    rows = rows_of(groups)
    learn(trainer, groups, 0)
    moved = {True: 0.0, False: 0.0}
    for row, logprobs_N in zip(rows, scored(trainer, rows), strict=True):
        moved[row.advantage > 0] += (logprobs_N - torch.tensor(row.old)).sum().item()
    assert moved[True] > 0 > moved[False]


@pytest.mark.parametrize("layout, micro_tokens", [("per-turn", 10_000), ("per-turn", 1), ("tree", 30)])
def test_layout_and_micro_batches_change_nothing(new_trainer, groups, layout, micro_tokens):
    """One prefix tree for all 11 turns, one padded batch, a row for each turn, several small trees: the same
    gradient and the same weights."""
    whole = new_trainer(lr=1e-4, micro_tokens=10_000)
    cut = new_trainer(lr=1e-4, micro_tokens=micro_tokens, layout=layout)
    start = weights(whole)
    results = [learn(trainer, groups, 0) for trainer in (whole, cut)]
    assert results[0] == pytest.approx(results[1], abs=1e-4)
    ours, theirs = ({n: w.grad for n, w in t.policy.model.named_parameters()} for t in (cut, whole))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    # Adam turns a gradient of rounding errors into a full step, so single weights may differ a little more
    after = weights(cut)
    moved = distance(weights(whole), start)
    assert moved > 0.01 and distance(weights(whole), after) < 1e-3 * moved


def test_layers_that_are_computed_again_give_the_same_weights(new_trainer, groups):
    usual, again = new_trainer(), new_trainer(model={"gradient_checkpointing": True})
    for trainer in (usual, again):
        learn(trainer, groups)
    assert equal(weights(usual), weights(again))


def test_what_a_model_or_machine_cannot_do_is_refused(tiny_folder, preprocessor, ranks, tmp_path):
    text = save_text_model(tmp_path / "text", preprocessor, "Llama")
    with pytest.raises(ValueError, match="--model.freeze-vision: this model has no vision tower"):
        make_trainer(text, ranks, model={"freeze_vision": True})
    with pytest.raises(ValueError, match="--optim.offload moves weights off a GPU; there is none"):
        make_trainer(tiny_folder, ranks, optim={"offload": True})


def test_every_epoch_goes_over_every_minibatch(new_trainer, groups):
    trainer, epochs = new_trainer(epochs=3, minibatch_turns=6), [[]]
    update = trainer._step
    trainer._step = lambda rows, *rest: epochs[-1].append(rows) or update(rows, *rest)
    metrics = learn(trainer, groups, 5, lambda: epochs.append([]))
    assert epochs.pop() == []  # one tick behind every epoch
    assert len(epochs) == 3 and metrics["updates"] == sum(map(len, epochs)) > 3
    orders = [[row for rows in epoch for row in rows] for epoch in epochs]
    for order in orders:
        assert sorted(row.ids for row in order) == sorted(row.ids for row in rows_of(groups))
    assert orders[0] != orders[1] != orders[2]  # each in its own order


def test_without_advantages_there_is_no_gradient(new_trainer, groups):
    trainer = new_trainer()
    metrics = learn(trainer, [replace(g, advantages=(0.0,) * 3) for g in groups])
    assert metrics["loss"] == 0 and metrics["grad_norm"] == 0
    for name, weight in trainer.policy.model.named_parameters():
        assert weight.grad is None or not weight.grad.any(), name


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


def test_cloning_goes_over_whole_trajectories_at_rates_that_rise_and_fall(new_trainer, groups, monkeypatch):
    """Two epochs of six episodes (11 turns), about four turns at a time, stopped after four updates."""
    examples, sft = make_rows(groups, LossConfig(), None), SftConfig(batch=4, epochs=2, lr=1e-3, warmup=0.5)
    batches = cloning_batches(examples, sft, seed=7)
    assert len(batches) > 4 and len(cloning_batches(examples, replace(sft, max_steps=4), 7)) == 4
    for epoch in (batches[: len(batches) // 2], batches[len(batches) // 2 :]):
        assert sorted(id(example) for batch in epoch for example in batch) == sorted(map(id, examples))
    trainer, made = new_trainer(), []
    plain = trainer.sft_step
    monkeypatch.setattr(trainer, "sft_step", lambda rows, lr: made.append((rows, lr)) or plain(rows, lr))
    losses = list(trainer.clone(examples, replace(sft, max_steps=4), seed=7))
    assert [rows for rows, _ in made] == [[r for e in batch for r in e.rows] for batch in batches[:4]]
    assert [lr for _, lr in made] == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.5e-3])
    assert len(losses) == 4 and losses[-1] < losses[0]


@pytest.mark.parametrize(("rows", "sizes"), [(70, [32, 38]), (90, [32, 32, 26])])
def test_cloning_batches_are_full_and_another_order_in_every_epoch(rows, sizes):
    """What is left of an epoch joins its last batch if it is less than half of one."""
    row = Row((7, 7), 1, (), (-0.5,), 1.0)
    examples, sft = [TrajectoryRows(n, (row,)) for n in range(rows)], SftConfig(batch=32, epochs=3)
    batches = cloning_batches(examples, sft, seed=7)
    assert list(map(len, batches)) == sizes * 3
    numbers = [example.group for batch in batches for example in batch]
    epochs = [tuple(numbers[start : start + rows]) for start in range(0, 3 * rows, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs) and len(set(epochs)) == 3
    for most in (1, len(sizes) + 1, 100):
        assert cloning_batches(examples, replace(sft, max_steps=most), seed=7) == batches[:most]


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_answers_alone_are_trained_with_a_reference_and_recomputed_log_probs_too(new_trainer, groups, kl):
    """The tokens before an answer weigh nothing, whatever else is computed of them."""
    config = LossConfig(old="recompute", kl=kl)
    trajectories = [
        replace(t, rows=tuple(replace(r, weights=(0.0,) + r.weights[1:]) for r in t.rows))
        for t in make_rows(groups, config, None)
    ]
    metrics = []
    for old in (-6.0, -3.0):  # of the first tokens
        changed = [
            replace(t, rows=tuple(replace(r, old=(old,) + r.old[1:]) for r in t.rows)) for t in trajectories
        ]
        trainer = new_trainer(loss=config)
        trainer.keep_reference()
        metrics.append((trainer.update(changed, 0, int), weights(trainer)))
    assert equal(metrics[0][1], metrics[1][1]) and metrics[0][0]["loss"] == metrics[1][0]["loss"]
    assert ("kl" in metrics[0][0]) == bool(kl)


def poisoned(groups: list[Group]) -> list[Group]:
    """The sampler's log-prob of one token is not a number."""
    first, *rest = groups[0].trajectories
    turn = replace(first.turns[0], logprobs=(float("nan"), *first.turns[0].logprobs[1:]))
    first = replace(first, turns=(turn, *first.turns[1:]))
    return [replace(groups[0], trajectories=(first, *rest)), *groups[1:]]


def test_an_update_without_a_finite_gradient_changes_nothing(new_trainer, groups):
    trainer = new_trainer()
    before = weights(trainer)
    learn(trainer, poisoned(groups))
    assert equal(weights(trainer), before)
    assert not any(moment.any() for state in trainer.optimizer.state.values() for moment in state.values())
    learn(trainer, groups)
    assert all(weight.isfinite().all() for weight in weights(trainer).values())
    assert not equal(weights(trainer), before)


def test_three_such_updates_in_a_row_end_the_training(new_trainer, groups):
    trainer = new_trainer()
    bad = poisoned(groups)
    for each in (bad, bad, groups, bad, bad):  # a good one in between forgives the first two
        learn(trainer, each)
    with pytest.raises(ValueError, match="3 updates in a row had no finite gradient"):
        learn(trainer, bad)


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
    metrics = [learn(trainer, groups) for trainer in (exact, half)]
    assert metrics[0] != metrics[1] and metrics[1]["loss"] == pytest.approx(metrics[0]["loss"], abs=0.05)
    moved = max((trained(half)[name] - before[name]).abs().max().item() for name in before)
    assert moved == pytest.approx(1e-6, rel=0.5)
    there = trained(exact)
    assert distance(trained(half), there) < 1e-3 * sum((w**2).sum().item() for w in there.values()) ** 0.5
