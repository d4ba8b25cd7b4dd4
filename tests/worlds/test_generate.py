"""Generated sites: nothing to find fault with, as large and as far as asked for, and not all alike."""

import json
import re
import tomllib
from collections import Counter

import pytest
from transformers import AutoTokenizer
from worlds_command import main

from minirl.benchmarks.task_files import load_tasks
from minirl.tiny.checkpoints import BASE
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.generate import LEVELS, THEMES, VOCABULARY, make_site
from minirl.worlds.interpreter import World
from minirl.worlds.lint import check, check_fsm
from minirl.worlds.looks import text_of
from minirl.worlds.render import load_world, save_world
from minirl.worlds.shop import CHOICES
from minirl.worlds.tasks import make_tasks
from minirl.worlds.widgets import action, control, widget_of

SITES = [(theme, level) for theme in THEMES for level in LEVELS]


@pytest.mark.parametrize("level", LEVELS)
def test_sites_have_no_findings_and_their_sessions_are_carried_everywhere(level):
    """A third of the themes each; what is done in the session stands on every page, and rows open on any
    click: nothing has to be searched for, filtered or scrolled before."""
    for seed, theme in enumerate(list(THEMES)[list(LEVELS).index(level) :: 3]):
        world = make_site(theme, seed, level)
        assert check_fsm(world.fsm) == [], world.name
        for page in world.fsm.pages.values():
            assert page.schema["done"] == world.fsm.pages["HOME"].schema["done"]
            assert all(a.effects or a.is_navigation for a in page.actions.values())
        flows = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
        lists = {of["id"] for of in world.fsm.meta["lists"]}
        for of in world.fsm.meta["lists"]:
            assert world.fsm.pages[of["page"]].actions[f"{of['page']}_OPEN"].preconditions == ()
        assert set(world.fsm.pages["HOME"].defaults["done"]) == {*flows, *lists}
        assert {"cart", "change"} <= set(flows) or level != "hard"


def test_the_first_level_speaks_as_shops_do():
    """Its words are single tokens to the shipped base model, which has learned to read them."""
    words = {word for choice in CHOICES.values() for word in choice["words"]}
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    assert all(len(tokenizer.tokenize(f" {word}")) == 1 for word in words)
    for theme in THEMES:
        world = make_site(theme, 1, "first")
        assert {record["id"] for records in world.data.values() for record in records} <= words
        buttons = [a.id for a in world.fsm.actions if a.bind is None]
        assert {world.style["labels"][id] for id in buttons} <= {"Back", "Next", "Buy"}
        assert make_tasks(world)
        for task in make_tasks(world):
            said = re.sub(r"^Order|, (size|quantity)| in(?= )|\.$", "", task.instruction).split()
            goal = dict.fromkeys(one["value"] for one in task.goal["where"])
            assert said == list(goal) and 2 <= len(said) <= 3, task.instruction


def test_titles_and_pictures_are_unique():
    """Else "the red circle" or a title could mean two things."""
    for theme, level in SITES[::3]:
        world = make_site(theme, 5, level)
        for records in (world.data[of["id"]] for of in world.fsm.meta["lists"]):
            pictures = [("shape", "colour")] * (level != "first")  # tiles are told by their titles
            for fields in (("title",), ("id",), *pictures):
                values = [tuple(record[field] for field in fields) for record in records]
                assert len(set(values)) == len(values)


def shape(world: World) -> str:
    """A site without its words: the ways in and out of each page, and what is done on it."""
    ways_in = Counter(action.target for action in world.fsm.actions if action.target != action.source)
    pages = []
    for page in world.fsm.pages.values():
        kinds = sorted(
            f"{a.name} {len(a.preconditions)} {len(a.effects)} {len(a.gui_procedure)} {a.target != page.id}"
            for a in page.actions.values()
        )
        pages.append(f"{ways_in[page.id]} {page.id in world.fsm.terminal_pages} {kinds}")
    return "\n".join(sorted(pages))


def test_forms_ask_what_fits_their_verbs():
    """A file is attached to what is sent, nothing else."""
    with_file = set()
    for n, theme in enumerate(THEMES):
        for level in ("easy", "medium", "hard"):
            for flow in make_site(theme, n, level).fsm.meta["flows"]:
                assert set(flow["asks"]) <= {"payment", *VOCABULARY["asks"].get(flow["verb"], flow["asks"])}
                with_file |= {flow["verb"]} if "file" in flow["asks"] else set()
    assert with_file == {"report", "answer", "write to", "share"}


