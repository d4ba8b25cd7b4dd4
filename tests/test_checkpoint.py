"""Checkpoints that survive what befalls files and processes, and fit any number of ranks."""

import io
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from peers import ROOT, on_ranks
from PIL import Image
from safetensors.torch import load_file, save_file
from training import distance, equal, learn, make_groups, make_trainer, picture, rows_of, weights
from transformers import AutoImageProcessor, AutoModelForImageTextToText, PreTrainedModel

from examples.base_models import checkpoints as tiny
from minirl.checkpoint import Checkpoints, checkpoints, prune
from minirl.config import ModelConfig
from minirl.distributed import Ranks
from minirl.model import Preprocessor, load_preprocessor
from minirl.run_folder import Run
from minirl.types import Trajectory


@pytest.fixture
def new_checkpoints(new_trainer, tmp_path) -> Callable[[], Checkpoints]:
    """The run's folder in the hands of a fresh trainer."""
    return lambda: Checkpoints(new_trainer(), tmp_path)


def names(folder: Path) -> list[str]:
    """Of the complete checkpoints."""
    return [path.name for path in checkpoints(folder)]


def test_a_resumed_run_continues_as_if_never_interrupted(new_trainer, new_checkpoints, groups, tmp_path):
    running = new_checkpoints()
    learn(running.trainer, groups, 0)
    running.save("step_00001", {"step": 1, "cursor": 7, "best": 0.25})
    learn(running.trainer, groups, 1)  # while it is being written
    running.finish()

    resumed = new_checkpoints()
    resumed.trainer.sft_update(rows_of(groups), lr=1e-2)  # whatever it was before
    assert resumed.resume() == {"step": 1, "cursor": 7, "best": 0.25}
    learn(resumed.trainer, groups, 1)
    assert equal(weights(resumed.trainer), weights(running.trainer))

    forgetful = new_checkpoints()  # the control: without the optimizer's moments the update is another
    forgetful.start_from(tmp_path / "step_00001")
    learn(forgetful.trainer, groups, 1)
    assert not equal(weights(forgetful.trainer), weights(running.trainer))


def test_a_checkpoint_has_its_name_only_when_it_is_complete(new_checkpoints):
    here = new_checkpoints()
    here.save("step_00001", {"step": 1})
    assert here.newest == "step_00001" and checkpoints(here.folder) == []
    here.save("step_00002", {"step": 2})  # completes the one before
    assert names(here.folder) == ["step_00001"]
    here.finish()
    here.save("step_00003", {"step": 3})
    here.finish()
    assert names(here.folder) == ["step_00002", "step_00003"]


def test_shards_lie_in_small_files(saved):
    """Each is copied twice while it is written: one file would take three times a rank's share of memory."""
    here, _ = saved
    counts = [len(load_file(file)) for file in (here.folder / "step_00001/shards").glob("*.safetensors")]
    parameters = len([*here.trainer.policy.model.parameters()])
    assert sum(counts) == 4 * parameters and max(counts) <= 8  # weights, Adam's steps and two moments


def on_some_ranks(ranks: Ranks, path: Path, folder: Path, replicas: int) -> tuple[dict, dict]:
    """Goes on from the folder's checkpoint, if there is one, by one step, and saves that."""
    trainer = make_trainer(path, ranks, optim={"replicas": replicas})
    groups = make_groups(trainer.preprocessor)
    here = Checkpoints(trainer, folder)
    step = here.resume()["step"] if checkpoints(here.folder) else 0
    metrics = learn(trainer, groups, step)
    here.save(f"step_{step + 1:05d}", {"step": step + 1})
    here.finish()
    return {name: weight.numpy() for name, weight in weights(trainer).items()}, metrics


@pytest.mark.more  # test_distributed.py trains with two ranks, tests above resume with one
def test_a_run_goes_on_with_more_ranks_or_fewer(tiny_folder, preprocessor, groups, ranks, tmp_path):
    """One rank, then two, then one again, then two that replicate, against one that was never stopped."""
    whole = make_trainer(tiny_folder, ranks)
    start = weights(whole)
    for step, world, replicas in ((0, 1, 1), (1, 2, 1), (2, 1, 1), (3, 2, 2)):
        expected = learn(whole, groups, step)
        for found, metrics in on_ranks(world, on_some_ranks, tiny_folder, tmp_path, replicas):
            assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
            found = {name: torch.from_numpy(weight) for name, weight in found.items()}
            error, moved = distance(found, weights(whole)), distance(weights(whole), start)
            assert error < 1e-3 * moved
    there = AutoModelForImageTextToText.from_pretrained(tmp_path / "step_00004", dtype=torch.float32)
    assert distance(dict(there.named_parameters()), weights(whole)) < 1e-3 * moved


