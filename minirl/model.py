"""Models from Hugging Face folders or hub names: their weights, their preprocessors, and their inputs.

Stands between config and everything that needs ids or weights: samplers, rows and prefix trees. A sampled
image pad would have no image, and break the next forward pass. So sampler and trained policy both mask vision
tokens (`Preprocessor.suppressed`), and the policy's distribution is over the remaining vocabulary. Shape
suffixes: B rows, L row length, 3 the axes of a position (time, height, width).
"""

import contextlib
import functools
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from minirl.config import Config, ModelConfig
from minirl.console import first_line
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN, ChatFormat
from minirl.onednn_linear import quicken
from minirl.types import Tokenizer

CPU = torch.device("cpu")
VIDEO_PAD = "<|video_pad|>"
NO_CODE: dict[str, Any] = {"trust_remote_code": False}  # or transformers asks whether to run a folder's own
Grid = tuple[int, int, int]  # an image's patches: frames, rows, columns
Picture = tuple[Tensor, Grid]  # patches (n, channels * patch^2 * 2), and their grid


def request_seed(*parts: object) -> int:
    """Return a seed made from names, as run seed, step, task id, member and turn."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Images:
    """An image processor that keeps its results: a screenshot is sampled with, and trained on in every epoch.
    The last `capacity` are kept as numbers, for the sampler, and `most`, a step's worth, as bytes, which take
    an eighth of that. Safe from several threads."""

    def __init__(self, path: str, max_pixels: int | None, capacity: int = 64, most: int = 1024):
        # PIL rather than torchvision: the same pixels on every machine, whatever else is installed
        own = self.processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil", **NO_CODE)
        self.size, self.merge, self.frames = dict(own.size), own.merge_size, own.temporal_patch_size
        self.unit = own.patch_size * self.merge
        if max_pixels is not None:
            self.size = {"shortest_edge": self.unit * self.unit, "longest_edge": max_pixels}
        every_byte = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))  # in each channel of a row of pixels
        normal = own.normalize(own.rescale(every_byte, own.rescale_factor), own.image_mean, own.image_std)
        self.numbers = np.asarray(normal, np.float32)[:, 0]  # by channel and byte
        self.patches = functools.lru_cache(most)(self._patches)
        self.prepare = functools.lru_cache(capacity)(self._prepare)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and the height that a picture of this size is scaled to."""
        limits = self.size["shortest_edge"], self.size["longest_edge"]
        down, across = smart_resize(height, width, self.unit, *limits)
        return across, down

    def _patches(self, png: bytes) -> tuple[np.ndarray, Grid]:
        """Return the bytes of a screenshot's patches (n, 3, patch^2), scaled to `size`, and their grid.
        ValueError or OSError if it is damaged."""
        try:
            picture = Image.open(io.BytesIO(png)).convert("RGB")
        except SyntaxError as error:  # PIL's name for some damages
            raise ValueError(f"a picture can't be decoded: {error}") from None
        out = self.processor(images=[picture], size=self.size, do_rescale=False, do_normalize=False)
        patches = np.asarray(out["pixel_values"])
        # a still picture's frames are equal
        patches = patches.reshape(len(patches), 3, self.frames, -1)[:, :, 0].astype(np.uint8)
        return patches, tuple(np.asarray(out["image_grid_thw"])[0].tolist())

    def _prepare(self, png: bytes) -> Picture:
        """Return a screenshot's patches in numbers, as the processor makes them, and their grid."""
        patches, grid = self.patches(png)
        out = np.empty((len(patches), 3, self.frames, patches.shape[2]), np.float32)
        for channel in range(3):
            out[:, channel] = self.numbers[channel][patches[:, channel]][:, None]
        return torch.from_numpy(out.reshape(len(out), -1)), grid


