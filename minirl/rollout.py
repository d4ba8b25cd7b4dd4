"""Groups and dynamic sampling: where a step's trajectories come from.

    TaskStream --tasks--> group of G episodes --rewards--> kept if they differ --> N groups of a step

All episodes of a rank (minirl/episode.py) live in one asyncio loop, each in its own browser context.
OpenWebRL section 3.4. Deviations from the released code: groups are accepted in the order of submission,
since the order of completion would favour fast tasks, and so a step's batch does not depend on timing, up to
floating point and timeouts; tasks that are cut off at a step's end go back to the stream. There is no limit
on how long cancelled episodes may take to end (30 s in table 7); closing their contexts has one (15 s).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Protocol

from torch import Tensor

from minirl.advantages import Gates, gate, is_effective, make_group, needs_verdict
from minirl.console import say
from minirl.distributed import Ranks, TaskQueue
from minirl.episode import Episode, Harness, PolicyFn
from minirl.model import request_seed
from minirl.types import (
    BY_DONE,
    Group,
    Judge,
    Prompt,
    Request,
    Sample,
    Sampler,
    SamplerDied,
    Sampling,
    Session,
    Stop,
    Task,
    Trajectory,
    billed,
)

POLL_SECONDS = 0.2  # between two looks at what other ranks have finished


class TaskStream:
    """Tasks without end: every pass over the set in another order. The n-th task is a function of the
    seed and n, so a run is resumed by its cursor alone."""

    def __init__(self, tasks: Sequence[Task], seed: int):
        if not tasks:
            raise ValueError("the task set is empty")
        self.tasks, self.seed = tasks, seed

    def __getitem__(self, n: int) -> Task:
        order = list(range(len(self.tasks)))
        random.Random(f"{self.seed}|{n // len(order)}").shuffle(order)
        return self.tasks[order[n % len(order)]]


class HostBackoff(Protocol):
    """Leaves out hosts whose first pages fail: minirl/browser/host_backoff.py."""

    def note(self, trajectory: Trajectory) -> None: ...
    def agree(self, ranks: Ranks) -> list[str]: ...
    def left_out(self, task: Task) -> bool: ...


@dataclass
class Collected:
    """A step's groups, and what it took to get them."""

    groups: list[Group]
    next_cursor: int  # where the task stream goes on
    finished: list[Trajectory]  # every episode of the groups up to the last accepted one, kept or not
    submitted: int
    dropped: int  # groups without a difference in rewards, or with fewer than two valid episodes
    reason: str = ""  # why fewer groups than asked for
    in_no_group: list[Trajectory] = field(default_factory=list)  # the invalid episodes, unless masked in one


