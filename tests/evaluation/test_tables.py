"""What is printed of evaluations, and comparisons, against numbers that are computed here by other means."""

import random
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from endpoint_server import say as says
from endpoint_server import serve
from peers import Idle
from workers import make_worker

from minirl.benchmarks.protocols import protocol_of
from minirl.bill import billed
from minirl.config import EndpointConfig
from minirl.console import CONSOLE
from minirl.evaluation.results import Evaluation, Result, by_task, paired, write_results
from minirl.evaluation.tables import UNNAMED, compare, curve, show
from minirl.judges.intervals import wilson
from minirl.recipes import tiny
from minirl.samplers.endpoint import Endpoint
from minirl.types import Stop, Task, Trajectory

WEBVOYAGER = protocol_of("webvoyager-official")
WITHOUT = protocol_of("webvoyager-without-aborted")
TASK = Task("a", "", "http://a.test/")


def result(i: int, stop: Stop = Stop.DONE, success: bool = False, **more) -> Result:
    reason = "" if stop.is_agent_fault else "the reason"
    return Result(f"task-{i}", stop, success, **{"site": "shop", "steps": 2, "reason": reason} | more)


def test_both_rates_the_rule_and_what_was_aborted(capsys):
    results = [result(i, success=i < 6, steps=3, cost=0.25) for i in range(8)]
    results += [result(8, Stop.INFRA_ERROR, steps=0), result(9, Stop.TIMEOUT, success=True, steps=1)]
    for protocol, counted in ((WEBVOYAGER, (6, 10)), (WITHOUT, (6, 8)), (UNNAMED, (6, 8))):
        show(results, protocol)
        printed = capsys.readouterr().out
        both = [rf"{s / n:.1%} │ +{wilson(s, n)[0]:.1%} to {wilson(s, n)[1]:.1%} │ +{n} " for s, n in RATES]
        assert re.search(rf"all +│ +{both[0]}│ +{both[1]}", printed)
        low, high = wilson(*counted)
        share = f"{counted[0] / counted[1]:.1%} ({low:.1%} to {high:.1%})"
        assert f"success: {share}, 6 of {counted[1]} episodes of 10 tasks" in printed
        assert f"protocol {protocol.name or 'none'}: {protocol.rule}\n" in printed
        assert "ended by done 8, infra_error 1, timeout 1\n" in printed
        assert "aborted: task-8: infra_error: the reason\n" in printed
        assert "cost of all: $2.00" in printed


RATES = ((6, 10), (6, 8))  # with aborted episodes as failures, and without them


def test_sites_and_difficulties_have_rows(capsys):
    results = [result(i, success=i == 0, site="ab"[i % 2], difficulty="easy") for i in range(4)]
    show([*results, result(4, Stop.SITE_ERROR, site="b", difficulty="hard")], WEBVOYAGER)
    printed = capsys.readouterr().out
    assert re.search(r"a +│ +50.0% │ .*│ +2 │ +50.0% │ .*│ +2 ", printed)
    assert re.search(r"b +│ +0.0% │ .*│ +3 │ +0.0% │ .*│ +2 ", printed)
    assert re.search(r"hard +│ +0.0% │ .*│ +1 │ +- │ .*│ +0 ", printed)
    show([result(0)], UNNAMED)
    assert "site" not in capsys.readouterr().out.partition("ended by")[2], "one site is no table"
    show([result(i, Stop.BLOCKED if i < 5 else Stop.ENV_ERROR) for i in range(20)], UNNAMED)
    said = capsys.readouterr().out
    assert "ended by env_error 15, blocked 5\n" in said
    assert said.count("aborted: task-") == 5, "the first ones"
    assert "success: not known, 0 of 0 episodes of 20 tasks" in said


