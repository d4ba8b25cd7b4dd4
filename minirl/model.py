"""Checkpoints as folders: loading them, what surrounds the weights, and the policy's log-probs.

Stands between config and everything that needs ids or weights. `load_language` reads what is around the
weights (tokenizer, chat format, image processor), `load_model` the weights, both from an ordinary Hugging
Face folder or hub name, and `Policy` turns rows of ids and images into log-probs for the trainer.

The sampler never picks vision tokens (a sampled image pad has no image, and breaks the next forward), so
the policy's distribution is over the remaining vocabulary: `Language.suppressed` holds what is left out,
and the sampler and `Policy` mask it alike.

Shape suffixes: B rows, L padded row length, N scored tokens of all rows, V vocabulary, H hidden size.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import torch
from liger_kernel.chunked_loss.fused_linear_ppo import LigerFusedLinearPPOBase
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from minirl.config import ModelConfig
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN, ChatFormat

VIDEO_PAD = "<|video_pad|>"
NEVER = -1e30  # added to a suppressed token's logit; finite, because chunks of logits get multiplied by 0


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
        picture = Image.open(io.BytesIO(png)).convert("RGB")
        out = self.processor(images=[picture], size=self.size, return_tensors="pt")
        return out["pixel_values"], tuple(out["image_grid_thw"][0].tolist())

    def tokens(self, png: bytes) -> int:
        """How many image pads the screenshot takes in a prompt."""
        frames, rows, columns = self.prepare(png)[1]
        return frames * rows * columns // self.merge**2


@dataclass
class Language:
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


def load_language(config: ModelConfig) -> Language:
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
    return Language(
        tokenizer=tokenizer,
        chat=ChatFormat.from_template(tokenizer),
        images=images,
        suppressed=tuple(vocabulary[t] for t in vision if t in vocabulary) + tuple(unused),
        end=(tokenizer.eos_token_id,),
    )


def _settings(path: str) -> AutoConfig:
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
    load_language(config)
    with _reading(config.path):
        files = list(Path(config.path).glob("*.safetensors"))
        if not files:
            raise ValueError("no *.safetensors file there")
        for file in files:  # opening one compares its size with what its header announces
            with safetensors.safe_open(file, "pt"):
                pass


def load_model(config: ModelConfig, device: torch.device) -> PreTrainedModel:
    """The weights, in the config's dtype, on one device."""
    settings = _settings(config.path)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    if config.dtype != "auto":
        dtype = getattr(torch, config.dtype)
    auto = AutoModelForImageTextToText if hasattr(settings, "vision_config") else AutoModelForCausalLM
    with _reading(config.path):
        model = auto.from_pretrained(config.path, dtype=dtype, attn_implementation="sdpa")
    return model.to(device)


def positions(ids: np.ndarray, grids: list[tuple[int, int, int]], pad: int, merge: int) -> np.ndarray:
    """MRoPE positions (3, L) of one row: time, height, width.

    Text counts on in all three axes; an image of r x c merged patches starts at the next position p and
    takes (p, p + row, p + column), and text goes on at p + max(r, c). For ids T T I I I I T with one
    image of 2 x 2: time 0 1 2 2 2 2 4, height 0 1 2 2 3 3 4, width 0 1 2 3 2 3 4.
    """
    out = np.empty((3, len(ids)), dtype=np.int64)
    i = p = 0
    for _, rows, columns in grids:
        start = i + int(np.argmax(ids[i:] == pad))
        assert ids[start] == pad, "more images than runs of image pads"
        out[:, i:start] = np.arange(p, p + start - i)
        p += start - i
        r, c = rows // merge, columns // merge
        assert (ids[start : start + r * c] == pad).all(), "an image and its pads differ in number"
        out[0, start : start + r * c] = p
        out[1, start : start + r * c] = p + np.repeat(np.arange(r), c)
        out[2, start : start + r * c] = p + np.tile(np.arange(c), r)
        i, p = start + r * c, p + max(r, c)
    assert pad < 0 or not (ids[i:] == pad).any(), "image pads without an image"
    out[:, i:] = np.arange(p, p + len(ids) - i)
    return out


class Policy(nn.Module):
    """The trained model as one module: rows in, log-probs of chosen tokens out.

    `suppressed_V` is 0, or NEVER for tokens that the sampler can't choose; `temperature` the sampler's.
    Both are parts of the distribution that was sampled, and so of the one that is trained.
    """

    def __init__(self, model: PreTrainedModel, language: Language, temperature: float):
        super().__init__()
        self.model, self.temperature = model, temperature
        head = model.get_output_embeddings()
        mask_V = torch.zeros(head.weight.shape[0], device=head.weight.device, dtype=head.weight.dtype)
        mask_V[list(language.suppressed)] = NEVER
        self.register_buffer("suppressed_V", mask_V, persistent=False)

    def forward(
        self, inputs: dict[str, Tensor], sources_N: Tensor, targets_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probs (N,) of `targets_N`, each predicted from the flat (B * L) position in `sources_N`,
        and the entropies (N,), without gradient."""
        hidden_BLH = self.model.model(**inputs, use_cache=False).last_hidden_state
        hidden_NH = hidden_BLH.flatten(0, 1)[sources_N]
        weight_VH = self.model.get_output_embeddings().weight
        logprobs_N = LigerFusedLinearPPOBase.chunk_forward(
            hidden_NH[None], weight_VH, targets_N[None], bias=self.suppressed_V, temperature=self.temperature
        )[0]
        logprobs_N = logprobs_N.masked_fill(self.suppressed_V[targets_N] < 0, float("-inf"))
        return logprobs_N, self._entropy(hidden_NH, weight_VH)

    @torch.no_grad()
    def _entropy(self, hidden_NH: Tensor, weight_VH: Tensor, chunk: int = 1024) -> Tensor:
        out = []
        for part_nH in hidden_NH.split(chunk):
            logits_nV = (part_nH @ weight_VH.T + self.suppressed_V).float() / self.temperature
            logprobs_nV = logits_nV.log_softmax(-1)
            out.append(-(logprobs_nV.exp() * logprobs_nV.clamp_min(-1e4)).sum(-1))
        return torch.cat(out)
