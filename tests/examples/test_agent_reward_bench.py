"""AgentRewardBench's episodes read from a made-up folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minirl.judges.agent_reward_bench import FolderImages, read_agent_reward_bench
from minirl.judges.rubrics import Question
from minirl.types import Stop

FIELDS = ("action", "url", "screenshot_path", "reasoning", "last_action_error")
STEPS = [
    {field: value for field, value in zip(FIELDS, values, strict=True) if value != "missing"}
    for values in (
        ("click('a51')", "http://shop.test/", "shots/0.png", "so", "missing"),
        ("fill('b2', 'red (mugs), 2')", "http://shop.test/search", "shots/1.png", "missing",
         "TimeoutError: a51 is not visible"),
        ('send_msg_to_user("Two mugs.")', "http://shop.test/x", "shots/2.png", "missing", "missing"),
        (None, "http://shop.test/x", "shots/3.png", "missing", ""),
    )
]  # fmt: skip


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


def asked(trajectory, bench: Path) -> tuple:
    """What a judge is shown of an episode."""
    return Question().messages(trajectory, FolderImages(bench))[1][1]


def test_episodes_with_peoples_labels(bench):
    examples = read_agent_reward_bench(bench)
    good, bad = (example.trajectory for example in examples)
    assert [example.label.verdict for example in examples] == [True, False], (
        "the first label counts, and unsure ones leave"
    )
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
    with pytest.raises(ValueError, match="has 2 files webarena.17.json of Agent-., not one"):
        read_agent_reward_bench(bench)


def test_workarenas_second_level_is_a_benchmark_of_its_own(bench):
    rows = "benchmark,model_name,task_id,trajectory_success\n"
    for task in ("workarena.servicenow.filter-list", "workarena.servicenow.onboard-user-L2"):
        rows += f"workarena,Agent-1,{task},Successful\n"
        write(bench, "Agent-1", {"goal": "x", "steps": STEPS}, task)
    (bench / "annotations.csv").write_text(rows)
    names = [example.trajectory.task.meta["benchmark"] for example in read_agent_reward_bench(bench)]
    assert names == ["workarena", "workarena++"]


def test_what_was_seen_before_the_last_action_is_not_called_what_it_led_to(bench):
    bad = read_agent_reward_bench(bench)[1].trajectory
    assert bad.turns[-1].images == ("shots/1.png",) and bad.final_image == ""
    words = " ".join(p for p in asked(bad, bench) if isinstance(p, str))
    assert "before step 2" in words and "after the last step" not in words


def test_they_can_be_judged(bench):
    good = read_agent_reward_bench(bench)[0].trajectory
    parts = asked(good, bench)
    assert [p for p in parts if isinstance(p, bytes)] == [b"shot 1", b"shot 2", b"shot 3"]
    assert '> Step 1: click({"text": "a51"}) -> TimeoutError: a51 is not visible' in parts[0]


@pytest.mark.parametrize("shot", ["../secret.png", "/etc/passwd", "shots/../../secret.png"])
def test_screenshots_outside_of_the_folder_are_refused(bench, shot):
    with pytest.raises(ValueError, match="lies outside of"):
        FolderImages(bench).get(shot)


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
    with pytest.raises(ValueError, match="annotations.csv can't be read: 'task_id'"):
        read_agent_reward_bench(bench)
    table.write_text(rows + "x,webarena,Agent-3,webarena.17,Successful,\n")
    with pytest.raises(ValueError, match="has 0 files webarena.17.json of Agent-3, not one"):
        read_agent_reward_bench(bench)
