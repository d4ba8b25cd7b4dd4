"""Episodes in a real Chromium, and the collecting of groups without one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pages
import pytest
import torch
from pages import HEIGHT, WIDTH, point
from workers import make_worker

from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import (
    AgentConfig,
    BrowserConfig,
    Config,
    EvalConfig,
    RewardConfig,
    RolloutConfig,
    SamplerConfig,
)
from minirl.model import Preprocessor
from minirl.recipes import RECIPES, tiny
from minirl.rollout import Collected, RolloutWorker, TaskStream
from minirl.rows import collate, turn_rows
from minirl.run_folder import Run
from minirl.types import (
    Prompt,
    Request,
    Sample,
    SamplerDied,
    SamplerError,
    Sampling,
    Stop,
    Task,
    Trajectory,
    Turn,
)
from minirl.worlds.render import SiteServer
from minirl.worlds.shop import make_shop, make_tasks

SHOP = make_shop(0)
TASK = make_tasks(SHOP, 1, 1, seed=0)[0][0]
CONFIG = replace(
    tiny(),
    agent=AgentConfig(brief=True, response_tokens=400, context_tokens=8192),
    browser=BrowserConfig(
        browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=0, action_seconds=10, private=True
    ),
)


# --- collecting, with episodes that only take time --------------------------------------------------


@contextmanager
def clock_that_jumps() -> Iterator[None]:
    """Sleeping takes no time but keeps its order, so that a busy machine can't change what ends first."""
    loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    select = loop._selector.select

    def jump(timeout: float | None) -> Any:
        nonlocal now
        now += timeout or 0
        return select(timeout and 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        patch.setattr(loop._selector, "select", jump)
        yield


@dataclass
class Plan:
    """What the episodes of a task earn, how they end, and after how many seconds."""

    rewards: Sequence[float] = (0.0, 1.0)
    stops: Sequence[Stop] = (Stop.DONE, Stop.DONE)
    delay: float = 0.0
    error: str = ""


@dataclass
class Theatre:
    """Rollouts whose episodes follow plans; task number n of the stream is `tasks[n]`."""

    plans: Sequence[Plan]
    groups: int = 2
    oversample: float = 4.0
    dynamic: bool = True
    max_steps: list[int] = field(default_factory=list)
    running: set[str] = field(default_factory=set)  # began and have not cleaned up yet
    most: int = 0  # that ran at the same time
    idled: int = 0  # how often the sampler was waited for
    failure: str = ""  # why the sampler answers no more

    def __post_init__(self) -> None:
        self.tasks = [Task(f"task-{i}", "", "http://shop-0.test/") for i in range(len(self.plans))]
        rollout = RolloutConfig(2, self.groups, self.dynamic, self.oversample, (3, 7), (1,))
        self.worker = make_worker(replace(CONFIG, rollout=rollout), sampler=self)
        self.worker.episode = self.episode

    async def episode(
        self, task: Task, member: int, policy: Any, max_steps: int, *_: Any, **__: Any
    ) -> Trajectory:
        plan = self.plans[int(task.id.removeprefix("task-"))]
        self.max_steps.append(max_steps)
        self.running.add(name := f"{task.id}/{member}/{len(self.max_steps)}")
        self.most = max(self.most, len(self.running))
        try:
            try:
                await asyncio.sleep(plan.delay)
            finally:
                await asyncio.sleep(0.1 * member)  # closing tabs, some more slowly than others
        finally:
            self.running.remove(name)
        turn = Turn(0, (1,), (2,), (-0.1,), "")
        stop, reward = plan.stops[member], plan.rewards[member]
        return Trajectory(task, member, turns=(turn,), stop=stop, reward=reward, error=plan.error)

    async def idle(self) -> None:  # the theatre is its own sampler
        assert not self.running
        self.idled += 1

    async def collect(self, cursor: int = 0, step: int = 0) -> Collected:
        """One step; afterwards nothing may still be running."""
        self.ticks: list[int] = []
        with clock_that_jumps():
            collected = await self.worker.collect(self, cursor, step, self.ticks.append)
        assert asyncio.all_tasks() == {asyncio.current_task()} and not self.running
        return collected

    def __getitem__(self, n: int) -> Task:  # a task stream in the order of the plans
        return self.tasks[n % len(self.tasks)]


def names(collected: Collected) -> list[str]:
    return [group.task.id for group in collected.groups]


EQUAL = Plan(rewards=(1.0, 1.0))


async def test_groups_are_accepted_in_the_order_of_submission():
    theatre = Theatre([Plan(delay=20), Plan(delay=10), Plan(), Plan()])
    collected = await theatre.collect()
    assert names(collected) == ["task-0", "task-1"]
    assert collected.next_cursor == 2 and collected.dropped == 0 and collected.reason == ""


async def test_groups_of_equal_rewards_are_dropped_and_counted():
    theatre = Theatre([Plan(), EQUAL, EQUAL, Plan(), Plan(), Plan()])
    collected = await theatre.collect()
    assert names(collected) == ["task-0", "task-3"]
    assert (collected.next_cursor, collected.dropped) == (4, 2)
    assert collected.submitted >= 4
    assert len(collected.finished) >= 8  # dropped episodes count in the step's success rate


async def test_without_dynamic_sampling_equal_groups_stay():
    theatre = Theatre([EQUAL, Plan(), Plan()], dynamic=False)
    collected = await theatre.collect()
    assert names(collected) == ["task-0", "task-1"] and collected.dropped == 0


async def test_what_was_cut_off_comes_again():
    theatre = Theatre([EQUAL, Plan(delay=3), Plan(delay=3), Plan(delay=50), Plan(delay=50)])
    collected = await theatre.collect()
    assert names(collected) == ["task-1", "task-2"]
    assert collected.next_cursor == 3  # whatever was submitted behind it
    collected = await theatre.collect(cursor=collected.next_cursor)
    assert names(collected) == ["task-3", "task-4"]


async def test_a_later_group_that_finished_first_and_is_not_needed_comes_again():
    """Three groups are in flight for two wanted; the third ends first and qualifies. It is not in the
    step's numbers either, so that fast episodes do not colour them."""
    theatre = Theatre([Plan(delay=10), Plan(delay=10), Plan(), Plan()])
    collected = await theatre.collect()
    assert names(collected) == ["task-0", "task-1"] and collected.submitted == 3
    assert [t.task.id for t in collected.finished] == ["task-0", "task-0", "task-1", "task-1"]
    assert collected.next_cursor == 2


async def test_no_more_groups_are_in_flight_than_there_are_slots_for_and_one():
    """What waits behind full browsers would be thrown away when the step is full."""
    theatre = Theatre([EQUAL, *[Plan(delay=1)] * 9], groups=8)
    browser = replace(CONFIG.browser, episodes=4)
    theatre.worker.config = replace(theatre.worker.config, browser=browser)
    collected = await theatre.collect()
    assert len(collected.groups) == 8 and collected.submitted <= 10
    assert theatre.most == 6  # episodes of three groups


async def test_a_step_that_finds_nothing_gives_up_with_the_reason():
    theatre = Theatre([EQUAL] * 20, oversample=3)
    collected = await theatre.collect()
    assert collected.groups == [] and collected.submitted == 6 and collected.dropped == 6
    assert collected.next_cursor == 6
    assert "gave up after 6 groups" in collected.reason and "done 12" in collected.reason


async def test_without_its_sampler_a_step_ends_at_once_and_says_why():
    """Not after the episodes that a step may try; an evaluation ends like that too."""
    theatre = Theatre([Plan(delay=100.0)] * 20, failure="out of memory")
    with pytest.raises(SamplerDied, match="out of memory"):
        await theatre.collect()
    assert not theatre.running and len(theatre.max_steps) <= 2
    with clock_that_jumps(), pytest.raises(SamplerDied, match="out of memory"):
        await theatre.worker.evaluate(theatre.tasks[:1], "after_rl", 3, lambda n: None)


async def test_what_keeps_a_step_from_finding_anything_is_told():
    """As of a judge whose key has expired; but not where most episodes failed by their own fault."""
    spoiled = Plan(stops=(Stop.JUDGE_ERROR, Stop.JUDGE_ERROR), error="a\nURL answered 401: no such key")
    for plans, told in (([spoiled] * 20, True), ([spoiled, *[EQUAL] * 20], False)):
        collected = await Theatre(plans, oversample=3).collect()
        assert collected.groups == []
        assert ("most often: URL answered 401: no such key" in collected.reason) is told
        assert ("a warm start that succeeds sometimes" in collected.reason) is not told


@pytest.mark.parametrize("how", ["drop", "mask"])
async def test_every_invalid_episode_is_in_a_group_or_beside_them(how):
    """Also if its task comes twice in a step, and nothing happens to the same member of the other group."""

    class Stops(dict[int, Stop]):
        def __getitem__(self, member: int) -> Stop:
            return self.pop(member, Stop.DONE)

    theatre = Theatre(
        [Plan((0.0, 1.0, 0.0), Stops({0: Stop.ENV_ERROR})), *[Plan((0.0,) * 3, (Stop.DONE,) * 3)] * 7]
    )
    theatre.tasks[1] = theatre.tasks[0]
    config = theatre.worker.config
    rollout, reward = replace(config.rollout, group=3), replace(config.reward, invalid=how)
    theatre.worker.config = replace(config, rollout=rollout, reward=reward)
    collected = await theatre.collect()
    grouped = [t.member for group in collected.groups for t in group.trajectories]
    alone = [t.member for t in collected.in_no_group]
    assert (grouped, alone) == (([1, 2, 0, 1, 2], [0]) if how == "drop" else ([0, 1, 2] * 2, []))


async def test_a_step_that_finds_too_little_keeps_it():
    collected = await Theatre([EQUAL, EQUAL, Plan(), *[EQUAL] * 9], oversample=3).collect()
    assert names(collected) == ["task-2"] and collected.dropped == 5 and collected.reason


async def test_episodes_that_failed_for_other_reasons_leave_their_group():
    crashed = Plan(rewards=(0.0, 1.0, 0.0), stops=(Stop.ENV_ERROR, Stop.DONE, Stop.DONE))
    lonely = Plan(rewards=(0.0, 1.0, 1.0), stops=(Stop.TIMEOUT, Stop.INFRA_ERROR, Stop.DONE))
    theatre = Theatre([lonely, crashed, crashed, crashed])
    rollout = replace(theatre.worker.config.rollout, group=3)
    theatre.worker.config = replace(theatre.worker.config, rollout=rollout)
    collected = await theatre.collect()
    assert names(collected) == ["task-1", "task-2"] and collected.dropped == 1
    assert [[t.member for t in group.trajectories] for group in collected.groups] == [[1, 2], [1, 2]]
    assert sum(t.stop is Stop.INFRA_ERROR for t in collected.finished) == 1


async def test_episodes_that_failed_for_other_reasons_can_be_masked_instead():
    """A group needs two episodes then, and a valid one among them; broken ones count as zeros, not as 1."""
    lonely = Plan(rewards=(0.0, 1.0, 1.0), stops=(Stop.TIMEOUT, Stop.INFRA_ERROR, Stop.DONE))
    broken = Plan(rewards=(0.0, 1.0, 0.0), stops=(Stop.TIMEOUT, Stop.INFRA_ERROR, Stop.CANCELLED))
    theatre = Theatre([lonely, broken, lonely, lonely])
    config = theatre.worker.config
    theatre.worker.config = replace(
        config, rollout=replace(config.rollout, group=3), reward=RewardConfig(invalid="mask")
    )
    collected = await theatre.collect()
    assert names(collected) == ["task-0", "task-2"] and collected.dropped == 1
    assert [[t.reward for t in group.trajectories] for group in collected.groups] == [[0.0, 0.0, 1.0]] * 2


async def test_nothing_runs_on_after_a_step_and_every_episode_could_clean_up():
    theatre = Theatre([Plan(delay=3), EQUAL, *[Plan(delay=3)] * 2, *[Plan(delay=1000)] * 6])
    collected = await theatre.collect()  # which looks
    assert theatre.idled == 1
    assert names(collected) == ["task-0", "task-2"] and len(collected.finished) < 2 * collected.submitted


async def test_a_step_that_is_interrupted_leaves_nothing_running():
    theatre = Theatre([Plan(delay=1000)] * 4)
    step = asyncio.create_task(theatre.collect())
    while not theatre.running:
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert asyncio.all_tasks() == {asyncio.current_task()} and not theatre.running


async def test_the_meter_never_goes_back_and_the_curriculum_is_followed():
    theatre = Theatre([Plan(delay=5), EQUAL, Plan(), Plan()])
    await theatre.collect(step=0)
    assert theatre.ticks == sorted(theatre.ticks) and theatre.ticks[-1] == 2
    assert set(theatre.max_steps) == {3}
    theatre.max_steps.clear()
    await theatre.collect(step=1)
    assert set(theatre.max_steps) == {7}


async def test_collecting_is_the_same_whatever_the_timing():
    """Which groups a step keeps may not depend on how fast the episodes are."""
    plans = [Plan(), EQUAL, Plan(), EQUAL, EQUAL, Plan(), Plan(), Plan()]
    seen = set()
    for seed in range(8):
        delays = random.Random(seed)
        theatre = Theatre([replace(plan, delay=delays.randrange(4)) for plan in plans], groups=3)
        collected = await theatre.collect()
        seen.add((*names(collected), collected.next_cursor, collected.dropped))
    assert seen == {("task-0", "task-2", "task-5", 6, 3)}


def test_a_task_stream_passes_over_all_tasks_and_is_resumed_by_its_cursor():
    tasks = [Task(str(i), "", "") for i in range(7)]
    stream = TaskStream(tasks, seed=3)
    first, second = ([stream[n].id for n in range(start, start + 7)] for start in (0, 7))
    assert sorted(first) == sorted(second) == [str(i) for i in range(7)] and first != second
    assert [TaskStream(tasks, seed=3)[n].id for n in range(7, 14)] == second
    with pytest.raises(ValueError, match="empty"):
        TaskStream([], seed=3)


# --- episodes, with a sampler that says what it is told ---------------------------------------------


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
HANG, TIP = point(340, 25), point(380, 75)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with pages.serve() as address:
        yield address


@pytest.fixture
def play(
    preprocessor: Preprocessor, tmp_path: Path, site: str
) -> Callable[..., AsyncIterator[tuple[RolloutWorker, Script, Task]]]:
    """Rollouts with a script for a sampler, and a task on the local site (or on another start page)."""

    @asynccontextmanager
    async def play(*sayings: Any, config: Config = CONFIG, start: str = "/") -> AsyncIterator[Any]:
        script = Script(preprocessor, *sayings)
        task = Task("local", "Do it.", site + start if start.startswith("/") else start)
        async with BrowserPool(config.browser) as pool:
            yield make_worker(config, preprocessor, script, pool, Run(tmp_path).images), script, task
            assert [c for p in pool.places if p.browser is not None for c in p.browser.contexts] == []
            assert {p.load for p in pool.places} == {0}

    return play


class Looking:
    """An agent that looks at the page in another way."""

    def __init__(self, agent: Any, observe: Any):
        self.agent, self.observe = agent, observe

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)


