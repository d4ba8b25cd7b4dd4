"""Measure the success rate of a checkpoint on a file of tasks, with its interval; or compare two of them.

    python eval.py tiny --name second-try    the newest checkpoint of runs/second-try, by default runs/tiny
    python eval.py --tasks FILE --limit 3    other tasks than those the run held out
    python eval.py RECIPE --tasks FILE --protocol webvoyager-official --seeds 0 1 2   as a paper evaluates
    python eval.py --compare A.json B.json   two evaluations, task by task

    checkpoint --one episode per task and seed--> trajectories --ledger--> results --tables--> you

A run is evaluated as it was trained: its agent, browser, limits, sampling and grading hold where neither a
protocol nor a flag says otherwise. It is only read: evaluations gather in runs/NAME-eval. The same command
goes on after an interruption, and tries aborted episodes again with --retry. OpenWebRL, section 5, appendices
D and E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minirl.cli.command_line import check, read_flags, recipe_name, run_async, run_main
from minirl.cli.report import write_report
from minirl.console import progress, say
from minirl.evaluation import failures, resume, tables
from minirl.evaluation.results import RateRow
from minirl.recipes import LIST, RECIPES
from minirl.run_folder import Run, state_of
from minirl.types import Stop, Task

if TYPE_CHECKING:
    from minirl.distributed import Ranks
    from minirl.experiment import Experiment


def read_config(argv: Sequence[str]) -> resume.EvalScriptConfig:
    """Return the settings of `RECIPE [flags]`. ValueError for flags that can't be understood or can't be."""
    name, flags = recipe_name(argv, RECIPES)
    parse = partial(read_flags, flags=flags, prog=f"eval.py {name}", about=f"{__doc__}{LIST}")
    config = resume.resolve(RECIPES[name](), parse)
    if config.warm_start not in ("sft", "none"):
        raise ValueError(f"eval.py starts nothing: evaluate it with --model.path {config.warm_start}")
    if config.plan or config.resume:
        raise ValueError("--plan and --resume are train.py's; eval.py goes on by itself where it was cut off")
    if not config.compare:
        check(config)
    return config


async def main(config: resume.EvalScriptConfig, ranks: Ranks) -> None:
    from minirl.experiment import open_experiment

    unlike = resume.unlike_run(config)
    experiment = open_experiment(config, ranks)
    protocol = tables.protocol_or_none(config.protocol, config.reward.after)
    config = replace(config, model=experiment.config.model)
    tasks = resume.select_tasks(config, experiment.tasks.heldout)
    if not tasks:
        raise ValueError("there are no tasks to evaluate on: give --tasks FILE")
    experiment.tasks = replace(experiment.tasks, heldout=tasks)
    say(f"evaluating {resume.subject_of(config)} on {len(tasks)} tasks")
    if unlike:
        say(f"unlike the run: {', '.join(unlike)}")

    # read now: training may have replaced the checkpoint when the episodes end
    step = state_of(Path(resume.subject_of(config))).get("step", 0)
    ledger = resume.open_ledger(config, tasks, experiment.run, ranks, protocol.rule)
    results = ledger.collect()
    missing = ledger.missing(results, config.retry)
    if results:
        say(f"{len(ledger.places) - len(missing)} episodes are in {ledger.path}; delete it to begin again")
    if missing:
        await attempt(experiment, ledger, missing)
        results = ledger.collect()

    score = tables.show(results, protocol)
    if config.success_within:
        tables.curve(results, config.success_within, protocol)
    if ranks.is_main:
        record(experiment, ledger.label, score, config.protocol, step)
    say(f"results: {ledger.path}\nreport: {experiment.run.report_path}")
    if not score.without_aborted.episodes:  # status 1: a script must not take this for a result
        raise SystemExit(f"eval.py: nothing was measured; the first episode: {results[0].reason}")


async def attempt(experiment: Experiment, ledger: resume.Ledger, missing: Sequence[tuple[Task, int]]) -> None:
    """Run an episode per task and seed. Samples depend on these, the config's seed and the weights."""
    from minirl.browser.servers import reset_sites

    await reset_sites(experiment)
    steps = experiment.config.eval.max_steps
    async with experiment.worker() as worker:
        with progress("evaluating", len(missing)) as meter:
            await worker.evaluate(missing, "eval", steps, meter.reach, ledger.add)


def record(experiment: Experiment, label: str, score: RateRow, protocol: str, step: int) -> None:
    """Add the numbers of the checkpoint of `step`, why episodes failed and the phrases of their turns to the
    folder and its report."""
    trajectories = experiment.run.load_trajectories(label)
    experiment.run.add_eval(
        label,
        success=score.success.rate,
        low=score.success.low,
        high=score.success.high,
        n=score.success.episodes,
        step=step,
        invalid=score.all_tasks.episodes - score.without_aborted.episodes,
        blocked=sum(trajectory.stop is Stop.BLOCKED for trajectory in trajectories),
        checkpoint=resume.subject_of(experiment.config),
        tasks=experiment.config.task.heldout,
        protocol=protocol,
        errors=failures.error_rows(trajectories),
        proxies=failures.proxy_rows(trajectories),
    )
    write_report(experiment.run.root)


def run(argv: Sequence[str]) -> None:
    config = read_config(argv)
    if config.compare:
        tables.compare(*config.compare)
        return
    from minirl.distributed import open_ranks  # torch: --help and mistakes need not wait for it

    with open_ranks(config.browser.episode_seconds) as ranks, Run(config.run_dir, ranks.is_main).held():
        run_async(main(ranks.broadcast(config), ranks))


if __name__ == "__main__":
    run_main(run)
