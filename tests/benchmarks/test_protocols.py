"""Protocols against the papers' tables, and results counted by hand, written, interrupted and read again."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.benchmarks.protocols import (
    AUTOWEBWORLD,
    DEEPSHOP,
    NINE_SITES,
    ONLINE_MIND2WEB,
    PROTOCOLS,
    WEBARENA_LITE,
    WEBVOYAGER,
    protocol_of,
)
from minirl.benchmarks.task_files import load_tasks
from minirl.evaluation.compare import paired
from minirl.evaluation.results import (
    Evaluation,
    Rate,
    Result,
    by_task,
    read_results,
    summary,
    versions,
    write_results,
)
from minirl.evaluation.statistics import wilson
from minirl.types import Sampling, Stop, Task

FARA = Path(__file__).parents[1] / "data" / "webvoyager" / "fara_595.jsonl"
WITHOUT = protocol_of("webvoyager-without-aborted")

# Site A: three successes of four, the fourth aborted with a verdict all the same; site B: none of two, one of
# them out of steps before a page that the judge likes
RESULTS = [
    Result("a0", Stop.DONE, True, site="A", difficulty="easy", steps=2, prompt_tokens=100, cost=0.5),
    Result("a1", Stop.DONE, True, site="A", difficulty="easy", steps=4, response_tokens=50, seconds=9.0),
    Result("a2", Stop.DONE, True, site="A", difficulty="hard", steps=6, prompt_tokens=300),
    Result("a3", Stop.TIMEOUT, True, site="A", difficulty="hard", steps=30, prompt_tokens=900, cost=0.25),
    Result("b0", Stop.MAX_STEPS, True, site="B", difficulty="10", steps=30),
    Result("b1", Stop.DONE, False, site="B", difficulty="2", steps=3, reason="Not there."),
]


# ---- Protocols -------------------------------------------------------------------------------------


def test_every_benchmark_has_two_protocols():
    names = [p.name for p in PROTOCOLS]
    benchmarks = ["webvoyager", "online-mind2web", "deepshop", "webarena-lite", "autowebworld"]
    assert names == [f"{b}-{kind}" for b in benchmarks for kind in ("official", "without-aborted")]
    assert [protocol_of(name) for name in names] == list(PROTOCOLS)
    with pytest.raises(ValueError, match="no protocol 'webvoyager'; there are webvoyager-official, "):
        protocol_of("webvoyager")


@pytest.mark.parametrize(
    ("protocol", "tasks", "model", "parser"),
    [
        (WEBVOYAGER, 595, "gpt-4o", "not-success-first"),
        (ONLINE_MIND2WEB, 300, "o4-mini", "status"),
        (DEEPSHOP, 150, "gpt-4o", "structured"),
    ],
)
def test_openwebrls_table_8(protocol, tasks, model, parser):
    assert (protocol.tasks, protocol.judge.model, protocol.judge.parser) == (tasks, model, parser)
    without = protocol_of(protocol.name.replace("official", "without-aborted"))
    assert protocol.sampling == Sampling(0.6, 0.95, 20) and without.sampling == Sampling(0.0, 1.0, 1)
    assert (without.judge.model, without.judge.input, without.judge.screenshots) == (
        "gpt-4.1",
        "openwebrl",
        3,
    )
    for p in (protocol, without):
        assert (p.max_steps, p.response_tokens, p.context_tokens) == (30, 4096, 32768)
        assert (p.browsers, p.request_seconds, p.judge.seconds, p.episode_seconds) == (16, 120, 120, 600)
        assert (p.screenshots, p.average) == (1, "micro")
    assert (protocol.aborted, without.aborted) == ("fail", "leave out")


def test_a_program_judges_webarena_under_both_protocols():
    without = protocol_of("webarena-lite-without-aborted")
    assert {p.judge.input for p in (WEBARENA_LITE, without)} == {"rules"}
    assert (WEBARENA_LITE.tasks, without.judge.model) == (165, "gpt-4.1")


def test_autowebworlds_nine_sites_are_those_of_its_table():
    tasks = AUTOWEBWORLD.select(load_tasks(FARA))
    assert len(tasks) == AUTOWEBWORLD.tasks == 353 and {t.meta["site"] for t in tasks} == set(NINE_SITES)
    assert (AUTOWEBWORLD.max_steps, AUTOWEBWORLD.average) == (15, "macro")
    assert len(WEBVOYAGER.select(load_tasks(FARA))) == 595
    with pytest.raises(ValueError, match="deepshop-official needs tasks of the benchmark deepshop$"):
        DEEPSHOP.select(tasks)
    with pytest.raises(ValueError, match="needs tasks of the benchmark webvoyager on Apple, "):
        AUTOWEBWORLD.select([Task("x", "y", "http://z/", meta={"benchmark": "webvoyager", "site": "Amazon"})])


def test_autowebworlds_table_3_is_counted_again():
    """The 7B model's column rates as counts of FARA's tasks: their plain mean is the paper's 27.42."""
    solved = dict(zip(NINE_SITES, (8, 9, 10, 26, 12, 3, 6, 12, 11), strict=True))
    results = []
    for task in AUTOWEBWORLD.select(load_tasks(FARA)):
        site = task.meta["site"]
        results.append(Result(task.id, Stop.DONE, solved[site] > 0, site=site))
        solved[site] -= 1
    s = summary(results, AUTOWEBWORLD)
    assert 100 * s.success.rate == pytest.approx(27.42, abs=0.005)
    assert 100 * s.success.successes / s.success.episodes == pytest.approx(27.48, abs=0.005)  # the control
    rates = {row.name: round(100 * row.all_tasks.rate, 2) for row in s.sites}
    assert (rates["Cambridge Dictionary"], rates["Google Flights"]) == (60.47, 7.32)


