"""The search against brute force: the same lengths on small worlds, and no path where there is none."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from minirl.world.fsm import World, apply, holds, initial_state, load_fsm, parameter_values
from minirl.world.search import Step, solve

LIBRARY = Path(__file__).parent / "data" / "lending_library.fsm.json"
GOODS = (
    {"id": "pen", "kind": "desk"},
    {"id": "ink", "kind": "desk"},
    {"id": "cup", "kind": "bath"},
)
KINDS = ({"id": "desk"}, {"id": "bath"}, {"id": "hall"})


def pick(id: str, field: str, collection: str, op: str = "set", **more: Any) -> dict[str, Any]:
    """An action that writes the chosen record's id into a field."""
    return {
        "id": id,
        "from": "A",
        "to": "A",
        "parameters": {"it": "{ANY}"},
        "effects": [{"op": op, "path": f"$.{field}", "value_ref": "{it}"}],
        "bind": {"it": {"collection": collection, "where": more.pop("where", {})}},
        **more,
    }


def small_world() -> World:
    """Pick a kind, then a thing of that kind; tags pile up; the way out needs a thing and two tags."""
    needs = [
        {"path": "$.thing", "cond": "not_null"},
        {"path": "$.tags", "cond": "length_gt", "value": 1},
        {"path": "$.other", "cond": "neq", "value": "pen"},
    ]
    schema = {"kind": "string|null", "thing": "string|null", "other": "string|null", "tags": "array<string>"}
    actions = [
        pick("KIND", "kind", "kinds"),
        pick("THING", "thing", "goods", where={"kind": "$.kind"}),
        pick("OTHER", "other", "goods"),
        pick("TAG", "tags", "goods", op="append_unique"),
        {"id": "OUT", "from": "A", "to": "B", "is_navigation": True, "preconditions": needs},
    ]
    machine = {
        "meta": {"initial_page_id": "A", "terminal_pages": ["B"]},
        "pages": [
            {"id": "A", "signature_schema": schema, "actions": actions},
            {"id": "B", "signature_schema": schema, "actions": []},
        ],
    }
    return World("small", load_fsm(machine), {"goods": GOODS, "kinds": KINDS})


def every_depth(world: World) -> dict[str, tuple[int, Any]]:
    """Key -> (steps from the start, state), by trying everything everywhere. An oracle, so it shares
    no code with the search."""
    start = initial_state(world.fsm)
    reached = {start.key(): (0, start)}
    frontier = [start]
    for depth in itertools.count(1):
        fresh = []
        for state in frontier:
            for id in world.fsm.pages[state.page].actions:
                for params in parameter_values(world, state, id):
                    try:
                        next_state = apply(world.fsm, state, id, params)
                    except ValueError:
                        continue
                    if next_state.key() not in reached:
                        reached[next_state.key()] = (depth, next_state)
                        fresh.append(next_state)
        if not fresh:
            return reached
        frontier = fresh
    raise AssertionError


def replay(world: World, steps: list[Step]) -> Any:
    state = initial_state(world.fsm)
    for step in steps:
        state = apply(world.fsm, state, step.action_id, step.params)
    return state


def test_paths_are_as_short_as_brute_force_finds_them():
    world = small_world()
    reached = every_depth(world)
    rng = random.Random(0)
    goals = [
        {
            "page": page,
            "where": [{"path": f"$.{field}", "cond": cond, "value": value} for field, cond, value in where],
        }
        for page in "AB"
        for where in [
            [],
            [("thing", "eq", "cup")],
            [("thing", "eq", "cup"), ("kind", "eq", "desk")],
            [("thing", "eq", "ink"), ("kind", "eq", "hall")],
            [("thing", "in", ["ink", "cup"]), ("other", "eq", "cup")],
            [("other", "not_null", None), ("kind", "neq", "desk")],
            [("tags", "length_gt", 2)],
            [("tags", "eq", rng.sample(["pen", "ink", "cup"], 2)), ("thing", "eq", "pen")],
            [("thing", "length_gt", 3)],
        ]
    ]
    for goal in goals:
        depths = [depth for depth, state in reached.values() if holds(state, goal)]
        for every_value in (False, True):
            steps = solve(world, goal, every_value=every_value)
            assert (None if steps is None else len(steps)) == min(depths, default=None), goal
            assert steps is None or holds(replay(world, steps), goal)


def test_limits():
    world = small_world()
    goal = {"page": "B", "where": [{"path": "$.thing", "cond": "eq", "value": "cup"}]}
    assert len(solve(world, goal) or []) == 5
    assert solve(world, goal, max_depth=4) is None
    assert len(solve(world, goal, max_depth=5) or []) == 5
    with pytest.raises(ValueError, match="raise max_states"):
        solve(world, goal, max_states=10)


def test_a_goal_that_holds_at_once_needs_no_steps():
    assert solve(small_world(), {"page": "A"}) == []


def test_unbound_parameters_stay_one_symbol():
    world = World("library", load_fsm(LIBRARY))
    steps = solve(world, {"page": "RESERVED"})
    assert steps is not None
    assert len(steps) == 8
    opened = next(step for step in steps if "OPEN" in step.action_id)
    assert opened.params == {"book_id": "{ITEM_ANY}"}
