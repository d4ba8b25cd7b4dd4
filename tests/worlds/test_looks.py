"""Skins: drawn apart from machines and subjects, with all their pictures at once, and full pages."""

import pytest
from walking import visit

from minirl.worlds.fsm_file import document_of
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import enabled
from minirl.worlds.looks import SKINS
from minirl.worlds.render import read_state, render
from minirl.worlds.solutions import Walk

TAKE = "steps => steps.every(([id, params]) => window.minirl.dispatch(id, params))"


def test_a_skin_changes_the_looks_alone():
    one, other = (make_site("hotels", 4, "medium", skin) for skin in ("table", "magazine"))
    drawn = make_site("hotels", 4, "medium")
    assert document_of(one.fsm) == document_of(other.fsm) == document_of(drawn.fsm)
    assert one.data == other.data == drawn.data
    assert one.style | {"skin": "magazine"} == other.style and one.style["skin"] == "table"
    with pytest.raises(ValueError, match="there is no skin 'gird'; there are: table, feed"):
        render(make_site("bank", 1, "easy", "gird"))


def test_subjects_and_skins_are_drawn_independently():
    drawn = {
        (theme, make_site(theme, seed).style["skin"]) for theme in ("bank", "films") for seed in range(40)
    }
    assert drawn == {(theme, skin) for theme in ("bank", "films") for skin in SKINS}


async def test_a_page_is_full_and_has_its_pictures_at_once():
    world = make_site("shop", 3, "medium", "portal")
    walk = Walk(world)
    walk.go("PRODUCTS")
    async with visit(world) as page:
        await page.set_viewport_size({"width": 1280, "height": 720})
        assert await page.evaluate(TAKE, [[step.action_id, dict(step.params)] for step in walk.steps])
        first = await page.screenshot()
        await page.wait_for_timeout(300)
        assert await page.screenshot() == first
        assert await page.evaluate("[...document.images].every((one) => one.naturalWidth > 0)")
        assert await page.locator("a, button, input, select").count() >= 15
        assert len(await page.inner_text("body")) >= 600


@pytest.mark.parametrize(
    "skin", ["table", *(pytest.param(skin, marks=pytest.mark.more) for skin in list(SKINS)[1:])]
)
async def test_whatever_a_header_holds_leads_somewhere(skin):
    """The links that lead nowhere are at the foot; there may be two menus."""
    world = make_site("shop", 3, "medium", skin)
    goals = {one.target for one in world.fsm.pages["HOME"].actions.values() if one.is_navigation}
    async with visit(world) as page:
        await page.set_viewport_size({"width": 1280, "height": 720})
        await page.evaluate("minirl.dispatch('HOME_ACCEPT')")
        reached = set()
        for n in range(await page.locator(".site li").count()):
            entry = page.locator(".site li").nth(n)
            ways = await entry.locator("a, .option").count()
            for way in range(ways):
                opener = entry.locator(".opener")
                if await opener.count():
                    await opener.hover()
                    if await entry.locator(".options").is_hidden():
                        await opener.click()
                await entry.locator("a, .option").nth(way).click()
                reached.add((await read_state(page)).page)
                await page.go_back()
                await page.wait_for_function("minirl.state().page === 'HOME'")
        assert reached == goals and len(goals) == 3
        assert await page.locator("footer a").count() == 8


async def test_what_was_put_somewhere_is_shown_there_and_nothing_can_be_done_before():
    """In the cart, or among the bookings: the item, and what the session has noted with it."""
    world = make_site("shop", 2, "hard", "portal")
    flows = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
    async with visit(world) as page:
        for place, start, flow in (
            ("CART", "START_ORDER", flows["cart"]),
            ("BOOKINGS", "START_CHANGE", next(iter(flows.values()))),
        ):
            values = {name: offered[-1] for name, offered in flow["asks"].items()}
            item = world.data[flow["list"]][3]
            told = [item["title"], *(str(value) for value in values.values() if value is not True)]
            for is_there in (False, True):
                walk = Walk(world)
                if is_there:
                    walk.open({"list": flow["list"], "set": {}, "item": item["id"]})
                    walk.do(flow, values)
                walk.go(place)
                await page.reload()
                assert await page.evaluate(TAKE, [[step.action_id, dict(step.params)] for step in walk.steps])
                assert enabled(world.fsm, walk.state, f"{place}_{start}", {}) == is_there
                shown = await page.text_content("main .cards") or ""
                assert all((part in shown) == is_there for part in told)
                assert await page.locator("main .cards.waits:empty").count() == (not is_there)
