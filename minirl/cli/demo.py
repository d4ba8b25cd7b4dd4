"""`python -m minirl demo`: one episode on a generated site, turn by turn in the terminal.

    page --observe--> prompt --script, model or person--> response --act--> page

Browser, prompts, tools and verifier are those of training; only the agent prints what passes through it.
"""

import asyncio
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

NEW = 4 * 10**8  # shops from here on are the clock's
LOOK = (resources.files("minirl.cli") / "look.js").read_text()
USAGE = f"""a call is a tool with its arguments as JSON: click {{"point_2d": [500, 120]}}
points run from [0, 0] at the top left to [{SCALE}, {SCALE}]; an empty line gives up
"""


@dataclass(frozen=True)
class Options:
    """Watch one episode on a generated site: what is seen, thought and done, and what comes of it."""

    shop: int | None = None
    """Which shop, by its number; by default the clock draws one that did not exist until then."""
    site: Path | None = None
    """In place of a shop, a site that `python -m minirl.worlds make` has written, by its folder."""
    task: int = 0
    """Which of the site's tasks, from 0 on."""
    checkpoint: Path | None = None
    """A folder with a model that the tiny recipe trained, by default the newest of runs/tiny. Where there is
    none yet, a script acts that knows the way."""
    by_hand: bool = False
    """Act yourself, at the keyboard."""
    out: Path = Path("runs/demo")
    """The run folder for the episode, its screenshots and report.html."""


