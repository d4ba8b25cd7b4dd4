"""Every setting, once: dataclasses that tyro turns into flags, and the recipes as functions.

A recipe is a complete `Config`; flags change single values (`python train.py tiny --loss.clip-high 0.3`).
Values are the papers'; where only released code or a public fork states one, the recipe says so. Where
paper and code disagree, the recipe follows the paper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class ModelConfig:
    path: str = "tiny"
    """Hugging Face folder or hub name; `tiny` builds a small Qwen3-VL locally."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on CUDA, float32 elsewhere."""
    max_pixels: int | None = None
    """Screenshots are scaled down to this many pixels; None: the model's own limit."""


@dataclass(frozen=True)
class AgentConfig:
    kind: Literal["visual", "text", "autowebworld"] = "visual"
    """What the agent sees and says: screenshots and 13 tools, simplified HTML and one action, or one step."""
    brief: bool = False
    """A one-line system prompt without tool schemas, for models too small to read them."""
    screenshots: int = 1
    """How many of the newest screenshots stay in the prompt."""
    response_tokens: int = 1024
    """Longest response."""
    context_tokens: int = 32768
    """Longest prompt with its response."""
    format_errors: int = 3
    """This many unparsable responses in a row end the episode."""


@dataclass(frozen=True)
class BrowserConfig:
    browsers: int = 2
    """Chromium processes per rank; a crash takes only the episodes of one."""
    episodes: int = 16
    """Episodes in flight per rank."""
    site_port: int = 0
    """Loopback port of the generated sites; 0: any free one."""
    width: int = 1280
    height: int = 1000
    start_attempts: int = 3
    """How often a first page is tried; nothing else is ever retried."""
    start_seconds: float = 30.0
    action_seconds: float = 45.0
    screenshot_seconds: float = 30.0
    exit_seconds: float = 15.0
    episode_seconds: float = 600.0
    """Deadline of an episode."""
    quiet_ms: float = 300.0
    """The page is ready when its DOM has not changed for so long ..."""
    ready_ms: float = 3000.0
    """... and at the latest after this time."""


@dataclass(frozen=True)
class SamplerConfig:
    kind: Literal["auto", "hf", "vllm", "remote"] = "auto"
    """The transformers sampler (hf, auto) is the only one yet."""
    temperature: float = 1.0
    """Of training's episodes, which are drawn from the whole vocabulary: no top-p, no top-k."""
    max_batch: int = 32
    """Most requests that the transformers sampler decodes together."""
    request_seconds: float = 30.0
    """Longest time that one response may take."""


@dataclass(frozen=True)
class TaskConfig:
    train: str = "shop"
    """`shop`: generated tasks; or a JSONL file of tasks."""
    heldout: str = "shop"
    """The same, for evaluation."""
    seed: int = 0
    """Which shop is generated."""
    train_goals: int = 300
    """How many goals reinforcement may see."""
    demo_goals: int = 100
    """How many of them are demonstrated."""


@dataclass(frozen=True)
class RolloutConfig:
    group: int = 8
    """Episodes per task."""
    groups: int = 16
    """Groups per step; with dynamic sampling, groups of unequal rewards."""
    dynamic: bool = True
    """Drop groups whose rewards are all equal and sample further tasks until there are enough."""
    max_oversample: float = 6.0
    """Give up on a step after this many times `groups` were submitted."""
    max_steps: tuple[int, ...] = (15,)
    """Turns per episode, one value for each stage of the curriculum."""
    stage_steps: tuple[int, ...] = ()
    """How many training steps each stage but the last takes."""


@dataclass(frozen=True)
class LossConfig:
    weighting: Literal["openwebrl", "webagent-r1", "token-mean", "grpo"] = "openwebrl"
    """How tokens are averaged (see minirl/loss.py)."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    """Weight of the k3 divergence from the initial model."""
    std_eps: float = 1e-6
    """Added to a group's standard deviation."""


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    grad_clip: float = 1.0


