"""How far a judge can be trusted: its verdicts against labels that are taken for the truth.

    labelled trajectories --a judge--> pairs --score--> rows --show--> a table

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
    task: str = ""
    rationale: str = ""
    error: str = ""


def is_success(labelled: Trajectory) -> bool:
    """Return a trajectory's label, which is its own verdict."""
    assert labelled.verdict
    return labelled.verdict.success is True


def pair_of(labelled: Trajectory, verdict: Verdict) -> Pair:
    """Return a trajectory's label beside a judge's verdict."""
    truth = is_success(labelled)
    benchmark = str(labelled.task.meta.get("benchmark") or "")
    return Pair(truth, verdict.success, benchmark, labelled.task.id, verdict.rationale, verdict.error)


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

    @property
    def cells(self) -> list[str]:
        """Return the texts below COLUMNS, rates in percent."""
        rates = (self.accuracy, self.precision, self.recall, self.f1)
        shares = ["–" if rate is None else f"{100 * rate:.1f}" for rate in rates]
        low, high = self.interval
        return [*shares, f"{100 * low:.0f}–{100 * high:.0f}", str(self.n), str(self.invalid)]


# As in table 3; short ones leave room for a benchmark's name on 80 columns
COLUMNS = ("acc.", "prec.", "rec.", "F1", "95%", "n", "inv.")


def score(pairs: Sequence[Pair]) -> list[AgreementRow]:
    """Return the row of all, then one for each known benchmark by name (table 9)."""
    rows = [count("all", pairs)]
    for name in sorted({pair.benchmark for pair in pairs} - {""}):
        rows.append(count(name, [pair for pair in pairs if pair.benchmark == name]))
    return rows


def count(name: str, pairs: Sequence[Pair]) -> AgreementRow:
    judged = [pair for pair in pairs if pair.verdict is not None]
    n = len(judged)
    succeeded = sum(pair.truth for pair in judged)
    passed = sum(pair.verdict is True for pair in judged)
    hits = sum(pair.truth and pair.verdict is True for pair in judged)
    agreed = sum(pair.truth == pair.verdict for pair in judged)
    # Episodes of one task are alike, so the interval is as wide as that of so many tasks
    tasks = {pair.task for pair in judged}
    return AgreementRow(
        name,
        n,
        invalid=len(pairs) - n,
        interval=clustered_wilson(agreed, n, len(tasks)),
        accuracy=rate(agreed, n),
        precision=rate(hits, passed),
        recall=rate(hits, succeeded),
        f1=rate(2 * hits, succeeded + passed),
    )


def rate(number: int, total: int) -> float | None:
    return number / total if total else None


def show(scores: Mapping[str, Sequence[AgreementRow]]) -> None:
    """Print what `score` returned for each judge, in percent: table 3, with the parts below a judge."""
    rows = []
    for judge, (overall, *parts) in scores.items():
        rows.append([judge, *overall.cells])
        rows += [[f"  {part.name}", *part.cells] for part in parts]
    print_table(["judge", *COLUMNS], rows, title="Agreement")
