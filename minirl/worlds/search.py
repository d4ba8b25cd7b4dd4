"""Search over a site's states: what can be reached, how soon, and by which steps.

Where it stands: tasks ask how many steps they take, demonstrations for the steps themselves, and `lint` for
the pages out of reach. `widgets.gui_steps` turns a step into mouse and keyboard work.
Paper: AutoWebWorld, section 3.2 and appendix A.2 (breadth-first search over page and signature), `explore`.
Deviations: `solve` goes straight to one goal instead (A*, led by `Bound`), and finds paths of the same
length; bound parameters range over real records, where the paper keeps one symbol; `interceptors` (the
cookie banner, a permission prompt) are known by their effects, in the released search by their fields' names.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from minirl.worlds import interpreter as machine
from minirl.worlds.fsm_file import Action, Condition, Effect, FieldPath, Fsm, Goal, load_goal
from minirl.worlds.interpreter import State, World, overlaps

MAX_STATES = 100_000
MAX_CHARACTERS = 50_000_000  # of all states' keys
MOST_STOPS = 7  # of a bound's walk; leaving some out makes the bound smaller, and no less true
SEARCH_SECONDS = 10.0  # of this process, for a file that may come from anybody

Key = tuple[object, ...]  # of a condition


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
    """Return all states in reach, breadth-first; unless `plain`, interceptors are answered first."""
    first, every = frozenset() if plain else interceptors(world.fsm), {a.id for a in world.fsm.actions}

    def steps(state: State) -> list[Step]:
        possible = list(_steps(world, state, every))
        return [step for step in possible if step.action_id in first] or possible

    return _search(world, steps, None, max_states, seconds)[0]


def solve(
    world: World, goal: Goal | Mapping[str, Any], max_states: int = MAX_STATES, seconds: float = math.inf
) -> list[Step] | None:
    """Return a shortest path from the initial state to `goal`, or None if there is none.
    ValueError for a malformed goal, or if `max_states` or `seconds` are not enough."""
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    graph, end = _search(world, Choices(world, goal).steps, goal, max_states, seconds)
    if not graph.is_complete:
        limits = f"{max_states} states and {seconds:g} seconds"
        raise ValueError(f"{world.name}: no answer within {limits}: raise them")
    return None if end is None else graph.path(end)


def _search(
    world: World, steps: Callable[[State], Iterable[Step]], goal: Goal | None, max_states: int, seconds: float
) -> tuple[Graph, str | None]:
    """Return the states seen, and the key of the first that meets the goal, by A*: expanded next is the state
    through which a path may be shortest by the bound, and of several the farthest. Without a goal that is
    breadth-first."""
    bound = Bound(world, goal) if goal else lambda state: 0
    ends, room, turn = time.process_time() + seconds, MAX_CHARACTERS, itertools.count(1)
    start, expanded = machine.initial_state(world.fsm), itertools.count()
    graph, heap = Graph({str(start): Node(start)}), [(bound(start), 0, 0, start)]
    while heap and heap[0][0] < math.inf:
        _, minus, _, state = heapq.heappop(heap)
        here, soon = str(state), 1 - minus
        is_late = next(expanded) % 64 == 0 and time.process_time() > ends  # the clock is slower than a step
        if graph.nodes[here].depth < -minus:
            continue  # a shorter way here was found meanwhile
        if goal and all(machine.met(state, goal)):
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


class Choices:
    """What is worth trying on the way to a goal: no action whose effects nobody on that way reads, and of
    values that nothing tells apart one. That loses no shortest path."""

    def __init__(self, world: World, goal: Goal):
        self.world = world
        read = {condition.path for condition in goal.where}
        useful, size = list[Action](), -1
        while size != len(useful):  # what is read by something useful makes what writes it useful
            size = len(useful)
            writes = {a.id: any(overlaps(e.path, read) for e in a.effects) for a in world.fsm.actions}
            useful = [action for action in world.fsm.actions if action.is_navigation or writes[action.id]]
            for action in useful:
                read |= {condition.path for condition in action.preconditions} | self._limits(action)
                read |= {e.source for e in action.effects if e.source and overlaps(e.path, read)}
        self.useful = {action.id for action in useful}
        self.tests = [*goal.where, *(one for action in useful for one in action.preconditions)]
        self.limits = {path for action in useful for path in self._limits(action, all_filters=True)}
        self.kinds = dict[tuple[str, str], Hashable]()  # as found so far

    def steps(self, state: State) -> Iterator[Step]:
        """Yield what can be done in a state, and may be part of a shortest path."""
        actions, seen = self.world.fsm.pages[state.page].actions, set[Hashable]()
        for step in _steps(self.world, state, self.useful):
            kind = self.kind(actions[step.action_id], step.params)
            if kind not in seen:
                seen.add(kind)
                yield step

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

    def kind(self, action: Action, params: Mapping[str, Any]) -> Hashable:
        """Return the same for an action's values that all conditions take alike, wherever they may be copied
        to, unless they are appended, or decide what another action can choose."""
        value = params[action.bind.param] if action.bind else None
        key = action.id, machine.canonical(value)
        if key not in self.kinds:
            whole = any((e.op != "set" and e.ref) or overlaps(e.path, self.limits) for e in action.effects)
            alike = tuple(machine.suits(value, test) for test in self.tests)
            self.kinds[key] = action.id, key[1] if whole else alike
        return self.kinds[key]


@dataclass(eq=False)
class Fact:
    """A condition, and what every way to make it true has in common."""

    condition: Condition
    is_possible: bool = False
    work: frozenset[str] = frozenset()  # actions in place, of which one is to be taken
    stops: frozenset[str] = frozenset()  # pages to be visited
    needs: list["Fact"] = field(default_factory=list)


class Bound:
    """How many actions a goal takes at least: `bound(state)` is infinite if the goal is out of reach.

        goal condition --which actions bring it about?--> their page, their own conditions --> ...

    A condition that does not hold is followed back through all actions that could make it true. If these stay
    on their page, one of them is to be taken; if they are all on one page, that page is to be visited. What
    is to be taken in place is counted, and added to the shortest walk through the pages to be visited. No
    solution could do without what is counted, so no shorter one is overlooked (the bound is admissible).
    """

    def __init__(self, world: World, goal: Goal):
        self.world, self.end, self.facts = world, goal.page, dict[Key, Fact]()
        self.wanted = [self._fact(condition) for condition in goal.where]
        pages = world.fsm.pages.items()
        self.links = {id: {action.target for action in page.actions.values()} for id, page in pages}
        self._reached, self._walk = cache(self._reach), cache(self._shortest)

    def __call__(self, state: State) -> float:
        todo, seen, used, stops, count = [*self.wanted], set[Fact](), set[str](), set[str](), 0
        while todo:
            fact = todo.pop()
            if fact in seen or machine.meets(state.signature, fact.condition):
                continue
            if not fact.is_possible:
                return math.inf
            seen.add(fact)
            count += bool(fact.work and used.isdisjoint(fact.work))
            used |= fact.work
            stops |= fact.stops
            todo += fact.needs
        return count + self._walk(state.page, frozenset(stops - {state.page}))

    def _fact(self, condition: Condition) -> Fact:
        key = (condition.path, condition.cond, machine.canonical(condition.value))
        if key in self.facts:
            return self.facts[key]
        fact = self.facts[key] = Fact(condition)
        is_fresh = any(machine.meets(page.defaults, condition) for page in self.world.fsm.pages.values())
        ways = [(a, effect) for a in self.world.fsm.actions for effect in self._brings(a, condition)]
        fact.is_possible = is_fresh or bool(ways)
        if is_fresh or not ways:  # a fresh page brings it about, or nothing does
            return fact
        actions = {action.id: action for action, _ in ways}.values()
        if not any(action.is_navigation for action in actions):
            fact.work = frozenset(action.id for action in actions)
        for ends in ({action.source for action in actions}, {action.target for action in actions}):
            fact.stops |= ends if len(ends) == 1 else set()
        common = [self._before(action, effect, condition) for action, effect in ways]
        keys = set.intersection(*(set(conditions) for conditions in common))
        fact.needs = [self._fact(common[0][key]) for key in keys]
        return fact

    def _brings(self, action: Action, condition: Condition) -> Iterator[Effect]:
        """Yield the effects of an action that may make the condition true."""
        for effect in action.effects:
            if effect.expr is None and overlaps(effect.path, [condition.path]):
                is_known = effect.op == "set" and effect.source is None and condition.path == effect.path
                values = self._values(action, effect) if is_known else ()
                if not is_known or any(machine.suits(value, condition) for value in values):
                    yield effect

    def _values(self, action: Action, effect: Effect) -> list[object]:
        bind = action.bind
        if effect.ref is None:
            return [effect.value]
        if bind is None or bind.param != effect.ref:
            return [action.parameters[effect.ref]]
        return [one["id"] for one in self.world.data[bind.collection]] if bind.collection else [*bind.values]

    def _before(self, action: Action, effect: Effect, wanted: Condition) -> dict[Key, Condition]:
        """Return the conditions that hold whenever the action's effect makes `wanted` true, by their keys."""
        before = list(action.preconditions)
        written = {one.path[0] for one in action.effects if one is not effect}
        if effect.source and effect.path == wanted.path and effect.source[0] not in written:
            before.append(Condition(effect.source, wanted.cond, wanted.value))
        return {(one.path, one.cond, machine.canonical(one.value)): one for one in before}

    def _reach(self, page: str, without: str = "") -> dict[str, int]:
        """Return the pages that can be reached from a page, and in how many steps, not passing `without`."""
        steps, queue = {page: 0}, [page]
        for here in queue:
            for there in self.links[here]:
                if there not in steps and there != without:
                    steps[there] = steps[here] + 1
                    queue.append(there)
        return steps

    def _shortest(self, page: str, stops: frozenset[str]) -> float:
        """Return the length of the shortest walk from a page through all stops to the goal's page."""
        # who has to pass a stop on the way to another visits it anyhow
        last = [s for s in stops if all(r in self._reached(page, s) for r in stops - {s})]
        kept = frozenset(sorted(last)[:MOST_STOPS])
        steps = self._reached(page)
        if not kept:
            return steps.get(self.end, math.inf) if self.end else 0
        return min(steps.get(stop, math.inf) + self._walk(stop, kept - {stop}) for stop in kept)


def symbolic(fsm: Fsm) -> World:
    """Return the machine without records: open parameters stay symbols, as in the released search."""
    return World("symbolic", fsm.rebound(lambda action: None))


def interceptors(fsm: Fsm) -> frozenset[str]:
    """Return the actions, by ids, that answer a question in the way: in place, they set null to true."""
    out = set()
    for action in fsm.actions:
        asked = {c.path for c in action.preconditions if c.cond == "eq" and c.value is None}
        answered = {e.path for e in action.effects if e.op == "set" and e.value is True}
        if asked & answered and not action.is_navigation:
            out.add(action.id)
    return frozenset(out)


def _steps(world: World, state: State, among: Set[str]) -> Iterator[Step]:
    """Yield everything that can be done in a state by the actions of some ids."""
    for action in world.fsm.pages[state.page].actions.values():
        if action.id in among and all(machine.meets(state.signature, one) for one in action.preconditions):
            for params in machine.parameter_values(world, state, action.id):
                yield Step(action.id, params)
