"""AgentRewardBench's episodes, read from a made-up folder and scored."""

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
from minirl.judges.labels import HELD_OUT
from minirl.judges.rubrics import Question
from minirl.judges.settings import tiny_judge
from minirl.run_folder import Run
from minirl.types import Stop

pytestmark = pytest.mark.more
PLACE = {"url": "http://shop.test/x"}
STEPS = [
    PLACE | {"action": "click('a51')", "screenshot_path": "shots/0.png", "reasoning": "so"},
    PLACE
    | {"action": "fill('b2', 'red (mugs), 2')", "screenshot_path": "shots/1.png"}
    | {"last_action_error": "TimeoutError: a51 is not visible"},
    PLACE | {"action": 'send_msg_to_user("Two mugs.")', "screenshot_path": "shots/2.png"},
    PLACE | {"action": None, "screenshot_path": "shots/3.png", "last_action_error": ""},
]
HEAD = "benchmark,model_name,task_id,trajectory_success"


def write(folder: Path, model: str, record: object, task: str = "webarena.17") -> None:
    path = folder / "trajectories" / "cleaned" / "webarena" / model / f"{task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Four rows on two episodes; one of them unlabelled."""
    rows = (
        'x,webarena,Agent-1,webarena.17,Successful,"fine, really"',
        "y,webarena,Agent-1,webarena.17,Unsuccessful,",
    )
    rows += ("x,webarena,Agent-2,webarena.17,unsuccessful ,", "x,webarena,Agent-2,webarena.18,Unsure,")
    (tmp_path / "annotations.csv").write_text("\n".join((f"annotator,{HEAD},comment", *rows, "")))
    (tmp_path / "shots").mkdir()
    for n in range(4):
        (tmp_path / "shots" / f"{n}.png").write_bytes(b"shot %d" % n)
    write(tmp_path, "Agent-1", {"goal": "Order 2 red mugs", "steps": STEPS})
    write(tmp_path, "Agent-2", {"goal": "Order 2 red mugs", "steps": STEPS[:2]})
    return tmp_path


def test_episodes_with_peoples_labels(bench):
    good, bad = read_bench(bench, str)
    verdicts = good.verdict.success, bad.verdict.success
    assert verdicts == (True, False), "the first label counts, and unsure ones leave"
    assert (good.task.id, good.task.instruction) == ("webarena.17", "Order 2 red mugs")
    assert good.task.meta == {"benchmark": "webarena", "site": "shop.test"}
    calls = [(turn.parsed.calls[0].name, turn.parsed.calls[0].arguments["text"]) for turn in good.turns]
    assert calls == [("click", "a51"), ("fill", "b2', 'red (mugs), 2"), ("send_msg_to_user", "Two mugs.")]
    assert [turn.feedback for turn in good.turns] == [("TimeoutError: a51 is not visible",), (), ()]
    assert (good.stop, good.answer, good.final_image) == (Stop.DONE, "Two mugs.", "shots/3.png")
    assert (bad.stop, bad.answer, len(bad.turns)) == (Stop.MAX_STEPS, "", 2)
    assert bad.turns[-1].images == ("shots/1.png",)
    assert bad.final_image == "", "what was there before the last action is not what it led to"


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("send_msg_to_user('9 to 17')", "9 to 17"),
        ("send_msg_to_user(text='9 to 17')", "9 to 17"),
        ("send_msg_to_user('It\\'s open')", "It's open"),
        ("send_msg_to_user('It\\'s \"open\"')", 'It\'s "open"'),
        ("send_msg_to_user(9)", "9"),
    ],
)
def test_an_answer_is_what_the_call_says(bench, action, answer):
    """The table may begin with a byte order mark."""
    write(bench, "Agent-1", {"goal": "x", "steps": [PLACE | {"action": action}]})
    table = bench / "annotations.csv"
    table.write_text(f"\ufeff{HEAD},comment\nwebarena,Agent-1,webarena.17,Successful,{'long' * 50000}\n")
    (episode,) = read_bench(bench, str)
    assert episode.answer == answer


