"""The checks of site files: a sound site has no errors, and every kind of fault is found where it was put."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_appendix_format import NOTEBOOK

from minirl.worlds.__main__ import main
from minirl.worlds.expression import parse_expression
from minirl.worlds.interpreter import load_fsm
from minirl.worlds.lint import check
from minirl.worlds.search import explore, symbolic

DATA = Path(__file__).parents[1] / "data"
LIBRARY = DATA / "lending_library.fsm.json"
Document = dict[str, Any]


def library() -> Document:
    return json.loads(LIBRARY.read_text())


def action(document: Document, id: str) -> dict[str, Any]:
    return next(a for page in document["pages"] for a in page["actions"] if a["id"] == id)


def page(document: Document, id: str) -> dict[str, Any]:
    return next(page for page in document["pages"] if page["id"] == id)


def test_a_sound_site_has_no_errors():
    """What it depends on an expression for is told: its log is never written."""
    (finding,) = check(LIBRARY)
    assert (finding.severity, finding.code, finding.where) == ("warning", "expression", "BOOK: BOOK_RESERVE")
    assert "nothing depends on it" in finding.message and "$.log, $.selected_book_id" in finding.message


# --- one fault at a time ---------------------------------------------------------------------------


def drop_door(d: Document) -> None:
    page(d, "BOOK")["actions"].remove(action(d, "BOOK_RESERVE"))


def gate_without_key(d: Document) -> None:
    action(d, "BOOK_PICK_DATE")["effects"] = [{"op": "set", "path": "$.tags", "value": []}]


def gate_with_an_expression_for_a_key(d: Document) -> None:
    action(d, "BOOK_PICK_DATE")["effects"] = [{"op": "set", "path": "$.pickup_date", "value_expr": "now()"}]


def orphan(d: Document) -> None:
    go_home = {"id": "HELP_HOME", "to": "HOME", "is_navigation": True}
    go_home["gui_procedure"] = [{"op": "click", "selector": "#home"}]
    d["pages"].append({"id": "HELP", "signature_schema": {}, "actions": [go_home]})


def dead_end(d: Document) -> None:
    page(d, "BOOK")["actions"].append(
        {"id": "TO_HELP", "to": "HELP", "gui_procedure": [{"op": "click", "selector": "#help"}]}
    )
    d["pages"].append({"id": "HELP", "signature_schema": {}, "actions": []})


def undeclared_write(d: Document) -> None:
    action(d, "BOOK_ADD_TAG")["effects"].append({"op": "set", "path": "$.gifted", "value": True})


def undeclared_inner_write(d: Document) -> None:
    action(d, "BOOKS_SORT")["effects"][0]["path"] = "$.view.order"


def undeclared_read(d: Document) -> None:
    action(d, "BOOK_ADD_TAG")["preconditions"] = [{"path": "$.gifted", "cond": "eq", "value": True}]


def wrong_type(d: Document) -> None:
    action(d, "BOOK_SET_COPIES")["effects"][0]["value"] = "one"


def count_a_text(d: Document) -> None:
    action(d, "BOOK_SET_COPIES")["effects"].append({"op": "inc", "path": "$.note"})


def compare_a_text(d: Document) -> None:
    action(d, "BOOK_RESERVE")["preconditions"].append({"path": "$.note", "cond": "gt", "value": 3})


def placeholder(d: Document) -> None:
    action(d, "BOOK_ADD_TAG")["preconditions"] = [{"path": "$.note", "cond": "neq", "value": "{TEXT}"}]


def path_without_dollar(d: Document) -> None:
    action(d, "BOOK_RESERVE")["preconditions"][0]["path"] = "selected_book_id"


def path_with_placeholder(d: Document) -> None:
    action(d, "BOOK_RESERVE")["preconditions"][0]["path"] = "$.{field}"


def unknown_effect(d: Document) -> None:
    action(d, "BOOK_ADD_TAG")["effects"][0]["op"] = "explode"


def bad_expression(d: Document) -> None:
    action(d, "BOOK_RESERVE")["effects"][0]["value_expr"] = "__import__('os').system('x')"


def item_not_stored(d: Document) -> None:
    action(d, "BOOKS_OPEN_ANY")["effects"].pop(0)


def item_renamed_on_the_way(d: Document) -> None:
    book = page(d, "BOOK")["signature_schema"]
    book["current_book_id"] = book.pop("selected_book_id")


def nowhere(d: Document) -> None:
    action(d, "BOOK_BACK")["to"] = "SHELF"


def no_selector(d: Document) -> None:
    del action(d, "BOOK_ADD_TAG")["gui_procedure"][0]["selector"]


def script_for_a_selector(d: Document) -> None:
    action(d, "BOOK_ADD_TAG")["gui_procedure"][0]["selector"] = "body > *:nth-child(1)"


def shared_selector(d: Document) -> None:
    action(d, "BOOK_BACK")["gui_procedure"] = copy.deepcopy(action(d, "BOOK_ADD_TAG")["gui_procedure"])


def two_roles(d: Document) -> None:
    drag = {"op": "drag", "selector": "#note-input", "to_value": "right"}
    action(d, "BOOK_ADD_TAG")["gui_procedure"].insert(0, drag)


def stale_pagination(d: Document) -> None:
    page(d, "BOOKS")["signature_schema"]["view"]["page"] = "integer"
    action(d, "BOOKS_SORT")["effects"].append({"op": "set", "path": "$.view.page", "value": 0})
    for id in ("BOOKS_FILTER_SLIDER", "BOOKS_FILTER_CHECKBOX"):
        action(d, id)["effects"].append({"op": "clear", "path": "$.view.page"})


def skeleton(d: Document) -> None:
    edges = [{"from": "BOOK", "to": "BOOKS", "via": "BOOK_BACK"}]
    d["nav_skeleton"] = {"edges": [*edges, {"from": "BOOK", "to": "HOME", "via": "BOOK_ADD_TAG"}]}


def two_of_a_name(d: Document) -> None:
    page(d, "BOOK")["actions"].append(copy.deepcopy(action(d, "BOOK_BACK")))


def few_pages(d: Document) -> None:
    d["meta"]["complexity_profile"]["pages"] = {"min": 9, "max": 12}


def never_together(d: Document) -> None:
    action(d, "BOOKS_OPEN_ANY")["preconditions"] = [
        {"path": "$.opens", "cond": "gt", "value": 1},
        {"path": "$.opens", "cond": "lt", "value": 1},
    ]


FAULTS: list[tuple[Callable[[Document], None], str, str, str]] = [
    (drop_door, "error", "unreachable_terminal", "RESERVED"),
    (gate_without_key, "error", "unreachable_terminal", "RESERVED"),
    (gate_without_key, "error", "gate_never_set", "BOOK: BOOK_RESERVE"),
    (gate_with_an_expression_for_a_key, "error", "gate_never_set", "BOOK: BOOK_RESERVE"),
    (gate_with_an_expression_for_a_key, "warning", "expression", "BOOK: BOOK_PICK_DATE"),
    (orphan, "warning", "orphan_page", "HELP"),
    (dead_end, "warning", "dead_end", "HELP"),
    (undeclared_write, "error", "undeclared_write", "BOOK: BOOK_ADD_TAG"),
    (undeclared_inner_write, "error", "undeclared_write", "BOOKS: BOOKS_SORT"),
    (undeclared_read, "error", "undeclared_read", "BOOK: BOOK_ADD_TAG"),
    (wrong_type, "error", "type_mismatch", "BOOK: BOOK_SET_COPIES"),
    (count_a_text, "error", "type_mismatch", "BOOK: BOOK_SET_COPIES"),
    (compare_a_text, "error", "invalid_condition", "BOOK: BOOK_RESERVE"),
    (placeholder, "error", "placeholder", "BOOK: BOOK_ADD_TAG"),
    (path_without_dollar, "error", "malformed", "BOOK_RESERVE: preconditions[0]"),
    (path_with_placeholder, "error", "malformed", "BOOK_RESERVE: preconditions[0]"),
    (unknown_effect, "error", "malformed", "BOOK_ADD_TAG: effects[0]"),
    (bad_expression, "error", "bad_expression", "BOOK: BOOK_RESERVE"),
    (item_not_stored, "error", "missing_id", "BOOKS: BOOKS_OPEN_ANY"),
    (item_renamed_on_the_way, "error", "item_lost", "BOOKS: BOOKS_OPEN_MATCHED"),
    (nowhere, "error", "malformed", "BOOK: BOOK_BACK"),
    (no_selector, "error", "bad_selector", "BOOK: BOOK_ADD_TAG"),
    (script_for_a_selector, "error", "bad_selector", "BOOK: BOOK_ADD_TAG"),
    (shared_selector, "warning", "shared_selector", "BOOK"),
    (two_roles, "error", "shared_selector", "BOOK"),
    (stale_pagination, "error", "pagination_reset", "BOOKS: BOOKS_SEARCH"),
    (skeleton, "error", "skeleton_edge", "nav_skeleton: edges[1]"),
    (two_of_a_name, "error", "malformed", "BOOK"),
    (few_pages, "warning", "too_few_pages", "meta"),
    (never_together, "warning", "never_enabled", "BOOKS: BOOKS_OPEN_ANY"),
]


@pytest.mark.parametrize(("fault", "severity", "code", "where"), FAULTS)
def test_a_fault_is_found_where_it_is(fault, severity, code, where):
    document = library()
    fault(document)
    findings = check(document)
    matching = [f for f in findings if f.code == code and f.where.endswith(where)]
    assert [f.severity for f in matching] == [severity], findings


def test_only_what_is_wrong_is_found():
    """Pagination that is reset and a skeleton that tells the truth are no findings."""
    document = library()
    stale_pagination(document)
    skeleton(document)
    document["nav_skeleton"]["edges"].pop()
    action(document, "BOOKS_SEARCH")["effects"].append({"op": "set", "path": "$.view.page", "value": 0})
    assert [finding.code for finding in check(document)] == ["expression"]


def test_several_faults_are_found_at_once():
    document = library()
    for fault in (path_without_dollar, unknown_effect, item_not_stored, orphan):
        fault(document)
    codes = [finding.code for finding in check(document)]
    assert codes.count("malformed") == 2 and "missing_id" in codes and "orphan_page" in codes


def test_a_machine_without_end_is_searched_for_a_while():
    counters = {f"c{i}": "integer" for i in range(6)}  # 10^6 states within 60 actions
    ups = [
        {
            "id": f"UP{i}",
            "preconditions": [{"path": f"$.c{i}", "cond": "lt", "value": 10}],
            "effects": [{"op": "inc", "path": f"$.c{i}"}],
            "gui_procedure": [{"op": "click", "selector": f"#up{i}"}],
        }
        for i in range(6)
    ]
    out = {"id": "OUT", "to": "B", "gui_procedure": [{"op": "click", "selector": "#out"}]}
    out["preconditions"] = [{"path": f"$.c{i}", "cond": "gte", "value": 9} for i in range(6)]
    pages = [
        {"id": "A", "signature_schema": counters, "actions": [*ups, out]},
        {"id": "B", "signature_schema": {}, "actions": []},
    ]
    document = {"meta": {"initial_page_id": "A", "terminal_pages": ["B"]}, "pages": pages}
    (finding,) = check(document, max_states=2000)
    assert (finding.severity, finding.code) == ("warning", "search_bounded")
    graph = explore(symbolic(load_fsm(document)), max_states=2000)
    assert len(graph.nodes) == 2000 and not graph.is_complete
    shallow = explore(symbolic(load_fsm(document)), max_depth=2)
    assert len(shallow.nodes) == 1 + 6 + 21 and not shallow.is_complete


# --- files that are no sites -------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5) | st.just("BOOK"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    here = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    inner = [place for _, one in here if isinstance(one, dict | list) for place in places(one)]
    return [(value, key) for key, _ in here] + inner


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([library(), NOTEBOOK]))
def test_anything_in_place_of_anything_gives_findings(data, document):
    """Never an exception, whatever of the file is replaced or missing."""
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        if not places(document):
            break
        container, key = data.draw(st.sampled_from(places(document)))
        if data.draw(st.booleans()):
            container[key] = data.draw(json_values)
        elif isinstance(container, dict):
            container.pop(key)
    for finding in check(document, max_states=500):
        assert finding.severity in ("error", "warning") and finding.code and finding.message


def bad_files(folder: Path) -> list[Path]:
    text = LIBRARY.read_text()
    contents: dict[str, bytes] = {
        "truncated": text[: len(text) // 2].encode(),
        "empty": b"",
        "list": b"[]",
        "not_utf8": b"\xff\xfe\x00",
        "deep": b'{"pages": ' + b"[" * 100_000,
        "deep_schema": json.dumps({"meta": {"initial_page_id": "A"}, "pages": []}).encode(),
        "nan": b'{"meta": NaN}',
        "no_first_page": json.dumps({"meta": {"initial_page_id": "X"}, "pages": []}).encode(),
    }
    paths = [folder / f"{name}.json" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
    return [*paths, folder / "missing.json", folder]


def test_files_that_are_no_sites(tmp_path, capsys):
    for path in bad_files(tmp_path):
        assert main(["check", str(path)]) == 1, path
        said = capsys.readouterr().out
        assert "[malformed]" in said and "1 errors, 0 warnings" in said, path
        assert main(["solve", str(path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_hostile_strings_reach_no_terminal(tmp_path, capsys):
    document = library()
    document["meta"]["terminal_pages"] = ["\x1b]0;owned\x07"]
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(document))
    assert main(["check", str(file)]) == 1 and main(["solve", str(file)]) == 2
    out, err = capsys.readouterr()
    assert not set("\x1b\x07") & set(out + err)


# --- the command line ---------------------------------------------------------------------------------


def test_findings_as_json(capsys, tmp_path):
    document = library()
    orphan(document)
    file = tmp_path / "site.json"
    file.write_text(json.dumps(document))
    assert main(["check", str(file), "--json"]) == 0, "warnings alone are no failure"
    findings = json.loads(capsys.readouterr().out)
    assert [sorted(finding) for finding in findings] == [["code", "message", "severity", "where"]] * 2
    assert {finding["code"] for finding in findings} == {"expression", "orphan_page"}


def test_hops_as_json(capsys):
    assert main(["solve", str(LIBRARY), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["hops"] == {"RESERVED": 8} and answer["states"] == 130
    assert answer["unreached_pages"] == [] and answer["complete"] is True


def test_the_command_as_a_user_gives_it():
    command = [sys.executable, "-m", "minirl.worlds"]
    done = subprocess.run([*command, "solve", str(LIBRARY)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "RESERVED: 8 actions" in done.stdout
    assert "by search or filter or scroll" in done.stdout
    lost = subprocess.run([*command, "fly", str(LIBRARY)], capture_output=True, text=True, timeout=60)
    assert lost.returncode == 2 and "Traceback" not in lost.stderr


SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours


@pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released fsm.json files")
@pytest.mark.parametrize(
    ("name", "hops", "plain"),
    [("quora", [9, 8, 5, 6, 5], [8, 7, 5, 5, 5]), ("youtube", [6, 6, 9, 6, 7], [6, 6, 9, 6, 7])],
)
def test_the_released_sites(name, hops, plain, capsys):
    for flags, expected in (([], hops), (["--plain"], plain)):
        assert main(["solve", str(Path(SAVED) / f"{name}.fsm.json"), "--json", *flags]) == 0
        assert list(json.loads(capsys.readouterr().out)["hops"].values()) == expected


# --- expressions ----------------------------------------------------------------------------------------


def test_what_an_expression_reads():
    parsed = parse_expression('merge(filter($.rows, x => x.id != $.view.id), [{"n": len($.rows) + 1}])')
    assert parsed.functions == {"merge", "filter", "len"} and parsed.paths == {"$.rows", "$.view.id"}


@pytest.mark.parametrize(
    "text", ["", "append($.a", "append($.a))", "eval('1')", "$.a; $.b", "(]", "`x`", None, 3, "now()" * 9999]
)
def test_what_is_no_expression(text):
    with pytest.raises(ValueError):
        parse_expression(text)


@given(st.text())
def test_expressions_of_any_text(text):
    try:
        parse_expression(text)
    except ValueError as error:
        assert str(error)
