"""The tiny checkpoint: an ordinary Qwen3-VL folder whose tokenizer suits its world and spells any text."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen3VLForConditionalGeneration,
)

from examples.base_models import checkpoints as tiny
from minirl.agents.openwebrl import TOOLS, parse
from minirl.agents.openwebrl_actions import SCALE
from minirl.tiny.checkpoints import BASE
from minirl.worlds.hand import GRID
from minirl.worlds.scripted_agent import with_points, with_thought
from minirl.worlds.shop import SHOP, make_shop, make_tasks

pytestmark = pytest.mark.more
WORDS = ["mug", "plate", "birch", "maroon"]
URL = "http://shop-0.test/"
TASKS = make_tasks(make_shop(28), 2)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build_tokenizer(tiny.corpus(WORDS, URL))


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_spelled(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_response_is_made_of_few_tokens_whose_numbers_are_those_of_its_thought(tokenizer):
    said = [
        "choose", " mug", " 500", " 120", "</think>",
        "<tool_call>", '{"name": "click", "arguments": {"point_2d": [', " 500", ",", " 120", "]}}",
        "</tool_call>",
        "<tool_call>", '{"name": "done", "arguments": {"response": ', '"done"}}', "</tool_call>",
    ]  # fmt: skip
    click = {"name": "click", "arguments": {"point_2d": [500, 120]}}
    done = {"name": "done", "arguments": {"response": "done"}}
    assert with_points({"mug": (500, 120)}, [click, done]) == "".join(said)
    assert pieces(tokenizer, "".join(said)) == said


def test_round_coordinates_are_single_tokens(tokenizer):
    for n in range(0, SCALE + 1, GRID):
        assert pieces(tokenizer, f"[{n}, {n}]") == ["[", f"{n}", ",", f" {n}", "]"]


@pytest.mark.parametrize("token", tiny.SETTINGS["special"] + tiny.SETTINGS["tokenizers"]["visual"]["markup"])
def test_control_tokens_and_markup_are_single_tokens(tokenizer, token):
    assert pieces(tokenizer, f"a{token}b") == ["a", token, "b"]


def test_it_is_a_qwen3_vl_whose_ids_are_the_tokenizers(tiny_folder, preprocessor):
    config, tokenizer = AutoConfig.from_pretrained(tiny_folder), preprocessor.tokenizer
    assert config.model_type == "qwen3_vl"
    for name in ("image", "video", "vision_start", "vision_end"):
        pad = "" if name.startswith("vision") else "_pad"
        own = getattr(config, f"{name}_token_id")
        assert own == tokenizer.convert_tokens_to_ids(f"<|{name}{pad}|>")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert config.text_config.eos_token_id == tokenizer.eos_token_id == end
    assert config.text_config.vocab_size == len(tokenizer)
    model = AutoModelForImageTextToText.from_pretrained(tiny_folder)
    assert isinstance(model, Qwen3VLForConditionalGeneration)


def test_its_processors_name_themselves_as_those_of_a_qwen3_vl(tiny_folder):
    names = ("preprocessor_config.json", "video_preprocessor_config.json")
    images, video = (json.loads((tiny_folder / name).read_text()) for name in names)
    assert images["processor_class"] == video["processor_class"] == "Qwen3VLProcessor"
    vision = AutoConfig.from_pretrained(tiny_folder).vision_config
    sizes = (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    assert sizes == (images["patch_size"], images["merge_size"], images["temporal_patch_size"]) == (16, 2, 2)


def test_the_same_seed_gives_the_same_weights(tmp_path):
    def made(name: str, seed: int) -> tuple[dict[str, torch.Tensor], str]:
        path = tiny.build(tmp_path / name, tiny.corpus(WORDS, URL), seed=seed, hidden=32, layers=1)
        return load_file(path / "model.safetensors"), (path / "tokenizer.json").read_text()

    (weights, tokens), (again, tokens_again), (other, _) = made("a", 3), made("b", 3), made("c", 4)
    assert weights.keys() == again.keys() and tokens == tokens_again
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    embedding = "model.language_model.embed_tokens.weight"
    assert not torch.equal(weights[embedding], other[embedding])


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
    told = {call["name"]: set(call["arguments"]) for call in map(json.loads, calls)}
    assert told == {name: set(tool.model_fields) for name, tool in TOOLS.items()} and len(told) == 13
    (call,) = [call for call in calls if "drag" in call]
    drag = parse(f"x</think><tool_call>{call}</tool_call>").calls[0]
    assert drag.name == "drag" and drag.arguments["end_point_2d"] == [0, 0]


def test_the_base_model_has_the_words_of_todays_shops():
    """Were they changed, it would have to be made anew: `python -m examples.base_models.seeing`."""
    made, own = AutoTokenizer.from_pretrained(BASE), tiny.build_tokenizer(tiny.vocabulary())
    assert made.get_vocab() == own.get_vocab() and made.chat_template == own.chat_template
    text = AutoConfig.from_pretrained(BASE).text_config
    assert (text.vocab_size, text.eos_token_id) == (len(own), own.eos_token_id)


def test_what_a_text_agent_reads_and_says_are_single_tokens(tmp_path):
    page = (
        '<html data-bbox="0,0,480,360"> <button id="7" type="button" data-bbox="3,33,144,114"> Buy </button>'
    )
    own = tiny.build_tokenizer(tiny.text_corpus([[SimpleNamespace(html=page)]]), "text")
    for word in [*tiny.shop_words(), *SHOP["buttons"].values()]:
        assert pieces(own, f"in {word},")[1] == f" {word}"
        assert pieces(own, with_thought(word, 'do(action="Click", element="7")'))[5:12] == [
            f" {word}", " ", "</think>", " ", "<answer>", ' do(action="Click", element="', "7",
        ]  # fmt: skip
    built = tiny.build(tmp_path / "m", [page], 0, hidden=32, kind="text")
    assert AutoConfig.from_pretrained(built).model_type == "llama"
