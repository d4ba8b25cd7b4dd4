"""Models from Hugging Face folders or hub names: their weights, their preprocessors, and their inputs.

Stands between config and everything that needs ids or weights: samplers, rows and prefix trees. A sampled
image pad would have no image, and break the next forward pass. So sampler and trained policy both mask vision
tokens (`Preprocessor.suppressed`), and the policy's distribution is over the remaining vocabulary. Shape
suffixes: B rows, L row length, 3 the axes of a position (time, height, width), P patches of a picture; in a
linear layer, as in lora.py, N tokens, I inputs, O outputs.
"""

import contextlib
import ctypes
import functools
import hashlib
import io
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from cachetools import LRUCache, cached
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from minirl.config import ModelConfig
from minirl.console import first_line
from minirl.context import IMAGE_PAD, THINK_END, VISION_CLOSE, VISION_OPEN, ChatFormat, calls_in_tags
from minirl.types import Tokenizer

CPU = torch.device("cpu")
VISION_TOKENS = (VISION_OPEN, VISION_CLOSE, IMAGE_PAD, "<|video_pad|>")
NO_CODE: dict[str, Any] = {"trust_remote_code": False}  # or transformers asks whether to run a folder's own
CACHE_BYTES = 2**27  # of pictures that each rank keeps at least: 128 MB
Image.MAX_IMAGE_PIXELS = 32_000_000  # Pillow refuses twice as many, which are a gigabyte of numbers
MIN_ROWS = 64  # of a matrix product by oneDNN; below, the call itself costs more
Grid = tuple[int, int, int]  # a picture's patches: frames, rows, columns
Picture = tuple[Tensor, Grid]  # patches (P, channels * frames * patch^2), and their grid


IS_GLIBC = platform.libc_ver()[0] == "glibc"
MMAP_THRESHOLD = -3  # glibc's number of the setting
LARGE = 4 << 20  # bytes of a block that goes back to the machine as soon as it is freed


def limit_heap() -> None:
    """Have PyTorch keep few of oneDNN's kernels, of which it keeps 1,024 by itself, a quarter of a MB each,
    one for each shape of a matrix product: that of packed rows hardly ever comes again. Have glibc give large
    blocks back at once: by itself it comes to keep all below 32 MB, in a heap that grows by half in ten
    steps, because what lives long comes to lie between."""
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    if IS_GLIBC:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)


def release_memory() -> None:
    """Give freed memory back to the machine. Tensors of many sizes leave holes between what is kept, and
    glibc holds on to these until it is asked."""
    if IS_GLIBC:
        ctypes.CDLL(None).malloc_trim(0)


def request_seed(*parts: object) -> int:
    """Return a seed made from names, as run seed, step, task id, member and turn."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class ImageProcessor:
    """An image processor that keeps its results: a screenshot is sampled with, and trained on in every epoch.
    All threads share them."""

    def __init__(self, path: str, max_pixels: int | None):
        # PIL rather than torchvision: the same pixels on every machine, whatever else is installed
        processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil", **NO_CODE)
        self.processor = processor
        self.merge = processor.merge_size
        self.unit = processor.patch_size * self.merge
        self.size = dict(processor.size)
        if max_pixels:
            self.size = {"shortest_edge": self.unit * self.unit, "longest_edge": max_pixels}
        # 2% of the machine's memory for eight ranks: its episodes' last screenshots, 30 MB each at full size
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cache = LRUCache(max(CACHE_BYTES, memory // 400), lambda picture: picture[0].nbytes)  # pyright: ignore
        # `prepare(png)` returns a screenshot's patches and their grid
        self.prepare = cached(cache, lock=threading.Lock())(self._prepare)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and the height that a picture of this size is scaled to."""
        new_height, new_width = smart_resize(
            height, width, self.unit, self.size["shortest_edge"], self.size["longest_edge"]
        )
        return new_width, new_height

    def _prepare(self, png: bytes) -> Picture:
        """Return `prepare`'s result. ValueError or OSError if the picture is damaged."""
        try:
            picture = open_picture(io.BytesIO(png)).convert("RGB")
        except SyntaxError as error:  # PIL's name for some damages
            raise ValueError(f"a picture can't be decoded: {error}") from None
        out = self.processor(images=[picture], size=self.size, return_tensors="pt")
        return out["pixel_values"], tuple(out["image_grid_thw"][0].tolist())


