"""Count an evaluation's results under its protocol, and keep them in a file.

    Trajectories --result_of--> Results --summary--> numbers with intervals, or results-LABEL.json

The file holds all that is needed to repeat an evaluation: config, protocol and its rule, versions, seeds, and
one row per task and seed. Equal results give equal bytes, but for the part "timings".

OpenWebRL, section 4: the official success rate, and the one without aborted tasks. Intervals, which the
papers do not give, are Wilson's over tasks; that of a mean over sites is Zou and Donner's (Statistics in
Medicine 27, 2008).
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from math import fsum, sqrt
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, FiniteFloat, Strict, StrictBool, StrictInt, ValidationError
from pydantic.dataclasses import dataclass

from minirl.benchmarks.protocols import Protocol
from minirl.intervals import clustered_wilson
from minirl.run_folder import differences, write_atomic
from minirl.types import Stop, Trajectory

PACKAGES = ("minirl", "torch", "transformers", "playwright", "openai", "vllm")  # those that shape a result
LEVELS = ("easy", "medium", "hard")
Number = Annotated[FiniteFloat, Strict()]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Result:
    """One episode of an evaluation. `success` is the judge's word; the protocol may not let it count."""

    task: str
    stop: Stop
    success: StrictBool
    seed: StrictInt = 0
    site: str = ""
    difficulty: str = ""
    steps: StrictInt = 0
    prompt_tokens: StrictInt = 0
    response_tokens: StrictInt = 0
    seconds: Number = 0.0
    cost: Number = 0.0  # dollars, of agent and judge
    reason: str = ""  # the judge's, or why there is no verdict

    @property
    def place(self) -> tuple[str, int]:
        return self.task, self.seed


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Evaluation:
    """The conditions that give the same results again. `config` is plain JSON data."""

    protocol: str
    rule: str
    config: dict[str, Any]
    versions: dict[str, str]
    seeds: tuple[StrictInt, ...] = (0,)


class ResultsFile(BaseModel, extra="forbid"):
    evaluation: Evaluation
    results: list[Result]
    timings: list[tuple[str, StrictInt, Number]]  # task, seed, seconds


class Rate(NamedTuple):
    """A success rate, 0 to 1, with its 95% interval; 0 in (0, 1) if there are no episodes."""

    rate: float
    low: float
    high: float
    successes: int
    episodes: int


class Row(NamedTuple):
    """A site, or a difficulty: the success rate with aborted episodes as failures, and without them."""

    name: str
    all_tasks: Rate
    without_aborted: Rate


class Summary(NamedTuple):
    """An evaluation in numbers."""

    success: Rate  # what the protocol reports: one of the next two
    all_tasks: Rate
    without_aborted: Rate
    tasks: int
    aborted: int  # episodes
    sites: tuple[Row, ...]
    difficulties: tuple[Row, ...]
    steps: float  # means over the episodes that were not aborted
    prompt_tokens: float
    response_tokens: float
    cost: float  # in all, aborted episodes included


def result_of(trajectory: Trajectory) -> Result:
    """Return an episode as a row; `member` is its seed. The reason is that of an error, of the judge if the
    task has no rules of its own, or of those rules."""
    task, turns, verdict = trajectory.task, trajectory.turns, trajectory.verdict
    difficulty = task.meta.get("difficulty")
    reason = (trajectory.error.strip().splitlines() or [""])[-1]
    if verdict is not None and not task.goal:
        reason = reason or verdict.rationale
    return Result(
        task=task.id,
        stop=trajectory.stop,
        success=trajectory.success,
        seed=trajectory.member,
        site=str(task.meta.get("site") or urlsplit(task.start_url).hostname or ""),
        difficulty="" if difficulty is None else str(difficulty),
        steps=len(turns),
        prompt_tokens=sum(turn.shared + len(turn.branch) or turn.counted[0] for turn in turns),
        response_tokens=sum(len(turn.response_ids) or turn.counted[1] for turn in turns),
        seconds=trajectory.seconds,
        cost=trajectory.dollars,
        reason=reason or str(trajectory.final_state.get("reason") or ""),
    )


def summary(results: Sequence[Result], protocol: Protocol) -> Summary:
    """Return the numbers of an evaluation. ValueError if the protocol leaves out a result's site."""
    assert len({r.place for r in results}) == len(results), "a task and seed occur twice"
    results = sorted(results, key=lambda r: r.place)
    for r in results:
        if protocol.sites and r.site not in protocol.sites:
            raise ValueError(f"{r.task}: protocol {protocol.name} leaves out the site {r.site!r}")
    rate = macro_rate if protocol.average == "macro" else micro_rate
    valid = [r for r in results if r.stop.is_agent_fault]
    all_tasks, without_aborted = rate(results, protocol), rate(valid, protocol)
    means = {
        name: mean([getattr(r, name) for r in valid] or [0])
        for name in ("steps", "prompt_tokens", "response_tokens")
    }
    return Summary(
        success=all_tasks if protocol.aborted == "fail" else without_aborted,
        all_tasks=all_tasks,
        without_aborted=without_aborted,
        tasks=len({r.task for r in results}),
        aborted=len(results) - len(valid),
        sites=rows_by("site", results, protocol),
        difficulties=rows_by("difficulty", results, protocol),
        cost=fsum(r.cost for r in results),
        **means,
    )


