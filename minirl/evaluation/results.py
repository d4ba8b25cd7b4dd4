"""Count an evaluation's results under its protocol, and keep them in a file.

    Trajectories --result_of--> Results --summary--> numbers with intervals, or results-LABEL.json

The file holds all that is needed to repeat an evaluation. OpenWebRL, section 5: the official success rate,
and the one without aborted tasks. Intervals, which the papers do not give, are Wilson's over tasks; that of
a mean over sites is Zou and Donner's (Statistics in Medicine 27, 2008).
"""

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from math import fsum, sqrt
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from minirl.benchmarks.protocols import Protocol
from minirl.judges.intervals import clustered_wilson
from minirl.run_folder import read_as, write_atomic
from minirl.types import GRADED, Json, Stop, Trajectory

PACKAGES = ("minirl-web", "torch", "transformers", "playwright", "openai", "vllm")  # they shape results
LEVELS = {"first": 0, "easy": 1, "medium": 2, "hard": 3}  # difficulties in their order


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
    response_tokens: int = 0
    length: int = 0  # tokens of the whole conversation
    cost: float = 0.0  # dollars, of agent and judge
    reason: str = ""  # the judge's, or why there is no verdict

    @property
    def place(self) -> tuple[str, int]:
        return self.task, self.seed


@dataclass(frozen=True)
class Evaluation:
    """The conditions that give the same results again. `config` is plain JSON data."""

    protocol: str
    rule: str
    config: Json
    versions: dict[str, str]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class ResultsFile:
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


class RateRow(NamedTuple):
    """A site, a difficulty, or all: the success rate with aborted episodes as failures, and without them."""

    name: str
    all_tasks: Rate
    without_aborted: Rate
    success: Rate  # what the protocol reports: one of these


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
    task = trajectory.task
    turns = trajectory.turns
    error_lines = trajectory.error.strip().splitlines()
    reason = error_lines[-1] if error_lines else ""
    if not reason and trajectory.verdict and not task.goal:
        reason = trajectory.verdict.rationale
    # A served model's turns have no ids: their tokens were counted by the server
    return Result(
        task=task.id,
        stop=trajectory.stop,
        success=trajectory.success,
        seed=trajectory.member,
        site=task.site,
        difficulty=str(task.meta.get("difficulty", task.meta.get("level", ""))),
        steps=len(turns),
        response_tokens=sum(len(turn.response_ids) or turn.counted[1] for turn in turns),
        length=turns[-1].context_tokens or sum(turns[-1].counted) if turns else 0,
        cost=trajectory.dollars,
        reason=reason or str(trajectory.final_state.get("reason") or ""),
    )


def summary(results: Sequence[Result], protocol: Protocol, name: str = "all") -> RateRow:
    """Return the rates of episodes, each task and seed once: of all, of a site, or of a difficulty."""
    valid = [result for result in results if result.stop.is_agent_fault]
    all_tasks = rate_of(results, protocol)
    without_aborted = rate_of(valid, protocol)
    success = all_tasks if protocol.aborted == "fail" else without_aborted
    return RateRow(name, all_tasks, without_aborted, success)


def rate_of(results: Sequence[Result], protocol: Protocol) -> Rate:
    """Return the share of successes, or the mean of the sites' or kinds' shares, as the protocol says."""
    if protocol.average == "micro":
        return micro_rate(results, protocol)
    groups = group_by("difficulty" if protocol.average == "kinds" else "site", results)
    return macro_rate([micro_rate(group, protocol) for group in groups.values()])


def micro_rate(results: Sequence[Result], protocol: Protocol) -> Rate:
    """Return the share of successes; its interval is that of so many tasks."""
    n = len(results)
    count = sum(is_success(result, protocol) for result in results)
    low, high = clustered_wilson(count, n, len({result.task for result in results}))
    return Rate(count / max(n, 1), low, high, count, n)


def macro_rate(sites: Sequence[Rate]) -> Rate:
    """Return the mean of the rates of sites, or kinds, which all have episodes."""
    if not sites:
        return Rate(0.0, 0.0, 1.0, 0, 0)
    n = len(sites)
    average = fmean(site.rate for site in sites)
    # Zou and Donner: variances of the sites, recovered from their own bounds on either side, add up
    below = sqrt(fsum((site.rate - site.low) ** 2 for site in sites)) / n
    above = sqrt(fsum((site.high - site.rate) ** 2 for site in sites)) / n
    return Rate(
        rate=average,
        low=max(0.0, average - below),
        high=min(1.0, average + above),
        successes=sum(site.successes for site in sites),
        episodes=sum(site.episodes for site in sites),
    )


def is_success(result: Result, protocol: Protocol) -> bool:
    return result.success and result.stop in GRADED[protocol.after]


def rows_by(field: str, results: Sequence[Result], protocol: Protocol) -> list[RateRow]:
    """Return one row per site or difficulty: first, easy, medium and hard, then the rest."""
    groups = group_by(field, results)
    names = sorted(groups, key=lambda name: (LEVELS.get(name, len(LEVELS)), name))
    return [summary(groups[name], protocol, name) for name in names]


def group_by(field: str, results: Sequence[Result]) -> dict[str, list[Result]]:
    groups = {}
    for result in results:
        name = getattr(result, field)
        if name:
            groups.setdefault(name, []).append(result)
    return groups


def by_task(results: Sequence[Result], protocol: Protocol) -> dict[str, list[bool]]:
    """Return success per task and seed of the episodes that the protocol counts."""
    tasks = {}
    for result in results:
        if protocol.counts(result.stop):
            tasks.setdefault(result.task, []).append(is_success(result, protocol))
    return tasks


def paired(first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]]) -> Paired:
    """Return the difference of success rates on the tasks in both, and its 95% interval. A task with several
    seeds counts once, with its mean. ValueError if no task is in both.

    Agresti and Min, Statistics in Medicine 24 (2005): half a pair is added to each of the four outcomes
    (both, none, only first, only second), then the normal interval of a mean of paired differences is taken.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        raise ValueError("the two evaluations have no task in common; compare evaluations of the same tasks")
    n = len(common)
    first_rates = [fmean(first[task]) for task in common]
    second_rates = [fmean(second[task]) for task in common]
    differences = [b - a for a, b in zip(first_rates, second_rates, strict=True)]
    # The four halves are two pairs more; their differences are 0, 0, -1 and 1
    centre = fsum(differences) / (n + 2)
    variance = (fsum(d * d for d in differences) + 1) / (n + 2) - centre * centre
    half = 1.96 * sqrt(variance / (n + 2))
    return Paired(
        tasks=n,
        first=fmean(first_rates),
        second=fmean(second_rates),
        difference=fmean(differences),
        low=max(-1.0, centre - half),
        high=min(1.0, centre + half),
        better=sum(d > 0 for d in differences),
        worse=sum(d < 0 for d in differences),
        unpaired=len(first.keys() ^ second.keys()),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that shape a result and are installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def write_results(path: Path, evaluation: Evaluation, results: Sequence[Result]) -> None:
    """Write the file anew, by task and seed."""
    ordered = sorted(results, key=lambda result: result.place)
    content = asdict(ResultsFile(evaluation, ordered))
    write_atomic(path, json.dumps(content, indent=1, default=lambda stop: stop.value).encode())


def read_results(path: Path) -> ResultsFile:
    """Return what `write_results` wrote. ValueError says where a file is malformed."""
    return read_as(path.read_bytes(), TypeAdapter(ResultsFile), f"results {path} can't be read")
