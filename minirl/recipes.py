"""The recipes: complete `Config`s, and of each number whose it is.

A number of a paper's recipe is the paper's, unless a comment names its released `code`, or `ours`. Time
limits are OpenWebRL's (table 7) but for the first of these. Flags change single values (`python train.py tiny
--loss.clip-high 0.3`). Deviations that no value of a recipe shows:

1. A response may take 120 s in training too, where table 7 has 30; a slower one loses its episode.
2. The loss covers all tokens of a response. WebAgent-R1's paper has action tokens only (section 2.3), and its
   code, where a response has thoughts, what begins with `<answer>`.
3. OpenWebRL's 256 turns of an update, 128 in cloning, are whole trajectories (minirl/rows.py).
"""

from collections.abc import Callable
from dataclasses import replace

from minirl.config import (
    AgentConfig,
    BatchConfig,
    BrowserConfig,
    Config,
    EvalConfig,
    JudgeConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    RolloutConfig,
    SamplerConfig,
    SftConfig,
    TaskConfig,
)

# The first screen of --help
LIST = """
recipes:
    tiny               a Qwen3-VL of 1M parameters in generated shops: minutes on two CPU cores
    tiny-text          WebAgent-R1 in small: a Llama of 0.7M parameters reads such shops' HTML
    smollm2            a pretrained Llama of 135M parameters on small pages, as MiniWoB++'s: hours on a CPU
    openwebrl-4b, -8b  OpenWebRL: Qwen3-VL, screenshots and 13 tools, on live sites
    openwebrl-qwen35   the same with Qwen3.5-4B, for which no paper has numbers
    webagent-r1-3b     WebAgent-R1: Qwen2.5, HTML and one action a turn, on WebArena
    webagent-r1-8b     the same with Llama-3.1, from WebRL's checkpoint (--warm-start)
    autowebworld-3b    AutoWebWorld: Qwen2.5-VL, screenshots, on recorded steps of generated sites
    autowebworld-7b    the same, larger
"""


def tiny() -> Config:
    """A 1M-parameter Qwen3-VL in generated shops: minutes on two CPU cores, every part real."""
    return Config(
        recipe="tiny",
        steps=10,
        save_every=1,
        # cloned are short orders and four long ones; reinforcement practises all the long ones
        task=TaskConfig(short=3, demo_long=0.04),
        model=ModelConfig(max_pixels=256 * 192, freeze_vision="always"),
        agent=AgentConfig(brief=True, response_tokens=96, context_tokens=1024),
        browser=BrowserConfig(
            width=480, height=360, episodes=24, action_seconds=15, episode_seconds=120, quiet_ms=0
        ),
        rollout=RolloutConfig(group=8, groups=16, max_steps=(5, 4, 6)),
        optim=OptimConfig(lr=2e-4, decay=True),
        batch=BatchConfig(epochs=3, minibatch_turns=128, micro_tokens=4096),
        sft=SftConfig(lr=5e-4, epochs=1000, max_steps=60, batch=32, held_back=0.2),
        eval=EvalConfig(max_steps=6, response_tokens=96),
        judge=JudgeConfig(input="brief"),
    )


def tiny_text() -> Config:
    """WebAgent-R1 in small: a Llama of 0.7M parameters reads such shops' HTML, and does one thing a turn. Its
    loss is OpenWebRL's; WebAgent-R1's is in the recipes below."""
    config = tiny()
    agent = AgentConfig(kind="text", brief=True, feedback=False, format_errors=5, repeats=5)
    return replace(
        config,
        recipe="tiny_text",
        steps=12,
        # six short orders: with more of them imitation alone comes almost to the end
        task=replace(config.task, demo_goals=6, demo_long=0.01),
        model=ModelConfig(),
        agent=replace(agent, response_tokens=48, context_tokens=1536),
        rollout=replace(config.rollout, max_steps=(10,)),
        reward=RewardConfig(format_error=0.0),
        loss=LossConfig(std_eps=1e-4),
        optim=replace(config.optim, lr=3e-4),
        eval=EvalConfig(max_steps=10, temperature=1.0, top_p=0.9, top_k=0, response_tokens=48),
    )


