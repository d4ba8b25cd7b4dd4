"""Updates that do not depend on how they are cut up, and what they learn from."""

import contextlib
import itertools
import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from training import (
    TASK,
    distance,
    equal,
    group_of,
    learn,
    make_trainer,
    rows_of,
    save_text_model,
    scored,
    weights,
)

from minirl import prefix_tree
from minirl.checkpoint import Checkpoints
from minirl.config import LossConfig, ModelConfig, SftConfig
from minirl.distributed import full_tensor
from minirl.model import ImageProcessor, load_model
from minirl.rows import Row, TrajectoryRows, make_rows, minibatches, turn_rows, weighted
from minirl.trainer import Trainer, cloning_batches, cores, validation_split
from minirl.types import Group, Trajectory, Turn


def on_policy(trainer: Trainer, groups: list[Group]) -> list[Group]:
    """The same groups with the log-probs that the trainer's model gives them now."""

    def rescored(trajectory: Trajectory) -> Trajectory:
        new = scored(trainer, turn_rows(trajectory, 0.0))
        pairs = zip(trajectory.turns, new, strict=True)
        return replace(trajectory, turns=tuple(replace(t, logprobs=tuple(lp.tolist())) for t, lp in pairs))

    return [tuple(map(rescored, group)) for group in groups]


def test_the_loss_and_metrics_of_a_first_update_by_hand(new_trainer, groups):
    """On policy every ratio is 1, so the loss is minus the mean advantage of the 11 turns: the episodes
    of 2, 1, 3, 1, 2, 2 turns have (2 + 0.5 - 4.5 - 0.5 + 3 - 2) = -1.5 together. Good episodes become more
    likely, and bad ones less."""
    trainer, ticks = new_trainer(), []
    groups = on_policy(trainer, groups)
    metrics = learn(trainer, groups, 0, lambda: ticks.append(1))
    found = [metrics[name] for name in ("loss", "ratio_mean", "ratio_max", "clip_fraction")]
    assert found == pytest.approx([1.5 / 11, 1, 1, 0], abs=1e-4) and found[-1] == 0
    assert metrics["updates"] == len(ticks) == 1
    assert metrics["lr"] == 1e-3 and metrics["grad_norm"] > 0
    assert 0 < metrics["entropy"] < 6.8  # at most the logarithm of the vocabulary
    rows = rows_of(groups)
    moved = {True: 0.0, False: 0.0}
    for row, logprobs_N in zip(rows, scored(trainer, rows), strict=True):
        moved[row.advantage > 0] += (logprobs_N - torch.tensor(row.old)).sum().item()
    assert moved[True] > 0 > moved[False]


def test_the_rate_of_reinforcement_falls_to_zero_behind_the_last_step(new_trainer, groups):
    for falls, rates in ((False, [1e-3, 1e-3, 1e-3]), (True, [1e-3, 7.5e-4, 2.5e-4])):
        trainer = new_trainer(optim={"decay": falls})
        trainer.config = replace(trainer.config, steps=4)
        assert [learn(trainer, groups, step)["lr"] for step in (0, 1, 3)] == pytest.approx(rates)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rates[-1])


