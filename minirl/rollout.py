"""Groups and dynamic sampling: where a step's trajectories come from.

    TaskStream --tasks--> group of G episodes --rewards--> kept if they differ --> N groups of a step

All episodes of a rank (minirl/episode.py) live in one asyncio loop, each in its own browser context.
OpenWebRL section 3.4. Deviation from the released code: groups are accepted in the order of submission, not
of completion (which would favour fast tasks), so that a step's batch does not depend on timing, up to
floating point and timeouts; what is cut off at a step's end goes back to the stream. There is no limit of its
own on how long cancelled episodes may take to end (30 s in table 7): closing a context has one (15 s).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from minirl.advantages import Gates, gate, is_effective, make_group, needs_verdict
from minirl.benchmarks.protocols import BY_DONE
from minirl.browser.host_backoff import HostBackoff
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import Config
from minirl.console import say
from minirl.distributed import Ranks, TaskQueue
from minirl.episode import Episode, PolicyFn, Verifier, interface_of
from minirl.judges.local import Judge, LocalJudge
from minirl.model import Preprocessor
from minirl.samplers.huggingface import request_seed
from minirl.types import Group, Prompt, Request, Sample, SamplerDied, Sampling, Stop, Task, Trajectory, billed

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


class RolloutWorker:
    """Runs episodes with one sampler, one browser pool and one interface, on every rank a share. `collect`
    and `evaluate` are called by all ranks, and return the same on all."""

    def __init__(
        self,
        config: Config,
        preprocessor: Preprocessor,
        sampler: Any,
        pool: BrowserPool,
        verify: Verifier,
        put_image: Callable[[bytes], str],
        ranks: Ranks,
        host_file: Path | None = None,
        judge: Judge | None = None,
        image: Callable[[str], bytes] | None = None,
    ):
        self.config, self.preprocessor, self.sampler, self.pool = config, preprocessor, sampler, pool
        self.ranks, self.collections = ranks, 0
        self.verify, self.put_image, self.judge, self.image = verify, put_image, judge, image
        self.interface = interface_of(config.agent)
        self.hosts = HostBackoff(host_file, config.browser.host_failures, 60 * config.browser.host_minutes)
        self.slots = asyncio.Semaphore(config.browser.episodes)

    def ask(self, how: Sampling, response_tokens: int, *names: object) -> PolicyFn:
        """The policy that asks the sampler, with a seed from the names and the turn."""

        async def policy(t: int, prompt: Prompt, session: Session) -> Sample:
            room = self.config.agent.context_tokens - len(prompt.ids)
            seed = request_seed(self.config.seed, *names, t)
            return await self.sampler.generate(Request(prompt, seed, min(response_tokens, room), how))

        return policy

    async def episode(
        self,
        task: Task,
        member: int,
        policy: PolicyFn,
        max_steps: int,
        gates: Gates = "none",
        succeeds_by: tuple[Stop, ...] = BY_DONE,
    ) -> Trajectory:
        """One episode, with the reward of its task's verifier, or where there is none the judge's.

        Training sets `gates` before the judge, and asks it with `--reward.by judge` even where the task
        itself can tell; evaluations and demonstrations go by what is true. `succeeds_by` is of `Episode`.
        """
        with billed() as bill:
            async with self.slots:
                how = (self.config, self.preprocessor, self.interface, self.put_image, succeeds_by)
                trajectory = await Episode(task, member, policy, max_steps, *how).run(self.pool, self.verify)
                self.hosts.note(trajectory)
            if not task.goal or (gates != "none" and self.config.reward.by == "judge"):
                trajectory = await self._judged(trajectory, gates)
        return replace(trajectory, dollars=bill.dollars)

    async def _judged(self, trajectory: Trajectory, gates: Gates) -> Trajectory:
        """An episode with the judge's reward. Its success is the judge's too, unless the task's own verifier
        has told it."""
        if self.judge is None or not trajectory.valid:
            return trajectory
        verdict = None
        if needs_verdict(trajectory, gates):
            verdict = await self.judge(trajectory, self.image)
            said = {"verdict": verdict.success, "rationale": verdict.rationale}
            trajectory = replace(trajectory, final_state={**trajectory.final_state, **said})
        gated = gate(trajectory, verdict, gates, self.config.reward.format_error)
        return replace(gated, success=trajectory.success) if trajectory.task.goal else gated

    @property
    def failure(self) -> str:
        """Why the sampler, or that of a judge of our own, can't go on."""
        if self.sampler.failure or not isinstance(self.judge, LocalJudge):
            return self.sampler.failure
        return self.judge.sampler.failure

    def sleep(self) -> None:
        """Frees the memory that an update needs. `sync` ends it."""
        self.sampler.sleep()
        if isinstance(self.judge, LocalJudge):
            self.judge.sampler.sleep(keep=True)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Gives the sampler the updated weights; the judge keeps its own."""
        self.sampler.sync(weights)
        if isinstance(self.judge, LocalJudge):
            self.judge.sampler.wake()

    async def group(self, task: Task, step: int, number: int, max_steps: int) -> list[Trajectory]:
        """G episodes of one task; `number` is the task's place in the stream."""
        tokens = self.config.agent.response_tokens
        members = range(self.config.rollout.group)
        how, gates = Sampling(self.config.sampler.temperature), self.config.reward.format
        policies = [self.ask(how, tokens, "train", step, number, task.id, m) for m in members]
        async with asyncio.TaskGroup() as tasks:  # a gather would not wait for what it cancels
            runs = [tasks.create_task(self.episode(task, m, policies[m], max_steps, gates)) for m in members]
        return [run.result() for run in runs]

    async def collect(
        self, stream: TaskStream, cursor: int, step: int, tick: Callable[[int], None]
    ) -> Collected:
        """Groups for one step, in the stream's order; with dynamic sampling until enough are effective.

        Every rank takes the next task when it has episode slots for a group (and one that waits), as long as
        the share kept so far makes it likely to be needed. The accepted groups are the first of the stream
        that qualify, whichever finished first; the rest is cancelled and comes again next step. `tick` is
        told the number of groups that are sure to be kept. All ranks return the same.
        """
        rollout, max_steps = self.config.rollout, self.config.max_steps(step)
        running: dict[asyncio.Task[list[Trajectory]], int] = {}
        episodes: dict[int, list[Trajectory]] = {}  # this rank's
        self.collections += 1
        board = TaskQueue(self.ranks, f"collection {self.collections}")
        limit = int(rollout.groups * rollout.max_oversample)
        places = self._places(stream, cursor, limit)
        room = self.config.browser.episodes // rollout.group + 1
        async with asyncio.TaskGroup() as tasks:
            while True:
                results = board.results()
                kept, complete = accepted(results, rollout.groups)
                tick(kept)
                if self.failure:
                    board.give_up()
                if kept == rollout.groups or complete == limit or board.given_up():
                    break
                likely = (sum(results.values()) + 3) / (len(results) + 4)  # a first guess of 3 in 4
                while len(running) < room and (claimed := board.claimed()) < limit:
                    if sum(results.values()) + (claimed - len(results)) * likely >= rollout.groups:
                        break
                    n = board.claim()
                    if n >= limit:  # another rank has taken the last one just now
                        break
                    work = self.group(stream[places[n]], step, places[n], max_steps)
                    running[tasks.create_task(work)] = n
                if not running:
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                ended, _ = await asyncio.wait(
                    running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for work in ended:
                    n = running.pop(work)
                    episodes[n] = work.result()
                    board.post(n, self._qualified(episodes[n]) is not None)
            for work in running:
                work.cancel()
        await self._settle()
        for line in self.hosts.agree(self.ranks):
            say(line)
        everything = dict(self.ranks.all_gather([(n, e) for n, e in episodes.items() if n < complete]))
        groups = [self._qualified(everything[n]) for n in range(complete)]
        finished = [trajectory for n in range(complete) for trajectory in everything[n]]
        alone = [n for n in range(complete) if groups[n] is None or self.config.reward.invalid == "drop"]
        submitted = self.ranks.broadcast(min(board.claimed(), limit))
        reason = "" if kept == rollout.groups else why_so_few(finished, submitted)
        return Collected(
            groups=[group for group in groups if group is not None],
            next_cursor=places[complete - 1] + 1 if complete else cursor,
            finished=finished,
            submitted=submitted,
            dropped=complete - kept,
            reason=reason,
            in_no_group=[t for n in alone for t in everything[n] if not t.valid],
        )

    def _places(self, stream: TaskStream, cursor: int, limit: int) -> list[int]:
        """The next places in the stream. Hosts that are left out are passed over, unless that leaves none."""
        everywhere = all(map(self.hosts.left_out, stream.tasks))
        places = (n for n in count(cursor) if everywhere or not self.hosts.left_out(stream[n]))
        return list(islice(places, limit))

    async def _settle(self) -> None:
        """What was cancelled may still be decoded, with weights about to change. SamplerDied on all ranks if
        any has lost its sampler."""
        await self.sampler.idle()
        died = self.ranks.all_gather([self.failure] if self.failure else [])
        if died:
            raise SamplerDied(died[0])

    def _qualified(self, trajectories: Sequence[Trajectory]) -> Group | None:
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
        """One episode per task (a task may occur several times), in order, sampled as `config.eval` says.

        What is drawn depends on the task and its member, by default its place; who evaluates a part of the
        tasks, or one task several times, gives `members`. `on_done` is told every episode as it ends, on the
        rank that ran it; what it raises ends the evaluation. `succeeds_by` is of `Episode`.
        """
        config, done = self.config.eval, 0
        numbers = range(len(tasks)) if members is None else members
        how = Sampling(config.temperature, config.top_p, config.top_k)

        async def one(i: int) -> tuple[int, Trajectory]:
            nonlocal done
            task, member = tasks[i], numbers[i]
            policy = self.ask(how, config.response_tokens, "eval", label, member, task.id)
            trajectory = await self.episode(task, member, policy, max_steps, succeeds_by=succeeds_by)
            if on_done is not None:
                on_done(trajectory)
            done += 1
            tick(min(done * self.ranks.world, len(tasks)))
            return i, trajectory

        own = range(self.ranks.rank, len(tasks), self.ranks.world)
        try:
            async with asyncio.TaskGroup() as running:
                runs = [running.create_task(one(i)) for i in own]
        except* (OSError, ValueError) as failed:  # a full disk is one line for the user, a group is not
            failure = failed.exceptions[0]
        else:
            failure = None
        if failure is not None:
            raise failure
        await self._settle()
        found = self.ranks.all_gather([run.result() for run in runs])
        return [trajectory for _, trajectory in sorted(found, key=lambda pair: pair[0])]


def accepted(results: Mapping[int, bool], wanted: int) -> tuple[int, int]:
    """How many groups of the longest finished stretch of the stream are kept, up to the number wanted, and
    how far that stretch reaches.

    >>> accepted({0: True, 1: False, 2: True, 4: True}, wanted=8)
    (2, 3)
    """
    kept = n = 0
    while n in results and kept < wanted:
        kept += results[n]
        n += 1
    return kept, n


def why_so_few(finished: Sequence[Trajectory], submitted: int) -> str:
    """One line on a step that gave up: what the episodes ended with, what they earned, and what is known of
    the most frequent failure that is not the agent's."""
    stops = Counter(trajectory.stop.value for trajectory in finished)
    succeeded = sum(trajectory.success for trajectory in finished)
    ends = ", ".join(f"{stop} {count}" for stop, count in stops.most_common())
    told = f"gave up after {submitted} groups: of {len(finished)} episodes {succeeded} succeeded ({ends}); "
    faults = Counter(t.error.strip().splitlines()[-1] for t in finished if not t.valid and t.error.strip())
    if 2 * faults.total() > len(finished):
        return f"{told}most often: {faults.most_common(1)[0][0]}"
    return f"{told}a warm start that succeeds sometimes, not always, gives groups that differ"
