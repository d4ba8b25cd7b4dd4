"""Read public demonstrations, whose form is recognised by their fields, as trajectories to clone.

    conversations: from, value      WebRL's policy set (ShareGPT), a step in each record
    prompt, response, metadata      OpenWebRL's SFT trajectories, a turn in each record

    file --read_demonstrations--> trajectories of texts and screenshots, for a run's dump

OpenWebRL, section 4.2; WebAgent-R1, section 3.1, whose 9,460 "trajectories" are steps. The prompts are not
read: sft.py builds them again with its own agent, as reinforcement does.

1. Only turns whose page the record shows are cloned. Of a step or a turn that brings its history along, this
   is the last one.
2. A response that the agent can't parse, or with a call that can't be run, is not cloned.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import islice, takewhile
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from minirl.agents.openwebrl import can_run
from minirl.agents.webagent_r1 import WEBRL, WEBRL_USER
from minirl.benchmarks.task_files import file_records, parse_task
from minirl.config import Config
from minirl.console import say
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN
from minirl.experiment import make_agent
from minirl.model import open_picture
from minirl.run_folder import ImageFolder
from minirl.types import ROUNDING, Agent, Task, Trajectory, Turn

PICTURE = VISION_OPEN + IMAGE_PAD + VISION_CLOSE  # stands for a screenshot in a message
WEBRL_ROUND = re.compile(r"Round \d+\n\n" + re.escape(WEBRL_USER))


class MessageContent(NamedTuple):
    """What a message to the agent holds."""

    instruction: str
    feedback: tuple[str, ...]
    observation: str
    page_text: str = ""


ChatMessage = tuple[str, str]  # the role and the text, with PICTURE where a screenshot is
Form = Callable[[Any, str, ImageFolder], Trajectory]  # reads a record, its name, and where pictures go


def read_demonstrations(path: Path, config: Config, images: ImageFolder, read: Form) -> list[Trajectory]:
    """Return a file's successes that have a turn to clone, whose records `read` reads. ValueError names a
    broken record, or says that there is no success."""
    agent = make_agent(config)
    demonstrations = []
    n_records = 0
    for place, record in file_records(path):
        n_records += 1
        try:
            trajectory = read(record, f"{path.stem}, {place}", images)
        except (ValueError, OSError, SyntaxError) as problem:  # the last is PIL's name for some damages
            raise ValueError(f"{path}, {place}: {problem}") from None
        turns = tuple(parsed_turn(turn, agent, config) for turn in trajectory.turns)
        if trajectory.success and any(turn.trained for turn in turns):
            demonstrations.append(replace(trajectory, turns=turns))
    if not demonstrations:
        raise ValueError(f"{path} holds no success to clone")
    n_turns = sum(turn.trained for trajectory in demonstrations for turn in trajectory.turns)
    say(f"{path}: {n_turns} responses to clone, in {len(demonstrations)} of {n_records} records")
    return demonstrations


def parsed_turn(turn: Turn, agent: Agent, config: Config) -> Turn:
    """Return a record's turn with its response in the agent's form. It is trained on if its page is shown and
    the response can be parsed and run."""
    text = turn.text.rstrip().removesuffix("<|im_end|>")
    if config.agent.kind == "text" and config.agent.answers == "thinking":
        text = comments_as_thought(text)
    else:
        text = with_opening_think(text)
    parsed = agent.parse(text)
    is_trained = bool(turn.images or turn.page_text) and not parsed.error
    if config.agent.kind == "visual":
        is_trained &= all(map(can_run, parsed.calls))
    return replace(turn, text=text, parsed=parsed, trained=is_trained)


def read_public(record: Any, name: str, images: ImageFolder) -> Trajectory:
    """Return a record of any of these forms, as a trajectory whose responses are not parsed yet. ValueError
    or OSError if it has none of them, or is broken."""
    match record:
        case {
            "conversations": [{"from": "human", "value": str(prompt)}, {"from": "gpt", "value": str(action)}]
        }:
            return read_webrl_step(prompt, action, name)
        case {"prompt": str(), "response": str(), "metadata": {"images": [*_]}}:
            return read_openwebrl_turn(record, images)
    raise ValueError(f"none of the forms in minirl/data/readers.py: {record!r:.200}")


def read_webrl_step(prompt: str, last_action: str, name: str) -> Trajectory:
    """Return a step. The past rounds of its prompt show no page, the first one the task in its place."""
    opening, *rounds = WEBRL_ROUND.split(prompt)
    if not rounds:
        raise ValueError("its prompt has no Round 0")
    turns = []
    page = ""
    for text in rounds:
        page, _, action = text.partition(WEBRL.to_assistant)
        turns.append(turn_of(action.removesuffix(WEBRL.close)))
    turns[-1] = turn_of(last_action, page_text=page)
    instruction = opening.removeprefix("Task Instruction: ").strip()
    return Trajectory(Task(name, instruction, ""), 0, turns=tuple(turns), success=True)


def turn_of(response: str, **shown: Any) -> Turn:
    return Turn(shared=0, suffix=(), response_ids=(), logprobs=(), text=response, **shown)


def read_openwebrl_turn(record: Mapping[str, Any], images: ImageFolder) -> Trajectory:
    """Return a turn with its history, whose prompt is in ChatML."""
    messages = []
    for part in record["prompt"].split("<|im_start|>")[1:-1]:
        role, _, text = part.partition("\n")
        messages.append((role.strip(), text.rstrip().removesuffix("<|im_end|>")))
    messages.append(("assistant", record["response"]))
    metadata = dict(record["metadata"])
    screenshots = [images.put(read_picture(cell)) for cell in metadata.pop("images")]
    _, turns = chat_turns(messages, screenshots, read_in_tags)
    task = parse_task({"metadata": metadata})
    return Trajectory(task, 0, turns=turns, success=is_success(record, "reward"))


def is_success(record: Mapping[str, Any], name: str) -> bool:
    """Return whether a record's field says so: true, or 1 but for rounding; a record without it succeeded.
    ValueError if it says neither."""
    value = record.get(name, True)
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{name} must be true, false or a number, not {value!r:.60}")
    return value > 1 - ROUNDING


def chat_turns(
    messages: Sequence[ChatMessage],
    screenshots: Sequence[str],
    read: Callable[[str], MessageContent],
) -> tuple[str, tuple[Turn, ...]]:
    """Return the instruction and the turns of a conversation. `screenshots` are their names in its order;
    `read` tells what a user's message holds."""
    chat = [(role, text) for role, text in messages if role not in ("system", "developer")]
    roles = [role for role, _ in chat]
    if not chat or roles != ["user", "assistant"] * (len(chat) // 2):
        raise ValueError(f"user and assistant must take turns, the assistant last, not {roles!s:.100}")
    texts = [text for _, text in chat]
    prompts = texts[::2]
    responses = texts[1::2]
    places = [prompt.count(PICTURE) for prompt in prompts]
    if max(places) > 1 or sum(places) != len(screenshots) or IMAGE_PAD in "".join(responses):
        reason = f"its messages show {places} screenshots, and it has {len(screenshots)}"
        raise ValueError(f"a screenshot must be in a user's message, with no other beside it: {reason}")
    instruction = ""
    turns: list[Turn] = []
    shots = iter(screenshots)
    for prompt, response, n in zip(prompts, responses, places, strict=True):
        message = read(prompt)
        instruction = instruction or message.instruction
        # a message tells what the calls before it did
        if turns:
            turns[-1] = replace(turns[-1], feedback=message.feedback)
        names = tuple(islice(shots, n))
        turns.append(
            turn_of(response, observation=message.observation, page_text=message.page_text, images=names)
        )
    return instruction, tuple(turns)


def read_in_tags(text: str) -> MessageContent:
    """Return what a message to the visual agent holds."""
    before, opened, rest = text.partition("<observation>")
    observation, closed, _ = rest.rpartition("</observation>")
    if not opened or not closed:
        raise ValueError("a user's message has no <observation>, as the visual agent's have")
    observation = observation.replace(PICTURE, "").strip().removesuffix("screenshot:").rstrip()
    instruction = before.partition("<user_request>")[2].rpartition("</user_request>")[0].strip()
    feedback = before.partition("<tool_response>")[2].strip().splitlines()
    return MessageContent(instruction, tuple(feedback), observation)


def comments_as_thought(text: str) -> str:
    """Return WebRL's comments and action as WebAgent-R1's thought and answer; other responses as they are."""
    if "<answer>" in text:
        return text
    lines = text.strip().splitlines()
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    action = "\n".join(lines[len(comments) :])
    return f"<think> {' '.join(comments)} </think> <answer> {action} </answer>"


def with_opening_think(text: str) -> str:
    """Return a response with the `<think>` that its model's template had written."""
    return text if "<think>" in text or "</think>" not in text else f"<think>\n{text}"


def read_picture(cell: Any) -> bytes:
    """Return a picture's bytes: a Parquet cell's, or those of a data: address or of base64. ValueError or
    OSError if they are no picture."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes):
        content = b64decode(str(content).rpartition(",")[2])
    open_picture(BytesIO(content)).verify()
    return content
