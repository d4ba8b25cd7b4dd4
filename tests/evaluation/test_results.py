"""Results counted by hand, written and read again."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest

from minirl.benchmarks.protocols import PROTOCOLS, protocol_of
from minirl.benchmarks.task_files import load_tasks
from minirl.evaluation.results import (
    Evaluation,
    Rate,
    Result,
    by_task,
    paired,
    read_results,
    result_of,
    rows_by,
    summary,
    versions,
    write_results,
)
from minirl.judges.intervals import wilson
from minirl.types import Stop, Task, Trajectory, Turn, Verdict

FARA = Path(__file__).parents[1] / "data" / "webvoyager" / "fara_595.jsonl"
AUTOWEBWORLD, WEBVOYAGER = protocol_of("autowebworld-official"), protocol_of("webvoyager-official")
WITHOUT = protocol_of("webvoyager-without-aborted")

# Site A: three successes of four, the fourth aborted with a verdict all the same; site B: none of two, one of
# them out of steps before a page that the judge likes
RESULTS = [
    Result("a0", Stop.DONE, True, site="A", difficulty="easy", steps=2, cost=0.5),
    Result("a1", Stop.DONE, True, site="A", difficulty="easy", steps=4, response_tokens=50),
    Result("a2", Stop.DONE, True, site="A", difficulty="hard", steps=6),
    Result("a3", Stop.TIMEOUT, True, site="A", difficulty="hard", steps=30, cost=0.25),
    Result("b0", Stop.MAX_STEPS, True, site="B", difficulty="10", steps=30),
    Result("b1", Stop.DONE, False, site="B", difficulty="2", steps=3, reason="Not there."),
]


def test_autowebworlds_table_3_is_counted_again():
    """The 7B model's column rates as counts of FARA's tasks: their plain mean is the paper's 27.42."""
    solved = dict(zip(AUTOWEBWORLD.sites, (8, 9, 10, 26, 12, 3, 6, 12, 11), strict=True))
    results = []
    for task in AUTOWEBWORLD.select(load_tasks(FARA)):
        site = task.meta["site"]
        results.append(Result(task.id, Stop.DONE, solved[site] > 0, site=site))
        solved[site] -= 1
    s = summary(results, AUTOWEBWORLD)
    assert 100 * s.success.rate == pytest.approx(27.42, abs=0.005)
    assert 100 * s.success.successes / s.success.episodes == pytest.approx(27.48, abs=0.005)  # the control
    rates = {row.name: round(100 * row.all_tasks.rate, 2) for row in rows_by("site", results, AUTOWEBWORLD)}
    assert (rates["Cambridge Dictionary"], rates["Google Flights"]) == (60.47, 7.32)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
def test_every_ending_counts_as_the_rule_says(protocol):
    graded_at_the_limit = protocol.name.startswith(("webarena-lite", "autowebworld", "screenspot"))
    for stop in Stop:
        s = summary([Result("t", stop, True, site="s", difficulty="text")], protocol)
        by_agent = stop in (Stop.DONE, Stop.MAX_STEPS, Stop.FORMAT_ERROR, Stop.REPEATED, Stop.LENGTH)
        counts = protocol.aborted == "fail" or by_agent
        assert s.success.episodes == protocol.counts(stop) == counts, stop
        assert s.success.successes == (by_agent if graded_at_the_limit else stop is Stop.DONE), stop


def test_an_episode_is_a_row():
    own = Turn(3, (1, 2), (7, 8, 9), (-0.1,) * 3, "")
    served = Turn(0, (), (), (), "", counted=(500, 20))
    task = Task("a", "", "https://b.test/x", meta={"site": "B", "difficulty": 0})
    t = Trajectory(task, 4, turns=(own, own, served), success=True, seconds=2.5, dollars=0.5)
    t = replace(t, verdict=Verdict(True, "It is there."))
    row = Result("a", Stop.DONE, True, 4, "B", "0", 3, 26, length=520, cost=0.5, reason="It is there.")
    assert result_of(t) == row
    own_ids = result_of(replace(t, turns=(served, own)))
    assert own_ids.length == 3 + 2 + 3, "of the last turn, which holds what came before"
    bare = replace(t, task=Task("a", "", "https://b.test/x", goal={"page": "DONE"}), turns=())
    row = result_of(replace(bare, stop=Stop.INFRA_ERROR, error="Traceback:\nRuntimeError: why\n"))
    assert (row.site, row.difficulty, row.reason) == ("b.test", "", "RuntimeError: why")
    assert result_of(bare).reason == "", "the site's state has decided, not the judge"
    assert result_of(replace(bare, final_state={"reason": "No answer."})).reason == "No answer.", "WebArena's"


