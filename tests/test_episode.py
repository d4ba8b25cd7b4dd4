"""Episodes in a real Chromium, with a sampler that says what it is told."""

import asyncio
import errno
import io
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import pytest_asyncio
import torch
from pages import HEIGHT, WIDTH, point
from PIL import Image
from shopping import PAGES, SHOP, tasks
from workers import Scored, make_worker

from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import AgentConfig, BrowserConfig, Config, RewardConfig
from minirl.episode import CUT_OFF
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.rewards import needs_verdict
from minirl.rollout import RolloutWorker, TaskStream
from minirl.rows import collate, turn_rows
from minirl.run_folder import Run
from minirl.types import (
    BrowserFault,
    Request,
    RunEnds,
    Sample,
    SamplerError,
    Sampling,
    Score,
    Stop,
    Task,
    ToolFailure,
    Trajectory,
)
from minirl.worlds.render import SiteServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

(TASK,) = tasks(1)
BROWSER = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=0, action_seconds=10, private=True)
AGENT = AgentConfig(brief=True, response_tokens=400, context_tokens=8192)
CONFIG = replace(tiny(), agent=AGENT, browser=BROWSER)


class Script:
    """A sampler that answers with texts in turn, then with its last one; an exception is raised instead.

    The texts are cut at random places and the pieces tokenised on their own, because a model does not
    sample the ids that a tokenizer would choose for the same text.
    """

    def __init__(self, preprocessor: Preprocessor, *sayings: Any):
        self.preprocessor, self.sayings = preprocessor, sayings
        self.requests: list[Request] = []
        self.samples: list[Sample] = []
        self.failure = ""

    async def idle(self) -> None:
        """It never decodes anything."""

    async def generate(self, request: Request) -> Sample:
        saying = self.sayings[min(len(self.requests), len(self.sayings) - 1)]
        self.requests.append(request)
        if isinstance(saying, BaseException):
            raise saying
        chance, tokenizer = random.Random(len(self.requests)), self.preprocessor.tokenizer
        cuts = sorted(chance.sample(range(len(saying)), len(saying) // 8))
        pieces = [saying[i:j] for i, j in zip([0, *cuts], [*cuts, None], strict=True)]
        pieces.append(tokenizer.eos_token)
        ids = [id for piece in pieces for id in tokenizer(piece, add_special_tokens=False)["input_ids"]]
        logprobs = tuple(-chance.randrange(1, 4096) / 1024 for _ in ids)  # exact in float32 as well
        finish = "length" if len(ids) > request.max_tokens else "stop"
        ids = ids[: request.max_tokens]
        self.samples.append(Sample(tuple(ids), logprobs[: len(ids)], finish, version=5))
        return self.samples[-1]


def saying(*calls: str, thought: str = "so") -> str:
    return f"{thought}</think>" + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def click(at: list[float]) -> str:
    return f'{{"name": "click", "arguments": {{"point_2d": {at}}}}}'


DONE = '{"name": "done", "arguments": {"response": "it is done"}}'
WAIT = '{"name": "wait", "arguments": {"seconds": 0}}'
OTHER = saying(WAIT, thought="hm")
TIP = point(380, 75)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browsers() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(BROWSER) as pool:
        yield pool


@pytest.fixture
def play(
    preprocessor: Preprocessor, tmp_path: Path, site: str, browsers: BrowserPool
) -> Callable[..., AsyncIterator[tuple[RolloutWorker, Script, Task]]]:
    """Rollouts with a script for a sampler, and a task on the local site (or on another start page), in the
    module's browser or in `own` ones."""

    @asynccontextmanager
    async def play(
        *sayings: Any, config: Config = CONFIG, start: str = "/", own: BrowserPool | None = None
    ) -> AsyncIterator[Any]:
        script = Script(preprocessor, *sayings)
        task = Task("local", "Do it.", site + start if start.startswith("/") else start)
        async with own or nullcontext(browsers) as pool:
            yield make_worker(config, preprocessor, script, pool, Run(tmp_path).images), script, task
            assert [c for p in pool.slots if p.browser is not None for c in p.browser.contexts] == []
            assert {p.load for p in pool.slots} == {0}

    return play


async def episode(worker: RolloutWorker, task: Task, max_steps: int = 5) -> Trajectory:
    policy = worker.policy(Sampling(), worker.config.agent.response_tokens, "test")
    return await worker.episode(task, 0, policy, max_steps)


async def test_calls_run_in_order_up_to_the_first_failure_and_to_done(play):
    bad = '{"name": "switch_tab", "arguments": {"tab_index": 9}}'
    fails, ends = saying(WAIT, bad, click(TIP), DONE), saying(click(TIP), DONE, WAIT)
    async with play(fails, ends) as (worker, _, task):
        t = await episode(worker, task)
    assert t.turns[0].feedback == (
        "Succeed: waited 0 seconds.",
        "Failed: `switch_tab` execution failed: there is no tab 9; the last is 0.",
        "`click` not executed.",
        "`done` not executed.",
    )
    assert t.turns[1].feedback == (
        'Succeed: `click` on <div> "Tip" at (760, 188) executed.',
        "Succeed: task marked as done. Response: it is done",
        "`wait` not executed.",
    )
    assert (t.stop, t.answer, t.success, t.reward) == (Stop.DONE, "it is done", True, 1.0)
    assert len(t.turns) == 2 and t.final_state == {"asked": True} and t.final_image


FLY = '{"name": "fly", "arguments": {}}'
BESIDE = '{"name": "click", "arguments": {"point_2d": [1200, 3]}}'


async def test_a_call_that_cannot_be_run_is_feedback_and_the_response_in_format(play):
    """Calls before it have run, later ones have not; three such responses do not end the episode."""
    bad = (saying(WAIT, FLY, WAIT), saying(BESIDE), saying('{"name": "done", "arguments": {}}'))
    async with play(*bad, saying(DONE)) as (worker, _, task):
        t = await episode(worker, task)
    async with play(*bad) as (worker, _, task):
        short = await episode(worker, task, max_steps=4)
    assert short.stop is Stop.MAX_STEPS
    waited, flown, other = t.turns[0].feedback
    assert (waited, other) == ("Succeed: waited 0 seconds.", "`wait` not executed.")
    assert flown.startswith("Failed: `fly` execution failed: there is no such tool; the tools")
    reason = "point_2d.0: Input should be less than or equal to 1000."
    assert t.turns[1].feedback == (f"Failed: `click` execution failed: {reason}",)
    assert t.turns[2].feedback == ("Failed: `done` execution failed: response: Field required.",)
    assert [turn.parsed.error for turn in t.turns] == [None] * 4
    assert (t.stop, t.answer, t.reward) == (Stop.DONE, "it is done", 1.0) and needs_verdict(t, "every")


async def test_feedback_and_past_reasoning_can_be_kept_from_the_model(play):
    """Both are recorded all the same; that a response could not be read is still told."""
    config = replace(CONFIG, agent=replace(CONFIG.agent, feedback=False, reasoning=False))
    sayings = (saying(WAIT, thought="my secret plan"), "hm", saying(DONE, thought="another"))
    async with play(*sayings, config=config) as (worker, script, task):
        t = await episode(worker, task)
    texts = [worker.harness.preprocessor.tokenizer.decode(request.prompt.ids) for request in script.requests]
    assert t.turns[0].feedback == ("Succeed: waited 0 seconds.",) and "waited" not in texts[-1]
    assert "Error: no" not in texts[1] and "Error: no" in texts[2]
    assert "secret" not in texts[-1] and '"wait"' in texts[-1] and "secret" in t.turns[0].text
    assert [turn.response_ids for turn in t.turns] == [sample.ids for sample in script.samples]


async def test_behind_a_thought_that_the_template_has_closed_a_response_needs_none(
    play, preprocessor, monkeypatch
):
    closed = replace(
        preprocessor.chat, to_assistant="<think></think>\n", opens_think=False, closing="</think>"
    )
    monkeypatch.setattr(preprocessor, "chat", closed)
    sayings = (saying(WAIT).partition("</think>")[2], "I end it. " + saying(DONE).partition("</think>")[2])
    async with play(*sayings) as (worker, _, task):
        t = await episode(worker, task)
    assert (t.stop, len(t.turns), t.reward) == (Stop.DONE, 2, 1.0) and needs_verdict(t, "every")


async def test_a_reward_that_is_none_is_the_runs_affair(play):
    """The episode does not count, and the step ends with the line."""

    async def reward(*_: Any) -> Score:
        raise RunEnds("it must return 0 to 1, not 5")

    async with play(saying(DONE)) as (worker, _, task):
        worker.harness.benchmark_of = lambda _: Scored(reward)
        with pytest.raises(RunEnds, match="not 5$"):
            await worker.evaluate([(task, 0)], "after_rl", 3, lambda n: None)
        t = await episode(worker, task)
    assert (t.stop, t.error, t.valid) == (Stop.JUDGE_ERROR, "it must return 0 to 1, not 5", False)


@pytest.mark.parametrize(("least", "success"), [(1.0, False), (0.8, True)])
async def test_how_much_of_a_reward_is_a_success_is_a_setting(play, least, success):
    async def reward(*_: Any) -> Score:
        return Score(0.83)

    config = replace(CONFIG, reward=RewardConfig(success=least))
    async with play(saying(DONE), config=config) as (worker, _, task):
        worker.harness.benchmark_of = lambda _: Scored(reward)
        t = await episode(worker, task)
    assert (t.reward, t.success) == (0.83, success)


async def test_screenshots_are_prepared_beside_the_event_loop(play, preprocessor, monkeypatch):
    images, threads = preprocessor.images, []
    plain = images.processor

    def watched(**given: Any) -> Any:
        threads.append(threading.current_thread())
        return plain(**given)

    monkeypatch.setattr(images, "processor", watched)
    images.prepare.cache_clear()
    async with play(saying(DONE)) as (worker, _, task):
        await episode(worker, task)
    assert threads and threading.main_thread() not in threads


async def test_a_prompt_that_fills_the_context_leaves_no_room_for_a_response(play):
    async with play(saying(DONE)) as (worker, script, task):
        await episode(worker, task)
        size = len(script.requests.pop().prompt.ids)
    for tokens, stop in ((size, Stop.LENGTH), (size + 1, Stop.LENGTH), (size + 200, Stop.DONE)):
        config = replace(CONFIG, agent=replace(AGENT, context_tokens=tokens))
        async with play(saying(DONE), config=config) as (worker, script, task):
            t = await episode(worker, task)
        assert (t.stop, len(script.requests)) == (stop, int(tokens > size))


async def test_a_full_disk_ends_the_run_at_once_and_another_error_its_episode(play):
    config = replace(CONFIG, rollout=replace(CONFIG.rollout, group=2, groups=1))
    async with play(saying(WAIT), config=config) as (worker, script, task):
        worker.harness.images = Mock(put=Mock(side_effect=PermissionError(errno.EACCES, "not allowed")))
        assert (await episode(worker, task)).stop is Stop.INFRA_ERROR
        worker.harness.images = Mock(put=Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        for run in (
            worker.collect(TaskStream([task], 0), 0, 0, lambda n: None),
            worker.evaluate([(task, 0)], "eval", 3, lambda n: None),
        ):
            with pytest.raises(OSError, match="No space left on device"):
                await run


async def test_tasks_on_a_host_that_does_not_open_are_passed_over(play, monkeypatch):
    """A step in which its first page failed makes the next one look elsewhere, and both count right."""
    monkeypatch.setattr("minirl.browser.host_backoff.MAX_FAILURES", 1)
    monkeypatch.setattr("minirl.browser.session.START_ATTEMPTS", 1)
    monkeypatch.setattr("minirl.rollout.MAX_OVERSAMPLE", 4)
    rollout = replace(CONFIG.rollout, group=2, groups=1, dynamic=False)
    config = replace(CONFIG, rollout=rollout)
    async with play(saying(DONE), config=config) as (worker, _, task):
        bad = replace(task, id="bad", start_url="http://nothing-here.test/")
        stream = TaskStream([task, bad], 0)
        order = [stream[n].id for n in range(4)]
        start = order.index("bad")
        first = await worker.collect(stream, start, 0, lambda n: None)
        assert worker.hosts.left_out(bad) and {t.stop for t in first.finished} > {Stop.SITE_ERROR}
        second = await worker.collect(stream, start, 0, lambda n: None)
        assert {t.task.id for t in second.finished} == {"local"}
        assert second.next_cursor == next(n for n in range(start, 4) if order[n] == "local") + 1
        alone = await worker.collect(TaskStream([bad], 0), 0, 0, lambda n: None)
    assert {t.stop for t in alone.finished} == {Stop.SITE_ERROR}  # where all are left out, none is


@pytest.mark.parametrize(
    ("sayings", "agent", "max_steps", "stop", "reward", "turns"),
    [
        ([saying(WAIT)], {}, 3, Stop.MAX_STEPS, 0.0, 3),
        (["hm", "hm", saying(WAIT), "hm"], {}, 9, Stop.FORMAT_ERROR, -1.0, 6),  # three in a row
        ([*[saying(WAIT)] * 4, OTHER, saying(WAIT)], {"repeats": 5}, 20, Stop.REPEATED, 0.0, 10),
        (["hm"], {"format_errors": 0}, 5, Stop.MAX_STEPS, 0.0, 5),
        ([saying(click(TIP), DONE)], {"response_tokens": 8}, 5, Stop.LENGTH, 0.0, 1),  # no call is read
    ],
    ids=["turns", "unparsable", "repeated", "unparsable for ever", "cut off"],
)
async def test_what_an_agent_ends_without_done_is_valid_and_not_verified(
    play, sayings, agent, max_steps, stop, reward, turns
):
    config = replace(CONFIG, agent=replace(CONFIG.agent, **agent))
    async with play(*sayings, config=config) as (worker, script, task):
        t = await episode(worker, task, max_steps)
    assert (t.stop, t.success, t.reward, len(t.turns)) == (stop, False, reward, turns)
    assert t.valid and t.final_state == {} and len(script.requests) == turns
    if stop is Stop.FORMAT_ERROR:
        assert t.turns[0].feedback == (t.turns[0].parsed.error,)
        assert "Error: no </think>" in t.turns[0].feedback[0]
    if stop is Stop.LENGTH:
        assert (t.turns[0].finish, t.turns[0].parsed.calls) == ("length", ())


@pytest.mark.parametrize(
    ("agent", "stop"),
    [
        ({"format_errors": 3}, Stop.FORMAT_ERROR),
        ({"format_errors": 0}, Stop.MAX_STEPS),
    ],
)
async def test_a_cut_response_costs_the_text_agent_a_turn(play, agent, stop):
    """In the history it has the end that it lacks, as the chat template writes it."""
    settings = {"kind": "text", "response_tokens": 8, "feedback": False} | agent
    config = replace(CONFIG, agent=replace(CONFIG.agent, **settings))
    said = "<think> a long story about mugs and plates and mugs </think> <answer> exit() </answer>"
    async with play(said, config=config) as (worker, script, task):
        t = await episode(worker, task, 6)
    assert t.stop is stop and len(t.turns) == (3 if stop is Stop.FORMAT_ERROR else 6)
    assert t.turns[0].finish == "length" and t.turns[0].feedback == (CUT_OFF.error,)
    preprocessor = worker.harness.preprocessor
    end, cut = preprocessor.tokenizer.eos_token_id, script.samples[0].ids
    ids = script.requests[1].prompt.ids
    at = next(i for i in range(len(ids)) if ids[i : i + len(cut)] == cut)
    rest = preprocessor.tokenizer.decode(ids[at + len(cut) :])
    assert ids[at + len(cut)] == end
    assert rest.startswith(f"{preprocessor.tokenizer.eos_token}{preprocessor.chat.close}")


async def test_what_keeps_visitors_out_at_the_end_is_noted_after_the_turns(play, monkeypatch):
    """Asked once, of the last page; the rules' success stays one, and a page that is never left is no reason
    to ask more often. An episode that the browser spoiled is not asked about."""
    asked = []

    async def blocked(session: Session) -> str:
        asked.append(session.page.url)
        return "it answered 429"

    monkeypatch.setattr(Session, "blocked", blocked)
    async with play(saying(WAIT), saying(DONE)) as (worker, _, task):
        won = await episode(worker, task)
    assert (won.stop, won.success, won.blocked) == (Stop.DONE, True, "it answered 429")
    async with play(saying(WAIT)) as (worker, _, task):
        lost = await episode(worker, task, max_steps=2)
    assert (lost.stop, lost.success, lost.valid, len(lost.turns)) == (Stop.BLOCKED, False, False, 2)
    assert lost.error == "blocked: it answered 429" and asked == [task.start_url] * 2
    async with play(SamplerError("gone")) as (worker, _, task):
        spoiled = await episode(worker, task)
    assert (spoiled.stop, spoiled.blocked, len(asked)) == (Stop.SAMPLER_ERROR, "", 2)


@pytest.mark.parametrize(
    ("sayings", "stop"),
    [
        ([saying(WAIT)], Stop.MAX_STEPS),
        (["hm"], Stop.FORMAT_ERROR),
        ([SamplerError("no")], Stop.SAMPLER_ERROR),
    ],
)
async def test_what_did_not_end_with_done_may_be_scored_too(play, sayings, stop):
    """As in WebAgent-R1, which asks the page and takes the answer as empty."""
    config = replace(CONFIG, reward=RewardConfig(after="any"))
    async with play(*sayings, config=config) as (worker, _, task):
        (t,) = await worker.evaluate([(task, 0)], "eval", 3, lambda done: None)
    graded = stop.is_agent_fault
    assert (t.stop, t.success, t.reward, t.answer) == (stop, graded, float(graded), "")
    assert t.final_state == ({"asked": True} if graded else {})


async def test_a_prompt_that_leaves_no_room_ends_the_episode(play):
    config = replace(CONFIG, agent=replace(CONFIG.agent, context_tokens=900))
    async with play(saying(WAIT, thought="so " * 100), config=config) as (worker, script, task):
        t = await episode(worker, task, max_steps=20)
    assert t.stop is Stop.LENGTH and 1 < len(t.turns) < 20
    for request in script.requests:  # prompt and response fit into the context
        assert len(request.prompt.ids) + request.max_tokens <= 900


LONG_WAIT = '{"name": "wait", "arguments": {"seconds": 30}}'


@pytest.mark.parametrize(
    ("sayings", "start", "seconds", "stop", "error", "requests"),
    [
        ([saying(WAIT), saying(LONG_WAIT)], "/", 1.5, Stop.TIMEOUT, "the episode's deadline passed", 2),
        ([saying(WAIT), SamplerError("out of memory")], "/", 60, Stop.SAMPLER_ERROR, "out of memory", 2),
        ([], "http://nothing-here.test/", 60, Stop.SITE_ERROR, "nothing-here.test/ did not open", 0),
    ],
    ids=["deadline", "sampler", "start page"],
)
async def test_what_the_agent_is_not_to_blame_for_ends_an_episode_as_invalid(
    play, sayings, start, seconds, stop, error, requests
):
    config = replace(CONFIG, browser=replace(BROWSER, episode_seconds=seconds))
    async with play(*sayings, config=config, start=start) as (worker, script, task):
        t = await episode(worker, task)
    assert (t.stop, t.valid, len(script.requests)) == (stop, False, requests) and error in t.error
    assert len(t.turns) <= requests and t.seconds < 10


async def test_what_nobody_expects_is_an_infrastructure_error_and_its_first_traceback_is_shown(play, capsys):
    async with play(saying(WAIT)) as (worker, _, task):

        async def observe(session: Session) -> Any:
            raise KeyError("a bug of ours")

        worker.harness.agent.observe = observe
        ended = [await episode(worker, task) for _ in range(2)]
    assert [t.stop for t in ended] == [Stop.INFRA_ERROR] * 2 and "a bug of ours" in ended[1].error
    said = capsys.readouterr().err
    assert said.count("KeyError: 'a bug of ours'") == 1 and "test_episode.py" in said


async def test_what_the_agent_has_not_saved_keeps_no_rule_out(play, site):
    """A form that was begun asks whether it may be left, and is."""
    write = saying(click(point(50, 20)), '{"name": "write", "arguments": {"message": "a draft"}}')

    async def reward(task: Task, session: Session, answer: str) -> Score:
        await session.start(f"{site}/two")
        return Score(float(await session.page.title() == "Two"))

    async with play(write, saying(DONE), start="/unsaved") as (worker, _, task):
        worker.harness.benchmark_of = lambda _: Scored(reward)
        t = await episode(worker, task)
    assert (t.stop, t.success, t.error) == (Stop.DONE, True, "")


async def test_what_is_shown_after_an_action_that_failed_is_from_after_it(play):
    """The click's own look at the page, for its effect, is older than what the click has done. Its page
    hangs, is stopped, and the episode goes on."""
    own = BrowserPool(replace(BROWSER, action_seconds=2))
    wait = '{"name": "wait", "arguments": {"seconds": 0.1}}'
    sayings = (saying(wait, click(point(50, 20)), WAIT), saying(DONE))
    async with play(*sayings, own=own, start="/red") as (worker, _, task):
        t = await episode(worker, task)
        picture = Image.open(io.BytesIO(worker.harness.images.get(t.turns[1].images[0])))
    assert (t.stop, t.success) == (Stop.DONE, True)
    reason = "the browser did not finish in time. The page's script hung and was stopped."
    failed = f"Failed: `click` execution failed: {reason}"
    assert t.turns[0].feedback[1:] == (failed, "`wait` not executed.")
    assert picture.convert("RGB").getpixel((WIDTH - 5, HEIGHT - 5)) == (255, 0, 0)


HANGS = BrowserFault(Stop.ENV_ERROR, "it hangs")
GONE = BrowserFault(Stop.INFRA_ERROR, "gone")
FAILS = ToolFailure("no")


@pytest.mark.parametrize(
    ("fault", "said", "repeats"),
    [(HANGS, DONE, 0), (GONE, DONE, 0), (FAILS, DONE, 0), (GONE, WAIT, 0), (FAILS, WAIT, 1)],
)
async def test_an_answer_counts_though_the_last_look_at_the_page_fails(play, fault, said, repeats):
    """The control says something else than `done`, or may not say it again."""
    config = replace(CONFIG, agent=replace(AGENT, repeats=repeats))
    async with play(saying(said), config=config) as (worker, _, task):
        look, looks = worker.harness.agent.observe, []

        async def observe(session: Session) -> Any:
            looks.append(session)
            if len(looks) > 1:
                raise fault
            return await look(session)

        worker.harness.agent.observe = observe
        t = await episode(worker, task)
    assert len(looks) == 2 and len(t.turns) == 1 and t.final_image == ""
    if said is DONE:
        assert (t.stop, t.answer, t.success, t.reward, t.valid) == (Stop.DONE, "it is done", True, 1.0, True)
    else:
        assert t.stop is getattr(fault, "stop", Stop.ENV_ERROR) and not t.valid and not t.success


@pytest.mark.more  # tests/browser/test_session.py kills one with two sessions
async def test_a_browser_that_is_killed_ends_only_its_own_episodes(play):
    """Four episodes in two browsers; one browser dies in their first turn."""
    sessions: list[Session] = []
    everyone_is_there = asyncio.Event()
    own = BrowserPool(replace(BROWSER, browsers=2))
    async with play(*[saying(WAIT)] * 4, saying(DONE), own=own) as (worker, _, task):
        look = worker.harness.agent.observe

        async def observe(session: Session) -> Any:
            if session not in sessions:
                sessions.append(session)
                if len(sessions) == 4:
                    cdp = await sessions[0].context.browser.new_browser_cdp_session()
                    processes = (await cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
                    victim = next(process["id"] for process in processes if process["type"] == "browser")
                    os.kill(victim, signal.SIGKILL)
                    everyone_is_there.set()
                await everyone_is_there.wait()
            return await look(session)

        worker.harness.agent.observe = observe
        ended = await asyncio.gather(*(episode(worker, task) for _ in range(4)))
        assert sorted(t.stop.value for t in ended) == ["done", "done", "infra_error", "infra_error"]
        worker.harness.agent.observe = look
        ended = await asyncio.gather(*(episode(worker, task) for _ in range(2)))  # one in each browser
        assert [t.stop for t in ended] == [Stop.DONE, Stop.DONE] and worker.harness.browsers.launches == 3


# --- what is trained is what was sampled --------------------------------------------------------------


@pytest.mark.parametrize("screenshots", [pytest.param(1, marks=pytest.mark.more), 2])
async def test_a_responses_training_tokens_are_exactly_the_sampled_ids(preprocessor, tmp_path, screenshots):
    """An episode on the shop, from the sampler's answers through the run folder to a training batch."""
    config = replace(CONFIG, agent=replace(CONFIG.agent, screenshots=screenshots))
    config = replace(config, loss=replace(config.loss, credit="gigpo"))
    script = Script(
        preprocessor,
        "no call, but an old-fashioned fi\u00adgure: \U0001f6cb </think>",
        saying(click([531, 875]), thought="the  first   tile <|im_start|>"),
        saying(WAIT, WAIT, thought="wa" + "it" * 3),
        saying(click([999, 1]), DONE),
    )
    run = Run(tmp_path)
    with SiteServer([SHOP]) as server:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            worker = make_worker(config, preprocessor, script, pool, run.images, WorldBenchmark())
            t = await episode(worker, TASK)
    assert (t.stop, len(t.turns), t.success) == (Stop.DONE, 4, False)
    assert t.final_state == {"page": PAGES[0], "signature": {"product": "sable", "category": None}}
    before, same, clicked, waited = (turn.state for turn in t.turns)
    assert before == same != clicked == waited, "neither an unreadable response nor waiting changes it"
    assert clicked == f'{PAGES[0]} {{"category":null,"product":"sable"}}'

    for turn in t.turns:  # otherwise this test could not tell kept ids from ids made anew
        assert turn.response_ids != tuple(preprocessor.tokenizer(turn.text)["input_ids"])
    run.save_trajectories("step_00001", [t])
    (t,) = run.load_trajectories("step_00001")
    rows = turn_rows(t, advantage=0.5)
    assert len(rows) == len(script.requests) == 4
    for i, (row, turn) in enumerate(zip(rows, t.turns, strict=True)):
        request, sample = script.requests[i], script.samples[i]
        assert row.ids[: row.start] == request.prompt.ids
        assert row.ids[row.start :] == sample.ids == turn.response_ids
        assert row.old == sample.logprobs == turn.logprobs
        assert tuple(map(run.images.get, row.images)) == request.prompt.images
        assert len(row.images) == min(i + 1, screenshots) and turn.version == 5
        if i:  # earlier responses are in the prompt as they were sampled
            before = "".join(map(chr, rows[i - 1].ids[rows[i - 1].start :]))
            assert before in "".join(map(chr, row.ids[: row.start]))

    batch = collate(rows, preprocessor, run.images, torch.device("cpu"))
    flat = batch.inputs["input_ids"].flatten()
    assert batch.targets_N.tolist() == [i for sample in script.samples for i in sample.ids]
    assert flat[batch.sources_N + 1].tolist() == batch.targets_N.tolist()  # predicted one position earlier
    assert batch.old_N.tolist() == [lp for sample in script.samples for lp in sample.logprobs]
    assert set(batch.advantage_N.tolist()) == {0.5}
