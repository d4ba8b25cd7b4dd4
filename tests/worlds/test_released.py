"""Released site files become sites: what they leave open is filled in, and the site can be played."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from shopping import holds
from worlds_command import main

from minirl.benchmarks.protocols import protocol_of
from minirl.benchmarks.task_sets import make_task_sets
from minirl.config import BrowserConfig, Config, TaskConfig
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import State, World, apply, parameter_values
from minirl.worlds.looks import text_of
from minirl.worlds.released import make_walks, world_of
from minirl.worlds.render import load_world
from minirl.worlds.replay import replay_sites
from minirl.worlds.search import Step
from minirl.worlds.solutions import solution_of, state_after
from minirl.worlds.widgets import widget_of

DATA = Path(__file__).parents[1] / "data"
LIBRARY = DATA / "lending_library.fsm.json"
MARKET = json.loads((DATA / "market.fsm.json").read_text())
SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours
released = pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released sites")
CONFIG = BrowserConfig(browsers=1, episodes=4, width=1280, height=720)


def market(document: dict[str, Any] = MARKET) -> World:
    """A site in the released form with what released sites do: classes as selectors, one within another, an
    expression that names a parameter, a scrolled list that no row belongs to."""
    return world_of("market", load_fsm(document), json.loads((DATA / "market.data.json").read_text()))


def test_given_records_are_used_and_named_after_what_they_hold():
    records = {"books": [{"id": "b1", "name": "Walden"}, {"id": "b2", "content": "Emma", "shape": "<svg>"}]}
    world = world_of("library", load_fsm(LIBRARY), records)
    assert [record["title"] for record in world.data["books"]] == ["Walden", "Emma"]
    own = {"id": "b3", "name": "Ulysses", "date": "1922", "place": "Paris", "by": "Joyce", "text": "Stately."}
    (shown,) = world_of("library", load_fsm(LIBRARY), {"books": [own]}).data["books"]
    assert own.items() <= shown.items(), "nothing is invented that was given"
    assert "<svg>" not in {record["shape"] for record in world.data["books"]}
    invented = world_of("library", load_fsm(LIBRARY), {}).data["books"]
    assert [one["title"] for one in invented[:2]] == ["Book 1", "Book 2"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "data.json: Input should be a valid dictionary"),
        ('{"books": 3}', "books: Input should be a valid tuple"),
        ('{"books": [3]}', "books: 0: Input should be a valid dictionary"),
        ('{"books": [{"name": "Emma"}]}', "ids must differ"),
        ('{"books": ', "not a readable JSON file"),
    ],
)
def test_records_that_are_none(text, reason, tmp_path, capsys):
    (tmp_path / "data.json").write_text(text)
    flags = ["--out", str(tmp_path / "site"), "--data", str(tmp_path / "data.json")]
    assert main(["render", str(LIBRARY), *flags]) == 2
    assert reason in capsys.readouterr().err


async def test_a_file_in_the_released_form_can_be_played_to_every_end(tmp_path, capsys):
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "library")]) == 0
    library = load_world(tmp_path / "library")
    sites = [library, market()]
    tasks = [*make_walks(library, 1), *make_walks(sites[1], 2)]
    ends = [(task.meta["world"], task.goal["page"]) for task in tasks]
    assert ends == [("library", "RESERVED"), ("market", "ORDERED"), ("market", "ASKED")]
    for outcome in await replay_sites(sites, CONFIG, tasks):
        assert outcome.reason == ""
        operations = [record.operation for record in outcome.records]
        typed = [operation.text for operation in operations if operation.op == "type_text"]
        assert typed and "None" not in typed


def test_what_a_file_leaves_open_is_filled_in():
    world = market()
    actions = {action.id: action for action in world.fsm.actions}
    assert actions["NEWS_SCROLL"].bind.collection == "notices", "by a field of its page"
    assert actions["STALLS_OPEN_FILTERED"].bind.collection == "stalls", "by its parameter"
    assert actions["STALL_TYPE_DAYS"].bind.values == ("1", "2", "3")
    for id in ("STALL_TYPE_REMARK", "STALL_TYPE_DAYS"):  # an expression, and "typed" in its place
        assert actions[id].effects[0].ref == "input_text"
    ids = ("STALLS_SEARCH", "STALL_RENT", "HOME_GO_NEWS", "STALLS_BACK")
    assert [world.style["labels"][id] for id in ids] == ["Search", "Rent", "News", "Back"]


@pytest.mark.parametrize(
    ("steps", "ids"),
    [
        ([], "st-1 st-2 st-3 st-4 st-5"),
        ([Step("STALLS_FILTER_CHECKBOX"), Step("STALLS_SORT")], "st-1 st-2 st-3 st-4 st-5"),
        ([Step("STALLS_SEARCH", {"stall_id": "st-4"})], "st-4"),
    ],
)
def test_a_list_holds_what_was_searched_for(steps, ids):
    """Boxes and orders only note that they were used, as the file says."""
    world = market()
    state = State("STALLS", world.fsm.pages["STALLS"].defaults)
    for step in steps:
        state = apply(world.fsm, state, step.action_id, step.params)
    for opens in ("STALLS_OPEN_FILTERED", "STALLS_OPEN_MATCHED"):
        assert " ".join(params["stall_id"] for params in parameter_values(world, state, opens)) == ids


def test_the_folders_name_decides_nothing_but_the_sites(tmp_path, capsys):
    one, two = (world_of(name, load_fsm(LIBRARY), {}) for name in ("library", "another"))
    assert one.style == two.style and one.data == two.data
    assert [t.instruction for t in make_walks(one)] == [t.instruction for t in make_walks(two)]
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "My_library 2")]) == 0
    assert load_world(tmp_path / "My_library 2").name == "my-library-2"
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "__")]) == 2
    assert "a site's name is its folder's: use letters or digits" in capsys.readouterr().err


@released
@pytest.mark.parametrize("name", ["quora", "youtube"])
async def test_the_released_sites_have_tasks_that_can_be_played_to_every_end(name):
    """A site has half of table 6."""
    data = Path(SAVED) / f"{name}.data.json"
    records = json.loads(data.read_text()) if data.is_file() else {}
    world = world_of(name, load_fsm(Path(SAVED) / f"{name}.fsm.json"), records)
    tasks = make_walks(world)
    assert len(tasks) == 13 and {task.goal["page"] for task in tasks} == set(world.fsm.terminal_pages)
    outcomes = await replay_sites([world], CONFIG, tasks)
    assert {outcome.reason for outcome in outcomes} == {""}
    assert "None" not in {one.operation.text for outcome in outcomes for one in outcome.records}


def test_a_walk_says_all_that_its_goal_asks():
    """Worked out by hand: one terminal page, 5 books, 3 numbers of copies and 3 notes."""
    document = json.loads(text_of("author/example.json"))
    shelf = world_of("shelf", load_fsm(document), document["data"])
    tasks = make_walks(shelf, 40)
    assert len(tasks) == 40 == len({task.instruction for task in tasks}), "of 45"
    for task in tasks:
        book, copies, note = (condition["value"] for condition in task.goal["where"])
        title = next(one["title"] for one in shelf.data["books"] if one["id"] == book)
        assert task.instruction == (
            f'Choose "Books" in the menu, then open "{title}", '
            f'then choose {copies} for "Copies", '
            f'then write "{note}" under "Note", then press "Reserve".'
        )
        assert task.goal["page"] == "RESERVED"
        assert [c["path"] for c in task.goal["where"]] == ["$.selected_book_id", "$.copies", "$.note"]
        assert holds(state_after(shelf, solution_of(task, shelf)), task.goal)
    assert make_walks(shelf, 5) == tasks[:5] and make_walks(shelf, 0) == []


def test_a_rendered_site_has_tasks_to_evaluate(tmp_path):
    for name, count in (("north", "3"), ("south", "2")):
        out = str(tmp_path / name)
        assert main(["render", str(DATA / "market.fsm.json"), "--out", out, "--tasks", count]) == 0
    settings = TaskConfig(heldout=str(tmp_path))
    protocol = protocol_of("autowebworld-sites-official")
    tasks = protocol.select(make_task_sets(Config("tiny", task=settings)).heldout)
    assert sorted(task.meta["site"] for task in tasks) == ["north"] * 3 + ["south"] * 2


def test_an_end_that_nothing_leads_to_is_told_and_leaves_the_others_their_tasks(capsys):
    orphan = {"id": "LOST", "signature_schema": {}, "actions": []}
    meta = {**MARKET["meta"], "terminal_pages": ["LOST", *MARKET["meta"]["terminal_pages"]]}
    tasks = make_walks(market({"meta": meta, "pages": [*MARKET["pages"], orphan]}), 4)
    assert {task.goal["page"] for task in tasks} == {"ORDERED", "ASKED"}
    assert "market: no way to LOST was found, so no task leads there" in capsys.readouterr().out


def test_a_list_of_its_own_bind_is_left_as_it_is():
    document = json.loads(text_of("author/example.json"))
    world = world_of("shelf", load_fsm(document), document["data"])
    state = State("BOOKS", world.fsm.pages["BOOKS"].defaults)
    state = apply(world.fsm, state, "BOOKS_FILTER_SIGNED", {})
    ids = [params["book_id"] for params in parameter_values(world, state, "BOOKS_OPEN")]
    assert ids == ["book-1", "book-3", "book-5"]


def test_a_banner_that_is_hidden_and_noted_gates_its_page_by_the_note():
    document = json.loads(LIBRARY.read_text())
    home = document["pages"][0]
    home["signature_schema"]["banner_visible"] = "boolean"
    (accept,) = [action for action in home["actions"] if action["id"] == "COOKIE"]
    accept["effects"].insert(0, {"op": "set", "path": "$.banner_visible", "value": False})
    world = world_of("library", load_fsm(document), {})
    added = world.fsm.pages["HOME"].actions["GO_BOOKS_HOVER"].preconditions[-1]
    assert (added.path, added.cond, added.value) == (("cookie_accepted",), "eq", True)
    assert make_walks(world, 1)


@pytest.mark.parametrize(
    ("kind", "parameters", "name", "values"),
    [
        ("slider", {"price": "{NUMBER_ANY}"}, "price", tuple(range(1, 11))),
        ("slider", {}, "slider", tuple(range(1, 11))),
        ("date", {"day": "{DATE_ANY}"}, "day", ("2026-01-01",)),
        ("date", {"month": 5, "day": 3}, "date", ("2026-05-03",)),
    ],
)
def test_what_is_pulled_or_picked_has_values(kind, parameters, name, values):
    """Also where the file leaves the parameter open."""
    document = json.loads(LIBRARY.read_text())
    how = [{"op": "click", "selector": f"#{kind}"}, {"op": "drag", "selector": f"#{kind}"}]
    if kind == "date":
        how = [{"op": "click", "selector": f"#when .{part}"} for part in ("opener", "month", "day")]
    effects = [{"op": "set", "path": "$.cookie_accepted", "value": True}]
    action = {"id": "PICK", "from": "HOME", "to": "HOME", "parameters": parameters, "effects": effects}
    document["pages"][0]["actions"].append(action | {"gui_procedure": how})
    world = world_of("library", load_fsm(document), {})
    pick = world.fsm.pages["HOME"].actions["PICK"]
    assert widget_of(pick, world.fsm).kind == kind
    assert pick.open_parameters == (name,) and (pick.bind.param, pick.bind.values) == (name, values)
