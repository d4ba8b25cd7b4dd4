"""Every setting of a run, once: dataclasses that tyro turns into flags.

The defaults are OpenWebRL's; minirl/recipes.py has each paper's values. A bound is part of a field's type
(`Annotated[int, Ge(1)]`), enforced when a command line is read (minirl/recipes.py). eval.py
and judge.py add settings of their own (minirl/evaluation, minirl/judges).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from tyro.conf import arg

Positive = Annotated[int, Ge(1)]
Seconds = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Lt(1)]

# What a judge reads, and how its words become a verdict: minirl/judges says what each is
Input = Literal["openwebrl", "webvoyager", "agenttrek", "deepshop", "trace", "rules"]
Parser = Literal["not-success-first", "verdict-line", "status", "structured", "rules"]


@dataclass(frozen=True)
class ModelConfig:
    path: str = "tiny"
    """Hugging Face folder or hub name; `tiny` builds a small Qwen3-VL or, to read, a Llama."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in; auto: bfloat16 on CUDA, float32 elsewhere. The trained weights are float32."""
    attention: Literal["auto", "segment", "joined"] = "auto"
    """How a prefix tree attends: by SDPA chain by chain, or in pieces joined by their log-sum-exp (CPU)."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input, and compute the rest again in the backward pass."""
    freeze_vision: bool = False
    """Leave the vision tower as it is."""
    max_pixels: int | None = None
    """Screenshots are scaled down to this many pixels; None: the model's own limit."""


@dataclass(frozen=True)
class AgentConfig:
    kind: Literal["visual", "text", "autowebworld"] = "visual"
    """What the agent sees and says: screenshots and 13 tools, simplified HTML and one action, or one step."""
    brief: bool = False
    """A one-line system prompt without tool schemas, for models too small to read them."""
    prompt: Annotated[Path | None, arg(name="prompt", prefix_name=False)] = None
    """A file with the system prompt; `{tools}` in it becomes the tools' schemas. By default our own."""
    names: Literal["code", "paper"] = "code"
    """The arguments' names in the tools' schemas, as in the released code or the paper; both are read."""
    screenshots: Positive = 1
    """How many of the newest screenshots stay in the prompt."""
    feedback: bool = True
    """Tell what each call did; without, only unreadable responses (text agent: and failures) are told."""
    thinking: bool = True
    """The text agent's answers: `<think>` and `<answer>`; without, the action alone."""
    history: Literal["chat", "webrl"] = "chat"
    """The text agent's rounds: as chat messages, or as WebRL's checkpoints expect them, without thoughts."""
    reasoning: bool = True
    """Keep the reasoning of past turns in the prompt; without, only their calls stay (an ablation)."""
    response_tokens: int = 1024
    """Longest response."""
    context_tokens: int = 32768
    """Longest prompt with its response."""
    format_errors: int = 3
    """This many unparsable responses in a row end the episode."""
    repeats: int = 0
    """This many equal responses in a row end the episode; 0: they do not."""


