"""The search against brute force: the same lengths on small machines, and no path where there is none."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from walking import completed

from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.generate import LEVELS, make_site
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.search import Graph, Step, explore, interceptors, outline, solve, symbolic, with_values
from minirl.worlds.solutions import state_after

LIBRARY = Path(__file__).parents[1] / "data" / "lending_library.fsm.json"
GOODS = ({"id": "pen"}, {"id": "ink"}, {"id": "cup"})


def pick(id: str, field: str, op: str) -> dict[str, Any]:
    """An action that writes the chosen record's id into a field."""
    return {
        "id": id,
        "parameters": {"it": "{ANY}"},
        "effects": [{"op": op, "path": f"$.{field}", "value_ref": "{it}"}],
        "bind": {"param": "it", "collection": "goods"},
    }


def world_of(schema: dict[str, str], actions: dict[str, list[Any]]) -> World:
    """Pages of the same fields with these actions: the first one is the start, the last one the end."""
    pages = [{"id": id, "signature_schema": schema, "actions": offered} for id, offered in actions.items()]
    first, *_, last = actions
    meta = {"initial_page_id": first, "terminal_pages": [last]}
    return World("small", load_fsm(completed({"meta": meta, "pages": pages})), {"goods": GOODS})


def small_world() -> World:
    """The way out needs a thing that is no pen, and a tag, of which there may be many."""
    needs = [
        {"path": "$.thing", "cond": "not_null"},
        {"path": "$.thing", "cond": "neq", "value": "pen"},
        {"path": "$.tags", "cond": "length_gt", "value": 0},
    ]
    schema = {"thing": "string|null", "tags": "array<string>"}
    out = {"id": "OUT", "to": "B", "is_navigation": True, "preconditions": needs}
    actions = [pick("THING", "thing", "set"), pick("TAG", "tags", "append_unique"), out]
    return world_of(schema, {"A": actions, "B": []})


def test_values_are_chosen_that_can_be():
    """Worked out by hand: the first thing in display order, unless it is the pen, a tag, and the way out."""
    world = small_world()
    steps = solve(world, "B") or []
    assert [(step.action_id, *step.params.values()) for step in steps] == [
        ("THING", "ink"),
        ("TAG", "pen"),
        ("OUT",),
    ]
    drawn = [with_values(world, steps, random.Random(seed)) or [] for seed in range(20)]
    assert {one[0].params["it"] for one in drawn} == {"ink", "cup"}
    assert all(state_after(world, one).page == "B" for one in drawn)
    assert solve(world, "A") == [] and solve(world, "C") is None


def test_a_long_way_through_pages_with_many_values():
    """Of twenty-one actions, each of the twenty before the last with ten values: symbols, then values."""
    fields = [f"f{n}" for n in range(20)]
    days = [str(n) for n in range(10)]
    pages = {}
    for n, field in enumerate(fields):
        take = {"id": f"TAKE_{n}", "to": f"P{n + 1}", "is_navigation": True, "parameters": {"day": "{ANY}"}}
        take["effects"] = [{"op": "set", "path": f"$.{field}", "value_ref": "{day}"}]
        take["bind"] = {"param": "day", "values": days}
        pages[f"P{n}"] = [take]
    needs = [{"path": f"$.{field}", "cond": "eq", "value": "7"} for field in fields[::5]]
    out = {"id": "OUT", "to": "END", "is_navigation": True, "preconditions": needs}
    world = world_of(dict.fromkeys(fields, "string|null"), pages | {"P20": [out], "END": []})
    steps = solve(world, "END") or []
    assert len(steps) == 21 and state_after(world, steps).page == "END"
    assert [step.params["day"] for step in steps[:20:5]] == ["7"] * 4


@pytest.mark.parametrize("level", LEVELS)
def test_every_end_of_a_generated_site_is_found(level):
    world = make_site("hotels", 3, level)
    for page in world.fsm.terminal_pages:
        assert state_after(world, solve(world, page) or []).page == page


def test_unbound_parameters_stay_one_symbol():
    world = World("library", load_fsm(LIBRARY))
    steps = solve(world, "RESERVED") or []
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
            action = {"id": f"{id}_{n}", "from": id, "to": target, "is_navigation": target != id}
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
    for path in (first(explore(world), goal), first(explore(sketch), goal), solve(world, goal)):
        if path and len(path) > 5:
            pytest.skip("too far for brute force")
        assert ([step.action_id for step in path] in expected) if path is not None else not expected


@pytest.mark.parametrize("asked", [{"cond": "eq", "value": None}, {"cond": "neq", "value": True}])
def test_interceptors_are_answered_first(asked):
    """A prompt that nothing waits for costs a step in the released search, and none in a plain one. A filter
    that is only unset is no interceptor: it can be taken whether it was before or not."""
    document = json.loads(LIBRARY.read_text())
    books = document["pages"][1]
    books["signature_schema"] |= {"location_granted": "boolean|null", "followed": "boolean"}
    where = [{"path": "$.location_granted", **asked}]
    effect = [{"op": "set", "path": "$.location_granted", "value": True}]
    follow = [{"op": "set", "path": "$.followed", "value": True}]
    unlike = [{"path": "$.followed", "cond": "neq", "value": True}]
    books["actions"].append({"id": "FOLLOW", "preconditions": unlike, "effects": follow})
    books["actions"].append({"id": "LOCATE", "preconditions": where, "effects": effect})
    document = completed(document)
    world = symbolic(load_fsm(document))
    assert interceptors(world.fsm) == {"COOKIE": {("cookie_accepted",)}, "LOCATE": {("location_granted",)}}
    assert len(first(explore(world, plain=True), "RESERVED") or ()) == 8
    steps = [step.action_id for step in first(explore(world, plain=False), "RESERVED") or ()]
    assert len(steps) == 9 and steps[:3] == ["COOKIE", "GO_BOOKS_HOVER", "LOCATE"]
