"""Episodes in the generated shop as a browser would have told them, made without one: for tests."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from minirl.run_folder import Run
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn
from minirl.worlds.shop import CHOICES, make_shop, make_tasks

WORLD = make_shop(0)
TITLES = {record["id"]: record["title"] for records in WORLD.data.values() for record in records}
NAMES = [name for name, _ in CHOICES]


def tasks(number: int) -> list[Task]:
    return make_tasks(WORLD, number, 0, seed=0)[0]


def wanted(task: Task) -> dict[str, str]:
    return {name: condition["value"] for name, condition in zip(NAMES, task.goal["where"], strict=True)}


def episode(task: Task, member: int = 0, image: str = "", **wrong: str) -> Trajectory:
    """An order for what the task asks for, but for what is `wrong`: colour="red"."""
    chosen = wanted(task) | wrong

    def clicked(label: str, page: str = "") -> str:
        where = f" Now at {task.start_url}#{page}." if page else ""
        return f'click: clicked button "{label}" at [500, 500].{where}'

    titles = {name: TITLES.get(chosen[name], chosen[name]) for name in NAMES}
    reports = [
        (clicked(titles["category"], "CATEGORY"),),
        (clicked(titles["product"], "PRODUCT"),),
        (clicked(titles["colour"]), clicked(titles["size"]), clicked("Continue", "CHECKOUT")),
        (clicked(titles["quantity"]), clicked("Place order", "DONE"), "done: task ended."),
    ]
    turns = []
    for lines in reports:
        names = [line.partition(":")[0] for line in lines]
        arguments = {"click": {"point_2d": [500, 500]}, "done": {"response": "done"}}
        calls = tuple(Call(name, arguments[name]) for name in names)
        seen = (image,) if image else ()
        turns.append(Turn(0, (1,), (2,), (-0.1,), "", images=seen, parsed=Parsed("", calls), feedback=lines))
    return Trajectory(
        task,
        member,
        turns=tuple(turns),
        stop=Stop.DONE,
        answer="done",
        success=chosen == wanted(task),
        reward=float(chosen == wanted(task)),
        final_state={"page": "DONE", "signature": chosen},
        final_image=image,
    )


def missed(task: Task, rng: random.Random) -> dict[str, str]:
    """One choice that is not the task's."""
    name, collection = rng.choice(CHOICES)
    others = [record["id"] for record in WORLD.data[collection]]
    others.remove(wanted(task)[name])
    return {name: rng.choice(others)}


def picture(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (96, 64), shade).save(out, "PNG")
    return out.getvalue()


def make_run(folder: Path, goals: int, stages: Sequence[str], members: int = 2) -> Run:
    """A run whose dumps, one for each stage, share out the goals; every second episode misses its goal."""
    run, rng = Run(folder), random.Random(0)
    shop = tasks(goals)
    image = run.images.put(picture(200))
    for n, stage in enumerate(stages):
        made = [
            episode(task, member, image, **(missed(task, rng) if member % 2 else {}))
            for task in shop[n :: len(stages)]
            for member in range(members)
        ]
        run.save_trajectories(stage, made)
    return run
