"""Every setting, once: dataclasses that tyro turns into flags, and what they may not be.

The defaults are OpenWebRL's; minirl/recipes.py has each paper's values.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from minirl.benchmarks.protocols import READABLE, Input, Parser


@dataclass(frozen=True)
class ModelConfig:
    path: str = "tiny"
    """Hugging Face folder or hub name; `tiny` builds a small Qwen3-VL or, to read, a Llama."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in; auto: bfloat16 on CUDA, float32 elsewhere. The trained weights are float32."""
    attention: Literal["auto", "segment", "flex", "flash"] = "auto"
    """How a prefix tree attends: chain by chain with SDPA on any device (segment, auto), with a block mask
    in FlexAttention, or with flash-attn's varlen kernel; the last two need CUDA."""
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
    """What the schemas call the tools' arguments: as in the released code and data, or as in the paper's
    table 6. Both are understood."""
    screenshots: int = 1
    """How many of the newest screenshots stay in the prompt."""
    feedback: bool = True
    """Tell what each call did; without, only what could not be parsed is told (an ablation), and the text
    agent also what failed."""
    thinking: bool = True
    """The text agent's answers: `<think>` and `<answer>`; without, the action alone."""
    history: Literal["chat", "webrl"] = "chat"
    """How the text agent's rounds are written: as chat messages, or as WebRL's checkpoints expect them, which
    know neither thoughts nor, without --prompt, a system text."""
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
    browsers: int = 2
    """Chromium processes per rank; a crash takes only the episodes of one."""
    connect: tuple[str, ...] = ()
    """Browsers elsewhere, in place of processes here: ws://HOST:PORT/ of Playwright servers, or cdp:ADDRESS
    of anything that speaks Chromium's protocol. One address is one browser."""
    episodes: int = 16
    """Episodes in flight per rank; under a protocol of eval.py on all ranks together."""
    site_port: int = 0
    """Loopback port of the generated sites; 0: any free one."""
    width: int = 1280
    height: int = 1000
    start_attempts: int = 3
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
    """The page is ready when its DOM has not changed for twice as long as an action has been stirring it, at
    most for so long; 0: as soon as it is loaded and drawn ..."""
    calm_ms: float = 25.0
    """... at least for so long ..."""
    commit_seconds: float = 10.0
    """... but a new document that was asked for is awaited for so long, then given up ..."""
    ready_ms: float = 3000.0
    """... and at the latest after this time."""
    dom_note: bool = False
    """Tell which elements an action has added and removed, five of each at most."""
    private: bool = False
    """Let pages and the agent reach private, loopback and link-local addresses. (Generated sites always can
    be, and so can WebArena's, at the addresses that its variables give.)"""
    allow: tuple[str, ...] = ()
    """Domains that may be visited, subdomains included; by default all."""
    deny: tuple[str, ...] = ()
    """Domains that may not."""
    host_rate: float = 0.0
    """Most actions a second on one host, over all of the rank's episodes; 0: no limit."""
    host_failures: int = 3
    """A host is left out when the first pages of so many tasks in a row did not open there ..."""
    host_minutes: float = 60.0
    """... for so long; when that happens again, for twice as long, up to a day."""


@dataclass(frozen=True)
class SamplerConfig:
    kind: Annotated[Literal["auto", "hf", "vllm", "remote"], arg(name="sampler", prefix_name=False)] = "auto"
    """vllm: in this process, on all episodes at once; hf: transformers; auto: vllm on CUDA, hf elsewhere;
    remote: the model behind --endpoint.url, which eval.py can ask and nothing can train."""
    temperature: float = 1.0
    """Of training's episodes, which are drawn from the whole vocabulary: no top-p, no top-k."""
    max_batch: int = 32
    """Most requests that the transformers sampler decodes together."""
    request_seconds: float = 30.0
    """Longest time that one response may take (of remote ones, --endpoint.seconds)."""
    gpu_memory: float = 0.5
    """Share of each GPU's memory that vLLM has while episodes run: its weights and the KV cache."""
    tensor_parallel: int = 1
    """How many ranks run one vLLM engine between them, for models that one GPU can't hold."""


