"""Checkpoints that survive being interrupted, on one rank or many.

    step_00010/  config.json, model.safetensors, tokenizer ...   an ordinary Hugging Face folder
                 state.json                                      where the run was
                 shards/*.safetensors                            float32 weights and Adam's moments, by rank

The shards are read to resume, by as many ranks as there are then. They are written while the next episodes
run; the folder is renamed when all ranks have written, so that a final name means a complete one. One that
can't be read all the same is named, and the one before it is used. Nothing in a folder is pickled, so that a
stranger's runs no code.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import cached_file

from minirl.config import ModelConfig
from minirl.console import first_line, say
from minirl.model import compute_dtype, load_model, save_model
from minirl.policy import copy_weights
from minirl.trainer import Trainer

PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
IF_THERE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
WRITE_SECONDS = 3600.0
KEEP = 2  # checkpoints to resume from
# What readers of torn or made-up files raise
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError, LookupError, AttributeError, TypeError)


class Checkpoints:
    """The checkpoint folder of a run. Every method is called by all ranks."""

    def __init__(self, trainer: Trainer, folder: Path):
        self.trainer, self.ranks, self.folder = trainer, trainer.ranks, folder
        self.writing: tuple[Path, Any] | None = None  # with the future

    def saved(self) -> set[str]:
        """Return the names of the checkpoints to resume from, with the one that is being written."""
        writing = [self.writing[0]] if self.writing else []
        return self.ranks.broadcast({path.stem for path in checkpoints(self.folder) + writing})

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Start to write a checkpoint to resume from; `finish` completes it and leaves the newest two."""
        self.finish()
        part, group = self._export(name, state), self.ranks.side
        writer = dcp.HuggingFaceStorageWriter(str(part / "shards"), save_distributed=True)
        future = dcp.async_save(shards(self.trainer), storage_writer=writer, process_group=group)
        self.writing = part, future

    def export(self, name: str, state: dict[str, Any]) -> None:
        """Write a checkpoint to start from: no shards."""
        self.finish()
        self._complete(self._export(name, state))

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and name it. OSError if that failed."""
        if self.writing is None:
            return
        (part, future), self.writing = self.writing, None
        try:
            future.result(timeout=WRITE_SECONDS)
        except dcp.api.CheckpointException as error:
            raise OSError(f"{part} could not be written: {first_line(error)}") from None
        self._complete(part)
        if self.ranks.is_main:
            prune(self.folder, KEEP)

    def _export(self, name: str, state: dict[str, Any]) -> Path:
        """Write the Hugging Face folder and the run's state; return its place, NAME.part."""
        trainer, settings, part = self.trainer, self.trainer.config.model, self.folder / f"{name}.part"
        # all ranks gather each weight, the first one keeps it
        weights = {key: weight.cpu() for key, weight in trainer.weights() if self.ranks.is_main}
        if self.ranks.is_main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            trainer.preprocessor.tokenizer.save_pretrained(part)
            save_model(trainer.policy.model, part, state_dict=weights)
            dtype = str(compute_dtype(settings, self.ranks.device)).removeprefix("torch.")  # of the files
            model = json.loads((part / "config.json").read_text()) | {"dtype": dtype}
            (part / "config.json").write_text(json.dumps(model, indent=2))
            for file_name in PROCESSOR_FILES:  # of a folder, or of a hub name in the cache
                if file := cached_file(settings.path, file_name, **IF_THERE):
                    shutil.copy(file, part)
            (part / "state.json").write_text(json.dumps(state))
        self.ranks.barrier()
        return part

    def _complete(self, part: Path) -> None:
        self.ranks.barrier()
        if self.ranks.is_main:
            path, old = part.with_suffix(""), part.with_suffix(".old")
            shutil.rmtree(old, ignore_errors=True)
            if path.exists():
                path.rename(old)
            part.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        self.ranks.barrier()

    def load(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint; return the run's state. ValueError if it can't be read or fits another model."""
        here, state, problems = shards(self.trainer), {}, []
        reader = dcp.HuggingFaceStorageReader(str(path / "shards"))
        try:
            state = read_state(path)
            there: Any = reader.read_metadata().state_dict_metadata
            if {k: v.size for k, v in there.items()} != {k: v.shape for k, v in here.items()}:
                raise ValueError("it belongs to another model")
        except UNREADABLE as error:
            problems = [unusable(path, error)]
        if problems := self.ranks.all_gather(problems):
            raise problems[0]  # on all ranks, or the others would wait for this one
        try:
            dcp.load(here, storage_reader=reader, process_group=self.ranks.side)
        except (*UNREADABLE, dcp.api.CheckpointException) as error:
            raise unusable(path, error) from None
        return state

    def start_from(self, path: Path) -> None:
        """Take the weights alone, from any Hugging Face folder of this model. ValueError if it is none."""
        try:
            fresh = load_model(ModelConfig(path=str(path)), torch.device("cpu"), "auto")
            model = self.trainer.policy.model
            given, wanted = ({n: w.shape for n, w in m.named_parameters()} for m in (fresh, model))
            if given != wanted:
                raise ValueError("it belongs to another model")
            copy_weights(fresh, model)
        except UNREADABLE as error:
            raise unusable(path, error) from None

    def resume(self) -> dict[str, Any]:
        """Load the newest checkpoint that can be read, and delete newer ones; return the run's state."""
        paths = self.ranks.broadcast(checkpoints(self.folder)[::-1])
        for i, path in enumerate(paths):
            try:
                state = self.load(path)
            except ValueError as problem:
                say(f"{problem}; trying the one before")
                continue
            self.ranks.barrier()
            for newer in paths[:i] if self.ranks.is_main else []:
                shutil.rmtree(newer)
            say(f"resumed after step {state['step']}")
            return state
        raise ValueError(f"nothing to resume: no usable checkpoint in {self.folder}")


def shards(trainer: Trainer) -> dict[str, Tensor]:
    """Return this rank's weights and moments by name, as they are in use: `dcp.load` writes into them."""
    return {
        f"{key}.{name}": tensor
        for name, weight in trainer.policy.model.named_parameters()
        for key, tensor in {"weight": weight.detach(), **trainer.optimizer.state.get(weight, {})}.items()
    }


def read_state(path: Path) -> dict[str, Any]:
    """Return the run's state in a checkpoint. ValueError if it is none that a run has written."""
    state = json.loads((path / "state.json").read_text())
    counts = [state.get("step"), state.get("cursor", 0)] if isinstance(state, dict) else [None]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"state.json holds no step and cursor: {state!r:.80}")
    return state


def unusable(path: Path, error: BaseException) -> ValueError:
    return ValueError(f"checkpoint {path} can't be used: {first_line(error)}")


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete RL checkpoints of a run, oldest first."""
    return sorted(p for p in folder.glob("step_*") if p.suffix == "" and p.is_dir())


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` RL checkpoints, and leftovers of interrupted writes."""
    for old in folder.glob("*.old"):
        if not old.with_suffix("").exists():  # it was to be replaced, and was not
            old.rename(old.with_suffix(""))
    for path in [*checkpoints(folder)[: -keep or None], *folder.glob("*.part"), *folder.glob("*.old")]:
        shutil.rmtree(path, ignore_errors=True)