@dataclass
class RolloutWorker:
    """Runs this rank's share of episodes with one sampler and one judge. All ranks call `collect` and
    `evaluate` together, and both return the same on all of them."""

    harness: Harness
    sampler: Sampler
    ranks: Ranks
    hosts: HostBackoff
    judge: Judge | None = None
    collections: int = 0

    def __post_init__(self) -> None:
        self.config = self.harness.config
        self.slots = asyncio.Semaphore(self.config.browser.episodes)

    # --- one episode, one group --------------------------------------------------------------------------

    def policy(self, sampling: Sampling, response_tokens: int, *names: object) -> PolicyFn:
        """Return the policy that asks the sampler, with a seed made of the names and the turn."""

        async def ask(t: int, prompt: Prompt, session: Session) -> Sample:
            room = self.config.agent.context_tokens - len(prompt.ids)
            seed = request_seed(self.config.seed, *names, t)
            return await self.sampler.generate(Request(prompt, seed, min(response_tokens, room), sampling))

        return ask

    async def episode(
        self,
        task: Task,
        member: int,
        policy: PolicyFn,
        max_steps: int,
        gates: Gates = "none",
        succeeds_by: tuple[Stop, ...] = BY_DONE,
    ) -> Trajectory:
        """Run one episode; return it with the reward of its task's rules or, where it has none, the judge's.

        Training sets `gates` before the judge, and asks it with `--reward.by judge` even where the task
        itself can tell; evaluations and demonstrations go by the truth. `succeeds_by` is Episode's.
        """
        judged = self.harness.benchmark_of(task).judged
        with billed() as bill:
            async with self.slots:
                trajectory = await Episode(self.harness, task, member, policy, max_steps, succeeds_by).run()
                self.hosts.note(trajectory)
            if judged or (gates != "none" and self.config.reward.by == "judge"):
                trajectory = await self._judge(trajectory, gates, judged)
        return replace(trajectory, dollars=bill.dollars)

    async def _judge(self, trajectory: Trajectory, gates: Gates, judged: bool) -> Trajectory:
        """Return the episode with the judge's reward. Its success is the judge's only if `judged`: if the
        task has no rules that have told it already."""
        if self.judge is None or not trajectory.valid:
            return trajectory
        if needs_verdict(trajectory, gates):
            trajectory = replace(trajectory, verdict=await self.judge(trajectory))
        gated = gate(trajectory, gates, self.config.reward.format_error)
        return gated if judged else replace(gated, success=trajectory.success)

    async def group(self, task: Task, step: int, number: int, max_steps: int) -> list[Trajectory]:
        """Run G episodes of one task; `number` is the task's place in the stream."""
        config, sampling = self.config, Sampling(self.config.sampler.temperature)
        tokens, gates = config.agent.response_tokens, config.reward.format
        async with asyncio.TaskGroup() as tasks:  # a gather would not wait for what it cancels
            runs = []
            for member in range(config.rollout.group):
                policy = self.policy(sampling, tokens, "train", step, number, task.id, member)
                runs.append(tasks.create_task(self.episode(task, member, policy, max_steps, gates)))
        return [run.result() for run in runs]

    # --- the sampler ------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Free the memory that an update needs. `sync` ends it."""
        self.sampler.sleep()

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Give the sampler the updated weights."""
        self.sampler.sync(weights)

    async def settle(self) -> None:
        """Wait until cancelled requests are no longer decoded: the weights are about to change. SamplerDied
        on all ranks if any has lost its sampler."""
        await self.sampler.idle()
        failures = self.ranks.all_gather([self.sampler.failure] if self.sampler.failure else [])
        if failures:
            raise SamplerDied(failures[0])

    # --- a step's groups, an evaluation's episodes ----------------------------------------------------------

    async def collect(
        self, stream: TaskStream, cursor: int, step: int, tick: Callable[[int], None]
    ) -> Collected:
        """Return one step's groups in the stream's order; with dynamic sampling until enough are effective.

        Every rank takes the next task when it has episode slots for a group (and one that waits), as long as
        the share kept so far makes it likely to be needed. The accepted groups are the first of the stream
        that qualify, in whatever order they finish; the rest is cancelled and comes again in the next step.
        `tick` is told the number of groups that are sure to be kept.
        """
        self.collections += 1
        limit = int(self.config.rollout.groups * self.config.rollout.max_oversample)
        collection = Collection(
            worker=self,
            stream=stream,
            step=step,
            limit=limit,
            places=self._next_places(stream, cursor, limit),
            queue=TaskQueue(self.ranks, f"collection {self.collections}"),
        )
        async with asyncio.TaskGroup() as tasks:
            while not collection.is_over(tick):
                collection.claim_while_needed(tasks)
                await collection.wait_for_any()
            for run in collection.running:
                run.cancel()
        await self.settle()
        for line in self.hosts.agree(self.ranks):
            say(line)
        return collection.assemble(cursor)

    def _next_places(self, stream: TaskStream, cursor: int, limit: int) -> list[int]:
        """Return the next places in the stream without those of hosts that are left out, unless all are."""
        everywhere = all(map(self.hosts.left_out, stream.tasks))
        places = (n for n in count(cursor) if everywhere or not self.hosts.left_out(stream[n]))
        return list(islice(places, limit))

    def qualified(self, trajectories: Sequence[Trajectory]) -> Group | None:
        """Return the episodes of a task as a group, or None if they teach nothing."""
        group = make_group(trajectories[0].task, trajectories, self.config.reward.invalid)
        if group is None or (self.config.rollout.dynamic and not is_effective(group)):
            return None
        return group

    async def evaluate(
        self,
        tasks: Sequence[Task],
        label: str,
        max_steps: int,
        tick: Callable[[int], None],
        members: Sequence[int] | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
        succeeds_by: tuple[Stop, ...] = BY_DONE,
    ) -> list[Trajectory]:
        """Return one episode per task (a task may occur several times), in order, sampled as `config.eval`.

        The samples depend on the task and its member, by default its place; callers that evaluate a part of
        the tasks, or one task several times, give `members`. `on_done` is told every episode as it ends, on
        the rank that ran it; an error it raises ends the evaluation. `succeeds_by` is Episode's.
        """
        config, done = self.config.eval, 0
        numbers = range(len(tasks)) if members is None else members
        sampling = Sampling(config.temperature, config.top_p, config.top_k)

        async def one(i: int) -> tuple[int, Trajectory]:
            nonlocal done
            task, member = tasks[i], numbers[i]
            policy = self.policy(sampling, config.response_tokens, "eval", label, member, task.id)
            trajectory = await self.episode(task, member, policy, max_steps, succeeds_by=succeeds_by)
            if on_done is not None:
                on_done(trajectory)
            done += 1
            tick(min(done * self.ranks.world, len(tasks)))
            return i, trajectory

        failure = None
        try:
            async with asyncio.TaskGroup() as running:
                own = range(self.ranks.rank, len(tasks), self.ranks.world)
                runs = [running.create_task(one(i)) for i in own]
        except* (OSError, ValueError) as failed:  # a full disk is one line for the user, a group is not
            failure = failed.exceptions[0]
        if failure is not None:
            raise failure
        await self.settle()
        found = self.ranks.all_gather([run.result() for run in runs])
        return [trajectory for _, trajectory in sorted(found, key=lambda pair: pair[0])]


@dataclass
class Collection:
    """One step's collecting on this rank. Tasks are numbered from 0 in the order in which ranks claim them;
    number n stands at `places[n]` of the stream."""

    worker: RolloutWorker
    stream: TaskStream
    step: int
    limit: int  # of tasks, over all ranks
    places: list[int]
    queue: TaskQueue
    running: dict[asyncio.Task[list[Trajectory]], int] = field(default_factory=dict)
    episodes: dict[int, list[Trajectory]] = field(default_factory=dict)  # of this rank's finished groups
    kept: int = 0
    complete: int = 0  # groups of the longest finished stretch

    def is_over(self, tick: Callable[[int], None]) -> bool:
        """Return True when there are enough groups, no tasks left, or a rank that can't go on."""
        wanted = self.worker.config.rollout.groups
        self.kept, self.complete = accepted(self.queue.results(), wanted)
        tick(self.kept)
        if self.worker.sampler.failure:
            self.queue.give_up()
        return self.kept == wanted or self.complete == self.limit or self.queue.given_up()

    def claim_while_needed(self, tasks: asyncio.TaskGroup) -> None:
        """Start groups while this rank has room and the expected number of kept groups is too small."""
        worker, results = self.worker, self.queue.results()
        rollout = worker.config.rollout
        room = worker.config.browser.episodes // rollout.group + 1
        expected_keep_rate = (sum(results.values()) + 3) / (len(results) + 4)  # a first guess of 3 in 4
        while len(self.running) < room and (claimed := self.queue.claimed()) < self.limit:
            if sum(results.values()) + (claimed - len(results)) * expected_keep_rate >= rollout.groups:
                return
            n = self.queue.claim()
            if n >= self.limit:  # another rank has taken the last one just now
                return
            task, max_steps = self.stream[self.places[n]], worker.config.max_steps(self.step)
            work = worker.group(task, self.step, self.places[n], max_steps)
            self.running[tasks.create_task(work)] = n

    async def wait_for_any(self) -> None:
        """Post the groups that end within a short while, so that all ranks learn of them."""
        if not self.running:
            await asyncio.sleep(POLL_SECONDS)
            return
        ended, _ = await asyncio.wait(self.running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for run in ended:
            n = self.running.pop(run)
            self.episodes[n] = run.result()
            self.queue.post(n, self.worker.qualified(self.episodes[n]) is not None)

    def assemble(self, cursor: int) -> Collected:
        """Return the accepted groups of all ranks; a collective call."""
        worker, kept, complete = self.worker, self.kept, self.complete
        own = [(n, episodes) for n, episodes in self.episodes.items() if n < complete]
        everything = dict(worker.ranks.all_gather(own))
        groups = [worker.qualified(everything[n]) for n in range(complete)]
        finished = [trajectory for n in range(complete) for trajectory in everything[n]]
        masked = worker.config.reward.invalid == "mask"
        alone = [n for n in range(complete) if groups[n] is None or not masked]
        submitted = worker.ranks.broadcast(min(self.queue.claimed(), self.limit))
        enough = kept == worker.config.rollout.groups
        return Collected(
            groups=[group for group in groups if group is not None],
            next_cursor=self.places[complete - 1] + 1 if complete else cursor,
            finished=finished,
            submitted=submitted,
            dropped=complete - kept,
            reason="" if enough else why_so_few(finished, submitted),
            in_no_group=[t for n in alone for t in everything[n] if not t.valid],
        )


def accepted(results: Mapping[int, bool], wanted: int) -> tuple[int, int]:
    """Return how many groups of the longest finished stretch of the stream are kept, up to the number wanted,
    and how far that stretch reaches.

    >>> accepted({0: True, 1: False, 2: True, 4: True}, wanted=8)
    (2, 3)
    """
    kept = n = 0
    while n in results and kept < wanted:
        kept += results[n]
        n += 1
    return kept, n


def why_so_few(finished: Sequence[Trajectory], submitted: int) -> str:
    """Return one line on a step that gave up: how its episodes ended, how many succeeded, and the most
    frequent failure that is not the agent's."""
    stops = Counter(trajectory.stop.value for trajectory in finished)
    succeeded = sum(trajectory.success for trajectory in finished)
    ends = ", ".join(f"{stop} {count}" for stop, count in stops.most_common())
    line = f"gave up after {submitted} groups: of {len(finished)} episodes {succeeded} succeeded ({ends}); "
    faults = Counter(t.error.strip().splitlines()[-1] for t in finished if not t.valid and t.error.strip())
    if 2 * faults.total() > len(finished):
        return f"{line}most often: {faults.most_common(1)[0][0]}"
    return f"{line}a warm start that succeeds sometimes, not always, gives groups that differ"
