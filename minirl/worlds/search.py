"""Search over a site's states: what can be reached, how soon, and by which steps.

Where it stands: tasks ask how many steps they take, demonstrations for the steps themselves, and `lint` for
the pages out of reach. `widgets.gui_steps` turns a step into mouse and keyboard work.

Paper: AutoWebWorld, section 3.2 and appendix A.2 (breadth-first search over page and signature), `explore`.
Deviations: `solve` goes straight to one goal instead (A* with the bound of bound.py), and finds paths of the
same length; bound parameters range over real records, where the paper keeps one symbol; `interceptors` (the
cookie banner, a permission prompt) are known by their effects, in the released search by their fields' names.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minirl.worlds import interpreter as machine
from minirl.worlds.bound import Bound
from minirl.worlds.fsm_file import Action, FieldPath, Fsm, Goal, load_goal
from minirl.worlds.interpreter import State, World

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
    """A state that was reached, the smallest number of actions to it, the first one's key and last step."""

    state: State
    depth: int = 0
    before: str = ""
    step: Step | None = None


@dataclass
class Graph:
    """The states that a search has seen, by their keys, in the order in which it saw them."""

    nodes: dict[str, Node]
    is_complete: bool = True  # False if the limit left something out

    def nearest(self, page: str) -> str | None:
        """Return the key of the first state on a page, which is a nearest one."""
        return next((key for key, node in self.nodes.items() if node.state.page == page), None)

    def path(self, key: str) -> list[Step]:
        """Return a shortest path to a state, the first in the order of the file."""
        steps = []
        while (node := self.nodes[key]).step is not None:
            steps.append(node.step)
            key = node.before
        return steps[::-1]


def explore(
    world: World, plain: bool = True, max_states: int = MAX_STATES, seconds: float = math.inf
) -> Graph:
    """Return all states that can be reached, breadth-first. Unless `plain`, a visitor who can answer an
    interceptor does so first, as in the released search."""
    first = frozenset() if plain else interceptors(world.fsm)

    def steps(state: State) -> list[Step]:
        possible = list(_steps(world, state))
        return [step for step in possible if step.action_id in first] or possible

    return _search(world, steps, lambda state: 0, lambda state: False, max_states, seconds)[0]


def solve(
    world: World, goal: Goal | Mapping[str, Any], max_states: int = MAX_STATES, seconds: float = math.inf
) -> list[Step] | None:
    """Return a shortest path from the initial state to `goal`, or None if there is none.
    ValueError for a malformed goal, or if `max_states` or `seconds` are not enough."""
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    steps, bound = Choices(world, goal).steps, Bound(world, goal)
    graph, end = _search(world, steps, bound, lambda state: machine.holds(state, goal), max_states, seconds)
    if not graph.is_complete:
        raise ValueError(
            f"{world.name}: no answer within {max_states} states and {seconds:g} seconds: raise them"
        )
    return None if end is None else graph.path(end)


def _search(
    world: World,
    steps: Callable[[State], Iterable[Step]],
    bound: Callable[[State], float],
    is_end: Callable[[State], bool],
    max_states: int,
    seconds: float,
) -> tuple[Graph, str | None]:
    """Return the states seen, and the key of the first end, by A*: expanded next is the state through which a
    path may be shortest by the bound, and of several the farthest. Without a bound that is breadth-first."""
    ends, room, turn = time.process_time() + seconds, MAX_CHARACTERS, itertools.count(1)
    start, expanded = machine.initial_state(world.fsm), itertools.count()
    graph, heap = Graph({str(start): Node(start)}), [(bound(start), 0, 0, start)]
    while heap and heap[0][0] < math.inf:
        _, minus, _, state = heapq.heappop(heap)
        here, soon = str(state), 1 - minus
        is_late = next(expanded) % 64 == 0 and time.process_time() > ends  # the clock is slower than a step
        if graph.nodes[here].depth < -minus:
            continue  # a shorter way here was found meanwhile
        if is_end(state):
            return graph, here
        for step in steps(state):
            after = machine.apply(world.fsm, state, step.action_id, step.params)
            key = str(after)
            is_new = key not in graph.nodes
            room -= len(key) * is_new
            if is_late or is_new and (len(graph.nodes) >= max_states or room < 0):
                graph.is_complete = False
                return graph, None
            if is_new or soon < graph.nodes[key].depth:
                graph.nodes[key] = Node(after, soon, here, step)
                heapq.heappush(heap, (soon + bound(after), -soon, next(turn), after))
    return graph, None


