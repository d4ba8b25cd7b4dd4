"""Every setting of a run, once: dataclasses that tyro turns into flags.

The defaults are OpenWebRL's; minirl/recipes.py has each paper's values. The bounds in the types are enforced
when a command line is read. eval.py and judge.py add settings of their own. A comment behind a setting, or a
text below it, is its line of --help.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from tyro.conf import arg

Positive = Annotated[int, Ge(1)]
Share = Annotated[float, Gt(0), Lt(1)]

ACQUIRE_SECONDS = 600.0  # for a browser, and a context in it, to be free (OpenWebRL, table 7)

Input = Literal["openwebrl", "brief", "webvoyager", "agenttrek", "deepshop", "trace", "rules"]


@dataclass(frozen=True)
class ModelConfig:
    path: str = "tiny"  # Hugging Face folder or hub name; `tiny`: our small Qwen3-VL or, for text, Llama
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What is computed in; auto: bfloat16 on CUDA, float32 elsewhere. The trained weights are float32."""
    lora: Annotated[int, Ge(0)] = 0
    """Rank of adapters, which are trained in place of the weights, at ten times the rates; 0: none."""
    base_bits: Literal[4, 16] = 16
    """4: pack the weights that --model.lora adapts (NF4, by bitsandbytes); 16: keep them as they are."""
    gradient_checkpointing: bool = False  # compute layers again in the backward pass: less memory
    freeze_vision: Literal["never", "sft", "always"] = "never"  # when the vision tower stays as it is
    freeze: Annotated[int, Ge(0)] = 0  # so many of the lowest layers stay as they are, and the embeddings
    max_pixels: Positive | None = None  # screenshots are scaled down to this; None: the model's own limit


@dataclass(frozen=True)
class AgentConfig:
    kind: Literal["visual", "text", "autowebworld"] = "visual"
    """What it sees and says: screenshots and 13 tools, HTML and one action, screenshots and one action."""
    brief: bool = False  # a one-line system prompt without tool schemas, for models too small to read them
    prompt: Annotated[Path | None, arg(name="prompt", prefix_name=False)] = None
    """A file with the system prompt; `{tools}` in it becomes the tools' schemas. By default our own."""
    screenshots: Positive = 1  # how many of the newest screenshots stay in the prompt
    feedback: bool = True
    """Tell what each call did. Without, a visual agent is told what could not be read, others what failed."""
    answers: Literal["thinking", "action", "webrl"] = "thinking"
    """The text agent's: `<think>` and `<answer>`, the action alone, or that in WebRL's form of a prompt."""
    numbered: Literal["webagent-r1", "listeners"] = "webagent-r1"
    """What the text agent can act on: WebAgent-R1's elements, or also those that a script listens on."""
    boxes: bool = True  # in the text agent's pages; without boxes and doubled texts these are half as long
    reasoning: bool = True  # keep past turns' reasoning in the prompt; without, only their calls
    response_tokens: int = 1024
    context_tokens: int = 32768  # of the longest prompt with its response
    format_errors: int = 3  # this many unparsable responses in a row end the episode; 0: they do not
    repeats: int = 0  # this many equal responses in a row end the episode; 0: they do not


@dataclass(frozen=True)
class BrowserConfig:
    browsers: Positive = 2  # Chromium processes per rank; a crash takes only the episodes of one
    connect: tuple[str, ...] = ()  # browsers elsewhere: ws://HOST:PORT/ of Playwright servers, or cdp:ADDRESS
    episodes: Positive = 16  # at a time, of all ranks together; each has an even share
    width: int = 1280
    height: int = 1000
    action_seconds: float = 45.0  # of one tool call, waiting for the page included
    episode_seconds: float = 600.0  # deadline of an episode; scoring it may take as long again
    quiet_ms: float = 300.0  # the longest quiet time that is asked of a page before it counts as ready
    private: bool = False  # let pages reach private and loopback addresses beside those of the tasks' sites
    allow: tuple[str, ...] = ()  # domains that may be visited (or, with deny, may not), with their subdomains
    deny: tuple[str, ...] = ()
    host_rate: Annotated[float, Ge(0)] = 0.0  # most actions a second on one host, of a rank; 0: no limit
    insecure: bool = False  # open sites with certificates that no authority has signed, as staging sites have
    locale: str = "en-US"  # the language that sites are asked for; "": the browser's own
    timezone: str = "UTC"  # for example Europe/Paris; "": the machine's
    user_agent: str = ""  # what browsers call themselves; "": Chrome if they are started here