async def episode(worker: RolloutWorker, task: Task, max_steps: int = 5) -> Trajectory:
    policy = worker.policy(Sampling(), worker.config.agent.response_tokens, "test")
    return await worker.episode(task, 0, policy, max_steps)


async def test_calls_run_in_order_up_to_the_first_failure_and_to_done(play):
    bad = '{"name": "switch_tab", "arguments": {"tab_index": 9}}'
    fails, ends = saying(WAIT, bad, click(TIP), DONE), saying(click(TIP), DONE, WAIT)
    async with play(fails, ends) as (worker, _, task):
        t = await episode(worker, task)
    assert t.turns[0].feedback == (
        "wait: waited 0 s.",
        "switch_tab: failed, there is no tab 9; the last is 0.",
        "click: not executed.",
        "done: not executed.",
    )
    assert t.turns[1].feedback == (
        'click: clicked div "Tip" at [760, 187.5].',
        "done: task ended.",
        "wait: not executed.",
    )
    assert (t.stop, t.answer, t.success, t.reward) == (Stop.DONE, "it is done", True, 1.0)
    assert len(t.turns) == 2 and t.final_state == {"asked": True} and t.final_image


async def test_feedback_can_be_kept_from_the_model(play):
    """It is recorded all the same, for the judge; that a response could not be read is still told."""
    config = replace(CONFIG, agent=replace(CONFIG.agent, feedback=False))
    async with play(saying(WAIT), "hm", saying(DONE), config=config) as (worker, script, task):
        t = await episode(worker, task)
    texts = [worker.harness.preprocessor.tokenizer.decode(request.prompt.ids) for request in script.requests]
    assert t.turns[0].feedback == ("wait: waited 0 s.",) and "waited" not in texts[-1]
    assert "Error: no" not in texts[1] and "Error: no" in texts[2]


