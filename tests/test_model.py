"""Positions against transformers' own, and the policy's log-probs against the plain formula."""

import copy
import io
import json
import platform
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from training import CPU, logprobs_of

from minirl.config import ModelConfig
from minirl.model import (
    MIN_ROWS,
    ImageProcessor,
    PatchLinear,
    Product,
    QuickLinear,
    blueprint,
    image_starts,
    load_model,
    load_preprocessor,
    positions,
    quicken,
)
from minirl.policy import Policy
from minirl.rows import Row, collate

PAD = 99  # stands for the image pad where no model is needed


def test_patches_by_a_matrix_product_are_those_of_the_convolution(tiny_folder):
    """Of the model as it is loaded, against torch's convolution of the same weights; gradients too."""
    model = load_model(ModelConfig(path=str(tiny_folder)), CPU)
    (convolution,) = [module.double() for module in model.modules() if isinstance(module, nn.Conv3d)]
    patches = torch.randn(30, 3, *convolution.kernel_size, requires_grad=True, dtype=torch.float64)
    found, expected = convolution(patches), nn.Conv3d.forward(convolution, patches).flatten(1)
    assert type(convolution) is PatchLinear
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weights = torch.randn_like(expected)
    parts = [patches, convolution.weight, convolution.bias]
    one, two = (torch.autograd.grad((out * weights).sum(), parts) for out in (found, expected))
    for ours, theirs in zip(one, two, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_quick_layers_give_the_values_and_gradients_of_plain_ones(bias):
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias)
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert type(quick) is QuickLinear and list(quick.state_dict()) == list(plain.state_dict())
    for shape in ((MIN_ROWS,), (3, 5, 2 * MIN_ROWS)):
        x, grad = torch.randn(*shape, 48), torch.randn(*shape, 80)
        found = []
        for layer in (plain, quick):
            layer.zero_grad()
            inputs = x.clone().requires_grad_()
            out = layer(inputs)
            out.backward(grad)
            found.append([out, inputs.grad, *(weight.grad for weight in layer.parameters())])
        for ours, theirs in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
            assert theirs.any()


def test_products_of_transposed_inputs_and_frozen_weights():
    torch.manual_seed(0)
    weight = torch.randn(80, 48)
    x = torch.randn(48, 100, requires_grad=True)
    out = Product.apply(x.T, weight, None)
    out.sum().backward()
    torch.testing.assert_close(out, x.T @ weight.T, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x.grad, weight.sum(0)[:, None].expand(48, 100), rtol=1e-5, atol=1e-4)


# In a process whose cache is new. Of mallinfo2's ten numbers the 5th, hblkhd, and 8th, uordblks, are held
SHAPES = """
import ctypes, sys, torch
from minirl.config import ModelConfig
from minirl.model import load_model, product

load_model(ModelConfig(path=sys.argv[1]))
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = type("Mallinfo", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_size_t * 10)]})
weight = torch.randn(256, 128)
held = []
for rows in range(100, 400):
    product(torch.randn(rows, 128), weight)
    held.append(mallinfo().bytes[4] + mallinfo().bytes[7])
print((held[-1] - held[99]) // 1000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc tells")
def test_rows_of_ever_new_lengths_do_not_fill_the_memory(tiny_folder):
    """The last 200 of 300 shapes add less than 10 MB; by PyTorch's default they add more than 50."""
    command = [sys.executable, "-c", SHAPES, str(tiny_folder)]
    kilobytes = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert kilobytes < 10_000


def test_other_types_and_few_rows_are_left_to_pytorch(monkeypatch):
    calls = []
    monkeypatch.setattr(Product, "apply", lambda inputs, *_: calls.append((inputs.dtype, inputs.shape)))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        layer = nn.Linear(16, 16).to(dtype)
        quicken(layer)
        for rows in (MIN_ROWS, MIN_ROWS - 1):
            layer(torch.randn(rows, 16, dtype=dtype))
    assert calls == [(torch.float32, (MIN_ROWS, 16))]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=6))
