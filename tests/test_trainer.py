"""Updates that do not depend on how they are cut up, and checkpoints that survive what befalls files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel

from minirl import tiny
from minirl.batch import Row, collate, minibatches, turn_rows
from minirl.config import Config, ModelConfig
from minirl.model import load_language, load_model
from minirl.recipes import RECIPES
from minirl.trainer import Trainer, checkpoints, load_latest, prune
from minirl.types import Group, Task, Trajectory, Turn

CPU = torch.device("cpu")
TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")


@pytest.fixture
def pictures(png):
    return {"wide": png(96, 64, 1), "small": png(32, 32, 2)}


@pytest.fixture
def new_trainer(tiny_folder, language, pictures):
    """`new_trainer(micro_tokens=64, epochs=2, lr=1e-3)`: a trainer on a fresh copy of the small model."""

    def make(lr: float = 1e-3, path: Path = tiny_folder, **batch) -> Trainer:
        config: Config = RECIPES["tiny"]()
        config = replace(
            config,
            threads=1,
            model=ModelConfig(path=str(path)),
            optim=replace(config.optim, lr=lr),
            batch=replace(config.batch, **{"epochs": 1, "minibatch_turns": 1000} | batch),
        )
        model = load_model(ModelConfig(path=str(path)), CPU)
        return Trainer(model, language, config, pictures.__getitem__)

    return make


@pytest.fixture
def groups(language) -> list[Group]:
    """Two tasks with three episodes of one to three turns, some with a screenshot; old log-probs of -6
    are near what an untrained model says of a vocabulary of e^6.7."""
    start, end = (language.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    shown = {"wide": (start, *[language.pad] * 6, end), "small": (start, language.pad, end)}

    def episode(member: int, turns: int) -> Trajectory:
        trunk, out = (1, 40 + member, 41), []
        for t in range(turns):
            image = ("wide", "small", None)[(member + t) % 3]
            response = tuple(range(60 + 7 * member + t, 62 + 7 * member + 3 * t)) + (2,)
            branch = (*shown[image], 42) if image else (43,)
            images = (image,) if image else ()
            out.append(Turn(len(trunk), branch, response, (-6.0,) * len(response), "", images=images))
            trunk += (44 + t, *response)
        return Trajectory(TASK, member, trunk=trunk, turns=tuple(out))

    return [
        Group(TASK, (episode(0, 2), episode(1, 1), episode(2, 3)), (1.0, 0.5, -1.5)),
        Group(TASK, (episode(3, 1), episode(4, 2), episode(5, 2)), (-0.5, 1.5, -1.0)),
    ]


def rows_of(groups: list[Group]) -> list[Row]:
    return next(minibatches(groups, turns=1000, seed=0))


def scored(trainer: Trainer, rows: list[Row]) -> list[torch.Tensor]:
    """The trainer's log-probs of each row's response."""
    batch = collate(rows, trainer.language, trainer.image, CPU)
    with torch.no_grad():
        logprobs_N, _ = trainer.policy(batch.inputs, batch.sources_N, batch.targets_N)
    return list(logprobs_N.split([len(row.old) for row in rows]))


def on_policy(trainer: Trainer, groups: list[Group]) -> list[Group]:
    """The same groups with the log-probs that the trainer's model gives them now."""

    def rescored(trajectory: Trajectory) -> Trajectory:
        new = scored(trainer, turn_rows(trajectory, 0.0))
        pairs = zip(trajectory.turns, new, strict=True)
        return replace(trajectory, turns=tuple(replace(t, logprobs=tuple(lp.tolist())) for t, lp in pairs))

    return [replace(g, trajectories=tuple(map(rescored, g.trajectories))) for g in groups]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.policy.model.named_parameters()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one) ** 0.5


def nothing() -> None:
    pass


# --- reinforcement ---------------------------------------------------------------------------------