async def test_past_reasoning_can_be_kept_from_the_model(play):
    config = replace(CONFIG, agent=replace(CONFIG.agent, reasoning=False))
    sayings = (saying(WAIT, thought="my secret plan"), saying(DONE, thought="another"))
    async with play(*sayings, config=config) as (worker, script, task):
        t = await episode(worker, task)
    text = worker.harness.preprocessor.tokenizer.decode(script.requests[1].prompt.ids)
    assert "secret" not in text and '"wait"' in text and "secret" in t.turns[0].text
    assert [turn.response_ids for turn in t.turns] == [sample.ids for sample in script.samples]


async def test_tasks_on_a_host_that_does_not_open_are_passed_over(play):
    """A step in which its first page failed makes the next one look elsewhere, and both count right."""
    browser = replace(CONFIG.browser, host_failures=1, start_attempts=1)
    rollout = replace(CONFIG.rollout, group=2, groups=1, max_oversample=4, dynamic=False)
    config = replace(CONFIG, browser=browser, rollout=rollout)
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


async def test_only_done_is_verified(play):
    async with play(saying(WAIT)) as (worker, script, task):
        t = await episode(worker, task, max_steps=3)
    assert (t.stop, t.success, t.reward, len(t.turns)) == (Stop.MAX_STEPS, False, 0.0, 3)
    assert t.valid and t.final_state == {} and len(script.requests) == 3


