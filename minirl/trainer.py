"""Optimizer updates on rows, and checkpoints that survive being interrupted.

Stands behind train.py and sft.py. A checkpoint is an ordinary Hugging Face folder (so that it can be
evaluated, served or published as it is) with two files more: `trainer.pt` (optimizer, random states) and
`state.json` (where the run was). It is written beside its place and renamed, so a folder with the final
name is complete; one that can't be read all the same is named, and the one before it is used.

Shape suffixes: N response tokens of a micro-batch.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import cached_file

from minirl import tree
from minirl.batch import Batch, Row, collate, micro_batches, minibatches
from minirl.config import Config
from minirl.loss import imitation_loss, openwebrl_weights, policy_loss
from minirl.model import Language, Policy
from minirl.types import Group

PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
IF_THERE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
MAX_BAD_STEPS = 3  # consecutive updates without a finite gradient before training gives up


class Trainer:
    """One model, its optimizer, and the updates of reinforcement and imitation."""

    def __init__(
        self, model: PreTrainedModel, language: Language, config: Config, image: Callable[[str], bytes]
    ):
        self.language, self.config, self.image = language, config, image
        self.policy = Policy(model, language, config.sampler.temperature)
        self.device = model.device
        self.bad_steps = 0
        if config.batch.layout == "tree":
            tree.enable(model)
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forgets the moments: reinforcement does not start from those of imitation."""
        optim = self.config.optim
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay
        )

    def reinforce(self, groups: Sequence[Group], seed: int, tick: Callable[[], None]) -> dict[str, float]:
        """All epochs of clipped updates on one step's groups; metrics averaged over response tokens."""
        config, totals, norms, updates, loss_sum = self.config, {}, [], 0, 0.0
        self.policy.temperature = config.sampler.temperature
        for epoch in range(config.batch.epochs):
            for rows in minibatches(groups, config.batch.minibatch_turns, seed + epoch):
                turns = len(rows)

                def loss_of(batch, logprobs_N, turns=turns):
                    weight_N = openwebrl_weights(batch.length_N, turns)
                    return policy_loss(logprobs_N, batch.old_N, batch.advantage_N, weight_N, config.loss)

                loss, norm, sums = self._update(rows, loss_of, config.optim.lr)
                updates, loss_sum = updates + 1, loss_sum + loss
                norms.append(norm)
                add_up(totals, sums)
            tick()
        tokens = totals["tokens"]
        return {
            "loss": loss_sum / updates,
            "ratio_mean": totals["ratio"] / tokens,
            "ratio_max": totals["ratio_max"],
            "clip_fraction": totals["clipped"] / tokens,
            "entropy": totals["entropy"] / tokens,
            "grad_norm": sum(norms) / len(norms),
            "lr": config.optim.lr,
            "updates": updates,
        }

    def imitate(self, rows: Sequence[Row], lr: float) -> float:
        """One behaviour cloning update; the loss per response token."""
        tokens = sum(len(row.ids) - row.start for row in rows)
        self.policy.temperature = 1.0  # nothing was sampled

        def loss_of(batch, logprobs_N):
            return imitation_loss(logprobs_N, tokens), {"tokens": torch.tensor(float(len(logprobs_N)))}

        return self._update(rows, loss_of, lr)[0]

    def _update(
        self, rows: Sequence[Row], loss_of: Callable, lr: float
    ) -> tuple[float, float, dict[str, float]]:
        """One optimizer step on rows that are split into micro-batches; (loss, gradient norm, metric sums).

        A step without a finite gradient changes nothing and is counted; several in a row are fatal.
        """
        torch.set_num_threads(self.config.threads or len(os.sched_getaffinity(0)))  # Chromium is idle now
        self.policy.train()
        self.optimizer.zero_grad(set_to_none=True)
        total, sums = 0.0, {}
        for batch in self._batches(rows):
            logprobs_N, entropy_N = self.policy(batch.inputs, batch.sources_N, batch.targets_N)
            loss, part_sums = loss_of(batch, logprobs_N)
            loss.backward()
            total += loss.item()
            add_up(sums, part_sums | {"entropy": entropy_N.sum()})
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.optim.grad_clip).item()
        if math.isfinite(total) and math.isfinite(norm):
            self.bad_steps = 0
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        else:
            self.bad_steps += 1
            if self.bad_steps >= MAX_BAD_STEPS:
                raise ValueError(
                    f"{MAX_BAD_STEPS} updates in a row had no finite gradient; lower the learning rate"
                )
        return total, norm, sums

    def _batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """The rows as forward passes, in the config's layout; their order does not matter to the sum."""
        budget, where = self.config.batch.micro_tokens, (self.language, self.image, self.device)
        if self.config.batch.layout == "per-turn":
            for part in micro_batches(rows, budget):
                yield collate(part, *where)
        else:
            together = sorted(rows, key=lambda row: row.ids)  # what begins alike lies in one forest
            for part in tree.micro_batches(together, budget, self.language.pad):
                yield tree.pack(part, *where)

    # --- checkpoints -------------------------------------------------------------------------------

    def save(self, path: Path, state: dict[str, Any]) -> None:
        """Writes the folder `path`; `state` is the run's own (step, task cursor, best success)."""
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self.policy.model.save_pretrained(part)
        self.language.tokenizer.save_pretrained(part)
        for name in PROCESSOR_FILES:  # of a folder, or of a hub name in the cache
            file = cached_file(self.config.model.path, name, **IF_THERE)
            if file is not None:
                shutil.copy(file, part)
        saved = {"optimizer": self.optimizer.state_dict(), "torch": torch.get_rng_state()}
        torch.save(saved, part / "trainer.pt")
        (part / "state.json").write_text(json.dumps(state))
        old = path.with_name(path.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        part.rename(path)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, path: Path, optimizer: bool = True) -> dict[str, Any]:
        """Reads a checkpoint into the model; the run's state. Without the optimizer any Hugging Face folder
        of this model will do. ValueError names a folder that can't be read, and nothing is changed by one
        of another model."""
        try:
            weights = {}
            for file in sorted(path.glob("model*.safetensors")):
                weights |= load_file(file)
            state, saved = {}, None
            if optimizer:
                state = json.loads((path / "state.json").read_text())
                saved = torch.load(path / "trainer.pt", map_location="cpu", weights_only=True)
            if not weights:
                raise ValueError("it has no weights")
            model = self.policy.model
            tied = model.all_tied_weights_keys  # saved once, under the other name
            shapes = {n: w.shape for n, w in model.state_dict().items() if n in weights or n not in tied}
            if shapes != {name: weight.shape for name, weight in weights.items()}:
                raise ValueError("it belongs to another model")
            model.load_state_dict(weights, strict=False)
            model.tie_weights()
            if saved is not None:
                self.optimizer.load_state_dict(saved["optimizer"])
                torch.set_rng_state(saved["torch"])
        except (
            OSError,
            ValueError,
            RuntimeError,
            EOFError,
            KeyError,
            SafetensorError,
            pickle.PickleError,
        ) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"checkpoint {path} can't be used: {reason}") from None
        return state


def add_up(totals: dict[str, float], sums: Mapping[str, Tensor | float]) -> None:
    """Adds metric sums to their totals; of the largest ratio the larger one stays."""
    for name, value in sums.items():
        both = (totals.get(name, 0.0), float(value))
        totals[name] = max(both) if name == "ratio_max" else sum(both)


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


def load_latest(trainer: Trainer, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Resumes from the newest checkpoint that can be read, and deletes newer ones; ValueError if there is
    none."""
    broken: list[Path] = []
    for path in reversed(checkpoints(folder)):
        try:
            state = trainer.load(path)
        except ValueError as problem:
            say(f"{problem}; trying the one before")
            broken.append(path)
            continue
        for newer in broken:
            shutil.rmtree(newer)
        return state
    raise ValueError(f"nothing to resume: no usable checkpoint in {folder}")