@dataclass(frozen=True)
class EndpointConfig:
    """A model that is served elsewhere, for --sampler remote."""

    url: str = "http://127.0.0.1:8000/v1"
    """Base of an OpenAI-compatible API."""
    model: str = ""
    """The name under which the model is served."""
    key: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; servers on this machine need none."""
    concurrency: int = 16
    """Most requests in flight."""
    seconds: float = 120.0
    """Longest silence in one attempt; an answer that drips may take twice as long with all its attempts."""
    retries: int = 5
    """Further attempts after a timeout, a broken connection, 429 or 5xx, with growing pauses."""
    cache: Path | None = None
    """Folder of answers: a request that was answered before is not sent again."""
    prompt_price: float = 0.0
    """Dollars for a million tokens of prompts ..."""
    response_price: float = 0.0
    """... and of responses."""


@dataclass(frozen=True)
class JudgeConfig(EndpointConfig):
    """What decides where tasks can't: a served model (--judge.model), or one of our own (--judge.path)."""

    path: str = ""
    """A checkpoint that judges beside the agent, in an engine of its own that is never trained."""
    gpu_memory: float = 0.3
    """Share of each GPU's memory that it has while episodes run, where vLLM runs it."""
    screenshots: int = 3
    """How many of the last screenshots it is shown."""
    input: Input = "openwebrl"
    """Which judge's task this is: what it is shown, and by which rubric it decides
    (minirl/judges/rubrics.py)."""
    parser: Parser = "verdict-line"
    """How its words become a verdict."""
    temperature: float | None = None
    """None: not sent to a server, and 0 for a judge of our own."""
    prompt: Path | None = None
    """A file with its system prompt; by default our own. The form of the answer stays the input's."""
    response_tokens: int = 1024
    """Longest rationale with its verdict."""
    brief: bool = False
    """Ask a judge of our own that is too small for more in one line, with the browser's reports and only the
    newest screenshot, and for at most 192 tokens."""


@dataclass(frozen=True)
class DistilConfig:
    """Of judge.py, which makes a judge of our own from a teacher's labels."""

    runs: Annotated[tuple[Path, ...], arg(name="runs", prefix_name=False)] = ()
    """Run folders whose trajectories are labelled."""
    dumps: Annotated[tuple[str, ...], arg(name="dumps", prefix_name=False)] = ()
    """Which of their dumps, as step_00012; by default all but the demonstrations."""
    teacher: Annotated[Literal["world", "endpoint"], arg(name="teacher", prefix_name=False)] = "world"
    """world: what the task's own verifier found; endpoint: the model behind --judge.url."""
    labelled: Annotated[Path | None, arg(name="labelled", prefix_name=False)] = None
    """The run folder that holds the labels; by default this run's."""
    goals: float = 0.2
    """Share of the goals that are held out."""
    stages: float = 0.2
    """Share of the training steps that are held out."""
    shuffle_labels: Annotated[bool, arg(name="shuffle-labels", prefix_name=False)] = False
    """Control: permute the labels among the trajectories, so that only their base rate can be learned."""
    bench: Annotated[Path | None, arg(name="bench", prefix_name=False)] = None
    """Score on a folder of AgentRewardBench in place of the held-out labels."""


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
    rules: Literal["lite", "upstream"] = "lite"
    """Whose reading of WebArena's rules: WebArena-Lite's or WebArena's own."""
    logins: Path | None = None
    """A folder of WebArena's stored logins, as gitlab_state.json; without, its accounts are logged in."""
    reset: str = ""
    """Address of a server that resets WebArena's sites: asked for that before each evaluation."""


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
class RewardConfig:
    by: Literal["task", "judge"] = "task"
    """Who rewards training's episodes: the task's own verifier, where it has one; or always the judge, while
    `success` stays the verifier's, so that one sees what the judge lets pass."""
    invalid: Literal["drop", "mask"] = "drop"
    """Episodes whose ending says nothing about the policy (a crash, no verdict): drop, before a group's mean
    and deviation are taken; or mask, as the paper does: there they count as 0, but they have no gradient."""
    format: Literal["every", "last"] = "every"
    """Which responses must be in the format for a judged episode to earn anything; last: as in the released
    code."""
    format_error: float = -1.0
    """Of an episode that ended in unparsable responses."""


