"""MiniWoB++: its pages open, begin by seed, end by themselves, and only the full reward counts."""

import asyncio
import io
import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from pages import do, observe
from PIL import Image

from minirl.agents.webagent_r1 import WebAgentR1Agent
from minirl.benchmarks import miniwob
from minirl.benchmarks.miniwob import MiniwobBenchmark, tasks_named
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import make_task_sets
from minirl.browser.pool import BrowserPool
from minirl.config import AgentConfig, BrowserConfig, Config, TaskConfig
from minirl.episode import Episode, Harness
from minirl.run_folder import Run, save_tasks
from minirl.types import BrowserFault, Sample, Stop, Task
from minirl.worlds.render import SiteServer

CONFIG = Config(
    recipe="test",
    browser=BrowserConfig(browsers=1, width=480, height=360, quiet_ms=0),
    agent=AgentConfig(kind="text"),
)
BENCHMARK = MiniwobBenchmark()
# What solves seed 0 of a page, and what ends it otherwise
PATHS = json.loads(Path(__file__).parents[1].joinpath("data/miniwob.json").read_text())

on_modules_loop = pytest.mark.asyncio(loop_scope="module")  # where its browsers are
needs_pages = pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the package miniwob")


@cache
def task_of(name, seed):
    (task,) = tasks_named(f"miniwob:{name}:{seed}", None, CONFIG)
    return task


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool():
    """Browsers that see MiniWoB's pages alone."""
    with SiteServer([], BENCHMARK.folders()) as server:
        async with BrowserPool(CONFIG.browser, server.sites, sealed=True) as pool:
            yield pool


async def play(pool, task, *acts):
    """Whether the page has ended, and the score, after what `acts` do with the page."""
    async with pool.session() as session:
        await session.start(task.start_url)
        await BENCHMARK.prepare(session, task)
        assert not await BENCHMARK.has_ended(session, task)
        for act in acts:
            await act(session.page)
        return await BENCHMARK.has_ended(session, task), await BENCHMARK.score(task, session, "")


def click(selector):
    return lambda page: page.click(selector)


def press(selector):
    """Return an action that clicks what may be hidden: a reloaded page places its buttons at random."""
    return lambda page: page.dispatch_event(selector, "click")


@needs_pages
@on_modules_loop
@pytest.mark.parametrize(
    ("acts", "ended", "raw"),
    [
        ([click("#subbtn")], True, 1),
        ([click("#area")], False, 0),
        # a second click comes too late, and a page begun anew is another episode
        ([click("#subbtn2"), click("#subbtn")], True, -1),
        ([lambda page: page.reload(), click("#sync-task-cover"), press("#subbtn")], True, 0),
        ([lambda page: page.goto("about:blank")], True, 0),
    ],
)
async def test_a_page_ends_by_itself_and_only_its_full_reward_counts(pool, acts, ended, raw):
    has_ended, score = await play(pool, task_of("click-test-2", 7), *acts)
    assert has_ended == ended
    assert score.value == float(raw == 1)
    assert score.details["raw"] == raw


@needs_pages
@on_modules_loop
async def test_a_part_of_the_reward_is_no_success(pool):
    """Of five right boxes four are ticked, which the page itself rewards with 0.6 or less."""
    task = task_of("click-checkboxes-large", 3)

    async def tick_all_but_one(page):
        names = task.instruction.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
        for name in names[1:]:
            await page.locator("#area label").filter(has_text=name).click()
        await page.click("#subbtn")

    ended, score = await play(pool, task, tick_all_but_one)
    assert ended and 0 < score.details["raw"] < 1 and score.value == 0.0


@needs_pages
def test_seeds_come_in_turns_and_each_makes_the_same_task_alone():
    tasks = tasks_named("miniwob:click-button,focus-text:0-2", 3, CONFIG)
    names = ("click-button-0", "focus-text-0", "click-button-1")
    assert [task.id for task in tasks] == [f"miniwob-{name}" for name in names]
    assert tasks[0].instruction.startswith('Click on the "') and tasks[0].site == "click-button"
    assert tasks[2] == task_of("click-button", 1)


@needs_pages
@pytest.mark.parametrize(("boxes", "n_left"), [pytest.param(True, 2, marks=pytest.mark.more), (False, 1)])
def test_held_out_seeds_that_show_a_training_page_are_left_out(boxes, n_left, capsys):
    """focus-text asks the same of the same field at each seed, which only stands elsewhere."""
    agent = replace(CONFIG.agent, boxes=boxes)
    task = TaskConfig("miniwob:focus-text,click-button:0-1", "miniwob:focus-text,click-button:1-2")
    sets = make_task_sets(replace(CONFIG, agent=agent, task=task))
    n_dropped = 4 - len(sets.heldout)
    assert len(sets.train) == 4 and len(sets.heldout) == n_left
    assert f"{n_dropped} held-out tasks are also training tasks" in capsys.readouterr().out