def open_picture(file: Any) -> Image.Image:
    """Return a screenshot, in a file or at a path, of which the header is read so far. ValueError or OSError
    if it is none, or one that no model can be shown."""
    try:
        picture = Image.open(file, formats=("PNG", "JPEG", "WEBP", "GIF"))  # for others programs may run
    except Image.DecompressionBombError as error:
        raise ValueError(f"a picture too large: {error}") from None
    smart_resize(*picture.size)  # ValueError if one side is over 200 times the other
    return picture


@dataclass
class Preprocessor:
    """What surrounds the weights."""

    tokenizer: Tokenizer
    chat: ChatFormat
    images: ImageProcessor | None  # None for text models
    suppressed: tuple[int, ...]  # ids that are never sampled
    end: tuple[int, ...]  # ids that end a response

    @functools.cached_property
    def pad(self) -> int:
        """Return the image pad's id, or -1 for a text model."""
        return self.tokenizer.get_vocab()[IMAGE_PAD] if self.images else -1

    def image_tokens(self, png: bytes) -> int:
        """Return how many image pads a screenshot takes in a prompt. ValueError for a text model."""
        if not self.images:
            raise ValueError("this model can't see; use a vision-language model for the visual agent")
        return len(self.images.prepare(png)[0]) // self.images.merge**2

    def tokenise(self, text: str) -> list[int]:
        """Return a text's ids, without any that the tokenizer would put around it."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def render_response(self, text: str, ended: bool = True) -> tuple[str, tuple[int, ...]]:
        """Return a response as this model would write it, text and ids with the token that ends it."""
        if self.chat.opens_think:  # the template has written the tag already
            text = text.removeprefix("<think>").removeprefix("\n")
        if self.chat.closing:
            text = text.rpartition(THINK_END)[2].lstrip()
        if self.chat.tags:
            text = calls_in_tags(text)
        end = self.end[:1] if ended else ()
        return text, (*self.tokenise(text), *end)

    def text(self, ids: Sequence[int]) -> str:
        """Return a response as text, without the token that ended it."""
        if ids and ids[-1] in self.end:
            ids = ids[:-1]
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def load_preprocessor(config: ModelConfig) -> Preprocessor:
    """Return a checkpoint's tokenizer, chat format and image processor. ValueError if one is missing."""
    settings, _ = _settings(config.path)
    with _reading(config.path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.path, **NO_CODE)
        vocabulary = tokenizer.get_vocab()
        if len(vocabulary) == 1:  # what transformers makes of a folder without one
            raise ValueError("no tokenizer there")
        is_visual = hasattr(settings, "vision_config")
        images = ImageProcessor(config.path, config.max_pixels) if is_visual else None
    vision = [vocabulary[token] for token in VISION_TOKENS if token in vocabulary]
    # the head's rows beyond the tokenizer are for alignment only
    unused = range(max(vocabulary.values()) + 1, settings.get_text_config().vocab_size)
    chat = ChatFormat.from_template(tokenizer)
    return Preprocessor(
        tokenizer=tokenizer,
        chat=chat,
        images=images,
        suppressed=(*vision, *unused),
        end=end_tokens(config.path, tokenizer, chat.end),
    )


def end_tokens(path: str, tokenizer: Tokenizer, chat_end: str) -> tuple[int, ...]:
    """Return the chat's end token, then the tokenizer's and those of the checkpoint's generation_config.json,
    as Qwen's <|endoftext|> and Llama's <|eom_id|>, in which a model that is not tuned further may end."""
    try:
        configured = transformers.GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # it has none
        configured = None
    ends: list[Any] = [tokenizer.convert_tokens_to_ids(chat_end)]
    others = configured if isinstance(configured, list) else [configured]
    for token in [tokenizer.eos_token_id, *others]:
        # a model's default may be the id of an ordinary word
        if token in tokenizer.added_tokens_decoder and token not in ends:
            ends.append(token)
    return tuple(ends)


