"""Demonstrations in a real Chromium, and the benchmark that scores them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from shopping import PAGES, SHOP
from walking import operations
from workers import make_worker

from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import AgentConfig
from minirl.experiment import Experiment, make_agent
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import BrowserFault, Prompt, Sample, Score, Stop, Task
from minirl.worlds.generate import make_site
from minirl.worlds.hand import middle
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy, with_points
from minirl.worlds.shop import make_shop, make_tasks
from minirl.worlds.solutions import solution_of
from minirl.worlds.tasks import make_tasks as tasks_in_words

in_browser = pytest.mark.asyncio(loop_scope="module")  # one for the whole module

SHOPS = [SHOP, make_shop(28, serif=True)]  # the second has pages that go on by themselves
FIRST = make_site("music", 1, "first")  # a form on a page of its own
TASKS = [task for shop in SHOPS for task in make_tasks(shop, 3)]
CONFIG = replace(tiny(), browser=replace(tiny().browser, browsers=1))
BENCHMARK = WorldBenchmark()
NO_MODEL: Any = None  # responses are asked for as texts


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    with SiteServer([*SHOPS, FIRST]) as server:
        async with BrowserPool(CONFIG.browser, server.sites, sealed=True) as pool:
            yield pool


@pytest.fixture
def worker(pool: BrowserPool, preprocessor: Preprocessor, tmp_path: Path) -> RolloutWorker:
    return make_worker(CONFIG, preprocessor, browsers=pool, images=Run(tmp_path).images, benchmark=BENCHMARK)


def script(task: Task, preprocessor: Preprocessor) -> ScriptedPolicy:
    return ScriptedPolicy(SHOPS[TASKS.index(task) // 3], task, preprocessor, CONFIG.agent)


def inside(point: list[int], box: Any) -> bool:
    """Whether a click is in a control's place, in pixels of 480 x 360."""
    x, y = point[0] * 0.48, point[1] * 0.36
    return box[0] < x < box[0] + box[2] and box[1] < y < box[1] + box[3]


@in_browser
async def test_every_demonstration_is_verified(worker, preprocessor):
    runs = [worker.episode(task, 0, script(task, preprocessor), 6) for task in TASKS]
    for t in await asyncio.gather(*runs):
        assert (t.stop, t.success, t.reward, t.error) == (Stop.DONE, True, 1.0, ""), t.task.id
        wanted = {one["path"].removeprefix("$."): one["value"] for one in t.task.goal["where"]}
        assert t.final_state == {"page": "DONE", "signature": wanted}
        for turn in t.turns:  # what is cloned is something that the agent can say, and that worked
            assert turn.parsed.error is None and turn.parsed.thought.startswith("choose ")
            clicks = [call.arguments["point_2d"] for call in turn.parsed.calls if call.name == "click"]
            said = [int(number) for number in re.findall(r" (\d+)", turn.parsed.thought)]
            assert said == [number for point in clicks for number in point]
            shown = SHOPS[t.task.start_url == TASKS[3].start_url].style["places"].values()
            assert all(any(inside(p, box) for page in shown for box in page.values()) for p in clicks)
            assert turn.response_ids[-1] == preprocessor.tokenizer.eos_token_id
            assert not any("fail" in line or "not executed" in line for line in turn.feedback)


@in_browser
async def test_a_site_of_the_first_level_is_looked_over_as_a_shop_is(worker, preprocessor):
    """Page by page the thought goes through what the task names, and the buttons that lead on."""
    task = tasks_in_words(FIRST, 1)[0]
    assert task.instruction == "Order ember forks, size tiny."
    t = await worker.episode(task, 0, ScriptedPolicy(FIRST, task, preprocessor, CONFIG.agent), 6)
    assert (t.stop, t.success, len(t.turns)) == (Stop.DONE, True, 3)
    thoughts = [re.sub(r" \d+ \d+", " here", turn.parsed.thought) for turn in t.turns]
    assert thoughts == [
        "choose ember here forks no tiny no next no buy no",
        "choose ember no forks no tiny no next here buy no",
        "choose ember no forks here tiny here next no buy here",
    ]


@pytest.mark.parametrize("call", ["'COLOUR_SIZE_back'", "'COLOUR_SIZE_CHOOSE_SIZE', {size: 'tiny'}"])
@in_browser
async def test_a_page_that_is_not_in_the_predicted_state_ends_the_demonstration(worker, preprocessor, call):
    policy = script(TASKS[0], preprocessor)

    async def meddled(t: int, prompt: Prompt, session: Session) -> Sample:
        if t == 1:
            assert await session.page.evaluate(f"minirl.dispatch({call})")
        return await policy(t, prompt, session)

    t = await worker.episode(TASKS[0], 0, meddled, 6)
    assert (t.stop, t.success, t.valid, len(t.turns)) == (Stop.ENV_ERROR, False, False, 1)
    assert t.error.startswith("the page shows ") and "COLOUR_SIZE" in t.error


def test_a_point_and_a_response_have_single_tokens_for_numbers():
    """Of a window of 480 x 360: 100 pixels across are 208.3 of 1000, and 100 down are 277.8."""
    assert middle((60, 80, 140, 120), 480, 360) == [200, 280]
    assert middle((98, 80, 102, 120), 480, 360) == [208, 280], "200 is at 96 pixels, outside"
    assert middle((96, 79.2, 96.4, 79.6), 480, 360) == [200, 221], "nor is an edge inside"
    calls = [{"name": "click", "arguments": {"point_2d": [140, 700]}}]
    calls += [{"name": "write", "arguments": {"message": "a [1]"}}]
    thought, _, told = with_points({"dune": None, "red": [140, 700]}, calls).partition("</think>")
    assert thought == "choose dune no red 140 700"
    assert [json.loads(call) for call in re.findall("<tool_call>(.*?)</tool_call>", told)] == calls
    assert '"point_2d": [ 140, 700]' in told, "the same token as in the thought"