def test_where_nothing_is_left_to_hold_out_it_is_refused(monkeypatch):
    task = Task("a", "Click.", "http://miniwob.test/a.html", {"miniwob": "click-button", "seed": 2})
    monkeypatch.setattr(miniwob, "tasks_named", lambda source, count, config: [task])
    source = "miniwob:click-button:2"
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks"):
        make_task_sets(replace(CONFIG, task=TaskConfig(source, source)))


@needs_pages
def test_tasks_outlive_a_file(tmp_path):
    task = task_of("click-button", 1)
    save_tasks(tmp_path / "heldout.jsonl", [task])
    assert load_tasks(tmp_path / "heldout.jsonl") == [task]


@needs_pages
@pytest.mark.more
async def test_an_agent_that_sees_acts_in_the_pages_own_window_drawn_larger():
    browser = replace(CONFIG.browser, width=480, height=630)
    config = replace(CONFIG, agent=AgentConfig(), browser=browser)
    (task,) = tasks_named("miniwob:click-test-2:7", None, config)
    with SiteServer([], BENCHMARK.folders()) as server:
        pool = BrowserPool(browser, server.sites, sealed=True)
        harness = SimpleNamespace(config=config, browsers=pool)
        async with pool, BENCHMARK.session(harness, task) as session:
            await session.start(task.start_url)
            await BENCHMARK.prepare(session, task)
            assert Image.open(io.BytesIO((await observe(session)).image)).size == (480, 630)
            box = await session.page.locator("#subbtn").bounding_box()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            await do(session, "click", point_2d=[x / 0.160, y / 0.210])
            assert (await BENCHMARK.score(task, session, "")).value == 1.0


@needs_pages
@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("miniwob:click-buton:0", "no page 'click-buton'; it has: .*click-button"),
        ("miniwob:", "write miniwob:"),
        ("miniwob:click-button:3-1", "last seed comes before"),
    ],
)
def test_what_is_no_page_is_refused(source, fault):
    with pytest.raises(ValueError, match=fault):
        tasks_named(source, None, CONFIG)


@needs_pages
def test_a_page_that_does_not_begin_is_one_line(monkeypatch):
    monkeypatch.setattr(miniwob, "SCRIPT", "async () => { throw new Error('not today') }")
    with pytest.raises(ValueError, match="miniwob-click-button-0 does not begin: .*not today"):
        tasks_named("miniwob:click-button:0", None, CONFIG)


@needs_pages
@on_modules_loop
async def test_a_page_that_asks_for_something_else_is_the_sites_fault(pool):
    task = replace(task_of("click-button", 1), instruction="Do as you like.")
    with pytest.raises(BrowserFault, match="make its tasks again") as caught:
        await play(pool, task)
    assert caught.value.stop is Stop.SITE_ERROR


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setattr(miniwob, "folder_of", lambda name: None)
    with pytest.raises(ValueError, match="pip install miniwob"):
        tasks_named("miniwob:all", None, CONFIG)


async def act_out(pool, tasks, answers, preprocessor, folder):
    """An episode of each task, in which the text agent says what `answers` has for its page, then exits."""
    agent = WebAgentR1Agent(CONFIG.agent)
    limit = asyncio.Semaphore(8)

    async def play(task):
        sayings = [*answers.get(task.site, ()), 'exit(message="")']
        harness = Harness(CONFIG, preprocessor, agent, pool, Run(folder).images, lambda task: BENCHMARK)

        async def policy(t, prompt, session):
            ids = preprocessor.render_response(sayings[t])[1]
            return Sample(ids, (0.0,) * len(ids), "stop")

        async with limit:
            return await Episode(harness, task, 0, policy, len(sayings)).run()

    return await asyncio.gather(*map(play, tasks))


async def check_paths(pool, source, preprocessor, folder):
    """The tasks of a source. Each page opens, begins, ends and is scored; a known path succeeds, and else
    nothing does."""
    tasks = tasks_named(source, None, CONFIG)
    for kind in ("right", "wrong"):
        answers = {name: paths[kind] for name, paths in PATHS.items()}
        for episode in await act_out(pool, tasks, answers, preprocessor, folder):
            name = episode.task.site
            assert episode.valid, (name, episode.error)
            assert episode.final_state.keys() == {"done", "raw", "reason"}, name
            assert episode.success == (kind == "right" and name in PATHS), (name, kind, episode.final_state)
            if episode.success:  # and the page has ended it, not the agent's last word
                assert episode.final_state["done"] and len(episode.turns) == len(answers[name]), name
    return tasks


@needs_pages
@on_modules_loop
async def test_three_pages_are_played_to_their_ends(pool, preprocessor, tmp_path):
    await check_paths(pool, "miniwob:click-test-2,enter-text,drag-box:0", preprocessor, tmp_path)


@needs_pages
@on_modules_loop
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_all_pages_are_played_to_their_ends(pool, preprocessor, tmp_path):
    tasks = await check_paths(pool, "miniwob:all", preprocessor, tmp_path)
    assert len(tasks) == 130 and len(PATHS) >= 50
