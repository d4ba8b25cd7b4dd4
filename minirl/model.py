"""Checkpoints as folders: the weights, and what surrounds them.

Stands between config and everything that needs ids or weights. `load_preprocessor` reads what is around the
weights (tokenizer, chat format, image processor), `load_model` the weights, both from an ordinary Hugging
Face folder or hub name.

The sampler never picks vision tokens (a sampled image pad has no image, and breaks the next forward), so
the policy's distribution is over the remaining vocabulary: `Language.suppressed` holds what is left out,
and the sampler and the trained policy mask it alike.

Shape suffixes: L row length.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from minirl.config import ModelConfig
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN, ChatFormat
from minirl.tiny.onednn_linear import quicken

VIDEO_PAD = "<|video_pad|>"
BLANK = "blank"  # names BLANK_PNG, a picture for rows that must show one and have none


def _blank() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (32, 32)).save(out, "PNG")
    return out.getvalue()


BLANK_PNG = _blank()


class Images:
    """A model's image processor with a memory: the same screenshot is prepared once.

    Pages repeat, and a screenshot is needed for its token count, for sampling and for every training
    epoch. The cache holds `capacity` prepared images (about 30 MB each at 1280 x 1000 pixels) and drops
    the least recently used.
    """

    def __init__(self, path: str, max_pixels: int | None, capacity: int = 64):
        # PIL rather than torchvision: the same pixels on every machine, whatever else is installed
        self.processor = AutoImageProcessor.from_pretrained(path, backend="pil")
        size = dict(self.processor.size)
        if max_pixels is not None:
            unit = self.processor.patch_size * self.processor.merge_size
            size = {"shortest_edge": unit * unit, "longest_edge": max_pixels}
        self.size, self.merge = size, self.processor.merge_size
        self.prepare = functools.lru_cache(capacity)(self._prepare)  # safe from several threads

    def _prepare(self, png: bytes) -> tuple[Tensor, tuple[int, int, int]]:
        """Patches (n, channels * patch^2 * 2) and their grid (frames, rows, columns)."""
        try:
            picture = Image.open(io.BytesIO(png)).convert("RGB")
        except SyntaxError as error:  # as PIL calls some damages
            raise ValueError(f"a picture can't be decoded: {error}") from None
        out = self.processor(images=[picture], size=self.size, return_tensors="pt")
        return out["pixel_values"], tuple(out["image_grid_thw"][0].tolist())

    def tokens(self, png: bytes) -> int:
        """How many image pads the screenshot takes in a prompt."""
        frames, rows, columns = self.prepare(png)[1]
        return frames * rows * columns // self.merge**2


@dataclass
class Preprocessor:
    """What surrounds the weights."""

    tokenizer: PreTrainedTokenizerBase
    chat: ChatFormat
    images: Images | None  # None for text models
    suppressed: tuple[int, ...]  # ids that are never sampled
    end: tuple[int, ...]  # ids that end a response
    pad: int = field(init=False)

    def __post_init__(self) -> None:
        self.pad = self.tokenizer.convert_tokens_to_ids(IMAGE_PAD) if self.images else -1

    def image_tokens(self, png: bytes) -> int:
        if self.images is None:
            raise ValueError("this model can't see; use a vision-language model for the visual agent")
        return self.images.tokens(png)


def load_preprocessor(config: ModelConfig) -> Preprocessor:
    """Tokenizer, chat format and image processor of a checkpoint. ValueError if the path has none."""
    settings = _settings(config.path)
    visual = hasattr(settings, "vision_config")
    capacity = 64 if config.max_pixels is None else max(64, 2**31 // (24 * config.max_pixels))  # 2 GB
    with _reading(config.path):
        tokenizer = AutoTokenizer.from_pretrained(config.path)
        vocabulary = tokenizer.get_vocab()
        if vocabulary.keys() <= set(tokenizer.all_special_tokens):  # made up from the model's type alone
            raise ValueError("no tokenizer there")
        images = Images(config.path, config.max_pixels, capacity) if visual else None
    vision = (VISION_OPEN, VISION_CLOSE, IMAGE_PAD, VIDEO_PAD)
    size = settings.get_text_config().vocab_size
    unused = range(max(vocabulary.values()) + 1, size)  # rows beyond the tokenizer, for alignment only
    return Preprocessor(
        tokenizer=tokenizer,
        chat=ChatFormat.from_template(tokenizer),
        images=images,
        suppressed=tuple(vocabulary[t] for t in vision if t in vocabulary) + tuple(unused),
        end=(tokenizer.eos_token_id,),
    )


def _settings(path: str) -> PreTrainedConfig:
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
    if looks_local and not (Path(path) / "config.json").is_file():
        raise ValueError(f"--model.path {path}: no config.json there; give a Hugging Face folder or hub name")
    with _reading(path):
        return AutoConfig.from_pretrained(path)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """What is missing or broken in a folder is one line for the user, whichever library finds it."""
    try:
        yield
    except Exception as error:  # tokenizers raises bare ones, safetensors its own, torch RuntimeError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"--model.path {path} can't be loaded: {reason}") from error


def check_checkpoint(config: ModelConfig) -> None:
    """Raises ValueError if a folder's checkpoint can't be loaded, without reading its weights."""
    load_preprocessor(config)
    with _reading(config.path):
        files = list(Path(config.path).glob("*.safetensors"))
        if not files:
            raise ValueError("no *.safetensors file there")
        for file in files:  # opening one compares its size with what its header announces
            with safetensors.safe_open(file, "pt"):
                pass


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def load_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype | str | None = None
) -> PreTrainedModel:
    """The weights on one device, in `dtype` ("auto": as they are stored), by default the one that the config
    computes in. ValueError if some are missing."""
    settings = _settings(config.path)
    with _reading(config.path):
        model, found = _auto(settings).from_pretrained(
            config.path,
            dtype=dtype or compute_dtype(config, device),
            attn_implementation="sdpa",
            output_loading_info=True,
        )
        if found["missing_keys"]:  # they would be random
            raise ValueError(f"no weights for {min(found['missing_keys'])}")
    quicken(model)
    return model.to(device)


def blueprint(path: str) -> PreTrainedModel:
    """A checkpoint's model without weights, read from its config alone. ValueError if there is none."""
    settings = _settings(path)
    with torch.device("meta"):
        return _auto(settings).from_config(settings)


