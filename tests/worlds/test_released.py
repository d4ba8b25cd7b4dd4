"""Released site files become sites: what they leave open is guessed aloud, and the site can be played."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shopping import holds
from walking import last_state

from minirl.benchmarks.protocols import protocol_of
from minirl.benchmarks.task_sets import make_task_sets
from minirl.config import BrowserConfig, Config, TaskConfig
from minirl.worlds.__main__ import main
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import State, World, apply, parameter_values
from minirl.worlds.looks import text_of
from minirl.worlds.released import make_walks, world_of
from minirl.worlds.render import load_world
from minirl.worlds.replay import replay_sites
from minirl.worlds.search import Step
from minirl.worlds.solutions import solution_of

DATA = Path(__file__).parents[1] / "data"
LIBRARY = DATA / "lending_library.fsm.json"
SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours
released = pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released sites")
CONFIG = BrowserConfig(browsers=1, episodes=4, width=1280, height=720)


def test_every_guess_is_told(capsys, tmp_path):
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "Library")]) == 0
    said = capsys.readouterr().out
    world, guesses = world_of("library", load_fsm(LIBRARY), {})
    assert guesses and all(f"guessed: {guess}" in said for guess in guesses)
    bound = {a.id for a in world.fsm.actions if a.bind} - {a.id for a in load_fsm(LIBRARY).actions if a.bind}
    assert all(any(id in guess for guess in guesses) for id in bound)
    assert world.data == load_world(tmp_path / "Library").data


def test_given_records_are_used_and_named_after_what_they_hold():
    records = {"books": [{"id": "b1", "name": "Walden"}, {"id": "b2", "content": "Emma", "shape": "<svg>"}]}
    world, guesses = world_of("library", load_fsm(LIBRARY), records)
    assert [record["title"] for record in world.data["books"]] == ["Walden", "Emma"]
    assert "<svg>" not in {record["shape"] for record in world.data["books"]}
    assert not any("books: there are no data" in guess for guess in guesses)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "data.json: must be an object"),
        ('{"books": 3}', "must be a list of records"),
        ('{"books": [3]}', "must be a list of records"),
        ('{"books": [{"name": "Emma"}]}', "each with an id"),
        ('{"books": ', "not a readable JSON file"),
    ],
)
def test_records_that_are_none(text, said, tmp_path, capsys):
    (tmp_path / "data.json").write_text(text)
    flags = ["--out", str(tmp_path / "site"), "--data", str(tmp_path / "data.json")]
    assert main(["render", str(LIBRARY), *flags]) == 2
    assert said in capsys.readouterr().err


async def test_a_file_in_the_released_form_can_be_played_to_every_end(tmp_path):
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "library")]) == 0
    world = load_world(tmp_path / "library")
    outcomes = await replay_sites([world], CONFIG)
    assert {terminal for _, terminal in outcomes} == set(world.fsm.terminal_pages)
    assert {outcome.reason for outcome in outcomes.values()} == {""}


def market() -> tuple[World, list[str]]:
    """A site in the released form with what released sites do: classes as selectors, one within another, an
    expression that names a parameter, a scrolled list that no row belongs to."""
    records = json.loads((DATA / "market.data.json").read_text())
    return world_of("market", load_fsm(DATA / "market.fsm.json"), records)


async def test_classes_references_and_lists_that_are_only_scrolled():
    world, guesses = market()
    outcomes = await replay_sites([world], CONFIG)
    assert {name: outcome.reason for (_, name), outcome in outcomes.items()} == {"ORDERED": "", "ASKED": ""}
    operations = [one.operation for outcome in outcomes.values() for one in outcome.records]
    typed = [one.text for one in operations if one.op == "type_text"]
    assert typed and "None" not in typed
    said = "\n".join(guesses)
    assert "NEWS_SCROLL: item_id is one of notices" in said
    assert "STALL_TYPE_REMARK: input_text is one of First draft, " in said
    for typed in ("STALL_TYPE_REMARK: set $.remark input_text", "STALL_TYPE_DAYS: set $.days input_text"):
        assert typed in said
    ways = {
        page: world.style["labels"][page]
        for page in ("STALLS_SEARCH", "STALL_RENT", "HOME_GO_NEWS", "STALLS_BACK")
    }
    assert list(ways.values()) == ["Search stalls", "Rent", "News", "Back"]


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ([], "st-1 st-2 st-3 st-4 st-5"),
        ([Step("STALLS_FILTER_CHECKBOX")], "st-1 st-3 st-5"),
        ([Step("STALLS_FILTER_CHECKBOX"), Step("STALLS_FILTER_CHECKBOX")], "st-1 st-2 st-3 st-4 st-5"),
        ([Step("STALLS_FILTER_SLIDER", {"number": 55})], "st-1 st-4 st-5"),
        ([Step("STALLS_SORT")], "st-2 st-3 st-5 st-1 st-4"),
        ([Step("STALLS_SEARCH", {"stall_id": "st-4"})], "st-4"),
    ],
)
def test_searches_filters_and_orders_change_the_list(steps, shown):
    """Worked out by hand on five records."""
    world, _ = market()
    state = State("STALLS", world.fsm.pages["STALLS"].defaults)
    for step in steps:
        state = apply(world.fsm, state, step.action_id, step.params)
    for opens in ("STALLS_OPEN_FILTERED", "STALLS_OPEN_MATCHED"):
        assert " ".join(params["stall_id"] for params in parameter_values(world, state, opens)) == shown


def test_a_filter_for_the_opposite_of_a_field():
    document = json.loads((DATA / "market.fsm.json").read_text())
    box = next(
        one for page in document["pages"] for one in page["actions"] if one["id"] == "STALLS_FILTER_CHECKBOX"
    )
    box["gui_procedure"][0]["selector"] = "#filter-uncovered-checkbox"
    world, _ = world_of("market", load_fsm(document), json.loads((DATA / "market.data.json").read_text()))
    state = apply(
        world.fsm, State("STALLS", world.fsm.pages["STALLS"].defaults), "STALLS_FILTER_CHECKBOX", {}
    )
    shown = parameter_values(world, state, "STALLS_OPEN_FILTERED")
    assert [params["stall_id"] for params in shown] == ["st-2", "st-4"]


def test_a_folder_of_any_name_is_a_site(tmp_path, capsys):
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "My_library 2")]) == 0
    assert load_world(tmp_path / "My_library 2").name == "my-library-2"
    assert main(["render", str(LIBRARY), "--out", str(tmp_path / "__")]) == 2
    assert "a site's name is its folder's: use letters or digits" in capsys.readouterr().err


@released
@pytest.mark.parametrize("name", ["quora", "youtube"])
async def test_the_released_sites_can_be_played_to_every_end(name):
    data = Path(SAVED) / f"{name}.data.json"
    records = json.loads(data.read_text()) if data.is_file() else {}
    world, _ = world_of(name, load_fsm(Path(SAVED) / f"{name}.fsm.json"), records)
    outcomes = await replay_sites([world], CONFIG)
    assert len(outcomes) == 5 and {outcome.reason for outcome in outcomes.values()} == {""}
    assert "None" not in {one.operation.text for outcome in outcomes.values() for one in outcome.records}


def shelf() -> World:
    document = json.loads(text_of("author/example.json"))
    return world_of("shelf", load_fsm(document), document["data"])[0]


def test_a_walk_says_all_that_its_goal_asks():
    """Worked out by hand: one terminal page, 5 books, 3 numbers of copies and 3 notes."""
    tasks = make_walks(shelf(), 40)
    assert len(tasks) == 40 == len({task.instruction for task in tasks}), "of 45"
    for task in tasks:
        book, copies, note = (condition["value"] for condition in task.goal["where"])
        title = next(one["title"] for one in shelf().data["books"] if one["id"] == book)
        assert task.instruction == (
            f'Choose "Books" in the menu, then open "{title}", '
            f'then choose {copies} for "Book choose copies", '
            f'then write "{note}" under "Note", then press "Reserve".'
        )
        assert task.goal["page"] == "RESERVED" and task.meta["steps"] == 9
        assert [c["path"] for c in task.goal["where"]] == ["$.selected_book_id", "$.copies", "$.note"]
        assert holds(last_state(shelf(), solution_of(task, shelf())), task.goal)
    assert make_walks(shelf(), 5) == tasks[:5] and make_walks(shelf(), 0) == []


def test_a_rendered_site_has_tasks_to_evaluate(tmp_path):
    for name, count in (("north", "3"), ("south", "2")):
        out = str(tmp_path / name)
        assert main(["render", str(DATA / "market.fsm.json"), "--out", out, "--tasks", count]) == 0
    settings = TaskConfig(heldout=str(tmp_path))
    protocol = protocol_of("autowebworld-sites-official")
    tasks = protocol.select(make_task_sets(Config("tiny", task=settings)).heldout)
    assert sorted(task.meta["site"] for task in tasks) == ["north"] * 3 + ["south"] * 2


@released
@pytest.mark.parametrize("name", ["quora", "youtube"])
def test_a_released_site_has_its_half_of_table_6(name):
    world, _ = world_of(name, load_fsm(Path(SAVED) / f"{name}.fsm.json"), {})
    tasks = make_walks(world)
    assert len(tasks) == 13 and {task.goal["page"] for task in tasks} == set(world.fsm.terminal_pages)
    assert all(holds(last_state(world, solution_of(task, world)), task.goal) for task in tasks)


def test_an_end_that_nothing_leads_to_is_told_and_leaves_the_others_their_tasks(capsys):
    document = json.loads((DATA / "market.fsm.json").read_text())
    orphan = {"id": "LOST", "signature_schema": {}, "actions": []}
    document["pages"].append(orphan)
    document["meta"]["terminal_pages"].insert(0, "LOST")
    tasks = make_walks(world_of("market", load_fsm(document), {})[0], 4)
    assert {task.goal["page"] for task in tasks} == {"ORDERED", "ASKED"}
    assert "market: no way to LOST was found, so no task leads there" in capsys.readouterr().out


def test_the_folders_name_decides_nothing():
    (one, _), (two, _) = (world_of(name, load_fsm(LIBRARY), {}) for name in ("library", "another"))
    assert one.style == two.style and one.data == two.data
    assert [t.instruction for t in make_walks(one)] == [t.instruction for t in make_walks(two)]