def overlaps(path: FieldPath, others: Iterable[FieldPath]) -> bool:
    """Return whether one of the others is the same field, a part of it, or what it is a part of."""
    return any(a[: len(path)] == path[: len(a)] for a in others)


class Choices:
    """What is worth trying on the way to a goal: no action whose effects nobody on that way reads, and of
    values that nothing tells apart one. That loses no shortest path."""

    def __init__(self, world: World, goal: Goal):
        self.world = world
        read = {condition.path for condition in goal.where}
        useful, size = list[Action](), -1
        while size != len(useful):  # what is read by something useful makes what writes it useful
            size = len(useful)
            useful = [
                action
                for action in world.fsm.actions
                if action.is_navigation or any(overlaps(effect.path, read) for effect in action.effects)
            ]
            for action in useful:
                read |= {condition.path for condition in action.preconditions} | self._limits(action)
                read |= {e.source for e in action.effects if e.source and overlaps(e.path, read)}
        self.useful = {action.id for action in useful}
        tests = [*goal.where, *(condition for action in useful for condition in action.preconditions)]
        self.tests = [replace(test, path=("it",)) for test in tests]
        self.limits = {path for action in useful for path in self._limits(action, all_filters=True)}
        self.kinds = dict[tuple[str, str], Hashable]()  # as found so far

    def steps(self, state: State) -> Iterator[Step]:
        """Yield what can be done in a state, and may be part of a shortest path."""
        for action in self.world.fsm.pages[state.page].actions.values():
            if action.id not in self.useful:
                continue
            if not all(machine.meets(state.signature, condition) for condition in action.preconditions):
                continue
            seen = set()
            for params in machine.parameter_values(self.world, state, action.id):
                kind = self.kind(action, params[action.bind.param]) if action.bind else None
                if kind not in seen:
                    seen.add(kind)
                    yield Step(action.id, params)

    def _limits(self, action: Action, all_filters: bool = False) -> set[FieldPath]:
        """Return the fields on which the range of an action's value depends. A filter that is never set only
        takes rows away when it is, so nobody needs to set it."""
        out = set()
        for wanted in action.bind.where.values() if action.bind else ():
            text = wanted["value"] if isinstance(wanted, Mapping) else str(wanted)
            path = tuple(text.removeprefix("$.").split("."))
            begun = [machine.value_at(page.defaults, path) for page in self.world.fsm.pages.values()]
            if text.startswith("$.") and (all_filters or isinstance(wanted, str) or any(begun)):
                out.add(path)
        return out

    def kind(self, action: Action, value: Any) -> Hashable:
        """Return the same for values that all conditions take alike, wherever they may be copied to, unless
        they are appended, or decide what another action can choose."""
        key = action.id, machine.canonical(value)
        if key not in self.kinds:
            whole = any((e.op != "set" and e.ref) or overlaps(e.path, self.limits) for e in action.effects)
            alike = tuple(machine.meets({"it": value}, test) for test in self.tests)
            self.kinds[key] = key[1] if whole else alike
        return self.kinds[key]


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


def _steps(world: World, state: State) -> Iterator[Step]:
    """Yield everything that can be done in a state."""
    for action in world.fsm.pages[state.page].actions.values():
        choices = machine.parameter_values(world, state, action.id)
        # preconditions do not look at parameters, so one choice speaks for all
        if choices and machine.enabled(world.fsm, state, action.id, choices[0]):
            yield from (Step(action.id, params) for params in choices)
