"""Released site files become sites: what they leave open is guessed aloud, and the site can be played."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from minirl.config import BrowserConfig
from minirl.worlds.__main__ import main
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.infer_bindings import world_of
from minirl.worlds.render import load_world
from minirl.worlds.replay import replay_sites

LIBRARY = Path(__file__).parents[1] / "data/lending_library.fsm.json"
SAVED = os.environ.get("MINIRL_FSM_FILES", "")  # a folder with the released sites, whose licence is not ours
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


@pytest.mark.skipif(not SAVED, reason="MINIRL_FSM_FILES names no folder with the released fsm.json files")
@pytest.mark.parametrize("name", ["quora", "youtube"])
async def test_the_released_sites_can_be_played_to_every_end(name):
    data = Path(SAVED) / f"{name}.data.json"
    records = json.loads(data.read_text()) if data.is_file() else {}
    world, _ = world_of(name, load_fsm(Path(SAVED) / f"{name}.fsm.json"), records)
    outcomes = await replay_sites([world], CONFIG)
    assert len(outcomes) == 5 and {outcome.reason for outcome in outcomes.values()} == {""}