@dataclass(frozen=True)
class BrowserConfig:
    browsers: Positive = 2
    """Chromium processes per rank; a crash takes only the episodes of one."""
    connect: tuple[str, ...] = ()
    """Browsers elsewhere, one per address: ws://HOST:PORT/ of Playwright servers, or cdp:ADDRESS."""
    episodes: Positive = 16
    """Episodes in flight per rank; under a protocol of eval.py on all ranks together."""
    site_port: int = 0
    """Loopback port of the generated sites; 0: any free one."""
    width: int = 1280
    height: int = 1000
    start_attempts: Positive = 3
    """How often a first page is tried; nothing else is ever retried."""
    acquire_seconds: float = 600.0
    """Longest wait for a browser and a context in it."""
    start_seconds: float = 30.0
    """For a browser, or a task's first page, to open."""
    action_seconds: float = 45.0
    """Longest time of one tool call, waiting for the page included; to help a page that hangs takes more."""
    call_seconds: float = 10.0
    """Longest time of one question to the browser; a page that takes longer hangs: its script is stopped."""
    screenshot_seconds: float = 30.0
    exit_seconds: float = 15.0
    """For a context or a browser to close; browsers that take longer are killed."""
    first_check_seconds: float = 180.0
    """When browsers are first asked for a sign of life ..."""
    check_seconds: float = 30.0
    """... and every so often afterwards; one that gives none in this time is replaced."""
    episode_seconds: float = 600.0
    """Deadline of an episode."""
    quiet_ms: float = 300.0
    """The page is ready when its DOM has rested twice as long as it was stirred, at most so long ..."""
    calm_ms: float = 25.0
    """... at least for so long ..."""
    commit_seconds: float = 10.0
    """... but a new document that was asked for is awaited for so long, then given up ..."""
    ready_ms: float = 3000.0
    """... and at the latest after this time."""
    dom_note: bool = False
    """Tell which elements an action has added and removed, five of each at most."""
    private: bool = False
    """Let pages reach private, loopback and link-local addresses other than those of the tasks' sites."""
    allow: tuple[str, ...] = ()
    """Domains that may be visited (or, with deny, may not), subdomains included; by default all."""
    deny: tuple[str, ...] = ()
    host_rate: float = 0.0
    """Most actions a second on one host, over all of the rank's episodes; 0: no limit."""
    host_failures: Positive = 3
    """A host is left out when the first pages of so many tasks in a row did not open there ..."""
    host_minutes: float = 60.0
    """... for so long; when that happens again, for twice as long, up to a day."""


@dataclass(frozen=True)
class SamplerConfig:
    kind: Annotated[Literal["auto", "hf", "vllm", "remote"], arg(name="sampler", prefix_name=False)] = "auto"
    """vllm in process; hf: transformers; auto: vllm on CUDA, else hf; remote: --endpoint.url (eval.py)."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Of training's episodes, which are drawn from the whole vocabulary: no top-p, no top-k."""
    max_batch: Positive = 32
    """Most requests that the transformers sampler decodes together."""
    request_seconds: float = 30.0
    """Longest time that one response may take (of remote ones, --endpoint.seconds)."""
    gpu_memory: Share = 0.5
    """Share of each GPU's memory that vLLM has while episodes run: its weights and the KV cache."""


@dataclass(frozen=True)
class EndpointConfig:
    """A model that is served elsewhere, for --sampler remote."""

    url: str = "http://127.0.0.1:8000/v1"
    """Base of an OpenAI-compatible API."""
    model: str = ""
    """The name under which the model is served."""
    key: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; servers on this machine need none."""
    concurrency: Positive = 16
    """Most requests in flight."""
    seconds: Seconds = 120.0
    """Longest silence in one attempt; an answer that drips may take twice as long with all its attempts."""
    retries: Annotated[int, Ge(0)] = 5
    """Further attempts after a timeout, a broken connection, 429 or 5xx, with growing pauses."""
    cache: Path | None = None
    """Folder of answers: a request that was answered before is not sent again."""
    prompt_price: Annotated[float, Ge(0)] = 0.0
    """Dollars for a million tokens of prompts, and of responses."""
    response_price: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True)
class JudgeConfig(EndpointConfig):
    """What decides where tasks can't: a served model (--judge.model), or one of our own (--judge.path)."""

    path: str = ""
    """A checkpoint that judges beside the agent, in transformers; serve larger ones."""
    screenshots: int = 3
    """How many of the last screenshots it is shown."""
    input: Input = "openwebrl"
    """What it is shown, and by which rubric it decides (minirl/judges)."""
    parser: Parser = "verdict-line"
    """How its words become a verdict."""
    temperature: Annotated[float, Ge(0)] | None = None
    """None: not sent to a server, and 0 for a judge of our own."""
    prompt: Path | None = None
    """A file with its system prompt; by default our own. The form of the answer stays the input's."""
    response_tokens: int = 1024
    """Longest rationale with its verdict."""
    brief: bool = False
    """Ask a small judge of our own in one line, with the newest screenshot alone, for at most 192 tokens."""


