"""A served model in an episode: asked in chat messages, recorded as text, tokenised once, for cloning."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from endpoint_server import say, serve
from peers import alone
from shopping import SHOP, tasks
from workers import make_worker

import sft
import train
from minirl.benchmarks.task_sets import TaskSets
from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.config import EndpointConfig, SamplerConfig
from minirl.demonstrations import tokenised
from minirl.experiment import Experiment
from minirl.recipes import tiny
from minirl.rows import turn_rows
from minirl.run_folder import Run
from minirl.samplers.endpoint import Endpoint, RemoteSampler
from minirl.types import Sampling, Stop, Trajectory, Turn
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy

(TASK,) = tasks(1)
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


async def episode(pool, preprocessor, run: Run, url: str) -> Trajectory:
    """One episode in which the model behind the URL is asked."""
    endpoint = Endpoint(EndpointConfig(url=url, model="teacher"))
    worker = make_worker(CONFIG, preprocessor, RemoteSampler(endpoint), pool, run.images, WorldBenchmark())
    try:
        return await worker.episode(TASK, 0, worker.policy(Sampling(0.7, 0.95, 20), 100, "test"), 6)
    finally:
        await endpoint.close()


async def solution(pool, preprocessor, run: Run) -> Trajectory:
    config = replace(CONFIG, sampler=SamplerConfig(kind="hf"))
    worker = make_worker(config, preprocessor, None, pool, run.images, WorldBenchmark())
    return await worker.episode(TASK, 0, ScriptedPolicy(SHOP, TASK, preprocessor, config.agent), 6)


@in_browser
async def test_what_a_teacher_did_is_cloned_as_if_we_had_done_it(pool, preprocessor, run, tmp_path, capsys):
    """The teacher repeats the shortest solution's words. Its trajectory has no ids; told again it has exactly
    those of the solution that was recorded with ids."""
    expected = await solution(pool, preprocessor, run)
    with serve([say("<think>\n" + turn.text) for turn in expected.turns]) as server:
        taught = await episode(pool, preprocessor, run, server.url)
    for t, request in enumerate(server.requests):  # the newest screenshot; of earlier turns the words
        roles = [message["role"] for message in request["messages"]]
        assert roles == ["system"] + ["user", "assistant"] * t + ["user"]
        users = [message["content"] for message in request["messages"][1::2]]
        kinds = [[part["type"] for part in parts] for parts in users]
        assert kinds == [["text"]] * t + [["text", "image_url", "text"]]
        assert TASK.instruction in users[0][0]["text"]
        assert (request["temperature"], request["top_p"], request["top_k"]) == (0.7, 0.95, 20)
        assert all(expected.turns[n].observation in parts[0]["text"] for n, parts in enumerate(users))
        if t:
            assert expected.turns[t - 1].feedback[0] in users[-1][0]["text"]
            assert expected.turns[t - 1].text in request["messages"][-2]["content"][0]["text"]
    assert len({r["seed"] for r in server.requests}) == len(server.requests)
    assert taught.success and taught.stop is Stop.DONE and len(taught.turns) == len(expected.turns) > 2
    assert taught.prefix == () and not any(t.response_ids or t.logprobs or t.suffix for t in taught.turns)
    with pytest.raises(ValueError, match="said by a served model: clone it, with --sft.demos"):
        turn_rows(taught, advantage=1.0)

    run.save_trajectories("eval_teacher", [taught, replace(taught, member=1, success=False)])
    run.save_trajectories("nothing", [replace(taught, success=False)])
    student = Run(tmp_path / "student")

    async def cloned_from(label: str, tasks: TaskSets) -> list[Trajectory]:
        config = replace(CONFIG, sft=replace(CONFIG.sft, demos=run.trajectory_path(label)))
        experiment = Experiment(config, student, None, tasks, preprocessor, alone(), None)
        worker = make_worker(config, preprocessor, images=student.images, benchmark=WorldBenchmark())
        return await experiment.demonstrate(worker)

    (cloned,) = await cloned_from("eval_teacher", TaskSets([TASK], [], []))
    assert cloned.prefix == expected.prefix
    for ours, seen, theirs in zip(cloned.turns, taught.turns, expected.turns, strict=True):
        assert (ours.shared, ours.suffix) == (theirs.shared, theirs.suffix)
        assert ours.response_ids == theirs.response_ids
        # The picture that the teacher saw: two visits to one page need not give the same bytes.
        assert student.images.get(ours.images[-1]) == run.images.get(seen.images[-1])
    assert len(turn_rows(cloned, advantage=1.0)) == len(expected.turns)

    assert await cloned_from("eval_teacher", TaskSets([], [], [TASK])) == []
    assert "1 demonstrations solve held-out tasks, and were left out" in capsys.readouterr().out
    with pytest.raises(ValueError, match="holds no success"):
        await cloned_from("nothing", TaskSets([TASK], [], []))


def test_turns_cut_at_the_limit_get_no_end_word(preprocessor):
    """As it would be if our model had been cut there."""
    harness = make_worker(CONFIG, preprocessor).harness
    turn = Turn(0, (), (), (), "choose a", observation="Current tab: 0", finish="length")
    cut, whole = (
        tokenised(Trajectory(TASK, 0, turns=(replace(turn, finish=finish),)), harness).turns[0].response_ids
        for finish in ("length", "stop")
    )
    assert cut[-1] != preprocessor.tokenizer.eos_token_id
    assert whole == (*cut, preprocessor.tokenizer.eos_token_id)


def test_a_served_model_is_evaluated(eval_script, tmp_path, capsys):
    done = 'I am done.</think><tool_call>{"name": "done", "arguments": {"response": "done"}}</tool_call>'
    with serve([say(done)]) as server:
        flags = ["--endpoint.url", server.url, "--endpoint.model", "served/model"]
        flags += ["--name", str(tmp_path / "tiny"), "--eval.episodes", "3", "--browser.browsers", "1"]
        flags += ["--endpoint.price", "0", "1000"]
        eval_script.run(["tiny", "--sampler", "remote", *flags])
    said = capsys.readouterr().out
    assert "evaluating served/model on 3 tasks" in said
    assert "served/model: 3 requests" in said and "300 + 60 tokens, $0.06" in said
    (line,) = (tmp_path / "tiny-eval/evals.jsonl").read_text().splitlines()
    assert json.loads(line)["n"] == 3 and json.loads(line)["checkpoint"] == "served/model"


@pytest.mark.parametrize("script", [train, sft])
def test_a_served_model_is_not_trained(ended, tmp_path, script):
    code, said = ended(script, "tiny", "--sampler", "remote", "--name", str(tmp_path / "tiny"))
    assert code == 2 and said.count("\n") == 1
    assert "a served model can't be trained" in said
