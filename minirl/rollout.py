"""Episodes, groups and dynamic sampling: where trajectories come from.

    TaskStream --tasks--> group of G episodes --rewards--> kept if they differ --> N groups of a step

    an episode:   observe -> Context -> sample -> parse -> act, call by call -> feedback -> observe ...
                  ended by one `Stop`; then the verifier reads the page, and the reward is given

All episodes of a rank live in one asyncio loop, each in its own browser context. What the agent sees and
says is an `Interface` of three functions that the recipe chooses. OpenWebRL sections 3.1 to 3.4.
Deviations from the released code: groups are accepted in the order of submission, not of completion
(which would favour fast tasks), so that a step's batch does not depend on timing, up to floating point
and timeouts; what is cut off at a step's end goes back to the stream; calls of one response stop at the
first failure.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from playwright.async_api import Error as PlaywrightError

from minirl import tools
from minirl.browser import BrowserFault, BrowserPool, Session, ToolFailure
from minirl.config import Config
from minirl.context import Context
from minirl.hf_sampler import request_seed
from minirl.log import say
from minirl.model import Language
from minirl.ranks import Board, Ranks
from minirl.reward import is_effective, make_group, reward
from minirl.types import (
    Call,
    Group,
    Observation,
    Parsed,
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


@dataclass(frozen=True)
class Interface:
    """What an agent sees, says and does: chosen by the recipe."""

    system: str
    observe: Callable[[Session], Awaitable[Observation]]
    parse: Callable[[str], Parsed]
    act: Callable[[Session, Call], Awaitable[str]]


def visual(brief: bool) -> Interface:
    """OpenWebRL's: screenshots and 13 tools."""
    return Interface(tools.system_prompt(brief), tools.observe, tools.parse, tools.act)


# A policy answers a prompt. A model looks at nothing but the prompt; scripts and people may use the page.
PolicyFn = Callable[[int, Prompt, Session], Awaitable[Sample]]


class Verifier(Protocol):
    """Reads the page after the agent called `done`: was the task fulfilled, and what was read."""

    async def __call__(self, task: Task, session: Session) -> tuple[bool, dict[str, Any]]: ...


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


POLL_SECONDS = 0.2  # between two looks at what other ranks have finished

TOLD: list[str] = []  # the first unexpected failure of this process


def tell_once(trace: str) -> None:
    """Prints a traceback, if it is the first: what nobody expected is a bug of ours, not a flaky browser."""
    if not TOLD:
        TOLD.append(trace)
        say(f"an episode failed in a way that minirl does not expect; the first such failure:\n{trace}")


