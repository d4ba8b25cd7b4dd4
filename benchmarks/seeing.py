"""Does a run's agent look? Its newest checkpoint on sites it never met, and with other screenshots, or pages.

    python benchmarks/seeing.py --run runs/tiny            about three minutes
    python benchmarks/seeing.py --run runs/tiny --n 256    for a table
    python benchmarks/seeing.py --run runs/tiny --heldout shops:90001-90064@serif

Four evaluations, each a bar in the report of RUN-eval, where eval.py's are, too: tasks that the run held out;
tasks that it trained on; the held-out ones once more with screenshots of another task's site, and with blank
ones. An agent that has learned where things usually are succeeds as often without its own screenshots. The
last line is JSON: the success rates, and how many points reinforcement gained, by the run's own evaluations
(null before its end).
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tyro
from PIL import Image

from minirl.cli.report import write_report
from minirl.config import Config, TaskConfig
from minirl.console import say
from minirl.distributed import open_ranks
from minirl.evaluation.resume import SUFFIX, as_trained, newest_checkpoint
from minirl.experiment import Experiment, open_experiment
from minirl.judges.intervals import wilson
from minirl.recipes import RECIPES
from minirl.run_folder import Run, state_of
from minirl.types import Observation, Task

NAMES = ("unseen_sites", "seen_sites", "other_screenshot", "blank")


@dataclass
class Args:
    run: Path
    n: int = 96
    """Episodes of each evaluation."""
    heldout: str = ""
    """Other sites than the run held out, as --task.heldout takes them."""
    train: str = ""
    """The sites that the run trained on, if they are a folder or a file."""


def showing(agent: Any, instead: Callable[[str, Observation], Observation]) -> Any:
    """Return the agent, shown what `instead` makes of the page's host and the right observation."""

    class Shown:
        def __getattr__(self, name: str) -> Any:
            return getattr(agent, name)

        async def observe(self, session: Any) -> Observation:
            seen = await agent.observe(session)
            return instead(urlsplit(session.page.url).hostname or "", seen)

    return Shown()


def blank(seen: Observation) -> Observation:
    """Return the observation with a white picture of the same size, or an empty page."""
    if not seen.image:
        return replace(seen, page_text="<html> </html>")
    out = io.BytesIO()
    Image.new("RGB", Image.open(io.BytesIO(seen.image)).size, "white").save(out, "PNG")
    return replace(seen, image=out.getvalue())


async def measure(experiment: Experiment, n: int) -> dict[str, tuple[int, int]]:
    """Return how many episodes of each evaluation succeeded, and of how many, aborted ones left out."""
    tasks = experiment.tasks
    counts = dict[str, tuple[int, int]]()
    seen: dict[str, list[Observation]] = {}  # of every site
    rng = random.Random(0)

    def keep(host: str, right: Observation) -> Observation:
        seen.setdefault(host, []).append(right)
        return right

    def other(host: str, right: Observation) -> Observation:
        wrong = rng.choice(seen[rng.choice([name for name in seen if name != host])])
        return replace(right, image=wrong.image, page_text=wrong.page_text)

    async def rate(name: str, tasks: Sequence[Task], instead: Any) -> None:
        worker.harness.agent = showing(agent, instead)
        places = [(task, i) for i, task in enumerate(tasks[:n])]
        tried = await worker.evaluate(places, name, experiment.config.eval.max_steps, lambda done: None)
        valid = [t for t in tried if t.stop.is_agent_fault]
        counts[name] = (sum(bool(t.success) for t in valid), len(valid))

    async with experiment.worker() as worker:
        agent = worker.harness.agent
        await rate("unseen_sites", tasks.heldout, keep)
        await rate("seen_sites", tasks.train, lambda _, right: right)
        await rate("other_screenshot", tasks.heldout, other)
        await rate("blank", tasks.heldout, lambda _, right: blank(right))
    return counts


def tasks_of(args: Args, config: Config) -> TaskConfig:
    """Return the run's tasks; seen sites ask for as much as unseen ones. ValueError where these, or what its
    agent was told, are files, of which only their owner knows whether they are the same still."""
    settings = Run(args.run).config()
    given = {"train": args.train, "heldout": args.heldout}
    usual = {"train": config.task.train, "heldout": config.task.heldout}
    for name, value in given.items():
        if not value and settings["task"][name] != usual[name]:
            raise ValueError(f"the run has --task.{name} {settings['task'][name]}: give it as --{name}")
    if settings["agent"]["prompt"] or settings["task"]["reward"]:
        raise ValueError(
            "the run has a prompt or a reward of its own, which eval.py takes, and this does not"
        )
    return replace(config.task, **{name: given[name] or usual[name] for name in given}, short=0)


def main(args: Args) -> None:
    source = Run(args.run)
    folder = Path(tempfile.mkdtemp(prefix="seeing-"))
    config = as_trained(RECIPES[source.config()["recipe"]](), "", args.run)
    weights = newest_checkpoint(config, source.checkpoint_dir)
    model = replace(config.model, path=weights)
    task = tasks_of(args, config)
    config = replace(config, name=str(Path(folder) / "run"), model=model, task=task)
    config = replace(config, eval=replace(config.eval, episodes=args.n))
    try:
        with open_ranks() as ranks:
            counts = asyncio.run(measure(open_experiment(config, ranks), args.n))
    finally:
        shutil.rmtree(folder)
    # beside what eval.py measures: these rows belong to no step, and training goes on without them
    measured = Run(Path(f"{args.run}{SUFFIX}"))
    step = state_of(Path(weights)).get("step", 0)
    rates: dict[str, Any] = {}
    for name in NAMES:
        successes, n = counts[name]
        low, high = wilson(successes, n)
        rates[name] = successes / n if n else None
        label = f"{name.replace('_', ' ')} {args.heldout}".strip()
        figures = {"step": step, "success": successes / max(n, 1), "low": low, "high": high, "n": n}
        measured.add_eval(label, **figures, checkpoint=weights)
    say(f"written: {write_report(measured.root)}")
    success = {row["label"]: row["success"] for row in source.evals()}
    before = success.get("after SFT")
    after = success.get("after RL")
    rates["gain"] = None if before is None or after is None else round(100 * (after - before), 1)
    print(json.dumps(rates))


if __name__ == "__main__":
    main(tyro.cli(Args))
