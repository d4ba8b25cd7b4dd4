"""Which tasks serve what: generated or from files, and never trained on where they are held out."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from peers import alone
from recorded import write_steps

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.own_reward import OwnReward
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks, make_task_sets
from minirl.cli import lifecycle
from minirl.config import EvalConfig, TaskConfig
from minirl.recipes import tiny
from minirl.run_folder import save_tasks
from minirl.types import Task
from minirl.worlds.render import sites_of
from minirl.worlds.shop import make_shop, make_tasks, shops_of

WHERE = [{"path": "$.done.rooms.item", "cond": "eq", "value": "room-1"}]


MEASURED = replace(tiny(), eval_every=5)
LONG_TOO = replace(tiny(), task=replace(tiny().task, short=0))
sets_of = cache(make_task_sets)  # hundreds of shops take a second


def goals(tasks: list[Task]) -> set[str]:
    return {json.dumps([task.start_url, dict(task.goal)], sort_keys=True) for task in tasks}


def shops(tasks: list[Task]) -> set[str]:
    return {shop.name for shop in shops_of(tasks)}


def test_held_out_shops_are_never_trained_on():
    """In the default sets every training task has a shop of its own, and 256 held-out tasks are in 64."""
    config = tiny()
    plain, sets, whole = map(sets_of, (config, MEASURED, LONG_TOO))
    assert len(whole.train) == 300 and len(sets.heldout) == config.eval.episodes
    assert shops(whole.train) == {f"shop-{n}" for n in range(600, 900)}
    assert whole.demos == whole.train[: config.task.demo_goals] and whole.heldout == sets.heldout
    assert shops(sets.heldout) == {f"shop-{n}" for n in range(90001, 90065)}
    # what chooses the best weights is neither trained on nor held out, and changes neither
    assert shops(sets.validation) == {f"shop-{n}" for n in range(50001, 50065)}
    assert plain.validation == [] and replace(sets, validation=[]) == plain
    assert sets.all == [*plain.all, *sets.validation]
    for tasks in (sets.train, sets.heldout, sets.validation):
        assert len(goals(tasks)) == len({task.id for task in tasks}) == len(tasks)
    assert len(sets.validation) == 64


def test_short_orders_are_demonstrated_and_long_ones_practised():
    """Of the recipe's 300 orders those for 4 or 5 things are practised. Of its 100 demonstrations 4 are
    such, one of the 20 that are held back and three of the others."""
    config = tiny()
    sets, plain = map(sets_of, (config, LONG_TOO))

    def things(tasks: list[Task]) -> list[int]:
        return [len(task.goal["where"]) for task in tasks]

    assert sets.train == [task for task in plain.train if len(task.goal["where"]) > 3]
    assert set(things(sets.train)) == {4, 5} and set(things(sets.heldout)) == {3, 4, 5}
    assert len(sets.demos) == 100 and sum(n > 3 for n in things(sets.demos)) == 4
    assert len({task.id for task in sets.demos} & {task.id for task in plain.train}) == 100
    assert sum(n > 3 for n in things(sets.demos[:20])) == 1  # of those held back
    assert shops(sets.demos) < shops(sets.all)  # which are served
    # where short ones are too few, long ones take their places
    few = make_task_sets(replace(config, task=replace(config.task, train="shops:600-611", demo_goals=10)))
    assert len(few.demos) == 10 and set(things(few.train)) == {4, 5}


def test_a_shop_that_is_trained_on_cannot_be_held_out_but_its_serif_is_another_place():
    """Of 12 held-out orders 3 are in each shop, and whatever is asked for, a shop's orders are its first."""
    task = TaskConfig("shops:0-9", "shops:9-12", demo_goals=2)
    config = replace(tiny(), task=task, eval=replace(tiny().eval, episodes=12))
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks, shop-9-.* for one"):
        make_task_sets(config)
    sets = make_task_sets(replace(config, task=replace(task, heldout="shops:0-9@serif")))
    assert shops(sets.heldout) == {f"{name}-serif" for name in shops(sets.train)} and len(sets.train) == 10


