"""Each widget of generated sites: its solution in Chromium, and a fault of its own that replay catches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from walking import walk

from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.worlds import render
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World, initial_state
from minirl.worlds.looks import SKINS
from minirl.worlds.render import SiteServer
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.search import Step
from minirl.worlds.widgets import action, condition, control, effect, gui_steps, widget_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CONFIG = BrowserConfig(browsers=1, episodes=2, width=1280, height=720)
CHOICES = ["choice", "select", "radio", "tabs", "upload", "autocomplete", "drop"]
TEXTS = {"field": "some words", "textarea": "a longer text", "password": "secret"}
KINDS = [*CHOICES, *TEXTS, "date", "checkbox", "confirm", "window"]
VALUES, DAYS = ["alpha", "beta", "gamma", "delta"], ["2026-05-03", "2026-06-09"]
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
    """A page with these widgets, of which only a link to a new window leaves it."""
    actions = []
    for kind in kinds:
        offered = [TEXTS[kind]] if kind in TEXTS else DAYS if kind == "date" else VALUES
        element = f"#it-{kind}" if kind != "checkbox" else "#it-checkbox"
        used = control(kind, element, kind, offered)
        effects = [] if "bind" in used or kind == "checkbox" else [effect("set", kind, value=True)]
        to = "END" if kind == "window" else ""
        actions.append(action(kind, "START", used, to, effects=effects))
    return world_of(name, list(kinds), actions, **style)


def step(kind: str) -> Step:
    value = TEXTS.get(kind) or (DAYS[1] if kind == "date" else "gamma")
    used = site("any", kind).fsm.pages["START"].actions[kind]
    return Step(kind, {used.bind.param: value} if used.bind else {})


def shelf(paging: str, scrolls: bool = False) -> World:
    """A list of twenty things, shown by eight."""
    bind = {"param": "thing", "collection": "things"}
    actions = [action("OPEN", "START", control("row", "#list .thing", "it", bind), "END")]
    actions += [action("SCROLL", "START", control("scroll", "#list", "seen", bind))] * scrolls
    return world_of(f"list-{paging}", ["it", "seen"], actions, paging={"kind": paging, "size": 8})


async def acted_out(*paths: tuple[World, list[Step]]) -> list[Replay]:
    tasks = [walk(world, steps) for world, steps in paths]
    return list((await replay_sites([world for world, _ in paths], CONFIG, tasks)).values())


@pytest.mark.parametrize(
    "skins", [["feed"], pytest.param([skin for skin in SKINS if skin != "feed"], marks=pytest.mark.slow)]
)
async def test_every_widget_does_what_its_machine_says(skins):
    sites = [site(f"all-{skin}", *KINDS, skin=skin) for skin in skins]
    used = sites[0].fsm.pages["START"].actions
    found = {kind: widget_of(used[kind], sites[0].fsm) for kind in KINDS}
    assert [one.face or one.kind for one in found.values()] == KINDS
    for result in await acted_out(*((world, [step(kind) for kind in KINDS]) for world in sites)):
        assert result.reason == "" and {one.action_id for one in result.records} == {*KINDS}


def break_widget(used: Json, kind: str) -> None:
    """Seed a fault that belongs to this widget alone: another value, no effect, or another page."""
    if kind in CHOICES:
        used["bind"]["values"] = [*VALUES[1:], VALUES[0]]
    elif kind == "date":
        used["bind"]["values"] = [DAYS[0], "2026-06-10"]
    elif kind == "window":
        used["target"] = "START"
    else:
        used["effects"][0]["path"] = ["another"]


@pytest.mark.parametrize("kinds", [["drop", "confirm"], pytest.param(KINDS, marks=pytest.mark.slow)])
async def test_every_widgets_fault_is_caught(kinds, monkeypatch):
    broken = {kind: site(f"broken-{kind}", kind) for kind in kinds}
    descriptions = {}
    for kind, world in broken.items():
        descriptions[world.name] = json.loads(json.dumps(render.describe(world), default=list))
        break_widget(descriptions[world.name]["pages"]["START"]["actions"][0], kind)
    monkeypatch.setattr(render, "describe", lambda world: descriptions[world.name])
    results = await acted_out(*((world, [step(kind)]) for kind, world in broken.items()))
    assert [kind for kind, result in zip(broken, results, strict=True) if not result.reason] == []


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "paging", ["pages", "endless", *(pytest.param(p, marks=SLOW) for p in ("all", "more"))]
)
async def test_a_row_of_a_long_list_is_reached(paging, monkeypatch):
    world = shelf(paging)
    step = Step("OPEN", {"thing": "thing-17"})
    assert (
        len(gui_steps(world, initial_state(world.fsm), step))
        == {"all": 1, "pages": 2, "more": 3, "endless": 2}[paging]
    )
    (result,) = await acted_out((world, [step]))
    assert result.reason == ""
    if paging == "pages":  # as a control: without turning pages there is no such row
        monkeypatch.setattr("minirl.worlds.widgets._turns", lambda *given: [])
        (result,) = await acted_out((world, [step]))
        assert "no element" in result.reason


async def test_what_scrolls_is_never_shown_in_parts():
    world = shelf("pages", scrolls=True)
    steps = [Step("SCROLL", {"thing": "thing-9"}), Step("OPEN", {"thing": "thing-9"})]
    (result,) = await acted_out((world, steps))
    assert result.reason == ""


async def test_a_button_that_is_pressed_too_early_says_what_is_missing():
    used = action("TYPE", "START", control("field", "#it", "it", ["words"]))
    goes = action("GO", "START", control("button", "#go"), "END", [condition("it", "length_gt", 0)])
    begin = action("BEGIN", "END", control("button", "#begin"), "START")
    world = world_of("complains", ["it"], [used, goes], [begin], complains=True)
    with SiteServer([world]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool, pool.session() as session:
            await session.start("http://complains.test/")
            page = session.page
            await page.click("#begin")
            await page.click("#go")
            assert await page.locator(".error").inner_text() == "This is still missing."
            assert (await render.read_state(page)).page == "START"
            await page.fill("#it", "words")
            assert await page.locator(".error").count() == 0
            await page.click("#go")
            assert (await render.read_state(page)).page == "END"
