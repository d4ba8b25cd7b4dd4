"""Read demonstrations to clone: a teacher's dump, or public records, which are recognised by their fields.

    turns, stop, ...                    a dump in a run's trajectories folder
    conversations: from, value          WebRL's policy set (ShareGPT), a step in each record
    prompt, response, metadata          OpenWebRL's SFT trajectories, a turn in each record
    messages, images                    the form of TRL and prime-rl, in which writers.py publishes

    file --load--> what a served model has said --tokenised--> our agent's prompts, the record's responses

Stands before sft.py, which clones nothing but responses. OpenWebRL section 3.3, WebAgent-R1 section 4.1 (where
9,460 steps are called trajectories). A record is told again by our agent, with its system prompt, because that
is what reinforcement goes on with. Only turns whose page the record shows are cloned: of a step or turn that
brings its history along, the last one. Deviation: a response that the agent can't read is not cloned.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import compress, takewhile
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import Field

from minirl.agents.webagent_r1 import LEFT_OUT, WEBRL, WEBRL_USER
from minirl.benchmarks.fields import Record, Text, read
from minirl.benchmarks.task_files import records, task_of
from minirl.console import say
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.run_folder import Run
from minirl.types import Observation, Task, Trajectory, Turn

PICTURE = VISION_OPEN + IMAGE_PAD + VISION_CLOSE  # stands for a screenshot in a message's text
MOST_UNPACKED = 2**36  # bytes of a Parquet file's records, which are read four at a time
ROUND = re.compile(r"(?:Task Instruction: (.*?)\n\n)?Round \d+\n\n", re.DOTALL)
WEBRL_ROUND = re.compile(r"Round (\d+)\n\n" + re.escape(WEBRL_USER))
TASK_FIELDS = ("task_id", "intent", "start_url", "benchmark_name", "domain", "subdomain", "difficulty")

Said = tuple[str, str]  # a message: its role, and its text


class Speech(Record):
    speaker: str = Field(alias="from")
    value: str


class WebRL(Record):
    conversations: list[Speech]


class Images(Record):
    images: list[str]


class OpenWebRL(Record):
    prompt: Text
    response: Text
    metadata: dict[str, Any]
    rollout_idx: int = 0
    reward: float = 1.0


class Message(Record):
    role: str
    content: str | list[dict[str, Any]]


class Chat(Record):
    messages: list[Message]
    images: list[str | dict[str, Any]] = []
    task: str = ""  # as JSON, in files of ours
    member: int = 0
    success: bool = True


def load(path: Path, harness: Harness) -> list[Trajectory]:
    """Return a file's successes with the ids that our model would have read and said; their screenshots are
    put where the harness's are. ValueError names a broken record, or says that there is no success."""
    found, left_out = list[Trajectory](), 0
    for place, record in records(path, MOST_UNPACKED, as_address):
        if isinstance(record, dict) and "turns" in record:
            found = load_dump(path, harness)
            break
        try:
            told = trajectory_of(record, f"{path.stem}, {place}", harness)
        except ValueError as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        shown = [turn.images or turn.page_text for turn in told.turns]
        told = tokenised(told, harness)
        readable = tuple(turn for turn in compress(told.turns, shown) if not turn.parsed.error)
        left_out += sum(map(bool, shown)) - len(readable)
        if told.success and readable:
            found.append(replace(told, turns=readable))
    if not found:
        raise ValueError(f"--sft.demos {path} holds no success to clone")
    responses = sum(len(trajectory.turns) for trajectory in found)
    say(f"{path}: {len(found)} demonstrations, {responses} responses to clone; {left_out} were unreadable")
    return found


def load_dump(path: Path, harness: Harness) -> list[Trajectory]:
    """Return the successes of a file in a run's trajectories folder."""
    source = Run(path.resolve().parents[1])
    found = [t for t in source.load_trajectories(path.stem) if t.success and t.valid]
    for name in {image for trajectory in found for turn in trajectory.turns for image in turn.images}:
        harness.images.put(source.images.get(name))
    return [t if t.trunk else tokenised(t, harness) for t in found]


def trajectory_of(record: Any, name: str, harness: Harness) -> Trajectory:
    """Return a public record as what a served model leaves. ValueError says what is wrong with it."""
    task, pictures, member, success = None, list[str](), 0, True
    match record:
        case {"conversations": _}:
            said = webrl_messages(read(WebRL, record))
        case {"prompt": _, "response": _, "metadata": _}:
            row = read(OpenWebRL, record)
            said, pictures = [*chatml_messages(row.prompt), ("assistant", row.response)], []
            pictures = read(Images, row.metadata).images
            task = task_of({"metadata": {k: row.metadata[k] for k in TASK_FIELDS if k in row.metadata}})
            member, success = row.rollout_idx, row.reward > 0
        case {"messages": _}:
            chat = read(Chat, record)
            said, pictures = chat_messages(chat)
            task, member, success = chat.task and task_of(json.loads(chat.task)), chat.member, chat.success
        case _:
            fields = ", ".join(record) if isinstance(record, dict) else "none"
            raise ValueError(f"unknown format: its fields are {fields:.200}")
    instruction, turns = turns_of(said, pictures, harness)
    task = task or Task(name, instruction, "")
    return Trajectory(task, member, turns=turns, success=success)


