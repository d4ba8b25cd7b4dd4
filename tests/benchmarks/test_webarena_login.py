"""WebArena's logins, tabs and resets, on stand-ins of the sites."""

from dataclasses import replace
from typing import Any

import pytest
from stand_in import record_of

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.tasks import webarena_task
from minirl.browser import servers
from minirl.browser.servers import reset
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, RunEnds, Stop, Task, ToolFailure

browsing = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True)
RULES = {"eval_types": ["string_match"], "reference_answers": {"must_include": ["2"]}}
GOOD = record_of("gitlab", "__GITLAB__", "Open the issues", **RULES)


async def ready(session: Session, **fields: Any) -> Task:
    """A task that has been prepared as an episode does it."""
    task = webarena_task(GOOD | fields)
    await session.start(task.start_url)
    await WebArenaBenchmark().prepare(session, task)
    return task


@browsing
@pytest.mark.parametrize(
    ("site", "path"),
    [
        ("gitlab", "/-/profile"),
        ("shopping", "/customer/account/"),
        ("shopping_admin", "/reports/report_sales/sales"),
        ("reddit", "/submit"),
    ],
)
async def test_a_login_by_form(session, world, site, path):
    task = await ready(session, sites=[site], start_url=f"__{site.upper()}__{path}")
    assert session.page.url == task.start_url  # those who are not logged in are sent elsewhere
    assert await session.page.locator("input[type=password], #login").count() == 0
    with pytest.raises(ToolFailure, match="no earlier page"):
        await session.travel(-1)


@browsing
async def test_two_sites_at_once_and_none_where_none_is_wanted(session, world):
    await ready(session, require_login=False)
    assert session.page.url.endswith("/users/sign_in")
    assert [asked for asked in world.asked if "POST" in asked] == []
    await ready(session, sites=["gitlab", "reddit"])
    await session.goto(f"{world.sites['REDDIT']}/submit")
    assert session.page.url.endswith("/submit")
    names = {cookie["name"] for cookie in await session.context.cookies()}
    assert names == {"gitlab_session", "reddit_session"}


@browsing
@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("GITLAB_PASSWORD", "wrong", "the login to gitlab failed: http.* still asks who it is"),
        ("GITLAB", "http://127.0.0.1:9", "net::ERR_.* at http://127.0.0.1:9/users/sign_in"),
    ],
)
async def test_a_wrong_password_or_a_site_that_is_down_is_no_login(
    session, world, monkeypatch, name, value, problem
):
    task = webarena_task(GOOD | {"start_url": "__REDDIT__"})
    await session.start(task.start_url)
    monkeypatch.setenv(name, value)
    with pytest.raises(BrowserFault, match=f"webarena-1 could not be prepared: {problem}") as caught:
        await WebArenaBenchmark().prepare(session, task)
    assert caught.value.stop is Stop.SITE_ERROR


@browsing
async def test_other_tasks_have_tabs_too_and_need_nothing_else(session, world):
    first, second = (f"{world.sites['SHOPPING']}/{name}.html" for name in "ab")
    await session.start(first)
    before, benchmark = len(world.asked), JudgedBenchmark()
    await benchmark.prepare(session, Task("a", "look", first))
    assert len(world.asked) == before
    task = Task("a", "look", first, meta={"tabs": [second]})
    await benchmark.prepare(session, task)
    rows, current = await session.tabs()
    assert [url for url, _ in rows] == [first, second] and current == 0
    with pytest.raises(BrowserFault, match="a could not be prepared: net::ERR_") as caught:
        await benchmark.prepare(session, replace(task, meta={"tabs": ["http://127.0.0.1:9/"]}))
    assert caught.value.stop is Stop.SITE_ERROR and benchmark.needs_judge(task)
    assert benchmark.missing(task) == [] and benchmark.places(task) == set()
    assert benchmark.identity(task) == benchmark.identity(replace(task, id="b"))
    assert benchmark.identity(task).isdisjoint(benchmark.identity(replace(task, instruction="buy")))


async def test_a_reset_waits_until_the_sites_are_ready_and_is_given_up(world, monkeypatch):
    monkeypatch.setattr(servers, "RESET_PAUSE", 0.01)
    for busy in (0, 2):  # with 2 a reset is running already
        world.busy, world.resets, world.asked[:] = busy, 0, []
        await reset(f"{world.reset}/")
        assert world.resets == 1 and sum("/status" in asked for asked in world.asked) == busy + 1
    monkeypatch.setattr(servers, "RESET_SECONDS", 0.1)
    world.busy = 10**6
    with pytest.raises(RunEnds, match=r"not ready 0.1 s after .* \('Reset ongoing"):
        await reset(world.reset)
    for address in ("reset.test", "file:///etc", "http://127.0.0.1:9", world.sites["SHOPPING"]):
        with pytest.raises(ValueError, match="give the reset server's address"):
            await reset(address)
