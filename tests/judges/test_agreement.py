"""A judge's scores, worked out by hand, and AgentRewardBench's episodes read from a made-up folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from minirl.evaluation.statistics import wilson
from minirl.judges import agreement
from minirl.judges.agreement import Pair, pair_of, read_agent_reward_bench, score, show
from minirl.judges.judge import judge_messages
from minirl.types import Stop, Task, Trajectory, Verdict

# --- scores --------------------------------------------------------------------------------------------


def pairs(true_pos: int, false_pos: int, false_neg: int, true_neg: int, invalid: int = 0, **where: str):
    made = [((True, True), true_pos), ((False, True), false_pos), ((True, False), false_neg)]
    made += [((False, False), true_neg), ((True, None), invalid)]
    return [Pair(*values, **where) for values, count in made for _ in range(count)]


def test_scores_by_hand():
    # 10 judged: right in 4 + 3; precision 4/5; recall 4/6; F1 8/(8 + 1 + 2); truth 6/10; passed 5/10
    (row,) = score(pairs(4, 1, 2, 3, invalid=2))
    assert (row.n, row.invalid, row.agreed) == (10, 2, 7)
    assert (row.accuracy, row.precision, row.base_rate, row.passed) == (0.7, 0.8, 0.6, 0.5)
    assert row.recall == pytest.approx(2 / 3) and row.f1 == pytest.approx(8 / 11)
    # z^2 = 3.8416: centre (0.7 + 0.19208) / 1.38416 = 0.644492,
    # half 1.96 * sqrt(0.021 + 0.009604) / 1.38416 = 0.247717
    assert row.interval == pytest.approx((0.396775, 0.892209), abs=1e-5) == wilson(7, 10)
    alike = [replace(pair, task=str(i % 5)) for i, pair in enumerate(pairs(4, 1, 2, 3) * 8)]
    assert score(alike)[0].interval == wilson(3.5, 5), "80 episodes of 5 tasks are not 80 tasks"


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ((271, 53, 19, 157), (85.6, 83.6, 93.4, 88.3)),  # gpt-4o
        ((179, 9, 111, 201), (76.0, 95.2, 61.7, 74.9)),  # o4-mini
        ((281, 133, 9, 77), (71.6, 67.9, 96.9, 79.8)),  # WebJudge-7B
        ((256, 37, 34, 173), (85.8, 87.4, 88.3, 87.8)),  # Qwen3-VL-32B
    ],
)
def test_rows_of_the_papers_table_3(counts, stated):
    """Of 500 episodes 290 succeed: then these are the only counts that give a row's four numbers."""
    (row,) = score(pairs(*counts))
    assert (row.n, row.base_rate) == (500, 290 / 500)
    rates = (row.accuracy, row.precision, row.recall, row.f1)
    assert tuple(float(agreement.percent(rate)) for rate in rates) == stated


def test_rates_of_nothing_are_unknown_not_zero():
    (row,) = score([])
    assert (row.accuracy, row.precision, row.recall, row.f1, row.base_rate) == (None,) * 5
    assert row.interval == (0.0, 1.0)
    (row,) = score(pairs(0, 0, 3, 2))
    assert (row.precision, row.recall, row.f1, row.accuracy) == (None, 0.0, 0.0, 0.4)
    (row,) = score(pairs(0, 0, 0, 0, invalid=4))
    assert row.invalid == 4 and row.accuracy is None


def test_parts_by_benchmark_and_site():
    some = pairs(2, 1, 0, 0, benchmark="voyager", site="a.test")
    some += pairs(1, 0, 1, 2, 1, benchmark="mind2web", site="a.test") + pairs(0, 1, 0, 0, site="b.test")
    rows = score(some)
    assert [(row.part, row.name, row.n) for row in rows] == [
        ("overall", "all", 8),
        ("benchmark", "mind2web", 4),
        ("benchmark", "voyager", 3),
        ("site", "a.test", 7),
        ("site", "b.test", 1),
    ]
    assert rows[0].precision == 3 / 5 and rows[2].precision == 2 / 3
    assert rows[3].recall == 3 / 4 and rows[4].accuracy == 0.0 and rows[1].invalid == 1