def compute_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the type that a model computes in on a device."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, config.dtype)


def load_model(config: ModelConfig, device: torch.device = CPU, dtype: str | None = None) -> PreTrainedModel:
    """Return the weights on one device, in the type that is computed in or, with `dtype="auto"`, stored."""
    limit_heap()
    _, auto = _settings(config.path)
    options = {"dtype": dtype or compute_dtype(config, device), "attn_implementation": "sdpa"}
    with _reading(config.path):
        model, info = auto.from_pretrained(config.path, output_loading_info=True, **options, **NO_CODE)
        if info["missing_keys"]:  # they would be random
            raise ValueError(f"no weights for {min(info['missing_keys'])}")
    quicken(model)
    return model.to(device)


def frozen(model: Any, config: ModelConfig) -> list[nn.Module]:
    """Return the modules that are never trained: by `freeze_vision` a vision tower; by `freeze` the lowest
    layers and the embeddings, which may be the head, too. ValueError if there are not so many layers."""
    modules = []
    if config.freeze_vision == "always" and hasattr(model.config, "vision_config"):
        modules.append(model.model.visual)
    layers = model.get_decoder().layers
    if config.freeze > len(layers):
        raise ValueError(f"--model.freeze {config.freeze}: this model has {len(layers)} layers")
    if config.freeze:
        modules += [model.get_input_embeddings(), *layers[: config.freeze]]
    return modules


def quicken(model: nn.Module) -> None:
    """Give a model the layers below, which are faster on a CPU, with the same weights."""
    for module in model.modules():
        if type(module) is nn.Conv3d and module.stride == module.kernel_size:
            module.__class__ = PatchLinear
        elif type(module) is nn.Linear:
            module.__class__ = QuickLinear


class PatchLinear(nn.Conv3d):
    """The convolution over patches, which don't overlap, as a matrix product: five times faster."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input.flatten(1), self.weight.flatten(1), self.bias)


class QuickLinear(nn.Linear):
    """A linear layer through oneDNN where that pays. PyTorch gives matrix products of float32 to MKL, which
    reached about half of oneDNN's speed on the one processor where both were measured, an AMD EPYC."""

    def forward(self, input: Tensor) -> Tensor:
        if is_quick(input, self.weight):
            return Product.apply(input, self.weight, self.bias)
        return super().forward(input)


class Product(torch.autograd.Function):
    """x @ weight.T + bias by oneDNN's kernel, which has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_NO = grad.flatten(0, -2)
        x_NI = x.flatten(0, -2)
        grad_x = product(grad, weight.T) if needs_x else None
        grad_weight = product(grad_NO.T, x_NI.T) if needs_weight else None
        return grad_x, grad_weight, grad_NO.sum(0) if needs_bias else None


def is_quick(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN's kernel is there, and pays."""
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and x.shape[:-1].numel() >= MIN_ROWS and torch.backends.mkldnn.is_available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias by the faster kernel, for functions that have a gradient of their own."""
    return product(x, weight, bias) if is_quick(x, weight) else F.linear(x, weight, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias; the tensors may be transposed views."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def is_hybrid(model: PreTrainedModel) -> bool:
    """Return True if layers of the text model read token after token into a state, as Qwen3.5's do."""
    layer_types = getattr(model.config.get_text_config(), "layer_types", None)
    return "linear_attention" in (layer_types or ())


def blueprint(path: str) -> PreTrainedModel:
    """Return a checkpoint's model without weights. ValueError if there is none."""
    settings, auto = _settings(path)
    with _reading(path), torch.device("meta"):
        return auto.from_config(settings, **NO_CODE)