NO_TASKS = TaskConfig(train="", heldout="")  # a paper's recipe does not train on generated shops unasked


def smollm2() -> Config:
    """Text models of 135M to 1B parameters on small pages, as MiniWoB++'s. All values are ours."""
    return Config(
        recipe="smollm2",
        steps=40,
        save_every=5,
        task=NO_TASKS,
        # in bfloat16 a CPU reads pages twice as fast; with 10 of 30 layers an update takes 0.6 of the time
        model=ModelConfig("models/smollm2", dtype="bfloat16", freeze=20),
        agent=AgentConfig(
            kind="text",
            answers="action",
            numbered="listeners",
            boxes=False,
            feedback=False,
            response_tokens=48,
            context_tokens=2048,
        ),
        browser=BrowserConfig(browsers=1, width=480, height=360, quiet_ms=0),
        rollout=RolloutConfig(groups=8, max_steps=(6,)),
        reward=RewardConfig(after="any", format_error=0.0),
        loss=LossConfig(weighting="webagent-r1", std_eps=1e-4),
        optim=OptimConfig(lr=3e-5, weight_decay=0.0),
        batch=BatchConfig(epochs=1, minibatch_turns=32, micro_tokens=4096),
        sft=SftConfig(lr=3e-4, epochs=2, batch=16, weight_decay=0.0),
        eval=EvalConfig(max_steps=6, temperature=0.0, response_tokens=48),
    )


def openwebrl_4b() -> Config:
    """OpenWebRL, 4B: 90 iterations of 15 turns, then 50 of 30. Tables 7 (training) and 8 (evaluation)."""
    return Config(
        recipe="openwebrl_4b",
        steps=140,
        task=NO_TASKS,
        model=ModelConfig(path="Qwen/Qwen3-VL-4B-Thinking", gradient_checkpointing=True, freeze_vision="sft"),
        browser=BrowserConfig(episodes=80, width=1280, height=1000),  # of 80 to 100 sandboxes; size: code
        sampler=SamplerConfig(temperature=0.8),
        rollout=RolloutConfig(group=5, groups=48, max_steps=(15, 90, 30)),
        reward=RewardConfig(invalid="drop", format="every"),  # ours; paper: mask; code: last
        loss=LossConfig(weighting="openwebrl"),  # code; paper: openwebrl-paper
        optim=OptimConfig(lr=1e-6, betas=(0.9, 0.98), weight_decay=0.1, grad_clip=1.0),  # all but decay: code
        batch=BatchConfig(micro_tokens=36_864),  # SFT's longest turn: code, which cuts it
        # lr, warm-up and these: code (Adam's are its library's); epochs and batch (a global one): paper, A.5
        sft=SftConfig(betas=(0.9, 0.999), weight_decay=0.0, max_pixels=512 * 512),
    )


def openwebrl_8b() -> Config:
    """OpenWebRL, 8B: as the 4B with half the learning rate (code), and 912 demonstrations instead of 412."""
    config = openwebrl_4b()
    return replace(
        config,
        recipe="openwebrl_8b",
        model=replace(config.model, path="Qwen/Qwen3-VL-8B-Thinking"),
        optim=replace(config.optim, lr=5e-7),
    )


def openwebrl_qwen35() -> Config:
    """OpenWebRL with Qwen3.5-4B, ours: all numbers are the 4B's, of a paper that trained Qwen3-VL."""
    config = openwebrl_4b()
    return replace(config, recipe="openwebrl_qwen35", model=replace(config.model, path="Qwen/Qwen3.5-4B"))


