"""Tasks on sites that bring none, released and authored ones: walks to their terminal pages.

Paper: AutoWebWorld, section 5.5 (25 trajectories of two sites). Deviations: a template words them, action by
action, and of the values that are chosen a goal has those alone that the terminal page still knows.
"""

import re
from collections.abc import Sequence
from random import Random

from minirl.console import say
from minirl.types import Task
from minirl.worlds.interpreter import World, apply, enabled, initial_state, parameter_values
from minirl.worlds.looks import read_table
from minirl.worlds.search import Step, solve
from minirl.worlds.solutions import in_json
from minirl.worlds.widgets import condition, gui_steps, widget_of

WORDS = read_table("walks")
COUNT, TRIES = 13, 4  # tasks of a site, half of table 6's, and walks that are drawn for each


def make_walks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks: shortest ways to the terminal pages, in turn, with values drawn anew. The
    same site gives the same tasks."""
    rng, tasks = Random(f"walks of {world.style['brand']}"), dict[str, Task]()
    ways = []
    for page in world.fsm.terminal_pages:
        way = solve(world, {"page": page})
        if way:
            ways.append(way)
        else:
            say(f"{world.name}: no way to {page} was found, so no task leads there")
    for way in ways * (TRIES * count):
        if len(tasks) < count and (task := _walk(world, way, rng, len(tasks))):
            tasks.setdefault(task.instruction, task)
    return list(tasks.values())


def _walk(world: World, way: Sequence[Step], rng: Random, n: int) -> Task | None:
    """Return a way with other values as a task, whose goal has those that are still known at its end; None if
    it leads no further with them."""
    titles = {one["id"]: one.get("title", one["id"]) for some in world.data.values() for one in some}
    state, said, chosen, size = initial_state(world.fsm), list[str](), list[object](), 0
    steps = list[Step]()
    for step in way:
        action = world.fsm.pages[state.page].actions[step.action_id]
        params = rng.choice(parameter_values(world, state, action.id) or [{}])
        if not enabled(world.fsm, state, action.id, params):
            return None
        work = gui_steps(world, state, Step(action.id, params))
        fixed = re.findall(r"\d{4}-\d\d-\d\d", str(work[-1]))  # a day that the machine names
        value = next((params[name] for name in action.open_parameters), "".join(fixed))
        words = {"label": world.style["labels"].get(action.id, action.id), "value": titles.get(value, value)}
        said.append(WORDS.get(widget_of(action, world.fsm).kind, WORDS["button"]).format(**words))
        chosen += [value] if action.open_parameters else []
        size += len(work)
        steps.append(Step(action.id, params))
        state = apply(world.fsm, state, action.id, params)
    where = [condition(name, "eq", value) for name, value in state.signature.items() if value in chosen]
    text = ", then ".join(filter(None, said))
    meta = {"world": world.name, "site": world.name, "benchmark": "autowebworld-sites", "steps": size}
    meta["solution"] = in_json(steps)
    goal, url = {"page": state.page, "where": where}, f"http://{world.name}.test/"
    return Task(f"{world.name}-{n}", f"{text[:1].upper()}{text[1:]}.", url, goal, meta)
