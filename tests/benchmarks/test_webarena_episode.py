"""Episodes on stand-ins of WebArena's sites, through all that an evaluation has: what a served model says
goes in at one end, and rewards come out at the other."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import endpoint_server
import pytest
from endpoint_server import Act, say, status
from peers import alone
from playwright.async_api import Error as PlaywrightError
from stand_in import record_of

from minirl.benchmarks.protocols import apply, protocol_of
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import TaskSets
from minirl.config import BrowserConfig, Config, EndpointConfig, JudgeConfig, SamplerConfig
from minirl.evaluation.results import result_of, summary
from minirl.evaluation.tables import protocol_or_none
from minirl.experiment import Experiment
from minirl.model import Preprocessor
from minirl.recipes import openwebrl_4b, tiny_text, webagent_r1_3b
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import Sampling, Stop, Task, ToolFailure, Trajectory

WEBARENA_LITE, WEBVOYAGER = protocol_of("webarena-lite-official"), protocol_of("webvoyager-official")
TEXT = tiny_text()
CONFIG = replace(
    TEXT,
    agent=replace(TEXT.agent, answers="action", context_tokens=8192),
    browser=BrowserConfig(browsers=1, width=800, height=600, quiet_ms=50),  # private addresses are refused
    sampler=SamplerConfig(kind="remote"),
)


def a_task(folder: Path, site: str, start: str, **rules: Any) -> Task:
    (folder / "task.json").write_text(json.dumps(record_of(site, start, "How long does it take?", **rules)))
    (task,) = load_tasks(folder / "task.json")
    return task


@asynccontextmanager
async def opened(
    task: Task,
    preprocessor: Preprocessor,
    folder: Path,
    said: Sequence[str],
    *judged: Act,
    asked: Config = CONFIG,
) -> AsyncIterator[RolloutWorker]:
    """All the parts, where a served model and a judge say this in turn."""
    judged = judged or (status(400),)
    with endpoint_server.serve([*map(say, said)]) as model, endpoint_server.serve(judged) as judge:
        agent = EndpointConfig(url=model.url, model="agent")
        judging = JudgeConfig(url=judge.url, model="judge")
        config = replace(asked, endpoint=agent, judge=judging)
        tasks, run = TaskSets([], [], [task]), Run(folder / "run")
        experiment = Experiment(config, run, None, tasks, preprocessor, alone(), None)
        async with experiment.worker() as worker:
            yield worker


async def play(worker: RolloutWorker, task: Task) -> Trajectory:
    return await worker.episode(task, 0, worker.policy(Sampling(), 200, "test"), 9)


def posting(title: str) -> list[str]:
    """The form's fields and its button have the first four numbers of the page."""
    values = enumerate(["nyc", title, "I live there."])
    typed = [f'do(action="Type", argument="{value}", element="{n}")' for n, value in values]
    return [*typed, 'do(action="Click", element="3")', 'exit(message="It is posted.")']


@pytest.mark.more
async def test_a_post_after_a_login_earns_its_reward_and_another_post_none(world, preprocessor, tmp_path):
    title = {
        "url": "func:reddit_get_post_url('__last_url__')",
        "locator": "document.querySelector('.submission__title').outerText",
        "required_contents": {"exact_match": "Is a car needed?"},
    }
    rules = {"eval_types": ["string_match", "program_html"], "program_html": [title]}
    rules["reference_answers"] = {"must_include": ["posted"]}
    task = a_task(tmp_path, "reddit", "__REDDIT__/submit", **rules)
    said = [*posting("Is a car needed?"), *posting("Is a bike needed?")]
    async with opened(task, preprocessor, tmp_path, said) as worker:
        right, wrong = [await play(worker, task) for _ in range(2)]
    assert (right.stop, right.success, right.reward, right.error) == (Stop.DONE, True, 1.0, "")
    assert (wrong.stop, wrong.success, wrong.reward, wrong.error) == (Stop.DONE, False, 0.0, "")
    assert "Is a bike needed?" in wrong.final_state["reason"]
    posts = [("nyc", f"Is a {what} needed?", "I live there.") for what in ("car", "bike")]
    assert world.posts == posts and len(right.turns) == len(wrong.turns) == 5
    assert sum("POST /login_check" in asked for asked in world.asked) == 2  # each episode has its own


