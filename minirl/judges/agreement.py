"""How far a judge can be trusted: its verdicts against labels that are taken for the truth.

    trajectories with labels --a judge--> pairs --score--> rows --show--> tables

Stands beside the loop, before a judge gives rewards. The labels are people's (agent_reward_bench.py:
OpenWebRL, appendix C.2 and table 9), a stronger judge's (section 5.3 and table 3: 500 episodes labelled by
GPT-4.1), or those of a site that can be asked for its state. A success is the positive class: precision is
low where a judge lets failures pass, which a policy learns to exploit. Deviation: an answer without a verdict
is no failure; it is counted apart, and is in no rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from rich.box import SIMPLE
from rich.text import Text

from minirl.console import CONSOLE, new_table
from minirl.intervals import clustered_wilson
from minirl.types import Trajectory, Verdict

# Which episodes a row counts; part: the held-out ones that are unlike the judge's training in one way
Kind = Literal["overall", "part", "benchmark", "site"]
PARTS: tuple[Kind, ...] = ("part", "benchmark", "site")


@dataclass(frozen=True)
class Pair:
    """One episode and what the judge said of it (None: nothing that could be used); a line of scores."""

    truth: bool
    verdict: bool | None
    benchmark: str = ""
    site: str = ""
    task: str = ""
    part: str = ""  # of a held-out label, what is new about it
    judge: str = ""
    name: str = ""  # of the episode, the same in every scoring
    rationale: str = ""
    error: str = ""


def pair_of(trajectory: Trajectory, truth: bool, verdict: Verdict, **names: str) -> Pair:
    """Return a judged trajectory; a site that the task's meta does not name is its first page's host."""
    task = trajectory.task
    benchmark = str(task.meta.get("benchmark") or "")
    site = str(task.meta.get("site") or urlsplit(task.start_url).hostname or "")
    said = {"rationale": verdict.rationale, "error": verdict.error}
    return Pair(truth, verdict.success, benchmark, site, task.id, **said, **names)


@dataclass(frozen=True)
class Row:
    """Counts, and rates from 0 to 1 (None of nothing); episodes without a verdict are in no rate."""

    kind: Kind
    name: str
    n: int  # episodes with a verdict
    invalid: int  # and without
    interval: tuple[float, float]  # of the accuracy: 95%, as wide as that of so many tasks
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    base_rate: float | None  # how many succeeded: a judge that always says so is right in as many
    passed: float | None  # how many the judge lets pass


def count(kind: Kind, name: str, pairs: Sequence[Pair]) -> Row:
    """Return the row of these episodes.

    >>> row = count("overall", "all", [Pair(True, True), Pair(True, False), Pair(False, True)])
    >>> row.precision, row.recall, row.n
    (0.5, 0.5, 3)
    """
    counts = Counter((pair.truth, pair.verdict) for pair in pairs)
    hits, succeeded = counts[True, True], counts[True, True] + counts[True, False]
    agreed, passed = hits + counts[False, False], hits + counts[False, True]
    n = succeeded + counts[False, True] + counts[False, False]
    tasks = len({pair.task for pair in pairs if pair.verdict is not None} - {""})
    interval = clustered_wilson(agreed, n, tasks or n)
    # in the order of the fields: accuracy, precision, recall, F1, base rate, passed
    rates = ((agreed, n), (hits, passed), (hits, succeeded), (2 * hits, succeeded + passed), (succeeded, n))
    shares = [number / of if of else None for number, of in (*rates, (passed, n))]
    return Row(kind, name, n, len(pairs) - n, interval, *shares)


def score(pairs: Sequence[Pair]) -> list[Row]:
    """Return the row of all, then one for each known held-out part, benchmark and site by name."""
    rows = [count("overall", "all", pairs)]
    for kind in PARTS:
        for name in sorted({getattr(pair, kind) for pair in pairs} - {""}):
            rows.append(count(kind, name, [pair for pair in pairs if getattr(pair, kind) == name]))
    return rows


# Headings and the fields below them; short ones where a site's name needs room on 80 columns
RATES = {"precision": "precision", "recall": "recall", "F1": "f1"}
JUDGES = {"accuracy": "accuracy", **RATES, "95%": "interval", "n": "n", "inv.": "invalid"}
SIZES = {"n": "n", "inv.": "invalid", "truth": "base_rate", "passed": "passed"}
SHORT = SIZES | {"acc.": "accuracy", "95%": "interval", "prec.": "precision", "rec.": "recall", "F1": "f1"}
STYLE: dict[str, Any] = {"box": SIMPLE, "pad_edge": False}


def show(scores: Mapping[str, Sequence[Row]]) -> None:
    """Print what `score` returned for each judge, in percent, as the paper's tables 3 (with the accuracy's
    interval) and 9 (with the precision on each benchmark), and each judge's parts."""
    names = sorted({row.name for rows in scores.values() for row in rows if row.kind == "benchmark"})
    agreement = new_table("judge", *JUDGES, title="Agreement", **STYLE)
    benchmarks = new_table("judge", *RATES, *names, title="Precision by benchmark", **STYLE)
    for judge, (overall, *parts) in scores.items():
        agreement.add_row(Text(judge), *cells(overall, JUDGES))
        precision = {row.name: cell(row.precision) for row in parts if row.kind == "benchmark"}
        own = [precision.get(name, cell(None)) for name in names]
        benchmarks.add_row(Text(judge), *cells(overall, RATES), *own)
    CONSOLE.print(agreement)
    if names:
        CONSOLE.print(benchmarks)
    for judge, rows in scores.items():
        table = new_table("part", *SHORT, title=Text(judge), **STYLE)
        for row, below in zip(rows, [*rows[1:], rows[-1]], strict=True):
            table.add_row(Text(row.name), *cells(row, SHORT), end_section=row.kind != below.kind)
        if len(rows) > 1:
            CONSOLE.print(table)


def cells(row: Row, columns: Mapping[str, str]) -> list[str]:
    return [cell(getattr(row, field)) for field in columns.values()]


def cell(value: float | int | tuple[float, float] | None) -> str:
    """Return a number of episodes as it is, and a rate or an interval in percent: 12, 89.8, 40–89."""
    if isinstance(value, tuple):
        return "–".join(f"{100 * bound:.0f}" for bound in value)
    if isinstance(value, float):
        return f"{100 * value:.1f}"
    return "–" if value is None else str(value)