@dataclass(frozen=True)
class BatchConfig:
    epochs: int = 2
    """Passes over a step's trajectories."""
    minibatch_turns: int = 256
    """Turns per optimizer update, in whole trajectories."""
    micro_tokens: int = 32768
    """Tokens per forward pass, padding included."""
    layout: Literal["tree", "per-turn"] = "tree"
    """tree: turns share their common beginnings (minirl/tree.py); per-turn: one padded row for each turn."""


@dataclass(frozen=True)
class SftConfig:
    lr: float = 1e-5
    epochs: int = 3
    max_steps: int | None = None
    """Stop after this many updates even if epochs remain."""
    batch: int = 128
    """Turns per update."""
    warmup: float = 0.1
    """Share of the updates over which the learning rate rises; a cosine takes it down again."""
    stop_success: float | None = None
    """Validate in the browser every `eval_every` updates, and stop at this success rate."""
    eval_from: int = 100
    """The first update after which it is validated."""
    eval_every: int = 20
    eval_episodes: int = 64


@dataclass(frozen=True)
class EvalConfig:
    episodes: int = 256
    max_steps: int = 30
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    """0: no limit."""
    response_tokens: int = 4096


@dataclass(frozen=True)
class Config:
    recipe: str
    """Where the values came from."""
    name: str | None = None
    """The run's folder is runs/NAME; by default the recipe's name."""
    out: Path = Path("runs")
    seed: int = 0
    steps: int = 140
    """RL steps."""
    eval_every: int = 0
    """Evaluate on held-out tasks every so many steps, keep the best checkpoint; 0: only before and after."""
    eval_size: int = 64
    """Episodes of such an evaluation."""
    save_every: int = 10
    """Checkpoint interval in steps."""
    keep: int = 2
    """How many checkpoints stay, the best one apart; trajectories of the last 10 steps and of every 10th."""
    resume: bool = False
    """Go on from the run's last checkpoint."""
    replay: Path | None = None
    """Train on the trajectories dumped in this run folder instead of sampling new ones; opens no browser."""
    warm_start: Path | None = None
    """Start from this checkpoint; by default the run's sft checkpoint, made first where the recipe can."""
    shuffle_rewards: bool = False
    """Control: permute the rewards within each group, so that nothing can be learned from them."""
    threads: int = 0
    """CPU threads for torch; 0: all cores while training, all but one while Chromium runs."""
    wandb: str | None = None
    """Project to log to."""
    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    browser: BrowserConfig = field(default_factory=BrowserConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @property
    def run_dir(self) -> Path:
        return self.out / (self.name or self.recipe + ("-replay" if self.replay else ""))

    def max_steps(self, step: int) -> int:
        """The curriculum: turns per episode at a training step (0-based).

        With max_steps (15, 30) and stage_steps (90,), steps 0-89 allow 15 turns and later ones 30.
        """
        stages = self.rollout.stage_steps
        passed = sum(step >= sum(stages[: i + 1]) for i in range(len(stages)))
        return self.rollout.max_steps[passed]


# --- recipes ---------------------------------------------------------------------------------------


def tiny() -> Config:
    """A 1M-parameter Qwen3-VL on a generated shop: minutes on two CPU cores, every part real."""
    return Config(
        recipe="tiny",
        steps=20,
        save_every=1,
        model=ModelConfig(max_pixels=160 * 128),
        agent=AgentConfig(brief=True, response_tokens=64, context_tokens=1024),
        browser=BrowserConfig(
            width=480, height=360, episodes=24, action_seconds=15, episode_seconds=120, quiet_ms=0
        ),
        sampler=SamplerConfig(temperature=1.0, max_batch=12),
        rollout=RolloutConfig(group=8, groups=16, max_steps=(5, 6), stage_steps=(10,)),
        optim=OptimConfig(lr=1e-4),
        batch=BatchConfig(minibatch_turns=128, micro_tokens=2048),
        sft=SftConfig(lr=2e-3, epochs=1000, max_steps=200, batch=32, stop_success=0.25, eval_from=120),
        eval=EvalConfig(max_steps=6, temperature=1.0, top_p=1.0, top_k=0, response_tokens=64),
    )


def openwebrl_4b() -> Config:
    """OpenWebRL, 4B: 90 iterations of 15 turns, then 50 of 30. Adam's second beta and the learning rates
    are from released scripts."""
    return Config(
        recipe="openwebrl_4b",
        steps=140,
        model=ModelConfig(path="Qwen/Qwen3-VL-4B-Thinking"),
        browser=BrowserConfig(episodes=80),
        sampler=SamplerConfig(temperature=0.8),
        rollout=RolloutConfig(group=5, groups=48, max_steps=(15, 30), stage_steps=(90,)),
    )


def openwebrl_8b() -> Config:
    """OpenWebRL, 8B: as the 4B with half the learning rate (and 912 instead of 412 demonstrations)."""
    config = openwebrl_4b()
    return replace(
        config,
        recipe="openwebrl_8b",
        model=replace(config.model, path="Qwen/Qwen3-VL-8B-Thinking"),
        optim=replace(config.optim, lr=5e-7),
    )


def webagent_r1_3b() -> Config:
    """WebAgent-R1, Qwen2.5-3B. Group size, Adam's betas and the gradient clip are from the released code."""
    return Config(
        recipe="webagent_r1_3b",
        steps=40,
        model=ModelConfig(path="Qwen/Qwen2.5-3B-Instruct"),
        agent=AgentConfig(kind="text", context_tokens=16384),
        browser=BrowserConfig(width=1280, height=720, episodes=64),
        sampler=SamplerConfig(temperature=1.0),
        rollout=RolloutConfig(group=4, groups=16, dynamic=False, max_steps=(15,)),
        loss=LossConfig(weighting="webagent-r1", clip_high=0.2, kl=0.001, std_eps=1e-4),
        optim=OptimConfig(lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, grad_clip=0.01),
        batch=BatchConfig(epochs=1),
        sft=SftConfig(lr=5e-5, batch=128, warmup=0.05),
        eval=EvalConfig(max_steps=30, temperature=1.0, top_p=0.9, top_k=0, response_tokens=2048),
    )


def webagent_r1_8b() -> Config:
    """WebAgent-R1, Llama-3.1-8B; the paper starts from WebRL's checkpoint (--warm-start)."""
    config = webagent_r1_3b()
    model = replace(config.model, path="meta-llama/Llama-3.1-8B-Instruct")
    return replace(config, recipe="webagent_r1_8b", model=model)


def autowebworld_7b() -> Config:
    """AutoWebWorld, Qwen2.5-VL-7B on recorded steps. Clip, KL and response length are from released code."""
    return Config(
        recipe="autowebworld_7b",
        steps=500,
        model=ModelConfig(path="Qwen/Qwen2.5-VL-7B-Instruct", max_pixels=12_845_056),
        agent=AgentConfig(kind="autowebworld", response_tokens=256, context_tokens=16384),
        browser=BrowserConfig(width=1280, height=720),
        sampler=SamplerConfig(temperature=1.0),
        rollout=RolloutConfig(group=8, groups=32, dynamic=False, max_steps=(1,)),
        loss=LossConfig(weighting="grpo", clip_high=0.2, kl=0.04, std_eps=1e-4),
        batch=BatchConfig(epochs=1),
        eval=EvalConfig(max_steps=15),
    )


def autowebworld_3b() -> Config:
    """AutoWebWorld, Qwen2.5-VL-3B."""
    config = autowebworld_7b()
    model = replace(config.model, path="Qwen/Qwen2.5-VL-3B-Instruct")
    return replace(config, recipe="autowebworld_3b", model=model)


RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__: recipe
    for recipe in (
        tiny,
        openwebrl_4b,
        openwebrl_8b,
        webagent_r1_3b,
        webagent_r1_8b,
        autowebworld_3b,
        autowebworld_7b,
    )
}


