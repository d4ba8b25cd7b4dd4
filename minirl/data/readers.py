"""Read demonstrations to clone: a teacher's dump, or public records, which are recognised by their fields.

    turns, stop, ...                a dump in a run's trajectories folder
    conversations: from, value      WebRL's policy set (ShareGPT), a step in each record
    prompt, response, metadata      OpenWebRL's SFT trajectories, a turn in each record
    messages, images                the form of TRL and prime-rl, in which writers.py publishes

    file --load--> what a served model has said --tokenised--> our agent's prompts, the record's responses

Stands before sft.py. OpenWebRL section 3.3; WebAgent-R1 section 4.1, whose 9,460 "trajectories" are steps.
Our agent tells a record again, with its own system prompt, as reinforcement will. Only turns whose page the
record shows are cloned: of a step or a turn that brings its history along, the last one. A response that the
agent can't read is not cloned.
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from PIL import Image

from minirl.agents.webagent_r1 import LEFT_OUT, WEBRL, WEBRL_USER
from minirl.benchmarks.task_files import records, task_of
from minirl.console import say
from minirl.context import IMAGE_PAD, VISION_CLOSE, VISION_OPEN
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.run_folder import Run
from minirl.types import Observation, Task, Trajectory, Turn

PICTURE = VISION_OPEN + IMAGE_PAD + VISION_CLOSE  # stands for a screenshot in a message
MOST_UNPACKED = 2**36  # bytes of a Parquet file's records, which are read four at a time
TASK_AND_ROUND = re.compile(r"(?:Task Instruction: (.*?)\n\n)?Round \d+\n\n", re.DOTALL)
WEBRL_ROUND = re.compile(r"Round (\d+)\n\n" + re.escape(WEBRL_USER))
TASK_FIELDS = {"task_id", "intent", "start_url", "benchmark_name", "domain", "subdomain", "difficulty"}

Said = tuple[str, str]  # a message: its role, and its text


def load(path: Path, harness: Harness) -> list[Trajectory]:
    """Return a file's successes with the ids that our model would have read and said; their screenshots are
    put where the harness's are. ValueError names a broken record, or says that there is no success."""
    found, unreadable = list[Trajectory](), 0
    for place, record in records(path, MOST_UNPACKED, as_address):
        if isinstance(record, dict) and "turns" in record:
            source = Run(path.resolve().parents[1])
            found = [t for t in source.load_trajectories(path.stem) if t.success and t.valid]
            for name in {image for t in found for turn in t.turns for image in turn.images}:
                harness.images.put(source.images.get(name))
            found = [t if t.trunk else tokenised(t, harness) for t in found]
            break
        try:
            told = trajectory_of(record, f"{path.stem}, {place}", harness)
        except ValueError as problem:
            raise ValueError(f"{path}, {place}: {problem}") from None
        shown = [turn for turn in told.turns if turn.images or turn.page_text]
        unreadable += sum(not turn.trained for turn in shown)
        if told.success and any(turn.trained for turn in told.turns):
            found.append(tokenised(told, harness))
    if not found:
        raise ValueError(f"--sft.demos {path} holds no success to clone")
    responses = sum(turn.trained for trajectory in found for turn in trajectory.turns)
    say(f"{path}: {len(found)} demonstrations, {responses} responses to clone; {unreadable} were unreadable")
    return found


def trajectory_of(record: Any, name: str, harness: Harness) -> Trajectory:
    """Return a public record as what a served model leaves. ValueError says what is wrong with it."""
    task, others, pictures = None, {}, list[Any]()
    match record:
        case {"conversations": [{"from": "human", "value": str(asked)}, {"from": "gpt", "value": str(said)}]}:
            messages = webrl_messages(asked, said)
        case {"prompt": str(asked), "response": str(said), "metadata": {"images": [*pictures], **facts}}:
            parts = [part.partition("\n") for part in asked.split("<|im_start|>")[1:-1]]  # ChatML
            messages = [(role, text.rstrip().removesuffix("<|im_end|>")) for role, _, text in parts]
            messages.append(("assistant", said))
            task = task_of({"metadata": {key: facts[key] for key in facts.keys() & TASK_FIELDS}})
            others = {"member": record.get("rollout_idx", 0), "success": record.get("reward", 1) == 1}
        case {"messages": [*messages], **others}:
            messages, pictures = chat_messages(messages, others.get("images"))
            task = task_of(json.loads(str(others["task"]))) if "task" in others else None
        case _:
            fields = ", ".join(record) if isinstance(record, dict) else "none"
            raise ValueError(f"none of the forms in minirl/data/readers.py; its fields are {fields:.200}")
    instruction, turns = turns_of(messages, pictures, harness)
    member, success = int(str(others.get("member", 0))), others.get("success", True) is True
    return Trajectory(task or Task(name, instruction, ""), member, turns=turns, success=success)


