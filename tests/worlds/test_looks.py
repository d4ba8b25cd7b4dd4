"""Skins: drawn apart from machines and subjects, with all their pictures at once, and full pages."""

from __future__ import annotations

import pytest
from test_render import visit

from minirl.worlds.fsm_file import document_of
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import apply, enabled, initial_state
from minirl.worlds.looks import SKINS
from minirl.worlds.render import render
from minirl.worlds.search import solve
from minirl.worlds.solutions import Walk

TAKE = "([id, params]) => window.minirl.dispatch(id, params)"


def test_a_skin_changes_the_looks_alone():
    one, other = (make_site("hotels", 4, "medium", skin) for skin in ("table", "magazine"))
    drawn = make_site("hotels", 4, "medium")
    assert document_of(one.fsm) == document_of(other.fsm) == document_of(drawn.fsm)
    assert one.data == other.data == drawn.data
    assert one.style["skin"] == "table" and other.style["skin"] == "magazine"
    same = {name for name in one.style if one.style[name] == other.style[name]}
    assert {"words", "labels", "accent", "background"} <= same


def test_subjects_and_skins_are_drawn_independently():
    drawn = {
        (theme, make_site(theme, seed).style["skin"]) for theme in ("bank", "films") for seed in range(40)
    }
    assert drawn == {(theme, skin) for theme in ("bank", "films") for skin in SKINS}


def test_an_unknown_skin_is_named():
    with pytest.raises(ValueError, match="there is no skin 'gird'; there are: table, feed"):
        render(make_site("bank", 1, "easy", "gird"))


async def test_a_page_is_full_and_has_its_pictures_at_once():
    world = make_site("shop", 3, "medium", "portal")
    steps = solve(world, "PRODUCTS") or []
    taken = "calls => calls.forEach(([id, params]) => window.minirl.dispatch(id, params))"
    async with visit(world) as page:
        await page.set_viewport_size({"width": 1280, "height": 720})
        await page.evaluate(taken, [[step.action_id, dict(step.params)] for step in steps])
        first = await page.screenshot()
        await page.wait_for_timeout(300)
        assert await page.screenshot() == first
        assert await page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
        assert await page.locator("a, button, input, select").count() >= 15
        assert len(await page.inner_text("body")) >= 600


@pytest.mark.parametrize(("place", "start"), [("CART", "START_ORDER"), ("BOOKINGS", "START_CHANGE")])
async def test_what_was_put_somewhere_is_shown_there_and_nothing_can_be_done_before(place, start):
    """In the cart, or among the bookings: the item, and what the session has noted with it."""
    world = make_site("shop", 2, "hard", "portal")
    flows = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
    id = "cart" if place == "CART" else next(iter(flows))
    name, value = next((name, some[-1]) for name, some in flows[id]["asks"].items() if some != [True])
    item = world.data[flows[id]["list"]][3]
    there = Walk(world)
    there.open({"list": flows[id]["list"], "set": {}, "item": item["id"]})
    there.do(flows[id], {name: some[-1] for name, some in flows[id]["asks"].items()})
    async with visit(world) as page:
        for walk, is_there in ((Walk(world), False), (there, True)):
            walk.go(place)
            state = initial_state(world.fsm)
            await page.reload()
            for step in walk.steps:
                assert await page.evaluate(TAKE, [step.action_id, dict(step.params)])
                state = apply(world.fsm, state, step.action_id, step.params)
            assert state.page == place and enabled(world.fsm, state, f"{place}_{start}", {}) == is_there
            shown = await page.text_content("main .cards") or ""
            assert all((part in shown) == is_there for part in (item["title"], name, str(value)))
            assert await page.locator("main .cards.waits:empty").count() == (not is_there)
