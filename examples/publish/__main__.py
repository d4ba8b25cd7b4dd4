"""`python -m examples.publish VERB`: a run's dump as a Parquet data set for any trainer, and on the Hub.

    dump --write--> data/train.parquet and README.md, the card --push--> the Hub
    messages and images --read--> dump

A row is a trajectory: `messages`, in which each user's message shows the screenshot or the page of its turn
and the assistant says what the model has said, reasoning included; and `images`. OpenWebRL publishes a row
per turn, as its model's text. Exit status 0: fine; 2: the command line or a file is of no use.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import tyro
from pydantic import TypeAdapter

from minirl.agents.webagent_r1 import LEFT_OUT
from minirl.benchmarks.task_files import parse_task
from minirl.cli.command_line import recipe_named, run_main
from minirl.config import AgentConfig, Config, to_json
from minirl.console import first_line, say
from minirl.data.__main__ import read_into
from minirl.data.readers import (
    PICTURE,
    MessageContent,
    chat_turns,
    is_success,
    read_in_tags,
    read_picture,
    with_opening_think,
)
from minirl.experiment import make_agent
from minirl.run_folder import ImageFolder, Run, write_atomic
from minirl.types import Agent, ImageStore, Observation, Task, Trajectory

BATCH_ROWS = 16  # that are held in memory at a time
# What the package `datasets` can't know from the types: that these bytes are pictures
FEATURES = {"info": {"features": {"images": {"feature": {"_type": "Image"}, "_type": "List"}}}}
TASK_AND_ROUND = re.compile(r"(?:Task Instruction: (.*?)\n\n)?Round \d+\n\n", re.DOTALL)
CARD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")


def write(dump: tyro.conf.Positional[Path], out: Path, license: str, source: str, recipe: str = "") -> None:
    """A dump in a run's trajectories folder as a Parquet data set of messages and images, with a card.

    Args:
        license: Under which the data set is published: apache-2.0, cc-by-4.0, ...
        source: Where tasks and model are from, in words.
        recipe: Whose agent made a dump that is not of a run, as those of minirl.data.
    """
    run = Run(dump.resolve().parents[1])
    trajectories = [trajectory for trajectory in run.load_trajectories(dump.stem) if trajectory.turns]
    if not trajectories:
        raise ValueError("there is no trajectory to publish")
    config = to_json(recipe_named(recipe)) if recipe else run.config()
    if "agent" not in config:
        raise ValueError(f"{run.root} holds no config.json, which names the agent: give its --recipe")
    # but for the file of a prompt: a run's folder may come from anybody, who could name any file there
    agent = {**config["agent"], "prompt": None}
    settings = TypeAdapter(AgentConfig).validate_python(agent)
    write_parquet(trajectories, make_agent(Config("", agent=settings)), run.images, out)
    write_card(trajectories, out, {"source": source, "license": license})
    say(f"{out}: {len(trajectories)} trajectories")


def write_parquet(trajectories: Sequence[Trajectory], agent: Agent, images: ImageStore, out: Path) -> None:
    import pyarrow.parquet

    # a row that has a value in each column gives the columns their types
    example = {"messages": [chat_message("user", "")], "images": [{"bytes": b"", "path": ""}]}
    schema = pyarrow.Table.from_pylist([trajectory_row(trajectories[0], agent, images) | example]).schema
    schema = schema.with_metadata({"huggingface": json.dumps(FEATURES)})
    path = out / "data" / "train.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path.with_suffix(".tmp"), schema) as file:
        for start in range(0, len(trajectories), BATCH_ROWS):
            batch = trajectories[start : start + BATCH_ROWS]
            rows = [trajectory_row(trajectory, agent, images) for trajectory in batch]
            file.write_table(pyarrow.Table.from_pylist(rows, schema))
    path.with_suffix(".tmp").replace(path)


def trajectory_row(trajectory: Trajectory, agent: Agent, images: ImageStore) -> dict[str, Any]:
    """Return a trajectory as the agent would tell it to any chat model."""
    task = trajectory.task
    messages = [chat_message("system", agent.system)] if agent.system else []
    screenshots = []
    feedback: tuple[str, ...] = ()
    for n, turn in enumerate(trajectory.turns):
        observation = Observation(turn.observation, page_text=turn.page_text, url=turn.url)
        head, page, tail, _ = agent.user_message(n, task.instruction, observation, feedback)
        if turn.images:
            messages.append(chat_message("user", f"{head}{page}screenshot:\n", None, f"\n{tail}"))
            screenshots.append({"bytes": images.get(turn.images[-1]), "path": None})
        else:
            messages.append(chat_message("user", head + page + tail))
        messages.append(chat_message("assistant", with_opening_think(turn.text)))
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    return {
        "messages": messages,
        "images": screenshots,
        "task": json.dumps(asdict(task)),
        "task_id": task.id,
        "site": task.site,
        "member": trajectory.member,
        "stop": trajectory.stop.value,
        "success": trajectory.success,
        "reward": float(trajectory.reward),
    }


def chat_message(role: str, *parts: str | None) -> dict[str, Any]:
    """Return a chat message. A part without text is a picture."""
    content = [{"type": "image" if part is None else "text", "text": part} for part in parts]
    return {"role": role, "content": content}


def write_card(trajectories: Sequence[Trajectory], out: Path, facts: Mapping[str, str]) -> None:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sites = {trajectory.task.id: trajectory.task.site for trajectory in trajectories}
    folder = shlex.quote(str(Path(__file__).parent))
    commit = subprocess.getoutput(f"git -C {folder} rev-parse -q --verify HEAD 2>/dev/null || echo not known")
    successes = sum(trajectory.success for trajectory in trajectories)
    with_screenshot = sum(bool(turn.images) for turn in turns)
    card = CARD.format(
        **facts,
        title=out.resolve().name,
        trajectories=f"{len(trajectories)}, of which {successes} succeeded",
        tasks=f"{len(sites)} on {len(set(sites.values()))} sites",
        turns=f"{len(turns)}, {with_screenshot} with a screenshot",
        commit=commit,
        command=shlex.join(["python", "-m", "examples.publish", *sys.argv[1:]]),
    )
    write_atomic(out / "README.md", card.encode())


def push(
    folder: tyro.conf.Positional[Path], repository: tyro.conf.Positional[str], public: bool = False
) -> None:
    """A data set's folder to the Hub, as USER/NAME; it needs a token."""
    from huggingface_hub import HfApi, get_token

    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no data set: make one with python -m examples.publish write")
    if not get_token():
        raise ValueError("push needs a token: set HF_TOKEN, or log in with hf auth login")
    hub = HfApi()
    kind = "dataset"
    patterns = ["README.md", "data/*.parquet"]
    try:
        url = hub.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
        hub.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder, allow_patterns=patterns)
    except Exception as error:  # of whichever HTTP client it has
        raise ValueError(f"the Hub did not take it: {first_line(error)}") from None
    say(str(url))