def webrl_messages(asked: str, answer: str) -> list[Said]:
    """Return a step as a chat. Its past rounds show no page, the first one the task in its place."""
    opening, *rest = WEBRL_ROUND.split(asked)
    rounds = [body.partition(WEBRL.to_assistant) for body in rest[1::2]]
    if not rounds or rest[::2] != [str(n) for n in range(len(rounds))]:
        raise ValueError("its rounds must be numbered from 0 on")
    pages = [LEFT_OUT] * (len(rounds) - 1) + [rounds[-1][0]]
    actions = [action.removesuffix(WEBRL.close) for _, _, action in rounds[:-1]] + [answer]
    said = list[Said]()
    for n, (page, action) in enumerate(zip(pages, actions, strict=True)):
        said += [("user", f"{'' if n else opening}Round {n}\n\n{page}"), ("assistant", action)]
    return said


def chat_messages(messages: Sequence[Any], cells: Any) -> tuple[list[Said], list[Any]]:
    """Return the messages with PICTURE where a screenshot is, and the screenshots in their order."""
    cells, said = cells if isinstance(cells, list) else [], list[Said]()
    pictures = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
    for message in messages:
        match message:
            case {"role": str(role), "content": str(words)}:
                words = words.replace("<image>", PICTURE) if pictures else words
                parts: list[Any] = [{"type": "text", "text": words}]
            case {"role": str(role), "content": [*parts]}:
                pass
            case _:
                raise ValueError(f"a message needs a role and a content, not {message!r:.60}")
        text = ""
        for part in parts:
            match part:
                case {"type": "text", "text": str(words)}:
                    text += words
                case {"type": "image"}:
                    text += PICTURE
                case {"type": "image_url", "image_url": {"url": address}}:
                    text, pictures = text + PICTURE, [*pictures, address]
                case _:
                    raise ValueError(f"a part of a message is neither text nor image: {part!r:.60}")
        said.append((role, text))
    return said, pictures


def turns_of(said: Sequence[Said], pictures: Sequence[Any], harness: Harness) -> tuple[str, tuple[Turn, ...]]:
    """Return the instruction and the turns of a conversation, which the configured agent has had."""
    agent, config, turns, instruction = harness.agent, harness.config.agent, list[Turn](), ""
    said = said[1:] if said and said[0][0] == "system" else said
    if not said or [role for role, _ in said] != ["user", "assistant"] * (len(said) // 2):
        raise ValueError("user and assistant must take turns, and the assistant say the last word")
    if (places := sum(text.count(PICTURE) for _, text in said[::2])) != len(pictures):
        raise ValueError(f"its messages show {places} screenshots, and it has {len(pictures)}")
    names = iter([harness.images.put(picture(cell)) for cell in pictures])
    for (_, asked), (_, text) in zip(said[::2], said[1::2], strict=True):
        task, lines, seen = (in_tags if config.kind == "visual" else in_rounds)(asked)
        if asked.count(PICTURE) > 1 or IMAGE_PAD in text:
            raise ValueError("a screenshot must be in a user's message, with no other beside it")
        instruction = instruction or task
        turns[-1:] = [replace(turn, feedback=lines) for turn in turns[-1:]]
        text = text.rstrip().removesuffix("<|im_end|>")
        text = as_answer(text) if config.kind == "text" and config.thinking else whole(text)
        images = tuple(next(names) for _ in range(asked.count(PICTURE)))
        turn = Turn(0, (), (), (), text, images, agent.parse(text), (), seen.text, seen.page_text)
        is_shown = bool(images or seen.page_text)
        turns.append(replace(turn, trained=is_shown and not turn.parsed.error))
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
    head = TASK_AND_ROUND.match(text)
    if not head:
        raise ValueError("a user's message does not begin with Round 0, 1, ..., as the text agent's do")
    parts = [part for part in text[head.end() :].split("\n\n") if part]
    lines = tuple(takewhile(lambda part: not part.startswith(("<", "Tabs: ", LEFT_OUT)), parts))
    page = "\n\n".join(parts[len(lines) :])
    return head[1] or "", lines, Observation("", page_text="" if page == LEFT_OUT else page)


def as_answer(text: str) -> str:
    """Return WebRL's comments and action as WebAgent-R1's thought and answer; other responses as they are."""
    lines = text.strip().splitlines()
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    action = "\n".join(lines[len(comments) :])
    said = f"<think> {' '.join(comments)} </think> <answer> {action} </answer>"
    return text if "<answer>" in text else said


def whole(text: str) -> str:
    """Return a response with the `<think>` that its model's template had written."""
    return text if "<think>" in text or "</think>" not in text else f"<think>\n{text}"


def as_address(cell: Any) -> str:
    """Return a Parquet cell's bytes as a data: address. TypeError for what else JSON lacks."""
    return "data:;base64," + b64encode(cell).decode()


def picture(address: Any) -> bytes:
    """Return the bytes of a data: address, or of base64. ValueError if they are no picture."""
    try:
        content = b64decode(str(address).rpartition(",")[2], validate=True)
        Image.open(BytesIO(content)).verify()
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"{address!r:.60} is no picture in base64") from None
    return content
