"""The judge: a vision-language model reads a finished episode and says whether the task was fulfilled.

    Trajectory --Question.messages--> chat messages --a served or local model--> text --parsers.py--> Verdict

Stands between the episode and its reward: minirl/rewards.py says which episodes are judged. OpenWebRL,
section 4.3 and appendix A.4. A judge is served (--judge.model), or it is a checkpoint (--judge.path) that
runs in this process and shares the device with the agent: serve a large one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from minirl.config import Config, JudgeConfig
from minirl.console import progress
from minirl.context import THINK_END, control_tokens, escape_control_tokens, ids_with_pictures
from minirl.distributed import Ranks
from minirl.judges.parsers import read_verdict
from minirl.judges.rubrics import Question, lacks_answer
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.run_folder import state_of
from minirl.samplers.endpoint import Endpoint, EndpointError, open_endpoint
from minirl.samplers.huggingface import HfSampler
from minirl.types import ImageStore, Message, Prompt, Request, SamplerError, Sampling, Trajectory, Verdict

SEED = 42  # as in the released code
BRIEF_TOKENS = 192  # the longest answer to a brief question
JUDGE_BATCH = 4  # questions that a local judge answers at a time: its cache lies beside vLLM's
GREEDY = Sampling(temperature=0.0)


class ModelJudge:
    """A `types.Judge` whose kinds differ in `answer`: a text and how it ended. This one has no model."""

    def __init__(self, config: JudgeConfig, images: ImageStore):
        self.config = config
        self.images = images
        self.question = Question.of(config)

    async def answer(self, messages: Sequence[Message]) -> tuple[str, str]:
        raise ValueError("there is no judge: give --judge.model, or --judge.path")

    async def __call__(self, trajectory: Trajectory) -> Verdict:
        """Return the verdict on an episode. A model or network that fails, a screenshot that is gone and an
        answer that was cut at its limit leave a Verdict without success, and raise nothing."""
        try:
            if self.question.rubric.needs_answer and lacks_answer(trajectory):
                return Verdict(False, "The agent ended the task without an answer; no model was asked.")
            text, finish = await self.answer(self.question.messages(trajectory, self.images))
        except (EndpointError, SamplerError, ValueError, OSError) as problem:
            return Verdict(None, "", str(problem) or type(problem).__name__)
        if finish == "length":
            return Verdict(None, text, "the judge's answer was cut off at its token limit")
        return read_verdict(text)


class EndpointJudge(ModelJudge):
    """Asks a served model, always in full. Limits, attempts and account are the endpoint's."""

    def __init__(self, endpoint: Endpoint, config: JudgeConfig, images: ImageStore):
        if config.input == "brief":
            config = replace(config, input="openwebrl")
        super().__init__(config, images)
        self.endpoint = endpoint

    async def answer(self, messages: Sequence[Message]) -> tuple[str, str]:
        sampling = {"temperature": 0.0} if self.question.rubric.greedy else {}
        reply = await self.endpoint.ask(messages, self.config.response_tokens, seed=SEED, **sampling)
        return reply.text, reply.finish


class LocalJudge(ModelJudge):
    """A checkpoint in this process, run by transformers at temperature 0."""

    def __init__(self, config: Config, ranks: Ranks, images: ImageStore):
        super().__init__(config.judge, images)
        path = Path(config.judge.path)
        question = asdict(self.question)
        learned = state_of(path).get("question", question)
        if learned != question:
            raise ValueError(f"--judge.path {path} was distilled with another question: {learned}")
        model = replace(config.model, path=config.judge.path)
        self.preprocessor = load_preprocessor(model)
        self.sampler = HfSampler(load_model(model, ranks.device), self.preprocessor)
        self.sampler.max_batch = JUDGE_BATCH

    async def answer(self, messages: Sequence[Message]) -> tuple[str, str]:
        limit = BRIEF_TOKENS if self.config.input == "brief" else self.config.response_tokens
        prompt = prompt_of(self.preprocessor, messages)
        try:
            sample = await self.sampler.generate(Request(prompt, SEED, limit, GREEDY, self.config.seconds))
        except (asyncio.CancelledError, SamplerError):
            await self.sampler.idle()  # what is still decoded would be in the update's way
            raise
        text = self.preprocessor.text(sample.ids)
        # A template may open the thinking itself: without its end, all of the answer is thought
        if self.preprocessor.chat.opens_think and THINK_END not in text:
            text = f"<think>\n{text}"
        return text, sample.finish


def prompt_of(preprocessor: Preprocessor, messages: Sequence[Message]) -> Prompt:
    """Return a system and a user message as token ids, in which no text spells a token of the chat's form."""
    chat = preprocessor.chat
    control = control_tokens(preprocessor.tokenizer)
    parts = []
    for (_, content), opening in zip(messages, (chat.start, chat.to_user), strict=True):
        parts.append(opening)
        for part in content:
            parts.append(escape_control_tokens(part, control) if isinstance(part, str) else part)
    ids = ids_with_pictures([*parts, chat.to_assistant], preprocessor)
    pictures = tuple(part for part in parts if isinstance(part, bytes))
    return Prompt(ids, shared=0, images=pictures, messages=tuple(messages))


@contextlib.asynccontextmanager
async def open_judge(config: Config, ranks: Ranks, images: ImageStore) -> AsyncIterator[ModelJudge]:
    """Open the judge that the config names: a checkpoint, a served model, or one that has no verdict."""
    if config.judge.path:
        with progress("loading the judge"):
            judge = LocalJudge(config, ranks, images)
        with contextlib.closing(judge.sampler):
            yield judge
    elif config.judge.model:
        async with open_endpoint(config.judge) as endpoint:
            yield EndpointJudge(endpoint, config.judge, images)
    else:
        yield ModelJudge(config.judge, images)