@dataclass(frozen=True)
class TaskConfig:
    train: str = "shop"
    """`shop`: generated tasks; or a JSONL file of tasks."""
    heldout: str = "shop"
    """The same, for evaluation."""
    seed: int = 0
    """Which shop is generated."""
    train_goals: Positive = 300
    """How many goals reinforcement may see."""
    demo_goals: int = 100
    """How many of them are demonstrated."""
    rules: Literal["lite", "upstream"] = "lite"
    """Whose reading of WebArena's rules: WebArena-Lite's or WebArena's own."""
    logins: Path | None = None
    """A folder of WebArena's stored logins, as gitlab_state.json; without, its accounts are logged in."""
    reward: str = ""
    """Your own reward, FILE.py:NAME: `async def NAME(task, page, answer) -> float | None` (no verdict)."""
    reset: str = ""
    """Address of a server that resets WebArena's sites: asked for that before each evaluation."""


@dataclass(frozen=True)
class RolloutConfig:
    group: Annotated[int, Ge(2)] = 8
    """Episodes per task."""
    groups: Positive = 16
    """Groups per step; with dynamic sampling, groups of unequal rewards."""
    dynamic: bool = True
    """Drop groups whose rewards are all equal and sample further tasks until there are enough."""
    max_oversample: Annotated[float, Ge(1)] = 6.0
    """Give up on a step after this many times `groups` were submitted."""
    max_steps: tuple[Positive, ...] = (15,)
    """Turns per episode, one value for each stage of the curriculum."""
    stage_steps: tuple[int, ...] = ()
    """How many training steps each stage but the last takes."""


@dataclass(frozen=True)
class RewardConfig:
    by: Literal["task", "judge"] = "task"
    """Who rewards training: the task's own rules where it has any, or always the judge."""
    invalid: Literal["drop", "mask"] = "drop"
    """Crashed and unjudged episodes: drop them from their group, or count them as 0 without a gradient."""
    format: Literal["every", "last"] = "every"
    """Which responses must be in the format for a judged episode to earn anything (last: released code)."""
    format_error: float = -1.0
    """The reward of an episode that ended in unparsable responses."""


@dataclass(frozen=True)
class LossConfig:
    method: Literal["grpo", "filtered-bc", "awr"] = "grpo"
    """Clipped surrogate, or the baselines of minirl/loss.py, which explains all that follows."""
    weighting: Literal["openwebrl", "webagent-r1", "token-mean", "grpo"] = "openwebrl"
    """How tokens are averaged."""
    tokens: Literal["response", "answer"] = "response"
    """What of a response is trained: all of it, or the text agent's from `<answer>` on."""
    over: Literal["turns", "trajectories"] = "turns"
    """What openwebrl divides the sum over turns by: the minibatch's turns (code) or trajectories (paper)."""
    old: Literal["sampler", "recompute"] = "sampler"
    """Whose log-probs the ratio starts from: the sampler's, or the trainer's own before the updates."""
    correction: Annotated[float, Ge(0)] = 2.0
    """With recomputed log-probs a token's weight is multiplied by min(trainer / sampler, this); 0: not."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: Annotated[float, Ge(0)] = 0.0
    """Weight of the k3 divergence from the model that reinforcement started from."""
    std_eps: float = 1e-6
    """Added to a group's standard deviation."""
    awr_temperature: Annotated[float, Gt(0)] = 1.0


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-6
    """Learning rate of reinforcement, constant."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    replicas: Positive = 1
    """Full copies of the sharded weights: 1 for FSDP over all ranks, the number of nodes for HSDP."""
    offload: bool = False
    """Keep weights, gradients and moments in the CPU's memory (CUDA only)."""