def gradients_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What the optimizer is given, of its last step."""
    found: dict[str, torch.Tensor] = {}
    named = {n: w for n, w in trainer.policy.model.named_parameters() if w.requires_grad}
    note = lambda *_: found.update({n: w.grad.clone() for n, w in named.items()})  # noqa: E731
    trainer.optimizer.register_step_pre_hook(note)
    return found


@pytest.mark.parametrize("layout, micro_tokens", [("per-turn", 10_000), ("per-turn", 1), ("tree", 30)])
def test_layout_and_micro_batches_change_nothing(new_trainer, groups, layout, micro_tokens):
    """One prefix tree for all 11 turns, one padded batch, a row for each turn, several small trees: the same
    gradient and the same weights."""
    whole = new_trainer(lr=1e-4, micro_tokens=10_000)
    cut = new_trainer(lr=1e-4, micro_tokens=micro_tokens, layout=layout)
    start, ours, theirs = weights(whole), gradients_of(cut), gradients_of(whole)
    results = [learn(trainer, groups, 0) for trainer in (whole, cut)]
    assert results[0] == pytest.approx(results[1], abs=1e-4)
    assert ours.keys() == dict(whole.policy.model.named_parameters()).keys()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    # Adam turns a gradient of rounding errors into a full step, so single weights may differ a little more
    after = weights(cut)
    moved = distance(weights(whole), start)
    assert moved > 0.01 and distance(weights(whole), after) < 1e-3 * moved


def test_what_a_machine_cannot_do_is_refused(tiny_folder, ranks):
    with pytest.raises(ValueError, match="--optim.offload moves weights off a GPU; there is none"):
        make_trainer(tiny_folder, ranks, optim={"offload": True})


def test_every_epoch_goes_over_every_minibatch(new_trainer, groups):
    trainer, epochs = new_trainer(epochs=3, minibatch_turns=6), [[]]
    share, update, cut = trainer._share, trainer._update_once, []
    trainer._share = lambda rows: cut.append(rows) or share(rows)
    trainer._update_once = lambda *given: epochs[-1].append(cut.pop(0)) or update(*given)
    updates = [learn(trainer, groups, step, lambda: epochs.append([]))["updates"] for step in (5, 6)]
    assert epochs.pop() == []  # one tick behind every epoch
    assert len(epochs) == 6 and sum(updates) == sum(map(len, epochs)) > 6
    orders = [[row.ids for rows in epoch for row in rows] for epoch in epochs]
    for order in orders:
        assert sorted(order) == sorted(row.ids for row in rows_of(groups))
    assert all(one != other for one, other in itertools.combinations(orders, 2)), "each in its own order"


def test_imitation_is_the_mean_over_tokens_however_it_is_cut(new_trainer, groups):
    rows = rows_of(groups)
    for layout, micro_tokens in (("tree", 10_000), ("per-turn", 10_000), ("per-turn", 1)):
        trainer = new_trainer(micro_tokens=micro_tokens, layout=layout)
        trainer.policy.temperature = 1.0
        expected = -torch.cat(scored(trainer, rows)).mean().item()
        assert trainer.sft_update(rows, lr=1e-3) == pytest.approx(expected, abs=1e-5)
        assert trainer.sft_update(rows, lr=1e-3) < expected


def test_imitation_is_at_temperature_1_whatever_is_sampled_at(new_trainer, groups):
    """Also after an update, whose ratios are at the sampler's temperature."""
    losses = {}
    for temperature in (1.0, 0.5):
        trainer = new_trainer(lr=0.0)
        sampler = replace(trainer.config.sampler, temperature=temperature)
        trainer.config = replace(trainer.config, sampler=sampler)
        metrics = learn(trainer, groups)
        losses[temperature] = metrics["entropy"], trainer.sft_update(rows_of(groups), lr=0.0)
    assert losses[0.5][1] == pytest.approx(losses[1.0][1], abs=1e-6)
    assert losses[0.5][0] < losses[1.0][0] - 1e-3, "the temperature was not used at all"


