"""The success rate of a checkpoint on a file of tasks, and how sure it is; or which of two is better.

    python eval.py tiny                                       the newest checkpoint of runs/tiny
    python eval.py tiny --name second-try                     that of runs/second-try
    python eval.py tiny --model.path FOLDER                   any Hugging Face folder
    python eval.py --tasks FILE --limit 3                     other tasks than those the run held out
    python eval.py RECIPE --tasks FILE --protocol webvoyager-official --seeds 0 1 2
                                                              as a paper evaluates, three episodes a task
    python eval.py tiny-text --max-steps 5 10 20 30           success within so many turns
    python eval.py tiny --sampler remote --endpoint.url URL --endpoint.model NAME
                                                              a model that is served elsewhere
    python eval.py --compare A.json B.json                    two evaluations, task by task

    checkpoint --rollouts, one episode per task and seed--> trajectories --ledger--> results --tables--> you

Sampled as `config.eval` or the protocol says, which is not always how training samples. The training run is
only read: evaluations gather in runs/NAME-eval, each with its file of results, which is written after every
episode. The same command goes on after an interruption; what is finished stays, aborted episodes included,
unless --retry is given. OpenWebRL, section 4: both its metrics are shown, with and without aborted tasks;
appendices D and E: what the agent's turns speak of, and why its episodes failed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minirl.benchmarks.protocols import Protocol
from minirl.cli.report import write_report
from minirl.config import Config
from minirl.console import CONSOLE, progress, say
from minirl.distributed import Ranks, open_ranks
from minirl.evaluation.failures import error_rows, proxy_rows, said_of
from minirl.evaluation.results import Summary
from minirl.evaluation.resume import Ledger, choose, names_in, open_ledger, read_flags, selected, shared
from minirl.evaluation.tables import compare, curve, failures_table, named, proxies_table, show
from minirl.experiment import Experiment, open_experiment
from minirl.recipes import run_main
from minirl.run_folder import Run
from minirl.types import Task, Trajectory


async def main(config: Config, given: Collection[str], ranks: Ranks) -> None:
    parts = open_experiment(ranks.broadcast(choose(config, given) if ranks.is_main else config), ranks)
    config, protocol = parts.config, named(parts.config.eval.protocol)
    tasks = selected(config, parts.tasks.heldout, protocol, given)
    parts.tasks = replace(parts.tasks, heldout=tasks)
    subject = config.endpoint.model if config.sampler.kind == "remote" else config.model.path
    say(f"evaluating {subject} on {len(tasks)} tasks")

    ledger = open_ledger(parts, protocol, subject)
    results = ledger.collect()
    missing = ledger.missing(results, config.eval.retry)
    if results:
        say(f"{len(ledger.places) - len(missing)} episodes are in {ledger.path}; delete it to begin again")
    if missing:
        await attempt(parts, ledger, missing, protocol)
        results = ledger.collect()

    score = show(results, protocol, tasks)
    if config.eval.budgets:
        CONSOLE.print(curve(results, config.eval.budgets, protocol))
    if ranks.is_main:
        reasons = explain(list(parts.run.load_trajectories(ledger.label)))
        record(parts.run, ledger.label, subject, score, reasons)
    say(f"results: {ledger.path}\nreport: {parts.run.report_path}")


async def attempt(
    parts: Experiment, ledger: Ledger, missing: Sequence[tuple[Task, int]], protocol: Protocol
) -> None:
    """An episode per task and seed. What is sampled depends on these, the config's seed and the weights."""
    tasks, seeds = [task for task, _ in missing], [seed for _, seed in missing]
    await parts.reset_sites()
    parts.config = shared(parts.config, parts.ranks)
    async with parts.rollouts() as rollouts:
        with progress("evaluating", len(missing)) as meter:
            await rollouts.evaluate(
                tasks,
                "eval",
                parts.config.eval.max_steps,
                lambda done: meter.advance(done - meter.done),
                members=seeds,
                on_done=ledger.add,
                succeeds_by=protocol.succeeds_by,
            )


def explain(trajectories: Sequence[Trajectory]) -> dict[str, list[dict[str, Any]]]:
    """Prints why episodes failed and what their turns speak of; the same for the report."""
    errors = error_rows(trajectories, [said_of(trajectory) for trajectory in trajectories])
    proxies = proxy_rows(trajectories)
    if errors:
        CONSOLE.print(failures_table(errors))
    if any(row.name == "any" and row.turns for row in proxies):
        CONSOLE.print(proxies_table(proxies))
    return {"errors": list(map(asdict, errors)), "proxies": list(map(asdict, proxies))}


def record(run: Run, label: str, checkpoint: str, score: Summary, reasons: dict[str, Any]) -> None:
    """Adds the numbers to the folder, and the report; what an earlier evaluation left there stays."""
    state = Path(checkpoint) / "state.json"
    run.add_eval(
        label,
        step=json.loads(state.read_text()).get("step", 0) if state.is_file() else 0,
        success=score.success.rate,
        low=score.success.low,
        high=score.success.high,
        n=score.success.episodes,
        invalid=score.aborted,
        checkpoint=checkpoint,
        protocol=score.protocol,
        **reasons,
    )
    write_report(run.root)


def run(argv: Sequence[str]) -> None:
    config = read_flags(argv)
    if config.eval.compare:
        compare(*config.eval.compare)
        return
    with open_ranks(config.browser.episode_seconds) as ranks:
        asyncio.run(main(config, names_in(argv), ranks))


if __name__ == "__main__":
    run_main(run)