def test_rules_name_what_is_aborted_and_what_is_averaged():
    aborted = "timeout, sampler_error, env_error, site_error, infra_error, judge_error, cancelled"
    assert WEBVOYAGER.rule == (
        "Every episode counts, only one that the agent ended with done can succeed, and an aborted one "
        f"({aborted}) is a failure."
    )
    assert WITHOUT.rule == (
        f"An aborted episode ({aborted}) is left out of successes and episodes, and of the others only one "
        "that the agent ended with done can succeed."
    )
    assert "only one that was not aborted can succeed" in WEBARENA_LITE.rule
    for p in PROTOCOLS:
        over_sites = p.rule.endswith(
            " The rate is the mean of the rates of all sites that have an episode left."
        )
        assert aborted in p.rule and over_sites is (p.average == "macro")
        assert p.rule.count(".") == 1 + over_sites and p.rule.endswith(".")


@pytest.mark.parametrize("stop", Stop)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
def test_every_ending_counts_as_the_rule_says(protocol, stop):
    s = summary([Result("t", stop, True, site=(protocol.sites or ("s",))[0])], protocol)
    by_agent = stop in (Stop.DONE, Stop.MAX_STEPS, Stop.FORMAT_ERROR, Stop.REPEATED, Stop.LENGTH)
    assert s.success.episodes == (1 if protocol.aborted == "fail" else by_agent)
    assert s.success.successes == (by_agent if protocol.benchmark == "webarena-lite" else stop is Stop.DONE)


# ---- Summaries -------------------------------------------------------------------------------------


def test_a_summary_by_hand():
    s = summary(RESULTS, WEBVOYAGER)
    assert s.success == s.all_tasks == Rate(3 / 6, *wilson(3, 6), 3, 6)
    assert s.without_aborted == Rate(3 / 5, *wilson(3, 5), 3, 5)
    assert summary(RESULTS, WITHOUT).success == s.without_aborted
    assert (s.tasks, s.aborted) == (6, 1)
    a, b = s.sites
    assert (a.name, a.all_tasks, a.without_aborted) == (
        "A",
        Rate(0.75, *wilson(3, 4), 3, 4),
        Rate(1.0, *wilson(3, 3), 3, 3),
    )
    assert b.all_tasks == b.without_aborted == Rate(0.0, *wilson(0, 2), 0, 2)
    assert [(row.name, row.all_tasks.successes) for row in s.difficulties] == [
        ("easy", 2),
        ("hard", 1),
        ("2", 0),
        ("10", 0),
    ]
    assert s.steps == (2 + 4 + 6 + 30 + 3) / 5
    assert (s.prompt_tokens, s.response_tokens, s.cost) == (400 / 5, 50 / 5, 0.75)
    assert s.rule == WEBVOYAGER.rule