def test_cloning_goes_over_whole_trajectories_at_rates_that_rise_and_fall(new_trainer, groups, monkeypatch):
    """Two epochs of six episodes (11 turns), about four turns at a time, stopped after four updates."""
    examples, sft = make_rows(groups, LossConfig()), SftConfig(batch=4, epochs=2, lr=1e-3, warmup=0.5)
    batches = cloning_batches(examples, sft, seed=7)
    assert len(batches) > 4
    trainer, made = new_trainer(sft={**vars(sft), "max_steps": 4}), []
    plain = trainer.sft_update
    monkeypatch.setattr(trainer, "sft_update", lambda rows, lr: made.append((rows, lr)) or plain(rows, lr))
    losses = [found["loss"] for found in trainer.clone(examples, seed=7)]
    assert [rows for rows, _ in made] == [[r for e in batch for r in e.rows] for batch in batches[:4]]
    assert [lr for _, lr in made] == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.5e-3])
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_cloning_ends_with_the_weights_that_explain_best_what_was_held_back(new_trainer, groups, monkeypatch):
    """A third of six episodes is held back: the first two. Their loss is looked at after updates 2, 4 and 5,
    the last of which is made to undo the others: the second look is the best."""
    examples = make_rows(groups, LossConfig())
    sft = {"batch": 4, "epochs": 9, "max_steps": 5, "lr": 1e-3, "held_back": 0.34}
    cloned = [e for batch in cloning_batches(examples, SftConfig(**sft), 7) for e in batch]
    assert {id(e) for e in cloned} == set(map(id, examples[2:])) and len(examples) == 6
    trainer, made = new_trainer(sft=sft), []
    sampler = replace(trainer.config.sampler, temperature=0.5)  # at which no loss is measured
    trainer.config = replace(trainer.config, sampler=sampler)
    held = [row for example in examples[:2] for row in example.rows]
    by_hand, plain = [], trainer.sft_update
    rates = iter([1e-3, 1e-3, 1e-3, 1e-3, -4e-3])

    def step(rows, lr):
        loss = plain(rows, next(rates))
        by_hand.append(-torch.cat(scored(trainer, held)).mean().item())
        made.append(weights(trainer))
        return loss

    monkeypatch.setattr(trainer, "sft_update", step)
    monkeypatch.setattr("minirl.trainer.VALIDATION_UPDATES", 2)
    found = list(trainer.clone(examples, seed=7))
    looked = {n: one["validation"] for n, one in enumerate(found, 1) if "validation" in one}
    assert list(looked) == [2, 4, 5] and len(found) == 5
    assert list(looked.values()) == pytest.approx([by_hand[n - 1] for n in looked], abs=1e-5)
    assert looked[4] < looked[2] and looked[4] < looked[5], "another look is the best: nothing is tested"
    assert equal(weights(trainer), made[3]) and not equal(made[3], made[4])


def test_cloning_has_an_optimizer_of_its_own_and_reinforcement_gets_its_own_back(new_trainer, groups):
    """Adam by hand: the first update of fresh moments is a step of the rate in the gradient's direction, and
    weights shrink by rate x decay; the gradient has the clipped norm."""
    sft = {"betas": (0.5, 0.75), "weight_decay": 0.4, "grad_clip": 1e-3}
    trainer = new_trainer(lr=1e-3, optim={"grad_clip": 0.1}, sft=sft)
    before, named = weights(trainer), dict(trainer.policy.model.named_parameters())
    gradients = gradients_of(trainer)
    trainer.sft_update(rows_of(groups), lr=1e-4)
    cloned = {name: gradient.clone() for name, gradient in gradients.items()}
    assert sum((g**2).sum().item() for g in cloned.values()) ** 0.5 == pytest.approx(1e-3, rel=1e-2)
    after, moments = weights(trainer), {name: trainer.optimizer.state[w] for name, w in named.items()}
    for name, g in cloned.items():
        by_hand = before[name] * (1 - 1e-4 * 0.4) - 1e-4 * g / (g.abs() + 1e-8)
        torch.testing.assert_close(after[name], by_hand, atol=2e-7, rtol=1e-6)
        torch.testing.assert_close(moments[name]["exp_avg"], 0.5 * g, atol=1e-12, rtol=1e-4)
        torch.testing.assert_close(moments[name]["exp_avg_sq"], 0.25 * g**2, atol=1e-30, rtol=1e-4)
    learn(trainer, groups)
    assert sum((g**2).sum().item() for g in gradients.values()) ** 0.5 == pytest.approx(0.1, rel=1e-2)
    for name, g in gradients.items():
        expected = 0.9 * 0.5 * cloned[name] + 0.1 * g
        torch.testing.assert_close(moments[name]["exp_avg"], expected, atol=1e-8, rtol=1e-3)
    (group,) = trainer.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.98), 0.1)


@pytest.mark.parametrize("frozen", ["sft", "never"])
def test_a_vision_tower_that_is_frozen_in_cloning_learns_by_reinforcement(new_trainer, groups, frozen):
    """Neither its weights nor their moments move, and decay leaves them alone, too."""
    trainer = new_trainer(model={"freeze_vision": frozen}, sft={"weight_decay": 0.4})
    start, named = weights(trainer), dict(trainer.policy.model.named_parameters())
    tower = {name for name in start if ".visual." in name}
    trainer.sft_update(rows_of(groups), lr=1e-3)
    cloned = weights(trainer)
    assert ({name for name in start if torch.equal(start[name], cloned[name])} == tower) == (frozen == "sft")
    assert any(trainer.optimizer.state[named[name]]["exp_avg"].any() for name in tower) != (frozen == "sft")
    learn(trainer, groups)
    reinforced = weights(trainer)
    assert not all(torch.equal(cloned[name], reinforced[name]) for name in tower)


