"""Checkpoints that survive being interrupted, on one rank or many.

    step_00010/  config.json, model.safetensors, tokenizer ...   an ordinary Hugging Face folder
                 state.json                                      where the run was
                 shards/                                         float32 weights and Adam's moments, by rank

The Hugging Face folder is for everybody else: transformers and vLLM load it, it can be evaluated, served or
published as it is. To resume, the shards are read, by as many ranks as there are then. They are copied aside
and written while the next episodes run; the folder is made beside its place and renamed when all ranks have
written, so a folder with the final name is complete. One that can't be read all the same is named, and the
one before it is used.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers.utils import cached_file

from minirl.config import ModelConfig
from minirl.model import compute_dtype, load_model
from minirl.policy import copy_weights
from minirl.trainer import Trainer

PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
IF_THERE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
WRITE_SECONDS = 3600.0
UNREADABLE = (OSError, ValueError, RuntimeError, EOFError, KeyError, SafetensorError, pickle.PickleError)


class Checkpoints:
    """The checkpoint folder of a run. Every method is called by all ranks."""

    def __init__(self, trainer: Trainer, folder: Path):
        self.trainer, self.ranks, self.folder = trainer, trainer.ranks, folder
        self.writing: tuple[Path, Future[Any]] | None = None

    def saved(self) -> set[str]:
        """The names of the checkpoints to resume from, with the one that is being written."""
        names = {path.name for path in checkpoints(self.folder)}
        if self.writing is not None:
            names.add(self.writing[0].stem)
        return self.ranks.broadcast(names)

    def clear(self) -> None:
        """Deletes the checkpoints of an earlier run."""
        if self.ranks.is_main:
            prune(self.folder, keep=0)
        self.ranks.barrier()

    def save(self, name: str, state: dict[str, Any], keep: int) -> None:
        """Starts writing a checkpoint to resume from; `finish` completes it, and leaves the newest `keep`."""
        self.finish()
        part = self._export(name, state)
        future = dcp.async_save(
            shards(self.trainer), checkpoint_id=part / "shards", process_group=self.ranks.side
        )
        self.writing, self.keep = (part, future), keep

    def export(self, name: str, state: dict[str, Any]) -> None:
        """Writes a checkpoint to start from: no shards."""
        self.finish()
        self._complete(self._export(name, state))

    def finish(self) -> None:
        """Waits for what is being written, and gives it its name."""
        if self.writing is None:
            return
        part, future = self.writing
        self.writing = None
        try:
            future.result(timeout=WRITE_SECONDS)
        except dcp.api.CheckpointException as error:
            raise OSError(f"{part} could not be written: {error}".splitlines()[0]) from None
        self._complete(part)
        if self.ranks.is_main:
            prune(self.folder, self.keep)

    def _export(self, name: str, state: dict[str, Any]) -> Path:
        """The Hugging Face folder and the run's state, under a name that says it is not complete."""
        trainer, part = self.trainer, self.folder / f"{name}.part"
        dtype = compute_dtype(trainer.config.model, self.ranks.device)
        weights = {}
        for weight_name, weight in trainer.weights():  # gathered one by one, by all ranks
            if self.ranks.is_main:
                weights[weight_name] = weight.cpu()
        if self.ranks.is_main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            trainer.policy.model.save_pretrained(part, state_dict=weights)
            settings = json.loads((part / "config.json").read_text())
            settings["dtype"] = str(dtype).removeprefix("torch.")  # the files', not the trained weights'
            (part / "config.json").write_text(json.dumps(settings, indent=2))
            trainer.preprocessor.tokenizer.save_pretrained(part)
            for file_name in PROCESSOR_FILES:  # of a folder, or of a hub name in the cache
                file = cached_file(trainer.config.model.path, file_name, **IF_THERE)
                if file is not None:
                    shutil.copy(file, part)
            (part / "state.json").write_text(json.dumps(state))
        self.ranks.barrier()
        return part

    def _complete(self, part: Path) -> None:
        self.ranks.barrier()
        if self.ranks.is_main:
            path = part.with_suffix("")
            old = path.with_name(path.name + ".old")
            shutil.rmtree(old, ignore_errors=True)
            if path.exists():
                path.rename(old)
            part.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        self.ranks.barrier()

    def load(self, path: Path) -> dict[str, Any]:
        """Reads a checkpoint of this model, to go on from it; the run's state. ValueError names a folder that
        can't be read, and nothing is changed by one of another model."""
        here, state, problem = shards(self.trainer), {}, None
        try:
            state = json.loads((path / "state.json").read_text())
            there = dcp.FileSystemReader(path / "shards").read_metadata().state_dict_metadata
            sizes = {k: tuple(v.size) for k, v in there.items() if isinstance(v, TensorStorageMetadata)}
            if sizes != {k: tuple(v.shape) for k, v in here.items()}:
                raise ValueError("it belongs to another model")
        except UNREADABLE as error:
            problem = unusable(path, error)
        if problems := [p for p in self.ranks.all_gather([problem]) if p is not None]:
            raise problems[0]  # on all ranks, or the others would wait for this one
        try:
            dcp.load(here, checkpoint_id=path / "shards", process_group=self.ranks.side)
        except (*UNREADABLE, dcp.api.CheckpointException) as error:
            raise unusable(path, error) from None
        return state

    def start_from(self, path: Path) -> None:
        """Takes the weights alone, from any Hugging Face folder of this model."""
        try:
            fresh = load_model(ModelConfig(path=str(path)), torch.device("cpu"), "auto")
            shapes = {name: weight.shape for name, weight in fresh.named_parameters()}
            own = {name: weight.shape for name, weight in self.trainer.policy.model.named_parameters()}
            if shapes != own:
                raise ValueError("it belongs to another model")
            copy_weights(fresh, self.trainer.policy.model)
        except UNREADABLE as error:
            raise unusable(path, error) from None

    def resume(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Loads the newest checkpoint that can be read, and deletes newer ones; ValueError if there is
        none."""
        broken: list[Path] = []
        for path in self.ranks.broadcast(list(reversed(checkpoints(self.folder)))):
            try:
                state = self.load(path)
            except ValueError as problem:
                say(f"{problem}; trying the one before")
                broken.append(path)
                continue
            self.ranks.barrier()
            for newer in broken if self.ranks.is_main else []:
                shutil.rmtree(newer)
            return state
        raise ValueError(f"nothing to resume: no usable checkpoint in {self.folder}")


def shards(trainer: Trainer) -> dict[str, Tensor]:
    """This rank's weights and moments by name, as they are in use: `dcp.load` writes into them."""
    out: dict[str, Tensor] = {}
    for name, weight in trainer.policy.model.named_parameters():
        out[f"weight.{name}"] = weight.detach()
        for key, value in trainer.optimizer.state.get(weight, {}).items():
            out[f"{key}.{name}"] = value
    return out


def unusable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"checkpoint {path} can't be used: {reason}")


def checkpoints(folder: Path) -> list[Path]:
    """The complete RL checkpoints of a run, oldest first."""
    return sorted(p for p in folder.glob("step_*") if p.suffix == "" and p.is_dir())


def prune(folder: Path, keep: int) -> None:
    """Deletes all but the newest `keep` RL checkpoints, and what interrupted writes have left; a folder that
    was to be replaced, and was not, comes back."""
    for old in folder.glob("*.old"):
        if not old.with_suffix("").exists():
            old.rename(old.with_suffix(""))
    leftovers = [*folder.glob("*.part"), *folder.glob("*.old")]
    for path in checkpoints(folder)[: -keep or None] + leftovers:
        shutil.rmtree(path, ignore_errors=True)
