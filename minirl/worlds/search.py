"""Breadth-first search over a site's states: what can be reached, how soon, and by which steps.

Where it stands: a generator asks it whether a task can be done and in how many steps; a test or a
demonstration asks it for the steps themselves; `check` asks what is out of reach. It knows nothing of
browsers: `widgets.gui_steps` says what a hand does for a step.

Paper: AutoWebWorld, section 3.2 and appendix A.2 (breadth-first search over page and signature).
Deviations:

* a state counts as the target when it is generated, not when it leaves the queue: the same length,
  fewer visits.
* bound parameters range over real records, where the paper keeps one symbol. That would multiply
  the states by every record ever shown, so the search uses data independence: effects only copy an
  id, and the only things that ever look at it are conditions and the `where` of a binding. Two ids
  that all of those treat alike are interchangeable, so one of each such class is tried: for a goal
  with colour = red that is "red" and one other colour. The length of the path is not affected.
* the released search knows interceptors (the cookie banner, a permission prompt) by words in their
  fields' names. Here they are known by what they do: see `interceptors`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minirl.worlds.fsm_file import Action, Condition, Fsm, Goal, load_goal
from minirl.worlds.interpreter import (
    State,
    World,
    apply,
    enabled,
    holds,
    initial_state,
    meets,
    parameter_values,
    passes,
)

MAX_DEPTH = 40
MAX_STATES = 100_000
MAX_PATHS = 100


@dataclass(frozen=True)
class Step:
    """One action with its open parameters: `Step("HOME_OPEN_CATEGORY", {"category": "mugs"})`."""

    action_id: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Node:
    """A state that was reached, how many actions it takes at least, and every last step of such a way."""

    state: State
    depth: int
    parents: list[tuple[str, Step]] = field(default_factory=list)  # key of the state before, and the step


@dataclass
class Graph:
    """The states that a search has seen, by their keys, in the order in which it saw them."""

    nodes: dict[str, Node]
    found: str | None = None  # the key of the first state that was looked for
    is_complete: bool = True  # nothing was left out for the caps' sake

    def hops(self, page: str) -> int | None:
        """The smallest number of actions after which a visitor is on `page`; None if it was not reached."""
        return next((node.depth for node in self.nodes.values() if node.state.page == page), None)

    def nearest(self, holds: Callable[[State], bool]) -> list[str]:
        """The keys of all states that fulfil `holds` after the smallest number of actions."""
        keys = [key for key, node in self.nodes.items() if holds(node.state)]
        return [key for key in keys if self.nodes[key].depth == self.nodes[keys[0]].depth]

    def path(self, key: str) -> list[Step]:
        """One shortest path to a state, the first in the order of the file."""
        return next(self._back(key))

    def paths(self, holds: Callable[[State], bool], limit: int = MAX_PATHS) -> list[list[Step]]:
        """All shortest paths to the nearest states that fulfil `holds`, up to `limit`."""
        found: list[list[Step]] = []
        for key in self.nearest(holds):
            for path in self._back(key):
                if len(found) == limit:
                    return found
                found.append(path)
        return found

    def sample(self, holds: Callable[[State], bool], count: int, seed: int) -> list[list[Step]]:
        """`count` of the shortest paths, all alike likely, without listing them; the same may come twice."""
        ways = self._ways()
        keys, rng = self.nearest(holds), random.Random(seed)
        return [self._draw(keys, ways, rng) for _ in range(count if keys else 0)]

    def count(self, holds: Callable[[State], bool]) -> int:
        """How many shortest paths there are."""
        ways = self._ways()
        return sum(ways[key] for key in self.nearest(holds))

    def _ways(self) -> dict[str, int]:
        """The number of shortest paths to each state; parents come before their children in `nodes`."""
        ways: dict[str, int] = {}
        for key, node in self.nodes.items():
            ways[key] = sum(ways[parent] for parent, _ in node.parents) if node.parents else 1
        return ways

    def _draw(self, keys: list[str], ways: Mapping[str, int], rng: random.Random) -> list[Step]:
        (key,) = rng.choices(keys, [ways[key] for key in keys])
        steps: list[Step] = []
        while parents := self.nodes[key].parents:
            ((key, step),) = rng.choices(parents, [ways[parent] for parent, _ in parents])
            steps.append(step)
        return steps[::-1]

    def _back(self, key: str) -> Iterator[list[Step]]:
        """Every shortest path to a state. Not recursive: a path may be long."""
        stack: list[tuple[str, tuple[Step, ...]]] = [(key, ())]
        while stack:
            key, steps = stack.pop()
            parents = self.nodes[key].parents
            if not parents:
                yield list(steps)
            for parent, step in reversed(parents):
                stack.append((parent, (step, *steps)))


def explore(
    world: World,
    until: Callable[[State], bool] | None = None,
    plain: bool = True,
    without: frozenset[str] = frozenset(),
    classes: Classes | None = None,
    max_depth: int = MAX_DEPTH,
    max_states: int = MAX_STATES,
) -> Graph:
    """All states that can be reached, or those up to the first that fulfils `until`.

    Unless `plain`, a visitor who can answer an interceptor does nothing else first, as in the released
    search. Actions in `without` are not taken. `classes` thins out a bound parameter's values.
    """
    start = initial_state(world.fsm)
    first = frozenset() if plain else interceptors(world.fsm)
    graph = Graph({start.key(): Node(start, 0)})
    if until is not None and until(start):
        graph.found = start.key()
        return graph
    queue = deque(graph.nodes)
    while queue:
        key = queue.popleft()
        node = graph.nodes[key]
        steps = [step for step in _steps(world, node.state, classes) if step.action_id not in without]
        if urgent := [step for step in steps if step.action_id in first]:
            steps = urgent
        if node.depth == max_depth:
            graph.is_complete &= not steps
            continue
        for step in steps:
            after = apply(world.fsm, node.state, step.action_id, step.params)
            after_key = after.key()
            known = graph.nodes.get(after_key)
            if known is not None:
                if known.depth == node.depth + 1:
                    known.parents.append((key, step))
                continue
            if len(graph.nodes) >= max_states:
                graph.is_complete = False
                return graph
            graph.nodes[after_key] = Node(after, node.depth + 1, [(key, step)])
            if until is not None and until(after):
                graph.found = after_key
                return graph
            queue.append(after_key)
    return graph


def solve(
    world: World,
    goal: Goal | Mapping[str, Any],
    max_depth: int = MAX_DEPTH,
    max_states: int = MAX_STATES,
    every_value: bool = False,
) -> list[Step] | None:
    """A shortest path from the initial state to `goal`; [] if it holds already, None if there is none
    within `max_depth` steps.

    `every_value` tries every record instead of one per class (see above): the same answer, slowly.
    Raises ValueError if the goal is malformed or `max_states` distinct states were not enough to tell.
    """
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    classes = None if every_value else Classes(world, goal)
    graph = explore(
        world,
        lambda state: holds(state, goal),
        classes=classes,
        max_depth=max_depth,
        max_states=max_states,
    )
    if graph.found is not None:
        return graph.path(graph.found)
    if len(graph.nodes) >= max_states and not graph.is_complete:
        raise ValueError(f"{world.name}: {max_states} states and no answer: raise max_states")
    return None


def symbolic(fsm: Fsm) -> World:
    """The machine without records: every open parameter stays the symbol that the file has for it, as in
    the reference search. That keeps its graph small."""
    pages = {}
    for page in fsm.pages.values():
        actions = {id: replace(action, bind=None) for id, action in page.actions.items()}
        pages[page.id] = replace(page, actions=actions)
    return World("symbolic", replace(fsm, pages=pages))


def interceptors(fsm: Fsm) -> frozenset[str]:
    """The actions that answer a question which stands in the way: they stay on their page, and a field that
    they need to be null, so not yet answered, they set to true."""
    return frozenset(
        action.id
        for action in fsm.actions
        if not action.is_navigation
        and any(
            condition.cond == "eq"
            and condition.value is None
            and any(e.op == "set" and e.path == condition.path and e.value is True for e in action.effects)
            for condition in action.preconditions
        )
    )


ACCESS = {"search": ("search", "matched"), "filter": ("filter",), "scroll": ("scroll", "viewport", "visible")}


def access_method(action: Action) -> str | None:
    """How the item that an action opens was found: by search, filter or scroll. The file says so only in
    the names of the fields that the action depends on, so it is read there, and in no other place."""
    if not action.is_navigation or not action.open_parameters:
        return None
    names = [".".join(condition.path).lower() for condition in action.preconditions]
    for method, words in ACCESS.items():
        if any(word in name for name in names for word in words):
            return method
    return None


def by_access(
    world: World, plain: bool = False, max_depth: int = MAX_DEPTH, max_states: int = MAX_STATES
) -> dict[str, dict[str, list[Step]]]:
    """For every terminal page a shortest path by each access method that can take part in one, alone."""
    methods = {action.id: access_method(action) for action in world.fsm.actions}
    out: dict[str, dict[str, list[Step]]] = {page: {} for page in world.fsm.terminal_pages}
    for method in ACCESS:
        others = frozenset(id for id, its in methods.items() if its not in (None, method))
        graph = explore(world, plain=plain, without=others, max_depth=max_depth, max_states=max_states)
        for terminal, paths in out.items():
            keys = graph.nearest(lambda state, page=terminal: state.page == page)
            path = graph.path(keys[0]) if keys else []
            if any(methods[step.action_id] == method for step in path):
                paths[method] = path
    return out


def negatives(world: World, goal: Goal, path: list[Step], count: int, seed: int) -> list[list[Step]]:
    """Ways that look like `path` and miss the goal: it stops early, leaves a step out, takes another value
    or another action instead, and goes on as far as it can be. Every one can be walked; fewer than `count`
    if there are not so many."""
    out: list[list[Step]] = []
    candidates = list(_changed(world, path))
    random.Random(seed).shuffle(candidates)
    for candidate in candidates:
        walked = _walked(world, candidate)
        if walked is not None and not holds(walked[1], goal) and walked[0] not in out:
            out.append(walked[0])
        if len(out) == count:
            break
    return out


def _changed(world: World, path: list[Step]) -> Iterator[list[Step]]:
    state = initial_state(world.fsm)
    for i, step in enumerate(path):
        yield path[:i]
        yield path[:i] + path[i + 1 :]
        for other in _steps(world, state, None):
            if other != step:
                yield [*path[:i], other, *path[i + 1 :]]
        state = apply(world.fsm, state, step.action_id, step.params)


def _walked(world: World, steps: list[Step]) -> tuple[list[Step], State] | None:
    """The steps and where they lead. A value that is not offered any more becomes the first that is; None
    if a step can't be taken at all."""
    state, taken = initial_state(world.fsm), []
    for step in steps:
        if step.action_id not in world.fsm.pages[state.page].actions:
            return None
        choices = parameter_values(world, state, step.action_id)
        if choices and dict(step.params) not in choices:
            step = Step(step.action_id, choices[0])
        if not choices or not enabled(world.fsm, state, step.action_id, step.params):
            return None
        taken.append(step)
        state = apply(world.fsm, state, step.action_id, step.params)
    return taken, state


