"""A trainer on the small model, and episodes to train it on: for tests, not a test itself."""

import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image

from minirl.config import Config, LossConfig, ModelConfig
from minirl.distributed import Ranks
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.policy import Policy
from minirl.recipes import tiny
from minirl.rows import Row, collate, make_rows
from minirl.trainer import Trainer
from minirl.types import Group, Task, Trajectory, Turn

CPU = torch.device("cpu")
TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
TEXT_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
TEXT_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
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
    sft: dict | None = None,
    **batch,
) -> Trainer:
    """A trainer on a fresh copy of a checkpoint; one update per step unless `batch` says otherwise."""
    config: Config = tiny()
    settings = ModelConfig(path=str(path), **(model or {}))
    optim_config = replace(config.optim, lr=lr, **(optim or {}))
    batch_config = replace(config.batch, **{"epochs": 1, "minibatch_turns": 1000} | batch)
    config = replace(config, model=settings, optim=optim_config, batch=batch_config)
    config = replace(config, loss=loss or LossConfig(), sft=replace(config.sft, **(sft or {})))
    config = replace(config, replay=Path("elsewhere"))  # log-probs of other weights
    images = {name: picture(name) for name in SIZES}
    load = partial(load_model, settings, dtype="auto")
    return Trainer(load, load_preprocessor(settings), config, images, ranks)


def save_text_model(path: Path, preprocessor: Preprocessor, kind: str, **settings) -> Path:
    """The Hugging Face folder of a small "Llama" or "Qwen2", with the words of the tiny model."""
    torch.manual_seed(0)
    settings = {"vocab_size": len(preprocessor.tokenizer), "initializer_range": 0.1} | TEXT_SIZES | settings
    config = getattr(transformers, f"{kind}Config")(**settings)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(path)
    preprocessor.tokenizer.save_pretrained(path)
    return path


def qwen2_5_vl(preprocessor: Preprocessor, patch: int = 16) -> transformers.PreTrainedModel:
    """A small Qwen2.5-VL with random weights, for the words of the tiny model."""
    ids = {name: preprocessor.tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("image_pad", "video_pad", "vision_start", "vision_end")}  # fmt: skip
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    words = len(preprocessor.tokenizer)
    config = transformers.Qwen2_5_VLConfig(
        text_config={"vocab_size": words, **TEXT_SIZES, "rope_parameters": rope},
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": patch,
            "spatial_merge_size": 2,
            "window_size": 64,
            "fullatt_block_indexes": [1],
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def make_groups(preprocessor: Preprocessor) -> list[Group]:
    """Two tasks with three episodes of one to three turns, some with a screenshot; old log-probs of -6
    are near what an untrained model says of a vocabulary of e^6.7."""
    start, end = (preprocessor.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    shown = {"wide": (start, *[preprocessor.pad] * 6, end), "small": (start, preprocessor.pad, end)}

    def episode(member: int, turns: int) -> Trajectory:
        prefix, out = (1, 40 + member, 41), []
        for t in range(turns):
            image = ("wide", "small", None)[(member + t) % 3]
            response = tuple(range(60 + 7 * member + t, 62 + 7 * member + 3 * t)) + (2,)
            suffix = (*shown[image], 42) if image else (43,)
            images = (image,) if image else ()
            out.append(Turn(len(prefix), suffix, response, (-6.0,) * len(response), "", images=images))
            prefix += (44 + t, *response)
        return Trajectory(TASK, member, prefix=prefix, turns=tuple(out))

    return [
        group_of((episode(0, 2), episode(1, 1), episode(2, 3)), 1.0, 0.5, -1.5),
        group_of((episode(3, 1), episode(4, 2), episode(5, 2)), -0.5, 1.5, -1.0, number=1),
    ]


def group_of(trajectories: Iterable[Trajectory], *advantages: float, number: int = 0) -> Group:
    """A step's group with that number, with an advantage for each trajectory."""
    pairs = zip(trajectories, advantages, strict=True)
    return tuple(replace(t, group=number, advantage=advantage) for t, advantage in pairs)


def rows_of(groups: list[Group]) -> list[Row]:
    """The rows of all trajectories, none of which looks at the tokenizer."""
    return [row for trajectory in make_rows(groups, LossConfig()) for row in trajectory.rows]


@torch.no_grad()
def logprobs_of(policy: Policy, rows: list[Row], preprocessor: Preprocessor, images: dict) -> torch.Tensor:
    """The log-probs (N,) of the responses of rows that go through the model together."""
    batch = collate(rows, preprocessor, images, CPU)
    return policy(batch.inputs, batch.sources_N, batch.targets_N)[0]


def scored(trainer: Trainer, rows: list[Row]) -> list[torch.Tensor]:
    """The trainer's log-probs of each row's response."""
    logprobs_N = logprobs_of(trainer.policy, rows, trainer.preprocessor, trainer.images)
    return list(logprobs_N.split([len(row.old) for row in rows]))


def learn(trainer: Trainer, groups: list[Group], step: int = 0, tick: Callable[[], None] = int) -> dict:
    """Updates on groups, as train.py makes them."""
    return trainer.update(make_rows(groups, trainer.config.loss), step, tick)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.weights()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(((one[name] - other[name]) ** 2).sum().item() for name in one) ** 0.5