def rows(capsys) -> list[list[str]]:
    """The cells of the tables that have been printed."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_means_of_all_episodes_of_those_not_aborted_and_of_successes(capsys):
    """Steps 2, 4, 9, 30 and 1; the last was aborted, whatever its judge said."""
    steps, tokens, lengths = (2, 4, 9, 30, 1), (20, 60, 90, 300, 5), (100, 300, 500, 2000, 50)
    stops = [Stop.DONE] * 3 + [Stop.MAX_STEPS, Stop.TIMEOUT]
    results = [
        result(i, stops[i], i in (0, 1, 4), steps=steps[i], response_tokens=tokens[i], length=lengths[i])
        for i in range(5)
    ]
    show(results, UNNAMED)
    cells = {row[0]: row[1:] for row in rows(capsys)}
    # 46 steps and 475 tokens in five, 45 and 470 in four, 6 and 80 in two; of five lengths the fifth, of four
    # the fourth and of two the second is the first that 90% don't exceed
    assert cells["all"] == ["5", "9.2", "95.0", "10.3", "590.0", "2000.0"]
    assert cells["not aborted"] == ["4", "11.2", "117.5", "10.4", "725.0", "2000.0"]
    assert cells["successes"] == ["2", "3.0", "40.0", "13.3", "200.0", "300.0"]
    show(results[3:4], UNNAMED)
    assert "successes" not in {row[0] for row in rows(capsys)}, "there are none"


def screenspot(counts: dict[tuple[str, str], tuple[int, int]]) -> list[Result]:
    """So many right clicks of so many pictures, by platform and kind."""
    results = []
    for (site, kind), (right, n) in counts.items():
        place = {"site": site, "difficulty": kind}
        results += [result(len(results) + i, success=i < right, **place) for i in range(n)]
    return results


def test_screenspots_kinds_are_crossed_with_its_platforms(capsys, monkeypatch):
    """AutoWebWorld's table 4, of Qwen2.5-VL-7B; its overall rate is by samples."""
    monkeypatch.setattr(CONSOLE, "width", 110)
    counts = {("mobile", "text"): (278, 290), ("mobile", "icon"): (165, 211)}
    counts |= {("desktop", "text"): (167, 194), ("desktop", "icon"): (92, 140)}
    counts |= {("web", "text"): (215, 234), ("web", "icon"): (162, 203)}
    show(screenspot(counts), WEBVOYAGER)
    overall, *others = rows(capsys)
    cells = {row[0]: (row[1], row[3]) for row in others}
    assert cells["mobile, text"] == ("95.9%", "290") and cells["mobile, icon"] == ("78.2%", "211")
    assert cells["desktop, text"] == ("86.1%", "194") and cells["desktop, icon"] == ("65.7%", "140")
    assert cells["web, text"] == ("91.9%", "234") and cells["web, icon"] == ("79.8%", "203")
    assert (overall[1], overall[3]) == ("84.8%", "1272")
    show(screenspot(dict(list(counts.items())[:2])), WEBVOYAGER)
    assert "mobile, text" not in {row[0] for row in rows(capsys)}, "one platform has its kinds already"
    many = [result(i, site=str(i % 7), difficulty="ab"[i % 2]) for i in range(28)]
    show(many, WEBVOYAGER)
    assert "0, a" not in {row[0] for row in rows(capsys)}, "14 rows say little"


def test_a_mean_of_kinds_or_of_sites_is_called_one(capsys):
    """AutoWebWorld's table 5: icon 8.8 and text 46.1 are 27.5 in the mean; by samples 31.9."""
    results = screenspot({("linux", "icon"): (53, 604), ("linux", "text"): (450, 977)})
    show(results, replace(WEBVOYAGER, average="kinds"))
    printed = capsys.readouterr().out
    assert "success: 27.4% (" in printed and "the mean of kinds, 503 of 1581 episodes" in printed
    show(results, WEBVOYAGER)
    assert "success: 31.8% (" in capsys.readouterr().out
    results = screenspot({("Apple", ""): (3, 4), ("ArXiv", ""): (0, 2)})
    show(results, protocol_of("autowebworld-official"))
    printed = capsys.readouterr().out
    assert "success: 37.5% (" in printed and "the mean of sites, 3 of 6 episodes of 6 tasks" in printed


def test_success_within_so_many_turns(capsys):
    """Three successes after 2, 4 and 6 turns, one failure, and one episode that says nothing."""
    results = [result(i, success=True, steps=steps) for i, steps in enumerate((2, 4, 6))]
    results += [result(3, Stop.MAX_STEPS, steps=6), result(4, Stop.TIMEOUT, success=True, steps=1)]
    curve(results, (6, 2, 4, 3), UNNAMED)
    columns = list(zip(*rows(capsys), strict=True))
    assert columns[0] == ("2", "3", "4", "6") and columns[1] == ("25.0%", "25.0%", "50.0%", "75.0%")
    assert columns[3] == ("4",) * 4
    curve(results, (6,), WEBVOYAGER)
    assert [row[1] for row in rows(capsys)] == ["60.0%"]


