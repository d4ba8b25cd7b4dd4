"""Collecting groups, with episodes that only take time; tests/test_episode.py plays real ones."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from unittest.mock import AsyncMock, Mock

import pytest
from peers import Idle
from workers import Scored, make_worker

from minirl.config import AgentConfig, EvalConfig, RewardConfig, RolloutConfig, SamplerConfig
from minirl.episode import Episode
from minirl.recipes import tiny
from minirl.rollout import Collected, TaskStream
from minirl.types import Prompt, Request, RunEnds, Sample, Sampling, Score, Stop, Task, Trajectory, Turn

CONFIG = replace(tiny(), agent=AgentConfig(brief=True, response_tokens=400, context_tokens=8192))


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


@pytest.fixture(autouse=True)
def few_tries(monkeypatch):
    monkeypatch.setattr("minirl.rollout.MAX_OVERSAMPLE", 3)


@dataclass
class Theatre:
    """Rollouts whose episodes follow plans; task number n of the stream is `tasks[n]`."""

    plans: Sequence[Plan]
    groups: int = 2
    dynamic: bool = True
    group: int = 2
    invalid: Literal["drop", "mask"] = "drop"
    dump_all: bool = False
    max_steps: list[int] = field(default_factory=list)
    running: set[str] = field(default_factory=set)  # began and have not cleaned up yet
    most: int = 0  # that ran at the same time
    idled: int = 0  # how often the sampler was waited for
    failure: str = ""  # why the sampler answers no more

    def __post_init__(self) -> None:
        self.tasks = [Task(f"task-{i}", "", "http://shop-0.test/") for i in range(len(self.plans))]
        rollout = RolloutConfig(self.group, self.groups, self.dynamic, (3, 1, 7), dump_all=self.dump_all)
        config = replace(CONFIG, rollout=rollout, reward=RewardConfig(invalid=self.invalid))
        self.worker = make_worker(config, sampler=self)
        self.worker.episode = self.episode

    async def episode(self, task: Task, member: int, policy: Any, max_steps: int, *_: Any) -> Trajectory:
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
    return [group[0].task.id for group in collected.groups]


EQUAL = Plan(rewards=(1.0, 1.0))


@pytest.mark.parametrize(
    ("plans", "dynamic", "kept", "next_cursor"),
    [
        ([Plan(delay=20), Plan(delay=10), Plan(), Plan()], True, [0, 1], 2),  # in the order of submission
        ([Plan(), EQUAL, EQUAL, Plan(), Plan(), Plan()], True, [0, 3], 4),  # without those of equal rewards
        ([EQUAL, Plan(), Plan()], False, [0, 1], 2),  # unless sampling is not dynamic
        # whatever was submitted behind the last one that is needed, and was cut off, comes again
        ([EQUAL, Plan(delay=3), Plan(delay=3), Plan(delay=50), Plan(delay=50)], True, [1, 2], 3),
        ([EQUAL, EQUAL, Plan(), *[EQUAL] * 9], True, [2], 6),  # too little is kept, and the reason told
    ],
)
async def test_the_groups_that_a_step_keeps(plans, dynamic, kept, next_cursor):
    """Dropped episodes count in the step's numbers; those beyond the last group that was needed do not."""
    theatre = Theatre(plans, dynamic=dynamic)
    collected = await theatre.collect()  # which looks that nothing runs on
    assert names(collected) == [f"task-{n}" for n in kept] and theatre.idled == 1
    assert (collected.next_cursor, collected.dropped) == (next_cursor, next_cursor - len(kept))
    assert collected.submitted >= next_cursor and (collected.reason == "") == (len(kept) == 2)
    tasks = [f"task-{n}" for n in range(next_cursor) for _ in range(2)]
    assert [t.task.id for t in collected.finished] == tasks


async def test_without_dynamic_sampling_no_group_is_begun_beyond_those_needed_but_for_lost_ones():
    """Sixteen wanted and room for all; the first guess of three in four kept would begin 22."""
    plans = [Plan(delay=1)] * 30
    theatre = Theatre(plans, groups=16, dynamic=False)
    theatre.worker.share = 64
    assert (await theatre.collect()).submitted == 16 and theatre.most == 32
    plans[3] = plans[7] = Plan(stops=(Stop.DONE, Stop.ENV_ERROR))  # a group with one valid episode is lost
    theatre = Theatre(plans, groups=16, dynamic=False)
    collected = await theatre.collect()
    assert (collected.submitted, collected.dropped, len(collected.groups)) == (18, 2, 16)
    theatre = Theatre([Plan(delay=1)] * 30, groups=16)
    theatre.worker.share = 64
    assert (await theatre.collect()).submitted == 22, "with it, as before"


async def test_no_more_groups_are_in_flight_than_there_are_slots_for_and_one():
    """What waits behind full browsers would be thrown away when the step is full."""
    theatre = Theatre([EQUAL, *[Plan(delay=1)] * 9], groups=8)
    theatre.worker.share = 4
    collected = await theatre.collect()
    assert len(collected.groups) == 8 and collected.submitted <= 10
    assert theatre.most == 6  # episodes of three groups


