"""The settings of judge.py: a run's, its own, and the recipes of judges.

Stands before labels.py and distill.py. OpenWebRL, section 4.3 and table 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from minirl.config import Config, ModelConfig, SftConfig, Share
from minirl.recipes import tiny

# The settings that people change most: the first screen of --help
COMMON = ("name", "runs", "teacher", "judge.url", "judge.model", "judge.path", "labelled", "bench")


@dataclass(frozen=True)
class JudgeScriptConfig(Config):
    """What makes a judge of our own from a teacher's labels."""

    runs: tuple[Path, ...] = ()
    """Run folders whose trajectories are labelled."""
    dumps: tuple[str, ...] = ()
    """Which of their dumps, as step_00012; by default all but the demonstrations."""
    teacher: Literal["world", "endpoint"] = "world"
    """world: what the task's own verifier found; endpoint: the model behind --judge.url."""
    labelled: Path | None = None
    """The run folder that holds the labels; by default this run's."""
    goals: Share = 0.2
    """Share of the goals that are held out."""
    stages: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of the training steps that are held out."""
    shuffle_labels: bool = False
    """Control: permute the labels among the trajectories, so that only their base rate can be learned."""
    bench: Path | None = None
    """Score on a folder of AgentRewardBench in place of the held-out labels."""


def tiny_judge() -> JudgeScriptConfig:
    """A judge of 1M parameters for the generated shop, which at this size can only go by the reports."""
    config = JudgeScriptConfig(**vars(tiny()))
    batch = replace(config.batch, micro_tokens=4096)
    sft = SftConfig(lr=2e-3, epochs=1000, max_steps=800, batch=32)
    return replace(config, recipe="tiny_judge", batch=batch, sft=sft)


def judge_4b() -> JudgeScriptConfig:
    """OpenWebRL-Judge-4B. The paper does not state what the judges started from (its table 3 compares them
    with the Instruct models) nor how they were trained: these are its policy's SFT settings."""
    model = ModelConfig("Qwen/Qwen3-VL-4B-Instruct", gradient_checkpointing=True, freeze_vision=True)
    sft = SftConfig(lr=1e-5, epochs=3, batch=128, warmup=0.1)
    return JudgeScriptConfig(recipe="judge_4b", model=model, sft=sft)


def judge_8b() -> JudgeScriptConfig:
    """OpenWebRL-Judge-8B, which the paper trains policies with."""
    config = judge_4b()
    return replace(config, recipe="judge_8b", model=replace(config.model, path="Qwen/Qwen3-VL-8B-Instruct"))


RECIPES = {recipe.__name__: recipe for recipe in (tiny_judge, judge_4b, judge_8b)}
