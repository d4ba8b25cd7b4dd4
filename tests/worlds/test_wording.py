"""Instructions in a served model's words: taken where they say the same, and left as they were elsewhere."""

import re
from pathlib import Path

import pytest
from endpoint_server import say, serve, status
from worlds_command import main

from minirl.run_folder import read_records, save_tasks
from minirl.types import Task
from minirl.worlds.generate import make_site
from minirl.worlds.tasks import make_tasks
from minirl.worlds.wording import keeps_meaning, names_of

INSTRUCTION = (
    'Order the rooms by price, lowest first and open the second one. Book it, guest "Ada", on 2026-05-03.'
)
GOOD = 'Sort the rooms, lowest price first, open the second, and book it for the guest "Ada" on 2026-05-03.'
NOTES = {"done.rooms.item": "room-4", "done.rooms.order": "price:asc"}
NOTES |= {"done.book_room.guest": "Ada", "done.book_room.date": "2026-05-03"}
WHERE = [{"path": f"$.{path}", "cond": "eq", "value": value} for path, value in NOTES.items()]
FIND = {"list": "rooms", "set": {"order": "price:asc"}, "target": {"rank": 2}, "item": "room-4"}


def reworded(tmp_path: Path, act, where=WHERE, **goal) -> Task:
    task = Task("t", INSTRUCTION, "http://a.test/", {"where": where, **goal}, {"finds": [FIND]})
    file = tmp_path / "tasks.jsonl"
    out = tmp_path / "out.jsonl"
    save_tasks(file, [task])
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    with serve([act]) as server:
        served = ["--endpoint.url", server.url, "--endpoint.model", "m", "--endpoint.price", "0", "1000"]
        assert main(["reword", str(file), "--out", str(out), *served]) == 0
        assert INSTRUCTION in server.requests[0]["messages"][0]["content"][0]["text"]
    (new,) = read_records(out, Task)
    assert (new.id, new.goal, new.meta) == (task.id, task.goal, task.meta)
    return new


@pytest.fixture(autouse=True)
def no_retries(monkeypatch):
    monkeypatch.setattr("minirl.samplers.endpoint.RETRIES", 0)


def test_a_wording_that_names_all_is_taken_and_its_cost_is_told(tmp_path, capsys):
    assert reworded(tmp_path, say(f" {GOOD}\n")).instruction == GOOD
    said = capsys.readouterr().out
    assert "1 of 1 instructions are reworded, 0 stay as they were" in said and "$0.02" in said


def test_tasks_with_goals_of_ones_own_are_reworded(tmp_path):
    assert reworded(tmp_path, say(GOOD), where="anywhere").instruction == GOOD


@pytest.mark.parametrize(
    "wording",
    [
        GOOD.replace("2026-05-03", "2026-05-30"),
        GOOD.replace("2026-05-03", "2026-05-031"),
        f"{GOOD} It costs 215 crowns.",
        GOOD.replace(", open", ",\nopen"),
        GOOD + " Please." * 20,
        "",
    ],
)
def test_a_wording_that_says_less_or_tells_the_answer_is_not(tmp_path, capsys, wording):
    assert reworded(tmp_path, say(wording), answer=["215", "215 crowns"]).instruction == INSTRUCTION
    assert "0 of 1 instructions are reworded, 1 stay as they were" in capsys.readouterr().out


@pytest.mark.parametrize("act", [status(400), say(GOOD, finish="length")])
def test_without_a_whole_answer_the_words_stay(tmp_path, capsys, act):
    assert reworded(tmp_path, act).instruction == INSTRUCTION


def test_all_that_is_drawn_into_a_template_is_a_name():
    for task in make_tasks(make_site("shop", 11, "medium")):
        assert keeps_meaning(task.instruction, task)
        for name in names_of(task):
            assert not keeps_meaning(re.sub(re.escape(name), "something", task.instruction, flags=re.I), task)
    assert names_of(Task("t", INSTRUCTION, "", {"where": WHERE}, {"finds": [FIND]})) >= {
        *("price", "lowest", "second", "book", "rooms", "guest", "ada", "2026-05-03")
    }
    assert names_of(Task("w", 'Press "Rent", then write "2" under "Days".', "", {"page": "P"})) == {
        "rent", "2", "days"
    }  # fmt: skip


def test_a_file_that_is_not_there_leaves_the_other_as_it_was(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    out.write_text("kept")
    assert main(["reword", str(tmp_path / "typo.jsonl"), "--out", str(out), "--endpoint.model", "m"]) == 2
    assert "there is no file" in capsys.readouterr().err and out.read_text() == "kept"