@dataclass
class Episode:
    """One attempt at a task. `run` returns the trajectory, whatever happens on the way."""

    task: Task
    member: int
    policy: PolicyFn
    max_steps: int
    config: Config
    language: Language
    interface: Interface
    put_image: Callable[[bytes], str]
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = Stop.MAX_STEPS
    answer: str = ""
    error: str = ""

    async def run(self, pool: BrowserPool, verify: Verifier) -> Trajectory:
        """The only place where anything may be caught: an episode's failure is a `Stop`, counted."""
        start, success, state, last = time.monotonic(), False, {}, ""
        agent = self.config.agent
        self.context = Context(
            self.language.tokenizer,
            self.language.chat,
            self.interface.system,
            self.task.instruction,
            self.language.image_tokens,
            keep=agent.screenshots,
        )
        try:
            async with asyncio.timeout(self.config.browser.episode_seconds), pool.session() as session:
                await session.start(self.task.start_url)
                last = await self._loop(session)
                if self.stop is Stop.DONE:
                    success, state = await verify(self.task, session)
        except BrowserFault as fault:
            self.stop, self.error = fault.stop, str(fault)
        except TimeoutError:
            self.stop, self.error = Stop.TIMEOUT, "the episode's deadline passed"
        except (PlaywrightError, ToolFailure) as error:
            self.stop, self.error = Stop.ENV_ERROR, (str(error) or type(error).__name__).splitlines()[0]
        except Exception as error:
            self.stop, self.error = Stop.INFRA_ERROR, "".join(traceback.format_exception(error, limit=-3))
            tell_once("".join(traceback.format_exception(error)))
        trajectory = Trajectory(
            task=self.task,
            member=self.member,
            trunk=tuple(self.context.trunk),
            turns=tuple(self.turns),
            stop=self.stop,
            answer=self.answer,
            success=success,
            error=self.error,
            final_state=state,
            final_image=last,
            seconds=time.monotonic() - start,
        )
        return replace(trajectory, reward=reward(trajectory))

    async def _loop(self, session: Session) -> str:
        """Turns until the episode stops; the hash of the last screenshot."""
        observation = await self.interface.observe(session)
        feedback: tuple[str, ...] = ()
        bad = 0
        for t in range(self.max_steps):
            prompt = self.context.observe(observation, feedback)
            room = self.config.agent.context_tokens - len(prompt.ids)
            if room < 1:
                self.stop = Stop.LENGTH
                break
            before = time.monotonic()
            try:
                sample = await self.policy(t, prompt, session)
            except SamplerError as failure:
                self.stop, self.error = Stop.SAMPLER_ERROR, str(failure)
                break
            self.context.respond(sample.ids)
            sampled = time.monotonic()
            text = self.language.tokenizer.decode(sample.ids, skip_special_tokens=False)
            text = text.removesuffix(self.language.tokenizer.eos_token)
            parsed = (
                self.interface.parse(text) if sample.finish == "stop" else Parsed(error="Error: cut off.")
            )
            feedback = await self._act(session, parsed)
            acted = time.monotonic()
            turn = Turn(
                shared=prompt.shared,
                branch=prompt.ids[prompt.shared :],
                response_ids=sample.ids,
                logprobs=sample.logprobs,
                text=text,
                images=tuple(self.put_image(png) for png in prompt.images),
                parsed=parsed,
                feedback=feedback,
                observation=observation.text,
                url=observation.url,
                finish=sample.finish,
                version=sample.version,
                cached=sample.cached,
            )
            if not parsed.error:
                observation = await self.interface.observe(session)
            seconds = {
                "sample": sampled - before,
                "act": acted - sampled,
                "observe": time.monotonic() - acted,
            }
            self.turns.append(replace(turn, seconds=seconds))
            bad = bad + 1 if parsed.error else 0
            if sample.finish == "length":
                self.stop = Stop.LENGTH
                break
            if bad >= self.config.agent.format_errors:
                self.stop = Stop.FORMAT_ERROR
                break
            if self.stop is Stop.DONE:
                break
        return self.put_image(observation.image) if observation.image else ""

    async def _act(self, session: Session, parsed: Parsed) -> tuple[str, ...]:
        """Runs the calls in order, up to the first failure or `done`; one line of feedback for each."""
        if parsed.error:
            return (parsed.error,)
        lines = []
        for i, call in enumerate(parsed.calls):
            try:
                lines.append(await self.interface.act(session, call))
            except ToolFailure as failure:
                lines.append(tools.shorten(f"{call.name}: failed, {failure}."))
                rest = parsed.calls[i + 1 :]
                lines += [f"{later.name}: not executed." for later in rest]
                break
            if call.name == "done":
                self.stop, self.answer = Stop.DONE, str(call.arguments["response"])
                lines += [f"{later.name}: not executed." for later in parsed.calls[i + 1 :]]
                break
        return tuple(lines)


@dataclass
class Collected:
    """A step's groups, and what it took to get them."""

    groups: list[Group]
    next_cursor: int  # where the task stream goes on
    finished: list[Trajectory]  # every episode of the groups up to the last accepted one, kept or not
    submitted: int
    dropped: int  # groups without a difference in rewards, or with fewer than two valid episodes
    reason: str = ""  # why fewer groups than asked for


