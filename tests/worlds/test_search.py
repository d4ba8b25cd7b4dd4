"""The search against brute force: the same lengths on small worlds, and no path where there is none."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import shopping

from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state, parameter_values
from minirl.worlds.search import Graph, Step, explore, interceptors, solve, symbolic

LIBRARY = Path(__file__).parents[1] / "data" / "lending_library.fsm.json"
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
        "bind": {"param": "it", "collection": collection, "where": more.pop("where", {})},
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
        depths = [depth for depth, state in reached.values() if shopping.holds(state, goal)]
        steps = solve(world, goal)
        assert (None if steps is None else len(steps)) == min(depths, default=None), goal
        assert steps is None or shopping.holds(replay(world, steps), goal)


def trimmed(world: World) -> World:
    """A generated site with three records of each kind, and two values of each choice."""

    def cut(one: Any) -> Any:
        return one.bind and replace(one.bind, values=one.bind.values[:2])

    return World(world.name, world.fsm.rebound(cut), {name: some[:3] for name, some in world.data.items()})


def reached_within(world: World, most: int) -> list[tuple[int, State]]:
    """All states up to some depth, with their depths, by trying everything breadth-first."""
    seen, layers = set[str](), [[initial_state(world.fsm)]]
    while layers[-1] and sum(map(len, layers)) < most:
        layers.append([])
        for state in layers[-2]:
            for id in world.fsm.pages[state.page].actions:
                for params in parameter_values(world, state, id):
                    if enabled(world.fsm, state, id, params):
                        after = apply(world.fsm, state, id, params)
                        if after.key() not in seen:
                            seen.add(after.key())
                            layers[-1].append(after)
    return [(depth, state) for depth, layer in enumerate(layers) for state in layer]


def leaves(value: Any, path: str = "$") -> list[tuple[str, Any]]:
    """The fields of a signature that are set, those within others too."""
    if isinstance(value, dict):
        return [leaf for name, inner in value.items() for leaf in leaves(inner, f"{path}.{name}")]
    return [(path, value)] if value not in (None, False, 0, []) else []


@pytest.mark.parametrize(
    ("sites", "goals", "states"), [(5, 10, 600), pytest.param(25, 20, 4000, marks=pytest.mark.slow)]
)
def test_paths_on_generated_sites_are_as_short_as_trying_everything_finds_them(sites, goals, states):
    """Conditions on page, session and fields, taken from states that were reached."""
    levels, themes, deepest = list(LEVELS), list(THEMES), 0
    for n in range(sites):
        world = trimmed(make_site(themes[n % len(themes)], n, levels[n % len(levels)]))
        reached, rng = reached_within(world, states), random.Random(n)
        for _ in range(goals):
            _, state = rng.choice(reached)
            fields = leaves(state.signature)
            picked = rng.sample(fields, min(len(fields), rng.randint(1, 4)))
            where = [{"path": path, "cond": "eq", "value": value} for path, value in picked]
            goal = {"where": where} | ({"page": state.page} if rng.random() < 0.5 or not where else {})
            least = min(depth for depth, one in reached if shopping.holds(one, goal))
            steps = solve(world, goal)
            assert steps is not None and len(steps) == least, (world.name, goal)
            assert shopping.holds(replay(world, steps), goal)
            deepest = max(deepest, least)
    assert deepest >= 4


def test_goals_that_cannot_be_reached_and_such_as_take_a_detour():
    """A record that is not there; and an item that is opened only after another one was reserved."""
    world = make_site("hotels", 3, "hard")

    def goal(**ids: str) -> dict[str, Any]:
        return {
            "where": [{"path": f"$.done.{name}.item", "cond": "eq", "value": id} for name, id in ids.items()]
        }

    assert solve(world, goal(rooms="room-99"), max_states=1) is None
    one, other = (
        solve(world, goal(rooms=room, reserve_room="room-1")) or [] for room in ("room-1", "room-2")
    )
    assert len(other) == len(one) + 3, "home, to the list, and a row"


def test_limits():
    world = small_world()
    goal = {"page": "B", "where": [{"path": "$.thing", "cond": "eq", "value": "cup"}]}
    assert len(solve(world, goal) or []) == 5
    with pytest.raises(ValueError, match="no answer within 2 states and inf seconds"):
        solve(world, goal, max_states=2)


def test_a_goal_that_holds_at_once_needs_no_steps():
    assert solve(small_world(), {"page": "A"}) == []


def test_unbound_parameters_stay_one_symbol():
    world = World("library", load_fsm(LIBRARY))
    steps = solve(world, {"page": "RESERVED"})
    assert steps is not None
    assert len(steps) == 8
    opened = next(step for step in steps if "OPEN" in step.action_id)
    assert opened.params == {"book_id": "{ITEM_ANY}"}


# --- all shortest paths, against brute force ---------------------------------------------------------


def random_machine(rng: random.Random) -> World:
    """A few pages, flags that carry over or not, actions with gates: some goals are out of reach."""
    ids = [f"P{i}" for i in range(rng.randint(2, 4))]
    flags = ["a", "b", "c"]
    schemas = {id: {flag: "boolean|null" for flag in flags if rng.random() < 0.8} for id in ids}
    pages = []
    for id in ids:
        actions = []
        for n in range(rng.randint(1, 4)):
            target = rng.choice(ids)
            gates = [flag for flag in schemas[id] if rng.random() < 0.3]
            writes = [flag for flag in schemas[id] if rng.random() < 0.4]
            values = {flag: rng.choice([True, False, None]) for flag in flags}
            action = {"id": f"{id}_{n}", "to": target, "is_navigation": target != id}
            action["preconditions"] = [
                {"path": f"$.{flag}", "cond": "eq", "value": values[flag]} for flag in gates
            ]
            action["effects"] = [
                {"op": "set", "path": f"$.{flag}", "value": rng.choice([True, False])} for flag in writes
            ]
            actions.append(action)
        pages.append({"id": id, "signature_schema": schemas[id], "actions": actions})
    meta = {"initial_page_id": "P0", "terminal_pages": [ids[-1]]}
    return symbolic(load_fsm({"meta": meta, "pages": pages}))


def all_paths(world: World, page: str, longest: int) -> list[list[str]]:
    """The action ids of all shortest paths to a page, by walking every path there is. Shares no code with the
    search."""
    paths = [([], initial_state(world.fsm))]
    for _ in range(longest + 1):
        there = [ids for ids, state in paths if state.page == page]
        if there:
            return there
        further = []
        for ids, state in paths:
            for action in world.fsm.pages[state.page].actions:
                with contextlib.suppress(ValueError):
                    further.append(([*ids, action], apply(world.fsm, state, action, {})))
        paths = further
    return []


def first(graph: Graph, page: str) -> list[Step] | None:
    """A path to the first state on a page, which is a nearest one."""
    keys = (key for key, node in graph.nodes.items() if node.state.page == page)
    return next(map(graph.path, keys), None)


@pytest.mark.parametrize("seed", range(150))
def test_shortest_paths_of_random_machines(seed):
    world = random_machine(random.Random(seed))
    (goal,) = world.fsm.terminal_pages
    expected = all_paths(world, goal, 5)
    for path in (first(explore(world), goal), solve(world, {"page": goal})):
        if path and len(path) > 5:
            pytest.skip("too far for brute force")
        assert ([step.action_id for step in path] in expected) if path is not None else not expected


def test_interceptors_are_answered_first():
    """A prompt that nothing waits for costs a step in the released search, and none in a plain one."""
    document = json.loads(LIBRARY.read_text())
    books = document["pages"][1]
    books["signature_schema"]["located"] = "boolean|null"
    where = [{"path": "$.located", "cond": "eq", "value": None}]
    effect = [{"op": "set", "path": "$.located", "value": True}]
    books["actions"].append({"id": "LOCATE", "preconditions": where, "effects": effect})
    world = symbolic(load_fsm(document))
    assert interceptors(world.fsm) == {"COOKIE", "LOCATE"}
    assert len(first(explore(world, plain=True), "RESERVED") or ()) == 8
    steps = [step.action_id for step in first(explore(world, plain=False), "RESERVED") or ()]
    assert len(steps) == 9 and steps[:3] == ["COOKIE", "GO_BOOKS_HOVER", "LOCATE"]


def test_a_filter_that_is_only_unset_is_no_interceptor():
    """It has no answer to give: it can be taken whether it was before or not."""
    assert interceptors(load_fsm(LIBRARY)) == {"COOKIE"}
