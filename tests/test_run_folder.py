"""The run folder: what is written comes back equal, and a killed run leaves nothing that hurts."""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import group_of

from minirl import run_folder
from minirl.cli.lifecycle import save
from minirl.run_folder import Run, differences
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn, Verdict

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/", {"page": "DONE"}, {"site": "shop"})
NUMBERS = st.floats(allow_nan=False)
IDS = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
TEXT = st.text(max_size=12)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | NUMBERS | TEXT, st.lists, max_leaves=4)
MAPPINGS = st.dictionaries(TEXT, VALUES, max_size=3)
CALLS = st.builds(Call, name=TEXT, arguments=MAPPINGS)
PARSED = st.builds(Parsed, thought=TEXT, calls=st.lists(CALLS, max_size=2).map(tuple), error=st.none() | TEXT)
TURNS = st.builds(
    Turn,
    shared=st.integers(0, 9),
    suffix=IDS,
    response_ids=IDS,
    logprobs=st.lists(NUMBERS, max_size=5).map(tuple),
    text=TEXT,
    images=st.lists(TEXT, max_size=2).map(tuple),
    parsed=PARSED,
    feedback=st.lists(TEXT, max_size=2).map(tuple),
    observation=TEXT,
    seconds=st.dictionaries(TEXT, NUMBERS, max_size=2),
)
TRAJECTORIES = st.builds(
    Trajectory,
    task=st.builds(Task, id=TEXT, instruction=TEXT, start_url=TEXT, goal=MAPPINGS, meta=MAPPINGS),
    member=st.integers(0, 7),
    prefix=IDS,
    turns=st.lists(TURNS, max_size=2).map(tuple),
    stop=st.sampled_from(Stop),
    success=st.booleans(),
    reward=NUMBERS,
    final_state=MAPPINGS,
    verdict=st.none() | st.builds(Verdict, success=st.none() | st.booleans(), rationale=TEXT, error=TEXT),
)


def episode(member: int = 0, image: str = "", task: Task = TASK) -> Trajectory:
    turn = Turn(3, (9, 9, 4), (7, 2), (-0.1, -0.7), "hi", images=(image,) if image else ())
    return Trajectory(task, member, prefix=(1, 2, 3), turns=(turn,), reward=float(member % 2))


@settings(max_examples=50)
@given(st.lists(TRAJECTORIES, max_size=3))
def test_a_dump_survives_the_disk_exactly(trajectories):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        run.save_trajectories("demos", trajectories)
        assert run.load_trajectories("demos") == trajectories


def test_groups_come_back_with_their_advantages(tmp_path):
    run = Run(tmp_path)
    first = group_of((episode(0), episode(1)), -1.0, 1.0)
    same_task_again = group_of((episode(1), episode(3)), 0.1 + 0.2, 1 / 3, number=1)
    without = (replace(episode(5), group=2),)
    left_its_group = episode(7)
    run.save_trajectories("step_00003", [*first, *same_task_again, left_its_group, *without])
    assert run.load_groups("step_00003") == [first, same_task_again, without]
    assert [t.member for t in run.load_trajectories("step_00003")] == [0, 1, 1, 3, 7, 5]


def test_a_broken_line_is_named(tmp_path):
    run = Run(tmp_path)
    run.save_trajectories("demos", [episode(), episode(1)])
    path = run.trajectory_path("demos")
    lines = path.read_text().splitlines()
    for broken in ('{"task": 3', '{"task": {}}', "[1]"):
        path.write_text(f"{lines[0]}\n{broken}\n")
        with pytest.raises(ValueError, match=r"demos\.jsonl, line 2, "):
            run.load_trajectories("demos")


def test_a_missing_dump_names_the_others(tmp_path):
    run = Run(tmp_path)
    run.save_trajectories("demos", [])
    with pytest.raises(ValueError, match="this run has demos"):
        run.load_trajectories("step_00001")


