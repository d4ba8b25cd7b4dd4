"""One episode: a task, a browser context, and turns until something ends it.

    observe -> Context -> sample -> parse -> act, call by call -> feedback -> observe ...

Stands between the sampler and rollouts. It is ended by one `Stop`, decided here and nowhere else; then the
verifier reads the page, and the reward is given. What the agent sees and says is an `Interface` that the
recipe chooses. OpenWebRL sections 3.1 to 3.3; deviation from the released code: calls of
one response stop at the first failure.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from playwright.async_api import Error as PlaywrightError

from minirl.advantages import reward
from minirl.agents import openwebrl, openwebrl_actions, webagent_r1
from minirl.benchmarks.protocols import BY_DONE
from minirl.benchmarks.webarena import tasks as webarena
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import AgentConfig, Config
from minirl.console import say
from minirl.context import (
    WEBRL,
    WEBRL_WITH_SYSTEM,
    ChatFormat,
    Context,
    Frame,
    round_frame,
    tool_frame,
    webrl_frame,
)
from minirl.model import Preprocessor
from minirl.types import (
    BrowserFault,
    Call,
    Observation,
    Parsed,
    Prompt,
    Sample,
    SamplerError,
    Stop,
    Task,
    ToolFailure,
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
    answer: Callable[[Call], str | None]  # what a call ends the episode with, if it does
    frame: Frame
    chat: ChatFormat | None = None  # in place of the model's own


def interface_of(agent: AgentConfig) -> Interface:
    """OpenWebRL's screenshots and 13 tools, or WebAgent-R1's simplified HTML and one action; WebRL's
    checkpoints were given no system text."""
    if agent.kind == "visual":
        system = openwebrl.system_prompt(agent.brief, agent.names, agent.prompt)
        return Interface(
            system,
            openwebrl_actions.observe,
            openwebrl.parse,
            openwebrl_actions.act,
            openwebrl.final_answer,
            tool_frame,
        )
    how = (webagent_r1.observe, webagent_r1.parse, webagent_r1.act, webagent_r1.final_answer)
    if agent.history == "webrl" and agent.prompt is None:
        return Interface("", *how, webrl_frame, WEBRL)
    system = webagent_r1.system_prompt(agent.brief, agent.thinking, agent.prompt)
    if agent.history == "webrl":
        return Interface(system, *how, webrl_frame, WEBRL_WITH_SYSTEM)
    return Interface(system, *how, round_frame)


def conversation(agent: AgentConfig, preprocessor: Preprocessor, interface: Interface, task: Task) -> Context:
    """A task's conversation, empty so far, with the recipe's rules of what stays in it."""
    return Context(
        preprocessor.tokenizer,
        interface.chat or preprocessor.chat,
        interface.system,
        task.instruction,
        preprocessor.image_tokens,
        keep=agent.screenshots,
        frame=interface.frame,
        reasoning=agent.reasoning,
    )


FAILED = ": failed, "  # in the feedback on a call


def shown(agent: AgentConfig, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
    """What the model is told after a turn. That it could not be read is not the browser's feedback."""
    if agent.feedback or parsed.error:
        return feedback
    return tuple(line for line in feedback if agent.kind == "text" and FAILED in line)


# A policy answers a prompt. A model looks at nothing but the prompt; scripts and people may use the page.
PolicyFn = Callable[[int, Prompt, Session], Awaitable[Sample]]


class Verifier(Protocol):
    """Reads the page and the answer after the agent ended the task: was it fulfilled, and what was read."""

    async def __call__(self, task: Task, session: Session, answer: str) -> tuple[bool, dict[str, Any]]: ...


TOLD: list[str] = []  # the first unexpected failure of this process


def tell_once(trace: str) -> None:
    """Prints a traceback, if it is the first: what nobody expected is a bug of ours, not a flaky browser."""
    if not TOLD:
        TOLD.append(trace)
        say(f"an episode failed in a way that minirl does not expect; the first such failure:\n{trace}")