def check(config: Config) -> Config:
    """Refuses what can't work, before anything is loaded. Raises ValueError with the flag to change."""
    rollout, batch = config.rollout, config.batch
    if config.agent.kind != "visual":
        raise ValueError(f"recipe {config.recipe}: the {config.agent.kind} agent is not built yet")
    if config.sampler.kind in ("vllm", "remote"):
        raise ValueError(f"--sampler.kind {config.sampler.kind} is not built yet; use hf")
    if config.loss.kl or config.loss.weighting != "openwebrl":
        raise ValueError("only --loss.weighting openwebrl with --loss.kl 0 is built yet")
    if rollout.group < 2:
        raise ValueError("--rollout.group must be at least 2: an advantage compares episodes of one task")
    if len(rollout.max_steps) != len(rollout.stage_steps) + 1:
        raise ValueError("--rollout.max-steps needs one value more than --rollout.stage-steps")
    if config.task.demo_goals > config.task.train_goals:
        raise ValueError("--task.demo-goals can't exceed --task.train-goals")
    if batch.micro_tokens < config.agent.context_tokens:
        raise ValueError("--batch.micro-tokens must be at least --agent.context-tokens")
    if config.sampler.temperature <= 0:
        raise ValueError("--sampler.temperature must be above 0: a greedy policy has no gradient")
    counts = {
        "--steps": config.steps,
        "--save-every": config.save_every,
        "--keep": config.keep,
        "--agent.screenshots": config.agent.screenshots,
        "--browser.browsers": config.browser.browsers,
        "--browser.episodes": config.browser.episodes,
        "--sampler.max-batch": config.sampler.max_batch,
        "--rollout.groups": rollout.groups,
        "--rollout.max-steps": min(rollout.max_steps),
        "--batch.epochs": batch.epochs,
        "--batch.minibatch-turns": batch.minibatch_turns,
        "--sft.batch": config.sft.batch,
        "--sft.eval-every": config.sft.eval_every,
        "--sft.eval-episodes": config.sft.eval_episodes,
        "--task.train-goals": config.task.train_goals,
        "--eval.episodes": config.eval.episodes,
        "--rollout.max-oversample": rollout.max_oversample,
    }
    for flag, value in counts.items():
        if value < 1:
            raise ValueError(f"{flag} must be at least 1")
    if config.threads < 0:
        raise ValueError("--threads can't be negative")
    return config


# --- the command line ------------------------------------------------------------------------------


def from_command_line(argv: Sequence[str], prog: str) -> Config:
    """`RECIPE [flags]`; no recipe means tiny. Raises ValueError for anything that can't be understood."""
    import tyro  # not at import time: everything else works without a command line

    name, flags = ("tiny", argv) if not argv or argv[0].startswith("-") else (argv[0], argv[1:])
    recipe = RECIPES.get(name.replace("-", "_"))
    if recipe is None:
        raise ValueError(f"unknown recipe {name!r}; there are {', '.join(RECIPES)}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            config = tyro.cli(
                Config,
                args=list(flags),
                default=recipe(),
                prog=f"{prog} {name}",
                description=recipe.__doc__,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        words = re.sub(r"[│╭╮╰╯─╷╵┃━]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()))
        raise ValueError(" ".join(words.split())[:400]) from None
    return check(config)


def to_json(config: Config) -> dict[str, Any]:
    """The config as plain JSON data, for the run folder."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a script's `main`: a user's mistake is one line and exit status 2, never a traceback
    (unless MINIRL_TRACEBACK is set, for those who look for a mistake of ours)."""
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as problem:
        if "MINIRL_TRACEBACK" in os.environ:
            raise
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
