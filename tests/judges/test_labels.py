"""Labels: which trajectories a teacher is asked about, what is kept of its answers, and what is held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from endpoint_server import say, serve
from hypothesis import given
from hypothesis import strategies as st

from minirl.config import JudgeConfig
from minirl.judges.labels import (
    Example,
    Label,
    RunsImages,
    goal_of,
    label_all,
    label_dumps,
    read_examples,
    read_labels,
    shuffled,
    split,
    target,
)
from minirl.judges.parsers import parse_last_line, read_verdict
from minirl.judges.settings import JudgeScriptConfig, tiny_judge
from minirl.run_folder import Run
from minirl.types import Parsed, Stop, Task, Trajectory
from minirl.worlds.teacher import world_teacher

TASK = shopping.tasks(1)[0]


def config_of(tmp_path: Path, run: Run) -> JudgeScriptConfig:
    return replace(tiny_judge(), name=str(tmp_path / "judge"), runs=(run.root,))


def example(task: Task, dump: str = "step_00001", line: int = 0, verdict: bool = True) -> Example:
    return Example(Label("run", dump, line, "", "Why.", verdict, "world"), Trajectory(task, 0))


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
    config = config_of(tmp_path, run)
    assert await label_all(config, world_teacher, "world") == {
        "labelled": 2,
        "left to the rules": 4,
        "no verdict: the task has no goal of its own": 1,
    }
    labels = read_labels(tmp_path / "judge/labels.jsonl")
    assert [(each.dump, each.line, each.verdict, each.source) for each in labels] == [
        ("step_00001", 1, True, "world"),
        ("step_00001", 5, False, "world"),
    ]
    assert [each.trajectory for each in read_examples(tmp_path / "judge/labels.jsonl")] == [good, bad]
    counts = await label_all(config, world_teacher, "world")
    assert (counts["labelled"], counts["labelled before"]) == (0, 2)


async def test_all_dumps_but_scripted_demonstrations_are_labelled(tmp_path):
    run = dump(Run(tmp_path / "web"), "demos", shopping.episode(TASK))
    with pytest.raises(ValueError, match="no dump of a policy in --runs"):
        await label_all(config_of(tmp_path, run), world_teacher, "world")
    for name in ("after_sft", "step_00002"):
        dump(run, name, shopping.episode(TASK))
        await label_all(config_of(tmp_path, run), world_teacher, "world")
    labels = read_labels(tmp_path / "judge/labels.jsonl")
    assert [label.dump for label in labels] == ["after_sft", "step_00002"]


async def test_a_dump_that_has_changed_is_refused(tmp_path):
    run = dump(Run(tmp_path / "web"), "step_00001", shopping.episode(TASK))
    await label_all(config_of(tmp_path, run), world_teacher, "world")
    dump(run, "step_00001", shopping.episode(TASK, colour="mauve"))
    with pytest.raises(ValueError, match="step_00001 of .*web has changed since it was labelled"):
        read_examples(tmp_path / "judge/labels.jsonl")
    dump(run, "step_00001")
    with pytest.raises(ValueError, match="has changed since it was labelled"):
        read_examples(tmp_path / "judge/labels.jsonl")


async def test_a_served_teacher_is_asked_in_full_and_what_it_leaves_out_is_tried_again(tmp_path, ranks):
    run = Run(tmp_path / "web")
    image = run.images.put(shopping.picture(9))
    dump(run, "step_00001", *(shopping.episode(task, 0, image) for task in shopping.tasks(3)))
    hard = shopping.tasks(3)[1].instruction

    def answer(request: dict) -> str:
        return "Who knows?" if hard in json.dumps(request) else "All of it was ordered.\nSUCCESS"

    for acts, expected in ([say(answer)], 2), ([say("Not one kite.\nNOT SUCCESS")], 3):
        with serve(acts) as server:
            judge = JudgeConfig(url=server.url, model="teacher", input="brief")
            config = replace(config_of(tmp_path, run), judge=judge)
            await label_dumps(config, ranks, world_teacher)
        labels = read_labels(tmp_path / "judge/labels.jsonl")
        assert len(labels) == expected
        question = json.dumps(server.requests[0]["messages"])
        assert "You check the work" in question and "image_url" in question
    assert len(server.requests) == 1, "two had labels already"
    assert [(each.rationale, each.verdict) for each in labels] == [
        ("All of it was ordered.", True),
        ("Not one kite.", False),
        ("All of it was ordered.", True),
    ]
    assert {each.source for each in labels} == {"teacher"}


@given(st.text(), st.booleans())
def test_a_target_reads_as_its_verdict(rationale, verdict):
    said = read_verdict(parse_last_line, target(f"So: {rationale}", verdict))
    assert said.success is verdict


def test_a_file_without_labels_and_a_line_that_is_none_are_named(tmp_path):
    path = tmp_path / "labels.jsonl"
    with pytest.raises(ValueError, match="has no labels; make them with judge.py label"):
        read_labels(path)
    path.write_text('{"run": "web"}\n')
    with pytest.raises(ValueError, match="line 1, cannot be read .*dump Field required"):
        read_labels(path)


def test_screenshots_of_several_runs_are_found_in_whichever_has_them(tmp_path):
    runs = [Run(tmp_path / name) for name in ("one", "two")]
    names = [run.images.put(shopping.picture(n)) for n, run in enumerate(runs)]
    images = RunsImages([run.root for run in runs])
    assert [images.get(name) for name in names] == [shopping.picture(0), shopping.picture(1)]
    with pytest.raises(ValueError, match="screenshot 0123 is in none of the runs"):
        images.get("0123")


TASKS = st.builds(
    lambda words, goal, host: Task("t", f"order {words}", f"http://{host}.test/", goal),
    st.integers(0, 12),
    st.one_of(st.just({}), st.integers(0, 12).map(lambda n: {"page": str(n)})),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(st.tuples(TASKS, st.integers(1, 6)), min_size=4, max_size=40), st.integers(0, 3))
def test_no_goal_and_no_stage_is_on_both_sides(drawn, seed):
    examples = [example(task, f"step_{stage:05d}", n) for n, (task, stage) in enumerate(drawn)]
    try:
        train, heldout = split(examples, 0.3, 0.3, seed)
    except ValueError as error:
        assert "too few to hold some out" in str(error)
        return
    assert len(train) + len(heldout) == len(examples)
    goals, steps = ({goal_of(e.trajectory.task) for e in train}, {e.label.dump for e in train})
    for each in heldout:
        assert goal_of(each.trajectory.task) not in goals or each.label.dump not in steps
    assert split(examples, 0.3, 0.3, seed) == (train, heldout)
    backwards = split(examples[::-1], 0.3, 0.3, seed)
    assert {e.label for e in backwards[0]} == {e.label for e in train}


def test_a_goal_is_told_by_site_and_instruction():
    one, two = ({"page": "A"}, {"page": "B"})
    tasks = [
        Task("1", "order a mug", "http://a.test/", one),
        Task("2", "order a mug", "http://a.test/x", two),
        Task("3", "order a mug", "http://a.test/"),
        Task("4", "order a mug", "http://b.test/", one),  # another site
        Task("5", "get a mug", "http://a.test/", one),  # other words
    ]
    goals = [goal_of(task) for task in tasks]
    assert goals[0] == goals[1] == goals[2] and len(set(goals)) == 3


def test_shares_are_kept_and_each_seed_holds_out_others():
    tasks = shopping.tasks(20)
    examples = [example(t, f"step_{s:05d}", n) for n, t in enumerate(tasks) for s in range(1, 11)]
    train, heldout = split(examples, 0.2, 0.2, seed=0)
    assert len(train) == 16 * 8 and len(heldout) == 200 - 16 * 8
    assert len({goal_of(e.trajectory.task) for e in train}) == 16 and len({e.label.dump for e in train}) == 8
    other = split(examples, 0.2, 0.2, seed=1)[0]
    assert {e.label for e in other} != {e.label for e in train}
    without = split(examples, 0.2, 0.0, seed=0)[1]
    assert len(without) == 4 * 10 and len({goal_of(e.trajectory.task) for e in without}) == 4
    with pytest.raises(ValueError, match="1 labels on 1 goals are too few"):
        split(examples[:1], 0.2, 0.2, seed=0)


def test_an_evaluation_belongs_to_its_step():
    """The one whose policy it evaluates, whatever else its name says; and the warm start's to the first. What
    is of no step is not held out as a stage."""
    pairs = [("step_00001", "after_sft"), ("step_00005", "eval_step_00004_webvoyager-official")]
    dumps = [*sum(pairs, ()), "eval_step_00005", "before", "validation", "after_rl"]
    examples = [example(TASK, name) for name in dumps]
    seen = set()
    for seed in range(12):
        _, heldout = split(examples, 0.1, 0.1, seed)
        held = {e.label.dump for e in heldout}
        assert held in [{*pairs[0]}, {*pairs[1]}, {"eval_step_00005"}]
        seen |= held
    assert len(seen) == 5


def test_the_control_keeps_the_labels_and_loses_what_they_are_about():
    examples = [example(t, line=n, verdict=n % 4 == 0) for n, t in enumerate(shopping.tasks(40))]
    mixed = shuffled(examples, seed=0)
    assert sum(e.label.verdict for e in mixed) == 10
    assert [e.trajectory for e in mixed] == [e.trajectory for e in examples]
    assert [e.label.line for e in mixed] == [e.label.line for e in examples]
    assert 10 < sum(a.label.verdict == b.label.verdict for a, b in zip(mixed, examples, strict=True)) < 40
    assert mixed == shuffled(examples, seed=0) != shuffled(examples, seed=1)
