"""The checks of site files: a sound site has no errors, and every kind of fault is found where it was put."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walking import completed
from worlds_command import main

from minirl.worlds.lint import check

DATA = Path(__file__).parents[1] / "data"
LIBRARY = DATA / "lending_library.fsm.json"
Document = dict[str, Any]


REMOVED = "REMOVED"
CLICK = [{"op": "click", "selector": "#help"}]


def site(*changes: tuple[str, Any]) -> Document:
    """The library's file with changes. What is at a path, which begins with a page's or action's id or with
    "file", becomes the value, or is removed, or gets the value behind it ("+")."""
    document = json.loads(LIBRARY.read_text())
    records = [*document["pages"], *(action for page in document["pages"] for action in page["actions"])]
    places = {"file": document, **{record["id"]: record for record in records}}
    for path, value in changes:
        first, *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
        place = places[first]
        for key in keys:
            place = place[key]
        if last == "+":
            place.append(copy.deepcopy(value))
        elif value == REMOVED:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return completed(document)


def test_a_sound_site_has_no_errors():
    """What it depends on an expression for is told: its log is never written."""
    (finding,) = check(LIBRARY)
    assert (finding.severity, finding.code, finding.where) == ("warning", "expression", "BOOK: BOOK_RESERVE")
    assert finding.message.startswith("$.log is to be ")


HELP_HOME = {"id": "HELP_HOME", "to": "HOME", "is_navigation": True, "gui_procedure": CLICK}
ORPHAN = [("file.pages.+", {"id": "HELP", "signature_schema": {}, "actions": [HELP_HOME]})]


@pytest.mark.parametrize("fault", json.loads((DATA / "site_faults.json").read_text()))
def test_a_fault_is_found_where_it_is(fault, monkeypatch):
    """One finding of the code is caused by the changes, and in the place that ends so."""
    monkeypatch.setattr("minirl.worlds.search.MAX_STATES", 1000)  # of which the sound site has 130
    severity, code, where = fault["finding"].split(" ", 2)
    findings = check(site(*fault["changes"].items()))
    matching = [f for f in findings if f.code == code and f.where.endswith(where)]
    assert [f.severity for f in matching] == [severity], findings


def test_several_faults_are_found_at_once():
    """Those of its meaning once the file is a machine."""
    bad_path = ("BOOK_RESERVE.preconditions.0.path", "selected_book_id")
    bad_effect = ("BOOK_ADD_TAG.effects.0.op", "explode")
    (malformed,) = check(site(bad_path, bad_effect, *ORPHAN))
    assert malformed.code == "malformed"
    assert "path 'selected_book_id' must look" in malformed.message and "op: Input" in malformed.message
    findings = check(site(("BOOKS_OPEN_ANY.effects.0", REMOVED), *ORPHAN))
    assert {finding.code for finding in findings} >= {"missing_id", "orphan_page"}


def test_what_a_search_that_was_stopped_did_not_reach_is_not_called_lost(monkeypatch):
    monkeypatch.setattr("minirl.worlds.search.MAX_STATES", 20)
    stopped, _ = check(LIBRARY)  # the other one is of the sound site
    assert (stopped.severity, stopped.code) == ("warning", "search_bounded")
    assert "after 20 states" in stopped.message


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


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_anything_in_place_of_anything_gives_findings(data):
    """Never an exception, whatever of the file is replaced or missing."""
    document = site()
    for _ in range(data.draw(st.integers(1, 3))):
        if not places(document):
            break
        container, key = data.draw(st.sampled_from(places(document)))
        if data.draw(st.booleans()):
            container[key] = data.draw(json_values)
        elif isinstance(container, dict):
            container.pop(key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minirl.worlds.search.MAX_STATES", 500)
        findings = check(document)
    for finding in findings:
        assert finding.severity in ("error", "warning") and finding.code and finding.message


@pytest.mark.parametrize(
    "content",
    [
        LIBRARY.read_bytes()[:1000],
        b"[]",
        b"\xff\xfe\x00",
        b'{"meta": {"initial_page_id": "A"}, "pages": {"A": {}}}',  # the paper's
        None,
    ],
)
def test_files_that_are_no_sites(content, tmp_path, capsys):
    path = tmp_path / "fsm.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["check", str(path)]) == 1
    told = capsys.readouterr().out
    assert "[malformed]" in told and "1 errors, 0 warnings" in told and "fsm.json" in told
    assert main(["solve", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_warnings_alone_are_no_failure(capsys, tmp_path):
    file = tmp_path / "site.json"
    file.write_text(json.dumps(site(*ORPHAN)))
    assert main(["check", str(file)]) == 0
    *findings, count = capsys.readouterr().out.splitlines()
    assert {finding.rpartition("[")[2] for finding in findings} == {"expression]", "orphan_page]"}
    assert count == f"{file}: 0 errors, 2 warnings"


def test_solutions_are_json(capsys):
    assert main(["solve", str(LIBRARY)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["paths"]["RESERVED"]) == 8 and answer["states"] == 130
    assert answer["unreached_pages"] == [] and answer["complete"] is True


SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours


@pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released fsm.json files")
@pytest.mark.parametrize(
    ("name", "hops", "plain"),
    [("quora", [9, 8, 5, 6, 5], [8, 7, 5, 5, 5]), ("youtube", [6, 6, 9, 6, 7], [6, 6, 9, 6, 7])],
)
def test_the_released_sites(name, hops, plain, capsys):
    for flags, expected in (([], hops), (["--plain"], plain)):
        assert main(["solve", str(Path(SAVED) / f"{name}.fsm.json"), *flags]) == 0
        paths = json.loads(capsys.readouterr().out)["paths"]
        assert [len(path) for path in paths.values()] == expected