def test_the_mean_over_sites_by_hand():
    s = summary(RESULTS, replace(WEBVOYAGER, average="macro"))
    low, high = wilson(3, 4)
    none = wilson(0, 2)[1]
    assert s.success.rate == 0.375
    assert s.success.low == pytest.approx(0.375 - (0.75 - low) / 2)  # B's rate is its own lower bound
    assert s.success.high == pytest.approx(0.375 + sqrt((high - 0.75) ** 2 + none**2) / 2)
    assert (s.without_aborted.rate, s.without_aborted.episodes) == (0.5, 5)
    only_b = summary(
        [replace(r, stop=Stop.TIMEOUT) for r in RESULTS[:4]] + RESULTS[4:], replace(WITHOUT, average="macro")
    )
    assert (only_b.success.rate, only_b.success.episodes) == (0.0, 2)


def test_seeds_of_a_task_do_not_narrow_the_interval():
    results = [Result(f"t{i}", Stop.DONE, i < 2, seed=seed) for i in range(5) for seed in range(3)]
    s = summary(results, WEBVOYAGER)
    assert s.success == Rate(6 / 15, *wilson(2, 5), 6, 15)
    assert s.tasks == 5 and s.sites == () == s.difficulties


def test_no_results_and_no_valid_results():
    for results in ([], [Result("t", Stop.INFRA_ERROR, False)]):
        s = summary(results, WITHOUT)
        assert (s.success, s.steps, s.tasks) == (Rate(0.0, 0.0, 1.0, 0, 0), 0.0, len(results))
        assert summary(results, replace(WITHOUT, average="macro")).success == s.success


def test_a_site_that_the_protocol_leaves_out_is_named():
    with pytest.raises(ValueError, match="a0: protocol autowebworld-official leaves out the site 'A'"):
        summary(RESULTS, AUTOWEBWORLD)


def test_two_evaluations_are_compared_by_what_counts():
    other = [replace(r, success=True, stop=Stop.DONE) for r in RESULTS]
    assert by_task(RESULTS, WITHOUT) == {
        "a0": [True],
        "a1": [True],
        "a2": [True],
        "b0": [False],
        "b1": [False],
    }
    p = paired(by_task(RESULTS, WITHOUT), by_task(other, WITHOUT))
    assert (p.tasks, p.unpaired, p.better) == (5, 1, 2)
    assert paired(by_task(RESULTS, WEBVOYAGER), by_task(other, WEBVOYAGER)).tasks == 6


# ---- The file --------------------------------------------------------------------------------------

EVALUATION = Evaluation(
    WEBVOYAGER.name, WEBVOYAGER.rule, {"model": {"path": "m"}, "betas": (0.9, 0.98)}, {"python": "3"}, (0, 1)
)


