"""Where a run starts, is evaluated, saves and ends: with parts that only note what is asked of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock, call

import pytest
from peers import alone

from minirl.cli import lifecycle
from minirl.config import EvalConfig, to_json
from minirl.recipes import openwebrl_4b, tiny
from minirl.rollout import Collected
from minirl.run_folder import Run
from minirl.types import RunEnds, Stop, Task, Trajectory

TASK = Task("t", "Do it.", "http://shop-0.test/")


@pytest.fixture
def experiment(tmp_path) -> Mock:
    """One that has no evaluation and no checkpoint behind it."""
    experiment = Mock(config=tiny(), ranks=alone())
    experiment.tasks = SimpleNamespace(heldout=[TASK] * 4, validation=[TASK] * 3)
    experiment.run.evals.return_value = []
    experiment.checkpoints.folder, experiment.checkpoints.newest = tmp_path, ""
    experiment.checkpoints.resume.return_value = {"step": 4, "cursor": 9}
    return experiment


def make_worker(*ends: Trajectory) -> Mock:
    """A worker whose evaluations end like that."""
    return Mock(evaluate=AsyncMock(return_value=list(ends)))


def ended(stop: Stop = Stop.DONE, success: bool = False) -> Trajectory:
    return Trajectory(TASK, 0, stop=stop, success=success, error="the reason")


async def test_a_rate_leaves_out_what_was_aborted_and_says_so(experiment):
    ends = [ended(success=True), ended(), ended(Stop.SITE_ERROR), ended(Stop.MAX_STEPS)]
    await lifecycle.evaluate(experiment, make_worker(*ends), [TASK] * 4, "after_sft", 0)
    experiment.run.save_trajectories.assert_called_once_with("after_sft", ends)
    aborted = make_worker(ended(Stop.INFRA_ERROR), ended(Stop.INFRA_ERROR))
    with pytest.raises(RunEnds, match="before: no episode counts; of the first one: the reason"):
        await lifecycle.evaluate(experiment, aborted, [TASK] * 2, "before", 0)
    experiment.log.evaluation.assert_called_once_with("after SFT", 0, 1, 3, 1)


@pytest.mark.parametrize(
    ("step", "recorded", "best", "exported"),
    [
        (0, None, None, False),  # nothing is due
        (3, None, None, False),
        (4, None, 0.25, True),
        (4, None, 0.5, True),  # of equals the newest
        (4, None, 0.75, False),
        (4, 0.5, None, True),  # what was evaluated before --resume may not have been kept
        (4, 0.5, 0.75, False),
    ],
)
async def test_the_best_weights_so_far_are_kept(experiment, step, recorded, best, exported):
    """Every two steps two tasks are evaluated, of which one succeeds."""
    rows = []
    if recorded is not None:
        rows.append({"label": "eval_step_00004", "success": recorded, "n": 2, "invalid": 0})
    worker, state = make_worker(ended(success=True), ended()), {"step": step}
    experiment.config = replace(experiment.config, eval_every=2, eval=EvalConfig(episodes=2))
    experiment.run.best.return_value = {} if best is None else {"step": 2, "success": best}

    def evaluation(label: str, step: int, successes: int, n: int, aborted: int) -> None:
        rows.append({"label": label, "success": successes / n, "n": n, "invalid": aborted})

    experiment.run.evals.return_value, experiment.log.evaluation = rows, evaluation
    await lifecycle.evaluate_if_due(experiment, worker, state)
    assert worker.evaluate.await_count == (step == 4 and recorded is None)
    expected = [call.export("best", {"step": 4, "success": 0.5})] if exported else []
    assert experiment.checkpoints.mock_calls == expected


async def test_a_run_that_could_not_choose_its_best_weights_does_not_begin(experiment):
    experiment.config = replace(experiment.config, eval_every=2)
    experiment.tasks.validation = []
    with pytest.raises(ValueError, match="--eval-every: the tasks set aside for it are all held out"):
        await lifecycle.begin(experiment, make_worker(), AsyncMock())


def test_a_step_ends_with_dump_metrics_and_a_checkpoint_if_one_is_due(experiment):
    experiment.config = replace(experiment.config, save_every=2)
    state, run = {"step": 0, "cursor": 0}, experiment.run
    collected = Collected([], 7, [ended()], submitted=1, dropped=1, in_no_group=[ended(Stop.TIMEOUT)])
    lifecycle.end_step(experiment, state, collected, [], {"loss": 0.5})
    assert state == {"step": 1, "cursor": 7}
    assert run.mock_calls == [call.save_trajectories("step_00001", collected.in_no_group)]
    (number, metrics) = experiment.log.step.call_args.args
    assert number == 1 and metrics["loss"] == 0.5 and metrics["groups_dropped"] == 1
    assert not experiment.checkpoints.mock_calls
    replayed = replace(collected, finished=[], next_cursor=8)
    lifecycle.end_step(experiment, state, replayed, [], {"loss": 0.25})
    experiment.log.step.assert_called_with(2, {"loss": 0.25})
    assert run.mock_calls[1:] == [call.prune(keep_steps=10)], "a replay leaves the dumps where they are"
    experiment.checkpoints.save.assert_called_once_with("step_00002", state)


def test_a_delayed_run_is_pruned_at_its_end(experiment):
    """Before, the next step's episodes have stored screenshots that no dump names yet."""
    rollout = replace(experiment.config.rollout, delay=1)
    experiment.config = replace(experiment.config, rollout=rollout, steps=4)
    for step, pruned in ((3, []), (4, [call.prune(keep_steps=10)])):
        lifecycle.save(experiment, {"step": step})
        assert experiment.run.mock_calls == pruned


