"""Labels: which trajectories a teacher is asked about, what is kept of its answers, and what is held out."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import shopping
from endpoint_server import say, serve
from hypothesis import given
from hypothesis import strategies as st

from minirl.config import JudgeConfig
from minirl.judges.labels import LABELLED, goal_of, label_all, label_dumps, split, without_ids
from minirl.judges.settings import JudgeScriptConfig, tiny_judge
from minirl.run_folder import Run
from minirl.types import Parsed, Stop, Task, Trajectory, Verdict
from minirl.worlds.teacher import world_teacher

TASK = shopping.tasks(1)[0]


def config_of(tmp_path: Path, run: Run) -> JudgeScriptConfig:
    return replace(tiny_judge(), name=str(tmp_path / "judge"), runs=(run.root,))


def dump(run: Run, name: str, *trajectories: Trajectory) -> Run:
    run.save_trajectories(name, trajectories)
    return run


async def test_what_a_judge_would_be_asked_about_is_labelled_once(tmp_path):
    good, bad = shopping.episode(TASK), shopping.episode(TASK, 1, colour="mauve")
    unread = replace(good.turns[0], parsed=Parsed(error="Error: no call."))
    others = (
        replace(good, stop=Stop.MAX_STEPS),
        replace(good, stop=Stop.TIMEOUT),
        replace(good, answer=" "),
        replace(good, turns=(unread, *good.turns)),
    )
    run = dump(Run(tmp_path / "web"), "step_00001", others[0], good, *others[1:], bad)
    dump(run, "step_00002", replace(good, task=replace(TASK, goal={})))
    dump(run, "demos", good)  # nobody's policy
    config, own = config_of(tmp_path, run), Run(tmp_path / "judge")
    assert await label_all(config, own, world_teacher) == {
        "labelled": 2,
        "decided by the gates": 4,
        "no verdict: the task has no goal of its own": 1,
    }
    labelled = own.load_trajectories(LABELLED)
    assert [t.verdict.success for t in labelled] == [True, False]
    assert [replace(t, verdict=None) for t in labelled] == [without_ids(good), without_ids(bad)]
    assert not any(turn.response_ids or turn.logprobs for t in labelled for turn in t.turns)
    counts = await label_all(config, own, world_teacher)
    assert (counts["labelled"], counts["labelled before"]) == (0, 2)
    dump(run, "after_sft", replace(good, member=7))
    assert (await label_all(config, own, world_teacher))["labelled"] == 1
    with pytest.raises(ValueError, match="no dump of a policy in --runs"):
        await label_all(config_of(tmp_path, Run(tmp_path / "none")), own, world_teacher)


async def test_an_episode_without_done_is_labelled_where_any_ending_is_judged(tmp_path):
    stopped = replace(shopping.episode(TASK), stop=Stop.MAX_STEPS)
    config = config_of(tmp_path, dump(Run(tmp_path / "web"), "step_00001", stopped))
    counts = {}
    for after in ("done", "any"):
        asked = replace(config, reward=replace(config.reward, after=after))
        counts[after] = await label_all(asked, Run(tmp_path / after), world_teacher)
    assert counts == {"done": {"decided by the gates": 1}, "any": {"labelled": 1}}


async def test_a_served_teacher_is_asked_in_full_and_what_it_leaves_out_is_tried_again(tmp_path, ranks):
    run, own = Run(tmp_path / "web"), Run(tmp_path / "judge")
    image = run.images.put(shopping.picture(9))
    dump(run, "step_00001", *(shopping.episode(task, 0, image) for task in shopping.tasks(3)))
    hard = shopping.tasks(3)[1].instruction

    def answer(request: dict) -> str:
        return "Who knows?" if hard in json.dumps(request) else "All of it was ordered.\nSUCCESS"

    for acts, expected in ([say(answer)], 2), ([say("Not one kite.\nNOT SUCCESS")], 3):
        with serve(acts) as server:
            judge = JudgeConfig(url=server.url, model="teacher", input="brief")
            await label_dumps(replace(config_of(tmp_path, run), judge=judge), ranks, world_teacher)
        labelled = own.load_trajectories(LABELLED)
        assert len(labelled) == expected
        question = json.dumps(server.requests[0]["messages"])
        assert "You check the work" in question and "image_url" in question
    assert len(server.requests) == 1, "two had labels already"
    assert [t.verdict.success for t in labelled] == [True, True, False]
    assert labelled[-1].task.instruction == hard and labelled[-1].verdict.rationale == "Not one kite."
    assert own.images.get(image) == shopping.picture(9), "the judge's run holds what a judge may see"


TASKS = st.builds(
    lambda words, host: Task("t", f"order {words}", f"http://{host}.test/"),
    st.integers(0, 12),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(TASKS, min_size=4, max_size=40), st.integers(0, 3))
def test_no_goal_is_on_both_sides(tasks, seed):
    labelled = [Trajectory(task, n) for n, task in enumerate(tasks)]
    if len({goal_of(trajectory) for trajectory in labelled}) == 1:
        with pytest.raises(ValueError, match="on 1 goals are too few to hold some out"):
            split(labelled, 0.3, seed)
        return
    train, heldout = split(labelled, 0.3, seed)
    assert sorted(t.member for t in train + heldout) == list(range(len(labelled)))
    assert {goal_of(t) for t in train}.isdisjoint(goal_of(t) for t in heldout)
    assert split(labelled, 0.3, seed) == (train, heldout)


def test_shares_are_kept_and_each_seed_holds_out_others():
    labelled = [Trajectory(task, n) for task in shopping.tasks(20) for n in range(10)]
    train, heldout = split(labelled, 0.2, seed=0)
    assert (len(train), len(heldout)) == (160, 40)
    assert split(labelled, 0.2, seed=1)[1] != heldout


def test_a_goal_is_told_by_site_and_instruction():
    tasks = [
        Task("1", "order a mug", "http://a.test/", {"page": "A"}),
        Task("2", "order a mug", "http://a.test/x", {"page": "B"}),
        Task("3", "order a mug", "http://b.test/"),  # another site
        Task("4", "get a mug", "http://a.test/"),  # other words
    ]
    goals = [goal_of(Trajectory(task, 0)) for task in tasks]
    assert goals[0] == goals[1] and len(set(goals)) == 3


async def test_a_checkpoint_can_be_the_teacher(tmp_path, ranks, monkeypatch):
    """And is not passed over for what the tasks' own rules say."""
    run, own = Run(tmp_path / "web"), Run(tmp_path / "judge")
    dump(run, "step_00001", shopping.episode(TASK))
    asked = []

    def opened(config, *_):
        asked.append(config.judge.path)
        return nullcontext(AsyncMock(return_value=Verdict(False, "Not one kite.")))

    monkeypatch.setattr("minirl.judges.labels.open_judge", opened)
    config = config_of(tmp_path, run)
    await label_dumps(replace(config, judge=replace(config.judge, path="checkpoint")), ranks, world_teacher)
    (labelled,) = own.load_trajectories(LABELLED)
    assert asked == ["checkpoint"] and labelled.verdict == Verdict(False, "Not one kite.")
