"""Count an evaluation's results under its protocol, and keep them in a file.

    Trajectories --result_of--> Results --summary--> numbers with intervals, or results-LABEL.json

The file holds all that is needed to repeat an evaluation. OpenWebRL, section 4: the official success rate,
and the one without aborted tasks. Intervals, which the papers do not give, are Wilson's over tasks; that of
a mean over sites is Zou and Donner's (Statistics in Medicine 27, 2008).
"""

import contextlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from math import fsum, sqrt
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from pydantic import BaseModel, FiniteFloat, TypeAdapter
from pydantic.dataclasses import dataclass

from minirl.benchmarks.protocols import Protocol
from minirl.judges.intervals import clustered_wilson
from minirl.run_folder import read_as, write_atomic
from minirl.types import GRADED, Stop, Trajectory

PACKAGES = ("minirl", "torch", "transformers", "playwright", "openai", "vllm")  # those that shape a result
LEVELS = {"first": 0, "easy": 1, "medium": 2, "hard": 3}


@dataclass(frozen=True)
class Result:
    """One episode of an evaluation. `success` is the judge's word; the protocol may not let it count."""

    task: str
    stop: Stop
    success: bool
    seed: int = 0
    site: str = ""
    difficulty: str = ""
    steps: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    cost: FiniteFloat = 0.0  # dollars, of agent and judge
    reason: str = ""  # the judge's, or why there is no verdict
    widgets: tuple[str, ...] = ()  # that a task of the sites' benchmark takes

    @property
    def place(self) -> tuple[str, int]:
        return self.task, self.seed


@dataclass(frozen=True)
class Evaluation:
    """The conditions that give the same results again. `config` is plain JSON data."""

    protocol: str
    rule: str
    config: dict[str, Any]
    versions: dict[str, str]
    seeds: tuple[int, ...] = (0,)


class ResultsFile(BaseModel):
    evaluation: Evaluation
    results: list[Result]


class Rate(NamedTuple):
    """A success rate, 0 to 1, with its 95% interval; 0 in (0, 1) if there are no episodes."""

    rate: float
    low: float
    high: float
    successes: int
    episodes: int

    @property
    def cells(self) -> tuple[str, str, str]:
        share = f"{self.rate:.1%}" if self.episodes else "-"
        return share, f"{self.low:.1%} to {self.high:.1%}", str(self.episodes)


class Row(NamedTuple):
    """A site, a difficulty, or all: the success rate with aborted episodes as failures, and without them."""

    name: str
    all_tasks: Rate
    without_aborted: Rate
    success: Rate  # what the protocol reports: one of these
    blocked: Rate  # the share of all episodes that failed before a page that keeps visitors out


class Paired(NamedTuple):
    """How much better the second agent is than the first: `difference` with its interval [`low`, `high`]."""

    tasks: int  # that both have met
    first: float  # success rates on them, 0 to 1
    second: float
    difference: float  # second - first
    low: float
    high: float
    better: int  # tasks that the second solves more often
    worse: int
    unpaired: int  # tasks that only one has met; left out


def result_of(trajectory: Trajectory) -> Result:
    """Return an episode as a row; its reason is the error's, else the judge's or the task's own rules'."""
    task, turns, verdict = trajectory.task, trajectory.turns, trajectory.verdict
    reason = (trajectory.error.strip().splitlines() or [""])[-1]
    if verdict is not None and not task.goal:
        reason = reason or verdict.rationale
    return Result(
        task=task.id,
        stop=trajectory.stop,
        success=trajectory.success,
        seed=trajectory.member,
        site=task.site,
        difficulty=str(task.meta.get("difficulty", task.meta.get("level", ""))),
        steps=len(turns),
        prompt_tokens=sum(turn.shared + len(turn.branch) or turn.counted[0] for turn in turns),
        response_tokens=sum(len(turn.response_ids) or turn.counted[1] for turn in turns),
        cost=trajectory.dollars,
        reason=reason or str(trajectory.final_state.get("reason") or ""),
        widgets=tuple(task.meta.get("widgets", ())),
    )


def summary(results: Sequence[Result], protocol: Protocol) -> Row:
    """Return the rates of all episodes, or the means of the sites' rates."""
    assert len({r.place for r in results}) == len(results), "a task and seed occur twice"
    if protocol.average == "micro":
        return row_of("all", results, protocol)
    sites = rows_by("site", results, protocol)
    return Row("all", *(macro_rate([getattr(site, field) for site in sites]) for field in Row._fields[1:]))


