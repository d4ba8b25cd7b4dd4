"""Tasks on sites that bring none: each can be solved, says what it asks, and means it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shopping import holds
from walking import last_state

from minirl.benchmarks.protocols import protocol_of
from minirl.benchmarks.task_sets import make_task_sets
from minirl.config import Config, TaskConfig
from minirl.worlds.__main__ import main
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.infer_bindings import world_of
from minirl.worlds.interpreter import World
from minirl.worlds.looks import text_of
from minirl.worlds.solutions import solution_of
from minirl.worlds.walks import make_walks

MARKET = Path(__file__).parents[1] / "data/market.fsm.json"
SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours


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
        assert main(["render", str(MARKET), "--out", out, "--tasks", count]) == 0
    settings = TaskConfig(heldout=str(tmp_path))
    protocol = protocol_of("autowebworld-sites-official")
    tasks = protocol.select(make_task_sets(Config("tiny", task=settings)).heldout)
    assert sorted(task.meta["site"] for task in tasks) == ["north"] * 3 + ["south"] * 2


@pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released fsm.json files")
@pytest.mark.parametrize("name", ["quora", "youtube"])
def test_a_released_site_has_its_half_of_table_6(name):
    world, _ = world_of(name, load_fsm(Path(SAVED) / f"{name}.fsm.json"), {})
    tasks = make_walks(world)
    assert len(tasks) == 13 and {task.goal["page"] for task in tasks} == set(world.fsm.terminal_pages)
    assert all(holds(last_state(world, solution_of(task, world)), task.goal) for task in tasks)
