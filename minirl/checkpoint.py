"""Checkpoints that survive being interrupted, on one rank or many.

    step_00010/  config.json, model.safetensors, tokenizer ...   an ordinary Hugging Face folder
                 state.json                                      where the run was
                 shards/*.safetensors                            trained weights and Adam's moments, by rank
                 adapter/                                        with --model.lora: PEFT's folder

The shards are read to resume, by as many ranks as there are then. They are written while the next episodes
run; the folder is renamed when all ranks have written, so that a final name means a complete one. If one
still can't be read, a line says so and the one before it is used. Nothing in a folder is pickled, so a
stranger's checkpoint runs no code.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers.utils import cached_file

from minirl import four_bit, lora
from minirl.config import ModelConfig
from minirl.console import first_line, say
from minirl.distributed import full_tensor
from minirl.model import compute_dtype, load_model
from minirl.run_folder import checkpoints
from minirl.trainer import Trainer
from minirl.types import Json

PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
IF_THERE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
TENSORS_PER_FILE = 8  # of a rank's shards
KEEP = 2  # checkpoints to resume from
UNREADABLE = (OSError, ValueError, dcp.api.CheckpointException)  # what a torn checkpoint raises


class Checkpoints:
    """The checkpoint folder of a run. Every method is called by all ranks."""

    def __init__(self, trainer: Trainer, folder: Path):
        self.trainer = trainer
        self.ranks = trainer.ranks
        self.base = trainer.config.model.path  # which adapters are of
        self.folder = folder
        self.newest = ""  # the name of the one that was written or loaded last
        self.writing: tuple[Path, Any] | None = None  # with the future

    def save(self, name: str, state: Json) -> None:
        """Start to write a checkpoint to resume from; `finish` completes it and leaves the newest two."""
        self.finish()
        part = self._export(name, state)
        tensors = shards(self.trainer)
        # a file is copied twice in memory while it is written
        files = {key: 1 + n // TENSORS_PER_FILE for n, key in enumerate(tensors)}
        writer = dcp.HuggingFaceStorageWriter(str(part / "shards"), files, save_distributed=True)
        # in a group of its own, because the ranks go on to the next episodes meanwhile
        future = dcp.async_save(tensors, storage_writer=writer, process_group=self.ranks.side)
        self.writing = part, future
        self.newest = name

    def export(self, name: str, state: Json) -> None:
        """Write a checkpoint to start from: no shards."""
        self.finish()
        self._complete(self._export(name, state))

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and name it."""
        if not self.writing:
            return
        part, future = self.writing
        self.writing = None
        try:
            future.result()
        except dcp.api.CheckpointException as error:  # whose own first line says nothing
            cause, _ = next(iter(error.failures.values()))
            raise OSError(f"{part} can't be written: {cause}") from None
        self._complete(part)
        if self.ranks.is_main:
            prune(self.folder)

    def _export(self, name: str, state: Json) -> Path:
        """Write the Hugging Face folder and the run's state; return its place, NAME.part."""
        trainer = self.trainer
        part = self.folder / f"{name}.part"
        # all ranks gather each weight, the first one keeps it
        weights = {key: weight.cpu() for key, weight in trainer.weights() if self.ranks.is_main}
        adapters = {}
        for key, weight in lora.adapters_of(trainer.policy.model).items():
            adapters[key] = full_tensor(weight.detach()).cpu()
        if self.ranks.is_main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            trainer.preprocessor.tokenizer.save_pretrained(part)
            try:
                trainer.policy.model.save_pretrained(part, state_dict=weights)
            except SafetensorError as error:  # which is no OSError
                raise OSError(f"{part} can't be written: {error}") from None
            # the files hold the computing type, not the policy's float32
            settings = json.loads((part / "config.json").read_text())
            settings["dtype"] = str(compute_dtype(trainer.config.model, self.ranks.device)).split(".")[1]
            (part / "config.json").write_text(json.dumps(settings, indent=2))
            for file_name in PROCESSOR_FILES:  # of a folder, or of a hub name in the cache
                file = cached_file(trainer.config.model.path, file_name, **IF_THERE)
                if file:
                    shutil.copy(file, part)
            images = trainer.preprocessor.images
            if images and trainer.config.model.max_pixels:
                set_image_size(part, images.size)
            if adapters:  # not beside the weights, to which transformers would add them
                lora.save_adapters(adapters, trainer.config.model.lora, self.base, part / "adapter")
            (part / "state.json").write_text(json.dumps(state))
        self.ranks.barrier()
        return part

    def _complete(self, part: Path) -> None:
        """Give a written checkpoint its final name, in place of an earlier one."""
        self.ranks.barrier()
        if self.ranks.is_main:
            path = part.with_suffix("")
            shutil.rmtree(path, ignore_errors=True)
            part.rename(path)
        self.ranks.barrier()

    def load(self, path: Path) -> Json:
        """Read weights and moments; return the run's state. If that fails, one of UNREADABLE on all ranks."""
        state = json.loads((path / "state.json").read_text())
        reader = dcp.HuggingFaceStorageReader(str(path / "shards"))
        dcp.load(shards(self.trainer), storage_reader=reader, process_group=self.ranks.side)
        return state

    def start_from(self, path: Path) -> None:
        """Take the weights alone, from any Hugging Face folder of this model; adapters begin anew on them.
        ValueError if it is none."""
        source = load_model(ModelConfig(path=str(path)), dtype="auto")
        target = self.trainer.policy.model
        adapters = lora.new_adapters(target, self.trainer.config.seed)
        expected = shapes(dict(source.named_parameters()) | adapters)
        if expected != shapes(dict(target.named_parameters())) | four_bit.packed_shapes(target):
            raise ValueError(f"{path} holds another model than --model.path {self.trainer.config.model.path}")
        whole = StateDictOptions(full_state_dict=True)  # on every rank
        others: dict[str, Any] = four_bit.take_weights(target, source.state_dict())
        set_model_state_dict(target, others | adapters, options=whole)
        self.base = str(path)

    def resume(self) -> Json:
        """Load the newest checkpoint that can be read, and delete newer ones; return the run's state."""
        paths = self.ranks.broadcast(checkpoints(self.folder))
        for n, path in reversed(list(enumerate(paths))):
            try:
                state = self.load(path)
            except UNREADABLE as error:
                say(f"checkpoint {path} can't be used: {first_line(error)}; trying the one before")
                continue
            self.ranks.barrier()
            if self.ranks.is_main:
                for newer in paths[n + 1 :]:
                    shutil.rmtree(newer)
            self.newest = path.name
            say(f"resumed after step {state['step']}")
            return state
        raise ValueError(f"nothing to resume: no usable checkpoint in {self.folder}; choose another --name")