async def test_a_protocol_may_score_what_ran_out_of_turns(play):
    """As WebArena-Lite's evaluation does, which asks the page and takes the answer as empty."""
    async with play(saying(WAIT)) as (worker, _, task):
        scored = {"succeeds_by": (Stop.DONE, Stop.MAX_STEPS)}
        (t,) = await worker.evaluate([task], "eval", 3, lambda done: None, **scored)
    assert (t.stop, t.success, t.answer, t.final_state) == (Stop.MAX_STEPS, True, "", {"asked": True})
    assert t.reward == 0.0, "training earns nothing so"


async def test_three_unparsable_responses_in_a_row_end_the_episode(play):
    async with play("hm", "hm", saying(WAIT), "hm") as (worker, _, task):
        t = await episode(worker, task, max_steps=9)
    assert (t.stop, t.reward, len(t.turns)) == (Stop.FORMAT_ERROR, -1.0, 6)
    assert t.turns[0].feedback == (t.turns[0].parsed.error,)
    assert "Error: no </think>" in t.turns[0].feedback[0]


async def test_the_same_response_five_times_in_a_row_ends_the_episode(play):
    config = replace(CONFIG, agent=replace(CONFIG.agent, repeats=5))
    same, other = saying(WAIT), saying(WAIT, thought="hm")
    async with play(*[same] * 4, other, same, config=config) as (worker, _, task):
        t = await episode(worker, task, max_steps=20)
    assert (t.stop, t.success, t.reward, len(t.turns)) == (Stop.REPEATED, False, 0.0, 10)
    assert t.valid and t.final_state == {}


