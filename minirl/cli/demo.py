"""`python -m minirl demo`: one episode on a generated shop, turn by turn in the terminal.

    page --observe--> Watcher --prompt--> script, model or person --parse--> Watcher --act--> page

The episode is an ordinary one: browser, prompts, tools and verifier are those of training. Only the
interface between agent and page is wrapped, so that a person sees what passes through it. The episode
and its report go to a run folder.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from minirl.agents.openwebrl import TOOLS
from minirl.browser.session import Session
from minirl.cli.keyboard import Person
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import CONSOLE, duration
from minirl.distributed import Ranks, open_ranks
from minirl.episode import Interface, PolicyFn
from minirl.experiment import open_experiment
from minirl.recipes import tiny
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import (
    Call,
    Observation,
    Parsed,
    Prompt,
    Sample,
    Sampling,
    Stop,
    Task,
    ToolFailure,
    Trajectory,
)
from minirl.worlds.scripted_agent import ScriptedPolicy
from minirl.worlds.shop import make_shop

HAND_STEPS, HAND_SECONDS, HAND_TOKENS = 100, 24 * 3600.0, 1_000_000  # no limit that a person would meet


@dataclass(frozen=True)
class Options:
    """Watch one episode on a generated shop: what is seen, thought and done, and what comes of it."""

    task: int = 0
    """Which of the shop's held-out orders, counted from 0."""
    checkpoint: Path | None = None
    """A folder with a model that the tiny recipe trained. Without one, a script acts that knows the way."""
    by_hand: bool = False
    """Act yourself, at the keyboard."""
    site: int = 0
    """The seed from which the shop is generated."""
    out: Path = Path("runs/demo")
    """The run folder for the episode, its screenshots and report.html."""
    slow: float = 0.0
    """Seconds to pause after every call."""


def main(argv: Sequence[str]) -> int:
    """Plays the episode; 0 however it ends, 2 for a user's mistake."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    options = tyro.cli(Options, args=list(argv), prog="python -m minirl demo", config=flags)
    try:
        config = settings(options)
        with open_ranks(config.browser.episode_seconds) as ranks:
            asyncio.run(play(options, config, ranks))
    except ValueError as problem:
        print(f"minirl demo: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def settings(options: Options) -> Config:
    """The tiny recipe for one browser and one episode. ValueError for what can't be played."""
    config, hand = tiny(), options.by_hand
    if hand and options.checkpoint is not None:
        raise ValueError("--by-hand and --checkpoint: who is to act? Give one of them")
    if (options.out / "metrics.jsonl").exists() or (options.out / "checkpoints").exists():
        raise ValueError(f"{options.out} holds a training run; choose another folder with --out")
    if not 0 <= options.task < config.eval.episodes:
        raise ValueError(f"--task must lie between 0 and {config.eval.episodes - 1}, not {options.task}")
    agent, seconds = config.agent, config.browser.episode_seconds + 100 * options.slow
    return replace(
        config,
        out=options.out,
        name=".",  # the folder itself
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        task=replace(config.task, seed=options.site),
        agent=replace(agent, context_tokens=HAND_TOKENS) if hand else agent,
        browser=replace(config.browser, browsers=1, episode_seconds=HAND_SECONDS if hand else seconds),
        model=replace(config.model, path=str(options.checkpoint or config.model.path)),
        eval=replace(config.eval, max_steps=HAND_STEPS) if hand else config.eval,
    )


async def play(options: Options, config: Config, ranks: Ranks) -> Trajectory:
    """The episode, shown while it runs, then written down."""
    parts = open_experiment(config, ranks)
    task = parts.tasks.heldout[options.task]
    CONSOLE.print(Panel(Text(task.instruction, style="bold"), title=Text(task.id), title_align="left"))
    async with parts.rollouts() as rollouts:
        label, policy = player(options, task, rollouts)
        watcher = Watcher(rollouts.interface, parts.run, options.slow)
        rollouts.interface = watcher.interface()
        trajectory = await rollouts.episode(task, 0, watcher.policy(policy), config.eval.max_steps)
    parts.run.save_trajectories(label, [trajectory])
    write_report(parts.run.root)
    verdict(trajectory, parts.run)
    return trajectory


def player(options: Options, task: Task, rollouts: RolloutWorker) -> tuple[str, PolicyFn]:
    """Who acts, with the label under which the episode is saved."""
    if options.by_hand:
        return "by-hand", Person(rollouts.preprocessor)
    if options.checkpoint is not None:
        how = rollouts.config.eval
        sampling = Sampling(how.temperature, how.top_p, how.top_k)
        return "checkpoint", rollouts.ask(sampling, how.response_tokens, "demo", task.id)
    return "scripted", ScriptedPolicy(make_shop(options.site), task, rollouts.preprocessor)