@dataclass(frozen=True)
class BatchConfig:
    epochs: Positive = 2
    """Passes over a step's trajectories."""
    minibatch_turns: Positive = 256
    """Turns per optimizer update over all ranks, in whole trajectories."""
    micro_tokens: int = 32768
    """Tokens per forward pass and rank, padding included."""
    layout: Literal["tree", "per-turn"] = "tree"
    """Turns share their common beginnings (minirl/prefix_tree.py), or each has a padded row."""


@dataclass(frozen=True)
class SftConfig:
    demos: Path | None = None
    """Clone the successes of this file in a run's trajectories folder; by default scripted solutions."""
    thoughts: bool = False
    """Have the model at --endpoint.url write the thoughts of the text agent's demonstrations (R1-CoT)."""
    thought_tokens: Positive = 4096
    """Longest answer with such a thought, a reasoning model's hidden reasoning included."""
    lr: float = 1e-5
    epochs: int = 3
    max_steps: int | None = None
    """Stop after this many updates even if epochs remain."""
    batch: Positive = 128
    """Turns per update."""
    warmup: float = 0.1
    """Share of the updates over which the learning rate rises; a cosine takes it down again."""
    stop_success: float | None = None
    """Validate in the browser every `eval_every` updates, and stop at this success rate."""
    eval_from: int = 100
    """The first update after which it is validated."""
    eval_every: Positive = 20
    eval_episodes: Positive = 64


@dataclass(frozen=True)
class EvalConfig:
    episodes: Positive = 256
    max_steps: int = 30
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    """0: no limit."""
    response_tokens: int = 4096


@dataclass(frozen=True)
class Config:
    recipe: str
    name: str | None = None
    """The run's folder is runs/NAME; by default the recipe's name."""
    out: Path = Path("runs")
    seed: int = 0
    """Of tasks, samples and batches."""
    steps: Positive = 140
    """RL steps."""
    eval_every: int = 0
    """Evaluate on held-out tasks every so many steps, keep the best checkpoint; 0: only before and after."""
    eval_size: int = 64
    """Episodes of such an evaluation."""
    save_every: Positive = 10
    """Checkpoint interval in steps."""
    keep: Positive = 2
    """How many checkpoints stay, the best one apart; trajectories of the last 10 steps and of every 10th."""
    resume: bool = False
    """Go on from the run's last checkpoint."""
    replay: Path | None = None
    """Train on the trajectories dumped in this run folder instead of sampling new ones; opens no browser."""
    warm_start: Path | None = None
    """Start from this checkpoint; by default the run's sft checkpoint, made first where the recipe can."""
    zero: bool = False
    """Reinforce the model as it is, without demonstrations (R1-Zero)."""
    shuffle_rewards: bool = False
    """Control: permute the rewards within each group, so that nothing can be learned from them."""
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads for torch; 0: all of the rank's cores while training, all but one while Chromium runs."""
    wandb: str | None = None
    """Project to log to."""
    plan: bool = False
    """Only say whether it fits on --gpus of --gpu-gb each, and which flags make it fit."""
    gpus: Positive = 8
    gpu_gb: float = 80.0
    model: ModelConfig = field(default_factory=ModelConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    browser: BrowserConfig = field(default_factory=BrowserConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    @property
    def run_dir(self) -> Path:
        return self.out / (self.name or self.recipe + ("-replay" if self.replay else ""))

    def max_steps(self, step: int) -> int:
        """Return the curriculum's turns per episode at a 0-based training step: with max_steps (15, 30) and
        stage_steps (90,), steps 0-89 allow 15 turns and later ones 30."""
        stages = self.rollout.stage_steps
        passed = sum(step >= sum(stages[: i + 1]) for i in range(len(stages)))
        return self.rollout.max_steps[passed]


def to_json(config: Config) -> dict[str, Any]:
    """Return the config as plain JSON data, for the run folder."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