def test_sites_differ_in_more_than_words():
    large = [site for site in SITES if site[1] != "first"]  # whose places differ, not their ways
    shapes = Counter(shape(make_site(theme, 0, level)) for theme, level in large)
    assert max(shapes.values()) <= 2 and len(shapes) >= 0.9 * len(large)
    once, again, other = (make_site("hotels", seed, "easy") for seed in (3, 3, 4))
    assert once == again and once != other
    assert {world.name for world in (once, other)} == {"hotels-easy-3", "hotels-easy-4"}


FILES = ["data.json", "fsm.json", "index.html", "style.json", "tasks.jsonl"]


def test_sites_as_folders(tmp_path, capsys):
    given = ["--themes", "bank", "--seed", "7", "--level", "easy", "--out", str(tmp_path)]
    assert main(["make", *given]) == 0
    folder = tmp_path / "bank-easy-7"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert check(folder / "fsm.json") == []
    world, made = load_world(folder), make_site("bank", 7, "easy")
    assert world.name == made.name
    assert json.dumps(world.data, default=list) == json.dumps(made.data, default=list)
    save_world(world, tmp_path / "again" / world.name)
    for name in FILES[:-1]:
        assert (tmp_path / "again" / world.name / name).read_bytes() == (folder / name).read_bytes(), name
    assert load_tasks(folder / "tasks.jsonl") == make_tasks(made) == make_tasks(world)


def test_many_sites_are_divided_and_listed(tmp_path, capsys):
    """Of every level there are some to train on, and some held out; a page shows them all."""
    count = 2 * len(LEVELS)
    assert main(["make", "--count", str(count), "--tasks", "2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{count} sites" in out and str(tmp_path / "index.html") in out
    page, levels = (tmp_path / "index.html").read_text(), []
    for split in ("train", "heldout"):
        folders = sorted((tmp_path / split).iterdir())
        levels.append({folder.name.split("-")[1] for folder in folders})
        assert all(f'href="{split}/{folder.name}/index.html"' in page for folder in folders)
    assert levels == [set(LEVELS)] * 2


def test_sites_are_made_by_their_names(tmp_path, capsys):
    listed = tomllib.loads(text_of("bench.toml"))["sites"]
    assert len(set(listed)) == 24
    names = tmp_path / "names.toml"
    names.write_text(json.dumps({"sites": [listed[0], listed[4]]}).replace('{"sites":', "sites =")[:-1])
    assert main(["make", "--sites", str(names), "--out", str(tmp_path / "made"), "--tasks", "2"]) == 0
    for name in (listed[0], listed[4]):
        tasks = load_tasks(tmp_path / "made" / name / "tasks.jsonl")
        assert [task.id for task in tasks] == [f"{name}-0", f"{name}-1"]
    names.write_text('sites = ["shop-900"]')
    assert main(["make", "--sites", str(names), "--out", str(tmp_path)]) == 2
    assert "'shop-900' names no site; write theme, level and seed" in capsys.readouterr().err


def test_what_cannot_be_made(tmp_path, capsys):
    assert main(["make", "--out", str(tmp_path), "--themes", "moon"]) == 2
    assert "there is no theme 'moon'; there are: flights, hotels" in capsys.readouterr().err
    assert main(["make", "--out", str(tmp_path), "--level", "absurd"]) == 2
    (tmp_path / "empty.toml").write_text("names = []\n")
    for none in (["--count", "0"], ["--sites", str(tmp_path / "empty.toml")]):
        assert main(["make", "--out", str(tmp_path), *none]) == 2
        assert "no site to make" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind", ["button", "checkbox", "row", "scroll", "search", "field", "slider", "choice", "date"]
)
def test_a_control_is_the_widget_that_it_was_made_for(kind):
    element = {"row": "#list .item", "slider": "#a-slider", "checkbox": "#a-checkbox"}.get(kind, "#a")
    made = action("ACT", "P", control(kind, element, "field", [1, 2]))
    page = {"id": "P", "signature_schema": {"field": "string|null"}, "actions": [made]}
    fsm = load_fsm({"meta": {"initial_page_id": "P"}, "pages": [page]})
    widget = widget_of(fsm.pages["P"].actions["ACT"], fsm)
    assert (widget.kind, f"#{widget.element}") == (kind, element.partition(" ")[0])
