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
from rich.text import Text

from minirl.agents.openwebrl import SCALE, TOOLS, OpenWebRLAgent, parse
from minirl.checkpoint import checkpoints
from minirl.cli.command_line import run_async
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import CONSOLE, duration, printable, say
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import open_experiment
from minirl.recipes import tiny
from minirl.run_folder import Run
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
    out: Path = Path("runs/demo")
    """The run folder for the episode, its screenshots and report.html."""


def run(argv: Sequence[str]) -> None:
    """Play the episode."""
    options = tyro.cli(Options, args=list(argv), prog="python -m minirl demo")
    config = settings(options)
    with open_ranks(config.browser.episode_seconds) as ranks:
        run_async(play(options, config, ranks))


def settings(options: Options) -> Config:
    """Return the tiny recipe for one browser and one episode, without limits that a person would meet."""
    config = tiny()
    if (options.out / "checkpoints").exists():
        raise ValueError(f"{options.out} holds a training run; choose another folder with --out")
    model, heldout = options.checkpoint, options.tasks
    if not heldout:
        new_shop = int(time.time()) % CLOCK_SHOPS
        heldout = f"shops:{new_shop}-{new_shop}"
        trained = checkpoints(config.run_dir / "checkpoints")
        if trained and model is None:
            model = trained[-1]
    config = replace(
        config,
        name=str(options.out.resolve()),
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        browser=replace(config.browser, browsers=1),
        task=replace(config.task, heldout=heldout),
        eval=replace(config.eval, episodes=max(1, options.task + 1)),
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
    """Show the episode while it runs, then save it with a report."""
    experiment = open_experiment(config, ranks)
    run, tasks, limits = experiment.run, experiment.tasks.heldout, config.eval
    if not 0 <= options.task < len(tasks):
        raise ValueError(f"--task must lie between 0 and {len(tasks) - 1}, not {options.task}")
    task = tasks[options.task]
    row("task", task.instruction, "bold")
    async with experiment.worker() as worker:
        if options.by_hand:
            label = "by-hand"
            policy = ask_person
        elif config.model.path != "tiny":
            label = "checkpoint"
            sampling = Sampling(limits.temperature, limits.top_p, limits.top_k)
            policy = worker.policy(sampling, limits.response_tokens, "demo", task.id)
        else:
            label = "scripted"
            (site,) = sites_of([task])
            policy = ScriptedPolicy(world_at(site), task, worker.harness.preprocessor, config.agent)
        worker.harness.agent = Shown(config, run)
        trajectory = await worker.episode(task, 0, policy, limits.max_steps)
    run.save_trajectories(label, [trajectory])
    show_verdict(trajectory)
    row("report", str(write_report(run.root)), "cyan")


def row(label: str, text: str, style: str = "") -> None:
    """Print a short label and a text beside it; the terminal breaks it, so that a path can be clicked."""
    line = Text(f"{printable(label):<11}", style="dim")
    line.append(printable(text), style=f"not dim {style}")
    CONSOLE.print(line, soft_wrap=True)


class Shown(OpenWebRLAgent):
    """The agent, printing what passes through it."""

    def __init__(self, config: Config, run: Run):
        super().__init__(config.agent)
        self.images = run.images
        self.turns = 0

    async def observe(self, session: Session) -> Observation:
        observation = await super().observe(session)
        _, _, tabs = observation.text.partition("Available tabs:\n")
        row("tabs", tabs)
        if observation.image is not None:
            name = self.images.put(observation.image)
            row("image", str(self.images.path(name)), "cyan")
        return observation

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        self.turns += 1
        CONSOLE.rule(f"turn {self.turns}", align="left", style="dim")
        if parsed.thought:
            row("thinks", parsed.thought, "italic")
        for call, line in zip(parsed.calls, feedback, strict=False):
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            row(call.name, arguments, "bold")
            colour = "red" if ": failed, " in line else "green"
            row("", line.removeprefix(f"{call.name}: "), colour)
        if parsed.error:
            row("error", parsed.error.removeprefix("Error: "), "red")
        return super().visible_feedback(parsed, feedback)


async def ask_person(t: int, prompt: Prompt, session: Session) -> Sample:
    """Be the policy of a person, who is asked until a line is a call, and told what can be clicked."""
    if t == 0:
        say(USAGE, "dim")
        for name, arguments in TOOLS.items():
            say(f"  {name} {' '.join(arguments)}", "dim")
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


def show_verdict(trajectory: Trajectory) -> None:
    """Print how the episode ended, what the verifier read, and what it expected."""
    CONSOLE.rule("verdict", align="left", style="dim")
    if trajectory.success:
        row("verdict", "success", "bold green")
    else:
        row("verdict", trajectory.error or "failure", "bold red")
    turns, seconds = len(trajectory.turns), duration(trajectory.seconds)
    row("ended by", f"{trajectory.stop.value}, after {turns} turns and {seconds}")
    row("state", json.dumps(trajectory.final_state))
    row("expected", json.dumps(trajectory.task.goal))