@dataclass
class Preprocessor:
    """What surrounds the weights."""

    tokenizer: Tokenizer
    chat: ChatFormat
    images: Images | None  # None for text models
    suppressed: tuple[int, ...]  # ids that are never sampled
    end: tuple[int, ...]  # ids that end a response

    @functools.cached_property
    def pad(self) -> int:
        """Return the image pad's id, or -1 for a text model."""
        return self.tokenizer.get_vocab()[IMAGE_PAD] if self.images else -1

    def image_tokens(self, png: bytes) -> int:
        """Return how many image pads a screenshot takes in a prompt. ValueError for a text model."""
        if self.images is None:
            raise ValueError("this model can't see; use a vision-language model for the visual agent")
        return len(self.images.patches(png)[0]) // self.images.merge**2

    def said(self, text: str, ended: bool = True) -> tuple[str, tuple[int, ...]]:
        """Return a response as this model would have said it, text and ids with the token that ends it."""
        if self.chat.opens_think:  # the template has written the tag already
            text = text.removeprefix("<think>").removeprefix("\n")
        end = self.tokenizer.eos_token if ended else ""
        return text, tuple(self.tokenizer(text + end, add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int]) -> str:
        """Return a response as text, without the token that ended it."""
        ended = len(ids) > 0 and ids[-1] in self.end
        return str(self.tokenizer.decode(list(ids[:-1] if ended else ids), skip_special_tokens=False))


