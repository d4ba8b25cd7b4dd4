"""Each widget of generated sites: its solution in Chromium, and a fault of its own that replay catches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.worlds import render
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World, initial_state
from minirl.worlds.looks import SKINS
from minirl.worlds.render import SiteServer
from minirl.worlds.replay import Replay, replay
from minirl.worlds.search import Step
from minirl.worlds.widgets import action, condition, control, effect, gui_steps, widget_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CONFIG = BrowserConfig(browsers=1, episodes=2, width=1280, height=720)
VALUES = ["alpha", "beta", "gamma", "delta"]
CHOICES = ["choice", "select", "radio", "tabs", "upload", "autocomplete", "drop"]
OTHERS = ["field", "textarea", "password", "date", "checkbox", "confirm", "window", "toast"]
THINGS = tuple(
    {"id": f"thing-{n}", "title": f"Thing {n}", "shape": "ring", "fill": "#4a7fc1"} for n in range(20)
)


def site(kind: str, **style: Any) -> World:
    """A page with one widget, and a way to the end that waits for it."""
    offered = {"field": ["some words"], "textarea": ["a longer text"], "password": ["secret"]}
    offered["date"] = ["2026-05-03", "2026-06-09"]
    element = {"checkbox": "#it-checkbox"}.get(kind, "#it")
    made, gate, target = (
        control(kind, element, "it", offered.get(kind, VALUES)),
        condition("it", "length_gt", 0),
        "",
    )
    effects, gates = [], []
    if kind == "checkbox":
        gate = condition("it", "eq", True)
    if kind in ("confirm", "window"):
        gate, target, effects = condition("it", "eq", True), "END", [effect("set", "it", value=True)]
    if kind == "toast":
        gate, gates, effects = (
            condition("it", "eq", True),
            [condition("it", "eq", None)],
            [effect("set", "it", value=True)],
        )
    schema = {"it": "any|null"}
    actions = [action("USE", "START", made, target, gates, effects)]
    actions.append(action("GO", "START", control("button", "#go"), "END", [gate]))
    pages = [{"id": "START", "signature_schema": schema, "actions": actions}]
    pages.append({"id": "END", "signature_schema": schema, "actions": []})
    fsm = load_fsm({"meta": {"initial_page_id": "START", "terminal_pages": ["END"]}, "pages": pages})
    return World(f"widget-{kind}", fsm, {}, {"look": "pages", **style})


def shelf(paging: str, scrolls: bool = False) -> World:
    """A list of twenty things, shown by eight."""
    bind = {"param": "thing", "collection": "things"}
    actions = [action("OPEN", "START", control("row", "#list .thing", "it", bind), "END")]
    if scrolls:
        actions.append(action("SCROLL", "START", control("scroll", "#list", "seen", bind)))
    schema = {"it": "string|null", "seen": "string|null"}
    pages = [
        {"id": id, "signature_schema": schema, "actions": given}
        for id, given in (("START", actions), ("END", []))
    ]
    fsm = load_fsm({"meta": {"initial_page_id": "START", "terminal_pages": ["END"]}, "pages": pages})
    style = {"look": "pages", "paging": {"kind": paging, "size": 8}, "facts": {"things": {}}}
    return World(f"list-{paging}{'-scrolls' * scrolls}", fsm, {"things": THINGS}, style)


def solution(kind: str) -> list[Step]:
    texts = {"field": "some words", "textarea": "a longer text", "password": "secret", "date": "2026-06-09"}
    value, used = texts.get(kind, "gamma"), site(kind).fsm.pages["START"].actions["USE"]
    step = Step("USE", {used.bind.param: value} if used.bind else {})
    return [step] if kind in ("confirm", "window") else [step, Step("GO", {})]


@asynccontextmanager
async def visit(*sites: World) -> AsyncIterator[Callable[[World, list[Step]], Awaitable[Replay]]]:
    with SiteServer(sites) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool:

            async def act_out(world: World, steps: list[Step]) -> Replay:
                async with pool.session() as session:
                    await session.start(f"http://{world.name}.test/")
                    return await replay(session, world, steps)

            yield act_out


async def test_every_widget_does_what_its_machine_says_in_every_skin():
    kinds = [*CHOICES, *OTHERS]
    skins = {kind: list(SKINS)[n % len(SKINS)] for n, kind in enumerate(kinds)}
    sites = {kind: site(kind, skin=skins[kind]) for kind in kinds}
    async with visit(*sites.values()) as act_out:
        for kind, world in sites.items():
            used = world.fsm.pages["START"].actions["USE"]
            found = widget_of(used, world.fsm)
            assert (found.face or found.kind) == kind
            result = await act_out(world, solution(kind))
            assert (result.reason, bool(result.grounded)) == ("", True), kind


def break_widget(description: Json, kind: str) -> None:
    """Seeds a fault that belongs to this widget alone."""
    used = description["pages"]["START"]["actions"][0]
    if kind in CHOICES or kind == "date":
        values = used["bind"]["values"]
        used["bind"]["values"] = [*values[1:], values[0]] if kind != "date" else ["2026-05-03", "2026-06-10"]
    elif kind in ("confirm", "window"):
        used["target"] = "START"
    else:
        used["effects"][0]["path"] = ["another"]


async def test_every_widgets_fault_is_caught(monkeypatch):
    broken, descriptions = [], {}
    for kind in (*CHOICES, *OTHERS):
        world = replace(site(kind), name=f"broken-{kind}")
        descriptions[world.name] = json.loads(json.dumps(render.describe(world), default=list))
        break_widget(descriptions[world.name], kind)
        broken.append((world, kind))
    monkeypatch.setattr(render, "describe", lambda world: descriptions[world.name])
    async with visit(*(world for world, _ in broken)) as act_out:
        for world, kind in broken:
            result = await act_out(world, solution(kind))
            assert result.reason, kind


@pytest.mark.parametrize("paging", ["all", "pages", "more", "endless"])
async def test_a_row_of_a_long_list_is_reached(paging, monkeypatch):
    world = shelf(paging)
    step = Step("OPEN", {"thing": "thing-17"})
    clicks = len(gui_steps(world, initial_state(world.fsm), step))
    assert clicks == {"all": 1, "pages": 2, "more": 3, "endless": 2}[paging]
    async with visit(world) as act_out:
        assert (await act_out(world, [step])).reason == ""
    if paging != "all":  # as a control: without turning pages there is no such row
        monkeypatch.setattr("minirl.worlds.widgets._turns", lambda *given: [])
        async with visit(world) as act_out:
            assert "no element" in (await act_out(world, [step])).reason


async def test_what_scrolls_is_never_shown_in_parts():
    world = shelf("pages", scrolls=True)
    async with visit(world) as act_out:
        steps = [Step("SCROLL", {"thing": "thing-9"}), Step("OPEN", {"thing": "thing-9"})]
        assert (await act_out(world, steps)).reason == ""


async def test_a_button_that_is_pressed_too_early_says_what_is_missing():
    async with visit_page(site("field", complains=True), site("field", complains=False)) as page:
        await page.click("#go")
        assert await page.locator(".error").count() == 1
        await page.fill("#it", "words")
        assert await page.locator(".error").count() == 0
        await page.click("#go")
        assert (await render.read_state(page)).page == "END"


@asynccontextmanager
async def visit_page(*worlds: World) -> AsyncIterator[Any]:
    from test_render import visit as tab

    async with tab(worlds[0]) as page:
        yield page