def test_task_files_take_the_place_of_generated_tasks_and_a_share_is_set_aside(tmp_path):
    """Of 20 tasks, each there twice under two names, a tenth of the names is 4: they and their twins are not
    trained on. The same ones in every run, whatever is held out; and none without --eval-every."""
    tasks, heldout = make_tasks(make_shop(1), 20), make_tasks(make_shop(2), 3)
    both = [*tasks, *(replace(task, id=f"{task.id}-again") for task in tasks)]
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "heldout")}
    save_tasks(Path(files["train"]), both)
    save_tasks(Path(files["heldout"]), heldout)
    config = replace(tiny(), task=replace(tiny().task, demo_goals=2, **files))
    sets = make_task_sets(config)
    assert (sets.train, sets.heldout, sets.demos, sets.validation) == (both, heldout, both[:2], [])
    measured = replace(config, eval_every=5)
    sets = make_task_sets(measured)
    assert len(sets.validation) == 4 and sets.heldout == heldout == make_task_sets(measured).heldout
    assert not goals(sets.validation) & goals(sets.train)
    assert goals(sets.validation) | goals(sets.train) == goals(tasks)
    assert [task for task in both if task in sets.train] == sets.train  # in the file's order
    assert make_task_sets(measured).validation == sets.validation
    save_tasks(Path(files["heldout"]), [replace(tasks[4], id="another-name"), *heldout])
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks, another-name for one"):
        make_task_sets(config)
    save_tasks(Path(files["heldout"]), heldout)
    save_tasks(Path(files["train"]), tasks[:1])
    with pytest.raises(ValueError, match="--eval-every leaves no task of .* to train on"):
        make_task_sets(measured)


@pytest.mark.parametrize(("goals", "length"), [(8, 8), (0, 20), (50, 20)])
def test_so_many_training_tasks_count_the_first(tmp_path, png, goals, length):
    """Of recorded steps as of shops; what --eval-every measures on is set aside before, the same for any."""
    steps = write_steps(tmp_path, png, [{"action": "wait"}] * 20)
    every = load_tasks(steps)
    config = replace(tiny(), task=TaskConfig(str(steps), "", train_goals=goals))
    sets = make_task_sets(config)
    assert sets.train == sets.demos == every[:length]
    aside = make_task_sets(replace(config, eval_every=5))
    rest = [task for task in every if task not in aside.validation]
    assert len(aside.validation) == 2 and aside.train == rest[:length]
    in_shops = make_task_sets(replace(config, task=TaskConfig("shops:0-9", "", train_goals=goals))).train
    assert shops(in_shops) == {f"shop-{n}" for n in range(min(length, 10))}


def test_the_best_weights_are_not_chosen_on_held_out_tasks():
    # which --eval-every looks at, too
    settings = TaskConfig("shops:0-9", "shops:50001-50010", demo_goals=2)
    sets = make_task_sets(replace(tiny(), eval_every=2, task=settings))
    assert sets.validation and not goals(sets.validation) & goals(sets.heldout)


async def test_evaluations_between_steps_leave_the_held_out_tasks_alone(monkeypatch):
    """tests/cli/test_lifecycle.py has when they are due, and what becomes of the best weights."""
    evaluate = AsyncMock()
    monkeypatch.setattr(lifecycle, "evaluate", evaluate)
    tasks = sets_of(MEASURED)
    config = replace(MEASURED, eval=EvalConfig(episodes=5))
    experiment = Mock(config=config, tasks=tasks, ranks=alone())
    row = {"label": "eval_step_00005", "success": 0.5, "n": 4, "invalid": 1}
    experiment.run.evals.side_effect = [[], [row]]
    experiment.run.best.return_value = {}
    worker = Mock()
    await lifecycle.evaluate_if_due(experiment, worker, {"step": 5})
    evaluate.assert_awaited_once_with(experiment, worker, tasks.validation[:5], "eval_step_00005", 5)