def test_where_images_start(spans):
    """Even where two images follow one another without a word between."""
    ids, expected = [], []
    for words, pads in spans:
        ids += [1] * words
        expected.append(len(ids))
        ids += [PAD] * pads
    assert image_starts(np.array([*ids, 1]), [pads for _, pads in spans], PAD) == expected


def test_positions_equal_those_of_transformers(preprocessor, model):
    """Random rows with up to two images of different sizes, also with no text between."""
    dice = random.Random(0)
    merge, start, end = 2, model.config.vision_start_token_id, model.config.vision_end_token_id
    for images in [0, 1, 2] * 10:
        ids, grids = [], []
        for _ in range(images):
            grid = (1, merge * dice.randint(1, 4), merge * dice.randint(1, 4))
            ids += [20] * dice.randint(0, 3) + [start]
            ids += [preprocessor.pad] * (grid[1] * grid[2] // merge**2) + [end]
            grids.append(grid)
        ids += [21] * dice.randint(1, 4)
        ids_1L = torch.tensor([ids])
        theirs, _ = model.model.get_rope_index(
            ids_1L,
            mm_token_type_ids=(ids_1L == preprocessor.pad).int(),
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        ours = positions(np.array(ids), grids, preprocessor.pad, merge)
        assert ours.tolist() == theirs[:, 0].tolist(), (ids, grids)


@pytest.mark.parametrize(
    ("ids", "grids"),
    [
        ([1, PAD, PAD, 2], [(1, 2, 2)]),  # one pad too many
        ([1, PAD, 2], [(1, 2, 4)]),  # one too few
        ([1, PAD, 2], []),  # a pad without an image
        ([1, 2], [(1, 2, 2)]),  # an image without a pad
    ],
)
def test_images_and_pads_that_do_not_match_are_never_passed_over(ids, grids):
    with pytest.raises(AssertionError):
        positions(np.array(ids), grids, PAD, merge=2)


ROWS = (
    Row((11, 12, 13, 14, 15, 16), 3, (), (0.0,) * 3, 0.0),
    Row((17, 18, 19, 20), 2, (), (0.0,) * 2, 0.0),
)


def plain(model, batch, suppressed, temperature):
    """Log-probs (N,) and entropies (N,) as one would write them down: the suppressed columns do not
    exist, the rest is softmax(logits / temperature)."""
    logits_NV = model(**batch.inputs).logits.flatten(0, 1)[batch.sources_N]
    allowed = [i for i in range(logits_NV.shape[1]) if i not in suppressed]
    logprobs_NV = (logits_NV[:, allowed] / temperature).log_softmax(-1)
    columns_N = torch.tensor([allowed.index(i) for i in batch.targets_N.tolist()])
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(1, columns_N[:, None])[:, 0], entropy_N


@pytest.mark.parametrize(("temperature", "masked"), [(0.7, True), (1.0, False)])
def test_log_probs_entropy_and_gradient_equal_the_plain_formula(
    preprocessor, tiny_folder, temperature, masked
):
    model = load_model(ModelConfig(path=str(tiny_folder)), CPU)
    suppressed = (*preprocessor.suppressed, 30, 31) if masked else ()
    policy = Policy(model, replace(preprocessor, suppressed=suppressed), temperature)
    batch = collate(ROWS, preprocessor, {}, CPU)
    upstream_N = torch.tensor([0.3, -1.0, 0.5, 2.0, -0.1])

    logprobs_N, entropy_N = policy(batch.inputs, batch.sources_N, batch.targets_N, entropy=True)
    (logprobs_N * upstream_N).sum().backward()
    ours = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    model.zero_grad(set_to_none=True)
    expected_N, expected_entropy_N = plain(model, batch, suppressed, temperature)
    (expected_N * upstream_N).sum().backward()
    theirs = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    torch.testing.assert_close(logprobs_N, expected_N, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy_N, expected_entropy_N, atol=1e-5, rtol=0)
    assert not entropy_N.requires_grad
    assert ours.keys() == theirs.keys() and any("q_proj" in name for name in ours)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    # the control: without the suppression and the temperature the numbers would be others
    other_N, _ = plain(model, batch, (), 1.3)
    assert (other_N - expected_N).abs().min() > 1e-3


class Body(nn.Module):
    """A model without a body: its hidden states are the inputs, its head is wide."""

    def __init__(self, vocabulary: int, hidden: int):
        super().__init__()
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def model(self, hidden_BLH, use_cache):
        return SimpleNamespace(last_hidden_state=hidden_BLH)


@pytest.mark.parametrize(
    "suppressed",
    [(4095, 4096, 8999), tuple(range(8192, 9000)), tuple(range(4096))],
    ids=["at the edges of chunks", "the whole last chunk", "the whole first chunk"],
)
def test_suppressed_tokens_anywhere_in_a_large_vocabulary(preprocessor, suppressed):
    """Log-probs are computed over chunks of 4096 tokens, and none of them may turn into a NaN."""
    torch.manual_seed(0)
    body = Body(9000, 8)
    policy = Policy(body, replace(preprocessor, suppressed=suppressed), temperature=0.5)
    hidden_BLH = torch.randn(1, 4, 8, requires_grad=True)
    targets_N = torch.tensor([4097, 5000, 8191, 6000])
    logprobs_N, entropy_N = policy({"hidden_BLH": hidden_BLH}, torch.arange(4), targets_N, entropy=True)
    logprobs_N.sum().backward()

    logits_NV = body.head(hidden_BLH.detach()[0]) / 0.5
    logits_NV[:, list(suppressed)] = float("-inf")
    expected_NV = logits_NV.log_softmax(-1)
    torch.testing.assert_close(logprobs_N.detach(), expected_NV.gather(1, targets_N[:, None])[:, 0])
    torch.testing.assert_close(entropy_N, -(expected_NV.exp() * expected_NV.clamp_min(-100)).sum(-1).detach())
    assert hidden_BLH.grad.isfinite().all() and hidden_BLH.grad.any()
    assert body.head.weight.grad.isfinite().all()
    assert not body.head.weight.grad[list(suppressed)].any()  # they are no part of the distribution


def test_a_target_that_could_not_be_sampled_has_no_probability(preprocessor, model):
    """A row that holds one would otherwise be trained on as if it were merely unlikely."""
    policy = Policy(model, preprocessor, temperature=1.0)
    row = Row((11, 12, preprocessor.pad, 14), 2, (), (0.0, 0.0), 0.0)
    logprobs_N = logprobs_of(policy, [row], replace(preprocessor, images=None), {})
    assert logprobs_N[0] == float("-inf") and logprobs_N[1].isfinite()


def test_what_is_suppressed_and_what_ends_a_response(preprocessor, model):
    name = preprocessor.tokenizer.convert_ids_to_tokens
    vision = {"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"}
    assert {name(i) for i in preprocessor.suppressed} == vision
    assert [name(i) for i in preprocessor.end] == ["<|im_end|>"]
    assert preprocessor.pad == model.config.image_token_id


def test_every_end_token_of_the_generation_config_ends_a_response(preprocessor, tiny_folder, tmp_path):
    """The chat's own first, none twice; an ordinary word, as a class's default may name one, is none."""
    folder, tokenizer = shutil.copytree(tiny_folder, tmp_path / "model"), preprocessor.tokenizer
    text, own = tokenizer.convert_tokens_to_ids("<|endoftext|>"), tokenizer.eos_token_id
    assert text != own and tokenizer.decode([300]) not in tokenizer.get_added_vocab()
    for named, ends in (([text, own, 300], (own, text)), (text, (own, text)), (None, (own,)), (own, (own,))):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        speaks = load_preprocessor(ModelConfig(path=str(folder)))
        assert speaks.end == ends and not {*ends} & {*speaks.suppressed}
        for end in ends:
            assert speaks.text((*tokenizer("so it is")["input_ids"], end)) == "so it is"
    assert speaks.text((300, text)) == tokenizer.decode([300, text]), "which is none of the last one's"
    (folder / "generation_config.json").unlink()
    assert load_preprocessor(ModelConfig(path=str(folder))).end == (own,)


def change(file: Path, **changes: object) -> None:
    """Give a file of settings other ones."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_rows_of_the_head_beyond_the_tokenizer_are_suppressed(preprocessor, tiny_folder, tmp_path):
    """Qwen's vocabularies are padded to a round number; those ids decode to nothing."""
    folder = shutil.copytree(tiny_folder, tmp_path / "padded")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    size = text["vocab_size"]
    change(folder / "config.json", text_config=text | {"vocab_size": size + 3})
    padded = load_preprocessor(ModelConfig(path=str(folder)))
    assert padded.suppressed == (*preprocessor.suppressed, size, size + 1, size + 2)


def assert_refused(load: Callable[[ModelConfig], object], path: Path | str) -> None:
    """In one line that names the path."""
    with pytest.raises(ValueError, match=rf"^{path} can't be loaded: .+\Z"):
        load(ModelConfig(path=str(path)))


@pytest.mark.parametrize("path", ["nobody/nothing", "/nowhere/model", "./nowhere", "~/nowhere"])
def test_a_hub_name_or_a_folder_that_cannot_be_had_is_one_line(path):
    assert_refused(load_preprocessor, path)


def test_a_folder_without_a_tokenizer_is_refused(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(ValueError, match="can't be loaded: no tokenizer there"):
        load_preprocessor(ModelConfig(path=str(tmp_path / "model")))


def load_weights(config: ModelConfig) -> object:
    return load_model(config, CPU)


@pytest.mark.parametrize(
    ("load", "files", "size"),
    [
        (load_preprocessor, "*processor_config.json", None),
        (load_preprocessor, "tokenizer.json", 20),
        (load_weights, "model.safetensors", None),
        (load_weights, "model.safetensors", 100),
    ],
)
def test_a_folder_with_a_part_that_is_missing_or_cut_off_is_one_line(
    tiny_folder, tmp_path, load, files, size
):
    folder = shutil.copytree(tiny_folder, tmp_path / "part")
    for file in folder.glob(files):
        file.unlink() if size is None else file.write_bytes(file.read_bytes()[:size])
    assert_refused(load, folder)


CODE = """
from pathlib import Path
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
Path({ran!r}).touch()
class Theirs(PreTrainedConfig): model_type = "theirs"
class Tokens(PreTrainedTokenizerFast): pass
"""


def test_a_folder_with_code_of_its_own_is_one_line_and_no_question(tiny_folder, tmp_path, monkeypatch):
    """Where there is a class of transformers' own for it, as for this tokenizer, that is used."""
    folder, ran = shutil.copytree(tiny_folder, tmp_path / "theirs"), tmp_path / "ran"
    (folder / "theirs.py").write_text(CODE.format(ran=str(ran)))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "theirs.Tokens"]})
    load_preprocessor(ModelConfig(path=str(folder)))
    change(folder / "config.json", model_type="theirs", auto_map={"AutoConfig": "theirs.Theirs"})
    assert_refused(load_preprocessor, folder)
    assert_refused(load_weights, folder)
    assert_refused(lambda config: blueprint(config.path), folder)
    assert asked == [] and not ran.exists()