def without_timings(path: Path) -> bytes:
    return path.read_bytes().split(b'"timings"')[0]


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "deep" / "results.json"
    results = [*RESULTS, replace(RESULTS[0], seed=1, cost=0, seconds=3, reason='Said "NOT"\n\ud800 ü')]
    write_results(path, EVALUATION, results)
    evaluation, back = read_results(path)
    assert back == sorted(results, key=lambda r: (r.task, r.seed))
    assert evaluation == replace(EVALUATION, config={"model": {"path": "m"}, "betas": [0.9, 0.98]})
    assert summary(back, WEBVOYAGER) == summary(results, WEBVOYAGER)
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_equal_results_give_equal_bytes_whatever_their_order_and_times(tmp_path):
    shuffled = [replace(r, seconds=r.seconds + 1) for r in RESULTS]
    random.Random(0).shuffle(shuffled)
    write_results(tmp_path / "one", EVALUATION, RESULTS)
    for r in shuffled:  # one by one, as an evaluation does it
        write_results(tmp_path / "two", EVALUATION, [r])
    assert without_timings(tmp_path / "one") == without_timings(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() != (tmp_path / "two").read_bytes()
    write_results(tmp_path / "other", EVALUATION, RESULTS[1:])  # the control
    assert without_timings(tmp_path / "one") != without_timings(tmp_path / "other")


def test_an_interrupted_evaluation_goes_on(tmp_path):
    path = tmp_path / "results.json"
    write_results(path, EVALUATION, RESULTS[:3])
    content = path.read_bytes()
    (tmp_path / ".results.json.1-2.tmp").write_bytes(content[:50])  # what a kill leaves beside it
    assert len(read_results(path)[1]) == 3
    again = replace(RESULTS[0], success=False)
    write_results(path, EVALUATION, [again, *RESULTS[3:]])
    assert read_results(path)[1] == [again, *RESULTS[1:]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"protocol": "deepshop-official"}, "protocol"),
        ({"config": {}}, "config"),
        ({"versions": {"python": "4"}, "seeds": (1,)}, "seeds and versions"),
    ],
)
def test_results_of_different_evaluations_are_not_mixed(tmp_path, change, named):
    path = tmp_path / "results.json"
    write_results(path, EVALUATION, RESULTS)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=f"results.json holds an evaluation that differs in {named}; choose"):
        write_results(path, replace(EVALUATION, **change), RESULTS)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("{", "", "can't be read: "),
        ('"timings"', '"times"', "the part 'timings' is missing or not a list"),
        (
            '"evaluation": {',
            '"evaluation": [{}], "x": {',
            "the part 'evaluation' is missing or not an object",
        ),
        ('"rule": "', '"rules": "', "the evaluation must have the fields protocol, rule, "),
        (
            '"stop": "max_steps"',
            '"stop": "tired"',
            "result 5: the field 'stop' must be one of done, max_steps",
        ),
        ('"steps": 4', '"steps": "4"', "result 2: the field 'steps' must be of type int"),
        ('"cost": 0.25', '"cost": 1e999', "result 4: the field 'cost' must be of type float"),
        ('"cost": 0.25', '"cost": NaN', "can't be read: NaN is not JSON"),
        ('"seeds": [0, 1]', '"seeds": [0, 1.5]', "the evaluation must have .* each of its type"),
        ('"site": "B"', '"place": "B"', "result 5 must have the fields task, stop, success, seed, "),
        ('"task": "a1"', '"task": "a0"', "a task and seed occur twice"),
        ('["a0", 0, 0.0]', '["a0", 0]', "a timing must be a task, a seed and seconds"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, old, new, problem):
    path = tmp_path / "results.json"
    write_results(path, EVALUATION, RESULTS)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"results {path}.*{problem}"):
        read_results(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="none can't be read: "):
        read_results(tmp_path / "none")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLACES = [("evaluation",), ("results",), ("timings",), ("timings", 0), ("timings", 0, 0), ("timings", 0, 2)]
PLACES += [("results", 0), *(("results", 0, name) for name in vars(RESULTS[0]))]
PLACES += [("evaluation", name) for name in ("protocol", "config", "versions", "seeds")]


@given(st.sampled_from(PLACES), JSON)
def test_any_value_in_any_place_is_read_or_named(tmp_path_factory, place, value):
    path = tmp_path_factory.getbasetemp() / "any-results.json"
    path.unlink(missing_ok=True)
    write_results(path, EVALUATION, RESULTS[:2])
    data = json.loads(path.read_text())
    part = data
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    path.write_text(json.dumps(data))
    try:
        evaluation, results = read_results(path)
    except ValueError as problem:
        assert "any-results.json" in str(problem)
    else:
        write_results(path, evaluation, results)
        assert read_results(path)[1] == results


def test_versions_of_what_is_installed():
    found = versions()
    assert found["python"] and found["torch"] and found["playwright"]