@given(st.lists(st.builds(Pair, st.booleans(), st.none() | st.booleans(), st.sampled_from("xy"))))
def test_parts_add_up_and_rates_are_rates(some):
    overall, *parts = score(some)
    assert overall.n + overall.invalid == len(some)
    for field in ("true_pos", "false_pos", "false_neg", "true_neg", "invalid"):
        assert sum(vars(part)[field] for part in parts) == vars(overall)[field]
    for row in (overall, *parts):
        rates = (row.accuracy, row.precision, row.recall, row.f1, row.base_rate, row.passed)
        assert all(rate is None or 0 <= rate <= 1 for rate in rates)
        if row.precision and row.recall:
            assert row.f1 == pytest.approx(2 / (1 / row.precision + 1 / row.recall))


def test_a_judged_trajectory_as_a_pair():
    task = Task("a", "x", "http://www.shop.test:80/cart", meta={"benchmark": "voyager"})
    assert pair_of(Trajectory(task, 0), True, Verdict(None, "", "why")) == Pair(
        True, None, "voyager", "www.shop.test", "a"
    )
    named = Trajectory(Task("a", "x", "http://s.test/", meta={"site": "Shop"}), 0)
    assert pair_of(named, False, Verdict(True, "")) == Pair(False, True, "", "Shop", "a")


def test_the_tables(monkeypatch):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    monkeypatch.setattr(agreement, "CONSOLE", console)
    hostile = "[red]a.test"  # a name from a task file is not markup
    show(
        {
            "8B": score(pairs(4, 1, 2, 3, benchmark="WA", site=hostile)),
            "always": score(pairs(0, 0, 0, 0, invalid=2)),
        }
    )
    lines = [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]
    assert "8B 70.0 80.0 66.7 72.7 40–89 10 0" in lines  # table 3
    assert "always – – – – 0–100 0 2" in lines, "who says nothing is not the best of all"
    assert "8B 80.0 66.7 72.7 80.0" in lines and "always – – – –" in lines  # table 9
    assert "all 10 0 60.0 50.0 70.0 40–89 80.0 66.7 72.7" in lines
    assert f"{hostile} 10 0 60.0 50.0 70.0 40–89 80.0 66.7 72.7" in lines


# --- AgentRewardBench -----------------------------------------------------------------------------------

