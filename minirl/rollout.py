"""Groups and dynamic sampling: where a step's trajectories come from.

    TaskStream --tasks--> group of G episodes --rewards--> kept if they differ --> N groups of a step

All episodes of a rank (minirl/episode.py) share one asyncio loop. OpenWebRL, section 4.4. Deviations from the
released code: groups are accepted in the order of submission, as that of completion would favour fast tasks,
so a batch does not depend on timing, up to floating point and timeouts; tasks cut off at a step's end come
again; a cancelled episode has no limit to end in (30 s in table 7), its context 15 s to close in; a step
gives up after 6 times its groups (no paper says what happens then), and updates on those that it has.
"""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from torch import Tensor

from minirl.advantages import is_effective, make_group
from minirl.bill import billed
from minirl.console import say
from minirl.distributed import Ranks, TaskQueue
from minirl.episode import Episode, Harness
from minirl.model import request_seed
from minirl.rewards import Gates, apply_reward_gates, mark_blocked, needs_verdict
from minirl.types import (
    Group,
    Hosts,
    Judge,
    PolicyFn,
    Prompt,
    Request,
    RunEnds,
    Sample,
    Sampler,
    Sampling,
    Session,
    Task,
    Trajectory,
)

MAX_OVERSAMPLE = 6  # a step gives up after this many times the groups that it wants
POLL_SECONDS = 0.2  # between two looks at what other ranks have finished


class TaskStream:
    """Tasks without end: every pass over the set in another order. The n-th depends on the seed and n alone,
    so a run is resumed by its cursor."""

    def __init__(self, tasks: Sequence[Task], seed: int):
        self.tasks = tasks
        self.seed = seed
        self.orders: dict[int, list[Task]] = {}  # by pass

    def __getitem__(self, n: int) -> Task:
        if not self.tasks:
            raise ValueError("the task set is empty: give other tasks with --task.train")
        number, place = divmod(n, len(self.tasks))
        if number not in self.orders:
            order = list(self.tasks)
            random.Random(f"{self.seed}|{number}").shuffle(order)
            self.orders[number] = order
        return self.orders[number][place]


@dataclass
class Collected:
    """A step's groups, and what it took to get them."""

    groups: list[Group]
    next_cursor: int  # where the task stream goes on
    finished: list[Trajectory]  # every episode of the groups up to the last accepted one, kept or not
    submitted: int
    dropped: int  # groups without a difference in rewards, or with fewer than two valid episodes
    reason: str = ""  # why fewer groups than asked for
    # Episodes that are dumped but not trained on: invalid ones; with `dump_all` also those of dropped and
    # surplus groups
    in_no_group: list[Trajectory] = field(default_factory=list)