@pytest.mark.parametrize("recipe", ["tiny_text", "webagent_r1_3b", "webagent_r1_8b"])
def test_the_text_agents_recipes_give_up_after_five(recipe):
    """As WebAgent-R1's evaluation does: equal outputs, or unparsable ones, in a row."""
    agent = RECIPES[recipe]().agent
    assert (agent.repeats, agent.format_errors) == (5, 5)


async def test_a_response_that_is_cut_off_ends_the_episode_without_acting(play):
    config = replace(CONFIG, agent=replace(CONFIG.agent, response_tokens=8))
    async with play(saying(click(TIP), DONE), config=config) as (worker, _, task):
        t = await episode(worker, task)
    assert (t.stop, t.reward, t.turns[0].finish, t.turns[0].parsed.calls) == (Stop.LENGTH, 0.0, "length", ())
    assert t.valid


async def test_a_prompt_that_leaves_no_room_ends_the_episode(play):
    config = replace(CONFIG, agent=replace(CONFIG.agent, context_tokens=900))
    async with play(saying(WAIT, thought="so " * 100), config=config) as (worker, script, task):
        t = await episode(worker, task, max_steps=20)
    assert t.stop is Stop.LENGTH and 1 < len(t.turns) < 20
    for request in script.requests:  # prompt and response fit into the context
        assert len(request.prompt.ids) + request.max_tokens <= 900


