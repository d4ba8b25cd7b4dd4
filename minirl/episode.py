"""One episode: a task, a browser context, and turns until something ends it.

    observe -> Context -> sample -> parse -> act, call by call -> feedback -> observe ...

Stands between the sampler and rollouts. One `Stop` ends it (rewards.py may change it later); then the task's
benchmark reads the page and scores it. OpenWebRL, sections 4.1 and 4.3; deviation from the released code:
calls of one response stop at the first failure. A response that is cut at its limit ends a visual episode, as
in OpenWebRL's release; for WebAgent-R1's agent, and AutoWebWorld's (its paper is silent), it is a turn.
"""

import asyncio
import errno
import itertools
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from playwright.async_api import Error as PlaywrightError

from minirl.config import AgentConfig, Config
from minirl.console import first_line, printable, without_passwords
from minirl.context import Context
from minirl.rewards import reward
from minirl.run_folder import ImageFolder
from minirl.types import (
    GRADED,
    Agent,
    Benchmark,
    BrowserFault,
    Browsers,
    Feedback,
    Observation,
    Parsed,
    PolicyFn,
    RunEnds,
    SamplerError,
    Score,
    Session,
    Stop,
    Task,
    ToolFailure,
    Trajectory,
    Turn,
)

if TYPE_CHECKING:
    from minirl.model import Preprocessor

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
CUT_OFF = Parsed(error="Error: invalid action, the response was cut off.", kind="cut off")


@dataclass
class Harness:
    """What all episodes of a run share."""

    config: Config
    preprocessor: "Preprocessor"
    agent: Agent
    browsers: Browsers
    images: ImageFolder
    benchmark_of: Callable[[Task], Benchmark]
    warned: bool = False  # whether an unexpected failure has been printed
    failure: str = ""  # why the run can't go on


def conversation(agent: Agent, config: AgentConfig, preprocessor: "Preprocessor", task: Task) -> Context:
    """Return a task's conversation, with the recipe's rules of what stays in it. It is empty, but for the
    responses before a recorded step."""
    context = Context(preprocessor, agent, config, task.instruction)
    for response in agent.history(task):
        context.observe(Observation(""))
        context.respond(preprocessor.render_response(response)[1], response)
    return context