def main(argv: Sequence[str]) -> int:
    """Play the episode. Returns 0 however it ends, 2 for a user's mistake."""
    options = tyro.cli(Options, args=list(argv), prog="python -m minirl demo")
    try:
        config = settings(options)
        with open_ranks(config.browser.episode_seconds) as ranks:
            asyncio.run(play(options, config, ranks))
    except ValueError as problem:
        print(f"minirl demo: {printable(str(problem))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def settings(options: Options) -> Config:
    """Return the tiny recipe for one browser and one episode, without limits that a person would meet."""
    config, shop = tiny(), NEW + int(time.time()) % NEW if options.shop is None else options.shop
    if options.by_hand and options.checkpoint is not None:
        raise ValueError("--by-hand and --checkpoint: who is to act? Give one of them")
    if (options.out / "metrics.jsonl").exists() or (options.out / "checkpoints").exists():
        raise ValueError(f"{options.out} holds a training run; choose another folder with --out")
    if not 0 <= shop < 2 * NEW:
        raise ValueError(f"--shop must lie between 0 and {2 * NEW - 1}, not {shop}")
    if options.site is not None and options.shop is not None:
        raise ValueError("--shop and --site: where is it to be? Give one of them")
    found = [] if options.by_hand or options.site else checkpoints(config.run_dir / "checkpoints")
    path = options.checkpoint or (found[-1] if found else config.model.path)
    config = replace(
        config,
        out=options.out,
        name=".",  # the folder itself
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        browser=replace(config.browser, browsers=1),
        model=replace(config.model, path=str(path)),
        task=replace(config.task, heldout=f"shops:{shop}-{shop}"),
        eval=replace(config.eval, episodes=1),
    )
    if options.site is not None:
        task, limits = replace(config.task, heldout=str(options.site)), replace(config.eval, episodes=10**6)
        browser = replace(config.browser, width=1280, height=720)
        config = replace(config, task=task, browser=browser, eval=limits)
    elif not options.by_hand:
        return config
    turns, seconds = (100, 86400.0) if options.by_hand else (60, 600.0)
    agent, limits = replace(config.agent, context_tokens=10**6), replace(config.eval, max_steps=turns)
    return replace(config, agent=agent, eval=limits, browser=replace(config.browser, episode_seconds=seconds))


async def play(options: Options, config: Config, ranks: Ranks) -> None:
    """Show the episode while it runs, then save it with a report."""
    experiment = open_experiment(config, ranks)
    run, tasks, limits = experiment.run, experiment.tasks.heldout, config.eval
    if not 0 <= options.task < len(tasks):
        raise ValueError(f"--task must lie between 0 and {len(tasks) - 1}, not {options.task}")
    task = tasks[options.task]
    row("task", task.instruction, "bold")
    async with experiment.worker() as worker:
        worlds = [world_at(site) for site in sites_of([task])]
        policy = ScriptedPolicy(worlds[0], task, worker.harness.preprocessor, config.agent)
        label = "scripted"
        if options.by_hand:
            label, policy = "by-hand", ask_person
        elif config.model.path != "tiny":
            sampling = Sampling(limits.temperature, limits.top_p, limits.top_k)
            label, policy = "checkpoint", worker.policy(sampling, limits.response_tokens, "demo", task.id)
        worker.harness.agent = Shown(config, run)
        trajectory = await worker.episode(task, 0, policy, limits.max_steps)
    run.save_trajectories(label, [trajectory])
    show_verdict(trajectory)
    row("report", str(write_report(run.root)), "cyan")


def row(label: str, text: str, style: str = "") -> None:
    """Print a short label and a text beside it; the terminal breaks it, so that a path can be clicked."""
    shown = Text(f"{printable(label):<11}", style="dim").append(printable(text), style=f"not dim {style}")
    CONSOLE.print(shown, soft_wrap=True)


class Shown(OpenWebRLAgent):
    """The agent, printing what passes through it."""

    def __init__(self, config: Config, run: Run):
        super().__init__(config.agent)
        self.images, self.turns = run.images, 0

    async def observe(self, session: Session) -> Observation:
        seen = await super().observe(session)
        row("tabs", seen.text.partition("Available tabs:\n")[2])
        if seen.image is not None:
            row("image", str(self.images.path(self.images.put(seen.image))), "cyan")
        return seen

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        self.turns += 1
        CONSOLE.rule(f"turn {self.turns}", align="left", style="dim")
        if parsed.thought:
            row("thinks", parsed.thought, "italic")
        for call, line in zip(parsed.calls, feedback, strict=False):
            row(call.name, json.dumps(dict(call.arguments), ensure_ascii=False), "bold")
            row("", line.removeprefix(f"{call.name}: "), "red" if ": failed, " in line else "green")
        if parsed.error:
            row("error", parsed.error.removeprefix("Error: "), "red")
        return super().visible_feedback(parsed, feedback)


async def ask_person(t: int, prompt: Prompt, session: Session) -> Sample:
    """Be the policy of a person, who is asked until a line is a call, and told what can be clicked."""
    if t == 0:
        say(USAGE + "\n".join(f"  {name} {' '.join(tool.arguments)}" for name, tool in TOOLS.items()), "dim")
    for name, x, y, _ in await session.do(session.page.evaluate(LOOK)):
        say(f"  {x * SCALE:4.0f} {y * SCALE:4.0f}  {name}")
    say("your call:")
    while line := sys.stdin.readline().strip():
        name, _, arguments = line.partition(" ")
        call = json.dumps({"name": name, "arguments": arguments or "{}"})
        text = f"</think><tool_call>{call}</tool_call>"
        if not (problem := parse(text).error):
            return Sample((), (), "stop", text=text)
        say(problem, "red")
    raise BrowserFault(Stop.CANCELLED, "given up by hand")


def show_verdict(t: Trajectory) -> None:
    """Print how the episode ended, what the verifier read, and what it wanted."""
    CONSOLE.rule("verdict", align="left", style="dim")
    outcome, style = ("success", "bold green") if t.success else (t.error or "failure", "bold red")
    row("verdict", outcome, style)
    row("ended by", f"{t.stop.value}, after {len(t.turns)} turns and {duration(t.seconds)}")
    row("found", json.dumps(t.final_state))
    row("wanted", json.dumps(t.task.goal))