def test_the_loss_and_metrics_of_a_first_update_by_hand(new_trainer, groups):
    """On policy every ratio is 1, so the loss is minus the mean advantage of the 11 turns: the episodes
    of 2, 1, 3, 1, 2, 2 turns have (2 + 0.5 - 4.5 - 0.5 + 3 - 2) = -1.5 together."""
    trainer, ticks = new_trainer(), []
    metrics = trainer.reinforce(on_policy(trainer, groups), seed=0, tick=lambda: ticks.append(1))
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
    trainer.reinforce(groups, seed=0, tick=nothing)
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
    results = [trainer.reinforce(groups, seed=0, tick=nothing) for trainer in (whole, cut)]
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
    metrics = trainer.reinforce(groups, seed=5, tick=lambda: epochs.append([]))
    assert epochs.pop() == []  # one tick behind every epoch
    assert len(epochs) == 3 and metrics["updates"] == sum(map(len, epochs)) > 3
    orders = [[row for rows in epoch for row in rows] for epoch in epochs]
    for order in orders:
        assert sorted(order, key=repr) == sorted(rows_of(groups), key=repr)
    assert orders[0] != orders[1] != orders[2]  # each in its own order


def test_without_advantages_there_is_no_gradient(new_trainer, groups):
    trainer = new_trainer()
    metrics = trainer.reinforce([replace(g, advantages=(0.0,) * 3) for g in groups], 0, nothing)
    assert metrics["loss"] == 0 and metrics["grad_norm"] == 0
    for name, weight in trainer.policy.model.named_parameters():
        assert weight.grad is None or not weight.grad.any(), name


# --- imitation -------------------------------------------------------------------------------------


def test_imitation_is_the_mean_over_tokens_however_it_is_cut(new_trainer, groups):
    rows = rows_of(groups)
    for layout, micro_tokens in (("tree", 10_000), ("per-turn", 10_000), ("per-turn", 1)):
        trainer = new_trainer(micro_tokens=micro_tokens, layout=layout)
        expected = -torch.cat(scored(trainer, rows)).mean().item()
        assert trainer.imitate(rows, lr=1e-3) == pytest.approx(expected, abs=1e-5)
        assert trainer.imitate(rows, lr=1e-3) < expected


def test_imitation_uses_the_rate_it_is_given(new_trainer, groups):
    trainer = new_trainer(lr=1e-3)
    before = weights(trainer)
    trainer.imitate(rows_of(groups), lr=0.0)
    assert equal(weights(trainer), before)
    trainer.imitate(rows_of(groups), lr=1e-5)
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
    trainer.reinforce(poisoned(groups), 0, nothing)
    assert equal(weights(trainer), before) and trainer.optimizer.state_dict()["state"] == {}
    trainer.reinforce(groups, 0, nothing)
    assert all(weight.isfinite().all() for weight in weights(trainer).values())
    assert not equal(weights(trainer), before)


def test_three_such_updates_in_a_row_end_the_training(new_trainer, groups):
    trainer = new_trainer()
    bad = poisoned(groups)
    for step in (bad, bad, groups, bad, bad):  # a good one in between forgives the first two
        trainer.reinforce(step, 0, nothing)
    with pytest.raises(ValueError, match="3 updates in a row had no finite gradient"):
        trainer.reinforce(bad, 0, nothing)


# --- checkpoints -----------------------------------------------------------------------------------


def test_a_resumed_run_continues_as_if_never_interrupted(new_trainer, groups, tmp_path):
    running = new_trainer()
    running.reinforce(groups, 0, nothing)
    running.save(tmp_path / "step_00001", {"step": 1, "cursor": 7, "best": 0.25})
    random = torch.rand(3)
    running.reinforce(groups, 1, nothing)

    resumed = new_trainer()
    resumed.imitate(rows_of(groups), lr=1e-2)  # whatever it was before
    assert resumed.load(tmp_path / "step_00001") == {"step": 1, "cursor": 7, "best": 0.25}
    assert torch.equal(torch.rand(3), random)
    resumed.reinforce(groups, 1, nothing)
    assert equal(weights(resumed), weights(running))

    forgetful = new_trainer()  # the control: without the optimizer's moments the update is another
    forgetful.load(tmp_path / "step_00001", optimizer=False)
    forgetful.reinforce(groups, 1, nothing)
    assert not equal(weights(forgetful), weights(running))