def webrl_messages(record: WebRL) -> list[Said]:
    """Return a step as a chat. Its past rounds show no page, the first one the task in its place."""
    if [speech.speaker for speech in record.conversations] != ["human", "gpt"]:
        raise ValueError("a record must have one message from human, and one from gpt")
    asked, answer = (speech.value for speech in record.conversations)
    opening, *rest = WEBRL_ROUND.split(asked)
    rounds = [body.partition(WEBRL.to_assistant) for body in rest[1::2]]
    if not rounds or rest[::2] != [str(n) for n in range(len(rounds))]:
        raise ValueError("its rounds must be numbered from 0 on")
    said = list[Said]()
    for n, (_, _, action) in enumerate(rounds):
        head = opening * (n == 0) + f"Round {n}\n\n"
        said += [("user", head + LEFT_OUT), ("assistant", action.removesuffix(WEBRL.close))]
    return [*said[:-2], ("user", head + rounds[-1][0]), ("assistant", answer)]


def chatml_messages(prompt: str) -> list[Said]:
    """Return the messages of a prompt in ChatML, without the assistant's opening at its end."""
    parts = [part.partition("\n") for part in prompt.split("<|im_start|>")[1:-1]]
    return [(role, text.rstrip().removesuffix("<|im_end|>")) for role, _, text in parts]


def chat_messages(chat: Chat) -> tuple[list[Said], list[str]]:
    """Return the messages with PICTURE where a screenshot is, and the screenshots in their order."""
    pictures = [cell if isinstance(cell, str) else str(cell.get("bytes", "")) for cell in chat.images]
    said, inline = list[Said](), list[str]()
    for message in chat.messages:
        text, parts = "", message.content
        for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
            match part:
                case {"type": "text", "text": str(words)}:
                    text += words.replace("<image>", PICTURE) if pictures and isinstance(parts, str) else words
                case {"type": "image"}:
                    text += PICTURE
                case {"type": "image_url", "image_url": {"url": str(address)}}:
                    text += PICTURE
                    inline.append(address)
                case _:
                    raise ValueError(f"a part of a message has the unknown type {part.get('type')!r:.40}")
        said.append((message.role, text))
    return said, pictures or inline


def turns_of(said: Sequence[Said], pictures: Sequence[str], harness: Harness) -> tuple[str, tuple[Turn, ...]]:
    """Return the instruction and the turns of a conversation, which the configured agent has had."""
    agent, config = harness.agent, harness.config.agent
    said = said[1:] if said and said[0][0] == "system" else said
    if not said or [role for role, _ in said] != ["user", "assistant"] * (len(said) // 2):
        raise ValueError("user and assistant must take turns, and the assistant say the last word")
    if (places := sum(text.count(PICTURE) for _, text in said[::2])) != len(pictures):
        raise ValueError(f"its messages show {places} screenshots, and it has {len(pictures)}")
    names = iter([harness.images.put(picture(address)) for address in pictures])
    instruction, turns = "", list[Turn]()
    for (_, asked), (_, text) in zip(said[::2], said[1::2], strict=True):
        task, lines, seen = (in_tags if config.kind == "visual" else in_rounds)(asked)
        if asked.count(PICTURE) > 1 or IMAGE_PAD in text:
            raise ValueError("a screenshot must be in a user's message, with no other beside it")
        images = tuple(next(names) for _ in range(asked.count(PICTURE)))
        instruction = instruction or task
        turns[-1:] = [replace(turn, feedback=lines) for turn in turns[-1:]]
        text = text.rstrip().removesuffix("<|im_end|>")
        text = as_answer(text) if config.kind == "text" and config.thinking else whole(text)
        facts = {"images": images, "observation": seen.text, "page_text": seen.page_text}
        turns.append(Turn(0, (), (), (), text, parsed=agent.parse(text), **facts))
    return instruction, tuple(turns)


def in_tags(text: str) -> tuple[str, tuple[str, ...], Observation]:
    """Return the task, the feedback and the observation in a message to the visual agent."""
    before, opened, seen = text.partition("<observation>")
    seen, closed, _ = seen.rpartition("</observation>")
    if not opened or not closed:
        raise ValueError("a user's message has no <observation>, as the visual agent's have")
    seen = seen.replace(PICTURE, "").strip().removesuffix("screenshot:").rstrip()
    task = before.partition("<user_request>")[2].rpartition("</user_request>")[0].strip()
    lines = before.partition("<tool_response>")[2].strip().splitlines()
    return task, tuple(lines), Observation(seen)


def in_rounds(text: str) -> tuple[str, tuple[str, ...], Observation]:
    """Return the task, the feedback and the page in a message to the text agent."""
    head = ROUND.match(text)
    if not head:
        raise ValueError("a user's message does not begin with Round 0, 1, ..., as the text agent's do")
    parts = text[head.end() :].split("\n\n")
    lines = tuple(takewhile(lambda part: not part.startswith(("<", "Tabs: ", LEFT_OUT)), parts))
    page = "\n\n".join(parts[len(lines) :])
    return head[1] or "", lines, Observation("", page_text="" if page == LEFT_OUT else page)


def as_answer(text: str) -> str:
    """Return WebRL's comments and action as WebAgent-R1's thought and answer; other responses as they are."""
    if "<answer>" in text:
        return text
    lines = text.strip().splitlines()
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    action = "\n".join(lines[len(comments) :])
    return f"<think> {' '.join(comments)} </think> <answer> {action} </answer>"


def whole(text: str) -> str:
    """Return a response with the `<think>` that its model's template had written."""
    return text if "<think>" in text or "</think>" not in text else f"<think>\n{text}"


def as_address(cell: Any) -> str:
    """Return a Parquet cell's bytes as a data: address. TypeError for what else JSON lacks."""
    if not isinstance(cell, bytes):
        raise TypeError(f"a {type(cell).__name__} can't be read")
    return "data:;base64," + b64encode(cell).decode()


def picture(address: str) -> bytes:
    """Return the bytes of a data: address, or of base64. ValueError if they are no picture."""
    try:
        content = b64decode(address.rpartition(",")[2], validate=True)
        Image.open(BytesIO(content)).verify()
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"{address!r:.60} is no picture in base64") from None
    return content
