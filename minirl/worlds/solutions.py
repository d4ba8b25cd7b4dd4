"""The path through a generated site that does a task: known by construction, and carried by the task.

    parts: an item to be found, what is to be done with it --compose--> steps --> task.meta["solution"]

Where it stands: tasks.py draws the parts in words and has their path composed here, by the names that
generate.py gives to actions. Whoever acts a task out reads it by `solution_of`; `ways_of` adds others.
Paper: AutoWebWorld, section 4.3 and appendix A.2.4.

1. There a search finds the paths first, and tasks are made of them.
2. A list is used in other ways as far as the instruction leaves that open: one that names a rank, or a
   search, has one way. Walks on released sites have one way each, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from minirl.types import Fields, Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.interpreter import (
    State,
    World,
    apply,
    enabled,
    initial_state,
    met,
    parameter_values,
)
from minirl.worlds.search import Step
from minirl.worlds.widgets import gui_steps


@dataclass(frozen=True)
class Part:
    """One thing to do: find an item as told in `find`, and go through a flow with the values that it asks.
    Either may be empty."""

    find: Fields = field(default_factory=dict)
    flow: Fields = field(default_factory=dict)
    values: Fields = field(default_factory=dict)


def compose(world: World, parts: Sequence[Part]) -> "Walk":
    """Return the path that does all parts from the initial state. They may do them in another order: an order
    follows upon the cart, so that nobody has to come back for it, and an item to be looked at comes last."""
    walk = Walk(world)
    turns = {"cart": 1, "order": 2, "": 4}  # the others are third
    for part in sorted(parts, key=lambda part: turns.get(part.flow.get("id", ""), 3)):
        if part.find:
            walk.open(part.find)
        if part.flow:
            walk.do(part.flow, part.values)
    return walk


class Walk:
    """A path as far as it goes, the operations that it takes, and the state that it leads to."""

    def __init__(self, world: World):
        self.world = world
        self.state = initial_state(world.fsm)
        self.steps = []
        self.operations = []

    def take(self, role: str, value: Any = None) -> None:
        """Take the current page's action of this role, with a value if it asks for one."""
        page = self.world.fsm.pages[self.state.page]
        action = page.actions[f"{page.id}_{role}"]
        params = dict.fromkeys(action.open_parameters, value)
        step = Step(action.id, params)
        self.operations += [gui["op"] for gui in gui_steps(self.world, self.state, step)]
        self.state = apply(self.world.fsm, self.state, action.id, params)
        self.steps.append(step)

    def go(self, page: str) -> None:
        """Go to a page that the first one leads to, by way of that."""
        while self.state.page not in (page, "HOME"):
            actions = self.world.fsm.pages[self.state.page].actions
            self.take("BACK" if f"{self.state.page}_BACK" in actions else "HOME")
        if self.state.page != page:
            if enabled(self.world.fsm, self.state, "HOME_ACCEPT", {}):
                self.take("ACCEPT")
            self.take(f"GO_{page}")

    def open(self, find: Fields) -> None:
        """Go to a list, set it as told, and open the item."""
        self.go(list_of(self.world, find["list"])["page"])
        for name, value in find["set"].items():
            self.take(name.upper(), value)
        self.take("OPEN", find["item"])

    def do(self, flow: Fields, values: Fields) -> None:
        """Go through a flow, from the opened item if it is about one."""
        role = flow["id"].upper()
        number = self.world.fsm.meta["flows"].index(flow)
        pages = {}  # by the roles of their actions
        for action in self.world.fsm.actions:
            pages[action.id.removeprefix(f"{action.source}_")] = action.source
        start = pages.get(f"START_{role}")
        if not flow["list"]:
            self.go(start or pages[f"FINISH_{role}"])
        if start:
            self.take(f"START_{role}")
        for name, value in values.items():
            self.take(f"{name.upper()}_{number}", value)
        self.take(f"FINISH_{role}")


def list_of(world: World, id: str) -> Fields:
    """Return what a site tells of one of its lists."""
    (listing,) = [one for one in world.fsm.meta["lists"] if one["id"] == id]
    return listing


def in_json(steps: Sequence[Step]) -> list[Any]:
    """Return a path as a task's meta holds it: [["HOME_GO_ROOMS", {}], ...]."""
    return [[step.action_id, dict(step.params)] for step in steps]


def state_after(world: World, steps: Sequence[Step]) -> State:
    """Return the state that a path leads to. ValueError if it can't be taken."""
    state = initial_state(world.fsm)
    for step in steps:
        state = apply(world.fsm, state, step.action_id, step.params)
    return state


def solution_of(task: Task, world: World) -> list[Step]:
    """Return the path that a task carries. ValueError if it can't be taken on this site, or does not lead to
    the goal."""
    steps = [Step(id, params) for id, params in task.meta.get("solution", ())]
    if not all(met(state_after(world, steps), load_goal(task.goal))):
        raise ValueError(f"task {task.id} has no solution in {world.name}; make the site's tasks again")
    return steps


def ways_of(task: Task, world: World) -> list[Task]:
    """Return the task with its own solution, and then with others: before an item is opened, its list is
    searched, filtered or ordered as well, by one of the ways that the instruction leaves open."""
    ways = [task]
    steps = solution_of(task, world)
    for find in task.meta.get("finds", ()):
        listing = list_of(world, find["list"])
        page = listing["page"]
        opening = Step(f"{page}_OPEN", {listing["one"]: find["item"]})
        n = steps.index(opening)
        before = state_after(world, steps[:n])
        for name in find.get("others", ()):
            action = f"{page}_{listing['ways'][name]['name'].upper()}"
            for params in parameter_values(world, before, action):
                after = apply(world.fsm, before, action, params)
                if opening.params in parameter_values(world, after, opening.action_id):
                    path = [*steps[:n], Step(action, params), *steps[n:]]
                    meta = {**task.meta, "solution": in_json(path), "way": name}
                    ways.append(replace(task, id=f"{task.id}-{page}-{name}", meta=meta))
                    break
    return ways
