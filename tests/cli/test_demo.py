"""The demo: what a person sees, and a person who plays it to the end."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from minirl import __main__ as door
from minirl.agents.openwebrl import TOOLS
from minirl.benchmarks.task_sets import make_task_sets
from minirl.cli import demo
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import Stop
from minirl.worlds.shop import shops_of
from minirl.worlds.solutions import solution_of

TASK = make_task_sets(tiny()).heldout[0]
(SHOP,) = shops_of([TASK])
OUT = Path("runs/demo")
PLACE = ["--tasks", "shops:{0}-{0}".format(SHOP.name.removeprefix("shop-"))]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been trained in runs/ is of no concern."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["demo", "--tasks", "shops:9-1"], "write the smaller number first"),
        (["demo", "--checkpoint", "no/such/folder/there"], "no/such/folder/there"),
        (["doctor"], "usage: python -m minirl demo"),
    ],
)
def test_a_users_mistake_is_one_line(flags, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        door.run(flags)
    assert not list(tmp_path.rglob("config.json"))


def test_a_training_run_is_not_overwritten():
    checkpoint = OUT / "checkpoints" / "step_00001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="runs/demo holds a training run"):
        demo.run([])
    assert [path.name for path in OUT.iterdir()] == ["checkpoints"]


def test_the_scripted_demo_succeeds_and_leaves_a_report(tmp_path, capsys):
    demo.run(PLACE)
    said = capsys.readouterr().out
    pages = len(SHOP.fsm.pages) - 1  # of which each is a turn, the last one's ends with "done"
    assert f"turn {pages}" in said and f"turn {pages + 1}" not in said
    assert re.search(r"(?m)^thinks +choose .*\nclick +\{\"point_2d\": ", said)
    assert re.search(r"(?m)^verdict +success$", said)
    report = OUT / "report.html"
    assert re.search(rf"(?m)^report +{report}$", said) and TASK.instruction in report.read_text()


class Shopper(io.StringIO):
    """Someone at the keyboard who reads where to click, clicks there, and says when it is done."""

    def __init__(self, titles: list[str], capsys: pytest.CaptureFixture[str]):
        super().__init__()
        self.titles, self.capsys, self.read = titles, capsys, ""

    def readline(self, size: int | None = -1) -> str:
        said = self.capsys.readouterr().out
        self.read += said
        if not self.titles:
            return 'done {"response": "here you are"}\n'
        x, y = re.search(rf"(?m)^ +(\d+) +(\d+)  {self.titles.pop(0)}$", said).groups()
        return f'click {{"x": {x}, "y": {y}}}\n'


def test_a_task_is_done_by_hand(tmp_path, capsys, monkeypatch):
    titles = {record["id"]: record["title"] for records in SHOP.data.values() for record in records}
    steps, clicks = solution_of(TASK, SHOP), []
    for step in steps:
        clicks += [titles[word] for word in step.params.values()] or [SHOP.style["labels"][step.action_id]]
    monkeypatch.setattr("sys.stdin", shopper := Shopper(clicks, capsys))
    demo.run(["--by-hand", *PLACE])

    said = shopper.read + capsys.readouterr().out
    assert f"turn {len(steps) + 1}" in said and re.search(r"(?m)^verdict +success$", said)
    (t,) = Run(OUT).load_trajectories("demo")
    assert (t.success, t.answer, len(t.turns)) == (True, "here you are", len(steps) + 1)
    for image in [turn.images[0] for turn in t.turns]:
        assert str(OUT / "screenshots" / f"{image}.png") in said
    assert t.task.instruction in (OUT / "report.html").read_text()


def test_mistakes_by_hand_are_shown_and_the_end_of_input_ends_it(tmp_path, capsys, monkeypatch):
    lines = ["clik", "click", "click {not json", 'click {"x": 5, "y": 2000}', 'write {"text": 3}', "new_tab"]
    lines += ['goto_url {"url": "file:///etc/passwd"}']
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    demo.run(["--by-hand", *PLACE])
    said = capsys.readouterr().out
    for part in (
        "there is no tool 'clik'",
        "point_2d: Field required",
        "not valid JSON",
        "less than or equal to 1000",
        "message: Input should be a valid string",
        "- Tab 1 (active): about:blank",
        "failed, only http and https addresses can be opened",
        "verdict    given up by hand",
    ):
        assert part in said
    for name, tool in TOOLS.items():
        assert said.count(f"\n  {name} {' '.join(tool.model_fields)}".rstrip()) == 1
    (t,) = Run(OUT).load_trajectories("demo")
    assert (t.stop, t.valid, len(t.turns)) == (Stop.CANCELLED, False, 2)


def test_a_checkpoint_plays(tmp_path, capsys, tiny_folder: Path):
    """An untrained one, which says nothing that can be understood."""
    demo.run(["--checkpoint", str(tiny_folder)])
    said = capsys.readouterr().out
    assert re.search(r"(?m)^(error|thinks) ", said) and "verdict" in said
    (t,) = Run(OUT).load_trajectories("demo")
    assert t.turns and not t.success


def test_options_are_those_of_the_tiny_recipe_for_one_browser(tmp_path):
    config = demo.settings(demo.Options())
    assert (config.run_dir, config.browser.browsers) == (OUT, 1)
    by_hand = demo.settings(demo.Options(by_hand=True))
    assert by_hand.eval.max_steps >= 100 and by_hand.browser.episode_seconds > 3600