# --- what is shown ---------------------------------------------------------------------------------


def row(label: str, text: str, style: str = "") -> None:
    """A short label, and the text beside it, broken where the terminal ends."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=10, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text, style=style))
    CONSOLE.print(grid)


def path_row(label: str, path: Path) -> None:
    """Like `row`, but never broken, so that the path can be clicked or copied."""
    CONSOLE.print(Text(f"{label:<11}", style="dim").append(str(path), style="not dim cyan"), soft_wrap=True)


@dataclass
class Watcher:
    """An interface that shows what passes through it and changes nothing."""

    inner: Interface
    run: Run
    slow: float
    seen: Observation = Observation("")
    waiting: list[Call] = field(default_factory=list)  # calls of the current response that have not run

    def interface(self) -> Interface:
        return replace(self.inner, observe=self.observe, parse=self.parse, act=self.act)

    def policy(self, policy: PolicyFn) -> PolicyFn:
        """Shows the page before the policy answers: `observe` also looks once after the last turn."""

        async def watched(t: int, prompt: Prompt, session: Session) -> Sample:
            CONSOLE.print(Rule(Text(f"turn {t + 1}", style="bold"), align="left", style="dim"))
            tabs = [line for line in self.seen.text.splitlines() if line.startswith("- Tab")]
            for line in tabs if len(tabs) > 1 else ():
                row("tab", line.removeprefix("- Tab "))
            row("page", f"{self.seen.url}  {self.seen.title}")
            for png in prompt.images[-1:]:
                path_row("image", self.run.image_path(self.run.put_image(png)))
            sample = await policy(t, prompt, session)
            if sample.finish != "stop":
                row("error", f"the response was cut off after {len(sample.ids)} tokens", "red")
            return sample

        return watched

    async def observe(self, session: Session) -> Observation:
        self.seen = await self.inner.observe(session)
        return self.seen

    def parse(self, text: str) -> Parsed:
        parsed = self.inner.parse(text)
        self.waiting = list(parsed.calls)
        if parsed.error:
            row("says", text)
            row("error", parsed.error.removeprefix("Error: "), "red")
        elif parsed.thought:
            row("thinks", parsed.thought, "italic")
        return parsed

    async def act(self, session: Session, call: Call) -> str:
        self.waiting.pop(0)
        row(call.name, words(call), "bold")
        try:
            line = await self.inner.act(session, call)
            row("", line.removeprefix(f"{call.name}: "), "green")
        except ToolFailure as failure:
            row("", f"failed: {failure}", "red")
            self._drop()
            raise
        if call.name == "done":
            self._drop()
        await asyncio.sleep(self.slow)
        return line

    def _drop(self) -> None:
        for later in self.waiting:
            row(later.name, f"{words(later)}  not executed", "dim")


def words(call: Call) -> str:
    """A call's arguments as a person would say them, without those that are as usual.

    >>> words(Call("click", {"point_2d": [310, 420], "clicks": 2, "button": "left"}))
    '310 420, clicks 2'
    """
    said = []
    for name, value in call.arguments.items():
        if value == TOOLS[call.name].arguments[name][1]:
            continue
        if isinstance(value, str | list):
            items = value if isinstance(value, list) else [value]
            said.append(" ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items))
        else:
            said.append(name if value is True else f"{name} {value:g}")
    return ", ".join(said)


def verdict(trajectory: Trajectory, run: Run) -> None:
    """How it ended, what the verifier read, and where to look at it again."""
    t = trajectory
    CONSOLE.print(Rule(Text("verdict", style="bold"), align="left", style="dim"))
    if t.success:
        row("success", "the page is in the state that the task asks for", "bold green")
    elif t.valid:
        why = "the page is not in the state that the task asks for" if t.stop is Stop.DONE else "not finished"
        row("failure", why, "bold red")
    else:
        row("invalid", (t.error.splitlines() or ["no turn was taken"])[-1], "bold yellow")
    row("ended by", f"{t.stop.value}, after {len(t.turns)} turns and {duration(t.seconds)}")
    if t.final_state:
        row("found", described(t.final_state["page"], t.final_state["signature"]))
    if t.final_state and not t.success:
        fields = {
            condition["path"].removeprefix("$."): condition["value"] for condition in t.task.goal["where"]
        }
        row("wanted", described(t.task.goal["page"], fields))
    if t.final_image:
        path_row("image", run.image_path(t.final_image))
    path_row("report", run.report_path)


def described(page: str, fields: Mapping[str, Any]) -> str:
    known = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
    return f"{page}: {known or 'nothing chosen'}"