def read(file: tyro.conf.Positional[Path], out: Path, recipe: str) -> None:
    """Such records of messages and images, as TRL and prime-rl read them too, as a dump to clone.

    Args:
        file: JSON, JSON lines or Parquet.
        out: The dump is OUT/trajectories/demos.jsonl.
        recipe: The recipe that will clone them, whose agent must understand the responses.
    """
    read_into(file, out, recipe, read_chat)


def read_chat(record: Any, name: str, images: ImageFolder) -> Trajectory:
    """Return a record of `messages`, whose screenshots are in `images`, or in the messages as addresses."""
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise ValueError(f"a record needs messages, not {record!r:.200}")
    cells = record.get("images", [])
    if not isinstance(cells, list):
        raise ValueError(f"images must be a list of screenshots, not {cells!r:.60}")
    pictures = list(cells)
    messages = []
    for message in record["messages"]:
        match message:
            case {"role": str(role), "content": str(content)}:
                # without pictures `<image>` is a word of the page
                text = content.replace("<image>", PICTURE) if pictures else content
                messages.append((role, text + read_calls(message)))
            case {"role": str(role), "content": [*parts]}:
                messages.append((role, read_parts(parts, pictures) + read_calls(message)))
            case {"role": str(role), "content": None, "tool_calls": _}:
                messages.append((role, read_calls(message)))
            case _:
                raise ValueError(f"a message needs a role and a content, not {message!r:.60}")
    screenshots = [images.put(read_picture(cell)) for cell in pictures]
    instruction, turns = chat_turns(messages, screenshots, read_message)
    task = Task(name, instruction, "")
    if "task" in record:
        given = record["task"]
        task = parse_task(json.loads(given) if isinstance(given, str) else given)
    return Trajectory(task, 0, turns=turns, success=is_success(record, "success"))


def read_calls(message: Mapping[str, Any]) -> str:
    """Return a message's `tool_calls`, as OpenAI's and TRL's have them, as the agent writes them."""
    text = ""
    for call in message.get("tool_calls") or []:
        match call:
            case {"function": {"name": str(name), "arguments": str() | {} as arguments}}:
                if isinstance(arguments, str):
                    arguments = json.loads(arguments)
                function = {"name": name, "arguments": arguments}
                text += f"\n<tool_call>\n{json.dumps(function)}\n</tool_call>"
            case _:
                raise ValueError(f"a tool call needs a function with name and arguments, not {call!r:.60}")
    return text


def read_message(text: str) -> MessageContent:
    """Return what a message to the visual agent, or to the text agent holds."""
    head = TASK_AND_ROUND.match(text)
    if not head:
        return read_in_tags(text)
    parts = [part for part in text[head.end() :].split("\n\n") if part]
    feedback = tuple(takewhile(lambda part: not part.startswith(("<", "Tabs: ", LEFT_OUT)), parts))
    page = "\n\n".join(parts[len(feedback) :])
    return MessageContent(head[1] or "", feedback, "", "" if page == LEFT_OUT else page)


def read_parts(parts: Sequence[Any], pictures: list[Any]) -> str:
    """Return a message's parts as one text, and append the pictures that they hold themselves."""
    text = ""
    for part in parts:
        match part:
            case {"type": "text", "text": str(words)}:
                text += words
            case {"type": "image"}:
                text += PICTURE
            case {"type": "image_url", "image_url": {"url": address}}:
                text += PICTURE
                pictures.append(address)
            case _:
                raise ValueError(f"a part of a message is neither text nor image: {part!r:.60}")
    return text


def run(argv: Sequence[str]) -> None:
    verbs = {"write": write, "push": push, "read": read}
    tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m examples.publish", args=list(argv))


if __name__ == "__main__":
    run_main(run)
