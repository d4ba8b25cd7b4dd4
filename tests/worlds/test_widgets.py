"""Each widget of generated sites: its solution in Chromium, and a fault of its own that replay catches."""

import json
from dataclasses import replace
from typing import Any

import pytest
from walking import visit, walk

from minirl.config import BrowserConfig
from minirl.worlds import render
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World, initial_state
from minirl.worlds.looks import SKINS
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.search import Step
from minirl.worlds.widgets import action, control, effect, gui_steps, widget_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CONFIG = BrowserConfig(browsers=1, episodes=2, width=1280, height=720)
CHOICES = ["choice", "select", "radio", "tabs", "upload", "autocomplete", "drop"]
KINDS = [*CHOICES, "field", "date", "checkbox"]
VALUES, DAYS, WORDS = ["alpha", "beta", "gamma", "delta"], ["2026-05-03", "2026-06-09"], "some words"
THINGS = tuple(
    {"id": f"thing-{n}", "title": f"Thing {n}", "shape": "ring", "fill": "#4a7fc1"} for n in range(20)
)


def world_of(name: str, fields: list[str], actions: list[Json], before: Any = (), **style: Any) -> World:
    """Two pages of the same fields; START has the actions, and is the first unless END has some `before`."""
    schema = dict.fromkeys(fields, "any|null")
    pages = [{"id": "START", "signature_schema": schema, "actions": actions}]
    pages.append({"id": "END", "signature_schema": schema, "actions": [*before]})
    meta = {"initial_page_id": "END" if before else "START", "terminal_pages": ["END"]}
    fsm = load_fsm({"meta": meta, "pages": pages})
    return World(name, fsm, {"things": THINGS}, {"look": "pages", "facts": {"things": {}}, **style})


def site(name: str, *kinds: str, **style: Any) -> World:
    """A page with these widgets."""
    actions = []
    for kind in kinds:
        offered = {"field": [WORDS], "date": DAYS}.get(kind, VALUES)
        used = control(kind, f"#it-{kind}", kind, offered)
        actions.append(action(kind, "START", used))
    return world_of(name, list(kinds), actions, **style)


def step(kind: str) -> Step:
    value = {"field": WORDS, "date": DAYS[1]}.get(kind, "gamma")
    used = site("any", kind).fsm.pages["START"].actions[kind]
    return Step(kind, {used.bind.param: value} if used.bind else {})


def shelf(page_size: int, scrolls: bool = False) -> World:
    """A list of twenty things, of which so many are shown at a time."""
    bind = {"param": "thing", "collection": "things"}
    actions = [action("OPEN", "START", control("row", "#list .thing", "it", bind), "END")]
    actions += [action("SCROLL", "START", control("scroll", "#list", "seen", bind))] * scrolls
    return world_of(f"list-{page_size}", ["it", "seen"], actions, page_size=page_size)


async def acted_out(*paths: tuple[World, list[Step]]) -> list[Replay]:
    tasks = [walk(world, steps) for world, steps in paths]
    return await replay_sites([world for world, _ in paths], CONFIG, tasks)


@pytest.mark.parametrize(
    "skins", [["feed"], pytest.param([skin for skin in SKINS if skin != "feed"], marks=pytest.mark.slow)]
)
async def test_every_widget_does_what_its_machine_says(skins):
    sites = [site(f"all-{skin}", *KINDS, skin=skin) for skin in skins]
    used = sites[0].fsm.pages["START"].actions
    found = {kind: widget_of(used[kind], sites[0].fsm) for kind in KINDS}
    assert [one.kind for one in found.values()] == KINDS
    for result in await acted_out(*((world, [step(kind) for kind in KINDS]) for world in sites)):
        assert result.reason == "" and {one.action_id for one in result.records} == {*KINDS}


def break_widget(used: Json, kind: str) -> None:
    """Seed a fault that belongs to this widget alone: another value, or no effect."""
    if kind in CHOICES:
        used["bind"]["values"] = [*VALUES[1:], VALUES[0]]
    elif kind == "date":
        used["bind"]["values"] = [DAYS[0], "2026-06-10"]
    else:
        used["effects"][0]["path"] = ["another"]


