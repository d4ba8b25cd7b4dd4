"""R1-CoT: other thoughts, the same actions."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from endpoint_server import say, serve, status
from workers import make_worker

from examples.base_models.checkpoints import build
from examples.chain_of_thought.rewrite import action_text, with_thought, with_thoughts
from minirl.agents.webagent_r1 import parse
from minirl.config import EndpointConfig
from minirl.demonstrations import load_demonstrations
from minirl.model import Preprocessor, load_preprocessor
from minirl.recipes import tiny_text
from minirl.run_folder import Run
from minirl.types import Stop, Task, Trajectory, Turn

pytestmark = pytest.mark.more
SCRIPT = Path(__file__).parents[2] / "examples/chain_of_thought/rewrite.py"
ACTIONS = ['do(action="Click", element="3")', "go_backward()", 'exit(message="done")']
TEXTS = [f"<think> # Element: mugs </think> <answer> {action} </answer>" for action in ACTIONS]
PAGES = ['<html> <a id="3"> mugs </a> </html>', "<html> Mugs </html>", "<html> Home </html>"]
TURNS = [
    Turn(0, (), (1, 2), (0.0, 0.0), text, parsed=parse(text), page_text=page)
    for text, page in zip(TEXTS, PAGES, strict=True)
]
TASK = Task("t", "Look at the mugs.", "http://shop-0.test/")
DEMO = Trajectory(TASK, 0, prefix=(7,), turns=tuple(TURNS), stop=Stop.DONE, success=True)
# What is no thought, and one that would be another action
ANSWERS = [say(""), say("<think><answer></answer>"), say("I want mu", finish="length"), status(500)]
ANSWERS.append(say("</think> <answer> exit() </answer>"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Preprocessor:
    """The tokenizer of a text agent that has read these pages."""
    path = tmp_path_factory.mktemp("text") / "model"
    build(path, [*TEXTS, "Round 1", PAGES[0]] * 3, 0, hidden=32, layers=1, kind="text")
    return load_preprocessor(replace(tiny_text().model, path=str(path)))


def endpoint(url: str) -> EndpointConfig:
    return EndpointConfig(url=url, model="thinker", seconds=5)


def test_the_dump_that_is_written_is_cloned(reader, tmp_path):
    """Thoughts are new, actions are not, and failures are left out; sft.py reads what is written."""
    run = Run(tmp_path)
    run.save_trajectories("demos", [DEMO, replace(DEMO, success=False)])
    with serve([say("I want\nmugs, and they are number 3.")]) as server:
        flags = ["--endpoint.url", server.url, "--endpoint.model", "thinker", "--max-tokens", "700"]
        command = [sys.executable, str(SCRIPT), str(run.trajectory_path("demos")), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        questions = [request["messages"][0]["content"][0]["text"] for request in server.requests]
    assert {request["max_tokens"] for request in server.requests} == {700}
    assert len(questions) == 3
    question = next(q for q in questions if PAGES[1] in q)
    assert f"and do: {ACTIONS[1]}" in question and "Its remarks: # Element: mugs" in question
    history = question.partition("so far:\n")[2].partition("\n\n")[0]
    seen = {"round": "0", "observation": "** Simplified html **"}
    assert json.loads(history) == [seen | {"remarks": "# Element: mugs", "action": ACTIONS[0]}]

    harness = make_worker(tiny_text(), reader).harness
    (new,) = load_demonstrations(run.trajectory_path("demos_thoughts"), harness)
    assert [turn.parsed.calls for turn in new.turns] == [turn.parsed.calls for turn in TURNS]
    assert [action_text(turn.text) for turn in new.turns] == ACTIONS
    assert {turn.parsed.thought for turn in new.turns} == {"I want mugs, and they are number 3."}
    for turn in new.turns:  # what is trained on is what is read
        assert reader.tokenizer.decode(turn.response_ids) == turn.text + reader.tokenizer.eos_token
    prompt = reader.tokenizer.decode(new.prompt_ids(2))
    assert "Look at the mugs." in prompt and prompt.count("** Simplified html **") == 2
    assert "<html> Home" in prompt


async def test_turns_that_are_not_trained_on_are_not_asked_about():
    """As in public records, whose pages of earlier turns are not known."""
    demo = replace(DEMO, turns=(replace(TURNS[0], trained=False), *TURNS[1:]))
    with serve([say("It is so.")]) as server:
        (new,) = await with_thoughts([demo], endpoint(server.url), 100)
    assert len(server.requests) == 2
    assert [turn.parsed.thought for turn in new.turns] == ["# Element: mugs", "It is so.", "It is so."]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_thought_that_is_none_changes_nothing(answer):
    with serve([say("It is there."), say("It is there."), answer]) as server:
        (new,) = await with_thoughts([DEMO], endpoint(server.url), 100)
    assert [turn.parsed.calls for turn in new.turns] == [turn.parsed.calls for turn in TURNS]
    assert [action_text(turn.text) for turn in new.turns] == ACTIONS
    assert sum(turn.parsed.thought == "It is there." for turn in new.turns) == 2


async def test_the_models_own_reasoning_is_part_of_the_thought_and_the_question_can_be_another(tmp_path):
    prompt = tmp_path / "prompt.md"
    prompt.write_text("{task} {history} {page} {action} {remarks} {braces} stay")
    with serve([say("B", reasoning_content="A")]) as server:
        (new,) = await with_thoughts([DEMO], endpoint(server.url), 100, prompt)
        asked = server.requests[0]["messages"][0]["content"][0]["text"]
    assert {turn.parsed.thought for turn in new.turns} == {"A B"} and asked.endswith("{braces} stay")
    prompt.write_text("{task} {history} {page} {action}")
    with pytest.raises(ValueError, match="lacks the field {remarks}"):
        await with_thoughts([DEMO], endpoint("http://127.0.0.1:9"), 100, prompt)


async def test_an_endpoint_without_thoughts_is_an_error():
    refused = pytest.raises(ValueError, match=r"2 of 3 turns keep .* raise --max-tokens \(100\)")
    with serve([say("It is there."), say("")]) as server, refused:
        await with_thoughts([DEMO], endpoint(server.url), 100)


def test_a_thought_cannot_close_itself():
    response = with_thought("</think><answer>exit()</answer>", TEXTS[0])
    assert parse(response).calls == parse(TEXTS[0]).calls and response.count("<answer>") == 1
