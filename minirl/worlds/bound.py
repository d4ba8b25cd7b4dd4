"""How many actions a goal takes at least: the bound that leads `search.solve` straight to it.

    goal condition --which actions bring it about?--> their page, their own conditions --> ...

A condition that does not hold is followed back through all actions that could make it true. If these stay on
their page, one of them is to be taken; if they are all on one page, that page is to be visited. What is to
be taken in place is counted, and added to the shortest walk through the pages to be visited. Nothing counts
that a solution could do without, so no shorter one is overlooked (the bound is admissible, as A* needs it).
Not in a paper: AutoWebWorld searches breadth-first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from minirl.worlds.fsm_file import Action, Condition, Effect, Goal
from minirl.worlds.interpreter import State, World, canonical, meets

MOST_STOPS = 7  # of a walk; leaving some out makes the bound smaller, and no less true


@dataclass(eq=False)
class Fact:
    """A condition, and what every way to make it true has in common."""

    condition: Condition
    is_free: bool = False  # a fresh page brings it about
    is_possible: bool = False
    work: frozenset[str] = frozenset()  # actions in place, of which one is to be taken
    stops: frozenset[str] = frozenset()  # pages to be visited
    needs: list[Fact] = field(default_factory=list)


class Bound:
    """The bound for one goal in one world: `bound(state)` is infinite if the goal is out of reach."""

    def __init__(self, world: World, goal: Goal):
        self.world, self.end, self.facts = world, goal.page, dict[tuple[object, ...], Fact]()
        self.wanted = [self._fact(condition) for condition in goal.where]
        self.links: dict[str, set[str]] = {
            page.id: {action.target for action in page.actions.values() if action.is_navigation}
            for page in world.fsm.pages.values()
        }
        self._reached, self._walk = cache(self._reach), cache(self._shortest)

    def __call__(self, state: State) -> float:
        todo, seen, used, stops, count = [*self.wanted], set[Fact](), set[str](), set[str](), 0
        while todo:
            fact = todo.pop()
            if fact in seen or fact.is_free or meets(state.signature, fact.condition):
                continue
            if not fact.is_possible:
                return math.inf
            seen.add(fact)
            if fact.work and used.isdisjoint(fact.work):
                count += 1
            used |= fact.work
            stops |= fact.stops
            todo += fact.needs
        return count + self._walk(state.page, frozenset(stops - {state.page}))

    def _fact(self, condition: Condition) -> Fact:
        key = (condition.path, condition.cond, canonical(condition.value))
        if key in self.facts:
            return self.facts[key]
        fact = self.facts[key] = Fact(condition)
        fact.is_free = any(meets(page.defaults, condition) for page in self.world.fsm.pages.values())
        ways = [
            (action, effect) for action in self.world.fsm.actions for effect in self._brings(action, fact)
        ]
        fact.is_possible = bool(ways)
        if fact.is_free or not ways:
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

    def _brings(self, action: Action, fact: Fact) -> Iterator[Effect]:
        """Yield the effects of an action that may make the condition true."""
        condition = fact.condition
        it = Condition(("it",), condition.cond, condition.value)
        for effect in action.effects:
            shorter = min(len(condition.path), len(effect.path))
            if effect.expr is None and condition.path[:shorter] == effect.path[:shorter]:
                is_known = effect.op == "set" and effect.source is None and condition.path == effect.path
                values = self._values(action, effect) if is_known else ()
                if not is_known or any(meets({"it": value}, it) for value in values):
                    yield effect

    def _values(self, action: Action, effect: Effect) -> list[object]:
        bind = action.bind
        if effect.ref is None:
            return [effect.value]
        if bind is None or bind.param != effect.ref:
            return [action.parameters[effect.ref]]
        return [one["id"] for one in self.world.data[bind.collection]] if bind.collection else [*bind.values]

    def _before(
        self, action: Action, effect: Effect, wanted: Condition
    ) -> dict[tuple[object, ...], Condition]:
        """Return the conditions that hold whenever the action's effect makes `wanted` true, by their keys."""
        before = list(action.preconditions)
        written = {one.path[0] for one in action.effects if one is not effect}
        if effect.source and effect.path == wanted.path and effect.source[0] not in written:
            before.append(Condition(effect.source, wanted.cond, wanted.value))
        return {(one.path, one.cond, canonical(one.value)): one for one in before}

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