@dataclass
class Episode:
    """One attempt at a task. `run` returns the trajectory, whatever happens on the way."""

    harness: Harness
    task: Task
    member: int
    policy: PolicyFn
    max_steps: int
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = Stop.MAX_STEPS
    answer: str | None = None  # None until the agent or the page has ended it
    error: str = ""
    score: Score = Score(0.0)
    final_image: str = ""
    blocked: str = ""

    def __post_init__(self) -> None:
        harness = self.harness
        self.benchmark = harness.benchmark_of(self.task)
        self.context = conversation(harness.agent, harness.config.agent, harness.preprocessor, self.task)

    async def run(self) -> Trajectory:
        """Return the trajectory. This is the only place that catches every failure: each but an OSError of a
        full disk becomes a `Stop`."""
        start = time.monotonic()
        try:
            await self._browse()
        except BrowserFault as fault:
            self._end(fault.stop, str(fault))
        except RunEnds as end:
            self._end(Stop.JUDGE_ERROR, str(end))
            self.harness.failure = self.error
        except SamplerError as failure:
            self._end(Stop.SAMPLER_ERROR, str(failure))
        except TimeoutError:
            self._end(Stop.TIMEOUT, "the episode's deadline passed, or its score's")
        except (PlaywrightError, ToolFailure) as error:
            self._end(Stop.ENV_ERROR, first_line(error))
        except Exception as error:
            if getattr(error, "errno", 0) in NO_ROOM:  # all further episodes would end so
                raise
            self._end(Stop.INFRA_ERROR, "".join(traceback.format_exception(error, limit=-3)))
            if not self.harness.warned:  # it is a bug in minirl, not a flaky browser
                self.harness.warned = True
                first = "an episode failed in a way that minirl does not expect; the first such failure:"
                text = printable("".join(traceback.format_exception(error)))
                print(f"{first}\n{text}", file=sys.stderr)  # on every rank
        if self.score.value is None and self.stop.is_agent_fault:
            self._end(Stop.JUDGE_ERROR, str(self.score.details.get("reason", "no verdict")))
        value = self.score.value or 0.0
        return Trajectory(
            task=self.task,
            member=self.member,
            prefix=tuple(self.context.prefix) if any(turn.response_ids for turn in self.turns) else (),
            turns=tuple(self.turns),
            stop=self.stop,
            answer=self.answer or "",
            success=value >= self.harness.config.reward.success,
            reward=reward(self.stop, value, self.harness.config.reward),
            error=without_passwords(self.error),
            final_state=self.score.details,
            final_image=self.final_image,
            blocked=self.blocked,
            seconds=time.monotonic() - start,
        )

    def _end(self, stop: Stop, error: str) -> None:
        """Note how the episode has ended, and why."""
        self.stop = stop
        self.error = error

    async def _browse(self) -> None:
        """Open the task, take turns and score the result, all in one browser context."""
        benchmark = self.benchmark
        seconds = self.harness.config.browser.episode_seconds
        async with benchmark.session(self.harness, self.task) as session:
            async with asyncio.timeout(seconds):
                await session.start(self.task.start_url)
                await benchmark.prepare(session, self.task)
                await self._take_turns(session)
            if self.stop in GRADED[self.harness.config.reward.after] and not benchmark.judged:
                answer = self.answer or ""
                if benchmark.recorded and self.turns:  # the whole response is scored
                    answer = self.turns[-1].text
                session.answer = True  # what the agent has not saved is lost: no page may keep the rules out
                # the same time again: rules that are not met wait longest, a short limit would cut off these
                async with asyncio.timeout(seconds):
                    self.score = await benchmark.score(self.task, session, answer)
            self.blocked = await session.blocked()

    async def _take_turns(self, session: Session) -> None:
        """Take turns until the episode stops."""
        agent = self.harness.agent
        config = self.harness.config
        images = self.harness.images
        preprocessor = self.harness.preprocessor
        observation = await self._observe(session)
        feedback = ()
        for t in range(self.max_steps):
            if observation.image and preprocessor.images:  # it takes a tenth of a second, once
                await asyncio.to_thread(preprocessor.images.prepare, observation.image)
            prompt = self.context.observe(observation, feedback)
            if len(prompt.ids) >= config.agent.context_tokens:
                self.stop = Stop.LENGTH
                break
            if config.sampler.kind == "remote":
                prompt = replace(prompt, messages=self.context.messages())
            times = [time.monotonic()]
            sample = await self.policy(t, prompt, session)
            text = preprocessor.text(sample.ids) if sample.text is None else sample.text
            # a served model's text gets ids to measure the conversation by, not to be trained on
            self.context.respond(sample.ids or preprocessor.render_response(text)[1], text)
            times.append(time.monotonic())
            parsed = CUT_OFF
            if sample.finish == "stop":
                parsed = agent.parse(self.context.chat.closing + text)
            lines = await self._act(session, parsed)
            feedback = agent.visible_feedback(parsed, lines)
            times.append(time.monotonic())
            turn = Turn(
                shared=prompt.shared if sample.ids else 0,
                suffix=prompt.ids[prompt.shared :] if sample.ids else (),
                response_ids=sample.ids,
                logprobs=sample.logprobs,
                text=text,
                images=tuple(map(images.put, prompt.images)),
                parsed=parsed,
                feedback=lines,
                observation=observation.text,
                page_text=observation.page_text,
                url=observation.url,
                state=observation.state,
                finish=sample.finish,
                version=sample.version,
                counted=sample.counted,
            )
            self.turns.append(turn)
            stop = self._stop_after_turn()
            if not parsed.error:  # an unreadable response has not changed the page
                observation = await self._observe_after(session, stop)
            times.append(time.monotonic())
            sampling, acting, observing = (end - begin for begin, end in itertools.pairwise(times))
            seconds = {"sample": sampling, "act": acting, "observe": observing}
            self.turns[-1] = replace(turn, seconds=seconds)
            if stop:
                self.stop = stop
                break
        self.final_image = images.put(observation.image) if observation.image else ""

    async def _observe(self, session: Session) -> Observation:
        """Return what the agent sees, with the page's state if credit is given by states."""
        observation = await self.harness.agent.observe(session)
        if self.harness.config.loss.credit == "gigpo":
            observation = replace(observation, state=await self.benchmark.state(session))
        return observation

    async def _observe_after(self, session: Session, stop: Stop | None) -> Observation:
        """Return what the agent sees after its turn. If that ended the episode as DONE, a page that
        fails costs the last screenshot alone: the answer counts."""
        try:
            return await self._observe(session)
        except (BrowserFault, PlaywrightError, ToolFailure):
            if stop is not Stop.DONE:
                raise
            return Observation("")

    async def _act(self, session: Session, parsed: Parsed) -> Feedback:
        """Run the calls up to the first failure or final answer; return a line of feedback for each."""
        if parsed.error:
            return (parsed.error,)
        if self.benchmark.recorded:
            return ()
        agent = self.harness.agent
        lines = []
        ended = False
        for call in parsed.calls:
            if ended:
                lines.append(f"`{call.name}` not executed.")
                continue
            try:
                lines.append(await agent.act(session, call))
                name, argument = agent.final_call
                if call.name == name:
                    self.answer = str(call.arguments[argument])
                    ended = True
            except ToolFailure as failure:
                lines.append(f"Failed: `{call.name}` execution failed: {failure}.")
                ended = True
            if not ended and await self.benchmark.has_ended(session, self.task):
                self.answer = ""
                ended = True
        return tuple(lines)

    def _stop_after_turn(self) -> Stop | None:
        """Return how the newest turn ends the episode, if it does."""
        config = self.harness.config.agent
        turns = self.turns[::-1]
        unreadable = list(itertools.takewhile(lambda turn: turn.parsed.error, turns))
        repeated = list(itertools.takewhile(lambda turn: turn.text == turns[0].text, turns))
        if turns[0].finish == "length" and config.kind == "visual":
            return Stop.LENGTH
        if 0 < config.format_errors <= len(unreadable):
            return Stop.FORMAT_ERROR
        if self.answer is not None or self.benchmark.recorded:  # a recorded step's one response is its end
            return Stop.DONE
        return Stop.REPEATED if len(repeated) == config.repeats else None
