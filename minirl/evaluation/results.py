"""What an evaluation found, counted under its protocol, and the file that keeps it.

    Trajectories --result_of--> Results --summary--> numbers with intervals --> you
                                    |
                              write_results: one JSON file, written again after every episode

Stands behind evaluations. The file holds all that is needed to repeat one: config, protocol and its rule,
versions, seeds, and one row per task and seed. It is renamed into place, so it is valid whenever a run is
interrupted, and the next run goes on from it. Equal results give equal bytes, but for the part "timings".

OpenWebRL, section 4: the official success rate, and the success rate without aborted tasks. Intervals, which
the papers do not give, are Wilson's over tasks: a task with several seeds is still one task, with its
episodes' mean. A mean over sites has the interval of Zou and Donner (Statistics in Medicine 27, 2008), which
adds the squared distances between the sites' rates and their Wilson bounds.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from math import fsum, isfinite, sqrt
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minirl.benchmarks.protocols import Protocol
from minirl.evaluation.statistics import wilson
from minirl.run_folder import write_atomic
from minirl.types import Stop, Trajectory

PACKAGES = ("minirl", "torch", "transformers", "playwright", "openai", "vllm")  # those that shape a result
LEVELS = ("easy", "medium", "hard")


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
    seconds: float = 0.0
    cost: float = 0.0  # dollars: agent and judge, where they are paid for
    reason: str = ""  # the judge's, or why there is no verdict


@dataclass(frozen=True)
class Evaluation:
    """What must be the same to get the same results. `config` is plain JSON data."""

    protocol: str
    rule: str
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Rate:
    """A success rate, 0 to 1, with its 95% interval; 0 in (0, 1) if there are no episodes."""

    rate: float
    low: float
    high: float
    successes: int
    episodes: int


@dataclass(frozen=True)
class Row:
    """A site, or a difficulty: the success rate with aborted episodes as failures, and without them."""

    name: str
    all_tasks: Rate
    without_aborted: Rate


@dataclass(frozen=True)
class Summary:
    protocol: str
    rule: str
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


# ---- One episode ------------------------------------------------------------------------------------


def result_of(trajectory: Trajectory) -> Result:
    """An episode as a row; `member` is its seed. The reason is that of whatever decided on it last."""
    task, turns, state = trajectory.task, trajectory.turns, trajectory.final_state
    reason = (trajectory.error.strip().splitlines() or [""])[-1]
    if not task.goal or task.goal.get("kind") == "webarena":  # a judge's words, or what the rules found
        reason = reason or str(state.get("rationale") or state.get("reason") or "")
    return Result(
        task=task.id,
        stop=trajectory.stop,
        success=trajectory.success,
        seed=trajectory.member,
        site=str(task.meta.get("site") or urlsplit(task.start_url).hostname or ""),
        difficulty="" if (level := task.meta.get("difficulty")) is None else str(level),
        steps=len(turns),
        prompt_tokens=sum(turn.shared + len(turn.branch) or turn.counted[0] for turn in turns),
        response_tokens=sum(len(turn.response_ids) or turn.counted[1] for turn in turns),
        seconds=trajectory.seconds,
        cost=trajectory.dollars,
        reason=reason,
    )


# ---- Counting --------------------------------------------------------------------------------------


def summary(results: Sequence[Result], protocol: Protocol) -> Summary:
    """The numbers of an evaluation. ValueError if a result is from a site that the protocol leaves out."""
    assert len({(r.task, r.seed) for r in results}) == len(results), "a task and seed occur twice"
    results = sorted(results, key=_place)
    for r in results:
        if protocol.sites and r.site not in protocol.sites:
            raise ValueError(f"{r.task}: protocol {protocol.name} leaves out the site {r.site!r}")
    valid = [r for r in results if r.stop.is_agent_fault]
    everything, without = _rate(results, protocol), _rate(valid, protocol)
    if protocol.average == "macro":
        everything, without = _macro(results, protocol), _macro(valid, protocol)
    n = max(len(valid), 1)
    return Summary(
        protocol=protocol.name,
        rule=protocol.rule,
        success=everything if protocol.aborted == "fail" else without,
        all_tasks=everything,
        without_aborted=without,
        tasks=len({r.task for r in results}),
        aborted=len(results) - len(valid),
        sites=_rows([(r.site, r) for r in results], protocol),
        difficulties=_rows([(r.difficulty, r) for r in results], protocol),
        steps=sum(r.steps for r in valid) / n,
        prompt_tokens=sum(r.prompt_tokens for r in valid) / n,
        response_tokens=sum(r.response_tokens for r in valid) / n,
        cost=fsum(r.cost for r in results),
    )


def by_task(results: Sequence[Result], protocol: Protocol) -> dict[str, list[bool]]:
    """Success per task and seed of what the protocol counts, for `minirl.evaluation.compare.paired`."""
    tasks: dict[str, list[bool]] = {}
    for r in sorted(results, key=_place):
        if protocol.counts(r.stop):
            tasks.setdefault(r.task, []).append(_succeeds(r, protocol))
    return tasks


def _succeeds(r: Result, protocol: Protocol) -> bool:
    return r.success and r.stop in protocol.succeeds_by


def _rate(results: Sequence[Result], protocol: Protocol) -> Rate:
    """Over episodes; the interval is that of so many tasks."""
    successes, n, tasks = (
        sum(_succeeds(r, protocol) for r in results),
        len(results),
        len({r.task for r in results}),
    )
    return Rate(successes / max(n, 1), *wilson(successes * tasks / max(n, 1), tasks), successes, n)


def _macro(results: Sequence[Result], protocol: Protocol) -> Rate:
    """The mean of the sites' rates; a site of which nothing is left is not in it."""
    rates = [
        _rate([r for r in results if r.site == site], protocol) for site in sorted({r.site for r in results})
    ]
    if not rates:
        return _rate([], protocol)
    k = len(rates)
    mean = fsum(r.rate for r in rates) / k
    below = sqrt(fsum((r.rate - r.low) ** 2 for r in rates)) / k
    above = sqrt(fsum((r.high - r.rate) ** 2 for r in rates)) / k
    successes, n = sum(r.successes for r in rates), sum(r.episodes for r in rates)
    return Rate(mean, max(0.0, mean - below), min(1.0, mean + above), successes, n)