STEPS = [
    {
        "action": "click('a51')",
        "url": "http://shop.test/",
        "screenshot_path": "shots/0.png",
        "reasoning": "so",
    },
    {
        "action": "fill('b2', 'red (mugs), 2')",
        "url": "http://shop.test/search",
        "screenshot_path": "shots/1.png",
        "last_action_error": "TimeoutError: a51 is not visible",
    },
    {
        "action": 'send_msg_to_user("Two mugs.")',
        "url": "http://shop.test/x",
        "screenshot_path": "shots/2.png",
    },
    {"action": None, "url": "http://shop.test/x", "screenshot_path": "shots/3.png", "last_action_error": ""},
]


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Four rows on two episodes; one of them unlabelled."""
    (tmp_path / "annotations.csv").write_text(
        "annotator,benchmark,model_name,task_id,trajectory_success,comment\n"
        'x,webarena,Agent-1,webarena.17,Successful,"fine, really"\n'
        "y,webarena,Agent-1,webarena.17,Unsuccessful,\n"
        "x,webarena,Agent-2,webarena.17,unsuccessful ,\n"
        "x,webarena,Agent-2,webarena.18,Unsure,\n"
    )
    (tmp_path / "shots").mkdir()
    for n in range(4):
        (tmp_path / "shots" / f"{n}.png").write_bytes(b"shot %d" % n)
    for model in ("Agent-1", "Agent-2"):
        steps = STEPS if model == "Agent-1" else STEPS[:2]
        write(tmp_path, model, {"goal": "Order 2 red mugs", "steps": steps})
    return tmp_path


def write(folder: Path, model: str, record: object, task: str = "webarena.17") -> None:
    path = folder / "trajectories" / "cleaned" / "webarena" / model / f"{task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def test_episodes_with_peoples_labels(bench):
    (good, right), (bad, wrong) = read_agent_reward_bench(bench)
    assert (right, wrong) == (True, False), "the first label counts, and unsure ones leave"
    assert (good.task.id, good.task.instruction) == ("webarena.17", "Order 2 red mugs")
    assert good.task.meta == {"benchmark": "webarena", "site": "shop.test"}
    calls = [(turn.parsed.calls[0].name, turn.parsed.calls[0].arguments["text"]) for turn in good.turns]
    assert calls == [
        ("click", "a51"),
        ("fill", "b2', 'red (mugs), 2"),
        ("send_msg_to_user", "Two mugs."),
    ]
    assert [turn.feedback for turn in good.turns] == [("TimeoutError: a51 is not visible",), (), ()]
    assert (good.stop, good.answer, good.final_image) == (Stop.DONE, "Two mugs.", "shots/3.png")
    assert (bad.stop, bad.answer, len(bad.turns)) == (Stop.MAX_STEPS, "", 2)


def test_judgments_beside_the_episodes_are_no_episodes(bench):
    place = bench / "trajectories" / "judgments" / "webarena" / "Agent-1" / "functional" / "webarena.17.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert len(read_agent_reward_bench(bench)) == 2
    (bench / "trajectories" / "cleaned").rename(bench / "trajectories" / "mine")
    with pytest.raises(ValueError, match="there are 2 files webarena.17.json below"):
        read_agent_reward_bench(bench)


def test_workarenas_second_level_is_a_benchmark_of_its_own(bench):
    rows = "benchmark,model_name,task_id,trajectory_success\n"
    for task in ("workarena.servicenow.filter-list", "workarena.servicenow.onboard-user-L2"):
        rows += f"workarena,Agent-1,{task},Successful\n"
        write(bench, "Agent-1", {"goal": "x", "steps": STEPS}, task)
    (bench / "annotations.csv").write_text(rows)
    assert [t.task.meta["benchmark"] for t, _ in read_agent_reward_bench(bench)] == [
        "workarena",
        "workarena++",
    ]


def test_what_was_seen_before_the_last_action_is_not_called_what_it_led_to(bench):
    _, (bad, _) = read_agent_reward_bench(bench)
    assert bad.turns[-1].images == ("shots/1.png",) and bad.final_image == ""
    words = " ".join(p for p in judge_messages(bad, lambda name: b"")[1][1] if isinstance(p, str))
    assert "before step 2" in words and "after the last step" not in words


def test_they_can_be_judged(bench):
    (good, _), _ = read_agent_reward_bench(bench)
    messages = judge_messages(good, lambda name: (bench / name).read_bytes())
    assert [p for p in messages[1][1] if isinstance(p, bytes)] == [b"shot 1", b"shot 2", b"shot 3"]
    assert '> Step 1: click({"text": "a51"}) -> TimeoutError: a51 is not visible' in messages[1][1][0]


@pytest.mark.parametrize("shot", ["../secret.png", "/etc/passwd", "shots/../../secret.png"])
def test_screenshots_outside_of_the_folder_are_refused(bench, shot):
    write(bench, "Agent-1", {"goal": "x", "steps": [STEPS[0] | {"screenshot_path": shot}]})
    with pytest.raises(ValueError, match="webarena.17.json is no episode.*lies outside of the folder"):
        read_agent_reward_bench(bench)


@pytest.mark.parametrize(
    "record", [[], {"goal": "x"}, {"steps": []}, {"goal": "x", "steps": [7]}, {"goal": "x", "steps": "ab"}]
)
def test_a_file_of_another_form_is_named(bench, record):
    write(bench, "Agent-2", record)
    with pytest.raises(ValueError, match="Agent-2/webarena.17.json is no episode of AgentRewardBench"):
        read_agent_reward_bench(bench)


def test_missing_files_and_columns_are_named(bench, tmp_path):
    with pytest.raises(ValueError, match="annotations.csv can't be read"):
        read_agent_reward_bench(tmp_path / "elsewhere")
    table = bench / "annotations.csv"
    rows = table.read_text()
    table.write_text(rows.replace("task_id", "task"))
    with pytest.raises(ValueError, match="annotations.csv can't be read: the column task_id is missing"):
        read_agent_reward_bench(bench)
    table.write_text(rows + "x,webarena,Agent-3,webarena.17,Successful,\n")
    with pytest.raises(ValueError, match="line 6: there are 0 files webarena.17.json below"):
        read_agent_reward_bench(bench)