@dataclass(frozen=True)
class SamplerConfig:
    kind: Annotated[Literal["auto", "hf", "vllm", "remote"], arg(name="sampler", prefix_name=False)] = "auto"
    """vllm in process; hf: transformers; auto: vllm on CUDA, else hf; remote: --endpoint.url (eval.py)."""
    temperature: Annotated[float, Gt(0)] = 1.0  # of training; its episodes use no top-p and no top-k
    gpu_memory: Share = 0.5  # share of each GPU's memory that vLLM has while episodes run
    points: Literal["picture", "processor"] = "picture"
    """A served AutoWebWorld agent's points are in pixels of the screenshot itself, or of the size that
    --model.path's processor gives it, as for Qwen2.5-VL and UI-TARS."""


@dataclass(frozen=True)
class EndpointConfig:
    url: str = "http://127.0.0.1:8000/v1"  # base of an OpenAI-compatible API
    model: str = ""  # the name under which the model is served
    key: str = "OPENAI_API_KEY"  # the environment variable that holds the key; local servers need none
    seconds: Annotated[float, Gt(0)] = 120.0
    """Longest silence in one attempt; an answer with all its attempts may take twelve times as long."""
    price: tuple[float, float] = (0.0, 0.0)  # dollars for a million tokens of prompts, and of responses


@dataclass(frozen=True)
class JudgeConfig(EndpointConfig):
    """What decides where tasks can't: a served model (--judge.model), or a local one (--judge.path)."""

    path: str = ""  # a checkpoint that judges beside the agent, in transformers; serve larger ones
    input: Input = "openwebrl"
    """The rubric: what it is shown, how it decides and answers (minirl/judges/rubrics.py). brief: openwebrl's
    in one line, for a small judge behind --judge.path; a served one is asked in full."""
    prompt: Path | None = None  # a file with its system prompt; by default the rubric's
    response_tokens: int = 1024


@dataclass(frozen=True)
class TaskConfig:
    train: str = "shops:600-899"
    """Generated shops by number, with an order in each; a folder of sites; a JSONL file of tasks; or pages of
    MiniWoB++ with seeds, as miniwob:click-link,login-user:0-199."""
    heldout: str = "shops:90001-90064"  # the same, for evaluation; with @serif behind it in another typeface
    train_goals: Annotated[int, Ge(0)] = 0  # only so many of the training tasks, the first; 0: all
    demo_goals: int = 100  # how many of the training goals are demonstrated
    short: int = 0  # in shops: demonstrate goals of at most so many conditions, practise longer ones; 0: all
    demo_long: Share = 0.08  # share of the demonstrations that have longer goals nevertheless
    reward: str = ""  # your own: FILE.py:NAME, `async def NAME(task, page, answer) -> float | None`
    reset: str = ""  # address of a server that resets WebArena's sites: asked for that before each evaluation
    servers: Path | None = None  # a file of copies of the sites: one for each episode, made clean before it


@dataclass(frozen=True)
class RolloutConfig:
    group: Annotated[int, Ge(2)] = 8  # episodes per task
    groups: Positive = 16  # groups per step; with dynamic sampling, groups of unequal rewards
    dynamic: bool = True  # drop groups whose rewards are all equal, and sample further tasks instead
    max_steps: tuple[Positive, ...] = (15,)
    """Turns per episode. A curriculum names the training steps of its stages between them: 15 90 30 is 15
    turns for 90 steps, then 30."""
    delay: Literal[0, 1] = 0  # 1: sample a step's episodes before the update of the step before, not after it
    dump_all: bool = False  # dump dropped groups, too, and keep every step's dump: for a judge to learn from


@dataclass(frozen=True)
class RewardConfig:
    by: Literal["task", "judge"] = "task"
    """Who rewards training: the task's own rules where it has any, or always the judge."""
    invalid: Literal["drop", "mask"] = "drop"  # crashed, unjudged episodes: drop, or count as 0
    format: Literal["every", "last"] = "every"
    """Which responses must be in the format for a judged episode to earn anything (last: released code)."""
    after: Literal["done", "any"] = "done"  # endings that may be a success; any: each that is the agent's own
    success: Annotated[float, Gt(0), Le(1)] = 1.0  # the least value that counts as a success
    format_error: float = -1.0  # the reward of an episode that failed by unparsable responses
    partial: Annotated[float, Ge(0), Lt(1)] = 0.0
    """On generated sites, times the share of a goal's conditions that hold: what a failure is worth. Groups
    without a success then teach their best failure (docs/log.md, seed 1)."""