@pytest.mark.parametrize("world", [1, 2])
def test_an_interrupted_rank_saves_if_it_is_alone(experiment, capsys, world):
    """Several ranks are not stopped at the same place, so that what they hold does not fit together."""
    experiment.ranks = replace(alone(), world_size=world)
    with pytest.raises(asyncio.CancelledError), lifecycle.saving(experiment, {"step": 3}):
        raise asyncio.CancelledError
    whole = [call.save("step_00003", {"step": 3}), call.finish()]
    assert experiment.checkpoints.mock_calls == (whole if world == 1 else [])
    assert experiment.log.mock_calls == [call.close()]
    assert "interrupted after step 3; --resume goes on from the last checkpoint" in capsys.readouterr().out


@pytest.mark.parametrize("step", [0, 3])
def test_nothing_is_saved_before_the_first_step_and_no_step_twice(experiment, step):
    experiment.checkpoints.newest = "step_00003"
    lifecycle.save(experiment, {"step": step})
    experiment.checkpoints.save.assert_not_called()


@pytest.mark.parametrize(
    ("settings", "saved", "start", "cloned", "state"),
    [
        ({"warm_start": "none"}, False, None, 0, {"step": 0, "cursor": 0}),
        ({}, False, None, 1, {"step": 0, "cursor": 0}),
        ({"warm_start": "elsewhere"}, False, "elsewhere", 0, {"step": 0, "cursor": 0}),
        ({"warm_start": "none"}, True, None, 0, {"step": 4, "cursor": 9}),
    ],
)
async def test_where_a_run_begins(experiment, tmp_path, settings, saved, start, cloned, state):
    """As it is, cloned, from given weights, or where it was left; of a start held-out tasks are evaluated."""
    if saved:
        (tmp_path / "step_00004").mkdir()
    experiment.config = replace(experiment.config, name=str(tmp_path), **settings)
    worker, warm_start = make_worker(*[ended()] * 4), AsyncMock()
    assert await lifecycle.begin(experiment, worker, warm_start) == state
    given = [call(Path(start))] if start else []
    assert experiment.checkpoints.start_from.mock_calls == given
    assert warm_start.await_count == cloned
    weights = experiment.trainer.weights()
    worker.sync.assert_called_once_with(weights)
    first_calls = experiment.trainer.mock_calls[:2]
    assert first_calls == [call.keep_reference(), call.reset_optimizer()], "fresh moments"
    assert experiment.run.truncate_after.mock_calls == [call(4 if saved else -1)]
    label = "before training" if settings.get("warm_start") == "none" else "after SFT"
    evaluations = experiment.log.evaluation.mock_calls
    assert evaluations == ([] if saved else [call(label, 0, 0, 4, 0)])


async def test_reinforcement_adapts_what_was_cloned(experiment, tmp_path):
    """As a resumed run does, which finds the clone's folder: adapters that cloned are merged there."""
    config = replace(experiment.config, name=str(tmp_path))
    experiment.config = replace(config, model=replace(config.model, lora=4))
    order = Mock(warm_start=AsyncMock())
    order.attach_mock(experiment.checkpoints.start_from, "start_from")
    await lifecycle.begin(experiment, make_worker(*[ended()] * 4), order.warm_start)
    assert [name for name, *_ in order.mock_calls] == ["warm_start", "start_from"]
    order.start_from.assert_called_once_with(tmp_path / "checkpoints/sft")


def test_a_run_that_was_moved_goes_on_and_one_of_another_model_does_not(tmp_path):
    folder = tmp_path / "after"
    config = replace(tiny(), name=str(folder))
    before = replace(config.model, path=str(tmp_path / "before/model"))
    Run(folder).write_config(to_json(replace(config, model=before)))
    with pytest.raises(ValueError, match="after was made with model.path .*before/model, not"):
        lifecycle.check_run(config)
    (folder / "model").mkdir()
    lifecycle.check_run(config)