def logits(model: PreTrainedModel, language, png: bytes) -> torch.Tensor:
    pixels, grid = language.images.prepare(png)
    pads = [language.pad] * language.image_tokens(png)
    ids_1L = torch.tensor([[1, 3, *pads, 4, 50, 51, 52]])
    kinds = (ids_1L == language.pad).int()
    with torch.no_grad():
        return model(
            input_ids=ids_1L,
            mm_token_type_ids=kinds,
            pixel_values=pixels,
            image_grid_thw=torch.tensor([grid]),
        ).logits


def test_a_checkpoint_is_a_folder_for_plain_transformers(new_trainer, groups, language, pictures, tmp_path):
    trainer = new_trainer()
    before = logits(trainer.policy.model, language, pictures["wide"])
    trainer.reinforce(groups, 0, nothing)
    trainer.save(tmp_path / "best", {"step": 1})
    theirs = AutoModelForImageTextToText.from_pretrained(tmp_path / "best", dtype=torch.float32)
    loaded = load_language(ModelConfig(path=str(tmp_path / "best")))
    out = logits(theirs, loaded, pictures["wide"])
    torch.testing.assert_close(
        out, logits(trainer.policy.model, language, pictures["wide"]), atol=1e-6, rtol=0
    )
    assert (out - before).abs().max() > 1e-3
    assert (loaded.chat, loaded.suppressed, loaded.end) == (language.chat, language.suppressed, language.end)


def test_a_checkpoint_of_a_model_from_the_hub_is_complete(
    new_trainer, language, tiny_folder, tmp_path, monkeypatch
):
    """Its image processor lies in the hub's cache, not in a folder of the model's name."""
    cached = tmp_path / "hub/models--nobody--tiny"
    shutil.copytree(tiny_folder, cached / "snapshots/0123")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    trainer = new_trainer(path=Path("nobody/tiny"))
    trainer.save(tmp_path / "best", {})
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "best" / name).read_bytes() == (tiny_folder / name).read_bytes()
    assert load_language(ModelConfig(path=str(tmp_path / "best"))).pad == language.pad


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "weights cut short": lambda folder: cut_short(folder / "model.safetensors"),
    "weights empty": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "weights missing": lambda folder: (folder / "model.safetensors").unlink(),
    "state missing": lambda folder: (folder / "state.json").unlink(),
    "state cut short": lambda folder: cut_short(folder / "state.json"),
    "optimizer cut short": lambda folder: cut_short(folder / "trainer.pt"),
    "optimizer empty": lambda folder: (folder / "trainer.pt").write_bytes(b""),
    "optimizer no archive": lambda folder: (folder / "trainer.pt").write_bytes(b"no archive at all"),
    "optimizer missing": lambda folder: (folder / "trainer.pt").unlink(),
}


@pytest.fixture
def saved(new_trainer, groups, tmp_path):
    """A trainer, a folder with its checkpoints of steps 1 and 2, and the weights of step 1."""
    trainer = new_trainer()
    trainer.reinforce(groups, 0, nothing)
    trainer.save(tmp_path / "step_00001", {"step": 1})
    first = weights(trainer)
    trainer.reinforce(groups, 1, nothing)
    trainer.save(tmp_path / "step_00002", {"step": 2})
    return trainer, tmp_path, first


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_checkpoint_is_named_and_the_one_before_is_used(saved, damage):
    trainer, folder, first = saved
    DAMAGE[damage](folder / "step_00002")
    said: list[str] = []
    assert load_latest(trainer, folder, said.append) == {"step": 1}
    assert equal(weights(trainer), first)
    (line,) = said
    assert line.startswith(f"checkpoint {folder / 'step_00002'} can't be used: ")
    assert line.endswith("; trying the one before") and "\n" not in line