@pytest.mark.parametrize("part", ["sampler", "harness"])
async def test_what_cannot_go_on_ends_a_step_at_once_and_says_why(part):
    """A sampler that is lost, or episodes that can't be rewarded; not after the episodes that a step may try.
    An evaluation ends like that too."""
    theatre = Theatre([Plan(delay=100.0)] * 20)
    getattr(theatre.worker, part).failure = "out of memory"
    with pytest.raises(RunEnds, match="out of memory"):
        await theatre.collect()
    assert not theatre.running and len(theatre.max_steps) <= 2
    with clock_that_jumps(), pytest.raises(RunEnds, match="out of memory"):
        await theatre.worker.evaluate([(theatre.tasks[0], 0)], "after_rl", 3, lambda n: None)


@pytest.mark.parametrize(("seconds", "stop"), [(70, Stop.DONE), (130, Stop.TIMEOUT)])
async def test_scoring_takes_none_of_an_episodes_time_and_has_as_long(
    preprocessor, monkeypatch, seconds, stop
):
    """Rules look longer at a page that does not meet them: of late episodes only failures would be lost."""

    async def take_turns(self: Episode, session: Any) -> None:
        await asyncio.sleep(100)  # of 120
        self.stop = Stop.DONE

    async def score(*_: Any) -> Score:
        await asyncio.sleep(seconds)
        return Score(0.0)

    monkeypatch.setattr(Episode, "_take_turns", take_turns)
    session = AsyncMock()
    session.blocked.return_value = ""
    session.__aenter__.return_value = session
    session.__aexit__.return_value = None
    browsers = Mock(session=lambda: session)
    worker = make_worker(CONFIG, preprocessor, browsers=browsers, benchmark=Scored(score))
    with clock_that_jumps():
        trajectory = await worker.episode(Task("t", "", ""), 0, worker.policy(Sampling(), 9), 3)
    assert trajectory.stop is stop


SPOILED = Plan(stops=(Stop.JUDGE_ERROR, Stop.JUDGE_ERROR))
BUG = replace(SPOILED, error="Traceback\n  in f\nKeyError: 'x'\n")


@pytest.mark.parametrize(
    ("plans", "reason"),
    [
        ([EQUAL] * 20, "of 12 episodes 0 succeeded (done 12); a warm start that succeeds sometimes"),
        # as of a judge whose key has expired
        ([SPOILED] * 20, "of 12 episodes 0 succeeded (judge_error 12)"),
        ([replace(SPOILED, error="401: the key is wrong")] * 20, "succeeded (401: the key is wrong 12)"),
        ([EQUAL, BUG, BUG] * 9, "succeeded (KeyError: 'x' 8, done 4)"),
    ],
)
async def test_a_step_that_finds_nothing_gives_up_with_the_reason(plans, reason):
    collected = await Theatre(plans).collect()
    assert (collected.groups, collected.submitted, collected.dropped, collected.next_cursor) == ([], 6, 6, 6)
    assert "gave up after 6 groups" in collected.reason and reason in collected.reason


@pytest.mark.parametrize("how", ["drop", "mask"])
async def test_every_invalid_episode_is_in_a_group_or_beside_them(how):
    """Also if its task comes twice in a step, and nothing happens to the same member of the other group."""

    class Stops(dict[int, Stop]):
        def __getitem__(self, member: int) -> Stop:
            return self.pop(member, Stop.DONE)

    plan, equal = Plan((0.0, 1.0, 0.0), Stops({0: Stop.ENV_ERROR})), Plan((0.0,) * 3, (Stop.DONE,) * 3)
    theatre = Theatre([plan, *[equal] * 7], group=3, invalid=how)
    theatre.tasks[1] = theatre.tasks[0]
    collected = await theatre.collect()
    grouped = [t.member for group in collected.groups for t in group]
    alone = [t.member for t in collected.in_no_group]
    assert (grouped, alone) == (([1, 2, 0, 1, 2], [0]) if how == "drop" else ([0, 1, 2] * 2, []))


BROKEN = Plan(stops=(Stop.ENV_ERROR, Stop.DONE))