def test_a_torn_last_line_is_skipped_and_then_gone(tmp_path):
    run = Run(tmp_path)
    run.add_metrics(1, {"success": 0.1})
    run.add_metrics(2, {"success": 0.2})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert run.metrics() == [{"step": 1, "success": 0.1}]
    run.truncate_after(2)  # as every run begins
    run.add_metrics(2, {"success": 0.3})
    assert run.metrics() == [{"step": 1, "success": 0.1}, {"step": 2, "success": 0.3}]


def test_what_is_no_number_is_null(tmp_path):
    """NaN and Infinity are no JSON; other readers refuse the line."""
    run = Run(tmp_path)
    run.add_metrics(1, {"loss": float("nan"), "ratio_max": float("inf"), "kl": 0.5, "updates": 2})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step":1,"loss":null,"ratio_max":null,"kl":0.5,"updates":2}\n'


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.write_config({"seed": 1})
    run.save_trajectories("demos", [episode()])
    with pytest.raises(TypeError):  # it is no JSON
        run.save_trajectories("demos", [episode(1), Trajectory(TASK, 0, final_state={"page": object()})])
    assert run.load_trajectories("demos") == [episode()]

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk full"):
        run.write_config({"seed": 2})
    assert run.config() == {"seed": 1}


def test_an_image_is_written_once(tmp_path):
    run = Run(tmp_path)
    image = run.images.put(b"png")
    assert len(image) == 16 and run.images.get(image) == b"png"
    run.images.path(image).write_bytes(b"untouched")
    assert run.images.put(b"png") == Run(tmp_path).images.put(b"png") == image
    assert run.images.get(image) == b"untouched"
    with pytest.raises(ValueError, match="pruned"):
        run.images.get("0" * 16)


def test_pruning_keeps_the_last_steps_and_each_tenth(tmp_path):
    run = Run(tmp_path)
    for step in range(1, 26):
        run.save_trajectories(Run.step_label(step), [episode()])
    run.save_trajectories("eval_step_00004", [episode()])
    run.save_trajectories("demos", [episode()])
    run.prune(keep_steps=3)
    steps = [Run.step_label(step) for step in (10, 20, 23, 24, 25)]
    assert run.labels() == ["demos", "eval_step_00004", *steps]
    run.prune(keep_steps=3)
    assert len(run.labels()) == 7


def test_pruning_removes_screenshots_that_nobody_names(tmp_path):
    run = Run(tmp_path)
    old, kept, final, orphan = (run.images.put(png) for png in (b"old", b"kept", b"final", b"orphan"))
    run.save_trajectories("step_00001", [episode(image=old), episode(image=kept)])
    run.save_trajectories("step_00002", [episode(image=kept), Trajectory(TASK, 0, final_image=final)])
    run.prune(keep_steps=1)
    assert {path.stem for path in (tmp_path / "screenshots").iterdir()} == {kept, final}
    assert run.images.put(b"orphan") == orphan and run.images.get(orphan) == b"orphan"


def test_every_steps_dump_stays_on_demand(tmp_path):
    run = Run(tmp_path)
    experiment = Mock(run=run)
    experiment.config.rollout.dump_all = True
    experiment.config.rollout.delay = 0
    for step in range(1, 14):
        run.save_trajectories(Run.step_label(step), [episode()])
    save(experiment, {"step": 13, "cursor": 0})
    assert run.step_labels() == [Run.step_label(step) for step in range(1, 14)]


def test_a_resumed_run_forgets_later_steps(tmp_path):
    run = Run(tmp_path)
    for step in range(1, 6):
        run.add_metrics(step, {"reward": float(step)})
        run.save_trajectories(Run.step_label(step), [episode()])
        run.save_trajectories(f"eval_step_{step:05d}", [episode()])
        run.add_eval(f"step {step}", step=step, success=0.0, low=0.0, high=1.0, n=1)
    run.save_trajectories("eval_sft", [episode()])
    best = run.checkpoint_dir / "best/state.json"
    best.parent.mkdir(parents=True)
    best.write_text('{"step": 3}')
    run.truncate_after(3)
    assert best.exists()
    run.truncate_after(2)
    assert not best.parent.exists()
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert [record["step"] for record in run.evals()] == [1, 2]
    assert run.labels() == ["eval_sft", "eval_step_00001", "eval_step_00002", "step_00001", "step_00002"]


