"""`python -m minirl demo`: one episode on a generated site, turn by turn in the terminal.

    page --observe--> prompt --script, model or person--> response --act--> page

Browser, prompts, tools and verifier are those of training; only the agent prints what passes through it.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import tyro

from minirl.agents.openwebrl import TOOLS, OpenWebRLAgent, parse
from minirl.agents.openwebrl_actions import SCALE
from minirl.checkpoint import checkpoints
from minirl.cli.command_line import run_async
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import CONSOLE, duration, say
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import open_experiment
from minirl.recipes import tiny
from minirl.run_folder import ImageFolder
from minirl.types import (
    BrowserFault,
    Observation,
    Parsed,
    Prompt,
    Sample,
    Sampling,
    Session,
    Stop,
    Trajectory,
)
from minirl.worlds.render import sites_of, world_at
from minirl.worlds.scripted_agent import ScriptedPolicy

CLOCK_SHOPS = 8 * 10**8  # their numbers are far from those of training
LOOK = (resources.files("minirl.cli") / "look.js").read_text()
USAGE = f"""a call is a tool with its arguments as JSON: click {{"point_2d": [500, 120]}}
points run from [0, 0] at the top left to [{SCALE}, {SCALE}]; an empty line gives up
"""


@dataclass(frozen=True)
class Options:
    """Watch one episode on a generated site: what is seen, thought and done, and what comes of it."""

    tasks: str = ""
    """shops:17-17 for one shop, or the folder of a site that `python -m minirl.worlds make` has written; by
    default a shop that did not exist until now."""
    task: int = 0
    """Which of these tasks, from 0 on."""
    checkpoint: Path | None = None
    """A folder with a model that the tiny recipe trained; in a new shop by default the newest of runs/tiny.
    Without one a script acts that knows the way."""
    by_hand: bool = False
    """Act yourself, at the keyboard."""


def run(argv: Sequence[str]) -> None:
    """Play the episode."""
    options = tyro.cli(Options, args=list(argv), prog="python -m minirl demo")
    config = settings(options)
    with open_ranks(config.browser.episode_seconds) as ranks:
        run_async(play(options, config, ranks))


def settings(options: Options) -> Config:
    """Return the tiny recipe for one browser and one episode, without limits that a person would meet."""
    config = tiny()
    model = options.checkpoint
    heldout = options.tasks
    if not heldout:
        new_shop = int(time.time()) % CLOCK_SHOPS
        heldout = f"shops:{new_shop}-{new_shop}"
        trained = checkpoints(config.run_dir / "checkpoints")
        if trained and model is None:
            model = trained[-1]
    config = replace(
        config,
        name="demo",
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        browser=replace(config.browser, browsers=1),
        task=replace(config.task, heldout=heldout),
        eval=replace(config.eval, episodes=max(1, options.task + 1)),
    )
    if checkpoints(config.run_dir / "checkpoints"):
        raise ValueError(
            f"{config.run_dir} holds a training run, and the demo's episode belongs there: move it"
        )
    if Path(heldout).is_dir():
        config = replace(config, browser=replace(config.browser, width=1280, height=720))
    if model is not None and not options.by_hand:
        return replace(config, model=replace(config.model, path=str(model)))
    return replace(
        config,
        eval=replace(config.eval, max_steps=100),
        browser=replace(config.browser, episode_seconds=86400.0),
        agent=replace(config.agent, context_tokens=10**6),
    )


async def play(options: Options, config: Config, ranks: Ranks) -> None:
    """Show the episode while it runs, then save it with a report in runs/demo."""
    experiment = open_experiment(config, ranks)
    tasks = experiment.tasks.heldout
    if not 0 <= options.task < len(tasks):
        raise ValueError(f"--task must lie between 0 and {len(tasks) - 1}, not {options.task}")
    task = tasks[options.task]
    row("task", task.instruction, "bold")
    limits = config.eval
    async with experiment.worker() as worker:
        if options.by_hand:
            policy = ask_person
        elif config.model.path != "tiny":
            sampling = Sampling(limits.temperature, limits.top_p, limits.top_k)
            policy = worker.policy(sampling, limits.response_tokens, "demo", task.id)
        else:
            (site,) = sites_of([task])
            policy = ScriptedPolicy(world_at(site), task, worker.harness.preprocessor, config.agent)
        worker.harness.agent = PrintingAgent(config, worker.harness.images)
        trajectory = await worker.episode(task, 0, policy, limits.max_steps)
    experiment.run.save_trajectories("demo", [trajectory])
    print_verdict(trajectory)
    row("report", str(write_report(config.run_dir)))


def row(label: str, text: str, style: str = "") -> None:
    """Print a short label and a text beside it."""
    say(f"{label:<11}{text}", style)


class PrintingAgent(OpenWebRLAgent):
    """The agent, printing what passes through it."""

    def __init__(self, config: Config, images: ImageFolder):
        super().__init__(config.agent)
        self.images = images
        self.turns = 0

    async def observe(self, session: Session) -> Observation:
        observation = await super().observe(session)
        row("page", observation.text)
        if observation.image is not None:
            name = self.images.put(observation.image)
            row("image", str(self.images.path(name)))
        return observation

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        self.turns += 1
        CONSOLE.rule(f"turn {self.turns}", align="left")
        if parsed.thought:
            row("thinks", parsed.thought, "italic")
        for call in parsed.calls:
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            row(call.name, arguments, "bold")
        for line in feedback:
            row("", line)
        if parsed.error:
            row("error", parsed.error, "red")
        return super().visible_feedback(parsed, feedback)


async def ask_person(t: int, prompt: Prompt, session: Session) -> Sample:
    """Be the policy of a person, who is asked until a line is a call, and told what can be clicked."""
    if t == 0:
        say(USAGE, "dim")
        for name, tool in TOOLS.items():
            say(f"  {name} {' '.join(tool.model_fields)}", "dim")
    for name, x, y, _ in await session.do(session.page.evaluate(LOOK)):
        say(f"  {x * SCALE:4.0f} {y * SCALE:4.0f}  {name}")
    say("your call:")
    while True:
        line = sys.stdin.readline().strip()
        if not line:
            raise BrowserFault(Stop.CANCELLED, "given up by hand")
        name, _, arguments = line.partition(" ")
        call = f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'
        text = f"</think><tool_call>{call}</tool_call>"
        problem = parse(text).error
        if not problem:
            return Sample((), (), "stop", text=text)
        say(problem, "red")


def print_verdict(trajectory: Trajectory) -> None:
    """Print how the episode ended, what the verifier read, and what it expected."""
    CONSOLE.rule("verdict", align="left")
    verdict = "success" if trajectory.success else trajectory.error or "failure"
    row("verdict", verdict, "bold")
    turns = len(trajectory.turns)
    row("ended by", f"{trajectory.stop.value}, after {turns} turns and {duration(trajectory.seconds)}")
    row("state", json.dumps(trajectory.final_state))
    row("expected", json.dumps(trajectory.task.goal))
