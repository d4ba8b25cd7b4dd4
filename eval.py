"""The success rate of a checkpoint on a file of tasks, and how sure it is.

    python eval.py tiny                                       the newest checkpoint of runs/tiny
    python eval.py tiny --name second-try                     that of runs/second-try
    python eval.py tiny --model.path FOLDER                   any Hugging Face folder
    python eval.py tiny --task.heldout FILE --eval.max-steps 10
                                                              other tasks than those the run held out
    python eval.py tiny --sampler remote --endpoint.url URL --endpoint.model NAME
                                                              a model that is served elsewhere

    checkpoint --rollouts, one episode per task--> trajectories --record--> runs/NAME-eval --table--> you

Sampled as `config.eval` says, which is not always how training samples. The training run is only read:
evaluations gather in a run folder of their own. An episode that failed for reasons not the agent's (no
browser, no site) is left out of the rate, named, and counted as a failure in a second row.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from rich.table import Table

from minirl.checkpoint import checkpoints
from minirl.config import Config, TaskConfig
from minirl.log import CONSOLE, progress, say
from minirl.model import check_checkpoint
from minirl.parts import Parts, open_parts
from minirl.ranks import Ranks, open_ranks
from minirl.recipes import RECIPES, from_command_line, run_main
from minirl.report import write_report
from minirl.stats import wilson
from minirl.store import Run
from minirl.types import Trajectory

NAMED = 5  # invalid episodes that are named one by one


def choose(config: Config) -> Config:
    """The config with the checkpoint as its model, and the evaluations' folder as its name.

    The folder belongs to the run that is evaluated: `--name tiny` and `--name tiny-eval` mean the same.
    """
    run = (config.name or config.recipe).removesuffix("-eval")
    folder = config.out / run
    if config.sampler.kind == "remote":  # served weights; the recipe's tokenizer measures conversations
        return replace(config, name=f"{run}-eval", task=tasks_of(config, folder))
    path = checkpoint_of(config, folder / "checkpoints")
    is_own = not is_given(config) or Path(path).resolve().is_relative_to(folder.resolve())
    task = tasks_of(config, folder) if is_own else config.task
    return replace(config, name=f"{run}-eval", model=replace(config.model, path=path), task=task)


def is_given(config: Config) -> bool:
    """Whether --model.path says which weights to evaluate."""
    recipe = RECIPES.get(config.recipe)
    return recipe is None or config.model.path != recipe().model.path


def checkpoint_of(config: Config, folder: Path) -> str:
    """--model.path if it was given; else the newest RL checkpoint in the folder, the warm start, or what
    the recipe starts from. A checkpoint that can't be read is named, and the one before it is taken."""
    given = config.model.path
    if is_given(config):
        return given
    for path in [*reversed(checkpoints(folder)), folder / "sft"]:
        if not path.is_dir():
            continue
        try:
            check_checkpoint(replace(config.model, path=str(path)))
            return str(path)
        except ValueError as problem:
            say(f"passed over: {problem}")
    if given == "tiny":
        raise ValueError(f"no checkpoint in {folder}; train first, or name a folder with --model.path")
    return given


