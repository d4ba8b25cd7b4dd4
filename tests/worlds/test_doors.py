"""Doors: who ignores one fails, who heeds it succeeds; sites without doors are what they were."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from test_scripted_agent import BENCHMARK, played

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Task
from minirl.worlds.doors import DOORS
from minirl.worlds.fsm_file import document_of
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state
from minirl.worlds.lint import check_fsm
from minirl.worlds.render import SiteServer
from minirl.worlds.replay import act, find, measure, replay
from minirl.worlds.search import Step, solve
from minirl.worlds.tasks import make_tasks
from minirl.worlds.widgets import gui_steps

in_browser = pytest.mark.asyncio(loop_scope="module")

CONFIG = BrowserConfig(browsers=1, episodes=4, width=1280, height=720)
DRAWN = {  # sites whose seed draws this door alone
    "popup": ("tasks", 5),
    "expired": ("recipes", 10),
    "error": ("forum", 12),
    "slow": ("bank", 4),
    "sold_out": ("flights", 0),
    "lookalike": ("code", 6),
    "required": ("groceries", 3),
}
SITES = {kind: make_site(*drawn, "medium", doors=1) for kind, drawn in DRAWN.items()}


def at_door(kind: str) -> tuple[World, Task, list[Step]]:
    """A site, a task that leads through its door, and the solution."""
    world, place = SITES[kind], SITES[kind].fsm.meta["doors"][0]
    step = f"{place['page']}_{kind.upper()}"
    if kind == "lookalike":  # which nobody needs: what it imitates is the next action
        ids = list(world.fsm.pages[place["page"]].actions)
        step = ids[ids.index(step) + 1]
    ways = [(world, task, solve(world, task.goal) or []) for task in make_tasks(world)]
    return min(
        (way for way in ways if step in [one.action_id for one in way[2]]), key=lambda way: len(way[2])
    )


WAYS = {kind: at_door(kind) for kind in DRAWN}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    with SiteServer(list(SITES.values())) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool:
            yield pool


async def ignore(session: Session, kind: str) -> str:
    """Act out what would be a solution if there were no door; why it came to nothing, or ""."""
    world, task, _ = WAYS[kind]
    bare = replace(make_site(*DRAWN[kind], "medium"), style=world.style)
    where = [one for one in task.goal["where"] if not one["path"].endswith(".sold_out")]
    state = initial_state(bare.fsm)
    await session.start(task.start_url)
    for step in solve(bare, task.goal | {"where": where}) or []:
        for wanted in gui_steps(bare, state, step):
            if kind == "lookalike" and wanted["op"] == "click":  # the first button with the right words
                words = str(bare.style["labels"].get(step.action_id))
                alike = session.page.locator(".actions .button", has_text=words).first
                if await alike.count():
                    wanted |= {"selector": f"#{await alike.get_attribute('id')}"}
            try:
                for _ in range(10):
                    gui, target = await find(session, wanted)
                    await act(session, gui, target)
                    if gui["op"] != "scroll":
                        break
                    await measure(session, "frames")
            except BrowserFault as fault:
                return str(fault)
        state = apply(bare.fsm, state, step.action_id, step.params)
    return (
        ""
        if (await BENCHMARK.score(task, session, task.goal.get("answer", [""])[0])).value == 1
        else "failed"
    )


@pytest.mark.parametrize("kind", DRAWN)
@in_browser
async def test_a_script_that_ignores_a_door_fails_and_one_that_heeds_it_succeeds(kind, pool):
    """The same mouse and keyboard, with and without what the door wants; states are compared with heed."""
    world, task, steps = WAYS[kind]
    async with pool.session() as session:
        assert await ignore(session, kind)
    async with pool.session() as session:
        await session.start(task.start_url)
        assert (await replay(session, world, steps)).reason == ""
        answer = task.goal.get("answer", [""])[0]
        assert (await BENCHMARK.score(task, session, answer)).value == 1


@pytest.mark.parametrize("agent", ["visual", "text"])
@pytest.mark.parametrize("kind", DRAWN)
@in_browser
async def test_agents_pass_a_door_with_their_own_tools(kind, agent, pool):
    world, task, _ = WAYS[kind]
    if agent in task.meta["agents"]:
        _, score = await played(agent, pool, world, task)
        assert score.value == 1


@in_browser
async def test_nothing_but_the_answer_is_to_be_seen_of_a_page_that_is_shut(pool):
    """The whole page is the notice; behind a box it can be seen, and not be reached."""
    for kind, is_seen in (("error", False), ("popup", True)):
        world, task, steps = WAYS[kind]
        at = next(i for i, one in enumerate(steps) if one.action_id.endswith(kind.upper()))
        async with pool.session() as session:
            await session.start(task.start_url)
            assert (await replay(session, world, steps[:at])).reason == ""
            page, door = session.page, f"#door-{kind}"
            shown = await page.inner_text(".door:not([hidden])")
            assert any(one["title"] in shown and one["text"] in shown for one in DOORS[kind]["says"])
            assert await page.is_visible(door) and await page.is_visible("main") == is_seen
            at_point = "document.elementFromPoint(640, 600).closest('.door') !== null"
            assert await page.evaluate(at_point)


def test_doors_are_drawn_by_the_site_and_have_no_findings():
    for kind, world in SITES.items():
        assert [one["kind"] for one in world.fsm.meta["doors"]] == [kind]
        assert world == make_site(*DRAWN[kind], "medium", doors=1) and check_fsm(world.fsm) == []
    many = make_site("bank", 4, "hard", doors=len(DOORS))
    assert {one["kind"] for one in many.fsm.meta["doors"]} == set(DOORS) and check_fsm(many.fsm) == []


def test_a_site_without_doors_says_nothing_of_them():
    """Nor do easy sites, which have none; the machine beneath is the same."""
    bare, shut = make_site("bank", 4, "medium"), SITES["slow"]
    assert "doors" not in json.dumps([document_of(bare.fsm), bare.style])
    assert (bare.name, shut.name) == ("bank-medium-4", "bank-medium-4-1doors")
    assert [*bare.fsm.pages] == [*shut.fsm.pages] and bare.style["labels"].items() <= shut.style[
        "labels"
    ].items()
    assert make_site("bank", 4, "easy", doors=2) == make_site("bank", 4, "easy")


def test_what_is_sold_out_is_told_with_what_to_take_instead():
    """The goal wants both: what was asked for first, and what was taken then."""
    _, task, steps = WAYS["sold_out"]
    values = {one["path"].rpartition(".")[2]: one["value"] for one in task.goal["where"]}
    name = SITES["sold_out"].fsm.meta["flows"]
    (name,) = {flow["sold_out"] for flow in name if "sold_out" in flow}
    assert values["sold_out"] != values[name] and {values["sold_out"], values[name]} <= set(
        task.instruction.split()
    )
    taken = [
        value for one in steps for value in one.params.values() if value in (values["sold_out"], values[name])
    ]
    assert taken == [values["sold_out"], values[name]]


def test_what_is_sold_out_can_never_be_had():
    """Not in the end either: a review with it waits for another choice, and one with any other goes on."""
    fsm, door = SITES["sold_out"].fsm, SITES["sold_out"].fsm.meta["doors"][0]
    (flow,) = [flow for flow in fsm.meta["flows"] if "sold_out" in flow]
    step = next(one for one in WAYS["sold_out"][2] if flow["gone"] in one.params.values())
    (chosen,) = fsm.pages[f"{flow['id'].upper()}_FORM"].actions[step.action_id].effects
    review = fsm.pages[door["page"]]
    assert flow["gone"] not in flow["asks"][flow["sold_out"]]
    for value in (flow["gone"], *flow["asks"][flow["sold_out"]]):
        filled = dict.fromkeys(review.defaults, "something") | {"done": review.defaults["done"]}
        state = State(review.id, filled | {chosen.path[0]: value})
        possible = {id for id in review.actions if enabled(fsm, state, id, {})}
        is_gone = value == flow["gone"]
        assert (possible == {f"{review.id}_SOLD_OUT"}) == is_gone and len(possible) == (1 if is_gone else 2)


@in_browser
async def test_what_is_sold_out_is_said_as_often_as_it_is_asked_for(pool):
    world, task, steps = WAYS["sold_out"]
    gone = next(one["value"] for one in task.goal["where"] if one["path"].endswith(".sold_out"))
    at = next(i for i, one in enumerate(steps) if one.action_id.endswith("SOLD_OUT"))
    first = max(i for i, one in enumerate(steps[:at]) if gone in one.params.values())
    again = [*steps[: at + 1], *steps[first:at]]
    async with pool.session() as session:
        await session.start(task.start_url)
        assert (await replay(session, world, again)).reason == ""
        shown = await session.page.inner_text(".door:not([hidden])")
        assert any(one["title"] in shown for one in DOORS["sold_out"]["says"])
        assert not await session.page.is_visible("main")