def test_what_was_aborted_late_had_used_up_a_smaller_budget(capsys):
    """With 5 turns a time-out in the 21st is a failure, and so is one in the 6th; the judge's is none."""
    results = [result(0, success=True, steps=3), result(1, Stop.TIMEOUT, steps=20)]
    results += [result(2, Stop.TIMEOUT, steps=5), result(3, Stop.TIMEOUT, steps=4)]
    results += [result(4, Stop.JUDGE_ERROR, steps=5), result(5, Stop.SITE_ERROR, steps=0)]
    curve(results, (5, 30), UNNAMED)
    assert [(row[1], row[3]) for row in rows(capsys)] == [("33.3%", "3"), ("100.0%", "1")]
    results += [result(6, Stop.BLOCKED, steps=5), result(7, Stop.BLOCKED, steps=6)]
    curve(results, (5, 30), UNNAMED)
    assert [row[3] for row in rows(capsys)] == ["4", "1"], "a blocked episode took all of its turns"


def write(path: Path, results: list[Result], protocol=WEBVOYAGER, **config) -> Path:
    config["reward"] = {"after": "done"}
    write_results(path, Evaluation(protocol.name, protocol.rule, config, {"python": "3"}, (0, 1)), results)
    return path


def drawn(seed: int, chance: float, tasks: range) -> list[Result]:
    coin = random.Random(seed)
    return [result(i, success=coin.random() < chance, seed=s) for i in tasks for s in (0, 1)]


def test_a_comparison_is_printed_task_by_task(eval_script, tmp_path, capsys):
    """test_statistics.py has the numbers by hand."""
    first, second = drawn(1, 0.4, range(40)), drawn(2, 0.6, range(5, 45))
    one = write(tmp_path / "one.json", first, model={"path": "a"}, seed=0)
    two = write(tmp_path / "two.json", second, model={"path": "b"}, seed=0)
    p = paired(by_task(first, WEBVOYAGER), by_task(second, WEBVOYAGER))
    assert p.tasks == 35 and p.unpaired == 10
    eval_script.run(["--compare", str(one), str(two)])
    printed = capsys.readouterr().out
    counts = f"the second wins {p.better}, loses {p.worse}, {35 - p.better - p.worse} are even"
    assert f"of 35 common tasks {counts}\n10 tasks that only one has are left out" in printed
    assert f"difference: {100 * p.difference:+.1f} points (95% interval {100 * p.low:+.1f} to" in printed
    assert "they differ in model.path\n" in printed
    assert compare(one, one).difference == 0 and compare(one, two) == p


def test_files_that_cannot_be_compared_are_refused(tmp_path):
    one = write(tmp_path / "one.json", drawn(1, 0.5, range(3)))
    other = write(tmp_path / "other.json", drawn(1, 0.5, range(3)), WITHOUT)
    old = write(tmp_path / "old.json", drawn(1, 0.5, range(3)), replace(WEBVOYAGER, aborted="leave out"))
    for both in ((one, other), (old, one)):
        with pytest.raises(ValueError, match="not counted by the same rule; evaluate again"):
            compare(*both)
    with pytest.raises(ValueError, match="no task in common"):
        compare(one, write(tmp_path / "far.json", drawn(1, 0.5, range(7, 9))))


async def test_every_episode_is_billed_for_what_it_asked(monkeypatch):
    """Three at the same time, each with as many questions as its member says."""
    with serve([says("yes")]) as server:
        config = EndpointConfig(url=server.url, model="any", price=(2.0, 10.0))
        endpoint, price = Endpoint(config), (100 * 2 + 20 * 10) / 1e6

        class Asking:
            def __init__(self, harness, task, member, *_):
                self.task, self.member = task, member

            async def run(self) -> Trajectory:
                for i in range(self.member):
                    await endpoint.ask([("user", (f"{i}",))], max_tokens=5)
                return Trajectory(self.task, self.member)

        worker = make_worker(tiny(), sampler=Idle())
        monkeypatch.setattr("minirl.rollout.Episode", Asking)
        done = []
        places = [(TASK, member) for member in (2, 0, 3)]
        ended = await worker.evaluate(places, "eval", 3, lambda n: None, done.append)
        assert [t.member for t in ended] == [2, 0, 3] and sorted(t.member for t in done) == [0, 2, 3]
        assert [t.dollars for t in ended] == pytest.approx([2 * price, 0, 3 * price])
        assert endpoint.dollars == pytest.approx(5 * price)
        with billed() as bill:
            pass
        assert not bill
        await endpoint.close()


async def test_a_disk_that_is_full_is_one_error_not_a_group():
    worker = make_worker(tiny(), sampler=Idle())
    worker.episode = AsyncMock(return_value=Trajectory(TASK, 0))
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        await worker.evaluate([(TASK, 0)] * 3, "e", 1, lambda n: None, on_done=full)