@pytest.mark.parametrize("tied", [True, False])
def test_the_lowest_layers_and_the_embeddings_stay_as_they_are(preprocessor, ranks, groups, tmp_path, tied):
    """By cloning and by reinforcement, decay included; the others move as far as they would without, in the
    first update. The optimizer holds nothing of them, but sampler and checkpoint get the whole model."""
    path = save_text_model(tmp_path / "text", preprocessor, "Llama", tie_word_embeddings=tied)
    rows = [replace(row, images=()) for row in rows_of(groups) if not row.images]
    usual = make_trainer(path, ranks, sft={"grad_clip": 1e9})
    trainer = make_trainer(path, ranks, model={"freeze": 1}, sft={"grad_clip": 1e9, "weight_decay": 0.4})
    start, free, held = weights(usual), gradients_of(usual), gradients_of(trainer)
    assert usual.sft_update(rows, lr=1e-3) == pytest.approx(trainer.sft_update(rows, lr=1e-3))
    still = {name for name in start if "embed_tokens" in name or "layers.0." in name}
    assert held.keys() == start.keys() - still and len(still) == 10
    torch.testing.assert_close(held, {name: free[name] for name in held}, atol=1e-7, rtol=1e-5)
    share = trainer._share(weighted([TrajectoryRows(0, tuple(rows))], LossConfig(), {0: 1}))
    trainer._update_once(trainer._batches(share), len(share), 1e-3)
    after = weights(trainer)
    assert {name for name in start if torch.equal(start[name], after[name])} == still
    assert len(trainer.optimizer.param_groups[0]["params"]) == len(start) - 10
    assert {name for name, _ in trainer.weights()} == start.keys()
    checkpoints = Checkpoints(trainer, tmp_path / "checkpoints")
    checkpoints.save("step_00001", {"step": 1})
    checkpoints.finish()
    again = make_trainer(path, ranks, model={"freeze": 1})
    assert Checkpoints(again, tmp_path / "checkpoints").resume() == {"step": 1}
    assert equal(weights(again), after)
    exported = load_model(ModelConfig(path=str(tmp_path / "checkpoints" / "step_00001")))
    assert equal({name: weight.detach() for name, weight in exported.named_parameters()}, after)
    with pytest.raises(ValueError, match="--model.freeze 3: this model has 2 layers"):
        make_trainer(path, ranks, model={"freeze": 3})


def test_a_model_that_scales_its_logits_is_refused(preprocessor, ranks, tmp_path):
    """What is trained would be another distribution than what is sampled."""
    path = save_text_model(tmp_path / "text", preprocessor, "Granite", logits_scaling=8.0)
    with pytest.raises(ValueError, match="this model scales its logits"):
        make_trainer(path, ranks)


def test_a_text_model_has_nothing_to_freeze(preprocessor, ranks, groups, tmp_path):
    text = save_text_model(tmp_path / "text", preprocessor, "Llama")
    rows = [replace(row, images=()) for row in rows_of(groups) if not row.images]
    losses = set()
    for frozen in ("never", "sft", "always"):
        losses.add(make_trainer(text, ranks, model={"freeze_vision": frozen}).sft_update(rows, lr=1e-3))
    assert len(losses) == 1


def test_of_few_examples_one_at_least_is_cloned():
    examples = [TrajectoryRows(0, ())] * 3
    assert validation_split(examples, SftConfig(held_back=0.9)) == examples[:2]


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