def set_image_size(folder: Path, size: dict[str, int]) -> None:
    """Have a checkpoint's screenshots scaled as they were in training, by whoever serves it."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = folder / name
        settings = json.loads(path.read_text()) if path.exists() else {}
        image = settings.get("image_processor")  # a whole processor's; else the file is the image processor's
        if name == "preprocessor_config.json":
            image = image or settings
        if image:
            for older in ("min_pixels", "max_pixels"):  # which would count instead, as in Qwen2.5-VL's
                image.pop(older, None)
            image["size"] = size
            path.write_text(json.dumps(settings, indent=2))


def shards(trainer: Trainer) -> dict[str, Tensor]:
    """Return this rank's trained weights and moments by name, as they are in use: `dcp.load` writes into
    them. Frozen weights are those that the run starts from."""
    tensors = {}
    for name, weight in trainer.policy.model.named_parameters():
        if not weight.requires_grad:
            continue
        tensors[f"weight.{name}"] = weight.detach()
        for key, moment in trainer.optimizer.state.get(weight, {}).items():
            tensors[f"{key}.{name}"] = moment
    return tensors


def shapes(weights: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def prune(folder: Path) -> None:
    """Delete all but the newest KEEP RL checkpoints, and leftovers of interrupted writes."""
    surplus = checkpoints(folder)[:-KEEP]
    for path in [*surplus, *folder.glob("*.part")]:
        shutil.rmtree(path, ignore_errors=True)
