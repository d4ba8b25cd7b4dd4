"""The judge: a vision-language model reads a finished episode and says whether the task was fulfilled.

    Trajectory --Question.messages--> chat messages --a served or local model--> text --verdict--> Verdict

Stands between the episode and its reward: minirl/advantages.py says which episodes are judged, and what a
verdict is worth. OpenWebRL, section 4.3 and appendix A.4. A judge is served (--judge.model), or it is a
checkpoint (--judge.path) that runs in this process and shares the device with the agent: serve a large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from minirl.config import Config, JudgeConfig, Parser
from minirl.console import progress
from minirl.context import THINK_END, control_tokens, ids_with_pictures, inert
from minirl.distributed import Ranks
from minirl.experiment import open_model
from minirl.judges.parsers import parse
from minirl.judges.rubrics import Question
from minirl.model import Preprocessor, check_checkpoint, compute_dtype, load_preprocessor
from minirl.samplers.endpoint import Endpoint, EndpointError, Reply, open_endpoint
from minirl.samplers.huggingface import HfSampler
from minirl.types import (
    ImageStore,
    Judge,
    Message,
    Prompt,
    Request,
    Sample,
    SamplerError,
    Sampling,
    Trajectory,
    Verdict,
)

SEED = 42  # as in the released code; equal questions have one answer in the endpoint's cache
BRIEF_TOKENS = 192  # the longest answer to a brief question


class ModelJudge:
    """A `types.Judge` whose kinds differ in `answer`; `images` holds the screenshots of the trajectories."""

    preprocessor: Preprocessor | None = None  # of a model whose answers are token ids

    def __init__(self, config: JudgeConfig, images: ImageStore):
        self.config, self.images, self.question = config, images, Question.of(config)

    async def answer(self, messages: Sequence[Message]) -> Reply | Sample:
        raise NotImplementedError

    async def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict on an episode. A model or network that fails and a screenshot that is gone or
        can't be decoded leave a Verdict without success, and raise nothing."""
        try:
            reply = await self.answer(self.question.messages(trajectory, self.images))
        except (EndpointError, SamplerError, ValueError, OSError) as problem:
            return Verdict(None, "", str(problem) or type(problem).__name__)
        return verdict(reply, self.config.parser, self.preprocessor)


def verdict(reply: Reply | Sample, parser: Parser, preprocessor: Preprocessor | None = None) -> Verdict:
    """Return the verdict in what a model answered; an answer that was cut at its limit has none, even if a
    line looks like it. A local model, whose ids `preprocessor` decodes, must have closed its `<think>`."""
    text = reply.text
    if text is None:
        assert preprocessor is not None, "ids need a tokenizer"
        text = preprocessor.tokenizer.decode(reply.ids, skip_special_tokens=False)
        text = text.removesuffix(preprocessor.tokenizer.eos_token)
        if preprocessor.chat.opens_think and THINK_END not in text:
            text = f"<think>\n{text}"
    if reply.finish == "length":
        return Verdict(None, text, "the judge's answer was cut off at its token limit")
    return parse(parser, text)


class EndpointJudge(ModelJudge):
    """Asks a served model, always in full. Limits, attempts, cache and account are the endpoint's."""

    def __init__(self, endpoint: Endpoint, config: JudgeConfig, images: ImageStore):
        super().__init__(config, images)
        self.endpoint, self.question = endpoint, replace(self.question, brief=False)

    async def answer(self, messages: Sequence[Message]) -> Reply:
        """Return the model's reply. Without a configured temperature the server's default holds."""
        heat = self.config.temperature
        sampling = {} if heat is None else {"temperature": heat}
        return await self.endpoint.ask(messages, self.config.response_tokens, seed=SEED, **sampling)


