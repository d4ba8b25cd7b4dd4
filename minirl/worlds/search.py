"""Breadth-first search over a site's states: what can be reached, how soon, and by which steps.

Where it stands: a generator asks how many steps a task takes, a demonstration for the steps themselves, and
`lint` for the pages out of reach. `widgets.gui_steps` turns a step into mouse and keyboard work.

Paper: AutoWebWorld, section 3.2 and appendix A.2 (breadth-first search over page and signature). Deviations:
a state counts as the target when it is generated, not only when it leaves the queue; bound parameters range
over real records, where the paper keeps one symbol; `interceptors` (the cookie banner, a permission prompt)
are known by their effects, in the released search by words in their fields' names.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from minirl.worlds import interpreter as machine
from minirl.worlds.fsm_file import Action, Fsm, Goal, load_goal
from minirl.worlds.interpreter import State, World

Alike = Callable[[Action, Any], Hashable]
MAX_STATES = 100_000
MAX_CHARACTERS = 50_000_000  # of all states' keys
SEARCH_SECONDS = 10.0  # of this process, for a file that may come from anybody


@dataclass(frozen=True)
class Step:
    """One action with its open parameters: `Step("HOME_OPEN_CATEGORY", {"category": "mugs"})`."""

    action_id: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Node:
    """A state that was reached, the smallest number of actions to it, and every last step of such a way."""

    state: State
    depth: int
    ways: int = 0  # how many paths have that number
    parents: list[tuple[str, Step]] = field(default_factory=list)  # key of the state before, and the step


@dataclass
class Graph:
    """The states that a search has seen, by their keys, in the order in which it saw them."""

    nodes: dict[str, Node]
    found: str | None = None  # the key of the first state that was looked for
    is_complete: bool = True  # False if the limit left something out

    def hops(self, page: str) -> int | None:
        """Return the smallest number of actions to a page, if it was reached."""
        return next((node.depth for node in self.nodes.values() if node.state.page == page), None)

    def nearest(self, page: str) -> list[str]:
        hops = self.hops(page)
        return [key for key, node in self.nodes.items() if node.state.page == page and node.depth == hops]

    def path(self, key: str) -> list[Step]:
        """Return one shortest path to a state, the first in the order of the file."""
        steps: list[Step] = []
        while parents := self.nodes[key].parents:
            key, step = parents[0]
            steps.append(step)
        return steps[::-1]

    def sample(self, page: str, count: int, seed: int) -> list[list[Step]]:
        """Return `count` shortest paths to a page, all equally likely, drawn with replacement; [] if none."""
        rng, out = random.Random(seed), []
        ends = [(key, None) for key in self.nearest(page)]
        for _ in range(count if ends else 0):
            steps: list[Any] = []
            choices: list[tuple[str, Any]] = ends
            while choices:
                ((key, step),) = rng.choices(choices, [self.nodes[key].ways for key, _ in choices])
                steps.append(step)
                choices = self.nodes[key].parents
            out.append(steps[:0:-1])  # without the end, which has no step
        return out


def explore(
    world: World,
    goal: Goal | None = None,
    plain: bool = True,
    max_states: int = MAX_STATES,
    seconds: float = math.inf,
) -> Graph:
    """Return all states that can be reached, up to the first at `goal`. Unless `plain`, a visitor who can
    answer an interceptor does that first, as in the released search."""
    ends, room = time.process_time() + seconds, MAX_CHARACTERS
    start = machine.initial_state(world.fsm)
    first = frozenset() if plain else interceptors(world.fsm)
    alike = _alike(world, goal) if goal else None
    queue, graph = [start.key()], Graph({start.key(): Node(start, 0, 1)})
    graph.found = queue.pop() if goal and machine.holds(start, goal) else None
    for key in queue:  # which grows meanwhile
        node = graph.nodes[key]
        steps = list(_steps(world, node.state, alike))
        for step in [step for step in steps if step.action_id in first] or steps:
            after = machine.apply(world.fsm, node.state, step.action_id, step.params)
            after_key = after.key()
            is_new = after_key not in graph.nodes
            room -= len(after_key) * is_new
            if time.process_time() > ends or is_new and (len(graph.nodes) >= max_states or room < 0):
                graph.is_complete = False
                return graph
            if is_new:
                graph.nodes[after_key] = Node(after, node.depth + 1)
                queue.append(after_key)
                if goal and machine.holds(after, goal):
                    graph.found = after_key
            child = graph.nodes[after_key]
            if child.depth == node.depth + 1:
                child.parents.append((key, step))
                child.ways += node.ways
            if graph.found is not None:
                return graph
    return graph


def solve(world: World, goal: Goal | Mapping[str, Any], max_states: int = MAX_STATES) -> list[Step] | None:
    """Return a shortest path from the initial state to `goal`, or None if there is none. ValueError for a
    malformed goal, or if `max_states` are not enough."""
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    graph = explore(world, goal, max_states=max_states)
    if not graph.is_complete:
        raise ValueError(f"{world.name}: {max_states} states and no answer: raise max_states")
    return None if graph.found is None else graph.path(graph.found)


def _alike(world: World, goal: Goal) -> Alike:
    """Return a function of an action and the value of its bound parameter that is equal for texts which no
    condition, goal or filter tells apart: for a goal with colour = red, "red" and all other colours. Effects
    only copy a value, so one of each kind leads as far as all: a shop takes 0.02 s in place of 2.6 s."""
    tested = [*goal.where, *(condition for a in world.fsm.actions for condition in a.preconditions)]
    conditions = [replace(condition, path=("it",)) for condition in tested]
    filtered = {
        machine.canonical(record.get(name))
        for bind in (action.bind for action in world.fsm.actions if action.bind)
        for name in bind.where
        for record in world.data[bind.collection]
    }

    @cache
    def noticed(text: str) -> Hashable:
        return tuple(machine.meets({"it": text}, condition) for condition in conditions)

    def alike(action: Action, value: Any) -> Hashable:
        text = machine.canonical(value)
        # lists can be counted, so what is appended always differs
        is_counted = any(e.op == "append_unique" and e.ref in action.open_parameters for e in action.effects)
        is_special = is_counted or text in filtered or not isinstance(value, str)
        return text if is_special else noticed(value)

    return alike


def symbolic(fsm: Fsm) -> World:
    """Return the machine without records: open parameters stay symbols, as in the released search."""
    return World("symbolic", fsm.rebound(lambda action: None))


def interceptors(fsm: Fsm) -> frozenset[str]:
    """Return the ids of the actions that answer a question in the way: they stay on their page, and set a
    field to true that they need to be null."""
    out = set()
    for action in fsm.actions:
        asked = {c.path for c in action.preconditions if c.cond == "eq" and c.value is None}
        answered = {e.path for e in action.effects if e.op == "set" and e.value is True}
        if asked & answered and not action.is_navigation:
            out.add(action.id)
    return frozenset(out)


def _steps(world: World, state: State, alike: Alike | None) -> Iterator[Step]:
    """Yield everything that can be done in a state; of values that are `alike` the first."""
    for action in world.fsm.pages[state.page].actions.values():
        choices = machine.parameter_values(world, state, action.id)
        # preconditions do not look at parameters, so one choice speaks for all
        if not choices or not machine.enabled(world.fsm, state, action.id, choices[0]):
            continue
        seen = set()
        for params in choices:
            kind = alike(action, params[action.bind.param]) if alike and action.bind else len(seen)
            if kind not in seen:
                seen.add(kind)
                yield Step(action.id, params)