def _settings(path: str) -> tuple[PreTrainedConfig, Any]:
    with _reading(path):
        settings = transformers.AutoConfig.from_pretrained(path, **NO_CODE)
    if hasattr(settings, "vision_config"):
        return settings, transformers.AutoModelForImageTextToText
    return settings, transformers.AutoModelForCausalLM


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tokenizers raises bare ones, safetensors its own, torch RuntimeError
        raise ValueError(f"{path} can't be loaded: {first_line(error)}") from error


class Encoded(NamedTuple):
    ids_L: np.ndarray
    position_3L: np.ndarray
    pictures: list[Picture]  # in the order of their pads


def encode(ids: Sequence[int], pngs: Sequence[bytes], preprocessor: Preprocessor) -> Encoded:
    """Return ids with their positions, and the prepared screenshots, of which a text model has none."""
    ids_L = np.array(ids, dtype=np.int64)
    images = preprocessor.images
    pictures = [images.prepare(png) for png in pngs] if images else []
    grids = [grid for _, grid in pictures]
    merge = images.merge if images else 1
    return Encoded(ids_L, positions(ids_L, grids, preprocessor.pad, merge), pictures)


def padded_inputs(
    rows: list[Encoded], preprocessor: Preprocessor, device: torch.device, pad_left: bool = False
) -> dict[str, Tensor]:
    """Return a forward pass's inputs but its mask. Shorter rows end in 0, or begin with it; text has
    positions (B, L)."""
    B = len(rows)
    L = max(len(row.ids_L) for row in rows)
    ids_BL = np.zeros((B, L), dtype=np.int64)
    position_3BL = np.zeros((3, B, L), dtype=np.int64)
    for b, row in enumerate(rows):
        start = L - len(row.ids_L) if pad_left else 0
        place = slice(start, start + len(row.ids_L))
        ids_BL[b, place] = row.ids_L
        position_3BL[:, b, place] = row.position_3L
    position = position_3BL if preprocessor.images else position_3BL[0]
    inputs = {"input_ids": torch.from_numpy(ids_BL), "position_ids": torch.from_numpy(position)}
    pictures = [picture for row in rows for picture in row.pictures]
    if pictures:
        # numpy's: torch's own would keep a pool of spinning threads for each thread that prepares inputs
        patches = np.concatenate([patches for patches, _ in pictures])
        inputs["pixel_values"] = torch.from_numpy(patches)
        inputs["image_grid_thw"] = torch.tensor([grid for _, grid in pictures])
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def image_starts(ids: np.ndarray, lengths: Sequence[int], pad: int) -> list[int]:
    """Return where each image's run of pads begins in one row's ids, given how many pads each image has."""
    pads = np.flatnonzero(ids == pad)
    bounds = np.cumsum([0, *lengths])
    assert len(pads) == bounds[-1], "images and pads differ in number"
    return pads[bounds[:-1]].tolist()


def positions(ids: np.ndarray, grids: Sequence[Grid], pad: int, merge: int) -> np.ndarray:
    """Return the MRoPE positions (3, L) of one row: time, height, width. Text counts on in all three; an
    image of r x c merged patches at p takes (p, p + row, p + column), and text goes on at p + max(r, c). A
    token, an image of 2 x 2 and a token: time 0 1 1 1 1 3, height 0 1 1 2 2 3, width 0 1 2 1 2 3."""
    merged = [(rows // merge, columns // merge) for _, rows, columns in grids]
    starts = image_starts(ids, [r * c for r, c in merged], pad)
    position_3L = np.empty((3, len(ids)), dtype=np.int64)
    i = 0  # the next token
    p = 0  # its position
    for (r, c), start in zip(merged, starts, strict=True):
        # Text before the image: the three axes are equal, as in a model without pictures.
        position_3L[:, i:start] = np.arange(p, p + start - i)
        p += start - i
        # A patch is rotated by where it lies, not by when it was read: its neighbour below is as near as
        # that to its right, though a whole row of tokens lies between. A still picture is one moment.
        i = start + r * c
        position_3L[:, start:i] = p + np.indices((1, r, c)).reshape(3, -1)
        p += max(r, c)  # behind all of the image, on every axis
    position_3L[:, i:] = np.arange(p, p + len(ids) - i)
    return position_3L