def test_the_newest_checkpoint_is_used_if_it_can_be_read(saved):
    trainer, folder, _ = saved
    second = weights(trainer)
    trainer.load(folder / "step_00001")
    assert load_latest(trainer, folder, pytest.fail) == {"step": 2}
    assert equal(weights(trainer), second)


def test_no_checkpoint_that_can_be_read(saved, tmp_path):
    trainer, folder, _ = saved
    for name in ("step_00001", "step_00002"):
        cut_short(folder / name / "model.safetensors")
    said: list[str] = []
    with pytest.raises(ValueError, match=f"nothing to resume: no usable checkpoint in {folder}"):
        load_latest(trainer, folder, said.append)
    assert len(said) == 2
    with pytest.raises(ValueError, match="nothing to resume"):
        load_latest(trainer, tmp_path / "empty", said.append)


@pytest.mark.parametrize(
    ("hidden", "layers"), [(32, 2), (64, 3), (64, 1)], ids=["narrower", "deeper", "flatter"]
)
def test_a_checkpoint_of_another_model_is_named_and_not_mixed_in(
    new_trainer, language, tmp_path, hidden, layers
):
    texts = tiny.corpus(["mug", "plate", "red", "blue"], "http://shop-0.test/")
    path = tiny.build(tmp_path / "other", texts, seed=9, hidden=hidden, layers=layers)
    other = new_trainer(path=path)
    other.save(tmp_path / "step_00001", {"step": 1})
    trainer = new_trainer()
    before = weights(trainer)
    with pytest.raises(
        ValueError, match=f"{tmp_path / 'step_00001'} can't be used: it belongs to another model"
    ):
        trainer.load(tmp_path / "step_00001")
    assert equal(weights(trainer), before)


def test_an_interrupted_save_leaves_the_one_before(saved, monkeypatch):
    trainer, folder, _ = saved

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        trainer.save(folder / "step_00003", {"step": 3})
    with pytest.raises(OSError, match="no space"):
        trainer.save(folder / "step_00002", {"step": 99})  # over an old one
    assert [path.name for path in checkpoints(folder)] == ["step_00001", "step_00002"]
    assert load_latest(trainer, folder, pytest.fail) == {"step": 2}


def test_a_save_replaces_what_was_there(saved):
    trainer, folder, _ = saved
    trainer.save(folder / "step_00002", {"step": 2, "again": True})
    assert trainer.load(folder / "step_00002") == {"step": 2, "again": True}
    assert sorted(path.name for path in folder.iterdir()) == ["step_00001", "step_00002"]


@pytest.fixture
def folders(tmp_path) -> Path:
    names = ["step_00010", "step_00002", "step_00100", "step_00101.part", "step_00002.old", "sft", "best"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "step_00003").write_text("a file, no checkpoint")
    return tmp_path


def test_checkpoints_are_the_complete_ones_oldest_first(folders):
    assert [path.name for path in checkpoints(folders)] == ["step_00002", "step_00010", "step_00100"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [(1, ["step_00100"]), (2, ["step_00010", "step_00100"]), (9, ["step_00002", "step_00010", "step_00100"])],
)
def test_prune_keeps_the_newest_and_what_is_no_rl_checkpoint(folders, keep, left):
    prune(folders, keep)
    assert [path.name for path in checkpoints(folders)] == left
    assert {path.name for path in folders.iterdir() if path.is_dir()} == {"sft", "best", *left}


def test_prune_to_none_starts_a_run_anew(folders):
    prune(folders, keep=0)
    assert checkpoints(folders) == []
    assert {path.name for path in folders.iterdir() if path.is_dir()} == {"sft", "best"}
