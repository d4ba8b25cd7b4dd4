"""Publish trajectories: a Parquet data set of `messages` and `images` for any trainer, with a card.

    trajectories --write_dataset--> data/train.parquet + README.md --push--> the Hub

A row is a trajectory: each user's message shows the screenshot or the page of its turn, and the assistant
says what the model has said, reasoning included. OpenWebRL publishes a row per turn, as its model's text.
"""

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minirl.benchmarks.task_files import import_pyarrow
from minirl.console import first_line
from minirl.data.readers import with_opening_think
from minirl.run_folder import write_atomic
from minirl.types import Agent, ImageStore, Observation, Trajectory

ROWS = 16  # that are held in memory at a time
# What the package `datasets` can't know from the types: that these bytes are pictures
FEATURES = {"info": {"features": {"images": {"feature": {"_type": "Image"}, "_type": "List"}}}}
CARD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")


def row_of(trajectory: Trajectory, agent: Agent, images: ImageStore) -> dict[str, Any]:
    task, shown, feedback = trajectory.task, list[dict[str, Any]](), ()
    messages = [message("system", agent.system)] if agent.system else []
    for n, turn in enumerate(trajectory.turns):
        seen = Observation(turn.observation, page_text=turn.page_text, url=turn.url)
        head, page, tail, _ = agent.words(n, task.instruction, seen, feedback)
        asked = message("user", head + page + tail)
        if turn.images:
            asked = message("user", f"{head}{page}screenshot:\n", None, f"\n{tail}")
            shown.append({"bytes": images.get(turn.images[-1]), "path": None})
        messages += [asked, message("assistant", with_opening_think(turn.text))]
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    facts = {"task": json.dumps(asdict(task)), "task_id": task.id, "site": task.site}
    facts |= {"member": trajectory.member, "stop": trajectory.stop.value, "success": trajectory.success}
    return {"messages": messages, "images": shown, **facts, "reward": float(trajectory.reward)}


def message(role: str, *parts: str | None) -> dict[str, Any]:
    """Return a chat message. A part without text is a picture."""
    content = [{"type": "image" if part is None else "text", "text": part} for part in parts]
    return {"role": role, "content": content}


def write_dataset(
    trajectories: Sequence[Trajectory], agent: Agent, images: ImageStore, out: Path, **facts: str
) -> None:
    """Write the data set into a folder, and its card with the facts: title, source, license, command.
    ValueError if there is nothing to publish."""
    pyarrow, path = import_pyarrow(out), out / "data" / "train.parquet"
    if not trajectories:
        raise ValueError("there is no trajectory to publish")
    sample = {"messages": [message("user", "")], "images": [{"bytes": b"", "path": ""}]}  # names all types
    schema = pyarrow.Table.from_pylist([row_of(trajectories[0], agent, images) | sample]).schema
    schema = schema.with_metadata({"huggingface": json.dumps(FEATURES)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.parquet.ParquetWriter(path.with_suffix(".tmp"), schema) as file:
        for at in range(0, len(trajectories), ROWS):
            rows = [row_of(trajectory, agent, images) for trajectory in trajectories[at : at + ROWS]]
            file.write_table(pyarrow.Table.from_pylist(rows, schema))
    path.with_suffix(".tmp").replace(path)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    tasks = {trajectory.task.id: trajectory.task.site for trajectory in trajectories}
    place = shlex.quote(str(Path(__file__).parent))  # which need not be a checkout
    commit = subprocess.getoutput(f"git -C {place} rev-parse -q --verify HEAD 2>/dev/null || echo not known")
    facts |= {
        "trajectories": f"{len(trajectories)}, of which {sum(t.success for t in trajectories)} succeeded",
        "tasks": f"{len(tasks)} on {len(set(tasks.values()))} sites",
        "turns": f"{len(turns)}, {sum(bool(turn.images) for turn in turns)} with a screenshot",
        "commit": commit,
    }
    write_atomic(out / "README.md", CARD.format(**facts).encode())


def push(folder: Path, repository: str, private: bool = True) -> str:
    """Upload a data set's folder to the Hub; return its address there. ValueError if it can't be done."""
    from huggingface_hub import HfApi, get_token

    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no data set: make one with python -m minirl.data write")
    if not get_token():
        raise ValueError("push needs a token: set HF_TOKEN, or log in with hf auth login")
    hub, kind, patterns = HfApi(), "dataset", ["README.md", "data/*.parquet"]
    try:
        url = hub.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder, allow_patterns=patterns)
    except Exception as error:  # of whichever HTTP client it has
        raise ValueError(f"the Hub did not take it: {first_line(error)}") from None
    return str(url)