def load_preprocessor(config: ModelConfig) -> Preprocessor:
    """Return a checkpoint's tokenizer, chat format and image processor. ValueError if one is missing."""
    settings, _ = _settings(config.path)
    # 64, of 30 MB each at 1280 x 1000 pixels, or 2 GB of smaller ones; and 4 GB of bytes
    capacity = max(64, 2**31 // (24 * (config.max_pixels or 2**30)))
    most = 2**32 // (3 * min(config.max_pixels or 2**30, 1280 * 1000))
    with _reading(config.path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.path, **NO_CODE)
        vocabulary = tokenizer.get_vocab()
        if vocabulary.keys() <= set(tokenizer.all_special_tokens):  # made up from the model's type alone
            raise ValueError("no tokenizer there")
        visual = hasattr(settings, "vision_config")
        images = Images(config.path, config.max_pixels, capacity, most) if visual else None
    vision = [vocabulary[t] for t in (VISION_OPEN, VISION_CLOSE, IMAGE_PAD, VIDEO_PAD) if t in vocabulary]
    # the head's rows beyond the tokenizer are for alignment only
    unused = range(max(vocabulary.values()) + 1, settings.get_text_config().vocab_size)
    chat, ends = ChatFormat.from_template(tokenizer), end_tokens(config.path, tokenizer)
    return Preprocessor(tokenizer, chat, images, suppressed=(*vision, *unused), end=ends)


def end_tokens(path: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the chat's end token and the others of the checkpoint's generation_config.json, as Qwen's
    <|endoftext|> and Llama's <|eom_id|>, in which a model may end that has not been tuned further."""
    try:
        named = transformers.GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # it has none
        named = None
    first: Any = tokenizer.eos_token_id
    control = tokenizer.added_tokens_decoder  # a model's default may be the id of an ordinary word
    ids = named if isinstance(named, list) else [named]
    return (first, *(end for end in ids if end is not None and end in control and end != first))


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the type that a model computes in on a device."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def load_model(config: ModelConfig, device: torch.device, dtype: str | None = None) -> PreTrainedModel:
    """Return the weights on one device, in the type that the config computes in or, for "auto", is stored."""
    _, auto = _settings(config.path)
    options = NO_CODE | {"dtype": dtype or compute_dtype(config, device), "attn_implementation": "sdpa"}
    with _reading(config.path):
        model, found = auto.from_pretrained(config.path, output_loading_info=True, **options)
        if found["missing_keys"]:  # they would be random
            raise ValueError(f"no weights for {min(found['missing_keys'])}")
    return _faster_patches(model.to(device))


def open_model(config: Config, device: torch.device = CPU, dtype: str | None = "auto") -> PreTrainedModel:
    """Return the checkpoint's model, with faster linear layers on a CPU; `dtype` as in `load_model`."""
    model = load_model(config.model, device, dtype)
    quicken(model)
    return model


def _faster_patches(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with the convolution over patches, which don't overlap, as a matrix product: the same
    numbers, five times faster on a CPU."""
    for module in model.modules():
        if isinstance(module, nn.Conv3d) and module.stride == module.kernel_size:
            module.forward = functools.partial(_project, module)
    return model


def _project(convolution: nn.Conv3d, input: Tensor) -> Tensor:
    return F.linear(input.flatten(1), convolution.weight.flatten(1), convolution.bias)


def save_model(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    """Write a model as a Hugging Face folder. OSError if that fails, as on a full disk."""
    try:
        model.save_pretrained(folder, **options)
    except safetensors.SafetensorError as error:
        raise OSError(f"{folder} could not be written: {error}") from None


def blueprint(path: str) -> PreTrainedModel:
    """Return a checkpoint's model without weights. ValueError if there is none."""
    settings, auto = _settings(path)
    with _reading(path), torch.device("meta"):
        return auto.from_config(settings, **NO_CODE)


def _settings(path: str) -> tuple[PreTrainedConfig, Any]:
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
    if looks_local and not (Path(path) / "config.json").is_file():
        raise ValueError(f"--model.path {path}: no config.json there; give a Hugging Face folder or hub name")
    with _reading(path):
        settings = transformers.AutoConfig.from_pretrained(path, **NO_CODE)
    visual = hasattr(settings, "vision_config")
    return settings, transformers.AutoModelForImageTextToText if visual else transformers.AutoModelForCausalLM


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tokenizers raises bare ones, safetensors its own, torch RuntimeError
        raise ValueError(f"--model.path {path} can't be loaded: {first_line(error)}") from error


class Encoded(NamedTuple):
    ids_L: np.ndarray
    position_3L: np.ndarray
    pictures: list[Picture]  # in the order of their pads


def encode(ids: Sequence[int], pngs: Sequence[bytes], preprocessor: Preprocessor) -> Encoded:
    """Return ids with their positions, and the prepared screenshots, of which a text model has none."""
    ids_L, images = np.array(ids, dtype=np.int64), preprocessor.images
    pictures = [images.prepare(png) for png in pngs] if images else []
    grids, merge = [grid for _, grid in pictures], images.merge if images else 1
    return Encoded(ids_L, positions(ids_L, grids, preprocessor.pad, merge), pictures)


def padded_inputs(rows: list[Encoded], preprocessor: Preprocessor, device: torch.device) -> dict[str, Tensor]:
    """Return a forward pass's inputs but its mask. Shorter rows end in 0; text has positions (B, L)."""
    B, L = len(rows), max(len(row.ids_L) for row in rows)
    ids_BL = np.zeros((B, L), dtype=np.int64)
    position_3BL = np.zeros((3, B, L), dtype=np.int64)
    for b, row in enumerate(rows):
        ids_BL[b, : len(row.ids_L)] = row.ids_L
        position_3BL[:, b, : len(row.ids_L)] = row.position_3L
    position = position_3BL if preprocessor.images else position_3BL[0]
    inputs = {"input_ids": torch.from_numpy(ids_BL), "position_ids": torch.from_numpy(position)}
    if pictures := [picture for row in rows for picture in row.pictures]:
        # numpy's: torch's own would keep a pool of spinning threads for each thread that prepares inputs
        inputs["pixel_values"] = torch.from_numpy(np.concatenate([patches for patches, _ in pictures]))
        inputs["image_grid_thw"] = torch.tensor([grid for _, grid in pictures])
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def image_starts(ids: np.ndarray, lengths: Sequence[int], pad: int) -> list[int]:
    """Return where each image's run of pads begins in one row's ids, given how many pads each image has."""
    pads, bounds = np.flatnonzero(ids == pad), np.cumsum([0, *lengths])
    assert len(pads) == bounds[-1], "images and pads differ in number"
    starts, ends = pads[bounds[:-1]], pads[bounds[1:] - 1] + 1
    assert (ends - starts == lengths).all(), "an image's pads follow one another"
    return starts.tolist()


def positions(ids: np.ndarray, grids: Sequence[Grid], pad: int, merge: int) -> np.ndarray:
    """Return the MRoPE positions (3, L) of one row: time, height, width. Text counts on in all three; an
    image of r x c merged patches at p takes (p, p + row, p + column), and text goes on at p + max(r, c). T
    and 2 x 2 and T are time 0 1 1 1 1 3, height 0 1 1 2 2 3 and width 0 1 2 1 2 3."""
    out = np.empty((3, len(ids)), dtype=np.int64)
    merged = [(rows // merge, columns // merge) for _, rows, columns in grids]
    i = p = 0
    for (r, c), start in zip(merged, image_starts(ids, [r * c for r, c in merged], pad), strict=True):
        out[:, i:start] = np.arange(p, p + start - i)
        p, i = p + start - i, start + r * c
        out[:, start:i] = p + np.indices((1, r, c)).reshape(3, -1)
        p += max(r, c)
    out[:, i:] = np.arange(p, p + len(ids) - i)
    return out
