"""Publish trajectories: a Parquet data set of `messages` and `images` for any trainer, with a card.

    trajectories --write_dataset--> data/train.parquet + README.md --push--> the Hub

A row is a trajectory: each user's message shows the screenshot or the page of its turn, and the assistant
says what the model has said, reasoning included. OpenWebRL publishes a row per turn, as its model's text.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from minirl.console import first_line
from minirl.data.readers import whole
from minirl.evaluation.results import versions
from minirl.run_folder import write_atomic
from minirl.types import Agent, ImageStore, Observation, Trajectory

ROWS = 16  # that are held in memory at a time
# What the package `datasets` can't know from the types: that these bytes are pictures
FEATURES = {"info": {"features": {"images": {"feature": {"_type": "Image"}, "_type": "List"}}}}
CARD = files("minirl.data").joinpath("card.md").read_text(encoding="utf-8")


def row_of(trajectory: Trajectory, agent: Agent, images: ImageStore) -> dict[str, Any]:
    """Return a trajectory as a row, with the whole task as JSON. A part without text is a picture."""
    task, shown = trajectory.task, list[dict[str, Any]]()
    said: list[tuple[str, list[str | None]]] = [("system", [agent.system])] if agent.system else []
    feedback: tuple[str, ...] = ()
    for n, turn in enumerate(trajectory.turns):
        seen = Observation(turn.observation, page_text=turn.page_text, url=turn.url)
        head, page, tail, _ = agent.words(n, task.instruction, seen, feedback)
        parts: list[str | None] = [head + page + tail]
        if turn.images:
            parts = [f"{head}{page}screenshot:\n", None, f"\n{tail}"]
            shown.append({"bytes": images.get(turn.images[-1]), "path": None})
        said += [("user", parts), ("assistant", [whole(turn.text)])]
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    kinds = {str: "text", type(None): "image"}
    messages = [
        {"role": role, "content": [{"type": kinds[type(part)], "text": part} for part in parts]}
        for role, parts in said
    ]
    facts = {
        "task": json.dumps(asdict(task)),
        "task_id": task.id,
        "site": task.site,
        "member": trajectory.member,
    }
    ends = {"stop": trajectory.stop.value, "success": trajectory.success, "reward": float(trajectory.reward)}
    return {"messages": messages, "images": shown, **facts, **ends}


def write_dataset(
    trajectories: Sequence[Trajectory], agent: Agent, images: ImageStore, out: Path, **facts: str
) -> None:
    """Write the data set into the folder `out`, and its card with the facts: title, source, license, command.
    ValueError if there is nothing to publish."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("data sets are Parquet, which needs pyarrow: pip install pyarrow") from None
    if not trajectories:
        raise ValueError("there is no trajectory to publish")
    schema = pyarrow.Table.from_pylist([row_of(trajectories[0], agent, images)]).schema
    shots = pyarrow.list_(pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}))
    schema = schema.set(schema.get_field_index("images"), pyarrow.field("images", shots))
    schema = schema.with_metadata({"huggingface": json.dumps(FEATURES)})
    path = out / "data" / "train.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    with parquet.ParquetWriter(path.with_suffix(".tmp"), schema) as file:
        for at in range(0, len(trajectories), ROWS):
            rows = [row_of(trajectory, agent, images) for trajectory in trajectories[at : at + ROWS]]
            file.write_table(pyarrow.Table.from_pylist(rows, schema))
    os.replace(path.with_suffix(".tmp"), path)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    tasks = {trajectory.task.id: trajectory.task.site for trajectory in trajectories}
    facts |= {
        "trajectories": f"{len(trajectories)}, of which {sum(t.success for t in trajectories)} succeeded",
        "tasks": f"{len(tasks)} on {len(set(tasks.values()))} sites",
        "turns": f"{len(turns)}, {sum(bool(turn.images) for turn in turns)} with a screenshot",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "commit": commit(),
    }
    write_atomic(out / "README.md", CARD.format(**facts).encode())


def commit() -> str:
    """Return the commit of minirl's own files, "not known" where they are no checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not known"


def push(folder: Path, repository: str, private: bool = True) -> str:
    """Upload a data set's folder to the Hub; return its address there. ValueError if it can't be done."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} holds no data set: make one with python -m minirl.data write")
    if not get_token():
        raise ValueError("push needs a token: set HF_TOKEN, or log in with hf auth login")
    hub, kind, patterns = HfApi(), "dataset", ["README.md", "data/*.parquet"]
    try:
        url = hub.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder, allow_patterns=patterns)
    # the errors of its HTTP client, and OSError
    except HfHubHTTPError.__bases__ as error:  # pyright: ignore[reportGeneralTypeIssues]
        raise ValueError(f"the Hub did not take it: {first_line(error)}") from None
    return str(url)
