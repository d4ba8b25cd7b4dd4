"""How far a judge can be trusted: its verdicts against labels that are taken for the truth.

    trajectories with labels --a judge--> pairs --score--> rows --show--> a table

Stands beside the loop, before a judge gives rewards. The labels are people's (OpenWebRL, appendix C.2 and
table 9), a stronger judge's (section 5.3 and table 3), or a site's own. Precision is low where a judge lets
failures pass, which a policy learns to exploit. Deviation: an answer without a verdict is in no rate.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.box import SIMPLE

from minirl.console import CONSOLE, new_table
from minirl.judges.intervals import clustered_wilson
from minirl.types import Trajectory, Verdict


@dataclass(frozen=True)
class Pair:
    """One episode and what the judge said of it (None: nothing that could be used); a line of scores."""

    truth: bool
    verdict: bool | None
    benchmark: str = ""
    site: str = ""
    task: str = ""
    judge: str = ""
    rationale: str = ""
    error: str = ""


def pair_of(trajectory: Trajectory, truth: bool, verdict: Verdict, judge: str = "") -> Pair:
    task, said = trajectory.task, (judge, verdict.rationale, verdict.error)
    return Pair(truth, verdict.success, str(task.meta.get("benchmark") or ""), task.site, task.id, *said)


class Row(NamedTuple):
    """Counts, and rates from 0 to 1 (None of nothing); episodes without a verdict are in no rate."""

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


# Headings and the fields below them, as in table 3; short ones leave room for a site's name on 80 columns
COLUMNS = {"acc.": "accuracy", "prec.": "precision", "rec.": "recall", "F1": "f1", "95%": "interval"}
COLUMNS |= {"n": "n", "inv.": "invalid"}


def count(name: str, pairs: Sequence[Pair]) -> Row:
    counts = Counter((pair.truth, pair.verdict) for pair in pairs)
    hits, succeeded = counts[True, True], counts[True, True] + counts[True, False]
    agreed, passed = hits + counts[False, False], hits + counts[False, True]
    n = succeeded + counts[False, True] + counts[False, False]
    tasks = len({pair.task for pair in pairs if pair.verdict is not None} - {""})
    interval = clustered_wilson(agreed, n, tasks or n)
    rates = ((agreed, n), (hits, passed), (hits, succeeded), (2 * hits, succeeded + passed), (succeeded, n))
    shares = [number / of if of else None for number, of in (*rates, (passed, n))]
    return Row(name, n, len(pairs) - n, interval, *shares)


def score(pairs: Sequence[Pair]) -> list[Row]:
    """Return the row of all, then one for each known benchmark and site by name."""
    rows = [count("all", pairs)]
    for kind in ("benchmark", "site"):
        for name in sorted({getattr(pair, kind) for pair in pairs} - {""}):
            rows.append(count(name, [pair for pair in pairs if getattr(pair, kind) == name]))
    return rows


def show(scores: Mapping[str, Sequence[Row]]) -> None:
    """Print what `score` returned for each judge, in percent: table 3, with the parts below a judge."""
    table = new_table("judge", *COLUMNS, title="Agreement", box=SIMPLE, pad_edge=False)
    for judge, (overall, *parts) in scores.items():
        for row in (overall._replace(name=judge), *parts):
            name = row.name if row.name == judge else f"  {row.name}"
            table.add_row(name, *(cell(getattr(row, field)) for field in COLUMNS.values()))
    CONSOLE.print(table)


def cell(value: float | int | tuple[float, float] | None) -> str:
    """Return a number of episodes as it is, and a rate or an interval in percent: 12, 89.8, 40–89."""
    if isinstance(value, tuple):
        return "–".join(f"{100 * bound:.0f}" for bound in value)
    if isinstance(value, float):
        return f"{100 * value:.1f}"
    return "–" if value is None else str(value)