@torch.no_grad()
def logits(model: PreTrainedModel, preprocessor: Preprocessor) -> torch.Tensor:
    """Of a short prompt with a picture."""
    pixels, grid = preprocessor.images.prepare(picture("wide"))
    ids_1L = torch.tensor([[1, 3, *[preprocessor.pad] * 6, 4, 50, 51, 52]])
    images = {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}
    return model(input_ids=ids_1L, mm_token_type_ids=(ids_1L == preprocessor.pad).int(), **images).logits


def test_a_checkpoint_is_a_folder_for_plain_transformers(new_trainer, groups, preprocessor, tmp_path):
    trainer = new_trainer()
    before = logits(trainer.policy.model, preprocessor)
    learn(trainer, groups, 0)
    Checkpoints(trainer, tmp_path).export("best", {"step": 1})
    theirs = AutoModelForImageTextToText.from_pretrained(tmp_path / "best", dtype=torch.float32)
    loaded = load_preprocessor(ModelConfig(path=str(tmp_path / "best")))
    out = logits(theirs, loaded)
    # patches are a matrix product here and a convolution there
    torch.testing.assert_close(out, logits(trainer.policy.model, preprocessor), atol=1e-5, rtol=0)
    assert (out - before).abs().max() > 1e-3
    for part in ("chat", "suppressed", "end"):
        assert getattr(loaded, part) == getattr(preprocessor, part)


def test_a_checkpoint_of_a_model_from_the_hub_is_complete(
    ranks, preprocessor, tiny_folder, tmp_path, monkeypatch
):
    """Its image processor lies in the hub's cache, not in a folder of the model's name."""
    cached = tmp_path / "hub/models--nobody--tiny"
    shutil.copytree(tiny_folder, cached / "snapshots/0123")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    trainer = make_trainer(Path("nobody/tiny"), ranks)
    Checkpoints(trainer, tmp_path).export("best", {})
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "best" / name).read_bytes() == (tiny_folder / name).read_bytes()
    assert load_preprocessor(ModelConfig(path=str(tmp_path / "best"))).pad == preprocessor.pad


def test_whoever_serves_a_checkpoint_scales_screenshots_as_training_did(ranks, tiny_folder, tmp_path):
    """Also where the model's own file has the older names. The control is that file as it is."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text()) | {"min_pixels": 1024, "max_pixels": 1638400}
    file.write_text(json.dumps(settings))
    trainer = make_trainer(folder, ranks, model={"max_pixels": 256 * 192})
    Checkpoints(trainer, tmp_path).export("best", {})
    picture = Image.new("RGB", (480, 360))
    png = io.BytesIO()
    picture.save(png, "PNG")
    _, expected = trainer.preprocessor.images.prepare(png.getvalue())

    def grid(place: Path) -> tuple[int, ...]:
        processor = AutoImageProcessor.from_pretrained(place, backend="pil")
        return tuple(processor(images=[picture], return_tensors="pt")["image_grid_thw"][0].tolist())

    assert grid(tmp_path / "best") == expected
    assert grid(folder) != expected


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = [
    ("state.json", Path.unlink),
    ("state.json", cut_short),
    ("shards/*.safetensors", cut_short),
    ("shards/*.safetensors", Path.unlink),
]


@pytest.fixture(scope="module")
def two_steps(tiny_folder, preprocessor, ranks, tmp_path_factory):
    """Checkpoints of steps 1 and 2, and the weights of step 1."""
    here = Checkpoints(make_trainer(tiny_folder, ranks), tmp_path_factory.mktemp("checkpoints"))
    groups = make_groups(preprocessor)
    learn(here.trainer, groups, 0)
    here.save("step_00001", {"step": 1})
    first = weights(here.trainer)
    learn(here.trainer, groups, 1)
    here.save("step_00002", {"step": 2})
    here.finish()
    return here, first


@pytest.fixture
def saved(two_steps, tmp_path):
    """The same, in a folder that may be damaged, and with the weights of step 2."""
    written, first = two_steps
    here = Checkpoints(written.trainer, shutil.copytree(written.folder, tmp_path / "checkpoints"))
    here.load(here.folder / "step_00002")
    assert not equal(weights(here.trainer), first)
    return here, first


@pytest.mark.parametrize(("part", "damage"), DAMAGE)
def test_a_broken_checkpoint_is_named_and_the_one_before_is_used(saved, part, damage, monkeypatch):
    here, first = saved
    damage(next((here.folder / "step_00002").glob(part)))
    said: list[str] = []
    monkeypatch.setattr("minirl.checkpoint.say", said.append)
    assert here.resume() == {"step": 1}
    assert equal(weights(here.trainer), first)
    line, resumed = said
    assert resumed == "resumed after step 1"
    assert line.startswith(f"checkpoint {here.folder / 'step_00002'} can't be used: ")
    assert line.endswith("; trying the one before") and "\n" not in line
    assert names(here.folder) == ["step_00001"]


class Payload:
    """Pickled, it is a command that whoever unpickles it runs."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, (self.command,)