def _rows(named: Sequence[tuple[str, Result]], protocol: Protocol) -> tuple[Row, ...]:
    """One row per name; results without one are in none."""
    rows = []
    for name in sorted({name for name, _ in named if name}, key=_level):
        results = [r for its_name, r in named if its_name == name]
        valid = [r for r in results if r.stop.is_agent_fault]
        rows.append(Row(name, _rate(results, protocol), _rate(valid, protocol)))
    return tuple(rows)


def _level(name: str) -> tuple[int, int, str]:
    """easy before medium before hard, numbers by size, and then what is left by the alphabet."""
    if name in LEVELS:
        return 0, LEVELS.index(name), name
    return (1, int(name), name) if name.isascii() and name.isdigit() else (2, 0, name)


def _place(r: Result) -> tuple[str, int]:
    return r.task, r.seed


# ---- The file --------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Of Python and of the packages that shape a result, where they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_results(path: Path, evaluation: Evaluation, results: Sequence[Result]) -> None:
    """Adds results to the file, or makes it. What is there stays, unless its task and seed are given again.
    ValueError if the file holds another evaluation, or can't be read."""
    kept: list[Result] = []
    if path.exists():
        earlier, kept = read_results(path)
        old, new = json.loads(_json(asdict(earlier))), json.loads(_json(asdict(evaluation)))
        other = [name for name in old if old[name] != new[name]]
        if other:
            differs = " and ".join(other)
            raise ValueError(f"{path} holds an evaluation that differs in {differs}; choose another file")
    rows = {_place(r): r for r in [*kept, *results]}
    ordered = [rows[place] for place in sorted(rows)]
    lines = [_json({name: v for name, v in _record(r).items() if name != "seconds"}) for r in ordered]
    timings = [_json([r.task, r.seed, float(r.seconds)]) for r in ordered]
    write_atomic(path, _document(evaluation, lines, timings).encode())


def read_results(path: Path) -> tuple[Evaluation, list[Result]]:
    """The evaluation, and its results by task and seed. ValueError names the file and what is malformed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"results {path} can't be read: {error}") from None
    try:
        evaluation = _evaluation(_part(data, "evaluation", dict))
        seconds = {}
        for timing in _part(data, "timings", list):
            is_timing = isinstance(timing, list) and list(map(type, timing)) == [str, int, float]
            if not is_timing or not isfinite(timing[2]):
                raise ValueError("a timing must be a task, a seed and seconds")
            seconds[timing[0], timing[1]] = timing[2]
        results = []
        for number, row in enumerate(_part(data, "results", list), 1):
            results.append(_result(row, seconds, f"result {number}"))
        if len({_place(r) for r in results}) < len(results):
            raise ValueError("a task and seed occur twice")
    except ValueError as problem:
        raise ValueError(f"results {path}: {problem}") from None
    return evaluation, sorted(results, key=_place)


def _document(evaluation: Evaluation, lines: Sequence[str], timings: Sequence[str]) -> str:
    """A row per line, so that two files can be compared by eye."""
    rows, times = (",\n".join(part) for part in (lines, timings))
    head = _json(asdict(evaluation))
    return f'{{"evaluation": {head},\n"results": [\n{rows}\n],\n"timings": [\n{times}\n]}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _record(r: Result) -> dict[str, Any]:
    # 0 is a sum of no costs too, and would be read back as a whole number
    return {**vars(r), "stop": r.stop.value, "cost": float(r.cost)}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _part(data: Any, name: str, kind: type) -> Any:
    if not isinstance(data, dict) or not isinstance(data.get(name), kind):
        raise ValueError(f"the part {name!r} is missing or not {'a list' if kind is list else 'an object'}")
    return data[name]


def _evaluation(data: dict[str, Any]) -> Evaluation:
    seeds = data.get("seeds")
    is_text = all(isinstance(data.get(name), str) for name in ("protocol", "rule"))
    is_made = all(isinstance(data.get(name), dict) for name in ("config", "versions"))
    is_seeded = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    if not (is_text and is_made and is_seeded and set(data) == set(_names(Evaluation))):
        raise ValueError(
            f"the evaluation must have the fields {', '.join(_names(Evaluation))}, each of its type"
        )
    return Evaluation(**{**data, "seeds": tuple(seeds)})


def _result(row: Any, seconds: Mapping[tuple[str, int], float], where: str) -> Result:
    usual = _record(Result("", Stop.DONE, False))
    wanted = {name: type(value) for name, value in usual.items() if name != "seconds"}
    if not isinstance(row, dict) or set(row) != set(wanted):
        raise ValueError(f"{where} must have the fields {', '.join(wanted)}")
    for name, kind in wanted.items():
        if type(row[name]) is not kind or kind is float and not isfinite(row[name]):
            raise ValueError(f"{where}: the field {name!r} must be of type {kind.__name__}")
    if row["stop"] not in {stop.value for stop in Stop}:
        raise ValueError(f"{where}: the field 'stop' must be one of {', '.join(stop.value for stop in Stop)}")
    return Result(**{**row, "stop": Stop(row["stop"])}, seconds=seconds.get((row["task"], row["seed"]), 0.0))


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]