def webagent_r1_3b() -> Config:
    """WebAgent-R1, Qwen2.5-3B. Appendix B. Code ends only evaluations after 5 errors or repeats."""
    return Config(
        recipe="webagent_r1_3b",
        steps=40,  # code: 647 tasks once
        task=NO_TASKS,
        model=ModelConfig(path="Qwen/Qwen2.5-3B-Instruct", gradient_checkpointing=True),
        agent=AgentConfig(kind="text", feedback=False, context_tokens=16384, format_errors=5, repeats=5),
        browser=BrowserConfig(width=1280, height=720, episodes=64),  # size: code
        sampler=SamplerConfig(temperature=1.0, gpu_memory=0.5),  # memory: ours; paper: 0.7
        rollout=RolloutConfig(group=4, groups=16, dynamic=False, max_steps=(15,)),  # group, turns: code
        reward=RewardConfig(after="any", format_error=0.0),  # rules alone: 0 or 1
        loss=LossConfig(weighting="webagent-r1", clip_high=0.2, kl=0.001, std_eps=1e-4),  # eps: code
        optim=OptimConfig(lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, grad_clip=0.01),  # all but lr: code
        batch=BatchConfig(epochs=1, minibatch_turns=1024),  # 16 tasks x 4 x 15 turns: one update a step
        # epochs and Adam's: ours; the paper is silent
        sft=SftConfig(lr=5e-5, epochs=3, batch=128, warmup=0.05, betas=(0.9, 0.999), weight_decay=0.0),
        eval=EvalConfig(max_steps=30, temperature=1.0, top_p=0.9, top_k=0, response_tokens=2048),  # code
    )


def webagent_r1_8b() -> Config:
    """WebAgent-R1, Llama-3.1-8B, in the form that WebRL's checkpoint expects, because the paper starts from
    that one: give it with --warm-start."""
    config = webagent_r1_3b()
    return replace(
        config,
        recipe="webagent_r1_8b",
        model=replace(config.model, path="meta-llama/Llama-3.1-8B-Instruct"),
        agent=replace(config.agent, answers="webrl"),
    )


def autowebworld_7b() -> Config:
    """AutoWebWorld, Qwen2.5-VL-7B on recorded steps. Appendix D.3."""
    path = "Qwen/Qwen2.5-VL-7B-Instruct"
    max_pixels = 12_845_056
    return Config(
        recipe="autowebworld_7b",
        steps=508,  # 16,253 samples once, 32 a step: ours
        task=NO_TASKS,
        warm_start="none",  # from Qwen's own weights
        model=ModelConfig(path, max_pixels=max_pixels, gradient_checkpointing=True),
        # responses: code; context: ours, for the paper's 1,024 tokens (D.3) are fewer than a screenshot
        # takes; neither paper nor code tells what an action did, or ends an episode by unreadable responses:
        # three are OpenWebRL's
        agent=AgentConfig(kind="autowebworld", feedback=False, response_tokens=256, context_tokens=16384),
        # size: code; episodes: ours, a whole step at once, which takes no browser
        browser=BrowserConfig(width=1280, height=720, episodes=256),
        sampler=SamplerConfig(temperature=1.0),
        rollout=RolloutConfig(group=8, groups=32, dynamic=False, max_steps=(1,)),
        reward=RewardConfig(after="any", format_error=0.0),  # each response by the rules alone
        # all three: code; 1e-4 of a reward from 0 to 3, which here is their mean, from 0 to 1
        loss=LossConfig(weighting="grpo", clip_high=0.2, kl=0.04, std_eps=1e-4 / 3),
        # rate: code's GRPOConfig; the linear fall, Adam's and the clipping: what its trainer does unasked
        optim=OptimConfig(lr=1e-6, decay=True, betas=(0.9, 0.999), weight_decay=0.0, grad_clip=1.0),
        batch=BatchConfig(epochs=1),  # 32 prompts x 8 responses of one turn: one update a step
        eval=EvalConfig(max_steps=15),  # sampling: ours
    )


def autowebworld_3b() -> Config:
    """AutoWebWorld, Qwen2.5-VL-3B."""
    config = autowebworld_7b()
    model = replace(config.model, path="Qwen/Qwen2.5-VL-3B-Instruct")
    return replace(config, recipe="autowebworld_3b", model=model)


_OPENWEBRL = openwebrl_4b, openwebrl_8b, openwebrl_qwen35
_OTHERS = webagent_r1_3b, webagent_r1_8b, autowebworld_3b, autowebworld_7b
_ALL = (tiny, tiny_text, smollm2, *_OPENWEBRL, *_OTHERS)
RECIPES: dict[str, Callable[[], Config]] = {recipe.__name__: recipe for recipe in _ALL}