@dataclass(frozen=True)
class LossConfig:
    method: Literal["grpo", "filtered-bc", "awr"] = "grpo"
    """grpo: clipped surrogate; filtered-bc: log-likelihood of the successes; awr: log-likelihood weighted by
    exp(advantage / awr-temperature). See minirl/loss.py for this and all that follows."""
    weighting: Literal["openwebrl", "webagent-r1", "token-mean", "grpo"] = "openwebrl"
    """How tokens are averaged."""
    tokens: Literal["response", "answer"] = "response"
    """What of a response is trained: all of it, or the text agent's from `<answer>` on."""
    over: Literal["turns", "trajectories"] = "turns"
    """What openwebrl divides the sum over turns by: the minibatch's turns (code) or trajectories (paper)."""
    old: Literal["sampler", "recompute"] = "sampler"
    """Whose log-probs the ratio starts from: the sampler's, or the trainer's own before the step's
    updates."""
    correction: float = 2.0
    """With recomputed log-probs a token's weight is multiplied by min(trainer / sampler, this); 0: not."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    """Weight of the k3 divergence from the model that reinforcement started from."""
    std_eps: float = 1e-6
    """Added to a group's standard deviation."""
    awr_temperature: float = 1.0


@dataclass(frozen=True)
class OptimConfig:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    replicas: int = 1
    """How many full copies of the sharded weights there are: 1 shards over all ranks (FSDP); the number of
    nodes shards within each node and averages gradients between them (HSDP)."""
    offload: bool = False
    """Keep weights, gradients and moments in the CPU's memory (CUDA only)."""


@dataclass(frozen=True)
class BatchConfig:
    epochs: int = 2
    """Passes over a step's trajectories."""
    minibatch_turns: int = 256
    """Turns per optimizer update over all ranks, in whole trajectories."""
    micro_tokens: int = 32768
    """Tokens per forward pass and rank, padding included."""
    layout: Literal["tree", "per-turn"] = "tree"
    """tree: turns share their common beginnings (minirl/prefix_tree.py); per-turn: one padded row for
    each turn."""


@dataclass(frozen=True)
class SftConfig:
    demos: Path | None = None
    """Trajectories to clone the successes of: a file in a run's trajectories folder, a served model's for
    example. By default scripted solutions are recorded."""
    thoughts: bool = False
    """Have the model behind --endpoint.url write the thoughts of the text agent's demonstrations; the actions
    stay as they are (R1-CoT)."""
    thought_tokens: int = 4096
    """Longest answer with such a thought, a reasoning model's hidden reasoning included."""
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
    budgets: Annotated[tuple[int, ...], arg(name="max-steps", prefix_name=False)] = ()
    """Of eval.py: numbers of turns, for the success within each of them; the largest is the episodes'."""
    tasks: Annotated[Path | None, arg(name="tasks", prefix_name=False)] = None
    """Of eval.py: a file of tasks; the same as --task.heldout."""
    limit: Annotated[int, arg(name="limit", prefix_name=False)] = 0
    """Of eval.py: only the first so many tasks; 0: all."""
    protocol: Annotated[str, arg(name="protocol", prefix_name=False)] = ""
    """Of eval.py: a protocol of minirl/benchmarks/protocols.py: its tasks, and its settings unless a
    flag is given."""
    seeds: Annotated[tuple[int, ...], arg(name="seeds", prefix_name=False)] = (0,)
    """Of eval.py: an episode of every task for each of these seeds of sampling."""
    retry: Annotated[bool, arg(name="retry", prefix_name=False)] = False
    """Of eval.py: when it goes on, try again what was aborted."""
    compare: Annotated[tuple[Path, ...], arg(name="compare", prefix_name=False)] = ()
    """Of eval.py: two files of results, which are compared; nothing is run."""
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
    zero: bool = False
    """Reinforce the model as it is, without demonstrations (R1-Zero)."""
    shuffle_rewards: bool = False
    """Control: permute the rewards within each group, so that nothing can be learned from them."""
    threads: int = 0
    """CPU threads for torch; 0: all of the rank's cores while training, all but one while Chromium runs."""
    wandb: str | None = None
    """Project to log to."""
    plan: bool = False
    """Only say what each GPU would hold, whether it fits, and which flags make it fit."""
    gpus: int = 8
    """Of the plan."""
    gpu_gb: float = 80.0
    """Memory of each GPU of the plan."""
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
    distil: DistilConfig = field(default_factory=DistilConfig)

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