@pytest.mark.parametrize("kinds", [["drop"], pytest.param(KINDS, marks=pytest.mark.slow)])
async def test_every_widgets_fault_is_caught(kinds, monkeypatch):
    broken = {kind: site(f"broken-{kind}", kind) for kind in kinds}
    descriptions = {}
    for kind, world in broken.items():
        descriptions[world.name] = json.loads(json.dumps(render.describe(world), default=list))
        break_widget(descriptions[world.name]["pages"]["START"]["actions"][0], kind)
    monkeypatch.setattr(render, "describe", lambda world: descriptions[world.name])
    results = await acted_out(*((world, [step(kind)]) for kind, world in broken.items()))
    assert [kind for kind, result in zip(broken, results, strict=True) if not result.reason] == []


@pytest.mark.parametrize(
    "page_size", [pytest.param(8, marks=pytest.mark.more), pytest.param(0, marks=pytest.mark.slow)]
)
async def test_a_row_of_a_long_list_is_reached(page_size, monkeypatch):
    world = shelf(page_size)
    step = Step("OPEN", {"thing": "thing-17"})
    assert len(gui_steps(world, initial_state(world.fsm), step)) == (2 if page_size else 1)
    (result,) = await acted_out((world, [step]))
    assert result.reason == ""
    if page_size:  # as a control: without turning pages there is no such row
        monkeypatch.setattr("minirl.worlds.widgets._turns", lambda *given: [])
        (result,) = await acted_out((world, [step]))
        assert "no element" in result.reason


async def test_any_in_a_list_shows_what_is_kept():
    """A choice can be changed and not taken back."""
    async with visit(site("any", "select")) as page:
        for value in ("3", "0"):
            await page.select_option("select", value)
            assert await page.input_value("select") == "3"
        assert (await render.read_state(page)).signature["select"] == "gamma"


TITLES = ("Dune Messiah", "Dune", "Emma")
BOOKS = tuple(
    {"id": f"book-{n}", "title": title, "shape": "ring", "fill": "#4a7fc1"} for n, title in enumerate(TITLES)
)


def on_each_book(name: str, actions: list[Json], *before: Step, last: str) -> list[tuple[World, list[Step]]]:
    """Of each book a site, and on it these steps and then the last action on the book."""
    paths = []
    for book in BOOKS:
        world = world_of(f"{name}-{book['id']}", ["it", "order"], actions, page_size=2)
        world = replace(world, data={"things": BOOKS})
        paths.append((world, [*before, Step(last, {"book": book["id"]})]))
    return paths


@pytest.mark.more
async def test_a_list_is_searched_ordered_by_its_texts_and_scrolled():
    """A search finds the title that was typed before one that holds it. Of a list in order two rows are shown
    at a time: the one of each book is where the interpreter says. What scrolls is never shown in parts."""
    bind = {"param": "book", "collection": "things"}
    searches = action("SEARCH", "START", control("search", "#q", "it", bind))
    paths = on_each_book("search", [searches], last="SEARCH")
    opens = action("OPEN", "START", control("row", "#list .book", "it", bind | {"order": "$.order"}), "END")
    for direction in ("asc", "desc"):
        sort = control("button", "#sort") | {"effects": [effect("set", "order", value=f"title:{direction}")]}
        actions = [action("SORT", "START", sort), opens]
        paths += on_each_book(f"sort-{direction}", actions, Step("SORT", {}), last="OPEN")
    words = {"parameters": {}, "bind": None, "effects": [effect("set", "it", value="asked")]}
    paths.append((world_of("ask", ["it"], [searches | words]), [Step("SEARCH", {})]))  # of no record
    ninth = {"thing": "thing-9"}
    paths.append((shelf(8, scrolls=True), [Step("SCROLL", ninth), Step("OPEN", ninth)]))
    assert [result.reason for result in await acted_out(*paths)] == [""] * 11