def test_code_in_a_strangers_shards_is_not_run(saved, tmp_path):
    """No file of a checkpoint is a pickle, and one that a stranger has put there is not opened."""
    here, first = saved
    proof = tmp_path / "proof"
    content = pickle.dumps(Payload(f"touch {proof}"))
    pickle.loads(content)  # the control: plainly read, it runs
    proof.unlink()
    shard = sorted((here.folder / "step_00002/shards").iterdir())[0]
    for name in (".metadata", "__0_0.distcp"):
        shard.with_name(name).write_bytes(content)
    assert here.resume() == {"step": 2}
    shard.write_bytes(content)
    assert here.resume() == {"step": 1} and equal(weights(here.trainer), first)
    assert not proof.exists()


def test_no_checkpoint_that_can_be_read(saved, monkeypatch):
    """Without shards, as a warm start is."""
    here, _ = saved
    for name in ("step_00001", "step_00002"):
        shutil.rmtree(here.folder / name / "shards")
    said: list[str] = []
    monkeypatch.setattr("minirl.checkpoint.say", said.append)
    with pytest.raises(ValueError, match=f"nothing to resume: no usable checkpoint in {here.folder}"):
        here.resume()
    assert len(said) == 2


def test_weights_to_start_from_that_lack_one_are_refused(new_checkpoints, tmp_path):
    here = new_checkpoints()
    here.export("sft", {})
    path = tmp_path / "sft/model.safetensors"
    some = load_file(path)
    some.pop(next(name for name in some if "q_proj" in name))
    save_file(some, path, {"format": "pt"})
    before = weights(here.trainer)
    with pytest.raises(ValueError, match=f"^{tmp_path / 'sft'} can't be loaded: "):
        here.start_from(tmp_path / "sft")
    assert equal(weights(here.trainer), before)


def test_the_weights_of_another_model_are_not_mixed_in(new_checkpoints, tmp_path):
    """Of a narrower, a deeper and a flatter one."""
    texts = tiny.corpus(["mug", "plate", "red", "blue"], "http://shop-0.test/")
    here = new_checkpoints()
    before = weights(here.trainer)
    for hidden, layers in ((32, 2), (64, 3), (64, 1)):
        path = tiny.build(tmp_path / f"{hidden}x{layers}", texts, seed=9, hidden=hidden, layers=layers)
        with pytest.raises(ValueError, match=f"{path} holds another model than "):
            here.start_from(path)
    assert equal(weights(here.trainer), before)


def test_an_interrupted_save_leaves_the_one_before_and_a_whole_one_replaces_it(saved, monkeypatch):
    here, _ = saved

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.async_save", full)
    with pytest.raises(OSError, match="no space"):
        here.save("step_00003", {"step": 3})
    with pytest.raises(OSError, match="no space"):
        here.save("step_00002", {"step": 99})  # over an old one
    assert names(here.folder) == ["step_00001", "step_00002"]
    assert here.resume() == {"step": 2}
    monkeypatch.undo()
    here.save("step_00002", {"step": 2, "again": True})
    here.finish()
    assert here.load(here.folder / "step_00002") == {"step": 2, "again": True}
    assert sorted(path.name for path in here.folder.iterdir()) == ["step_00001", "step_00002"]


