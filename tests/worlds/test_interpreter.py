"""The interpreter against cases worked out by hand, and the loader against files that are wrong."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import shopping
from walking import completed

from minirl.worlds.fsm_file import Condition, document_of, load_fsm
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import (
    State,
    World,
    apply,
    canonical,
    enabled,
    initial_state,
    meets,
    parameter_values,
    same,
    share_met,
)
from minirl.worlds.shop import make_shop

LIBRARY = Path(__file__).parents[1] / "data" / "lending_library.fsm.json"

SCHEMA = {
    "text": "string",
    "item": "string|null",
    "flag": "boolean",
    "count": "integer",
    "copies": "integer>=1",
    "price": "number",
    "tags": "array<string>",
    "rows": "array<object>|null",
    "view": {"sort": "string|null", "page": "integer"},
    "extra": "object",
}


def machine(*actions: dict[str, Any]) -> dict[str, Any]:
    """Page A with the given actions; page B shares `item` and `view` with it."""
    other = {"item": "string|null", "view": {"sort": "string"}, "fresh": "integer>=1"}
    pages = [
        {"id": "A", "signature_schema": SCHEMA, "actions": list(actions)},
        {"id": "B", "signature_schema": other, "actions": []},
    ]
    return completed({"meta": {"initial_page_id": "A", "terminal_pages": ["B"]}, "pages": pages})


def test_defaults_follow_from_the_types():
    assert initial_state(load_fsm(machine())).signature == {
        "text": "",
        "item": None,
        "flag": False,
        "count": 0,
        "copies": 1,
        "price": 0,
        "tags": [],
        "rows": None,
        "view": {"sort": None, "page": 0},
        "extra": {},
    }


def effect(op: str, path: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "path": f"$.{path}", **more}


CLEAR_PAGE = effect("clear", "view.page")
UNTAG = effect("remove", "tags", value_ref="{tag}")
TAG = effect("append_unique", "tags", value_ref="{tag}")


@pytest.mark.parametrize(
    ("done", "start", "params", "expected"),
    [
        (effect("set", "item", value="pen"), {}, {}, {"item": "pen"}),
        (effect("set", "item", value_ref="{id}"), {}, {"id": "ink"}, {"item": "ink"}),
        (effect("set", "view.sort", value="year"), {}, {}, {"view": {"sort": "year", "page": 0}}),
        (effect("set", "new.deep", value=1), {}, {}, {"new": {"deep": 1}}),
        # an expression is never executed
        (effect("set", "item", value_expr="append($.rows, 1)"), {"item": "pen"}, {}, {"item": "pen"}),
        # counting starts from nothing, and goes by steps
        (effect("inc", "count"), {}, {}, {"count": 1}),
        (effect("inc", "price", by=-0.5), {"price": 2}, {}, {"price": 1.5}),
        (effect("inc", "item", by=2), {}, {}, {"item": 2}),
        # the default, and not null
        (effect("clear", "copies"), {"copies": 5}, {}, {"copies": 1}),
        (effect("clear", "item"), {"item": "pen"}, {}, {"item": None}),
        (CLEAR_PAGE, {"view": {"sort": "x", "page": 3}}, {}, {"view": {"sort": "x", "page": 0}}),
        # what is equal, and nothing else
        (UNTAG, {"tags": ["a", "b", "c", "b"]}, {"tag": "b"}, {"tags": ["a", "c"]}),
        (UNTAG, {"tags": [1, True]}, {"tag": "1"}, {"tags": [1, True]}),
        (effect("remove", "rows", value=1), {}, {}, {"rows": []}),
        (effect("toggle", "flag"), {}, {}, {"flag": True}),
        (effect("toggle", "flag"), {"flag": True}, {}, {"flag": False}),
        (TAG, {"tags": ["a"]}, {"tag": "b"}, {"tags": ["a", "b"]}),
        (TAG, {"tags": ["a"]}, {"tag": "a"}, {"tags": ["a"]}),
        (effect("append_unique", "rows", value=1), {"rows": [True]}, {}, {"rows": [True, 1]}),
    ],
)
def test_an_effect_writes_one_field(done, start, params, expected):
    """And leaves the others as they were."""
    act = {"id": "ACT", "parameters": dict.fromkeys(params, "{ANY}"), "effects": [done]}
    fsm = load_fsm(machine(act))
    before = {**initial_state(fsm).signature, **start}
    after = apply(fsm, State("A", before), "ACT", params).signature
    assert canonical(after) == canonical({**before, **expected})


def test_effects_happen_in_order_and_leave_the_old_state_alone():
    effects = [effect("set", "view.page", value=4), effect("inc", "view.page"), TAG]
    fsm = load_fsm(machine({"id": "ACT", "parameters": {"tag": "x"}, "effects": effects}))
    start = initial_state(fsm)
    before = copy.deepcopy(start)
    assert apply(fsm, start, "ACT", {}).signature["view"]["page"] == 5
    assert start == before


def test_navigation_carries_fields_of_the_same_name_and_forgets_the_rest():
    effects = [effect("set", "item", value="pen"), effect("set", "count", value=9)]
    effects.append(effect("set", "view.sort", value="year"))
    fsm = load_fsm(machine({"id": "GO", "to": "B", "is_navigation": True, "effects": effects}))
    # `view` is carried whole: names are compared at the top level only.
    arrived = State("B", {"item": "pen", "view": {"sort": "year", "page": 0}, "fresh": 1})
    assert apply(fsm, initial_state(fsm), "GO", {}) == arrived
    effects = [effect("inc", "count"), effect("set", "stray", value=1)]  # on the same page
    fsm = load_fsm(machine({"id": "AGAIN", "is_navigation": True, "effects": effects}))
    start = initial_state(fsm)
    assert apply(fsm, start, "AGAIN", {}) == State("A", {**start.signature, "count": 1})


@pytest.mark.parametrize(
    ("cond", "wanted", "true_for", "false_for"),
    [
        ("eq", "pen", ["pen"], ["", None, 0]),
        ("eq", 1, [1, 1.0], [True, "1", None]),
        ("eq", {"a": [1]}, [{"a": [1.0]}], [{"a": [True]}, {}]),
        ("eq", None, [None], ["", 0, False, []]),
        ("neq", None, ["", 0, False], [None]),
        ("gt", 2, [3, 2.5], [2, "3", None, True, [3, 3, 3]]),
        ("gte", 2, [2], [1.9, "2"]),
        ("lt", 2, [1, -1], [2, None, False, ""]),
        ("lte", 2, [2], [2.1, None]),
        ("exists", None, [None, 0], []),
        ("not_null", None, [0, "", False, []], [None]),
        ("length_gt", 1, ["ab", [1, 2], {"a": 1, "b": 2}], ["a", [1], None, 5, True]),
        ("length_gt", 0, ["\N{ROCKET}"], [""]),
        ("in", ["a", 1, None], ["a", 1, None], ["b", True]),
        ("oneof", [False], [False], [0, None]),
    ],
)
def test_conditions(cond: str, wanted: Any, true_for: list[Any], false_for: list[Any]):
    condition = Condition(("view", "x"), cond, wanted)
    assert [meets({"view": {"x": value}}, condition) for value in true_for] == [True] * len(true_for)
    assert [meets({"view": {"x": value}}, condition) for value in false_for] == [False] * len(false_for)
    for signature in ({}, {"view": None}, {"view": "text"}):  # a missing field is null, but does not exist
        is_null = Condition(("view", "x"), "eq", None)
        assert meets(signature, is_null) and not meets(signature, Condition(("view", "x"), "exists"))


def test_enabled_wants_exactly_the_open_parameters_and_all_preconditions():
    gates = [
        {"path": f"$.{name}", "cond": "eq", "value": value} for name, value in (("text", ""), ("count", 0))
    ]
    parameters = {"id": "{ITEM_ANY}", "widget": "sort"}
    fsm = load_fsm(machine({"id": "ACT", "parameters": parameters, "preconditions": gates}))
    start = initial_state(fsm)
    for change in ({"text": "x"}, {"count": 1}):
        assert not enabled(fsm, State("A", {**start.signature, **change}), "ACT", {"id": "pen"})
    assert enabled(fsm, start, "ACT", {"id": "pen"})
    for wrong in ({}, {"id": "pen", "widget": "sort"}, {"id": "pen", "more": 1}):
        assert not enabled(fsm, start, "ACT", wrong)
    assert not enabled(fsm, start, "NO_SUCH_ACTION", {})
    with pytest.raises(ValueError, match="ACT .* not enabled on page A"):
        apply(fsm, start, "ACT", {})


def test_keys_and_equality_are_those_of_json():
    assert State("A", {"x": 1, "y": [2.0]}).key() == State("A", {"y": [2], "x": 1.0}).key()
    assert State("A", {"x": 1}).key() != State("A", {"x": True}).key()
    assert State("A", {"x": 1}).key() != State("B", {"x": 1}).key()
    assert canonical({"b": "é", "a": (1.0, None)}) == '{"a":[1,null],"b":"é"}'
    assert not same(1, True)
    assert same([1], (1.0,))


def test_goals_use_the_same_conditions():
    goal = {"page": "B", "where": [{"path": "$.view.sort", "cond": "in", "value": ["year"]}]}
    assert shopping.holds(State("B", {"view": {"sort": "year"}}), goal)
    assert not shopping.holds(State("A", {"view": {"sort": "year"}}), goal)
    assert not shopping.holds(State("B", {"view": {"sort": "name"}}), goal)
    states = State("B", {"view": {"sort": "year"}}), State("B", {}), State("A", {})
    assert [share_met(state, goal) for state in states] == [1, 0.5, 0]
    with pytest.raises(ValueError, match="goal: where: 0: cond: Input should be 'eq'"):
        shopping.holds(State("B", {}), {"page": "B", "where": [{"path": "$.x", "cond": "like"}]})


@pytest.mark.parametrize(
    ("signature", "offered"),
    [
        ({}, "abcde"),
        ({"only_fresh": True}, "acd"),
        ({"least": 2}, "acd"),
        ({"least": 3}, "ac"),
        ({"least": 9}, ""),
        ({"kind": "y"}, "bc"),
        ({"kind": "y", "only_fresh": True}, "c"),
        ({"order": "price:asc"}, "ebdac"),
        ({"order": "price:desc"}, "acdbe"),  # of equals the first stays the first
        ({"order": "title:asc"}, "eacdb"),  # what has no text comes first
        ({"order": "title:desc"}, "bdcae"),
        ({"order": "price:desc", "only_fresh": True, "least": 2}, "acd"),
        ({"shop": "none"}, ""),
    ],
)
def test_filters_and_orders_are_the_machines_business(signature, offered):
    """What a list shows is what its actions may open: worked out by hand. Record e has few values, and f is
    sold. A parameter that is not bound stays a symbol."""
    where = {
        "fresh": {"cond": "flag", "value": "$.only_fresh"},
        "price": {"cond": "gte", "value": "$.least"},
        "kind": {"cond": "eq", "value": "$.kind"},
        "sold": False,
        "shop": "$.shop",
    }
    bind = {"param": "it", "collection": "goods", "where": where, "order": "$.order"}
    act = {"id": "OPEN", "parameters": {"it": "{ANY}", "by": "{USER}"}, "bind": bind}
    goods = (
        {"id": "a", "price": 3, "fresh": True, "kind": "x", "title": "Cup"},
        {"id": "b", "price": 1, "fresh": False, "kind": "y", "title": "Pen"},
        {"id": "c", "price": 3, "fresh": True, "kind": "y", "title": "Ink"},
        {"id": "d", "price": 2, "fresh": True, "kind": "x", "title": "Nib"},
        {"id": "e", "title": ""},
        {"id": "f", "title": "Pad", "sold": True},
    )
    goods = tuple({"sold": False, "shop": "desk", **record} for record in goods)
    world = World("desk", load_fsm(machine(act)), {"goods": goods})
    found = parameter_values(world, State("A", {"shop": "desk", **signature}), "OPEN")
    assert found == [{"it": id, "by": "{USER}"} for id in offered]


def test_a_world_refuses_ids_that_cannot_be_addressed():
    fsm = load_fsm(machine())
    with pytest.raises(ValueError, match="goods: ids must"):
        World("shop", fsm, {"goods": ({"id": "a b"},)})
    with pytest.raises(ValueError, match="goods: ids must differ"):
        World("shop", fsm, {"goods": ({"id": "a"}, {"id": "a"})})
    bound = load_fsm(
        machine({"id": "X", "parameters": {"p": "{P}"}, "bind": {"param": "p", "collection": "goods"}})
    )
    with pytest.raises(ValueError, match="no collection 'goods'"):
        World("shop", bound)


@pytest.mark.parametrize("case", json.loads(LIBRARY.with_name("site_breakages.json").read_text()))
def test_errors_name_the_file_and_the_place(tmp_path: Path, case: dict[str, Any]):
    document = json.loads(LIBRARY.read_text())
    place = document
    *way, last = case["where"].split(".")
    for name in way:
        place = place[int(name) if name.isdigit() else name]
    place[last] = case["value"]
    file = tmp_path / "broken.fsm.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=case["says"]) as caught:
        load_fsm(file)
    assert str(file) in str(caught.value)


def test_a_machine_survives_being_written_down():
    document = json.loads(LIBRARY.read_text())
    where = {"kind": {"cond": "eq", "value": "$.text"}, "sold": False}
    listed = {"collection": "goods", "where": where, "order": "$.item"}
    acts = [
        {"id": id, "parameters": {"p": "{P}"}, "bind": {"param": "p"} | bind}
        for id, bind in [("A1", listed), ("A2", {"values": [1, "b", None]}), ("A3", {"values": []})]
    ]
    made = [document_of(world.fsm) for world in (make_shop(0), make_site("forum", 2))]
    for site in (document, machine(*acts), *made):
        fsm = load_fsm(site)
        assert load_fsm(json.loads(json.dumps(document_of(fsm)))) == fsm
        assert document_of(fsm)["meta"] == site["meta"]