def test_image_tokens_are_merged_patches_of_at_most_max_pixels(preprocessor, tiny_folder, png):
    # 64 x 96 pixels: 4 x 6 patches of 16, so 2 x 3 of 2 x 2
    assert preprocessor.image_tokens(png(64, 96)) == 6
    pixels, grid = preprocessor.images.prepare(png(64, 96))
    assert grid == (1, 6, 4) and len(pixels) == 24
    # scales a screenshot down and keeps its shape
    images = ImageProcessor(str(tiny_folder), max_pixels=64 * 64)
    assert images.prepare(png(128, 128))[1] == (1, 4, 4)  # 64 x 64 pixels
    assert images.prepare(png(64, 32))[1] == (1, 2, 4)  # small enough as it is


def test_a_damaged_picture_is_a_usual_error(preprocessor):
    """Its second part has no name; PIL calls that a SyntaxError."""
    file = io.BytesIO()
    Image.effect_noise((200, 200), 50).convert("RGB").save(file, "PNG")
    first, second, *_ = (place.start() for place in re.finditer(b"IDAT", file.getvalue()))
    damaged = file.getvalue()[:second] + bytes(4) + file.getvalue()[second + 4 :]
    with pytest.raises(ValueError, match="a picture can't be decoded: broken PNG"):
        preprocessor.images.prepare(damaged)
    with pytest.raises(OSError, match="truncated"):
        preprocessor.images.prepare(file.getvalue()[: first + 100])