def check(config: Config) -> Config:
    """Refuses what can't work, before anything is loaded. Raises ValueError with the flag to change."""
    rollout, batch = config.rollout, config.batch
    if config.agent.kind == "autowebworld" and not config.plan:
        raise ValueError(f"recipe {config.recipe}: the {config.agent.kind} agent is not built yet")
    endpoint = config.endpoint
    if min(endpoint.retries, endpoint.prompt_price, endpoint.response_price) < 0 or endpoint.seconds <= 0:
        raise ValueError("--endpoint.retries and prices can't be negative, nor --endpoint.seconds 0")
    judge = config.judge
    if judge.parser not in READABLE[judge.input]:
        wanted = " or ".join(READABLE[judge.input])
        raise ValueError(f"--judge.input {judge.input} asks for what only --judge.parser {wanted} can read")
    if judge.temperature is not None and judge.temperature < 0:
        raise ValueError("--judge.temperature can't be negative")
    if not 0 < config.sampler.gpu_memory < 1:
        raise ValueError("--sampler.gpu-memory is a share, between 0 and 1")
    if config.loss.method == "filtered-bc" and rollout.dynamic:
        raise ValueError("--loss.method filtered-bc learns from a fixed batch: add --rollout.no-dynamic")
    if config.loss.method != "grpo" and (config.loss.kl or config.loss.old != "sampler"):
        raise ValueError(f"--loss.method {config.loss.method} has neither --loss.kl nor --loss.old recompute")
    if min(config.loss.kl, config.loss.correction) < 0 or config.loss.awr_temperature <= 0:
        raise ValueError("--loss.kl and --loss.correction can't be negative, nor --loss.awr-temperature 0")
    if rollout.group < 2:
        raise ValueError("--rollout.group must be at least 2: an advantage compares episodes of one task")
    if len(rollout.max_steps) != len(rollout.stage_steps) + 1:
        raise ValueError("--rollout.max-steps needs one value more than --rollout.stage-steps")
    if config.zero and config.warm_start is not None:
        raise ValueError("--zero starts from the model itself: leave out --warm-start")
    if config.agent.history == "webrl" and (config.agent.kind != "text" or config.agent.thinking):
        raise ValueError(
            "--agent.history webrl is the text agent's, and has no thoughts: give --agent.kind text and "
            "--agent.no-thinking, or --agent.history chat"
        )
    if config.agent.kind != "text" and (config.loss.tokens == "answer" or config.sft.thoughts):
        raise ValueError("--loss.tokens answer and --sft.thoughts are the text agent's")
    if config.sft.thoughts and not (config.agent.thinking and config.endpoint.model):
        raise ValueError("--sft.thoughts needs --agent.thinking and --endpoint.model")
    if config.task.demo_goals > config.task.train_goals:
        raise ValueError("--task.demo-goals can't exceed --task.train-goals")
    if config.reward.by == "judge" and not (config.judge.model or config.judge.path):
        raise ValueError("--reward.by judge needs one: give --judge.path, or --judge.model")
    if not (0 < config.distil.goals < 1 and 0 <= config.distil.stages < 1):
        raise ValueError("--distil.goals and --distil.stages are shares: above 0 or 0, and below 1")
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
        "--browser.start-attempts": config.browser.start_attempts,
        "--browser.host-failures": config.browser.host_failures,
        "--sampler.max-batch": config.sampler.max_batch,
        "--sampler.tensor-parallel": config.sampler.tensor_parallel,
        "--endpoint.concurrency": endpoint.concurrency,
        "--rollout.groups": rollout.groups,
        "--rollout.max-steps": min(rollout.max_steps),
        "--optim.replicas": config.optim.replicas,
        "--batch.epochs": batch.epochs,
        "--batch.minibatch-turns": batch.minibatch_turns,
        "--sft.batch": config.sft.batch,
        "--sft.thought-tokens": config.sft.thought_tokens,
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


def to_json(config: Config) -> dict[str, Any]:
    """The config as plain JSON data, for the run folder."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