@dataclass
class Episode:
    """One attempt at a task. `run` returns the trajectory, whatever happens on the way. After one of the
    endings `succeeds_by` the verifier is asked; after all others there is no success."""

    task: Task
    member: int
    policy: PolicyFn
    max_steps: int
    config: Config
    preprocessor: Preprocessor
    interface: Interface
    put_image: Callable[[bytes], str]
    succeeds_by: tuple[Stop, ...] = BY_DONE
    turns: list[Turn] = field(default_factory=list)
    stop: Stop = Stop.MAX_STEPS
    answer: str = ""
    error: str = ""

    async def run(self, pool: BrowserPool, verify: Verifier) -> Trajectory:
        """The only place where anything may be caught: an episode's failure is a `Stop`, counted."""
        start, success, state, last = time.monotonic(), False, {}, ""
        diagnostics: dict[str, float] = {}
        self.context = conversation(self.config.agent, self.preprocessor, self.interface, self.task)
        try:
            async with pool.session() as session:
                acquired = began = time.monotonic()
                try:
                    async with asyncio.timeout(self.config.browser.episode_seconds):
                        await session.start(self.task.start_url)
                        await webarena.prepare(session, self.task, folder=self.config.task.logins)
                        began = time.monotonic()
                        last = await self._loop(session)
                        if self.stop in self.succeeds_by:
                            success, state = await verify(self.task, session, self.answer)
                finally:
                    diagnostics = {
                        "acquire": acquired - start,
                        "start": (began if began > acquired else time.monotonic()) - acquired,
                        "uptime": pool.uptime(session),
                        "heap_mb": session.heap,
                        "requests": sum(session.documents.values()),
                    }
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
            trunk=tuple(self.context.trunk) if any(turn.response_ids for turn in self.turns) else (),
            turns=tuple(self.turns),
            stop=self.stop,
            answer=self.answer,
            success=success,
            error=self.error,
            final_state=state,
            final_image=last,
            seconds=time.monotonic() - start,
            diagnostics=diagnostics,
        )
        return replace(trajectory, reward=reward(trajectory, self.config.reward.format_error))

    async def _loop(self, session: Session) -> str:
        """Turns until the episode stops; the hash of the last screenshot."""
        observation = await self.interface.observe(session)
        told: tuple[str, ...] = ()
        bad = same = 0
        for t in range(self.max_steps):
            prompt = self.context.observe(observation, told)
            room = self.config.agent.context_tokens - len(prompt.ids)
            if room < 1:
                self.stop = Stop.LENGTH
                break
            if self.config.sampler.kind == "remote":
                prompt = replace(prompt, messages=self.context.messages())
            before = time.monotonic()
            try:
                sample = await self.policy(t, prompt, session)
            except SamplerError as failure:
                self.stop, self.error = Stop.SAMPLER_ERROR, str(failure)
                break
            text, ids = self._said(sample)
            self.context.respond(ids, text)
            sampled = time.monotonic()
            parsed = (
                self.interface.parse(text) if sample.finish == "stop" else Parsed(error="Error: cut off.")
            )
            feedback = await self._act(session, parsed)
            told = shown(self.config.agent, parsed, feedback)
            acted = time.monotonic()
            turn = Turn(
                shared=prompt.shared if sample.ids else 0,
                branch=prompt.ids[prompt.shared :] if sample.ids else (),
                response_ids=sample.ids,
                logprobs=sample.logprobs,
                text=text,
                images=tuple(self.put_image(png) for png in prompt.images),
                parsed=parsed,
                feedback=feedback,
                observation=observation.text,
                page_text=observation.page_text,
                url=observation.url,
                finish=sample.finish,
                version=sample.version,
                cached=sample.cached,
                counted=sample.counted,
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
            same = same + 1 if t and text == self.turns[-2].text else 1
            if sample.finish == "length":
                self.stop = Stop.LENGTH
                break
            if bad >= self.config.agent.format_errors:
                self.stop = Stop.FORMAT_ERROR
                break
            if self.stop is Stop.DONE:
                break
            if same == self.config.agent.repeats:
                self.stop = Stop.REPEATED
                break
        return self.put_image(observation.image) if observation.image else ""

    def _said(self, sample: Sample) -> tuple[str, tuple[int, ...]]:
        """A response as text and as ids. Those of a served model's text only measure how long the
        conversation is: nothing is trained on them."""
        tokenizer = self.preprocessor.tokenizer
        if sample.text is not None:
            return sample.text, tuple(tokenizer(sample.text + tokenizer.eos_token)["input_ids"])
        text = tokenizer.decode(sample.ids, skip_special_tokens=False)
        return text.removesuffix(tokenizer.eos_token), sample.ids

    async def _act(self, session: Session, parsed: Parsed) -> tuple[str, ...]:
        """Runs the calls in order, up to the first failure or `done`; one line of feedback for each."""
        if parsed.error:
            return (parsed.error,)
        lines = []
        for i, call in enumerate(parsed.calls):
            try:
                lines.append(await self.interface.act(session, call))
            except ToolFailure as failure:
                lines.append(
                    openwebrl_actions.shorten(f"{call.name}{FAILED}{str(failure).removesuffix('.')}.")
                )
                rest = parsed.calls[i + 1 :]
                lines += [f"{later.name}: not executed." for later in rest]
                break
            answer = self.interface.answer(call)
            if answer is not None:
                self.stop, self.answer = Stop.DONE, answer
                lines += [f"{later.name}: not executed." for later in parsed.calls[i + 1 :]]
                break
        return tuple(lines)