def test_other_demonstrations_beside_a_clone_are_another_run(tmp_path, capsys):
    """A resumed run, or one whose flags name none, is past cloning."""
    config = replace(tiny(), name=str(tmp_path), model=replace(tiny().model, path="m"))
    cloned = replace(config, sft=replace(config.sft, demos=Path("a.jsonl")))
    Run(tmp_path).write_config(to_json(cloned))
    lifecycle.check_run(config)
    assert "unlike before: sft.demos\n" in capsys.readouterr().out
    other = replace(config, sft=replace(config.sft, demos=Path("b.jsonl")))
    lifecycle.check_run(replace(other, resume=True))
    with pytest.raises(ValueError, match="was made with sft.demos a.jsonl, not b.jsonl"):
        lifecycle.check_run(other)


async def test_one_lucky_episode_of_an_outage_is_not_the_best(experiment):
    """Of two episodes one is aborted and one succeeds: 0.5, not 1."""
    row = {"label": "eval_step_00004", "success": 1.0, "n": 1, "invalid": 1}
    experiment.run.evals.return_value = [row]
    experiment.config = replace(experiment.config, eval_every=2)
    experiment.run.best.return_value = {"step": 2, "success": 0.75}
    await lifecycle.evaluate_if_due(experiment, make_worker(), {"step": 4})
    assert not experiment.checkpoints.mock_calls


def test_a_resumed_run_says_what_is_unlike_before(tmp_path, capsys):
    """Permuted rewards are another run's; servers may have moved."""
    config = replace(tiny(), name=str(tmp_path), model=replace(tiny().model, path="m"))
    task = replace(config.task, reset="http://old/")
    Run(tmp_path).write_config(to_json(replace(config, task=task, loss=replace(config.loss, kl=0.1))))
    lifecycle.check_run(replace(config, resume=True))
    assert "unlike before: task.reset, loss.kl\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="was made with shuffle_rewards False, not True"):
        lifecycle.check_run(replace(config, resume=True, shuffle_rewards=True))


def test_what_an_evaluation_is_does_not_change(tmp_path):
    """One of shorter episodes can't be compared with the earlier one. How often one is made is free."""
    config = replace(tiny(), name=str(tmp_path), model=replace(tiny().model, path="m"), eval_every=4)
    Run(tmp_path).write_config(to_json(config))
    lifecycle.check_run(replace(config, resume=True, eval_every=2))
    with pytest.raises(ValueError, match="was made with eval.max_steps"):
        lifecycle.check_run(replace(config, eval=replace(config.eval, max_steps=1)))


def test_a_replay_starts_where_its_source_has(tmp_path):
    source = Run(tmp_path / "source")
    source.write_config({"warm_start": "clones/sft"})
    source.save_trajectories(Run.step_label(1), [])
    config = replace(tiny(), name=str(tmp_path / "replay"), replay=source.root)
    with pytest.raises(ValueError, match="add --warm-start clones/sft"):
        lifecycle.check_run(config)
    lifecycle.check_run(replace(config, warm_start="clones/sft"))


def test_a_replay_begins_with_the_first_step(tmp_path):
    """Of a long run the last ten are left, whose episodes are of later weights."""
    source = Run(tmp_path / "source")
    config = replace(tiny(), name=str(tmp_path / "replay"), replay=source.root)
    for step in (3, 4):
        source.save_trajectories(Run.step_label(step), [])
    with pytest.raises(ValueError, match="step 1 has no dump, which --rollout.dump-all keeps"):
        lifecycle.check_run(config)
    for step in (1, 2):
        source.save_trajectories(Run.step_label(step), [])
    lifecycle.check_run(config)


def test_a_replay_reads_log_probs_at_the_temperature_that_was_sampled_at(tmp_path):
    source = Run(tmp_path / "source")
    source.write_config({"sampler": {"temperature": 0.7}})
    source.save_trajectories(Run.step_label(1), [])
    config = replace(tiny(), name=str(tmp_path / "replay"), replay=source.root)
    with pytest.raises(ValueError, match="add --sampler.temperature 0.7"):
        lifecycle.check_run(config)
    lifecycle.check_run(replace(config, sampler=replace(config.sampler, temperature=0.7)))


def test_a_plan_is_all_that_is_made(tmp_path, capsys):
    """For cloning, too, which asks the same question first."""
    config = replace(openwebrl_4b(), name=str(tmp_path / "run"), plan="1x80")
    with pytest.raises(SystemExit):
        lifecycle.check_run(config)
    assert "1 x 80 GB" in capsys.readouterr().out and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("part", "field"), [("agent", "names"), ("browser", "calm_ms")])
def test_a_run_of_another_version_is_refused_by_the_setting_that_is_no_more(tmp_path, part, field):
    config = replace(tiny(), name=str(tmp_path))
    saved = to_json(replace(config, model=replace(config.model, path=str(tmp_path / "model"))))
    Run(tmp_path).write_config(saved)
    lifecycle.check_run(config)
    saved[part][field] = "code"
    Run(tmp_path).write_config(saved)
    told = f"was made by another version, with {part}.{field}; choose another --name"
    with pytest.raises(ValueError, match=told):
        lifecycle.check_run(config)
