"""`python -m minirl demo`: one episode on a generated shop, turn by turn in the terminal.

    page --observe--> Watcher --prompt--> script, model or person --parse--> Watcher --act--> page

The episode is an ordinary one: browser, prompts, tools and verifier are those of training. Only the agent is
wrapped, so that a person sees what passes through it. The episode and its report go to a run folder.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from rich.rule import Rule
from rich.text import Text

from minirl.agents.openwebrl import TOOLS
from minirl.browser.session import Session
from minirl.cli.keyboard import Person
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import CONSOLE, duration
from minirl.distributed import Ranks, open_ranks
from minirl.episode import PolicyFn
from minirl.experiment import open_experiment
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import Call, Observation, Parsed, Prompt, Sample, Sampling, Stop, ToolFailure, Trajectory
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
    """Play the episode. Returns 0 however it ends, 2 for a user's mistake."""
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
    """Return the tiny recipe for one browser and one episode. ValueError for options that can't be played."""
    config = tiny()
    if options.by_hand and options.checkpoint is not None:
        raise ValueError("--by-hand and --checkpoint: who is to act? Give one of them")
    if (options.out / "metrics.jsonl").exists() or (options.out / "checkpoints").exists():
        raise ValueError(f"{options.out} holds a training run; choose another folder with --out")
    if not 0 <= options.task < config.eval.episodes:
        raise ValueError(f"--task must lie between 0 and {config.eval.episodes - 1}, not {options.task}")
    agent, limits, seconds = config.agent, config.eval, config.browser.episode_seconds + 100 * options.slow
    if options.by_hand:
        agent, limits = replace(agent, context_tokens=HAND_TOKENS), replace(limits, max_steps=HAND_STEPS)
        seconds = HAND_SECONDS
    return replace(
        config,
        out=options.out,
        name=".",  # the folder itself
        agent=agent,
        eval=limits,
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        task=replace(config.task, seed=options.site),
        browser=replace(config.browser, browsers=1, episode_seconds=seconds),
        model=replace(config.model, path=str(options.checkpoint or config.model.path)),
    )


async def play(options: Options, config: Config, ranks: Ranks) -> None:
    """Show the episode while it runs, then save it with a report."""
    experiment = open_experiment(config, ranks)
    task = experiment.tasks.heldout[options.task]
    row("task", task.instruction, "bold")
    async with experiment.worker() as worker:
        harness, limits = worker.harness, config.eval
        if options.by_hand:
            label, policy = "by-hand", Person(harness.preprocessor)
        elif options.checkpoint is not None:
            sampling = Sampling(limits.temperature, limits.top_p, limits.top_k)
            label, policy = "checkpoint", worker.policy(sampling, limits.response_tokens, "demo", task.id)
        else:
            label, policy = "scripted", ScriptedPolicy(make_shop(options.site), task, harness.preprocessor)
        harness.agent = watcher = Watcher(harness.agent, experiment.run, options.slow)
        trajectory = await worker.episode(task, 0, watcher.policy(policy), limits.max_steps)
    experiment.run.save_trajectories(label, [trajectory])
    write_report(experiment.run.root)
    verdict(trajectory, experiment.run)


def row(label: str, text: str, style: str = "") -> None:
    """Print a short label and a text beside it; the terminal breaks it, so that a path can be clicked."""
    CONSOLE.print(Text(f"{label:<11}", style="dim").append(text, style=f"not dim {style}"), soft_wrap=True)


class Watcher:
    """An agent that shows what passes through it and changes nothing."""

    def __init__(self, agent: Any, run: Run, slow: float):
        self.agent, self.run, self.slow = agent, run, slow
        self.seen = Observation("")
        self.waiting: list[Call] = []  # calls of the current response that have not run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)

    def policy(self, policy: PolicyFn) -> PolicyFn:
        """Return the policy, with the page shown before it answers."""

        async def watched(t: int, prompt: Prompt, session: Session) -> Sample:
            CONSOLE.print(Rule(Text(f"turn {t + 1}", style="bold"), align="left", style="dim"))
            tabs = [line for line in self.seen.text.splitlines() if line.startswith("- Tab")]
            for line in tabs if len(tabs) > 1 else ():
                row("tab", line.removeprefix("- Tab "))
            row("page", f"{self.seen.url}  {self.seen.title}")
            for png in prompt.images[-1:]:
                row("image", str(self.run.images.path(self.run.images.put(png))), "cyan")
            sample = await policy(t, prompt, session)
            if sample.finish != "stop":
                row("error", f"the response was cut off after {len(sample.ids)} tokens", "red")
            return sample

        return watched

    async def observe(self, session: Session) -> Observation:
        self.seen = await self.agent.observe(session)
        return self.seen

    def parse(self, text: str) -> Parsed:
        parsed = self.agent.parse(text)
        self.waiting = list(parsed.calls)
        if parsed.error:
            row("says", text)
            row("error", parsed.error.removeprefix("Error: "), "red")
        elif parsed.thought:
            row("thinks", parsed.thought, "italic")
        return parsed

    async def act(self, session: Session, call: Call) -> str:
        row(call.name, words(call), "bold")
        self.waiting = self.waiting[1:]
        ended = call.name == "done"
        try:
            line = await self.agent.act(session, call)
            row("", line.removeprefix(f"{call.name}: "), "green")
        except ToolFailure as failure:
            row("", f"failed: {failure}", "red")
            ended = True
            raise
        finally:
            for dropped in self.waiting if ended else ():
                row(dropped.name, f"{words(dropped)}  not executed", "dim")
        await asyncio.sleep(self.slow)
        return line


def words(call: Call) -> str:
    """Return a call's arguments without those that are as usual.

    >>> words(Call("click", {"point_2d": [310, 420], "clicks": 2, "button": "left"}))
    'point_2d [310, 420], clicks 2'
    """
    usual = {name: default for name, (_, default) in TOOLS[call.name].arguments.items()}
    unlike = {name: value for name, value in call.arguments.items() if value != usual[name]}
    return ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in unlike.items())


def verdict(t: Trajectory, run: Run) -> None:
    """Print how it ended, what the verifier read, and where to look at it again."""

    def described(page: str, fields: Mapping[str, Any]) -> str:
        known = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
        return f"{page}: {known or 'nothing chosen'}"

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
        where = {one["path"].removeprefix("$."): one["value"] for one in t.task.goal["where"]}
        row("wanted", described(t.task.goal["page"], where))
    if t.final_image:
        row("image", str(run.images.path(t.final_image)), "cyan")
    row("report", str(run.report_path), "cyan")