def test_an_empty_run_can_be_asked_everything(tmp_path):
    run = Run(tmp_path / "none")
    assert (run.config(), run.metrics(), run.evals(), run.labels()) == ({}, [], [], [])
    run.prune(keep_steps=1)
    assert not run.root.exists()


def test_differences_are_settings_with_another_value_or_none():
    old = {"seed": 0, "agent": {"kind": "text", "brief": True}}
    new = {"seed": 0, "agent": {"kind": "visual", "brief": True, "younger": 1}, "task": {"x": 2}}
    assert differences(old, new) == ["agent.kind", "agent.younger", "task.x"]


def test_only_the_first_rank_writes_a_runs_records(tmp_path):
    run = Run(tmp_path / "run", records=False)
    before = sorted(tmp_path.rglob("*"))
    run.write_config({"seed": 0})
    run.add_metrics(1, {"loss": 0.5})
    run.add_eval("after SFT", success=0.5)
    run.save_trajectories("demos", [])
    run.truncate_after(0)
    run.prune(keep_steps=1)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "secret.png", "", "0" * 16 + "\n"])
def test_a_screenshots_name_leads_nowhere_else(tmp_path, name):
    """A dump names its screenshots, and a judge is sent what they hold."""
    run = Run(tmp_path / "runs/run")
    (run.root / "screenshots").mkdir(parents=True)
    for place in (tmp_path / "runs/secret.png", run.root / "screenshots/secret.png"):
        place.write_bytes(b"secret")
    with pytest.raises(ValueError, match="is no screenshot's name"):
        run.images.get(name)
    run.images.folder.joinpath("0123456789abcdef.png").symlink_to(tmp_path / "runs/secret.png")
    with pytest.raises(ValueError, match="screenshot 0123456789abcdef is not in"):
        run.images.get("0123456789abcdef")


@pytest.mark.parametrize(
    ("git", "commit"), [("echo v1", "v1"), ("exec sleep 60", ""), ("exit 1", ""), (None, "")]
)
def test_a_start_is_recorded_whatever_git_does(tmp_path, monkeypatch, git, commit):
    if git:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{git}\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if git else str(tmp_path))
    monkeypatch.setattr(run_folder, "GIT_SECONDS", 5 if commit else 0.2)
    run = Run(tmp_path / "run")
    run.add_start()
    starts = run.root / "starts.jsonl"
    assert json.loads(starts.read_text())["commit"] == commit
    starts.write_text(starts.read_text() + '{"comm')  # the disk was full
    run.add_start()
    assert [json.loads(line)["commit"] for line in starts.read_text().splitlines()] == [commit, commit]


HOLD = "import sys, time; from pathlib import Path; from minirl.run_folder import Run\n"
HOLD += "with Run(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(100)"


def test_one_process_trains_in_a_folder_and_a_dead_one_does_not_keep_it(tmp_path):
    run = Run(tmp_path / "run")
    child = subprocess.Popen([sys.executable, "-c", HOLD, run.root], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(OSError, match=f"'{run.root}/lock' could not be acquired"), run.held():
            pass
        with Run(run.root, records=False).held(), Run(tmp_path / "other").held():
            pass  # another rank of the one that holds it, and another folder
    finally:
        child.kill()
        child.wait(timeout=30)
    for _ in range(2):
        with run.held():
            pass
        assert not run.root.exists(), "nothing was written"
    with run.held():
        run.write_config({"seed": 0})
    assert (run.root / "config.json").exists()


@pytest.mark.parametrize("name", ["", "screenshots", "trajectories", "checkpoints", "model", "lock"])
def test_a_folder_that_is_or_holds_a_link_is_refused(tmp_path, name):
    """Or --resume would delete and write behind it."""
    (tmp_path / "holiday").mkdir()
    (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "holiday")
    with pytest.raises(ValueError, match=f"{name or 'run'} is a link, which may lead anywhere"):
        Run(tmp_path / "run")
