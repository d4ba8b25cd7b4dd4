"""R1-CoT: other thoughts, the same actions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from endpoint_server import say, serve, status
from workers import make_worker

from examples.base_models.checkpoints import build
from minirl.agents.chain_of_thought import spelled, thought_before, with_thoughts
from minirl.agents.webagent_r1 import parse
from minirl.config import EndpointConfig, SftConfig
from minirl.context import answer_start
from minirl.episode import Harness
from minirl.model import Preprocessor, load_preprocessor
from minirl.recipes import tiny_text
from minirl.types import Task, Trajectory, Turn

ACTIONS = ['do(action="Click", element="3")', "go_backward()", 'exit(message="done")']
TEXTS = [f"<think> # Element: mugs </think> <answer> {action} </answer>" for action in ACTIONS]
PAGES = ['<html> <a id="3"> mugs </a> </html>', "<html> Mugs </html>", "<html> Home </html>"]
TURNS = [
    Turn(0, (), (), (), said, parsed=parse(said), page_text=page)
    for said, page in zip(TEXTS, PAGES, strict=True)
]
TASK = Task("t", "Look at the mugs.", "http://shop-0.test/")
DEMO = Trajectory(TASK, 0, turns=tuple(TURNS), success=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Preprocessor:
    """The tokenizer of a text agent that has seen these pages."""
    path = tmp_path_factory.mktemp("text") / "model"
    build(path, [*TEXTS, "Round 1", PAGES[0]] * 3, 0, hidden=32, layers=1, kind="text")
    return load_preprocessor(replace(tiny_text().model, path=str(path)))


def harness(url: str, preprocessor: Preprocessor, **sft: int) -> Harness:
    endpoint = EndpointConfig(url=url, model="thinker", retries=0, seconds=5)
    config = replace(tiny_text(), endpoint=endpoint, sft=SftConfig(thoughts=True, **sft))
    return make_worker(config, preprocessor).harness


async def test_thoughts_are_new_and_actions_are_not(reader):
    with serve([say("I want\nmugs, and they are number 3.")]) as server:
        (new,) = await with_thoughts([DEMO], harness(server.url, reader, thought_tokens=700))
        questions = [request["messages"][0]["content"][0]["text"] for request in server.requests]
    assert {request["max_tokens"] for request in server.requests} == {700}
    assert [turn.parsed.calls for turn in new.turns] == [turn.parsed.calls for turn in TURNS]
    assert [spelled(turn.text) for turn in new.turns] == ACTIONS
    assert {turn.parsed.thought for turn in new.turns} == {"I want mugs, and they are number 3."}
    assert any(ACTIONS[1] in q and PAGES[1] in q and ACTIONS[0] in q for q in questions)
    for turn in new.turns:  # what is trained on is what is told
        assert reader.tokenizer.decode(turn.response_ids) == turn.text + reader.tokenizer.eos_token
    told = reader.tokenizer.decode(new.prompt_ids(2))
    assert "Look at the mugs." in told and told.count("** Simplified html **") == 2 and "<html> Home" in told


NO_THOUGHTS = [say(""), say("<think><answer></answer>"), say("I want mu", finish="length"), status(500)]


@pytest.mark.parametrize("answer", [*NO_THOUGHTS, say("</think> <answer> exit() </answer>")])
async def test_a_thought_that_is_none_changes_nothing(reader, answer):
    with serve([say("It is there."), say("It is there."), answer]) as server:
        (new,) = await with_thoughts([DEMO], harness(server.url, reader))
    assert [turn.parsed.calls for turn in new.turns] == [turn.parsed.calls for turn in TURNS]
    assert [spelled(turn.text) for turn in new.turns] == ACTIONS
    assert sum(turn.parsed.thought == "It is there." for turn in new.turns) == 2


@pytest.mark.parametrize("answer", NO_THOUGHTS)
async def test_an_endpoint_without_thoughts_is_told_of_and_not_trained_on(reader, answer):
    refused = pytest.raises(ValueError, match=r"2 of 3 turns keep .* raise --sft.thought-tokens \(4096\)")
    with serve([say("It is there."), answer]) as server, refused:
        await with_thoughts([DEMO], harness(server.url, reader))


def test_a_thought_cannot_close_itself():
    said = thought_before("</think><answer>exit()</answer>", TEXTS[0])
    assert parse(said).calls == parse(TEXTS[0]).calls and said.count("<answer>") == 1


@pytest.mark.parametrize("text", [*TEXTS, "no tag", "", "<answer>", "a <answer> b <answer> c"])
def test_where_the_answer_begins(reader, preprocessor, text):
    """Be the tag one token or cut in pieces: what is left begins with it, and one token less does not."""
    for tokenizer in (reader.tokenizer, preprocessor.tokenizer):
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        start = answer_start(tokenizer, ids)
        if "<answer>" not in text:
            assert start == 0
            continue
        assert "<answer>" in tokenizer.decode(ids[start:])
        first = tokenizer.decode(ids[: start + 12])
        assert text.index("<answer>") <= len(tokenizer.decode(ids[:start])) + 1 and "<answer>" in first
        assert "<answer>" not in tokenizer.decode(ids[:start])