def test_a_summary_by_hand():
    s = summary(RESULTS, WEBVOYAGER)
    assert s.success == s.all_tasks == Rate(3 / 6, *wilson(3, 6), 3, 6)
    assert s.without_aborted == Rate(3 / 5, *wilson(3, 5), 3, 5)
    assert summary(RESULTS, WITHOUT).success == s.without_aborted
    a, b = rows_by("site", RESULTS, WEBVOYAGER)
    assert a[:3] == ("A", Rate(0.75, *wilson(3, 4), 3, 4), Rate(1.0, *wilson(3, 3), 3, 3))
    assert b.all_tasks == b.without_aborted == Rate(0.0, *wilson(0, 2), 0, 2)
    levels = [(row.name, row.all_tasks.successes) for row in rows_by("difficulty", RESULTS, WEBVOYAGER)]
    assert levels == [("easy", 2), ("hard", 1), ("10", 0), ("2", 0)]


def test_the_mean_over_sites_by_hand():
    s = summary(RESULTS, replace(WEBVOYAGER, average="macro"))
    low, high = wilson(3, 4)
    none = wilson(0, 2)[1]
    assert s.success.rate == 0.375
    assert s.success.low == pytest.approx(0.375 - (0.75 - low) / 2)  # B's rate is its own lower bound
    assert s.success.high == pytest.approx(0.375 + sqrt((high - 0.75) ** 2 + none**2) / 2)
    assert (s.without_aborted.rate, s.without_aborted.episodes) == (0.5, 5)
    only_b = [replace(r, stop=Stop.TIMEOUT) for r in RESULTS[:4]] + RESULTS[4:]
    only_b = summary(only_b, replace(WITHOUT, average="macro"))
    assert (only_b.success.rate, only_b.success.episodes) == (0.0, 2)


def test_seeds_of_a_task_do_not_narrow_the_interval():
    results = [Result(f"t{i}", Stop.DONE, i < 2, seed=seed) for i in range(5) for seed in range(3)]
    s = summary(results, WEBVOYAGER)
    assert s.success == Rate(6 / 15, *wilson(2, 5), 6, 15)
    assert rows_by("site", results, WEBVOYAGER) == []


def test_no_results_and_no_valid_results():
    for results in ([], [Result("t", Stop.INFRA_ERROR, False)]):
        s = summary(results, WITHOUT)
        assert s.success == Rate(0.0, 0.0, 1.0, 0, 0)
        assert summary(results, replace(WITHOUT, average="macro")).success == s.success


def test_two_evaluations_are_compared_by_what_counts():
    other = [replace(r, success=True, stop=Stop.DONE) for r in RESULTS]
    assert by_task(RESULTS, WITHOUT) == {name: [name[0] == "a"] for name in ("a0", "a1", "a2", "b0", "b1")}
    p = paired(by_task(RESULTS, WITHOUT), by_task(other, WITHOUT))
    assert (p.tasks, p.unpaired, p.better) == (5, 1, 2)
    assert paired(by_task(RESULTS, WEBVOYAGER), by_task(other, WEBVOYAGER)).tasks == 6


EVALUATION = Evaluation(
    WEBVOYAGER.name, WEBVOYAGER.rule, {"model": {"path": "m"}, "betas": (0.9, 0.98)}, versions(), (0, 1)
)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "deep" / "results.json"
    results = [*RESULTS, replace(RESULTS[0], seed=1, cost=0, reason='Said "NOT"\n\ud800 ü')]
    write_results(path, EVALUATION, results)
    back = read_results(path)
    assert back.results == sorted(results, key=lambda r: (r.task, r.seed))
    assert back.evaluation == replace(EVALUATION, config={"model": {"path": "m"}, "betas": [0.9, 0.98]})
    assert back.evaluation.versions.keys() >= {"python", "torch", "playwright"}


def test_a_file_without_lengths_is_read(tmp_path):
    """Files of earlier versions have none."""
    path = tmp_path / "results.json"
    write_results(path, EVALUATION, RESULTS)
    path.write_text(path.read_text().replace('   "length": 0,\n', ""))
    assert "length" not in path.read_text() and len(read_results(path).results) == len(RESULTS)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("{", "", ""),
        ('"rule": "', '"rules": "', "evaluation.rule Field required"),
        ('"stop": "max_steps"', '"stop": "tired"', "results.4.stop Input should be 'done', 'max_steps'"),
        ('"steps": 4', '"steps": "four"', "results.1.steps Input should be a valid integer"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, old, new, problem):
    path = tmp_path / "results.json"
    write_results(path, EVALUATION, RESULTS)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=f"results {path} can't be read: .*{problem}"):
        read_results(path)
