"""The settings of judge.py and the recipes of judges. OpenWebRL, section 4.3, table 3."""

from dataclasses import dataclass, replace
from pathlib import Path

from minirl.config import Config, ModelConfig, SftConfig, Share
from minirl.recipes import openwebrl_4b, tiny


@dataclass(frozen=True)
class JudgeScriptConfig(Config):
    runs: tuple[Path, ...] = ()  # run folders whose trajectories are labelled, but for the demonstrations
    labelled: Path | None = None  # the run folder that holds the labels; by default this run's
    goals: Share = 0.2  # share of the goals that are held out


def tiny_judge() -> JudgeScriptConfig:
    """A judge of 1M parameters for generated shops, from the base model that `tiny` starts from."""
    config = JudgeScriptConfig(**vars(tiny()))
    sft = SftConfig(lr=2e-3, epochs=1000, max_steps=800, batch=32)
    return replace(config, recipe="tiny_judge", batch=replace(config.batch, micro_tokens=4096), sft=sft)


def judge_4b(recipe: str = "judge_4b", size: str = "4B") -> JudgeScriptConfig:
    """OpenWebRL-Judge-4B. The paper does not state how the judges were trained, nor from what (its table 3
    compares them with the Instruct models): these are its policy's SFT settings, with whole screenshots."""
    model = ModelConfig(f"Qwen/Qwen3-VL-{size}-Instruct", gradient_checkpointing=True, freeze_vision="always")
    sft = replace(openwebrl_4b().sft, max_pixels=None)
    return JudgeScriptConfig(recipe=recipe, model=model, sft=sft)


def judge_8b() -> JudgeScriptConfig:
    """OpenWebRL-Judge-8B, which the paper trains policies with."""
    return judge_4b("judge_8b", "8B")


RECIPES = {recipe.__name__: recipe for recipe in (tiny_judge, judge_4b, judge_8b)}