def _auto(settings: PreTrainedConfig) -> type[AutoModelForImageTextToText | AutoModelForCausalLM]:
    return AutoModelForImageTextToText if hasattr(settings, "vision_config") else AutoModelForCausalLM


def image_starts(ids: np.ndarray, lengths: Sequence[int], pad: int) -> list[int]:
    """Where each image's run of pads begins in one row's ids, given how many pads each image has.

    >>> image_starts(np.array([1, 9, 9, 2, 9, 3]), [2, 1], pad=9)
    [1, 4]
    """
    starts, at = [], 0
    for length in lengths:
        is_pad = ids[at:] == pad
        assert is_pad.any(), "more images than runs of image pads"
        start = at + int(np.argmax(is_pad))
        at = start + length
        assert at <= len(ids) and (ids[start:at] == pad).all(), "an image and its pads differ in number"
        starts.append(start)
    assert pad < 0 or not (ids[at:] == pad).any(), "image pads without an image"
    return starts


def positions(ids: np.ndarray, grids: list[tuple[int, int, int]], pad: int, merge: int) -> np.ndarray:
    """MRoPE positions (3, L) of one row: time, height, width.

    Text counts on in all three axes; an image of r x c merged patches starts at the next position p and
    takes (p, p + row, p + column), and text goes on at p + max(r, c). For ids T T I I I I T with one
    image of 2 x 2: time 0 1 2 2 2 2 4, height 0 1 2 2 3 3 4, width 0 1 2 3 2 3 4.
    """
    out = np.empty((3, len(ids)), dtype=np.int64)
    merged = [(rows // merge, columns // merge) for _, rows, columns in grids]
    i = p = 0
    for (r, c), start in zip(merged, image_starts(ids, [r * c for r, c in merged], pad), strict=True):
        out[:, i:start] = np.arange(p, p + start - i)
        p += start - i
        out[0, start : start + r * c] = p
        out[1, start : start + r * c] = p + np.repeat(np.arange(r), c)
        out[2, start : start + r * c] = p + np.tile(np.arange(c), r)
        i, p = start + r * c, p + max(r, c)
    out[:, i:] = np.arange(p, p + len(ids) - i)
    return out
