"""The tiny checkpoint: an ordinary Qwen3-VL folder whose tokenizer suits its world and spells any text."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, Qwen3VLForConditionalGeneration

from minirl.agents.openwebrl import parse
from minirl.tiny import checkpoints as tiny

WORDS = ["mug", "plate", "birch", "maroon"]
URL = "http://shop-0.test/"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build_tokenizer(tiny.corpus(WORDS, URL), vocabulary=1024)


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]


# --- the tokenizer ---------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_spelled(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_response_is_made_of_few_tokens(tokenizer):
    response = (
        'mug\n</think>\n<tool_call>\n{"name": "click", "arguments": {"point_2d": [500, 120]}}\n</tool_call>'
    )
    assert pieces(tokenizer, response) == [
        "mug", "\n", "</think>", "\n", "<tool_call>", "\n",
        '{"name":', ' "click",', ' "arguments":', ' {"point_2d":', " [", "500", ",", " 120", "]}}",
        "\n", "</tool_call>",
    ]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_the_same_token_wherever_it_stands(tokenizer, word):
    """What the task says is what the thought repeats, be it followed by a blank, a comma or nothing."""
    spaced = tokenizer.convert_tokens_to_ids("Ġ" + word)
    assert spaced is not None
    for text in (f"Order {word}", f"Order {word}, please", f"a {word} b", f"the {word}.\n"):
        assert tokenizer(text)["input_ids"].count(spaced) == 1, pieces(tokenizer, text)


def test_round_coordinates_are_single_tokens(tokenizer):
    assert pieces(tokenizer, "[0, 0]") == ["[0,", " 0", "]"]  # single digits stay with their neighbours
    for n in range(10, 1001, 10):
        assert pieces(tokenizer, f"[{n}, {n}]") == ["[", f"{n}", ",", f" {n}", "]"]


@pytest.mark.parametrize("token", tiny.SPECIAL + tiny.MARKUP)
def test_control_tokens_and_markup_are_single_tokens(tokenizer, token):
    assert pieces(tokenizer, f"a{token}b") == ["a", token, "b"]


# --- the folder ------------------------------------------------------------------------------------


def test_it_is_a_qwen3_vl_whose_ids_are_the_tokenizers(tiny_folder, preprocessor):
    config = AutoConfig.from_pretrained(tiny_folder)
    assert config.model_type == "qwen3_vl"
    one = preprocessor.tokenizer.convert_tokens_to_ids
    assert config.image_token_id == one("<|image_pad|>")
    assert config.video_token_id == one("<|video_pad|>")
    assert (config.vision_start_token_id, config.vision_end_token_id) == (
        one("<|vision_start|>"),
        one("<|vision_end|>"),
    )
    assert config.text_config.eos_token_id == preprocessor.tokenizer.eos_token_id == one("<|im_end|>")
    assert config.text_config.vocab_size == len(preprocessor.tokenizer)
    assert isinstance(
        AutoModelForImageTextToText.from_pretrained(tiny_folder), Qwen3VLForConditionalGeneration
    )


def test_its_processors_name_themselves_as_those_of_a_qwen3_vl(tiny_folder):
    images = json.loads((tiny_folder / "preprocessor_config.json").read_text())
    video = json.loads((tiny_folder / "video_preprocessor_config.json").read_text())
    assert images["processor_class"] == video["processor_class"] == "Qwen3VLProcessor"
    assert (images["patch_size"], images["merge_size"], images["temporal_patch_size"]) == (16, 2, 2)
    vision = AutoConfig.from_pretrained(tiny_folder).vision_config
    assert (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size) == (16, 2, 2)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")

    def make(name: str, seed: int):
        path = tiny.build(folder / name, tiny.corpus(WORDS, URL), seed=seed, hidden=32, layers=1)
        return load_file(path / "model.safetensors"), (path / "tokenizer.json").read_text()

    return make


def test_the_same_seed_gives_the_same_weights(build):
    weights, tokens = build("a", seed=3)
    again, tokens_again = build("b", seed=3)
    assert weights.keys() == again.keys() and tokens == tokens_again
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    other, _ = build("c", seed=4)
    assert not torch.equal(
        weights["model.language_model.embed_tokens.weight"], other["model.language_model.embed_tokens.weight"]
    )


def test_a_folder_that_was_left_half_written_is_replaced(tmp_path):
    path = tmp_path / "model"
    for left in (path.with_name("model.part"), path):
        left.mkdir()
        (left / "config.json").write_text("{")
    tiny.build(path, tiny.corpus(WORDS, URL), seed=0, hidden=32, layers=1)
    assert AutoConfig.from_pretrained(path).model_type == "qwen3_vl"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_corpus_shows_every_tool_with_its_arguments():
    calls = [text for text in tiny.corpus(WORDS, URL) if text.startswith('{"name"')]
    assert len(calls) == 13
    drag = parse(f"x</think><tool_call>{calls[-2]}</tool_call>").calls[0]
    assert drag.name == "drag" and drag.arguments["end_point_2d"] == [0, 0]