class LocalJudge(ModelJudge):
    """A checkpoint in this process, run by transformers; without a configured temperature, at 0. ValueError
    if it can't be loaded or was distilled to answer another question."""

    def __init__(self, config: Config, ranks: Ranks, images: ImageStore):
        super().__init__(config.judge, images)
        path = config.judge.path
        model = replace(config.model, path=path)
        state = Path(path) / "state.json"
        learned = json.loads(state.read_text()).get("question") if state.is_file() else None
        # a checkpoint that remembers a question and no input was taught OpenWebRL's
        for name, value in ({"input": "openwebrl"} | learned if learned else {}).items():
            if getattr(self.question, name) != value:
                raise ValueError(f"--judge.path {path} was distilled with another --judge.{name}: {value}")
        if Path(path).exists():  # else a hub name
            check_checkpoint(model)
        self.preprocessor = load_preprocessor(model)
        try:
            weights = open_model(replace(config, model=model))
            weights = weights.to(ranks.device, compute_dtype(model, ranks.device))
        except torch.OutOfMemoryError:
            advice = "serve it, and give --judge.url and --judge.model instead"
            raise ValueError(f"--judge.path {path} does not fit beside the agent: {advice}") from None
        settings = replace(config.sampler, request_seconds=config.judge.seconds)
        self.sampler = HfSampler(weights, self.preprocessor, settings)

    async def answer(self, messages: Sequence[Message]) -> Sample:
        limit = BRIEF_TOKENS if self.question.rubric == "brief" else self.config.response_tokens
        sampling = Sampling(self.config.temperature or 0.0)
        prompt = prompt_of(self.preprocessor, messages)
        return await self.sampler.generate(Request(prompt, SEED, limit, sampling))


def prompt_of(preprocessor: Preprocessor, messages: Sequence[Message]) -> Prompt:
    """Return a system and a user message as token ids with image pads. No text in them can spell a token of
    the chat's form. ValueError if the model can't see."""
    assert [role for role, _ in messages] == ["system", "user"], messages
    tokenizer, chat = preprocessor.tokenizer, preprocessor.chat
    control = control_tokens(tokenizer)
    parts: list[str | bytes] = []
    for (_, content), opening in zip(messages, (chat.start, chat.to_user), strict=True):
        parts.append(opening)
        parts += (inert(part, control) if isinstance(part, str) else part for part in content)
    ids = ids_with_pictures([*parts, chat.to_assistant], tokenizer, preprocessor.image_tokens)
    pictures = tuple(part for part in parts if isinstance(part, bytes))
    return Prompt(ids, shared=0, images=pictures, messages=tuple(messages))


@contextlib.asynccontextmanager
async def open_judge(config: Config, ranks: Ranks, images: ImageStore) -> AsyncIterator[Judge]:
    """Yield the judge that the config names while the block lasts. ValueError if it can't be had."""
    if config.judge.path:
        with progress("loading the judge"):
            local = LocalJudge(config, ranks, images)
        with contextlib.closing(local.sampler):
            yield local
    elif config.judge.model:
        async with open_endpoint(config.judge) as endpoint:
            yield EndpointJudge(endpoint, config.judge, images)
    else:
        yield no_judge


async def no_judge(trajectory: Trajectory) -> Verdict:
    return Verdict(None, "", "there is no judge: give --judge.model, or --judge.path")


async def ask_all(
    judge: Judge,
    trajectories: Sequence[Trajectory],
    at_once: int,
    phase: str = "judging",
    keep: Callable[[int, Verdict], None] = lambda n, verdict: None,
) -> list[Verdict]:
    """Return the verdicts, in order, of so many questions at once; `keep` each one as soon as it is there."""
    slots = asyncio.Semaphore(at_once)

    async def ask(n: int, trajectory: Trajectory) -> Verdict:
        async with slots:
            verdict = await judge(trajectory)
        keep(n, verdict)
        meter.advance()
        return verdict

    with progress(phase, len(trajectories)) as meter:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(n, t)) for n, t in enumerate(trajectories)]
    return [task.result() for task in tasks]
