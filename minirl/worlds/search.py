"""Search over a site's states: which pages can be reached, how soon, and by which actions.

Where it stands: sites in the released form get their tasks from here, and `lint` learns which pages and
actions are out of reach. Generated tasks bring their solution along and need no search.
Paper: AutoWebWorld, section 4.3 and appendix A.2.

1. `explore` is the paper's breadth-first search over pages and their signatures, where a parameter that the
   visitor chooses is one symbol.
2. `solve` then puts real records and values into a shortest path, which the paper leaves to its replay.
3. `interceptors` (a cookie banner, a permission prompt) are known by their effects; the released search knows
   them by the names of their fields.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from minirl.types import Fields
from minirl.worlds import interpreter
from minirl.worlds.fsm_file import Action, FieldPath, Fsm
from minirl.worlds.interpreter import State, World

CONSENT = re.compile("accepted|permission|granted|consent")
MAX_STATES = 20_000  # a site of a person's size has some hundreds
NEAR = 5  # records that a list shows without being scrolled, which may be an action of its own
MAX_PATHS = 10  # paths to a goal that get values
MAX_TRIES = 20_000  # actions tried on each


@dataclass(frozen=True)
class Step:
    """One action with its open parameters: `Step("HOME_OPEN_CATEGORY", {"category": "mugs"})`."""

    action_id: str
    params: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A state that was reached, and the last step of a shortest path to it; both are empty at the start."""

    state: State
    before: str = ""
    step: Step | None = None


@dataclass
class Graph:
    """The states that a search has reached, by their keys, nearest first."""

    nodes: dict[str, Node]
    possible: set[tuple[str, str]] = field(default_factory=set)  # pages and actions that can be taken on them
    is_complete: bool = True  # False if the limit left something out

    def path(self, key: str) -> list[Step]:
        """Return a shortest path to a state, the first in the order of the file."""
        steps = []
        node = self.nodes[key]
        while node.step:
            steps.append(node.step)
            node = self.nodes[node.before]
        return steps[::-1]

    def nearest(self) -> dict[str, str]:
        """Return the key of the nearest state on each page that was reached."""
        keys = {}
        for key, node in self.nodes.items():
            keys.setdefault(node.state.page, key)
        return keys


def explore(world: World, plain: bool = True) -> Graph:
    """Return all states in reach, breadth-first; unless `plain`, interceptors are answered first."""
    first = {} if plain else interceptors(world.fsm)
    start = interpreter.initial_state(world.fsm)
    graph = Graph({start.key(): Node(start)})
    queue = list(graph.nodes)
    for here in queue:  # which grows meanwhile
        state = graph.nodes[here].state
        steps = possible_steps(world, state)
        graph.possible |= {(state.page, step.action_id) for step in steps}
        urgent = [step for step in steps if step.action_id in first]
        for step in urgent or steps:
            after = interpreter.apply(world.fsm, state, step.action_id, step.params)
            key = after.key()
            if key in graph.nodes:
                continue
            if len(graph.nodes) == MAX_STATES:
                graph.is_complete = False
                return graph
            graph.nodes[key] = Node(after, here, step)
            queue.append(key)
    return graph


def solve(world: World, page: str) -> list[Step] | None:
    """Return a shortest path from the initial state to a page, or None if none was found."""
    graph = explore(outline(world.fsm))
    keys = [key for key, node in graph.nodes.items() if node.state.page == page]
    for key in keys[:MAX_PATHS]:
        steps = with_values(world, graph.path(key))
        if steps is not None:
            return steps
    return None


def with_values(world: World, path: Sequence[Step], rng: Random | None = None) -> list[Step] | None:
    """Return a path of symbols with records and values that can be chosen, tried depth first: the path's own
    and the first in display order, or near ones that the rng draws. None if there are none."""
    tries = 0

    def complete(state: State, n: int) -> list[Step] | None:
        nonlocal tries
        if n == len(path):
            return []
        id = path[n].action_id
        choices = interpreter.parameter_values(world, state, id)
        choices.sort(key=lambda params: params != path[n].params)  # what the search has chosen comes first
        if rng:
            choices = rng.sample(choices[:NEAR], len(choices[:NEAR]))
        for params in choices:
            tries += 1
            if tries > MAX_TRIES:
                return None
            if not interpreter.enabled(world.fsm, state, id, params):
                continue
            rest = complete(interpreter.apply(world.fsm, state, id, params), n + 1)
            if rest is not None:
                return [Step(id, params), *rest]
        return None

    return complete(interpreter.initial_state(world.fsm), 0)


def symbolic(fsm: Fsm) -> World:
    """Return the machine without records: open parameters stay symbols, as in the released search."""
    return World("symbolic", fsm.changed(lambda action: replace(action, bind=None)))


def outline(fsm: Fsm) -> World:
    """Return the symbolic machine without what makes no difference to which pages and actions are in reach:
    effects that nobody reads, and all but one of the listed values that no condition tells apart. It has the
    same shortest paths, and far fewer states."""
    tests = []
    read = set()
    for action in fsm.actions:
        tests += action.preconditions
        read |= {effect.source for effect in action.effects if effect.source}
    read |= {test.path for test in tests}

    def outlined(action: Action) -> Action:
        effects = []
        for effect in action.effects:  # on the same field, a part of it, or what it is a part of
            if any(path[: len(effect.path)] == effect.path[: len(path)] for path in read):
                effects.append(effect)
        bind = None
        if action.bind and action.bind.values:
            values = {}
            for value in reversed(action.bind.values):
                values[tuple(interpreter.suits(value, test) for test in tests)] = value
            bind = replace(action.bind, values=tuple(values.values()))
        return replace(action, effects=effects, bind=bind)

    return World("outline", fsm.changed(outlined))


def interceptors(fsm: Fsm) -> dict[str, set[FieldPath]]:
    """Return the actions, by ids, that answer a question in the way: in place, they set null to true, or
    where its name is a consent's what is not true yet. Each with where it does."""
    answered = {}
    for action in fsm.actions:
        questions = set()
        for condition in action.preconditions:
            test = (condition.cond, condition.value)
            is_consent = test == ("neq", True) and CONSENT.search(condition.path[-1])
            if test == ("eq", None) or is_consent:
                questions.add(condition.path)
        answers = {e.path for e in action.effects if e.op == "set" and e.value is True}
        if questions & answers and not action.is_navigation:
            answered[action.id] = questions & answers
    return answered


def possible_steps(world: World, state: State) -> list[Step]:
    """Return everything that can be done in a state, in the order of the file."""
    steps = []
    for action in world.fsm.pages[state.page].actions.values():
        if all(interpreter.meets(state.signature, condition) for condition in action.preconditions):
            for params in interpreter.parameter_values(world, state, action.id):
                steps.append(Step(action.id, params))
    return steps
