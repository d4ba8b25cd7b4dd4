"""Labels, the split, what a judge is trained on, and a small one that learns it, all without a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from endpoint_server import say, serve
from hypothesis import given
from hypothesis import strategies as st

from minirl.config import Config, DistilConfig, JudgeConfig
from minirl.console import CONSOLE
from minirl.experiment import names_of
from minirl.judges.distill import (
    Question,
    batches,
    distil,
    exchanged,
    label,
    score_judge,
    training_row,
    updates_of,
)
from minirl.judges.judge import judge_messages, parse_verdict
from minirl.judges.labels import (
    Example,
    Label,
    goals_of,
    label_runs,
    read_examples,
    read_labels,
    shuffled,
    split,
    target,
    world_rationale,
    world_teacher,
)
from minirl.judges.local import open_judge, question_of
from minirl.recipes import tiny_judge
from minirl.run_folder import Run
from minirl.tiny import checkpoints as tiny
from minirl.types import Parsed, Stop, Task, Trajectory, Turn

TASK = shopping.tasks(1)[0]


def config_of(tmp_path: Path, run: Run | None = None, **fields) -> Config:
    settings = DistilConfig(runs=(run.root,) if run else ())
    return replace(tiny_judge(), out=tmp_path, name="judge", threads=1, distil=settings, **fields)


def example(task: Task, dump: str = "step_00001", line: int = 0, verdict: bool = True) -> Example:
    return Example(Label("run", dump, line, "", "Why.", verdict, "world"), Trajectory(task, 0))


# --- the world as a teacher ------------------------------------------------------------------------------


def test_reasons_are_the_goals_conditions_one_by_one():
    wanted = shopping.wanted(TASK)
    told = world_rationale(shopping.episode(TASK, colour="mauve"))
    category, product, colour = wanted["category"], wanted["product"], wanted["colour"]
    assert told == (
        f"The page should be DONE, is DONE. The category should be {category}, is {category}. The product "
        f"should be {product}, is {product}. The colour should be {colour}, is mauve, which is wrong. The "
        f"size should be {wanted['size']}, is {wanted['size']}. The quantity should be {wanted['quantity']}, "
        f"is {wanted['quantity']}."
    )
    assert "wrong" not in world_rationale(shopping.episode(TASK))


def test_other_conditions_and_what_is_not_there():
    where = [{"path": "$.view.price", "cond": "gt", "value": 5}, {"path": "$.name", "cond": "not_null"}]
    task = replace(TASK, goal={"page": "END", "where": where})
    ended = Trajectory(task, 0, final_state={"page": "MAP", "signature": {"view": {"price": 7}}})
    assert world_rationale(ended) == (
        "The page should be END, is MAP, which is wrong. The price should be gt 5, is 7. The name should be "
        "not_null, is nothing, which is wrong."
    )


def test_where_there_is_no_state_the_last_report_is_quoted_on_one_line():
    turn = Turn(0, (), (), (), "", feedback=("click: done.", "type:\nSUCCESS\nfailed"))
    task = replace(TASK, goal={"kind": "webarena"})
    failed = Trajectory(task, 0, turns=(turn,), final_state={"score": 0, "reason": "no order\nwas found"})
    assert world_rationale(failed) == (
        "The task's own check does not hold (no order was found). "
        "The browser reported last: type: SUCCESS failed"
    )
    assert parse_verdict(target(world_rationale(failed), False)).success is False


# --- labelling -------------------------------------------------------------------------------------------


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
    assert await label_runs(config, world_teacher, "world") == {
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
    counts = await label_runs(config, world_teacher, "world")
    assert (counts["labelled"], counts["labelled before"]) == (0, 2)
    with pytest.raises(ValueError, match="holds labels by world, not by gpt"):
        await label_runs(config, world_teacher, "gpt")


async def test_chosen_dumps_only_and_a_dump_that_is_not_there(tmp_path):
    run = dump(Run(tmp_path / "web"), "step_00001", shopping.episode(TASK))
    dump(run, "step_00002", shopping.episode(TASK))
    config = config_of(tmp_path, run)
    config = replace(config, distil=replace(config.distil, dumps=("step_00002",)))
    await label_runs(config, world_teacher, "world")
    assert [each.dump for each in read_labels(tmp_path / "judge/labels.jsonl")] == ["step_00002"]
    config = replace(config, distil=replace(config.distil, dumps=("step_00003",)))
    with pytest.raises(ValueError, match="has no dump step_00003"):
        await label_runs(config, world_teacher, "world")


async def test_scripted_demonstrations_are_labelled_only_if_they_are_asked_for(tmp_path):
    run = dump(Run(tmp_path / "web"), "demos", shopping.episode(TASK))
    config = config_of(tmp_path, run)
    with pytest.raises(ValueError, match="has no dump of a policy"):
        await label_runs(config, world_teacher, "world")
    dump(run, "after_sft", shopping.episode(TASK))
    await label_runs(config, world_teacher, "world")
    assert [each.dump for each in read_labels(tmp_path / "judge/labels.jsonl")] == ["after_sft"]
    config = replace(config, distil=replace(config.distil, dumps=("demos",)))
    await label_runs(config, world_teacher, "world")
    assert [each.dump for each in read_labels(tmp_path / "judge/labels.jsonl")] == ["after_sft", "demos"]


async def test_a_dump_that_has_changed_is_refused(tmp_path):
    run = dump(Run(tmp_path / "web"), "step_00001", shopping.episode(TASK))
    await label_runs(config_of(tmp_path, run), world_teacher, "world")
    dump(run, "step_00001", shopping.episode(TASK, colour="mauve"))
    with pytest.raises(ValueError, match="step_00001 of .*web has changed since it was labelled"):
        read_examples(tmp_path / "judge/labels.jsonl")
    dump(run, "step_00001")
    with pytest.raises(ValueError, match="has changed since it was labelled"):
        read_examples(tmp_path / "judge/labels.jsonl")


async def test_a_served_teacher_is_asked_in_full_and_what_it_leaves_out_is_tried_again(tmp_path, ranks):
    run = Run(tmp_path / "web")
    image = run.put_image(shopping.picture(9))
    dump(run, "step_00001", *(shopping.episode(task, 0, image) for task in shopping.tasks(3)))
    hard = shopping.tasks(3)[1].instruction

    def answer(request: dict) -> str:
        return "Who knows?" if hard in json.dumps(request) else "All of it was ordered.\nSUCCESS"

    for acts, expected in ([say(answer)], 2), ([say("Not one kite.\nNOT SUCCESS")], 3):
        with serve(acts) as server:
            judge = JudgeConfig(url=server.url, model="teacher", brief=True)
            config = replace(config_of(tmp_path, run), judge=judge)
            config = replace(config, distil=replace(config.distil, teacher="endpoint"))
            await label(config, ranks)
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


async def test_reasons_that_would_undo_the_verdict_are_left_out(tmp_path):
    run = dump(Run(tmp_path / "web"), "step_00001", shopping.episode(TASK))

    async def sly(trajectory, image):
        return parse_verdict("SUCCESS\nAnd yet it did not")

    counts = await label_runs(config_of(tmp_path, run), sly, "sly")
    assert counts == {"no verdict: the reasons read like another one": 1}


@given(st.text(), st.booleans())
def test_a_target_reads_as_its_verdict_or_as_none(rationale, verdict):
    said = parse_verdict(target(rationale, verdict))
    if said.success is not None:
        assert said.success is verdict


# --- the split -------------------------------------------------------------------------------------------

TASKS = st.builds(
    lambda words, goal, host: Task("t", f"order {words}", f"http://{host}.test/", goal),
    st.integers(0, 12),
    st.one_of(st.just({}), st.integers(0, 12).map(lambda n: {"page": str(n)})),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(st.tuples(TASKS, st.integers(1, 6)), min_size=4, max_size=40), st.integers(0, 3))
def test_no_goal_and_no_stage_is_on_both_sides(drawn, seed):
    """Whatever name two tasks share, and through however many others."""
    examples = [example(task, f"step_{stage:05d}", n) for n, (task, stage) in enumerate(drawn)]
    config = DistilConfig(goals=0.3, stages=0.3)
    try:
        train, heldout = split(examples, config, seed)
    except ValueError as error:
        assert "too few to hold some out" in str(error)
        return
    assert len(train) + len(heldout) == len(examples)
    trained = {name for e in train for name in names_of(e.trajectory.task)}
    stages = {e.label.dump for e in train}
    for each in heldout:
        if "goal" in each.label.part:
            assert not names_of(each.trajectory.task) & trained
        if "stage" in each.label.part:
            assert each.label.dump not in stages
        assert each.label.part
    assert split(examples, config, seed) == (train, heldout)
    backwards = split(examples[::-1], config, seed)
    assert {e.label.key for e in backwards[0]} == {e.label.key for e in train}


def test_a_goal_is_the_same_by_wording_or_by_state():
    one, two = ({"page": "A"}, {"page": "B"})
    tasks = [
        Task("1", "order a mug", "http://a.test/", one),
        Task("2", "get a mug", "http://a.test/x", one),  # the same state
        Task("3", "get a mug", "http://a.test/", two),  # the same words as the second: all three are one
        Task("4", "order a mug", "http://b.test/", one),  # another site
        Task("5", "order a mug", "http://a.test/"),  # no goal, but the words
    ]
    goals = goals_of([example(task) for task in tasks])
    assert goals[0] == goals[1] == goals[2] == goals[4] != goals[3]


def test_shares_are_kept_and_each_seed_holds_out_others():
    tasks = shopping.tasks(20)
    examples = [example(t, f"step_{s:05d}", n) for n, t in enumerate(tasks) for s in range(1, 11)]
    train, heldout = split(examples, DistilConfig(goals=0.2, stages=0.2), seed=0)
    parts = [e.label.part for e in heldout]
    assert len(train) == 16 * 8 and parts.count("new goal") == 4 * 8
    assert parts.count("new stage") == 16 * 2 and parts.count("new goal and stage") == 4 * 2
    other = split(examples, DistilConfig(goals=0.2, stages=0.2), seed=1)[0]
    assert {e.label.key for e in other} != {e.label.key for e in train}
    without = split(examples, DistilConfig(goals=0.2, stages=0.0), seed=0)[1]
    assert {e.label.part for e in without} == {"new goal"}
    with pytest.raises(ValueError, match="1 labels on 1 goals are too few"):
        split(examples[:1], DistilConfig(), seed=0)


def test_an_evaluation_belongs_to_its_step():
    """The one whose policy it evaluates, whatever else its name says; and the warm start's to the first. What
    is of no step is not held out as a stage."""
    pairs = [("step_00001", "after_sft"), ("step_00005", "eval_step_00004_webvoyager-official")]
    dumps = [*sum(pairs, ()), "eval_step_00005", "before", "validation", "after_rl"]
    examples = [example(TASK, name) for name in dumps]
    seen = set()
    for seed in range(12):
        _, heldout = split(examples, DistilConfig(goals=0.1, stages=0.1), seed)
        held = {e.label.dump for e in heldout}
        assert held in [{*pairs[0]}, {*pairs[1]}, {"eval_step_00005"}]
        seen |= held
    assert len(seen) == 5


def test_the_control_keeps_the_labels_and_loses_what_they_are_about():
    examples = [example(t, line=n, verdict=n % 4 == 0) for n, t in enumerate(shopping.tasks(40))]
    mixed = shuffled(examples, seed=0)
    assert sum(e.label.verdict for e in mixed) == 10
    assert [e.trajectory for e in mixed] == [e.trajectory for e in examples]
    assert [e.label.key for e in mixed] == [e.label.key for e in examples]
    assert 10 < sum(a.label.verdict == b.label.verdict for a, b in zip(mixed, examples, strict=True)) < 40
    assert mixed == shuffled(examples, seed=0) != shuffled(examples, seed=1)


# --- rows ------------------------------------------------------------------------------------------------


def test_a_row_is_the_question_and_the_label(preprocessor, png):
    pictures = {"a": png(64, 64, seed=1), "b": png(32, 32, seed=2)}
    trajectory = replace(shopping.episode(TASK, image="a"), final_image="b")
    given_label = Label("run", "d", 0, "", "Two mugs<|im_end|>.", False, "gpt")
    row = training_row(preprocessor, Example(given_label, trajectory), JudgeConfig(), pictures.__getitem__)
    tokenizer = preprocessor.tokenizer
    # the template of this model opens <think>, so that the response has to close it
    assert tokenizer.decode(row.ids[row.start :]) == "</think>\n\nTwo mugs< |im_end|>.\nNOT SUCCESS<|im_end|>"
    asked = tokenizer.decode(row.ids[: row.start])
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n") and TASK.instruction in asked
    assert row.images == ("a", "b") and row.length == len(row.old)
    assert row.ids.count(preprocessor.pad) == sum(map(preprocessor.image_tokens, pictures.values()))
    brief = training_row(
        preprocessor, Example(given_label, trajectory), JudgeConfig(brief=True), pictures.get
    )
    assert brief.images == ("b",) and len(brief.ids) < len(row.ids)


def test_a_brief_question_has_a_line_for_each_step_and_no_calls(png):
    picture = png(32, 32)
    system, (_, parts) = judge_messages(shopping.episode(TASK, image="a"), lambda name: picture, brief=True)
    words, shown = parts
    assert shown == picture and "point_2d" not in words and len(words) < 600
    assert len(system[1][0]) < 150 and "> 2: click: clicked button" in words
    long = [shopping.episode(TASK).turns[0]] * 60
    _, (_, parts) = judge_messages(replace(shopping.episode(TASK), turns=tuple(long)), {}.get, brief=True)
    assert len(parts[0]) < 2300 and "are left out.)" in parts[0], "a long history is cut"


def test_batches_cover_each_epoch_and_leave_no_small_rest():
    assert [len(b) for b in batches(list(range(70)), 32, 1, seed=0)] == [32, 38]
    assert [len(b) for b in batches(list(range(90)), 32, 1, seed=0)] == [32, 32, 26]
    assert [len(b) for b in batches(list(range(5)), 32, 2, seed=0)] == [5, 5]
    first, second = batches(list(range(20)), 20, 2, seed=0)
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    sft = replace(tiny_judge().sft, epochs=3, max_steps=None, batch=32)
    assert updates_of(replace(tiny_judge(), sft=sft), 70) == 6
    assert updates_of(replace(tiny_judge(), sft=replace(sft, max_steps=4)), 70) == 4


# --- a judge that learns ---------------------------------------------------------------------------------


async def test_a_small_judge_learns_its_labels_and_is_scored(tmp_path, ranks):
    """20 trajectories to learn from. What it says of them afterwards shows what it was taught."""
    run = shopping.make_run(tmp_path / "web", goals=14, stages=("step_00001", "step_00002"))
    sft = replace(tiny_judge().sft, lr=4e-3, batch=10, max_steps=30)
    config = replace(config_of(tmp_path, run), sft=sft)
    config = replace(config, distil=replace(config.distil, goals=0.29, stages=0.0))
    with CONSOLE.capture() as said:
        await label(config, ranks)
        folder = tmp_path / "small"
        texts = [p for e in read_examples(tmp_path / "judge/labels.jsonl") for p in words_of(e)]
        tiny.build_judge(folder, texts, seed=0, hidden=64, layers=2)
        config = replace(config, model=replace(config.model, path=str(folder)))
        await distil(config, ranks)
        await score_judge(config, ranks)
    losses = [row["loss"] for row in Run(tmp_path / "judge").metrics()]
    assert len(losses) == 30 and losses[-1] < 0.2 * losses[0]
    heldout = read_labels(tmp_path / "judge/heldout.jsonl")
    assert len(heldout) == 8 and {each.part for each in heldout} == {"new goal"}
    out = said.get()
    assert "20 labels, 50.0% of them SUCCESS; 8 are held out" in out.replace("\n", " ")
    for word in ("Agreement", "accuracy", "always SUCCESS", "always NOT", "new goal", "shop-0.test"):
        assert word in out, out
    assert "8 episodes, 50.0% are successes" in out and "with another episode's screenshot" in out
    (scored,) = (tmp_path / "judge/scores").glob("*/*.jsonl")
    records = [json.loads(line) for line in scored.read_text().splitlines()]
    assert len(records) == 8 and all("should be" in record["rationale"] for record in records)
    await check_question(config, ranks)


def test_screenshots_are_exchanged_and_nothing_else():
    named = zip(shopping.tasks(4), "abcd", strict=True)
    seen = [replace(shopping.episode(task), final_image=name) for task, name in named]
    asked = [Question(str(n), t, True, lambda name: name.encode()) for n, t in enumerate(seen)]
    assert [q.image("own") for q in exchanged(asked)] == [b"c", b"d", b"a", b"b"]
    assert [(q.name, q.trajectory) for q in exchanged(asked)] == [(q.name, q.trajectory) for q in asked]
    blind = replace(asked[2], trajectory=shopping.episode(TASK))
    assert exchanged([*asked[:2], blind, asked[3]])[0].image("own") == b"own", "there is none to take"


async def test_a_served_judge_is_scored_on_agent_reward_bench(tmp_path, ranks):
    """Four episodes of which three succeed; the judge lets all of them pass but the one without an answer."""
    bench = tmp_path / "bench"
    lines = ["benchmark,model_name,task_id,trajectory_success"]
    for n, truth in enumerate(["Successful", "Unsuccessful", "Successful", "Successful"]):
        lines.append(f"webarena,Agent,{n},{truth}")
        says = {"action": f"send_msg_to_user('answer {n}')", "screenshot_path": "shot.png"}
        path = bench / f"trajectories/Agent/{n}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"goal": "Count the mugs", "steps": [says | {"url": "http://shop.test/"}]})
        )
    (bench / "annotations.csv").write_text("\n".join(lines))
    (bench / "shot.png").write_bytes(shopping.picture(1))

    def answer(request: dict) -> str:
        return "Hm." if "answer 3" in json.dumps(request) else "Fine.\nSUCCESS"

    with serve([say(answer)]) as server, CONSOLE.capture() as said:
        config = replace(config_of(tmp_path), judge=JudgeConfig(url=server.url, model="big"))
        await score_judge(replace(config, distil=DistilConfig(bench=bench)), ranks)
    out = " ".join(said.get().split())
    # of three verdicts two are right, and one was not to be had
    assert "big 66.7 66.7 100.0 80.0" in out and "all 3 1 66.7 100.0 66.7" in out and "webarena" in out
    assert "always SUCCESS 75.0 75.0 100.0 85.7" in out
    assert "4 episodes, 75.0% are successes" in out and "a mistake: 'Count the mugs': 'Fine.'" in out


def words_of(example: Example) -> list[str]:
    messages = judge_messages(example.trajectory, lambda name: b"", brief=True)
    parts = [part for _, parts in messages for part in parts if isinstance(part, str)]
    return [*parts, target(example.label.rationale, example.label.verdict)]


async def check_question(config: Config, ranks) -> None:
    """A distilled judge refuses to be asked otherwise than it was taught."""
    path = str(config.run_dir / "checkpoints/judge")
    state = json.loads((config.run_dir / "checkpoints/judge/state.json").read_text())
    assert state["question"] == question_of(config.judge) == {"brief": True, "screenshots": 3, "prompt": None}
    other = replace(config, judge=JudgeConfig(path=path, brief=False))
    with pytest.raises(ValueError, match="was distilled with another --judge.brief: True"):
        async with open_judge(other, ranks):
            pass
    other = replace(config, judge=replace(config.judge, path=path, input="webvoyager"))
    with pytest.raises(ValueError, match="another question than --judge.input webvoyager"):
        async with open_judge(other, ranks):
            pass


async def test_a_policys_folder_is_left_alone(tmp_path, ranks):
    run = dump(Run(tmp_path / "judge"), "step_00001", shopping.episode(TASK))
    for command in (label, distil):
        with pytest.raises(ValueError, match="holds a policy's run; choose another --name"):
            await command(config_of(tmp_path, run), ranks)