@pytest.mark.more  # tests/test_episode.py and test_protocols.py have the parts
@pytest.mark.parametrize("found", ["boston", "nowhere"])
@pytest.mark.parametrize("recipe", [webagent_r1_3b, openwebrl_4b])
async def test_what_the_turn_limit_ends_counts_alike_in_training_evaluation_and_protocol(
    world, preprocessor, tmp_path, recipe, found
):
    """The agent stops nowhere; the page that it is on at the end may be the wanted one. WebAgent-R1 grades
    that, OpenWebRL does not."""
    rules = {"eval_types": ["url_match"], "reference_url": "__MAP__/search?query=boston", "url_note": "EXACT"}
    task = a_task(tmp_path, "map", f"__MAP__/search?query={found}", **rules)
    task = replace(task, meta={**task.meta, "benchmark": WEBARENA_LITE.benchmark})
    usual = replace(CONFIG, reward=recipe().reward, rollout=replace(CONFIG.rollout, group=2))
    said = ['do(action="Scroll Down")']
    async with opened(task, preprocessor, tmp_path, said, asked=usual) as worker:
        trained = await worker.group(task, 0, 0, 3)
        within = await worker.evaluate([(task, 0)], "eval_step_00001", 3, lambda done: None)
    protocol, browser = WEBARENA_LITE if recipe is webagent_r1_3b else WEBVOYAGER, usual.browser
    official = replace(apply(protocol, usual), browser=browser, agent=usual.agent)
    async with opened(task, preprocessor, tmp_path, said, asked=official) as worker:
        evaluated = await worker.evaluate([(task, 0)], "eval", 3, lambda done: None)
    wanted = recipe is webagent_r1_3b and found == "boston"
    for t in (*trained, *within, *evaluated):
        assert (t.stop, t.success, t.reward) == (Stop.MAX_STEPS, wanted, float(wanted)), t.error
    for counting in (protocol, protocol_or_none("", usual.reward.after)):
        assert summary([result_of(*evaluated)], counting).success.successes == wanted


@pytest.mark.more  # test_evaluators.py asks such judges without an episode
async def test_what_a_judge_decides_and_what_becomes_of_an_episode_without_its_verdict(
    world, preprocessor, tmp_path
):
    """Half a surrogate pair is a wrong answer as any other; a judge that fails is not the agent's fault."""
    wanted = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["1 h"]}}
    task = a_task(tmp_path, "map", "__MAP__", **wanted)
    said = [f'exit(message="{answer}")' for answer in ("one hour", r"\ud800", "one hour")]
    judged = [say("correct"), say("incorrect"), status(400)]
    async with opened(task, preprocessor, tmp_path, said, *judged) as worker:
        right, broken, unknown = [await play(worker, task) for _ in range(3)]
    assert (right.stop, right.reward) == (Stop.DONE, 1.0)
    assert (broken.stop, broken.reward, broken.answer) == (Stop.DONE, 0.0, "\ud800")
    assert (unknown.stop, unknown.valid, unknown.success) == (Stop.JUDGE_ERROR, False, False)
    assert "the judge gave no answer" in unknown.error


async def test_of_private_addresses_only_the_tasks_own_sites_are_open(world, preprocessor, tmp_path):
    """To the agent, and to pages: what a browser sends by itself meets the proxy."""
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "1"}}
    task = a_task(tmp_path, "map", "__MAP__", **rules)
    opening = opened(task, preprocessor, tmp_path, [""])
    async with opening as worker, worker.harness.browsers.session() as session:
        await session.start(task.start_url)
        assert "Results for" in await session.page.content()
        for other in (f"{world.reset}/reset", world.sites["REDDIT"]):
            with pytest.raises(ToolFailure, match="127.0.0.1 is a private address"):
                await session.goto(other)
            with pytest.raises(PlaywrightError, match="ERR_SOCKS_CONNECTION_FAILED"):
                await session.page.goto(other)
    assert {asked.split()[0] for asked in world.asked} == {"map"} and world.resets == 0