def test_how_far_the_samplers_log_probs_are_from_the_trainers(new_trainer, groups):
    """By hand: those of the first minibatch, before any update. What later updates move has no part in it."""
    trainer = new_trainer(lr=1e-2, epochs=3, minibatch_turns=6)
    episodes = make_rows(groups, LossConfig())
    first = [row for episode in minibatches(episodes, 6, seed=0)[0] for row in episode.rows]
    gaps = (torch.cat(scored(trainer, first)) + 6).abs()  # all of the sampler's are -6
    metrics = learn(trainer, groups)
    found = [metrics[f"mismatch_{name}"] for name in ("mean", "max")]
    assert found == pytest.approx([gaps.mean().item(), gaps.max().item()], abs=1e-4)
    assert 0 < len(first) < 11 and metrics["updates"] == 6 and found[1] > found[0] > 0.01


def test_a_sampler_of_other_weights_ends_the_run(new_trainer, groups):
    """Not where other episodes are trained on again, whose log-probs are of other weights by right."""
    trainer = new_trainer(lr=0.0)
    learn(trainer, groups)
    trainer.config = replace(trainer.config, replay=None)
    assert learn(trainer, on_policy(trainer, groups))["mismatch_mean"] < 1e-4
    trainer.config = replace(trainer.config, batch=replace(trainer.config.batch, epochs=3))
    step, steps = trainer._update_once, []
    trainer._update_once = lambda *given: steps.append(given) or step(*given)
    with pytest.raises(
        ValueError, match=r"log-probs are \d\.\d+ nats from the trainer's: it does not sample"
    ):
        learn(trainer, groups)
    assert len(steps) == 1, "no further update is made with them"


def test_the_divergence_is_from_what_reinforcement_starts_from_as_it_is_sampled(new_trainer, groups):
    """From the clone, not the base model, and at the sampler's temperature: of the first update it is 0."""
    trainer = new_trainer(lr=1e-2, loss=LossConfig(kl=0.1), epochs=2)
    trainer.config = replace(trainer.config, sampler=replace(trainer.config.sampler, temperature=0.5))
    trainer.keep_reference()
    trainer.sft_update(rows_of(groups), lr=1e-2)
    trainer.keep_reference()
    steps, update = [], trainer._update_once
    trainer._update_once = lambda *rest: steps.append(update(*rest)) or steps[-1]
    learn(trainer, groups)
    first, second = (step["kl"] / step["tokens"] for step in steps)
    assert first == pytest.approx(0, abs=1e-6) and second > 1e-3


def test_the_largest_ratio_is_that_of_all_updates(new_trainer, groups):
    """By hand, before each of them: on policy that of the first is 1."""
    trainer = new_trainer(lr=1e-2, epochs=3)
    groups = on_policy(trainer, groups)
    rows, ratios, update = rows_of(groups), [], trainer._update_once

    def step(*rest):
        gaps = [new - torch.tensor(row.old) for row, new in zip(rows, scored(trainer, rows), strict=True)]
        ratios.append(torch.cat(gaps).max().exp().item())
        return update(*rest)

    trainer._update_once = step
    assert learn(trainer, groups)["ratio_max"] == pytest.approx(max(ratios), rel=1e-3)
    assert ratios[0] == pytest.approx(1, abs=1e-3) and max(ratios) > 1.1


def test_the_loss_by_hand(new_trainer, preprocessor):
    """Two turns of one episode with advantage 2, one of -1, and a reference that is the model itself (k3 is
    0): the mean over turns of the mean over tokens of max(-A * ratio, -A * clipped ratio)."""
    tokenizer = preprocessor.tokenizer
    texts = ("so <answer>red", "<answer>blue", "go <answer>a")
    said = [tuple(tokenizer(text)["input_ids"]) for text in texts]
    turns = [Turn(1, (40 + n,), ids, (-5.5 - n,) * len(ids), "") for n, ids in enumerate(said)]
    episodes = (Trajectory(TASK, 0, (1,), tuple(turns[:2])), Trajectory(TASK, 1, (1,), (turns[2],)))
    config = LossConfig(kl=0.1)
    trainer = new_trainer(loss=config)
    trainer.keep_reference()
    rows = [row for episode in episodes for row in turn_rows(episode, 0.0)]
    parts = []
    for row, logprobs, advantage in zip(rows, scored(trainer, rows), (2.0, 2.0, -1.0), strict=True):
        ratios = (logprobs - torch.tensor(row.old)).exp()
        clipped = ratios.clamp(0.8, 1.28)
        parts.append(torch.maximum(-advantage * ratios, -advantage * clipped).mean().item())
    metrics = learn(trainer, [group_of(episodes, 2.0, -1.0)])
    assert metrics["loss"] == pytest.approx(sum(parts) / 3, abs=1e-5) and len({*parts}) == 3
    assert metrics["kl"] == pytest.approx(0, abs=1e-5)


