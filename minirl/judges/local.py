"""Who judges a run's episodes: a served model, one of our own beside the agent's, or nobody.

Stands between a finished episode and its reward (minirl/rollout.py), for tasks whose sites can't say whether
they were fulfilled. OpenWebRL, section 4.3: a model of 8B that agrees with the large one costs nothing to
ask. It has an engine of its own (vLLM's in a process of its own), which no update reaches, with its own share
of memory; while the agent is updated it sleeps. What a judge is shown, and how its words are read, the config
says (minirl/judges/rubrics.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from minirl.agents.openwebrl import read_prompt
from minirl.benchmarks.protocols import Input
from minirl.config import Config, JudgeConfig
from minirl.console import progress
from minirl.distributed import Ranks
from minirl.judges import judge as verdict
from minirl.judges.judge import EndpointJudge
from minirl.judges.rubrics import messages_for, parse
from minirl.model import check_checkpoint, load_model, load_preprocessor
from minirl.samplers.endpoint import open_endpoint
from minirl.samplers.huggingface import HfSampler
from minirl.samplers.vllm import VllmSampler, is_chosen
from minirl.types import Sampling, Trajectory, Verdict

DISTILLED: Input = "openwebrl"  # what minirl/judges/distill.py asks


class Judge(Protocol):
    """Reads a trajectory, and its screenshots by name. A failure to judge is an invalid verdict."""

    async def __call__(self, trajectory: Trajectory, image: Callable[[str], bytes]) -> Verdict: ...


async def nobody(trajectory: Trajectory, image: Callable[[str], bytes]) -> Verdict:
    return Verdict(None, "", "there is no judge: give --judge.model, or --judge.path")


def question_of(judge: JudgeConfig) -> dict[str, Any]:
    """What a judge of our own is asked with, as its checkpoint remembers it."""
    prompt = read_prompt(judge.prompt) if judge.prompt else None
    return {"brief": judge.brief, "screenshots": judge.screenshots, "prompt": prompt}


def refuse_other_questions(judge: JudgeConfig, asked: Mapping[str, Any]) -> None:
    """ValueError if a distilled judge learned to answer another question than it would be asked."""
    file = Path(judge.path) / "state.json"
    learned = json.loads(file.read_text()).get("question") if file.is_file() else None
    if learned and judge.input != DISTILLED:
        raise ValueError(
            f"--judge.path {judge.path} was distilled to answer another question than --judge.input "
            f"{judge.input}; give --judge.input {DISTILLED} --judge.parser verdict-line"
        )
    for name, value in (learned or {}).items():
        if asked.get(name) != value:
            raise ValueError(f"--judge.path {judge.path} was distilled with another --judge.{name}: {value}")


class LocalJudge:
    """A model beside the agent's; if the config has no temperature, at 0."""

    def __init__(self, config: Config, ranks: Ranks):
        self.config, question = config.judge, question_of(config.judge)
        self.prompt = question["prompt"]
        self.response_tokens = verdict.BRIEF_TOKENS if self.config.brief else self.config.response_tokens
        model = replace(config.model, path=self.config.path)
        refuse_other_questions(self.config, question)
        if Path(model.path).exists():  # else a hub name
            check_checkpoint(model)
        self.preprocessor = load_preprocessor(model)
        own = replace(
            config,
            model=model,
            agent=replace(config.agent, screenshots=self.config.screenshots),
            sampler=replace(
                config.sampler, gpu_memory=self.config.gpu_memory, request_seconds=self.config.seconds
            ),
        )
        self.sampler: HfSampler | VllmSampler
        if is_chosen(config.sampler.kind, ranks.device):
            self.sampler = VllmSampler(own, self.preprocessor, ranks, apart=True)
        else:
            weights = load_model(model, ranks.device)
            self.sampler = HfSampler(weights, self.preprocessor, own.sampler)

    async def __call__(self, trajectory: Trajectory, image: Callable[[str], bytes]) -> Verdict:
        try:
            shown, brief = self.config.screenshots, self.config.brief
            asked = messages_for(self.config.input, trajectory, image, shown, self.prompt, brief)
        except (ValueError, OSError) as problem:  # a file that can't be read
            return Verdict(None, "", str(problem))
        return await verdict.ask(
            self.sampler,
            self.preprocessor,
            asked,
            response_tokens=self.response_tokens,
            sampling=Sampling(temperature=self.config.temperature or 0.0),
            read=partial(parse, self.config.parser),
        )


@contextlib.asynccontextmanager
async def open_judge(config: Config, ranks: Ranks) -> AsyncIterator[Judge]:
    """The judge that the config names, for as long as the block lasts. ValueError if it can't be had."""
    judge = config.judge
    if judge.path:
        with progress("loading the judge"):
            local = LocalJudge(config, ranks)
        try:
            yield local
        finally:
            local.sampler.close()
    elif judge.model:
        prompt = question_of(judge)["prompt"]
        how = partial(messages_for, judge.input), partial(parse, judge.parser), judge.temperature
        async with open_endpoint(judge) as endpoint:
            yield EndpointJudge(endpoint, judge.screenshots, prompt, judge.response_tokens, *how)
    else:
        yield nobody
