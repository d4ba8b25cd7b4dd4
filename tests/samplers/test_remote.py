"""A served model in an episode: asked in chat messages, recorded as text, tokenised once, for cloning."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from endpoint_server import refuse, say, serve
from peers import alone
from test_scripts import start

import sft
import train
from minirl.browser.pool import BrowserPool
from minirl.config import EndpointConfig, SamplerConfig
from minirl.demonstrations import tokenised
from minirl.episode import interface_of
from minirl.experiment import Experiment, TaskSets
from minirl.recipes import tiny
from minirl.rollout import RolloutWorker
from minirl.rows import turn_rows
from minirl.run_folder import Run
from minirl.samplers.endpoint import Endpoint
from minirl.samplers.remote import RemoteSampler
from minirl.types import Sampling, Stop, Trajectory, Turn
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy, WorldVerifier
from minirl.worlds.shop import make_shop, make_tasks

SHOP = make_shop(0)
TASK = make_tasks(SHOP, 1, 1, seed=7)[0][0]
TINY = tiny()
CONFIG = replace(TINY, browser=replace(TINY.browser, browsers=1), sampler=SamplerConfig(kind="remote"))
in_browser = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    with SiteServer([SHOP]) as server:
        async with BrowserPool(CONFIG.browser, server.sites, sealed=True) as pool:
            yield pool


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "teacher")


async def episode(pool, preprocessor, run: Run, url: str, task=TASK) -> Trajectory:
    """One episode in which the model behind the URL is asked."""
    endpoint = Endpoint(EndpointConfig(url=url, model="teacher", retries=0))
    where = (RemoteSampler(endpoint), pool, WorldVerifier(), run.put_image, alone())
    rollouts = RolloutWorker(CONFIG, preprocessor, *where)
    try:
        return await rollouts.episode(task, 0, rollouts.ask(Sampling(0.7), 100, "test"), 6)
    finally:
        await endpoint.close()


async def solution(pool, preprocessor, run: Run) -> Trajectory:
    config = replace(CONFIG, sampler=SamplerConfig(kind="hf"))
    rollouts = RolloutWorker(config, preprocessor, None, pool, WorldVerifier(), run.put_image, alone())
    return await rollouts.episode(TASK, 0, ScriptedPolicy(SHOP, TASK, preprocessor), 6)


@in_browser
async def test_what_a_teacher_did_is_cloned_as_if_we_had_done_it(pool, preprocessor, run, tmp_path):
    """The teacher repeats the shortest solution's words. Its trajectory has no ids; told again it has exactly
    those of the solution that was recorded with ids."""
    expected = await solution(pool, preprocessor, run)
    with serve([say("<think>\n" + turn.text) for turn in expected.turns]) as server:
        taught = await episode(pool, preprocessor, run, server.url)
    assert taught.success and taught.stop is Stop.DONE and len(taught.turns) == len(expected.turns) > 2
    assert taught.trunk == () and not any(t.response_ids or t.logprobs or t.branch for t in taught.turns)
    with pytest.raises(ValueError, match="said by a served model: clone it, with --sft.demos"):
        turn_rows(taught, advantage=1.0)

    run.save_trajectories("eval_teacher", [taught, replace(taught, member=1, success=False)])
    student = Run(tmp_path / "student")
    tasks = TaskSets([TASK], [], [], [])
    parts = Experiment(CONFIG, student, None, tasks, preprocessor, None, None, alone())
    rollouts = RolloutWorker(CONFIG, preprocessor, None, None, None, None, alone())
    (cloned,) = parts._dumped(run.trajectory_path("eval_teacher"), rollouts)
    assert cloned.trunk == expected.trunk
    for ours, seen, theirs in zip(cloned.turns, taught.turns, expected.turns, strict=True):
        assert (ours.shared, ours.branch) == (theirs.shared, theirs.branch)
        assert ours.response_ids == theirs.response_ids
        # The picture that the teacher saw: two visits to one page need not give the same bytes.
        assert student.image(ours.images[-1]) == run.image(seen.images[-1])
    assert len(turn_rows(cloned, advantage=1.0)) == len(expected.turns)

    parts.tasks = TaskSets([], [], [], [TASK])
    with pytest.raises(ValueError, match="solves held-out tasks"):
        parts._dumped(run.trajectory_path("eval_teacher"), rollouts)
    run.save_trajectories("nothing", [replace(taught, success=False)])
    with pytest.raises(ValueError, match="holds no success"):
        parts._dumped(run.trajectory_path("nothing"), rollouts)


@in_browser
async def test_the_conversation_as_chat_messages(pool, preprocessor, run):
    """System prompt, task, observation and the newest screenshot; of earlier turns the words."""
    expected = await solution(pool, preprocessor, run)
    with serve([say(turn.text) for turn in expected.turns]) as server:
        await episode(pool, preprocessor, run, server.url)
    for t, request in enumerate(server.requests):
        roles = [message["role"] for message in request["messages"]]
        assert roles == ["system"] + ["user", "assistant"] * t + ["user"]
        users = [message["content"] for message in request["messages"][1::2]]
        assert TASK.instruction in users[0][0]["text"]
        kinds = [[part["type"] for part in parts] for parts in users]
        assert kinds == [["text"]] * t + [["text", "image_url", "text"]]
        assert all(expected.turns[n].observation in parts[0]["text"] for n, parts in enumerate(users))
        if t:
            assert expected.turns[t - 1].feedback[0] in users[-1][0]["text"]
            assert request["messages"][-2]["content"][0]["text"] == expected.turns[t - 1].text
    assert request["temperature"] == 0.7 and len({r["seed"] for r in server.requests}) == len(server.requests)


@in_browser
async def test_a_refusal_ends_the_episode_and_says_so(pool, preprocessor, run):
    with serve([refuse]) as server:
        refused = await episode(pool, preprocessor, run, server.url)
    assert refused.stop is Stop.SAMPLER_ERROR and not refused.valid
    assert "teacher refused: I can't help with that." in refused.error


def test_turns_cut_at_the_limit_get_no_end_word(preprocessor):
    """As it would be if our model had been cut there."""
    cut = Trajectory(
        TASK, 0, turns=(Turn(0, (), (), (), "choose a", observation="Current tab: 0", finish="length"),)
    )
    how = (preprocessor, interface_of(CONFIG.agent), CONFIG.agent)
    told = tokenised(cut, *how, lambda name: b"")
    assert told.turns[0].response_ids[-1] != preprocessor.tokenizer.eos_token_id
    whole = replace(cut, turns=(replace(cut.turns[0], finish="stop"),))
    ended = tokenised(whole, *how, lambda name: b"")
    assert ended.turns[0].response_ids == (*told.turns[0].response_ids, preprocessor.tokenizer.eos_token_id)


# --- from the command line --------------------------------------------------------------------------


def test_a_served_model_is_evaluated(tmp_path):
    done = 'I am done.</think><tool_call>{"name": "done", "arguments": {"response": "done"}}</tool_call>'
    with serve([say(done)]) as server:
        flags = ["--endpoint.url", server.url, "--endpoint.model", "served/model", "--out", str(tmp_path)]
        flags += ["--eval.episodes", "3", "--endpoint.response-price", "1000"]
        out = start("eval.py", "tiny", "--sampler", "remote", *flags)
    assert out.returncode == 0, out.stderr
    assert "evaluating served/model on 3 tasks" in out.stdout
    assert "served/model: 3 requests" in out.stdout and "300 + 60 tokens, $0.06" in out.stdout
    (line,) = (tmp_path / "tiny-eval/evals.jsonl").read_text().splitlines()
    assert json.loads(line)["n"] == 3 and json.loads(line)["checkpoint"] == "served/model"


@pytest.mark.parametrize("script", [train, sft])
def test_a_served_model_is_not_trained(ended, tmp_path, script):
    code, said = ended(script, "tiny", "--sampler", "remote", "--out", str(tmp_path))
    assert code == 2 and said.count("\n") == 1
    assert "a served model's weights can't be trained" in said
