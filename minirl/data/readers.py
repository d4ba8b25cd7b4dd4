"""Read public demonstrations, whose form is recognised by their fields, as trajectories to clone.

    conversations: from, value      WebRL's policy set (ShareGPT), a step in each record
    prompt, response, metadata      OpenWebRL's SFT trajectories, a turn in each record

    file --read_demonstrations--> trajectories of texts and screenshots, for a run's dump

OpenWebRL section 3.3; WebAgent-R1 section 4.1, whose 9,460 "trajectories" are steps. The prompts are not
read: sft.py builds them again with its own agent, as reinforcement does.

1. Only turns whose page the record shows are cloned. Of a step or a turn that brings its history along, this
   is the last one.
2. A response that the agent can't parse is not cloned.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from PIL import Image

from minirl.agents.webagent_r1 import LEFT_OUT, WEBRL, WEBRL_USER
from minirl.benchmarks.task_files import file_records, parse_task
from minirl.config import AgentConfig
from minirl.console import say
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN
from minirl.run_folder import ImageFolder
from minirl.types import Agent, Observation, Task, Trajectory, Turn

PICTURE = VISION_OPEN + IMAGE_PAD + VISION_CLOSE  # stands for a screenshot in a message
TASK_AND_ROUND = re.compile(r"(?:Task Instruction: (.*?)\n\n)?Round \d+\n\n", re.DOTALL)
WEBRL_ROUND = re.compile(r"Round (\d+)\n\n" + re.escape(WEBRL_USER))
TASK_FIELDS = {"task_id", "intent", "start_url", "benchmark_name", "domain", "subdomain", "difficulty"}

ChatMessage = tuple[str, str]  # the role and the text, with PICTURE where a screenshot is


@dataclass(frozen=True)
class Conversation:
    """A record in one form for all: messages, screenshots in their order, and what else it tells."""

    messages: Sequence[ChatMessage]
    screenshots: Sequence[bytes] = ()
    task: Task | None = None
    member: int = 0
    success: bool = True


@dataclass(frozen=True)
class UserMessage:
    """What a message to the agent holds."""

    instruction: str
    feedback: tuple[str, ...]
    observation: Observation


@dataclass(frozen=True)
class Reader:
    """Reads records of a form, by `read`, as turns of an agent, whose screenshots are stored in `images`."""

    agent: Agent
    settings: AgentConfig
    images: ImageFolder
    read: Callable[[Any], Conversation]

    def trajectory(self, record: Any, name: str) -> Trajectory:
        """Return a record as a trajectory without token ids. `name` is its task's if the record has none.
        ValueError says what is wrong with it."""
        conversation = self.read(record)
        instruction, turns = self.turns(conversation)
        task = conversation.task or Task(name, instruction, "")
        return Trajectory(task, conversation.member, turns=turns, success=conversation.success)

    def turns(self, conversation: Conversation) -> tuple[str, tuple[Turn, ...]]:
        """Return the instruction and the turns of a conversation."""
        messages = list(conversation.messages)
        if messages and messages[0][0] == "system":
            del messages[0]
        roles = [role for role, _ in messages]
        if not messages or roles != ["user", "assistant"] * (len(messages) // 2):
            raise ValueError("user and assistant must take turns, and the assistant have the last word")
        prompts = [text for _, text in messages[::2]]
        responses = [text for _, text in messages[1::2]]
        places = sum(prompt.count(PICTURE) for prompt in prompts)
        screenshots = list(conversation.screenshots)
        if places != len(screenshots):
            raise ValueError(f"its messages show {places} screenshots, and it has {len(screenshots)}")
        instruction = ""
        turns: list[Turn] = []
        for prompt, response in zip(prompts, responses, strict=True):
            if prompt.count(PICTURE) > 1 or IMAGE_PAD in response:
                raise ValueError("a screenshot must be in a user's message, with no other beside it")
            message = read_in_tags(prompt) if self.settings.kind == "visual" else read_in_rounds(prompt)
            instruction = instruction or message.instruction
            # a message tells what the calls before it did
            if turns:
                turns[-1] = replace(turns[-1], feedback=message.feedback)
            screenshot = screenshots.pop(0) if PICTURE in prompt else None
            turns.append(self.turn(message.observation, screenshot, response))
        return instruction, tuple(turns)

    def turn(self, observation: Observation, screenshot: bytes | None, response: str) -> Turn:
        """Return a turn, which is trained on if its page is shown and its response can be parsed."""
        text = response.rstrip().removesuffix("<|im_end|>")
        if self.settings.kind == "text" and self.settings.answers == "thinking":
            text = comments_as_thought(text)
        else:
            text = with_opening_think(text)
        parsed = self.agent.parse(text)
        images = () if screenshot is None else (self.images.put(screenshot),)
        is_shown = bool(images or observation.page_text)
        return Turn(
            shared=0,
            suffix=(),
            response_ids=(),
            logprobs=(),
            text=text,
            images=images,
            parsed=parsed,
            observation=observation.text,
            page_text=observation.page_text,
            trained=is_shown and not parsed.error,
        )


def read_demonstrations(path: Path, reader: Reader) -> list[Trajectory]:
    """Return a file's successes that have a turn to clone. ValueError names a broken record, or says that
    there is no success."""
    demonstrations = []
    unreadable = 0
    for place, record in file_records(path):
        try:
            trajectory = reader.trajectory(record, f"{path.stem}, {place}")
        except (ValueError, OSError) as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        for turn in trajectory.turns:
            is_shown = bool(turn.images or turn.page_text)
            unreadable += is_shown and not turn.trained
        if trajectory.success and any(turn.trained for turn in trajectory.turns):
            demonstrations.append(trajectory)
    if not demonstrations:
        raise ValueError(f"{path} holds no success to clone")
    responses = sum(turn.trained for trajectory in demonstrations for turn in trajectory.turns)
    counts = f"{len(demonstrations)} demonstrations, {responses} responses to clone"
    say(f"{path}: {counts}; {unreadable} were unreadable")
    return demonstrations


def read_conversation(record: Any) -> Conversation:
    """Return a record of any of these forms. ValueError if it has none of them."""
    match record:
        case {
            "conversations": [{"from": "human", "value": str(prompt)}, {"from": "gpt", "value": str(action)}]
        }:
            return Conversation(read_webrl_step(prompt, action))
        case {"prompt": str(), "response": str(), "metadata": {"images": [*_]}}:
            return read_openwebrl_turn(record)
    fields = ", ".join(record) if isinstance(record, dict) else "none"
    raise ValueError(f"none of the forms in minirl/data/readers.py; its fields are {fields:.200}")


def read_webrl_step(prompt: str, last_action: str) -> list[ChatMessage]:
    """Return a step as a chat. Its past rounds show no page, the first one the task in its place."""
    # before the first round stands the task; then number and text of each round alternate
    opening, *rest = WEBRL_ROUND.split(prompt)
    numbers, rounds = rest[::2], rest[1::2]
    if not rounds or numbers != [str(n) for n in range(len(rounds))]:
        raise ValueError("its rounds must be numbered from 0 on")
    messages = []
    for n, text in enumerate(rounds):
        page, _, action = text.partition(WEBRL.to_assistant)
        action = action.removesuffix(WEBRL.close)
        if n == len(rounds) - 1:
            action = last_action
        else:
            page = LEFT_OUT
        head = opening if n == 0 else ""
        messages += [("user", f"{head}Round {n}\n\n{page}"), ("assistant", action)]
    return messages


def read_openwebrl_turn(record: Mapping[str, Any]) -> Conversation:
    """Return a turn with its history, whose prompt is in ChatML."""
    messages = []
    for part in record["prompt"].split("<|im_start|>")[1:-1]:
        role, _, text = part.partition("\n")
        messages.append((role, text.rstrip().removesuffix("<|im_end|>")))
    messages.append(("assistant", record["response"]))
    metadata = record["metadata"]
    task_fields = {name: value for name, value in metadata.items() if name in TASK_FIELDS}
    return Conversation(
        messages,
        screenshots=[read_picture(cell) for cell in metadata["images"]],
        task=parse_task({"metadata": task_fields}),
        member=int(str(record.get("rollout_idx", 0))),
        success=record.get("reward", 1) == 1,
    )


def read_in_tags(text: str) -> UserMessage:
    """Return what a message to the visual agent holds."""
    before, opened, rest = text.partition("<observation>")
    observation, closed, _ = rest.rpartition("</observation>")
    if not opened or not closed:
        raise ValueError("a user's message has no <observation>, as the visual agent's have")
    observation = observation.replace(PICTURE, "").strip().removesuffix("screenshot:").rstrip()
    instruction = before.partition("<user_request>")[2].rpartition("</user_request>")[0].strip()
    feedback = before.partition("<tool_response>")[2].strip().splitlines()
    return UserMessage(instruction, tuple(feedback), Observation(observation))


def read_in_rounds(text: str) -> UserMessage:
    """Return what a message to the text agent holds."""
    head = TASK_AND_ROUND.match(text)
    if not head:
        raise ValueError("a user's message does not begin with Round 0, 1, ..., as the text agent's do")
    parts = [part for part in text[head.end() :].split("\n\n") if part]
    feedback = tuple(takewhile(lambda part: not part.startswith(("<", "Tabs: ", LEFT_OUT)), parts))
    page = "\n\n".join(parts[len(feedback) :])
    if page == LEFT_OUT:
        page = ""
    return UserMessage(head[1] or "", feedback, Observation("", page_text=page))


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
    if isinstance(cell, dict):
        cell = cell.get("bytes")
    content = cell
    if not isinstance(cell, bytes):
        content = b64decode(str(cell).rpartition(",")[2], validate=True)
    Image.open(BytesIO(content)).verify()
    return content