def by_task(results: Sequence[Result], protocol: Protocol) -> dict[str, list[bool]]:
    """Return success per task and seed of the episodes that the protocol counts."""
    tasks: dict[str, list[bool]] = {}
    for r in sorted(results, key=lambda r: r.place):
        if protocol.counts(r.stop):
            tasks.setdefault(r.task, []).append(r.success and r.stop in GRADED[protocol.after])
    return tasks


def paired(first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]]) -> Paired:
    """Return the difference of success rates on the tasks in both, and its 95% interval. A task with several
    seeds counts once, with its mean. ValueError if no task is in both.

    Agresti and Min, Statistics in Medicine 24 (2005): half a pair is added to each of the four outcomes
    (both, none, only first, only second), then the normal interval of a mean of paired differences is taken.
    """
    common = sorted(task for task in first.keys() & second.keys() if first[task] and second[task])
    if not common:
        raise ValueError("the two evaluations have no task in common; compare evaluations of the same tasks")
    ours, theirs = ([mean(map(int, side[task])) for task in common] for side in (first, second))
    d = [b - a for a, b in zip(ours, theirs, strict=True)]
    n = len(common)
    centre = fsum(d) / (n + 2)
    half = 1.96 * sqrt(((fsum(x * x for x in d) + 1) / (n + 2) - centre * centre) / (n + 2))
    rates, interval = (fsum(ours) / n, fsum(theirs) / n), (max(-1.0, centre - half), min(1.0, centre + half))
    won, lost = sum(x > 0 for x in d), sum(x < 0 for x in d)
    return Paired(n, *rates, fsum(d) / n, *interval, won, lost, len(first.keys() | second.keys()) - n)


def rate_of(results: Sequence[Result], holds: Callable[[Result], bool]) -> Rate:
    """Return the share of episodes of which something holds; its interval is that of so many tasks."""
    count, n, tasks = sum(map(holds, results)), len(results), len({r.task for r in results})
    return Rate(count / max(n, 1), *clustered_wilson(count, n, tasks), count, n)


def macro_rate(rates: Sequence[Rate]) -> Rate:
    """Return the mean of the sites' rates; a site without episodes is not in it."""
    rates = [rate for rate in rates if rate.episodes] or [Rate(0.0, 0.0, 1.0, 0, 0)]
    average = fsum(r.rate for r in rates) / len(rates)
    # Zou and Donner: variances of the sites, recovered from their own bounds on either side, add up
    below = sqrt(fsum((r.rate - r.low) ** 2 for r in rates)) / len(rates)
    above = sqrt(fsum((r.high - r.rate) ** 2 for r in rates)) / len(rates)
    successes, n = sum(r.successes for r in rates), sum(r.episodes for r in rates)
    return Rate(average, max(0.0, average - below), min(1.0, average + above), successes, n)


def row_of(name: str, results: Sequence[Result], protocol: Protocol) -> Row:
    splits = results, [r for r in results if r.stop.is_agent_fault]
    graded = GRADED[protocol.after]
    everything, valid = (rate_of(some, lambda r: r.success and r.stop in graded) for some in splits)
    blocked = rate_of(results, lambda r: r.stop is Stop.BLOCKED)
    return Row(name, everything, valid, everything if protocol.aborted == "fail" else valid, blocked)


def rows_by(field: str, results: Sequence[Result], protocol: Protocol) -> list[Row]:
    """Return one row per site, difficulty (easy, medium and hard, then the rest), or widget, of which a task
    may take several."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        value = getattr(r, field)
        for name in value if isinstance(value, tuple) else (value,):
            groups.setdefault(name, []).append(r)
    names = sorted(groups.keys() - {""}, key=lambda name: (LEVELS.get(name, 4), name.rjust(2)))  # " 2", "10"
    return [row_of(name, groups[name], protocol) for name in names]


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that shape a result and are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write_results(path: Path, evaluation: Evaluation, results: Sequence[Result]) -> None:
    """Write the file anew, by task and seed, a row per line: equal results give equal bytes."""
    rows = [asdict(r) | {"stop": r.stop.value} for r in sorted(results, key=lambda r: r.place)]
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    head = json.dumps(asdict(evaluation), sort_keys=True)
    write_atomic(path, f'{{"evaluation": {head},\n"results": [\n{lines}\n]}}\n'.encode())


def read_results(path: Path) -> tuple[Evaluation, list[Result]]:
    """Return the evaluation, and its results by task and seed. ValueError says where a file is malformed."""
    file = read_as(path, TypeAdapter(ResultsFile), f"results {path} can't be read")
    return file.evaluation, sorted(file.results, key=lambda r: r.place)