def test_a_full_disk_is_told_in_one_line(new_checkpoints):
    """Of the weights, and of the shards, which are written beside the next step."""
    here = new_checkpoints()
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = (200_000, usual[1])  # bytes a file: a tokenizer fits
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        with pytest.raises(OSError, match=r"step_00001.part can't be written: .*File too large"):
            here.save("step_00001", {"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        part = here._export("step_00002", {"step": 2})
        here._export = lambda name, state: part
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        here.save("step_00002", {"step": 2})
        with pytest.raises(OSError, match=r"step_00002.part can't be written: .*File too large"):
            here.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert names(here.folder) == []


def test_prune_keeps_the_newest_two_and_what_is_no_rl_checkpoint(tmp_path):
    for name in ("step_00010", "step_00002", "step_00100", "step_00101.part", "sft", "best"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_00003").write_text("a file, no checkpoint")
    assert names(tmp_path) == ["step_00002", "step_00010", "step_00100"]  # oldest first
    prune(tmp_path)
    assert names(tmp_path) == ["step_00010", "step_00100"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"sft", "best", *names(tmp_path)}


def recorded(preprocessor: Preprocessor, model: Path, folder: Path, steps: int) -> Run:
    """A run folder with the dumps of so many steps, every step's responses its own."""
    run = Run(folder)
    shutil.copytree(model, folder / "model")
    stored = {name: run.images.put(picture(name)) for name in ("wide", "small")}

    def member_of(step: int, m: int, trajectory: Trajectory) -> Trajectory:
        turns = []
        for turn in trajectory.turns:
            ids = tuple(i + step if i > 50 else i for i in turn.response_ids)
            turns.append(replace(turn, response_ids=ids, images=tuple(stored[i] for i in turn.images)))
        return replace(trajectory, turns=tuple(turns), reward=float(m == step % 3))

    for step in range(steps):
        groups = make_groups(preprocessor)
        members = [[member_of(step, m, t) for m, t in enumerate(group)] for group in groups]
        run.save_trajectories(Run.step_label(step + 1), chain(*members))
    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_ten_times_ends_as_if_it_had_not_been(preprocessor, tiny_folder, tmp_path):
    """kill -9 at random moments of 30 steps with a checkpoint each, while they are written too."""
    source = recorded(preprocessor, tiny_folder, tmp_path / "source", steps=30)

    def command(name: str) -> list[str]:
        flags = ["--replay", str(source.root), "--name", str(tmp_path / name), "--steps", "30"]
        return [sys.executable, str(ROOT / "train.py"), "tiny", *flags, "--agent.context-tokens", "256"]

    started = time.monotonic()
    subprocess.run(command("whole"), check=True, capture_output=True, timeout=300)
    seconds = time.monotonic() - started
    expected = {row["step"]: row["loss"] for row in Run(tmp_path / "whole").metrics()}
    assert len(expected) == 30 and len({round(loss, 4) for loss in expected.values()}) > 20

    killed, rng = Run(tmp_path / "killed"), random.Random(0)
    before = -1
    for _ in range(10):
        argv = [*command("killed"), *(["--resume"] if killed.root.exists() else [])]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:  # started up; from here on any moment will do
            if line.startswith(("step ", "resumed ")):
                break
        if before > 0:
            assert line.startswith(f"resumed after step {before}\n"), line
        time.sleep(rng.uniform(0, seconds / 12))
        process.kill()
        process.communicate(timeout=60)
        done = [int(path.name.removeprefix("step_")) for path in checkpoints(killed.checkpoint_dir)]
        before = max(done, default=0)
    if before < 30:
        subprocess.run([*command("killed"), "--resume"], check=True, capture_output=True, timeout=300)
    found = [(row["step"], row["loss"]) for row in killed.metrics()]
    assert [step for step, _ in found] == list(range(1, 31))
    assert dict(found) == pytest.approx(expected, abs=1e-6)
