"""A judge's scores, worked out by hand, and the tables that show them."""

from dataclasses import replace

import pytest
from rich.console import Console

from minirl.judges.agreement import Pair, pair_of, score, show
from minirl.judges.intervals import wilson
from minirl.types import Task, Trajectory, Verdict


def pairs(true_pos: int, false_pos: int, false_neg: int, true_neg: int, invalid: int = 0, **where: str):
    """So many pairs, each of a task of its own."""
    made = [((True, True), true_pos), ((False, True), false_pos), ((True, False), false_neg)]
    made += [((False, False), true_neg), ((True, None), invalid)]
    alike = [Pair(*values, **where) for values, count in made for _ in range(count)]
    return [replace(pair, task=f"{where} {n}") for n, pair in enumerate(alike)]


def test_scores_by_hand():
    # 10 judged: right in 4 + 3; precision 4/5; recall 4/6; F1 8/(8 + 1 + 2)
    (row,) = score(pairs(4, 1, 2, 3, invalid=2))
    assert (row.n, row.invalid) == (10, 2)
    assert (row.accuracy, row.precision) == (0.7, 0.8)
    assert row.recall == pytest.approx(2 / 3) and row.f1 == pytest.approx(8 / 11)
    # z^2 = 3.8416: centre (0.7 + 0.19208) / 1.38416 = 0.644492,
    # half 1.96 * sqrt(0.021 + 0.009604) / 1.38416 = 0.247717
    assert row.interval == pytest.approx((0.396775, 0.892209), abs=1e-5) == wilson(7, 10)
    alike = [replace(pair, task=str(i % 5)) for i, pair in enumerate(pairs(4, 1, 2, 3) * 8)]
    assert score(alike)[0].interval == wilson(3.5, 5), "80 episodes of 5 tasks are not 80 tasks"


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ((271, 53, 19, 157), ["85.6", "83.6", "93.4", "88.3"]),  # gpt-4o
        ((179, 9, 111, 201), ["76.0", "95.2", "61.7", "74.9"]),  # o4-mini
        ((281, 133, 9, 77), ["71.6", "67.9", "96.9", "79.8"]),  # WebJudge-7B
        ((256, 37, 34, 173), ["85.8", "87.4", "88.3", "87.8"]),  # Qwen3-VL-32B
    ],
)
def test_rows_of_the_papers_table_3(counts, stated):
    """Of 500 episodes 290 succeed: then these are the only counts that give a row's four numbers."""
    (row,) = score(pairs(*counts))
    assert row.n == 500 and row.cells[:4] == stated


def test_rates_of_nothing_are_unknown_not_zero():
    for counts, invalid in (((0, 0, 0, 0), 0), ((0, 0, 0, 0, 4), 4)):
        (row,) = score(pairs(*counts))
        assert (row.accuracy, row.precision, row.recall, row.f1) == (None,) * 4
        assert row.interval == (0.0, 1.0) and row.invalid == invalid
    (row,) = score(pairs(0, 0, 3, 2))
    assert (row.precision, row.recall, row.f1, row.accuracy) == (None, 0.0, 0.0, 0.4)


def test_parts_by_benchmark():
    some = pairs(2, 1, 0, 0, benchmark="voyager") + pairs(1, 0, 1, 2, 1, benchmark="mind2web")
    rows = score(some + pairs(0, 1, 0, 0))
    assert [(row.name, row.n) for row in rows] == [("all", 8), ("mind2web", 4), ("voyager", 3)]
    assert rows[0].precision == 3 / 5 and rows[2].precision == 2 / 3 and rows[1].invalid == 1


def test_a_judged_trajectory_as_a_pair():
    labelled = Trajectory(Task("a", "x", "", meta={"benchmark": "voyager"}), 0, verdict=Verdict(True))
    assert pair_of(labelled, Verdict(None, "", "why")) == Pair(True, None, "voyager", "a", error="why")
    labelled = Trajectory(Task("a", "x", ""), 0, verdict=Verdict(False))
    assert pair_of(labelled, Verdict(True, "Fine.")) == Pair(False, True, "", "a", "Fine.")


def test_the_table(monkeypatch):
    console = Console(width=80, record=True, markup=False, file=open("/dev/null", "w"))  # noqa: SIM115
    monkeypatch.setattr("minirl.console.CONSOLE", console)
    hostile = "[red]a.test"  # a name from a task file is not markup
    scores = {"8B": score(pairs(4, 1, 2, 3, benchmark=hostile)), "always": score(pairs(0, 0, 0, 0, 2))}
    show(scores)
    lines = [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]
    assert "8B 70.0 80.0 66.7 72.7 40–89 10 0" in lines  # table 3
    assert f"{hostile} 70.0 80.0 66.7 72.7 40–89 10 0" in lines  # table 9
    assert "always – – – – 0–100 0 2" in lines, "who says nothing is not the best of all"
