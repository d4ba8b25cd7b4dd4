"""The search against brute force: the same lengths on small machines, and no path where there is none."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import shopping
from walking import last_state

from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.generate import LEVELS, make_site
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.search import Graph, Step, explore, interceptors, outline, solve, symbolic

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
    """Pick a kind, then a thing of that kind; tags pile up; the way out needs a thing and a tag."""
    needs = [
        {"path": "$.thing", "cond": "not_null"},
        {"path": "$.tags", "cond": "length_gt", "value": 0},
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


def test_values_are_chosen_that_can_be_and_meet_the_goal():
    """Worked out by hand: a kind, a thing of it, a tag and the way out."""
    world = small_world()
    for field, value, length in [("thing", "cup", 4), ("kind", "bath", 4), ("other", "ink", 5)]:
        goal = {"page": "B", "where": [{"path": f"$.{field}", "cond": "eq", "value": value}]}
        steps = solve(world, goal)
        assert steps is not None and len(steps) == length, goal
        assert shopping.holds(last_state(world, steps), goal)
    assert solve(world, {"page": "B", "where": [{"path": "$.thing", "cond": "eq", "value": "door"}]}) is None


@pytest.mark.parametrize("level", LEVELS)
def test_every_end_of_a_generated_site_is_found(level):
    world = make_site("hotels", 3, level)
    for page in world.fsm.terminal_pages:
        assert last_state(world, solve(world, {"page": page}) or []).page == page
    unsold = [{"path": "$.done.rooms.item", "cond": "eq", "value": "room-99"}]
    assert solve(world, {"page": world.fsm.terminal_pages[0], "where": unsold}) is None


def test_the_limit_leaves_states_out():
    graph = explore(small_world(), max_states=2)
    assert len(graph.nodes) == 2 and not graph.is_complete
    assert explore(symbolic(small_world().fsm)).is_complete


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
    key = graph.nearest().get(page)
    return None if key is None else graph.path(key)


@pytest.mark.parametrize("seed", range(150))
def test_shortest_paths_of_random_machines(seed):
    world = random_machine(random.Random(seed))
    (goal,) = world.fsm.terminal_pages
    expected = all_paths(world, goal, 5)
    sketch = outline(world.fsm)
    for path in (first(explore(world), goal), first(explore(sketch), goal), solve(world, {"page": goal})):
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
