"""MiniWoB++: its pages open, begin by seed, end by themselves, and only the full reward counts."""

from importlib.util import find_spec

import pytest

from minirl.benchmarks.miniwob import MiniwobBenchmark, tasks_named
from minirl.browser.pool import BrowserPool
from minirl.config import AgentConfig, BrowserConfig, Config
from minirl.worlds.render import SiteServer

CONFIG = Config(
    recipe="test",
    browser=BrowserConfig(browsers=1, width=480, height=360, quiet_ms=0),
    agent=AgentConfig(kind="text"),
)
BENCHMARK = MiniwobBenchmark()

pytestmark = pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the package miniwob")


async def play(name, seed, selector):
    """The score and whether the page has ended, after a click."""
    (task,) = tasks_named(f"miniwob:{name}:{seed}", CONFIG)
    with SiteServer([], BENCHMARK.folders()) as server:
        async with BrowserPool(CONFIG.browser, server.sites, sealed=True) as pool, pool.session() as session:
            await session.start(task.start_url)
            await BENCHMARK.prepare(session, task)
            assert not await BENCHMARK.has_ended(session, task)
            if selector:
                await session.page.click(selector)
            return await BENCHMARK.has_ended(session, task), await BENCHMARK.score(task, session, "")


@pytest.mark.parametrize(
    ("selector", "ended", "raw"), [("#subbtn", True, 1), ("#subbtn2", True, -1), ("#area", False, 0)]
)
async def test_a_page_ends_by_itself_and_only_its_full_reward_counts(selector, ended, raw):
    has_ended, score = await play("click-test-2", 7, selector)
    assert has_ended == ended
    assert score.value == float(raw == 1)
    assert score.details["raw"] == raw


def test_seeds_come_in_turns_and_those_with_the_same_first_page_are_one_task():
    tasks = tasks_named("miniwob:click-button,focus-text:0-2", CONFIG)
    assert [task.id for task in tasks[:3]] == [
        "miniwob-click-button-0",
        "miniwob-focus-text-0",
        "miniwob-click-button-1",
    ]
    assert tasks[0].instruction.startswith('Click on the "') and tasks[0].site == "click-button"
    assert tasks == tasks_named("miniwob:click-button,focus-text:0-2", CONFIG)
    first, second, third = (BENCHMARK.identity(task) for task in tasks[1::2])
    assert all(len(names) == 2 for names in (first, second, third))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("miniwob:click-buton:0", "no page 'click-buton'"),
        ("miniwob:", "write miniwob:PAGES:SEEDS"),
    ],
)
def test_what_is_no_page_is_refused(source, fault):
    with pytest.raises(ValueError, match=fault):
        tasks_named(source, CONFIG)


async def test_a_page_that_asks_for_something_else_is_the_sites_fault():
    (task,) = tasks_named("miniwob:click-button:0", CONFIG)
    assert task.goal == {"miniwob": "click-button", "seed": 0}