def test_judgments_are_no_episodes_and_workarenas_second_level_is_a_benchmark_of_its_own(bench):
    place = bench / "trajectories" / "judgments" / "webarena" / "Agent-1" / "functional" / "webarena.17.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    assert len(read_bench(bench, str)) == 2
    tasks = ("workarena.servicenow.filter-list", "workarena.servicenow.onboard-user-L2")
    for task in tasks:
        write(bench, "Agent-1", {"goal": "x", "steps": STEPS}, task)
    rows = [f"workarena,Agent-1,{task},Successful" for task in tasks]
    (bench / "annotations.csv").write_text("\n".join((HEAD, *rows)))
    names = [trajectory.task.meta["benchmark"] for trajectory in read_bench(bench, str)]
    assert names == ["workarena", "workarena++"]


def test_the_run_folder_can_be_judged(bench, tmp_path):
    assert write_run(bench, tmp_path / "run") == 2
    run = Run(tmp_path / "run")
    good, bad = run.load_trajectories(HELD_OUT)
    assert (good.verdict.success, bad.verdict.success) == (True, False)
    parts = Question().messages(good, run.images)[1][1]
    assert [p for p in parts if isinstance(p, bytes)] == [b"shot 1", b"shot 2", b"shot 3"]
    assert '> Step 1: click({"text": "a51"}) -> TimeoutError: a51 is not visible' in parts[0]


@pytest.mark.parametrize("shot", ["../secret.png", "/etc/passwd", "shots/../../secret.png"])
def test_screenshots_outside_of_the_folder_are_refused(bench, tmp_path, shot):
    write(bench, "Agent-2", {"goal": "x", "steps": [{"screenshot_path": shot}]})
    with pytest.raises(ValueError, match="lies outside of"):
        write_run(bench, tmp_path / "run")


def test_what_is_malformed_or_missing_is_named(bench, tmp_path):
    for record in ([], {"goal": "x"}, {"steps": []}, {"goal": "x", "steps": [7]}):
        write(bench, "Agent-2", record)
        with pytest.raises(ValueError, match="Agent-2/webarena.17.json is no episode of AgentRewardBench"):
            read_bench(bench, str)
    with pytest.raises(ValueError, match="annotations.csv can't be read"):
        read_bench(tmp_path / "elsewhere", str)
    table = bench / "annotations.csv"
    rows = table.read_text()
    table.write_text(rows.replace("task_id", "task"))
    with pytest.raises(ValueError, match="annotations.csv can't be read: 'task_id'"):
        read_bench(bench, str)
    table.write_bytes(table.read_text().encode("utf-16"))
    with pytest.raises(ValueError, match="annotations.csv can't be read: 'utf-8' codec"):
        read_bench(bench, str)
    table.write_text(f"{HEAD}\nwebarena,Agent-1,webarena.17,1\n")
    with pytest.raises(ValueError, match="annotations.csv labels no episode as one of successful"):
        read_bench(bench, str)
    table.write_text(f"{HEAD}\nwebarena,Agent-3,webarena.17,Successful\n")
    with pytest.raises(ValueError, match="has 0 files webarena.17.json of Agent-3, not one"):
        read_bench(bench, str)


async def test_a_served_judge_is_scored(tmp_path, ranks):
    """Four episodes of which three succeed; the judge lets all of them pass but the one without an answer."""
    bench = tmp_path / "bench"
    lines = [HEAD]
    for n, truth in enumerate(["Successful", "Unsuccessful", "Successful", "Successful"]):
        lines.append(f"webarena,Agent,{n},{truth}")
        step = {"action": f"send_msg_to_user('answer {n}')", "screenshot_path": "shot.png"}
        write(bench, "Agent", {"goal": "Count", "steps": [PLACE | step]}, str(n))
    (bench / "annotations.csv").write_text("\n".join(lines))
    (bench / "shot.png").write_bytes(shopping.picture(1))
    write_run(bench, tmp_path / "judge")

    def answer(request: dict) -> str:
        return "Hm." if "answer 3" in json.dumps(request) else "Fine.\nSUCCESS"

    with serve([say(answer)]) as server, CONSOLE.capture() as printed:
        judge = JudgeConfig(url=server.url, model="big")
        await score_judge(replace(tiny_judge(), name=str(tmp_path / "judge"), judge=judge), ranks)
    table = " ".join(printed.get().replace("│", " ").split())
    # of three verdicts two are right, and one was not to be had
    assert re.search(r"big 66.7 66.7 100.0 80.0 \S+ 3 1 webarena 66.7 66.7 100.0 80.0", table)
    assert "always SUCCESS 75.0 75.0 100.0 85.7" in table