@pytest.mark.parametrize(
    "settings", [{}, {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}]
)
def test_pictures_are_what_the_processor_makes_of_them(tiny_folder, tmp_path, png, settings):
    """Scaled or not, and with another mean for each channel, as Qwen2.5-VL has it."""
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    change(folder / "preprocessor_config.json", **settings)
    for max_pixels, size in ((None, (64, 96)), (None, (75, 131)), (64 * 64, (160, 128))):
        images, noise = ImageProcessor(str(folder), max_pixels), io.BytesIO()
        Image.effect_noise(size, 80).convert("RGB").save(noise, "PNG")
        for picture in (png(*size), noise.getvalue()):
            opened = Image.open(io.BytesIO(picture)).convert("RGB")
            theirs = images.processor(images=[opened], size=images.size, return_tensors="pt")
            pixels, grid = images.prepare(picture)
            assert torch.equal(pixels, theirs["pixel_values"]) and len({*pixels.flatten().tolist()}) > 50
            assert grid == tuple(theirs["image_grid_thw"][0].tolist())


def test_a_text_model_says_that_it_cannot_see(preprocessor):
    blind = replace(preprocessor, images=None)
    assert blind.pad == -1
    with pytest.raises(ValueError, match="can't see; use a vision-language model"):
        blind.image_tokens(b"")