def tasks_of(config: Config, folder: Path) -> TaskConfig:
    """The run's own tasks: what was not given is as in its config.json, and held out is what it held out."""
    usual, task, saved = RECIPES[config.recipe](), config.task, {}
    settings = folder / "config.json"
    if settings.is_file():
        try:
            saved = json.loads(settings.read_text())["task"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{settings} can't be read: {error!r}") from None
        for name in ("train", "seed", "train_goals", "demo_goals"):
            if getattr(task, name) == getattr(usual.task, name):
                task = replace(task, **{name: saved.get(name, getattr(task, name))})
    heldout, same_shop = folder / "heldout.jsonl", task.seed == saved.get("seed", task.seed)
    if task.heldout == usual.task.heldout and same_shop and heldout.is_file():
        task = replace(task, heldout=str(heldout))
    return task


async def attempt(parts: Parts) -> list[Trajectory]:
    """One episode per task. What is sampled depends on the seed, the tasks and the weights alone."""
    tasks, how = parts.tasks.heldout, parts.config.eval
    async with parts.rollouts() as rollouts:
        with progress("evaluating", len(tasks)) as meter:
            return await rollouts.evaluate(
                tasks, "eval", how.max_steps, lambda done: meter.advance(done - meter.done)
            )


def record(run: Run, checkpoint: str, trajectories: Sequence[Trajectory]) -> None:
    """Adds trajectories, numbers and report to the folder; what an earlier evaluation left there stays."""
    name = label = "eval_" + re.sub(r"[^A-Za-z0-9.-]", "_", Path(checkpoint).name)
    number = 2
    while label in run.labels():
        label, number = f"{name}-{number}", number + 1
    state = Path(checkpoint) / "state.json"
    step = json.loads(state.read_text()).get("step", 0) if state.is_file() else 0
    valid = [t for t in trajectories if t.valid]
    success, low, high, n = rate(valid)
    run.save_trajectories(label, trajectories)
    run.add_eval(
        label,
        step=step,
        success=success,
        low=low,
        high=high,
        n=n,
        invalid=len(trajectories) - n,
        checkpoint=checkpoint,
    )
    write_report(run.root)


def rate(trajectories: Sequence[Trajectory]) -> tuple[float, float, float, int]:
    """Success, its 95% interval, and the number of episodes: with none, nothing is known."""
    successes, n = sum(t.success for t in trajectories), len(trajectories)
    return successes / max(n, 1), *wilson(successes, n), n


def show(trajectories: Sequence[Trajectory]) -> None:
    """The table, how the episodes ended, and which say nothing about the agent."""
    valid = [t for t in trajectories if t.valid]
    invalid = [t for t in trajectories if not t.valid]
    rows = {"episodes": valid}
    if invalid:
        rows = {"valid episodes": valid, "all, invalid as failures": trajectories}
    table = Table()
    table.add_column("")
    for column in ("success", "95% interval", "n", "mean turns"):
        table.add_column(column, justify="right")
    for name, counted in rows.items():
        success, low, high, n = rate([replace(t, success=t.success and t.valid) for t in counted])
        turns = f"{mean(len(t.turns) for t in counted):.1f}" if n else "-"
        table.add_row(name, f"{success:.1%}" if n else "-", f"{low:.1%} to {high:.1%}", str(n), turns)
    stops = Counter(t.stop.value for t in trajectories)
    say("ended by " + ", ".join(f"{stop} {count}" for stop, count in stops.most_common()))
    for t in invalid[:NAMED]:
        say(f"invalid: {t.task.id}: {t.stop.value}: {(t.error.splitlines() or ['no turn was taken'])[-1]}")
    if len(invalid) > NAMED:
        say(f"invalid: {len(invalid) - NAMED} more; the dump in trajectories/ has them")
    CONSOLE.print(table)


async def main(config: Config, ranks: Ranks) -> None:
    parts = open_parts(ranks.agree(choose(config) if ranks.first else config), ranks)
    config = parts.config
    if config.eval.episodes != RECIPES[config.recipe]().eval.episodes:  # asked for: fewer than a file holds
        parts.tasks = replace(parts.tasks, heldout=parts.tasks.heldout[: config.eval.episodes])
    subject = config.endpoint.model if config.sampler.kind == "remote" else config.model.path
    say(f"evaluating {subject} on {len(parts.tasks.heldout)} tasks")
    trajectories = await attempt(parts)
    if ranks.first:
        record(parts.run, subject, trajectories)
    say(f"report: {parts.run.report_path}")
    show(trajectories)


def run(argv: Sequence[str]) -> None:
    config = from_command_line(argv, "eval.py")
    with open_ranks(config.browser.episode_seconds) as ranks:
        asyncio.run(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