@pytest.mark.parametrize("dump_all", [False, True])
@pytest.mark.parametrize(
    ("plans", "kept", "always", "on_demand"),
    [
        # two groups kept, one without a difference, one broken
        (
            [Plan(), EQUAL, BROKEN, Plan(), *[replace(EQUAL, delay=9)] * 4],
            [0, 3],
            [(2, 0)],
            [(1, 0), (1, 1), (2, 1)],
        ),
        # one that ended and was not needed, which changes nothing else: its task comes again
        ([Plan(delay=10), Plan(delay=10), Plan(), Plan(delay=99)], [0, 1], [], [(2, 0), (2, 1)]),
    ],
    ids=["dropped", "not needed"],
)
async def test_groups_that_are_not_kept_are_dumped_on_demand(plans, kept, always, on_demand, dump_all):
    """Each episode once, whatever ended it; those in the step's numbers are the same either way."""
    collected = await Theatre(plans, dump_all=dump_all).collect()
    assert names(collected) == [f"task-{n}" for n in kept] and collected.next_cursor == kept[-1] + 1
    expected = sorted(always + on_demand) if dump_all else always
    assert [(t.task.id, t.member) for t in collected.in_no_group] == [(f"task-{n}", m) for n, m in expected]
    assert len(collected.finished) == 2 * collected.next_cursor


LONELY = Plan(rewards=(0.0, 1.0, 1.0), stops=(Stop.TIMEOUT, Stop.INFRA_ERROR, Stop.DONE))
CRASHED = Plan(rewards=(0.0, 1.0, 0.0), stops=(Stop.ENV_ERROR, Stop.DONE, Stop.DONE))
ALL_BROKEN = Plan(rewards=(0.0, 1.0, 0.0), stops=(Stop.TIMEOUT, Stop.INFRA_ERROR, Stop.ENV_ERROR))


@pytest.mark.parametrize(
    ("invalid", "plans", "kept", "members", "rewards"),
    [
        ("drop", [LONELY, *[CRASHED] * 3], ["task-1", "task-2"], [1, 2], [1.0, 0.0]),
        # masked, a group needs a valid episode, and broken ones count as zeros, not as 1
        ("mask", [LONELY, ALL_BROKEN, LONELY, LONELY], ["task-0", "task-2"], [0, 1, 2], [0.0, 0.0, 1.0]),
    ],
)
async def test_episodes_that_failed_for_other_reasons_leave_their_group_or_are_masked(
    invalid, plans, kept, members, rewards
):
    collected = await Theatre(plans, group=3, invalid=invalid).collect()
    assert names(collected) == kept and collected.dropped == 1
    assert [[t.member for t in group] for group in collected.groups] == [members] * 2
    assert [[t.reward for t in group] for group in collected.groups] == [rewards] * 2
    infra_errors = sum(plan.stops.count(Stop.INFRA_ERROR) for plan in plans[: collected.next_cursor])
    assert sum(t.stop is Stop.INFRA_ERROR for t in collected.finished) == infra_errors


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


def test_a_task_stream_passes_over_all_tasks_and_is_resumed_by_its_cursor(monkeypatch):
    tasks = [Task(str(i), "", "") for i in range(7)]
    stream = TaskStream(tasks, seed=3)
    shuffled = Mock(wraps=random.Random)
    monkeypatch.setattr("random.Random", shuffled)
    first, second = ([stream[n].id for n in range(start, start + 7)] for start in (0, 7))
    assert shuffled.call_count == 2, "once a pass"
    assert sorted(first) == sorted(second) == [str(i) for i in range(7)] and first != second
    assert [TaskStream(tasks, seed=3)[n].id for n in range(7, 14)] == second
    with pytest.raises(ValueError, match="empty"):  # of a replay, which takes none, it may be
        TaskStream([], seed=3)[0]


async def test_training_and_evaluation_sample_each_in_their_own_way():
    """Training draws from the whole distribution at its temperature; evaluation as `config.eval` says. Every
    turn, member, step and run has seeds of its own."""
    asked: list[Request] = []

    class Sampler(Idle):
        async def generate(self, request: Request) -> Sample:
            asked.append(request)
            return Sample((1,), (0.0,), "stop")

    how = EvalConfig(temperature=0.6, top_p=0.95, top_k=20, response_tokens=7)
    config = replace(CONFIG, sampler=SamplerConfig(temperature=0.8), eval=how)
    worker = make_worker(config, sampler=Sampler())

    async def episode(task: Task, member: int, policy: Any, *_: Any, **__: Any) -> Trajectory:
        for t in range(2):
            await policy(t, Prompt((1, 2), 0), None)
        return Trajectory(task, member)

    other = make_worker(replace(config, seed=1), sampler=worker.sampler)
    worker.episode = other.episode = episode
    task = Task("one", "", "http://shop-0.test/")
    for step in (0, 1):  # a task that was cut off comes again, at the same place in the stream
        await worker.group(task, step, number=0, max_steps=3)
    await other.group(task, step=0, number=0, max_steps=3)
    await worker.evaluate([(task, 0)], "eval", 3, lambda done: None)
    *trained, evaluated, _ = asked
    assert len(asked) == 2 * (3 * config.rollout.group + 1)
    assert {request.sampling for request in trained} == {Sampling(0.8, 1.0, 0)}
    assert len({request.seed for request in asked}) == len(asked)
    assert (evaluated.sampling, evaluated.max_tokens) == (Sampling(0.6, 0.95, 20), 7)
    assert {request.seconds for request in asked} == {120}, "table 8's"