def test_as_many_pictures_are_kept_as_fit(tiny_folder, monkeypatch):
    """By their own bytes, not by those of the largest: two equal frames of three float32 a pixel."""
    each = 24 * 64 * 64
    machine = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 400 * 3 * each}
    monkeypatch.setattr("os.sysconf", machine.get)
    usual = ImageProcessor(str(tiny_folder), max_pixels=None)
    assert usual.prepare.cache.maxsize == 2**27  # more than the share
    monkeypatch.setattr("minirl.model.CACHE_BYTES", 0)
    images = ImageProcessor(str(tiny_folder), max_pixels=None)
    pictures = []
    for side in (64, 64, 64, 96, 128):
        file = io.BytesIO()
        Image.effect_noise((side, side), 80).save(file, "PNG")
        pictures.append(file.getvalue())
    first = [images.prepare(picture)[0] for picture in pictures[:3]]
    assert all(
        images.prepare(picture)[0] is patches for picture, patches in zip(pictures, first, strict=False)
    )
    images.prepare(pictures[3])  # has the bytes of 2.25 of them, so that none of the others stays
    assert images.prepare.cache.currsize == 2.25 * each
    assert images.prepare(pictures[4])[0].nbytes == 4 * each  # too large to be kept
    assert images.prepare.cache.currsize == 2.25 * each
    assert images.prepare(pictures[0])[0] is not first[0]