def test_each_screenshot_of_a_step_is_prepared_once(new_trainer, groups, tiny_folder):
    """Two epochs and a reference: three passes in many micro-batches. The third, blank one stands in
    for a micro-batch without any."""
    trainer = new_trainer(loss=LossConfig(kl=0.1), epochs=2, micro_tokens=30)
    images = trainer.preprocessor.images = ImageProcessor(str(tiny_folder), trainer.config.model.max_pixels)
    prepared, plain = [], images.processor
    images.processor = lambda images, **rest: prepared.append(images[0].tobytes()) or plain(images, **rest)
    trainer.keep_reference()
    metrics = [learn(trainer, groups), learn(new_trainer(epochs=2, micro_tokens=30), groups)]
    assert len(prepared) == len({*prepared}) == 3
    assert metrics[0]["updates"] == metrics[1]["updates"] == 2


def test_the_next_micro_batch_is_prepared_while_one_is_computed(new_trainer, groups, monkeypatch):
    """One ahead, not all at once, in a thread of its own."""
    trainer, made, plain = new_trainer(micro_tokens=30), [], prefix_tree.pack

    def pack(*given, **how):
        made.append(threading.current_thread() is threading.main_thread())
        return plain(*given, **how)

    monkeypatch.setattr(prefix_tree, "pack", pack)
    batches = trainer._batches(trainer._share(rows_of(groups)))
    next(batches)
    deadline = time.monotonic() + 20
    while len(made) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert made == [False, False]
    assert len(list(batches)) == len(made) - 1 > 2


def test_the_next_updates_first_pass_is_prepared_while_this_one_is_made(new_trainer, groups, monkeypatch):
    """Its screenshots would keep the GPU waiting in every update."""
    events: list[str] = []

    @contextlib.contextmanager
    def thread(*_, **__):
        def submit(prepare, part):
            events.append("prepare")
            return SimpleNamespace(result=lambda: prepare(part))

        yield SimpleNamespace(submit=submit)

    monkeypatch.setattr("minirl.trainer.ThreadPoolExecutor", thread)
    trainer, noted = new_trainer(minibatch_turns=1, epochs=2), []
    monkeypatch.setattr(trainer.optimizer, "step", lambda: events.append("step"))
    updates = int(learn(trainer, groups, 0, lambda: noted.append(events.count("step")))["updates"])
    assert updates > 3 and noted == [updates // 2, updates]
    assert events == ["prepare", *["prepare", "step"] * (updates - 1), "step"]


def test_cudnn_makes_no_plan_for_every_new_length(new_trainer):
    torch.backends.cuda.enable_cudnn_sdp(True)
    new_trainer()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def poisoned(groups: list[Group]) -> list[Group]:
    """The sampler's log-prob of one token is not a number."""
    first, *rest = groups[0]
    turn = replace(first.turns[0], logprobs=(float("nan"), *first.turns[0].logprobs[1:]))
    first = replace(first, turns=(turn, *first.turns[1:]))
    return [(first, *rest), *groups[1:]]


def test_an_update_without_a_finite_gradient_changes_nothing(new_trainer, groups):
    trainer = new_trainer()
    before = weights(trainer)
    learn(trainer, poisoned(groups))
    assert equal(weights(trainer), before)
    # nor do gradients stay, which would take a quarter of the memory while the next episodes run
    assert all(weight.grad is None for weight in trainer.policy.parameters())
    assert not any(moment.any() for state in trainer.optimizer.state.values() for moment in state.values())
    learn(trainer, groups)
    assert all(weight.grad is None for weight in trainer.policy.parameters())
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


def test_cores_are_counted_where_a_system_cannot_bind_processes_to_some(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == os.cpu_count()