async def test_the_deadline_ends_an_episode(play):
    config = replace(CONFIG, browser=replace(CONFIG.browser, episode_seconds=1.5))
    long_wait = '{"name": "wait", "arguments": {"seconds": 30}}'
    async with play(saying(WAIT), saying(long_wait), config=config) as (worker, _, task):
        t = await episode(worker, task)
    assert (t.stop, t.error, t.valid) == (Stop.TIMEOUT, "the episode's deadline passed", False)
    assert t.seconds < 10


async def test_a_sampler_that_does_not_answer_or_fails_ends_the_episode(play):
    async with play(saying(WAIT), SamplerError("out of memory")) as (worker, _, task):
        t = await episode(worker, task)
    assert (t.stop, t.valid, len(t.turns)) == (Stop.SAMPLER_ERROR, False, 1) and "out of memory" in t.error


async def test_what_nobody_expects_is_an_infrastructure_error_and_its_first_traceback_is_shown(
    play, monkeypatch, capsys
):
    async with play(saying(WAIT)) as (worker, _, task):

        async def observe(session: Session) -> Any:
            raise KeyError("a bug of ours")

        worker.harness.agent = Looking(worker.harness.agent, observe)
        ended = [await episode(worker, task) for _ in range(2)]
    assert [t.stop for t in ended] == [Stop.INFRA_ERROR] * 2 and "a bug of ours" in ended[1].error
    said = capsys.readouterr().out
    assert said.count("KeyError: 'a bug of ours'") == 1 and "test_rollout.py" in said


async def test_a_start_page_that_does_not_open_is_an_error_of_the_site(play):
    async with play(saying(DONE), start="http://nothing-here.test/") as (worker, script, task):
        t = await episode(worker, task)
    assert (t.stop, t.valid, t.turns) == (Stop.SITE_ERROR, False, ()) and script.requests == []
    assert "http://nothing-here.test/ did not open" in t.error


async def test_a_page_that_hangs_is_stopped_and_the_episode_goes_on(play):
    browser = replace(CONFIG.browser, action_seconds=1)
    hangs, ends = saying(click(HANG), WAIT), saying(DONE)
    async with play(hangs, ends, config=replace(CONFIG, browser=browser)) as (worker, _, task):
        t = await episode(worker, task)
    assert (t.stop, t.success) == (Stop.DONE, True)
    failed = "click: failed, the browser did not finish in time. The page's script hung and was stopped."
    assert t.turns[0].feedback == (failed, "wait: not executed.")