@dataclass
class RolloutWorker:
    """Runs this rank's share of episodes with one sampler and one judge. All ranks call `collect` and
    `evaluate` together, and both return the same on all of them."""

    harness: Harness
    sampler: Sampler
    ranks: Ranks
    hosts: Hosts
    judge: Judge | None = None
    queues: int = 0  # that were opened

    def __post_init__(self) -> None:
        self.config = self.harness.config
        self.share = self.ranks.share(self.config.browser.episodes)
        self.slots = asyncio.Semaphore(self.share)

    @property
    def failure(self) -> str:
        """Return why this rank can't go on, or ""."""
        return self.sampler.failure or self.harness.failure

    # --- one episode, one group --------------------------------------------------------------------------

    def policy(self, sampling: Sampling, tokens: int, *names: object) -> PolicyFn:
        """Return the policy that asks the sampler, with a seed made of the names and the turn."""

        async def ask(t: int, prompt: Prompt, session: Session) -> Sample:
            room = self.config.agent.context_tokens - len(prompt.ids)
            seed = request_seed(self.config.seed, *names, t)
            return await self.sampler.generate(Request(prompt, seed, min(tokens, room), sampling))

        return ask

    async def episode(
        self, task: Task, member: int, policy: PolicyFn, max_steps: int, gates: Gates = "none"
    ) -> Trajectory:
        """Return an episode, rewarded by its task's rules or, if it has none, by the judge. Training sets
        `gates`, and with `--reward.by judge` it asks the judge even where rules tell the success."""
        config = self.config.reward
        judged = self.harness.benchmark_of(task).judged
        with billed() as bill:
            async with self.slots:
                trajectory = await Episode(self.harness, task, member, policy, max_steps).run()
                self.hosts.note(trajectory)
            rewarded = judged or (gates != "none" and config.by == "judge")
            if self.judge and trajectory.valid and rewarded:
                if needs_verdict(trajectory, gates, config):
                    trajectory = replace(trajectory, verdict=await self.judge(trajectory))
                gated = apply_reward_gates(trajectory, gates, config)
                trajectory = gated if judged else replace(gated, success=trajectory.success)
        return replace(mark_blocked(trajectory), dollars=sum(bill))

    async def group(self, task: Task, step: int, number: int, max_steps: int) -> list[Trajectory]:
        """Return G episodes of one task; `number` is the task's place in the stream."""
        config = self.config
        sampling = Sampling(config.sampler.temperature)
        tokens = config.agent.response_tokens
        async with asyncio.TaskGroup() as tasks:  # a gather would not wait for what it cancels
            runs = []
            for member in range(config.rollout.group):
                policy = self.policy(sampling, tokens, "train", step, number, task.id, member)
                episode = self.episode(task, member, policy, max_steps, config.reward.format)
                runs.append(tasks.create_task(episode))
        return [run.result() for run in runs]

    def sleep(self) -> None:
        """Free the memory that an update needs. `sync` ends it."""
        self.sampler.sleep()

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Give the sampler the updated weights."""
        self.sampler.sync(weights)

    async def settle(self) -> None:
        """Wait until cancelled requests are no longer decoded. RunEnds on all ranks if any can't go on."""
        await self.sampler.idle()
        failures = self.ranks.all_gather([self.failure] if self.failure else [])
        if failures:
            raise RunEnds(failures[0])

    # --- a step's groups, an evaluation's episodes ----------------------------------------------------------

    async def collect(
        self, stream: TaskStream, cursor: int, step: int, tick: Callable[[int], None]
    ) -> Collected:
        """Return one step's groups in the stream's order; with dynamic sampling until enough are effective.

        Number n of the queue is the task at `places[n]` of the stream. Once as many as are needed qualify,
        the rest is cancelled, and comes again in the next step. `tick` gets how many qualify.
        """
        config = self.config.rollout
        max_tasks = MAX_OVERSAMPLE * config.groups  # over all ranks
        max_concurrent = self.share // config.group + 1  # groups of this rank; the last may wait for slots
        places = self._next_places(stream, cursor, max_tasks)

        async def start(n: int) -> tuple[list[Trajectory], bool]:
            episodes = await self.group(stream[places[n]], step, places[n], self.config.max_steps(step))
            return episodes, self.qualified(episodes) is not None

        episodes, n_in_order, submitted = await self._run_queue(
            start, config.groups, max_tasks, max_concurrent, config.dynamic, tick
        )
        for line in self.hosts.agree(self.ranks):
            say(line)
        attempts = [episodes[n] for n in range(n_in_order)]
        next_cursor = places[n_in_order - 1] + 1 if n_in_order else cursor
        collected = self._assemble(attempts, next_cursor, submitted)
        if config.dump_all:
            for n in sorted(episodes):
                if n >= n_in_order:
                    collected.in_no_group += episodes[n]
        return collected

    async def evaluate(
        self,
        places: Sequence[tuple[Task, int]],
        label: str,
        max_steps: int,
        tick: Callable[[int], None],
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Return an episode for each (task, member), in order, sampled as `config.eval` says. Its seed
        depends on both. `on_done` gets each as it ends, on the rank that ran it."""
        config = self.config.eval
        sampling = Sampling(config.temperature, config.top_p, config.top_k)

        async def start(n: int) -> tuple[Trajectory, bool]:
            task, member = places[n]
            policy = self.policy(sampling, config.response_tokens, "eval", label, member, task.id)
            trajectory = await self.episode(task, member, policy, max_steps)
            if on_done:
                on_done(trajectory)
            return trajectory, True

        n_all = len(places)
        # one more than there are slots: browsers have work while a judge is asked
        finished, _, _ = await self._run_queue(start, n_all, n_all, self.share + 1, False, tick)
        return [finished[n] for n in range(n_all)]

    async def _run_queue(
        self,
        start: Callable[[int], Coroutine[Any, Any, tuple[Any, bool]]],
        target: int,
        max_tasks: int,
        max_concurrent: int,
        dynamic: bool,
        tick: Callable[[int], None],
    ) -> tuple[dict[int, Any], int, int]:
        """Run tasks 0, 1, 2, ... on all ranks until `target` of them are kept; `start` gives a task's result,
        and whether to keep it. Return all ranks' results by number, how many tasks it took, counted from 0
        without a gap, to keep `target`, and how many were begun.

        A rank claims a number when it has room, up to its even share. RunEnds on all ranks if any
        can't go on.
        """
        self.queues += 1
        queue = TaskQueue(self.ranks, f"queue {self.queues}")
        running: dict[asyncio.Task, int] = {}
        finished: dict[int, Any] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    results = queue.results()  # of all ranks: is each that has ended to be kept?
                    n_accepted, n_in_order = accepted(results, target)
                    tick(min(target, sum(results.values())))
                    if self.failure:
                        queue.give_up()
                    if n_accepted == target or n_in_order == max_tasks or queue.given_up():
                        break
                    # start as many more as it may take, and this rank's share of them at most
                    needed = in_flight(results, target, dynamic)
                    stop = min(max_tasks, len(results) + needed)
                    while len(running) < min(max_concurrent, self.ranks.share(needed)):
                        n = queue.claimed()
                        if n >= stop:
                            break
                        if queue.claim(n):  # else another rank has taken it just now
                            running[tasks.create_task(start(n))] = n
                    if not running:
                        await asyncio.sleep(POLL_SECONDS)
                        continue
                    # by then other ranks may have finished some, too
                    done, _ = await asyncio.wait(
                        running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    for run in done:
                        n = running.pop(run)
                        finished[n], is_kept = run.result()
                        queue.post(n, is_kept)
                for run in running:
                    run.cancel()
        except ExceptionGroup as failed:  # a full disk is one line for the user, a group in a group is not
            error: Exception = failed
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        await self.settle()
        everything = dict(self.ranks.all_gather(list(finished.items())))
        return everything, n_in_order, self.ranks.broadcast(queue.claimed())

    def _next_places(self, stream: TaskStream, cursor: int, n: int) -> list[int]:
        """Return the next places in the stream without those of hosts that are left out, unless all are."""
        if all(map(self.hosts.left_out, stream.tasks)):
            return list(range(cursor, cursor + n))
        places = []
        while len(places) < n:
            if not self.hosts.left_out(stream[cursor]):
                places.append(cursor)
            cursor += 1
        return places

    def _assemble(self, attempts: list[list[Trajectory]], next_cursor: int, submitted: int) -> Collected:
        """Return the groups of a step from the episodes of every task up to the last accepted one."""
        config = self.config
        groups = []
        in_no_group = []
        for episodes in attempts:
            group = self.qualified(episodes)
            if group:
                groups.append(group)
            if config.rollout.dump_all and not group:
                in_no_group += episodes
            elif not group or config.reward.invalid == "drop":
                in_no_group += [t for t in episodes if not t.valid]
        finished = list(chain.from_iterable(attempts))
        reason = "" if len(groups) == config.rollout.groups else why_so_few(finished, submitted)
        dropped = len(attempts) - len(groups)
        return Collected(groups, next_cursor, finished, submitted, dropped, reason, in_no_group)

    def qualified(self, trajectories: Sequence[Trajectory]) -> Group | None:
        """Return the episodes of a task as a group, or None if they teach nothing."""
        group = make_group(trajectories, self.config.reward.invalid)
        if group and self.config.rollout.dynamic and not is_effective(group):
            return None
        return group


def in_flight(results: Mapping[int, bool], target: int, dynamic: bool) -> int:
    """Estimate how many groups to keep running: groups still needed, divided by the acceptance rate so far
    (prior 3 in 4); without dynamic sampling all are accepted.

    >>> in_flight({}, 16, True), in_flight({0: True, 1: False}, 16, True), in_flight({0: True}, 16, False)
    (22, 23, 15)
    """
    n_accepted = sum(results.values())
    missing = target - n_accepted
    if not dynamic:
        return missing
    return math.ceil(missing * (len(results) + 4) / (n_accepted + 3))


def accepted(results: Mapping[int, bool], target: int) -> tuple[int, int]:
    """Return how many of the groups up to the first unfinished one are kept, at most `target`, and how many
    groups it took.

    >>> accepted({0: True, 1: False, 2: True, 4: True}, target=8)
    (2, 3)
    """
    n_accepted = n = 0
    while n in results and n_accepted < target:
        n_accepted += results[n]
        n += 1
    return n_accepted, n


def why_so_few(finished: Sequence[Trajectory], submitted: int) -> str:
    """Return one line on a step that gave up: the most common ends of its episodes, or errors."""
    ends = Counter((one.error or one.stop.value).splitlines()[-1] for one in finished)
    common = ", ".join(f"{end} {count}" for end, count in ends.most_common(4))
    succeeded = sum(trajectory.success for trajectory in finished)
    line = f"gave up after {submitted} groups: of {len(finished)} episodes {succeeded} succeeded ({common}); "
    return f"{line}a warm start that succeeds sometimes, not always, makes groups differ; fix errors first"
