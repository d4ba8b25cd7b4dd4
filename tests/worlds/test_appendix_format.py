"""The form of the paper's appendix: read as the same machine, and its faults found at their places."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from minirl.worlds.interpreter import apply, initial_state, load_fsm
from minirl.worlds.lint import check
from minirl.worlds.search import explore, symbolic

NOTEBOOK: dict[str, Any] = {
    "meta": {"app": "notebook", "initial_page_id": "LIST", "terminal_pages": ["SAVED"]},
    "pages": {
        "LIST": {
            "signature": {"query": "", "page": 1, "sort": {"by": "date"}, "opened": None, "tags": []},
            "actions": ["LIST_SEARCH", "LIST_NEXT", "LIST_TAG", "LIST_UNTAG", "LIST_OPEN"],
        },
        "NOTE": {"signature": {"opened": None, "text": "", "starred": False}},
        "SAVED": {"signature": {"opened": None}, "actions": []},
    },
    "actions": {
        "LIST_SEARCH": {
            "params": ["words"],
            "effects": [
                {"op": "assign", "path": "$.query", "value": "{words}"},
                {"op": "assign", "path": "$.page", "value": 1},
            ],
            "gui_procedure": [{"op": "type_text", "selector": "#search", "text": "{words}"}],
        },
        "LIST_NEXT": {
            "preconditions": [{"path": "$.page", "op": "<", "value": 3}],
            "effects": [{"op": "increment", "path": "$.page"}],
            "gui_procedure": [
                {"op": "scroll_until_visible", "selector": "#next"},
                {"op": "click", "selector": "#next"},
            ],
        },
        "LIST_TAG": {
            "effects": [{"op": "insert", "path": "$.tags", "value": "red"}],
            "gui_procedure": [{"op": "click", "selector": "#tag"}],
        },
        "LIST_UNTAG": {
            "effects": [{"op": "delete", "path": "$.tags", "value": "red"}],
            "gui_procedure": [{"op": "click", "selector": "#untag"}],
        },
        "LIST_OPEN": {
            "params": {"note": "{ITEM_ANY}"},
            "preconditions": [{"path": "$.query", "op": "!=", "value": ""}],
            "effects": [{"op": "assign", "path": "$.opened", "value": "{note}"}],
            "is_navigation": True,
            "to_page_id": "NOTE",
            "gui_procedure": [{"op": "click", "selector": "#notes .row"}],
        },
        "NOTE_STAR": {
            "from": "NOTE",
            "effects": [{"op": "toggle", "path": "$.starred"}],
            "gui_procedure": [{"op": "click", "selector": "#star"}],
        },
        "NOTE_SAVE": {
            "from": "NOTE",
            "preconditions": [{"path": "$.starred", "op": "==", "value": True}],
            "is_navigation": True,
            "to_page_id": "SAVED",
            "gui_procedure": [{"op": "click", "selector": "#save"}],
        },
    },
    "nav_skeleton": {
        "nodes": ["LIST", "NOTE", "SAVED"],
        "edges": [
            {"from": "LIST", "to": "NOTE", "via": "LIST_OPEN"},
            {"from": "NOTE", "to": "SAVED", "via": "NOTE_SAVE"},
        ],
    },
}


def test_it_is_the_same_machine():
    fsm = load_fsm(NOTEBOOK)
    state = initial_state(fsm)
    assert state.signature == {
        "query": "",
        "page": 1,
        "sort": {"by": "date"},
        "opened": None,
        "tags": [],
    }, "literal defaults, not those of the types"
    state = apply(fsm, state, "LIST_NEXT", {})
    state = apply(fsm, state, "LIST_TAG", {})
    assert (state.signature["page"], state.signature["tags"]) == (2, ["red"])
    state = apply(fsm, state, "LIST_UNTAG", {})
    state = apply(fsm, state, "LIST_SEARCH", {"words": "milk"})
    assert (state.signature["page"], state.signature["tags"], state.signature["query"]) == (1, [], "milk")
    state = apply(fsm, state, "LIST_OPEN", {"note": "n7"})
    assert (state.page, state.signature) == ("NOTE", {"opened": "n7", "text": "", "starred": False})
    state = apply(fsm, apply(fsm, state, "NOTE_STAR", {}), "NOTE_SAVE", {})
    assert (state.page, state.signature) == ("SAVED", {"opened": "n7"})


def test_it_is_sound_and_can_be_solved():
    assert check(NOTEBOOK) == []
    assert explore(symbolic(load_fsm(NOTEBOOK))).hops("SAVED") == 4


def broken(*path: str, value: Any = None) -> dict[str, Any]:
    document = copy.deepcopy(NOTEBOOK)
    place: Any = document
    *way, last = path
    for name in way:
        place = place[int(name) if name.isdigit() else name]
    place[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "code", "where"),
    [
        (("actions", "LIST_NEXT", "preconditions", "0", "op"), "~", "malformed", "preconditions[0]"),
        (("actions", "LIST_NEXT", "preconditions", "0", "path"), "page", "malformed", "preconditions[0]"),
        (("actions", "LIST_SEARCH", "effects", "1", "path"), "$.query", "pagination_reset", "LIST_SEARCH"),
        (("actions", "LIST_OPEN", "to_page_id"), "NOWHERE", "malformed", "LIST_OPEN"),
        (("actions", "LIST_NEXT"), 7, "malformed", "LIST_NEXT'"),
        (("actions", "STRAY"), {}, "malformed", "actions STRAY"),
        (("pages", "NOTE"), [], "malformed", "pages NOTE"),
        (("pages", "NOTE", "signature"), {"text": "", "starred": False}, "item_lost", "LIST: LIST_OPEN"),
        (("nav_skeleton", "edges", "0", "via"), "LIST_TAG", "skeleton_edge", "edges[0]"),
        (("actions", "NOTE_STAR", "effects"), [], "gate_never_set", "NOTE: NOTE_SAVE"),
    ],
)
def test_a_fault_is_found_where_it_is(path, value, code, where):
    findings = check(broken(*path, value=value))
    assert any(f.code == code and f.where.endswith(where) and f.severity == "error" for f in findings), (
        findings
    )
