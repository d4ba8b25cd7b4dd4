"""A generated shop, its parts by name, and episodes in it as a browser would have told them: for tests."""

import io
import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from minirl.run_folder import Run
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.interpreter import State, met
from minirl.worlds.search import Step
from minirl.worlds.shop import CHOICES, make_shop, make_tasks

# It asks all five things, on three pages with a button each; shop 28 has pages that go on by themselves.
SHOP = make_shop(7)
PAGES = ["PRODUCT_CATEGORY", "COLOUR_SIZE", "QUANTITY", "DONE"]
TITLES = {record["id"]: record["title"] for records in SHOP.data.values() for record in records}


def tasks(number: int) -> list[Task]:
    return make_tasks(SHOP, number)


def holds(state: State, goal: Mapping[str, Any]) -> bool:
    return all(met(state, load_goal(goal)))


def wanted(task: Task) -> dict[str, str]:
    return {one["path"].removeprefix("$."): one["value"] for one in task.goal["where"]}


def press(page: str, role: str = "next") -> Step:
    return Step(f"{page}_{role}")


def choose(**chosen: str) -> list[Step]:
    """The steps that choose these words, on the pages that ask for them: choose(colour="red")."""
    actions = [one for page in SHOP.fsm.pages.values() for one in page.actions.values() if one.bind]
    fields = {one.bind.param: one.id for one in actions}
    return [Step(id, {field: chosen[field]}) for field, id in fields.items() if field in chosen]


def episode(task: Task, member: int = 0, image: str = "", **wrong: str) -> Trajectory:
    """An order for what the task asks for, but for what is `wrong`: colour="red"."""
    chosen = wanted(task) | wrong

    def clicked(label: str, page: str = "") -> str:
        where = f" Page navigated to {task.start_url}#{page}." if page else ""
        return f'Succeed: `click` on <button> type=button "{label}" at (500, 500) executed.{where}'

    reports = []
    for page, then in itertools.pairwise(PAGES):
        words = [chosen[field.lower()] for field in page.split("_")]
        label = SHOP.style["labels"][f"{page}_{'order' if then == 'DONE' else 'next'}"]
        reports.append((*(clicked(TITLES.get(word, word)) for word in words), clicked(label, then)))
    reports[-1] += ("Succeed: task marked as done. Response: done",)
    turns = []
    for lines in reports:
        names = ["click" if "`click`" in line else "done" for line in lines]
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
    field = rng.choice(list(CHOICES))
    others = [record["id"] for record in SHOP.data[CHOICES[field]["collection"]]]
    others.remove(wanted(task)[field])
    return {field: rng.choice(others)}


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