@dataclass(frozen=True)
class LossConfig:
    method: Literal["grpo", "filtered-bc", "awr"] = "grpo"  # clipped surrogate, or minirl/loss.py's baselines
    weighting: Literal["openwebrl", "openwebrl-paper", "webagent-r1", "token-mean", "grpo"] = "openwebrl"
    """How tokens are averaged: minirl/loss.py has the formulas."""
    credit: Literal["trajectory", "return-to-go", "gigpo"] = "trajectory"  # of single turns: minirl/credit.py
    clip_high: float = 0.28  # ratios are clipped to 0.8 and to 1 + this
    dual_clip: Annotated[float, Gt(1)] | None = None
    """Bound the loss of a token at this many times its advantage where that is negative; None: do not."""
    kl: Annotated[float, Ge(0)] = 0.0  # weight of the k3 divergence from the model that RL started from
    std_eps: float = 1e-6  # added to a group's standard deviation


@dataclass(frozen=True)
class AdamConfig:
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # longest gradient; a longer one is scaled down


@dataclass(frozen=True)
class OptimConfig(AdamConfig):
    lr: float = 1e-6  # learning rate of reinforcement
    decay: bool = False  # let the rate fall linearly, from `lr` at the first step to 0 after the last
    replicas: Positive = 1
    """Full copies of the sharded weights: 1 for FSDP over all ranks, the number of nodes for HSDP."""
    offload: bool = False  # keep weights, gradients and moments in the CPU's memory (CUDA only)


@dataclass(frozen=True)
class BatchConfig:
    epochs: Positive = 2  # passes over a step's trajectories
    minibatch_turns: Positive = 256  # turns per optimizer update over all ranks, in whole trajectories
    micro_tokens: int = 32768  # tokens per forward pass and rank, padding included
    layout: Literal["tree", "per-turn"] = "tree"  # the rows: prefix trees, or a padded one for each turn


@dataclass(frozen=True)
class SftConfig(AdamConfig):
    demos: Path | None = None
    """Clone this file's successes: a run's dump (docs/data.md); by default scripted ones."""
    lr: float = 1e-5
    epochs: Positive = 3
    max_steps: Positive | None = None  # stop after this many updates even if epochs remain
    batch: Positive = 128  # turns per update
    max_pixels: Positive | None = None  # of a demonstration's screenshot, at most; None: as the agent's
    warmup: float = 0.1  # share of the updates over which the rate rises; a cosine takes it down again
    held_back: Annotated[float, Ge(0), Lt(1)] = 0.0  # of the demonstrations; the least loss on these is kept


@dataclass(frozen=True)
class EvalConfig:
    episodes: Positive = 256  # generated tasks at most; a file of tasks is taken whole
    max_steps: Positive = 30
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20  # 0: no limit
    response_tokens: int = 4096

    @property
    def interim_episodes(self) -> int:
        """Return the size of an evaluation before cloning, or in the middle of training."""
        return min(64, self.episodes)


@dataclass(frozen=True)
class Config:
    recipe: str
    name: str | None = None  # the run's folder: a name under runs/, or a path; by default the recipe's name
    seed: int = 0  # of tasks, samples and batches
    steps: Positive = 140  # RL steps
    eval_every: int = 0  # evaluate every so many steps on tasks set aside, keep the best; 0: neither
    save_every: Positive = 10  # steps from checkpoint to checkpoint
    resume: bool = False  # go on from the run's last checkpoint
    replay: Path | None = None  # train on the trajectories of this run folder; opens no browser
    warm_start: str = "sft"
    """Start from this checkpoint's folder; `sft`: the run's own, made first; `none`: the model as it is."""
    shuffle_rewards: bool = False  # control: permute each group's rewards, so that nothing can be learned
    plan: str | None = None  # only say whether it fits on these GPUs: 8x80 are eight of 80 GB each
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
        default = f"{self.recipe}-replay" if self.replay else self.recipe
        return Path("runs") / (self.name or default)

    def max_steps(self, step: int) -> int:
        """Return the turns per episode at a 0-based step: (15, 90, 30) is 15 at 0-89, then 30."""
        *stages, turns = self.rollout.max_steps
        end = 0
        for stage_turns, stage_steps in zip(stages[::2], stages[1::2], strict=True):
            end += stage_steps
            if step < end:
                return stage_turns
        return turns


def to_json(config: Config) -> dict[str, Any]:
    """Return the config as plain JSON data, for the run folder."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
