"""AgentRewardBench's episodes, read from a made-up folder and scored."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from endpoint_server import say, serve

from examples.agent_reward_bench.read import read_bench, write_run
from minirl.config import JudgeConfig
from minirl.console import CONSOLE
from minirl.judges.distill import score_judge
from minirl.judges.labels import RunsImages, read_examples
from minirl.judges.rubrics import Question
from minirl.judges.settings import tiny_judge
from minirl.types import Stop, Trajectory

pytestmark = pytest.mark.more
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


def read(folder: Path) -> list[tuple[Trajectory, bool]]:
    """The episodes, with screenshots that are named by their paths."""
    return read_bench(folder, store=str)


def test_episodes_with_peoples_labels(bench):
    (good, yes), (bad, no) = read(bench)
    assert (yes, no) == (True, False), "the first label counts, and unsure ones leave"
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
    assert bad.turns[-1].images == ("shots/1.png",)
    assert bad.final_image == "", "what was there before the last action is not what it led to"


def test_judgments_beside_the_episodes_are_no_episodes(bench):
    place = bench / "trajectories" / "judgments" / "webarena" / "Agent-1" / "functional" / "webarena.17.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert len(read(bench)) == 2
    (bench / "trajectories" / "cleaned").rename(bench / "trajectories" / "mine")
    with pytest.raises(ValueError, match="has 2 files webarena.17.json of Agent-., not one"):
        read(bench)


def test_workarenas_second_level_is_a_benchmark_of_its_own(bench):
    rows = "benchmark,model_name,task_id,trajectory_success\n"
    for task in ("workarena.servicenow.filter-list", "workarena.servicenow.onboard-user-L2"):
        rows += f"workarena,Agent-1,{task},Successful\n"
        write(bench, "Agent-1", {"goal": "x", "steps": STEPS}, task)
    (bench / "annotations.csv").write_text(rows)
    names = [trajectory.task.meta["benchmark"] for trajectory, _ in read(bench)]
    assert names == ["workarena", "workarena++"]


def test_the_run_folder_can_be_judged(bench, tmp_path):
    root = tmp_path / "run"
    assert write_run(bench, root) == 2
    good, bad = read_examples(root / "heldout.jsonl")
    assert (good.label.verdict, bad.label.verdict, good.label.source) == (True, False, "people")
    parts = Question().messages(good.trajectory, RunsImages([root]))[1][1]
    assert [p for p in parts if isinstance(p, bytes)] == [b"shot 1", b"shot 2", b"shot 3"]
    assert '> Step 1: click({"text": "a51"}) -> TimeoutError: a51 is not visible' in parts[0]


@pytest.mark.parametrize("shot", ["../secret.png", "/etc/passwd", "shots/../../secret.png"])
def test_screenshots_outside_of_the_folder_are_refused(bench, tmp_path, shot):
    write(bench, "Agent-2", {"goal": "x", "steps": [{"screenshot_path": shot}]})
    with pytest.raises(ValueError, match="lies outside of"):
        write_run(bench, tmp_path / "run")


@pytest.mark.parametrize("record", [[], {"goal": "x"}, {"steps": []}, {"goal": "x", "steps": [7]}])
def test_a_file_of_another_form_is_named(bench, record):
    write(bench, "Agent-2", record)
    with pytest.raises(ValueError, match="Agent-2/webarena.17.json is no episode of AgentRewardBench"):
        read(bench)


def test_missing_files_and_columns_are_named(bench, tmp_path):
    with pytest.raises(ValueError, match="annotations.csv can't be read"):
        read(tmp_path / "elsewhere")
    table = bench / "annotations.csv"
    rows = table.read_text()
    table.write_text(rows.replace("task_id", "task"))
    with pytest.raises(ValueError, match="annotations.csv can't be read: 'task_id'"):
        read(bench)
    table.write_text(rows + "x,webarena,Agent-3,webarena.17,Successful,\n")
    with pytest.raises(ValueError, match="has 0 files webarena.17.json of Agent-3, not one"):
        read(bench)


async def test_a_served_judge_is_scored(tmp_path, ranks):
    """Four episodes of which three succeed; the judge lets all of them pass but the one without an answer."""
    bench = tmp_path / "bench"
    lines = ["benchmark,model_name,task_id,trajectory_success"]
    for n, truth in enumerate(["Successful", "Unsuccessful", "Successful", "Successful"]):
        lines.append(f"webarena,Agent,{n},{truth}")
        step = {"action": f"send_msg_to_user('answer {n}')", "screenshot_path": "shot.png"}
        write(bench, "Agent", {"goal": "Count", "steps": [step | {"url": "http://shop.test/"}]}, str(n))
    (bench / "annotations.csv").write_text("\n".join(lines))
    (bench / "shot.png").write_bytes(shopping.picture(1))
    write_run(bench, tmp_path / "judge")

    def answer(request: dict) -> str:
        return "Hm." if "answer 3" in json.dumps(request) else "Fine.\nSUCCESS"

    with serve([say(answer)]) as server, CONSOLE.capture() as printed:
        judge = JudgeConfig(url=server.url, model="big")
        await score_judge(replace(tiny_judge(), name=str(tmp_path / "judge"), judge=judge), ranks)
    table = " ".join(printed.get().split())
    # of three verdicts two are right, and one was not to be had
    assert re.search(r"big 66.7 66.7 100.0 80.0 \S+ 3 1 webarena 66.7 66.7 100.0 80.0", table)
    assert "always SUCCESS 75.0 75.0 100.0 85.7" in table
