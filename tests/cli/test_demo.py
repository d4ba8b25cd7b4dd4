"""The demo: what a person types, what a person sees, and a person who plays it to the end."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from minirl.agents.openwebrl import TOOLS
from minirl.benchmarks.task_sets import make_task_sets
from minirl.cli import demo
from minirl.cli.keyboard import read_line, usage
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import Call, Stop

TASK = make_task_sets(tiny()).heldout[0]


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("click 500 120.5", "click", {"point_2d": [500, 120.5], "clicks": 1, "button": "left"}),
        ("click 5 6 1 right", "click", {"point_2d": [5, 6], "clicks": 1, "button": "right"}),
        ("hover 1 2", "hover", {"point_2d": [1, 2]}),
        ("drag 1 2 3 4", "drag", {"start_point_2d": [1, 2], "end_point_2d": [3, 4], "steps": 10}),
        ("write two  words", "write", {"message": "two  words"}),
        ("press_keys Tab Enter", "press_keys", {"keys": ["Tab", "Enter"], "is_hotkey": False, "presses": 1}),
        ("scroll", "scroll", {"direction": "down", "amount": 0.5}),
        ("scroll up 0.2", "scroll", {"direction": "up", "amount": 0.2}),
        ("scroll up 0.2 5 6", "scroll", {"direction": "up", "amount": 0.2, "point_2d": [5, 6]}),
        ("wait", "wait", {"seconds": 3}),
        ("done 3 mugs", "done", {"response": "3 mugs"}),
        ("goto_url example.org", "goto_url", {"url": "example.org"}),
        ("go_back", "go_back", {}),
        ("new_tab", "new_tab", {}),
        ("switch_tab 1", "switch_tab", {"tab_index": 1}),
        ("close_tab", "close_tab", {}),
        ('{"name": "write", "arguments": {"message": "a; b"}}', "write", {"message": "a; b"}),
    ],
)
def test_what_is_typed_is_a_call(line, name, arguments):
    assert read_line(line) == [Call(name, arguments)]


def test_a_line_may_hold_several_calls():
    assert [call.name for call in read_line(" click 1 2;write a ; done x;")] == ["click", "write", "done"]
    assert read_line("") == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("clik 3 4", "there is no tool 'clik'"),
        ("go_back now", "'go_back now' is not understood"),
        ("click", "click needs the argument point_2d"),
        ("click 5", "click.point_2d must be"),
        ("click a b", "click.point_2d must be a number"),
        ("click 5 2000", "click.point_2d must lie between 0 and 1000"),
        ("write", "write needs the argument message"),
        ("switch_tab", "switch_tab needs the argument tab_index"),
        ("{not json", "not valid JSON"),
    ],
)
def test_a_mistyped_line_says_what_is_wrong(line, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_line(line)


def test_every_tool_can_be_typed_and_is_listed():
    for name in TOOLS:
        assert f"\n  {name}" in usage()
    assert "click X Y clicks button\n" in usage()


def test_calls_are_shown_without_what_is_usual():
    for line, words in [
        ("click 310 420.5", "point_2d [310.0, 420.5]"),
        ("click 310 420 2 right", 'point_2d [310.0, 420.0], clicks 2, button "right"'),
        ("wait", ""),
        ("done so be it", 'response "so be it"'),
    ]:
        (call,) = read_line(line)
        assert demo.words(call) == words


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--task", "256"], "--task must lie between 0 and 255"),
        (["--task", "-1"], "--task must lie between"),
        (["--by-hand", "--checkpoint", "x"], "--by-hand and --checkpoint"),
        (["--checkpoint", "no/such/folder/there"], "no/such/folder/there"),
    ],
)
def test_a_users_mistake_is_one_line(flags, problem, tmp_path, capsys):
    assert demo.main([*flags, "--out", str(tmp_path / "demo")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("minirl demo: ") and problem in said and said.count("\n") == 1
    assert not (tmp_path / "demo").exists()


def test_a_training_run_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "checkpoints").mkdir()
    assert demo.main(["--out", str(tmp_path)]) == 2
    assert "holds a training run; choose another folder with --out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


class Shopper(io.StringIO):
    """Someone at the keyboard who looks where to click, clicks there, and says when it is done."""

    def __init__(self, titles: list[str], capsys: pytest.CaptureFixture[str]):
        super().__init__()
        self.titles, self.capsys, self.read = titles, capsys, ""
        self.looked = False

    def readline(self, size: int | None = -1) -> str:
        said = self.capsys.readouterr().out
        self.read += said
        if not self.titles:
            return "done here you are\n"
        self.looked = not self.looked
        if self.looked:
            return "look\n"
        x, y = re.search(rf"(?m)^ +(\d+) +(\d+)  {self.titles.pop(0)}$", said).groups()
        return f"click {x} {y}\n"


def test_a_task_is_done_by_hand(tmp_path, capsys, monkeypatch):
    wanted = {one["path"].removeprefix("$."): one["value"] for one in TASK.goal["where"]}
    digit = str(["one", "two", "three", "four", "five", "six"].index(wanted["quantity"]) + 1)
    titles = [wanted["category"], wanted["product"], wanted["colour"], wanted["size"]]
    shopper = Shopper([*titles, "Continue", digit, "Place order"], capsys)
    monkeypatch.setattr("sys.stdin", shopper)
    assert demo.main(["--by-hand", "--out", str(tmp_path)]) == 0

    said = shopper.read + capsys.readouterr().out
    assert "turn 8" in said and "quit" in said
    assert re.search(r"(?m)^success +the page is in the state", said)
    (t,) = Run(tmp_path).load_trajectories("by-hand")
    assert (t.success, t.answer, len(t.turns)) == (True, "here you are", 8)
    for image in [turn.images[0] for turn in t.turns]:
        assert str(tmp_path / "screenshots" / f"{image}.png") in said
    assert t.task.instruction in (tmp_path / "report.html").read_text()


def test_mistakes_by_hand_are_shown_and_the_end_of_input_ends_it(tmp_path, capsys, monkeypatch):
    lines = "clik\nhelp\ngoto_url file:///etc/passwd; wait 0\ndrag 1 2 3 4\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert demo.main(["--by-hand", "--out", str(tmp_path), "--task", "1"]) == 0
    said = capsys.readouterr().out
    for part in (
        "there is no tool 'clik'",
        "failed: only http and https addresses can be opened",
        "wait       seconds 0.0  not executed",
        "drag       start_point_2d [1.0, 2.0], end_point_2d [3.0, 4.0]",
        "invalid    given up by hand",
    ):
        assert part in said
    assert said.count("scroll direction amount X Y") == 2  # at first, and when asked for
    (t,) = Run(tmp_path).load_trajectories("by-hand")
    assert (t.stop, t.valid, len(t.turns)) == (Stop.CANCELLED, False, 2)


def test_a_checkpoint_plays(tmp_path, capsys, tiny_folder: Path):
    """An untrained one, which says nothing that can be understood."""
    assert demo.main(["--checkpoint", str(tiny_folder), "--out", str(tmp_path / "demo")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"(?m)^(error|thinks) ", said) and "verdict" in said
    (t,) = Run(tmp_path / "demo").load_trajectories("checkpoint")
    assert t.turns and not t.success


def test_the_watcher_shows_tabs_only_if_there_are_several(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("new_tab\nclose_tab\n"))
    demo.main(["--by-hand", "--out", str(tmp_path), "--slow", "0.01"])
    turns = capsys.readouterr().out.split("turn ")
    assert [turn.count("\ntab ") for turn in turns[1:]] == [0, 2, 0]


def test_options_are_those_of_the_tiny_recipe_for_one_browser(tmp_path):
    options = demo.Options(site=3, out=tmp_path / "a", slow=2.0)
    config = demo.settings(options)
    assert (config.run_dir, config.task.seed, config.browser.browsers) == (tmp_path / "a", 3, 1)
    assert config.browser.episode_seconds > tiny().browser.episode_seconds  # pauses are not the agent's
    by_hand = demo.settings(replace(options, by_hand=True))
    assert by_hand.eval.max_steps >= 100 and by_hand.browser.episode_seconds > 3600