def test_one_wording_with_other_goals_is_many_tasks():
    """As with pages by seed; without a goal the wording decides, however it is written."""
    task = Task("a", "Click the red  button.", "https://www.site.test/?seed=1", {"seed": 1})
    identity = JudgedBenchmark().identity
    assert identity(task) & identity(replace(task, id="b", instruction="Press what is red."))
    other = replace(task, start_url="https://www.site.test/?seed=2", goal={"seed": 2})
    assert identity(task).isdisjoint(identity(other))
    plain = replace(task, goal={})
    assert identity(task) & identity(plain)
    assert identity(plain) & identity(replace(plain, start_url="https://site.test/home"))
    assert identity(plain) == identity(replace(plain, instruction="click the red button."))


def test_a_users_reward_file_is_run_once(tmp_path):
    """However often a run asks for benchmarks: for its tasks, before its judge is open and after."""
    file = tmp_path / "own.py"
    runs = tmp_path / "runs"
    file.write_text(f"open({str(runs)!r}, 'a').write('x')\nasync def reward(task, page, answer): return 1.0")
    config = replace(tiny(), task=TaskConfig("shops:0-9", "", reward=f"{file}:reward"))
    task = make_task_sets(config).train[0]
    one, two = choose_benchmarks(config)(task), choose_benchmarks(config)(task)
    assert isinstance(one, OwnReward) and isinstance(two, OwnReward) and one.reward is two.reward
    assert runs.read_text() == "x"


def test_folders_of_sites_serve_all_sets(tmp_path):
    """What the agent has no means for stays out; sites take turns, and say where they are."""
    for split, n in (("train", 0), ("train", 1), ("heldout", 2)):
        name = f"hotels-easy-{n}"
        tasks = []
        for i, agents in enumerate((["visual"], ["visual", "text"])):
            meta = {"world": name, "agents": agents}
            tasks.append(Task(f"{name}-{i}", f"Do {i}.", f"http://{name}.test/", {"where": WHERE}, meta))
        save_tasks(tmp_path / split / name / "tasks.jsonl", tasks)
        (tmp_path / split / name / "fsm.json").write_text("{}")
    folders = {name: str(tmp_path / name) for name in ("train", "heldout")}
    config = replace(tiny(), task=TaskConfig(**folders))
    sets = make_task_sets(config)
    assert [task.id for task in sets.train] == [f"hotels-easy-{n}-{i}" for i in (0, 1) for n in (0, 1)]
    assert [task.id for task in sets.heldout] == ["hotels-easy-2-0", "hotels-easy-2-1"]
    text_config = replace(config, agent=replace(config.agent, kind="text"))
    text = make_task_sets(text_config)
    assert [task.id for task in text.train] == ["hotels-easy-0-1", "hotels-easy-1-1"]
    save_tasks(tmp_path / "dragged" / "tasks.jsonl", sets.heldout[:1])
    alone = replace(text_config, task=replace(config.task, heldout=str(tmp_path / "dragged")))
    with pytest.raises(ValueError, match="dragged has no task that this agent has the means for"):
        make_task_sets(alone)
    other = make_task_sets(replace(config, agent=replace(config.agent, kind="autowebworld")))
    assert other == sets, "it sees, and can do all that the visual agent can"
    assert [site.name for site in sites_of(sets.all)] == [f"hotels-easy-{n}" for n in (2, 0, 1)]
    (tmp_path / "train/hotels-easy-0/fsm.json").unlink()
    with pytest.raises(ValueError, match="hotels-easy-0-1: there is no site in .*; make it again"):
        sites_of(sets.all)
    save_tasks(tmp_path / "twice/one/tasks.jsonl", sets.heldout[:1])
    save_tasks(tmp_path / "twice/two/tasks.jsonl", sets.heldout[:1])
    with pytest.raises(ValueError, match="twice: two of its sites have a task of the same id"):
        make_task_sets(replace(config, task=replace(config.task, heldout=str(tmp_path / "twice"))))
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds no sites with tasks; make some: python -m minirl.worlds"):
        make_task_sets(replace(config, task=replace(config.task, heldout=str(tmp_path / "none"))))
