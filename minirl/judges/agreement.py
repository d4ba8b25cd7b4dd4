"""How far a judge can be trusted: its verdicts against labels that are taken for the truth.

    trajectories with labels --a judge--> pairs --score--> rows --show--> a table

Stands beside the loop, before a judge gives rewards. The labels are people's (OpenWebRL, appendix C.2 and
table 9), a stronger judge's (section 5.3 and table 3), or a site's own. Precision is low where a judge lets
failures pass, which a policy learns to exploit. Deviation: an answer without a verdict is in no rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minirl.console import print_table
from minirl.judges.intervals import clustered_wilson
from minirl.types import Trajectory, Verdict


@dataclass(frozen=True)
class Pair:
    """One episode's label and the judge's verdict (None: it gave none); a line of scores."""

    truth: bool
    verdict: bool | None
    benchmark: str = ""
    site: str = ""
    task: str = ""
    judge: str = ""
    rationale: str = ""
    error: str = ""


def pair_of(trajectory: Trajectory, truth: bool, verdict: Verdict, judge: str = "") -> Pair:
    task = trajectory.task
    return Pair(
        truth,
        verdict.success,
        benchmark=str(task.meta.get("benchmark") or ""),
        site=task.site,
        task=task.id,
        judge=judge,
        rationale=verdict.rationale,
        error=verdict.error,
    )


class AgreementRow(NamedTuple):
    """Counts, and rates from 0 to 1 (None of nothing); episodes without a verdict are in no rate."""

    name: str
    n: int  # episodes with a verdict
    invalid: int  # and without
    interval: tuple[float, float]  # of the accuracy: 95%, as wide as that of so many tasks
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None


# Headings and the fields below them, as in table 3; short ones leave room for a site's name on 80 columns
COLUMNS = {
    "acc.": "accuracy",
    "prec.": "precision",
    "rec.": "recall",
    "F1": "f1",
    "95%": "interval",
    "n": "n",
    "inv.": "invalid",
}


def count(name: str, pairs: Sequence[Pair]) -> AgreementRow:
    judged = [pair for pair in pairs if pair.verdict is not None]
    n = len(judged)
    succeeded = sum(pair.truth for pair in judged)
    passed = sum(pair.verdict is True for pair in judged)
    hits = sum(pair.truth and pair.verdict is True for pair in judged)
    agreed = sum(pair.truth == pair.verdict for pair in judged)
    # Episodes of one task are alike, so the interval is as wide as that of so many tasks
    tasks = {pair.task for pair in judged if pair.task}
    return AgreementRow(
        name,
        n,
        invalid=len(pairs) - n,
        interval=clustered_wilson(agreed, n, len(tasks) or n),
        accuracy=rate(agreed, n),
        precision=rate(hits, passed),
        recall=rate(hits, succeeded),
        f1=rate(2 * hits, succeeded + passed),
    )


def rate(number: int, total: int) -> float | None:
    return number / total if total else None


def score(pairs: Sequence[Pair]) -> list[AgreementRow]:
    """Return the row of all, then one for each known benchmark and site by name."""
    rows = [count("all", pairs)]
    for kind in ("benchmark", "site"):
        names = {getattr(pair, kind) for pair in pairs}
        for name in sorted(names - {""}):
            rows.append(count(name, [pair for pair in pairs if getattr(pair, kind) == name]))
    return rows


def show(scores: Mapping[str, Sequence[AgreementRow]]) -> None:
    """Print what `score` returned for each judge, in percent: table 3, with the parts below a judge."""
    rows = []
    for judge, (overall, *parts) in scores.items():
        rows.append([judge, *cells(overall)])
        rows += [[f"  {part.name}", *cells(part)] for part in parts]
    print_table(["judge", *COLUMNS], rows, title="Agreement")


def cells(row: AgreementRow) -> list[str]:
    return [cell(getattr(row, field)) for field in COLUMNS.values()]


def cell(value: float | int | tuple[float, float] | None) -> str:
    """Return a number of episodes as it is, and a rate or an interval in percent: 12, 89.8, 40–89."""
    if isinstance(value, tuple):
        low, high = value
        return f"{100 * low:.0f}–{100 * high:.0f}"
    if isinstance(value, float):
        return f"{100 * value:.1f}"
    return "–" if value is None else str(value)
