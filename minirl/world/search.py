"""The shortest way from a site's first page to a goal.

Where it stands: a generator asks it whether a task can be done and in how many steps; a test or a
demonstration asks it for the steps themselves. It knows nothing of browsers: `site.selector_for`
says how a step is clicked.

Paper: AutoWebWorld, section 3.2 (breadth-first search over page and signature). Deviations:

* a state counts as the target when it is generated, not when it leaves the queue: the same length,
  fewer visits.
* one shortest path is returned, the first in the order of the file, not all of them.
* bound parameters range over real records, where the paper keeps one symbol. That would multiply
  the states by every record ever shown, so the search uses data independence: effects only copy an
  id, and the only things that ever look at it are conditions and the `where` of a binding. Two ids
  that all of those treat alike are interchangeable, so one of each such class is tried: for a goal
  with colour = red that is "red" and one other colour. The length of the path is not affected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minirl.world.fsm import State, World, apply, enabled, holds, initial_state, meets, parameter_values
from minirl.world.schema import Action, Condition, Goal, load_goal


@dataclass(frozen=True)
class Step:
    """One action with its open parameters: `Step("HOME_OPEN_CATEGORY", {"category": "mugs"})`."""

    action_id: str
    params: Mapping[str, Any] = field(default_factory=dict)


def solve(
    world: World,
    goal: Goal | Mapping[str, Any],
    max_depth: int = 40,
    max_states: int = 100_000,
    every_value: bool = False,
) -> list[Step] | None:
    """A shortest path from the initial state to `goal`; [] if it holds already, None if there is none
    within `max_depth` steps.

    `every_value` tries every record instead of one per class (see above): the same answer, slowly.
    Raises ValueError if the goal is malformed or `max_states` distinct states were not enough to tell.
    """
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    classes = None if every_value else _Classes(world, goal)
    start = initial_state(world.fsm)
    if holds(start, goal):
        return []
    came_from: dict[str, tuple[str, Step] | None] = {start.key(): None}
    queue = deque([(start, start.key(), 0)])
    while queue:
        state, key, depth = queue.popleft()
        if depth == max_depth:
            return None
        for step in _steps(world, state, classes):
            after = apply(world.fsm, state, step.action_id, step.params)
            after_key = after.key()
            if after_key in came_from:
                continue
            came_from[after_key] = (key, step)
            if holds(after, goal):
                return _walk_back(came_from, after_key)
            if len(came_from) >= max_states:
                raise ValueError(f"{world.name}: {max_states} states and no answer: raise max_states")
            queue.append((after, after_key, depth + 1))
    return None


def _steps(world: World, state: State, classes: _Classes | None) -> Iterator[Step]:
    for action in world.fsm.pages[state.page].actions.values():
        choices = parameter_values(world, state, action.id)
        if not choices or not enabled(world.fsm, state, action.id, choices[0]):
            continue  # preconditions do not look at parameters, so one choice speaks for all
        for params in choices if classes is None else classes.one_of_each(action, choices):
            yield Step(action.id, params)


def _walk_back(came_from: Mapping[str, tuple[str, Step] | None], key: str) -> list[Step]:
    steps: list[Step] = []
    while (origin := came_from[key]) is not None:
        key, step = origin
        steps.append(step)
    return steps[::-1]


class _Classes:
    """Which ids are interchangeable, for one world and one goal."""

    def __init__(self, world: World, goal: Goal) -> None:
        actions = [action for page in world.fsm.pages.values() for action in page.actions.values()]
        self._world = world
        self._conditions = [*goal.where, *(c for action in actions for c in action.preconditions)]
        # The pairs (collection, field) that some binding compares with the current signature.
        self._filters = {
            (action.bind.collection, name)
            for action in actions
            if action.bind is not None
            for name, value in action.bind.where.items()
            if isinstance(value, str) and value.startswith("$.")
        }
        self._known: dict[str, Hashable] = {}

    def one_of_each(self, action: Action, choices: list[dict[str, str]]) -> list[dict[str, str]]:
        """The first choice of every class. Lists can be counted, so what is appended is never merged."""
        if action.bind is None:
            return choices
        param = action.bind.param
        if any(effect.op == "append_unique" and effect.ref == param for effect in action.effects):
            return choices
        first: dict[Hashable, dict[str, str]] = {}
        for params in choices:
            first.setdefault(self._class_of(params[param]), params)
        return list(first.values())

    def _class_of(self, id: str) -> Hashable:
        """Everything that the machine or the goal could ever notice about a field with this id."""
        if id not in self._known:
            tests = tuple(meets({"it": id}, Condition(("it",), c.cond, c.value)) for c in self._conditions)
            chosen = tuple(
                tuple(record["id"] for record in self._world.data[collection] if record.get(name) == id)
                for collection, name in sorted(self._filters)
            )
            self._known[id] = (tests, chosen)
        return self._known[id]
