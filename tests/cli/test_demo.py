"""The demo: what a person sees of one episode."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from minirl import __main__ as door
from minirl.benchmarks.task_sets import load_source
from minirl.cli import demo
from minirl.config import to_json
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.worlds import __main__ as worlds
from minirl.worlds.shop import shops_of

(TASK,) = load_source(tiny().task.heldout, 1, tiny())
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
        (["demo", *PLACE, "--task", "-1"], "--task must lie between 0 and 0, not -1"),
        (["doctor"], "usage: python -m minirl demo"),
    ],
)
def test_a_users_mistake_is_one_line(flags, problem):
    with pytest.raises(ValueError, match=problem):
        door.run(flags)


def test_help_is_no_mistake(capsys):
    door.run(["--help"])
    assert capsys.readouterr().out.startswith("usage: python -m minirl demo")


def test_the_scripted_demo_succeeds_and_leaves_a_report(capsys):
    demo.run(PLACE)
    said = capsys.readouterr().out
    pages = len(SHOP.fsm.pages) - 1  # of which each is a turn, the last one's ends with "done"
    assert f"turn {pages}" in said and f"turn {pages + 1}" not in said
    assert re.search(r"(?m)^thinks +choose .*\nclick +\{\"point_2d\": ", said)
    assert re.search(r"(?m)^verdict +success$", said)
    (t,) = Run(OUT).load_trajectories("demo")
    assert all(str(OUT / "screenshots" / f"{turn.images[0]}.png") in said for turn in t.turns)
    report = OUT / "report.html"
    assert re.search(rf"(?m)^report +{report}$", said) and '"label":"demo"' in report.read_text()


@pytest.mark.more
def test_a_site_in_a_folder_is_played_to_its_end(capsys):
    """Its task takes nine steps, more turns than any shop's."""
    flags = ["--themes", "shop", "--skins", "feed", "--level", "medium", "--seed", "3", "--out", "sites"]
    worlds.run(["make", *flags])
    demo.run(["--tasks", "sites/shop-medium-3", "--task", "2"])
    assert re.search(r"(?m)^verdict +success$", capsys.readouterr().out)


@pytest.mark.more
def test_a_checkpoint_plays(capsys, tiny_folder: Path):
    """An untrained one, which says nothing that can be understood."""
    demo.run(["--checkpoint", str(tiny_folder)])
    said = capsys.readouterr().out
    (t,) = Run(OUT).load_trajectories("demo")
    assert t.turns and not t.success and t.turns[0].feedback[0] in said and "verdict" in said


def test_options_are_those_of_the_tiny_recipe_for_one_browser():
    config = demo.settings(demo.Options())
    assert (config.run_dir, config.browser.browsers, config.model.path) == (OUT, 1, "tiny")
    trained = Path("runs/tiny/checkpoints/step_00001")
    trained.mkdir(parents=True)
    (trained / "state.json").write_text("{}")
    assert demo.settings(demo.Options()).model.path == str(trained), "the newest of runs/tiny"
    assert demo.settings(demo.Options(tasks="shops:1-1")).model.path == "tiny"


def test_a_checkpoint_acts_as_in_its_run():
    """Its prompts show two screenshots and no feedback, its episodes have nine turns."""
    run = tiny()
    agent = replace(run.agent, screenshots=2, feedback=False)
    run = replace(run, agent=agent, eval=replace(run.eval, max_steps=9))
    trained = Path("runs/mine/checkpoints/step_00001")
    trained.mkdir(parents=True)
    Path("runs/mine/config.json").write_text(json.dumps(to_json(run)))
    config = demo.settings(demo.Options(checkpoint=trained, task=1))
    assert config.agent == run.agent and config.eval.max_steps == 9
    assert (config.run_dir, config.browser.browsers, config.eval.episodes) == (OUT, 1, 2)
    assert (config.model.path, config.sampler.kind) == (str(trained), "hf")