def _steps(world: World, state: State, classes: Classes | None) -> Iterator[Step]:
    for action in world.fsm.pages[state.page].actions.values():
        choices = parameter_values(world, state, action.id)
        if not choices or not enabled(world.fsm, state, action.id, choices[0]):
            continue  # preconditions do not look at parameters, so one choice speaks for all
        for params in choices if classes is None else classes.one_of_each(action, choices):
            yield Step(action.id, params)


class Classes:
    """Which ids are interchangeable, for one world and one goal."""

    def __init__(self, world: World, goal: Goal) -> None:
        actions = world.fsm.actions
        self._world = world
        self._conditions = [*goal.where, *(c for action in actions for c in action.preconditions)]
        # (collection, field, how) that some binding compares with the current signature.
        self._filters = {
            (action.bind.collection, name, value["cond"] if isinstance(value, Mapping) else "eq")
            for action in actions
            if action.bind is not None
            for name, value in action.bind.where.items()
            if isinstance(value, Mapping) or (isinstance(value, str) and value.startswith("$."))
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

    def _class_of(self, id: Any) -> Hashable:
        """Everything that the machine or the goal could ever notice about a field with this value."""
        if id not in self._known:
            tests = tuple(meets({"it": id}, Condition(("it",), c.cond, c.value)) for c in self._conditions)
            chosen = tuple(
                tuple(r["id"] for r in self._world.data[collection] if passes(r.get(name), cond, id))
                for collection, name, cond in sorted(self._filters)
            )
            self._known[id] = (tests, chosen)
        return self._known[id]