def by_task(results: Sequence[Result], protocol: Protocol) -> dict[str, list[bool]]:
    """Return success per task and seed of the episodes that the protocol counts, for `statistics.paired`."""
    tasks: dict[str, list[bool]] = {}
    for r in sorted(results, key=lambda r: r.place):
        if protocol.counts(r.stop):
            tasks.setdefault(r.task, []).append(r.success and r.stop in protocol.succeeds_by)
    return tasks


def micro_rate(results: Sequence[Result], protocol: Protocol) -> Rate:
    """Return the rate over episodes; its interval is that of so many tasks."""
    successes = sum(r.success and r.stop in protocol.succeeds_by for r in results)
    n, tasks = len(results), len({r.task for r in results})
    return Rate(successes / max(n, 1), *clustered_wilson(successes, n, tasks), successes, n)


def macro_rate(results: Sequence[Result], protocol: Protocol) -> Rate:
    """Return the mean of the sites' rates; a site without episodes is not in it."""
    sites = sorted({r.site for r in results})
    rates = [micro_rate([r for r in results if r.site == site], protocol) for site in sites]
    if not rates:
        return micro_rate([], protocol)
    average = fsum(r.rate for r in rates) / len(rates)
    # Zou and Donner: variances of the sites, recovered from their own bounds on either side, add up
    below = sqrt(fsum((r.rate - r.low) ** 2 for r in rates)) / len(rates)
    above = sqrt(fsum((r.high - r.rate) ** 2 for r in rates)) / len(rates)
    successes, n = sum(r.successes for r in rates), sum(r.episodes for r in rates)
    return Rate(average, max(0.0, average - below), min(1.0, average + above), successes, n)


def rows_by(field: str, results: Sequence[Result], protocol: Protocol) -> tuple[Row, ...]:
    """Return one row per site or difficulty: easy, medium and hard, numbers by size, then the rest."""

    def order(name: str) -> tuple[int, int, str]:
        if name in LEVELS:
            return 0, LEVELS.index(name), name
        return (1, int(name), name) if name.isascii() and name.isdigit() else (2, 0, name)

    rows = []
    for name in sorted({getattr(r, field) for r in results} - {""}, key=order):
        own = [r for r in results if getattr(r, field) == name]
        valid = [r for r in own if r.stop.is_agent_fault]
        rows.append(Row(name, micro_rate(own, protocol), micro_rate(valid, protocol)))
    return tuple(rows)


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that shape a result and are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write_results(path: Path, evaluation: Evaluation, results: Sequence[Result]) -> None:
    """Write the file anew, by task and seed, a row per line, so that two files can be compared by eye."""
    rows = [asdict(r) | {"stop": r.stop.value} for r in sorted(results, key=lambda r: r.place)]
    timings = [[row["task"], row["seed"], row.pop("seconds")] for row in rows]
    to_text = partial(json.dumps, sort_keys=True, allow_nan=False)
    parts = [",\n".join(map(to_text, part)) for part in (rows, timings)]
    head = f'{{"evaluation": {to_text(asdict(evaluation))},\n'
    text = f'{head}"results": [\n{parts[0]}\n],\n"timings": [\n{parts[1]}\n]}}\n'
    write_atomic(path, text.encode())


def read_results(path: Path) -> tuple[Evaluation, list[Result]]:
    """Return the evaluation, and its results by task and seed. ValueError says where a file is malformed."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        # not pydantic's own parser, which refuses half a surrogate pair; a judge's reason may hold one
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        file = ResultsFile.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"results {path}: {first_problem(error)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"results {path} can't be read: {error}") from None
    seconds = {(task, seed): taken for task, seed, taken in file.timings}
    results = {r.place: replace(r, seconds=seconds.get(r.place, 0.0)) for r in file.results}
    if len(results) < len(file.results):
        raise ValueError(f"results {path}: a task and seed occur twice")
    return file.evaluation, [results[place] for place in sorted(results)]


def unlike(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that are not the same, or that only one of the two has."""
    return sorted({name for name, *_ in (*differences(one, two), *differences(two, one))})


def first_problem(error: ValidationError) -> str:
    """Return where pydantic refused something first, and why, in one line."""
    problem = error.errors(include_url=False)[0]
    return ".".join(map(str, problem["loc"])) + ": " + problem["msg"]
