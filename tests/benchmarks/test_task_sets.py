"""Which tasks serve what: generated or from files, and never trained on where they are held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minirl.benchmarks.own_reward import OwnReward
from minirl.benchmarks.task_files import save_tasks
from minirl.benchmarks.task_sets import choose_benchmarks, make_task_sets
from minirl.cli import lifecycle
from minirl.recipes import tiny
from minirl.types import Task
from minirl.worlds.shop import make_shop, make_tasks, shops_of


def goals(tasks: list[Task]) -> set[str]:
    return {json.dumps([task.start_url, dict(task.goal)], sort_keys=True) for task in tasks}


@pytest.mark.parametrize("seed", range(5))
def test_held_out_goals_are_never_trained_on(seed):
    config = tiny()
    sets = make_task_sets(replace(config, task=replace(config.task, seed=seed)))
    assert len(sets.train) == config.task.train_goals and len(sets.heldout) == config.eval.episodes
    assert len(sets.demos) == config.task.demo_goals
    assert len(sets.validation) == config.sft.eval_episodes
    assert not goals(sets.heldout) & (goals(sets.train) | goals(sets.demos) | goals(sets.validation))
    assert not goals(sets.demos) & goals(sets.validation)
    assert goals(sets.demos) | goals(sets.validation) <= goals(sets.train)
    assert len(goals(sets.train)) == len(sets.train) and len(goals(sets.heldout)) == len(sets.heldout)
    assert [world.name for world in shops_of(sets.train)] == [f"shop-{seed}"]


def test_a_task_file_that_leaks_is_refused(tmp_path):
    config = tiny()
    sets = make_task_sets(config)
    leaked = [replace(sets.train[5], id="another-name"), *sets.heldout[:2]]
    save_tasks(tmp_path / "heldout.jsonl", leaked)
    config = replace(config, task=replace(config.task, heldout=str(tmp_path / "heldout.jsonl")))
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks, another-name for one"):
        make_task_sets(config)


def test_task_files_take_the_place_of_generated_tasks(tmp_path):
    train, heldout = make_tasks(make_shop(1), 5, 3, seed=0)
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "heldout")}
    save_tasks(Path(files["train"]), train)
    save_tasks(Path(files["heldout"]), heldout)
    config = tiny()
    sets = make_task_sets(replace(config, task=replace(config.task, demo_goals=2, **files)))
    assert (sets.train, sets.heldout, sets.demos) == (train, heldout, train[:2])
    assert sets.validation == train[2:]


@pytest.mark.parametrize("seed", range(3))
def test_what_chooses_the_best_weights_is_neither_trained_on_nor_held_out(seed):
    """Other generated tasks, and the sets are otherwise what they are without it."""
    config = tiny()
    config = replace(config, task=replace(config.task, seed=seed))
    plain, sets = make_task_sets(config), make_task_sets(replace(config, eval_every=5, eval_size=40))
    assert plain.aside == [] and len(goals(sets.aside)) == len(sets.aside) == 40
    assert not goals(sets.aside) & (goals(sets.train) | goals(sets.heldout))
    assert replace(sets, aside=[]) == plain and sets.all == [*plain.all, *sets.aside]


def test_a_share_of_a_file_is_set_aside_with_all_that_shares_its_goals(tmp_path):
    """Of 20 tasks, each there twice under two names, a tenth of the names is 4: they and their twins are not
    trained on. The same ones in every run, whatever is held out; and none without --eval-every."""
    tasks, heldout = make_tasks(make_shop(1), 20, 3, seed=0)
    twins = [replace(task, id=f"{task.id}-again") for task in tasks]
    save_tasks(tmp_path / "train.jsonl", [*tasks, *twins])
    save_tasks(tmp_path / "heldout.jsonl", heldout)
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "heldout")}
    config = replace(tiny(), task=replace(tiny().task, **files))
    assert make_task_sets(config).train == [*tasks, *twins] and make_task_sets(config).aside == []
    config = replace(config, eval_every=5)
    sets = make_task_sets(config)
    assert len(sets.aside) == 4 and sets.heldout == heldout == make_task_sets(config).heldout
    assert not goals(sets.aside) & goals(sets.train)
    assert goals(sets.aside) | goals(sets.train) == goals(tasks)
    assert [task for task in [*tasks, *twins] if task in sets.train] == sets.train  # in the file's order
    assert make_task_sets(config).aside == sets.aside
    most = replace(config, task=replace(config.task, aside=0.99))
    with pytest.raises(ValueError, match="--task.aside 0.99 of .* leaves no task to train on"):
        make_task_sets(most)


async def test_evaluations_between_steps_leave_the_held_out_tasks_alone(monkeypatch):
    tasks = make_task_sets(replace(tiny(), eval_every=2, eval_size=8))
    asked, exported = [], []

    async def evaluated(experiment, worker, tasks, label, step) -> float:
        asked.append(tasks)
        rows.append({"label": label, "success": 0.5})
        return 0.5

    monkeypatch.setattr(lifecycle, "evaluate", evaluated)
    rows: list[dict] = []
    experiment: Any = SimpleNamespace(
        config=replace(tiny(), eval_every=2, eval_size=5),
        tasks=tasks,
        run=SimpleNamespace(evals=lambda: rows),
        ranks=SimpleNamespace(broadcast=lambda value: value),
        checkpoints=SimpleNamespace(export=lambda name, state: exported.append(name)),
    )
    for step in range(4):
        await lifecycle.evaluate_if_due(experiment, cast(Any, None), {"step": step, "cursor": 0})
    assert asked == [tasks.aside[:5]] and exported == ["best"]


def test_a_users_reward_file_is_run_once(tmp_path):
    """However often a run asks for benchmarks: for its tasks, before its judge is open and after."""
    file, runs = tmp_path / "own.py", tmp_path / "runs"
    file.write_text(
        f"open({str(runs)!r}, 'a').write('x')\nasync def reward(task, page, answer): return 1.0\n"
    )
    config = replace(tiny(), task=replace(tiny().task, reward=f"{file}:reward"))
    task = make_task_sets(config).train[0]
    one, two = choose_benchmarks(config)(task), choose_benchmarks(config)(task)
    assert isinstance(one, OwnReward) and isinstance(two, OwnReward) and one.reward is two.reward
    assert runs.read_text() == "x"