@in_browser
async def test_the_page_that_is_open_is_scored(pool, preprocessor):
    """Not another page, and for its share of the goal if that is worth something."""
    shop, task = SHOPS[0], TASKS[0]
    first = solution_of(task, shop)[0]
    async with pool.session() as session:
        assert await BENCHMARK.score(task, session, "") == Score(0.0)  # about:blank
        with pytest.raises(BrowserFault, match="the page shows no state"):
            await script(task, preprocessor).respond(session)
        await session.start(task.start_url)
        await session.page.evaluate("step => minirl.dispatch(...step)", [first.action_id, dict(first.params)])
        conditions = 1 + len(task.goal["where"])
        assert (await WorldBenchmark(0.5).score(task, session, "")).value == 0.5 / conditions
        score = await BENCHMARK.score(task, session, "")
        assert (score.value, score.details["page"]) == (0, PAGES[0])
        goal = {"page": PAGES[0], "answer": ["215", "215 crowns"]}
        for answer, value in (("215", 1), (" 215  Crowns.", 1), ("21", 0), ("", 0)):
            score = await BENCHMARK.score(replace(task, goal=goal), session, answer)
            assert score.value == value, answer


def test_tasks_are_the_same_by_site_with_wording_or_goal():
    one, two = TASKS[:2]
    names = BENCHMARK.identity(one)
    assert names & BENCHMARK.identity(replace(one, goal={})) == {(one.start_url, one.instruction.lower())}
    assert len(names & BENCHMARK.identity(replace(one, id="another", instruction="Buy it."))) == 1
    assert not names & BENCHMARK.identity(two)
    assert not names & BENCHMARK.identity(replace(one, start_url="http://shop-1.test/"))


async def demonstrate(tasks: list[Task], worker: RolloutWorker, folder: Path) -> Any:
    """With as much of an Experiment as demonstrations need: no weights."""
    one = SimpleNamespace(config=CONFIG, tasks=SimpleNamespace(demos=tasks, heldout=[]), run=Run(folder))
    return await Experiment.demonstrate(one, worker)


@in_browser
async def test_only_demonstrations_that_the_benchmark_confirms_are_kept(pool, preprocessor, tmp_path, capsys):
    class Picky(WorldBenchmark):
        async def score(self, task: Task, session: Session, answer: str) -> Score:
            score = await super().score(task, session, answer)
            return Score(0.0, score.details) if task is TASKS[1] else score

    picky = make_worker(CONFIG, preprocessor, None, pool, Run(tmp_path).images, Picky())
    kept = await demonstrate(TASKS[:3], picky, tmp_path)
    for found in (kept, Run(tmp_path).load_trajectories("demos")):
        assert [t.task.id for t in found] == [TASKS[0].id, TASKS[2].id]
    assert f"demonstration {TASKS[1].id} dropped: done" in capsys.readouterr().out


@in_browser
async def test_a_task_of_another_site_cannot_be_demonstrated(worker, tmp_path):
    task = Task("foreign", "Find it.", "https://example.org/")
    with pytest.raises(ValueError, match="foreign has no scripted solution"):
        await demonstrate([task], worker, tmp_path)


SITE = make_site("chat", 14, "easy")
IN_WORDS = [(task, set(operations(SITE, solution_of(task, SITE)))) for task in tasks_in_words(SITE)]
# What each agent says for what a hand does
SAYS = {
    "visual": {"type_text": "write", "drag": "drag", "hover": "hover", "key_press": "press_keys"},
    "text": {"type_text": "Type", "hover": "Hover", "key_press": "Press Enter"},
}


async def played(kind: Any, pool: BrowserPool, world: World, task: Task) -> tuple[set[str], Score]:
    """The names of all calls of a scripted episode, and its score."""
    agent = make_agent(replace(CONFIG, agent=AgentConfig(kind=kind)))
    policy, names, answer = ScriptedPolicy(world, task, NO_MODEL, agent.config), set[str](), ""
    async with pool.session() as session:
        await session.start(task.start_url)
        for _ in range(60):
            await agent.observe(session)
            parsed = agent.parse(await policy.respond(session))
            assert parsed.error is None
            for call in parsed.calls:
                names.add(call.name)
                if call.name == agent.final_call[0]:
                    answer = call.arguments[agent.final_call[1]]
                await agent.act(session, call)
            if names & {"done", "exit"}:
                break
        return names, await BENCHMARK.score(task, session, answer)


@in_browser
@pytest.mark.more
async def test_agents_do_tasks_on_pages_with_their_own_tools():
    """Tasks that between them take every operation which the agent has a tool for."""
    config = replace(CONFIG.browser, width=1280, height=720)
    by_operations = sorted(IN_WORDS, key=lambda one: -len(one[1]))
    with SiteServer([SITE]) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pages:
            for kind, means in SAYS.items():
                names = set[str]()
                for task, operations in by_operations:
                    tools = {means[one] for one in operations if one in means}
                    if kind in task.meta["agents"] and tools - names:
                        said, score = await played(kind, pages, SITE, task)
                        assert score.value == 1, (kind, task.id, score)
                        names |= said
                assert names >= set(means.values()), kind
