"""A trainer on the small model, and episodes to train it on: for tests, not a test itself."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel

from minirl.config import Config, LossConfig, ModelConfig
from minirl.distributed import Ranks
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.recipes import tiny
from minirl.rows import Row, collate, members_of
from minirl.trainer import Trainer
from minirl.types import Group, Task, Trajectory, Turn

CPU = torch.device("cpu")
TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
TEXT_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SIZES = {"wide": (96, 64), "small": (32, 32)}  # 6 image pads and 1


def picture(name: str) -> bytes:
    width, height = SIZES[name]
    pixels = np.random.default_rng(len(name)).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def make_trainer(
    path: Path,
    ranks: Ranks,
    lr: float = 1e-3,
    loss: LossConfig | None = None,
    model: dict | None = None,
    optim: dict | None = None,
    **batch,
) -> Trainer:
    """A trainer on a fresh copy of a checkpoint; one update per step unless `batch` says otherwise."""
    config: Config = tiny()
    settings = ModelConfig(path=str(path), **(model or {}))
    config = replace(
        config,
        threads=1,
        model=settings,
        loss=loss or LossConfig(),
        optim=replace(config.optim, lr=lr, **(optim or {})),
        batch=replace(config.batch, **{"epochs": 1, "minibatch_turns": 1000} | batch),
    )
    weights = load_model(settings, CPU, "auto")
    return Trainer(weights, load_preprocessor(settings), config, picture, ranks)


def save_text_model(
    path: Path,
    preprocessor: Preprocessor,
    config: type[PreTrainedConfig],
    model: type[PreTrainedModel],
    **settings,
) -> Path:
    """A small text model's Hugging Face folder, with the words of the tiny one."""
    torch.manual_seed(0)
    made = config(vocab_size=len(preprocessor.tokenizer), initializer_range=0.1, **TEXT_SIZES | settings)
    model(made).save_pretrained(path)
    preprocessor.tokenizer.save_pretrained(path)
    return path


def make_groups(preprocessor: Preprocessor) -> list[Group]:
    """Two tasks with three episodes of one to three turns, some with a screenshot; old log-probs of -6
    are near what an untrained model says of a vocabulary of e^6.7."""
    start, end = (preprocessor.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    shown = {"wide": (start, *[preprocessor.pad] * 6, end), "small": (start, preprocessor.pad, end)}

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
    return [row for member in members_of(groups) for row in member.rows]


def scored(trainer: Trainer, rows: list[Row]) -> list[torch.Tensor]:
    """The trainer's log-probs of each row's response."""
    batch = collate(rows, trainer.preprocessor, trainer.image, CPU)
    with torch.no_grad():
        logprobs_N, _ = trainer.policy(batch.inputs, batch.sources_N, batch.targets_N)
    return list(logprobs_N.split([len(row.old) for row in rows]))


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.weights()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one) ** 0.5


def nothing() -> None:
    pass
