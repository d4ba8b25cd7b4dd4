"""`python -m minirl demo`: one episode on a generated site, told turn by turn in the terminal.

    page --observe--> prompt --script or model--> response --act--> page

Browser, prompts, tools and verifier are those of training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from minirl.cli.command_line import run_async
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import progress, say
from minirl.evaluation.resume import as_trained
from minirl.recipes import tiny
from minirl.run_folder import Run, checkpoints
from minirl.types import Sampling, Trajectory

if TYPE_CHECKING:
    from minirl.distributed import Ranks

CLOCK_SHOPS = 8 * 10**8  # their numbers are far from those of training


@dataclass(frozen=True)
class Options:
    """Watch one episode on a generated site: what is seen, thought and done, and what comes of it."""

    tasks: str = ""
    """shops:17-17 for one shop, or the folder of a site that `python -m minirl.worlds make` has written; by
    default a shop that did not exist until now."""
    task: int = 0
    """Which of these tasks, from 0 on."""
    checkpoint: Path | None = None
    """A folder with a model that train.py wrote, which acts as in its run; in a new shop by default the
    newest of runs/tiny. Without one a script acts that knows the way."""


def run(argv: Sequence[str]) -> None:
    """Play the episode."""
    options = tyro.cli(Options, args=argv, prog="python -m minirl demo")
    config = settings(options)

    from minirl.distributed import open_ranks  # torch: --help and mistakes need not wait for it

    with open_ranks(config.browser.episode_seconds) as ranks:
        run_async(play(options.task, config, ranks))


def settings(options: Options) -> Config:
    """Return the tiny recipe for one browser and one episode, with the model that is to act, if one is, and
    what shaped its run."""
    config = tiny()
    model = options.checkpoint
    heldout = options.tasks
    if not heldout:
        new_shop = int(time.time()) % CLOCK_SHOPS
        heldout = f"shops:{new_shop}-{new_shop}"
        trained = checkpoints(config.run_dir / "checkpoints")
        if trained:
            model = model or trained[-1]
    if Path(heldout).is_dir():  # most of its sites have larger pages and longer tasks than shops
        config = replace(
            config,
            browser=replace(config.browser, width=1280, height=720),
            agent=replace(config.agent, context_tokens=16384),
            eval=replace(config.eval, max_steps=50),
        )
    if model:
        config = as_trained(config, str(model), config.run_dir)
        config = replace(config, model=replace(config.model, path=str(model)))
    return replace(
        config,
        name="demo",
        sampler=replace(config.sampler, kind="hf"),  # vLLM would take longer to start than an episode
        browser=replace(config.browser, browsers=1),
        task=replace(config.task, train="", heldout=heldout),
        eval=replace(config.eval, episodes=max(1, options.task + 1)),
    )


async def play(number: int, config: Config, ranks: Ranks) -> None:
    """Run the episode, tell it, and save it with a report in runs/demo."""
    from minirl.experiment import open_experiment
    from minirl.worlds.scripted_agent import scripted_policy

    experiment = open_experiment(config, ranks)
    tasks = experiment.tasks.heldout
    if not 0 <= number < len(tasks):
        raise ValueError(f"--task must lie between 0 and {len(tasks) - 1}, not {number}")
    task = tasks[number]
    row("task", task.instruction, "bold")
    limits = config.eval
    async with experiment.worker(rewarded=False) as worker:
        if config.model.path == "tiny":
            policy = scripted_policy(task, worker)
        else:
            sampling = Sampling(limits.temperature, limits.top_p, limits.top_k)
            policy = worker.policy(sampling, limits.response_tokens, "demo", task.id)
        with progress("playing"):
            trajectory = await worker.episode(task, 0, policy, limits.max_steps)
    experiment.run.save_trajectories("demo", [trajectory])
    tell(trajectory, experiment.run)
    row("report", str(write_report(config.run_dir)))


def row(label: str, text: str, style: str = "") -> None:
    """Print a short label and a text beside it."""
    say(f"{label:<11}{text}", style)


def tell(trajectory: Trajectory, run: Run) -> None:
    """Print what was seen, thought and done in each turn, what the verifier read, and what it expected."""
    for number, turn in enumerate(trajectory.turns, start=1):
        say(f"--- turn {number}", "dim")
        row("page", turn.observation)
        for image in turn.images:
            row("image", str(run.images.path(image)))
        if turn.parsed.thought:
            row("thinks", turn.parsed.thought, "italic")
        for call in turn.parsed.calls:
            row(call.name, json.dumps(dict(call.arguments), ensure_ascii=False), "bold")
        for line in turn.feedback:
            row("", line, "red" if turn.parsed.error else "")
    verdict = "success" if trajectory.success else trajectory.error or "failure"
    row("verdict", verdict, "bold")
    row("ended by", f"{trajectory.stop.value}, {len(trajectory.turns)} turns, {trajectory.seconds:.1f} s")
    row("state", json.dumps(trajectory.final_state))
    row("expected", json.dumps(trajectory.task.goal))