class Rollouts:
    """Runs episodes with one sampler, one browser pool and one interface, on every rank a share. `collect`
    and `evaluate` are called by all ranks, and return the same on all."""

    def __init__(
        self,
        config: Config,
        language: Language,
        sampler: Any,
        pool: BrowserPool,
        verify: Verifier,
        put_image: Callable[[bytes], str],
        ranks: Ranks,
    ):
        self.config, self.language, self.sampler, self.pool = config, language, sampler, pool
        self.ranks, self.collections = ranks, 0
        self.verify, self.put_image = verify, put_image
        self.interface = visual(config.agent.brief)
        self.slots = asyncio.Semaphore(config.browser.episodes)

    def ask(self, how: Sampling, response_tokens: int, *names: object) -> PolicyFn:
        """The policy that asks the sampler, with a seed from the names and the turn."""

        async def policy(t: int, prompt: Prompt, session: Session) -> Sample:
            room = self.config.agent.context_tokens - len(prompt.ids)
            seed = request_seed(self.config.seed, *names, t)
            return await self.sampler.generate(Request(prompt, seed, min(response_tokens, room), how))

        return policy

    async def episode(self, task: Task, member: int, policy: PolicyFn, max_steps: int) -> Trajectory:
        async with self.slots:
            episode = Episode(
                task, member, policy, max_steps, self.config, self.language, self.interface, self.put_image
            )
            return await episode.run(self.pool, self.verify)

    async def group(self, task: Task, step: int, number: int, max_steps: int) -> list[Trajectory]:
        """G episodes of one task; `number` is the task's place in the stream."""
        tokens = self.config.agent.response_tokens
        members = range(self.config.rollout.group)
        how = Sampling(self.config.sampler.temperature)
        policies = [self.ask(how, tokens, "train", step, number, task.id, m) for m in members]
        async with asyncio.TaskGroup() as tasks:  # a gather would not wait for what it cancels
            runs = [tasks.create_task(self.episode(task, m, policies[m], max_steps)) for m in members]
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
        board = Board(self.ranks, f"collection {self.collections}")
        limit = int(rollout.groups * rollout.max_oversample)
        room = self.config.browser.episodes // rollout.group + 1
        async with asyncio.TaskGroup() as tasks:
            while True:
                results = board.results()
                kept, complete = accepted(results, rollout.groups)
                tick(kept)
                if self.sampler.failure:
                    board.give_up()
                if kept == rollout.groups or complete == limit or board.given_up():
                    break
                likely = (sum(results.values()) + 3) / (len(results) + 4)  # a first guess of 3 in 4
                while len(running) < room and (claimed := board.claimed()) < limit:
                    if sum(results.values()) + (claimed - len(results)) * likely >= rollout.groups:
                        break
                    n = board.claim()
                    if n < limit:  # another rank may have taken the last one just now
                        work = self.group(stream[cursor + n], step, cursor + n, max_steps)
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
        await self._settle_sampler()
        everything = dict(self.ranks.gather([(n, e) for n, e in episodes.items() if n < complete]))
        groups = [self._qualified(everything[n]) for n in range(complete)]
        finished = [trajectory for n in range(complete) for trajectory in everything[n]]
        submitted = self.ranks.agree(min(board.claimed(), limit))
        reason = "" if kept == rollout.groups else why_so_few(finished, submitted)
        return Collected(
            groups=[group for group in groups if group is not None],
            next_cursor=cursor + complete,
            finished=finished,
            submitted=submitted,
            dropped=complete - kept,
            reason=reason,
        )

    async def _settle_sampler(self) -> None:
        """What was cancelled may still be decoded, with weights about to change. SamplerDied on all ranks if
        any has lost its sampler."""
        await self.sampler.idle()
        died = self.ranks.gather([self.sampler.failure] if self.sampler.failure else [])
        if died:
            raise SamplerDied(died[0])

    def _qualified(self, trajectories: Sequence[Trajectory]) -> Group | None:
        group = make_group(trajectories[0].task, trajectories)
        if group is None or (self.config.rollout.dynamic and not is_effective(group)):
            return None
        return group

    async def evaluate(
        self, tasks: Sequence[Task], label: str, max_steps: int, tick: Callable[[int], None]
    ) -> list[Trajectory]:
        """One episode per task (a task may occur several times), in order, sampled as `config.eval` says."""
        config, done = self.config.eval, 0
        how = Sampling(config.temperature, config.top_p, config.top_k)

        async def one(i: int, task: Task) -> Trajectory:
            nonlocal done
            policy = self.ask(how, config.response_tokens, "eval", label, i, task.id)
            trajectory = await self.episode(task, i, policy, max_steps)
            done += 1
            tick(min(done * self.ranks.world, len(tasks)))
            return trajectory

        own = range(self.ranks.rank, len(tasks), self.ranks.world)
        async with asyncio.TaskGroup() as running:
            runs = [running.create_task(one(i, tasks[i])) for i in own]
        await self._settle_sampler()
        found = self.ranks.gather([run.result() for run in runs])
        return sorted(found, key=lambda trajectory: trajectory.member)


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
    """One line on a step that gave up: what the episodes ended with, and what they earned."""
    stops = Counter(trajectory.stop.value for trajectory in finished)
    succeeded = sum(trajectory.success for trajectory in finished)
    ends = ", ".join(f"{stop} {count}" for stop, count in stops.most_common())
    return (
        f"gave up after {submitted} groups: of {len(finished)} episodes {succeeded} succeeded ({ends}); "
        "a warm start that succeeds sometimes, not always, gives groups that differ"
    )