async def test_a_page_that_crashes_ends_its_episode(play):
    crash: list[Session] = []

    async with play(saying(WAIT)) as (worker, _, task):
        look = worker.harness.agent.observe

        async def observe(session: Session) -> Any:
            if crash:
                await asyncio.wait([asyncio.ensure_future(session.page.goto("chrome://crash"))])
                while not session.crashed:
                    await asyncio.sleep(0.01)
            crash.append(session)
            return await look(session)

        worker.harness.agent = Looking(worker.harness.agent, observe)
        t = await episode(worker, task)
    assert (t.stop, t.valid) == (Stop.ENV_ERROR, False)


async def test_a_browser_that_is_killed_ends_only_its_own_episodes(play):
    """Four episodes in two browsers; one browser dies in their first turn."""
    sessions: list[Session] = []
    everyone_is_there = asyncio.Event()
    config = replace(CONFIG, browser=replace(CONFIG.browser, browsers=2))
    async with play(*[saying(WAIT)] * 4, saying(DONE), config=config) as (worker, _, task):
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

        worker.harness.agent = Looking(worker.harness.agent, observe)
        ended = await asyncio.gather(*(episode(worker, task) for _ in range(4)))
        assert sorted(t.stop.value for t in ended) == ["done", "done", "infra_error", "infra_error"]
        worker.harness.agent = worker.harness.agent.agent
        ended = await asyncio.gather(*(episode(worker, task) for _ in range(2)))  # one in each browser
        assert [t.stop for t in ended] == [Stop.DONE, Stop.DONE] and worker.harness.browsers.launches == 3


# --- what is trained is what was sampled --------------------------------------------------------------


@pytest.mark.parametrize("screenshots", [1, 2])
async def test_a_responses_training_tokens_are_exactly_the_sampled_ids(preprocessor, tmp_path, screenshots):
    """An episode on the shop, from the sampler's answers through the run folder to a training batch."""
    config = replace(CONFIG, agent=replace(CONFIG.agent, screenshots=screenshots))
    script = Script(
        preprocessor,
        "no call, but an old-fashioned fi\u00adgure: \U0001f6cb </think>",
        saying(click([140, 370]), thought="the  first   tile <|im_start|>"),
        saying(WAIT, WAIT, thought="wa" + "it" * 3),
        saying(click([999, 1]), DONE),
    )
    run = Run(tmp_path)
    with SiteServer([SHOP]) as server:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            worker = make_worker(config, preprocessor, script, pool, run.images, WorldBenchmark())
            t = await episode(worker, TASK)
    assert (t.stop, len(t.turns), t.success) == (Stop.DONE, 4, False)
    assert t.final_state["page"] == "CATEGORY"

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


async def test_training_and_evaluation_sample_each_in_their_own_way():
    """Training draws from the whole distribution at its temperature; evaluation as `config.eval` says."""
    asked: list[Request] = []

    class Sampler:
        failure = ""

        async def generate(self, request: Request) -> Sample:
            asked.append(request)
            return Sample((1,), (0.0,), "stop")

        async def idle(self) -> None:
            pass

    how = EvalConfig(temperature=0.6, top_p=0.95, top_k=20, response_tokens=7)
    config = replace(CONFIG, sampler=SamplerConfig(temperature=0.8), eval=how)
    worker = make_worker(config, sampler=Sampler())

    async def episode(task: Task, member: int, policy: Any, *_: Any, **__: Any) -> Trajectory:
        await policy(0, Prompt((1, 2), 0), None)
        return Trajectory(task, member)

    worker.episode = episode
    task = Task("one", "", "http://shop-0.test/")
    await worker.group(task, step=0, number=0, max_steps=3)
    await worker.evaluate([task], "eval", 3, lambda done: None)
    *trained, evaluated = asked
    assert {request.sampling for request in trained} == {Sampling(0.8, 1.0, 0)}
    assert len({request.seed for request in asked}) == len(asked), "every request has a seed of its own"
    assert (evaluated.sampling, evaluated.max_tokens) == (Sampling(0.6, 0.95, 20), 7)
