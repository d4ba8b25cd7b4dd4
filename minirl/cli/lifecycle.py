"""A run's life beside learning: where it starts, its evaluations and checkpoints, how it ends.

    begin --> { evaluate_if_due, one step of train.py, end_step } ... --> finish

Stands around train.py and sft.py, which show their algorithms alone. `state` is what a checkpoint remembers:
the number of finished steps and the task stream's cursor.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minirl.console import say
from minirl.evaluation.failures import step_metrics
from minirl.experiment import Experiment
from minirl.metrics import rollout_metrics
from minirl.rollout import Collected, RolloutWorker
from minirl.run_folder import REGULAR, Run
from minirl.types import Group, RunEnds, Task

State = dict[str, Any]
# Evaluations of the whole held-out set: the name of the dump, and for people
PHASES = {"before": "before training", "after_sft": "after SFT", "after_rl": "after RL"}


async def begin(experiment: Experiment, worker: RolloutWorker, warm_start: Callable) -> State:
    """Return the state to start from: of the last checkpoint, a given one, or `warm_start`, made now. The
    sampler has its weights, and the held-out tasks have been evaluated with them."""
    config, trainer, kept = experiment.config, experiment.trainer, experiment.checkpoints
    sft = kept.folder / "sft"
    resumed = bool(kept.saved())
    cloned = experiment.ranks.broadcast((sft / "state.json").is_file())
    if not resumed:
        experiment.run.truncate_after(0 if cloned and config.warm_start is None else -1)
        experiment.ranks.barrier()
    if config.zero:
        say(f"starting from {config.model.path} as it is")
    elif config.warm_start is None and not cloned:
        await warm_start(experiment, worker)
    else:
        kept.start_from(config.warm_start or sft)
        say(f"starting from {config.warm_start or sft}")
    trainer.keep_reference()
    trainer.reset_optimizer()
    state = {"step": 0, "cursor": 0}
    if resumed:
        state = kept.resume()
        experiment.run.truncate_after(state["step"])
    worker.sync(trainer.weights())
    label = "before" if config.zero else "after_sft"
    if PHASES[label] not in evaluated(experiment):
        await evaluate(experiment, worker, experiment.tasks.heldout, label, 0)
    return state


async def evaluate(
    experiment: Experiment, worker: RolloutWorker, tasks: Sequence[Task], label: str, step: int
) -> float:
    """Record the success on tasks under `label`, and return it."""
    await experiment.reset_sites()
    trajectories = await experiment.run_tasks(worker, tasks, label)
    valid = [t for t in trajectories if t.stop.is_agent_fault]  # as eval.py counts, without aborted ones
    if not valid:
        raise ValueError(f"{label}: no episode counts; of the first one: {trajectories[0].error}")
    successes, aborted = sum(t.success for t in valid), len(trajectories) - len(valid)
    label = PHASES.get(label, label)
    return experiment.log.evaluation(label, step, successes, len(valid), aborted)


def evaluated(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the evaluations that have been recorded, by name."""
    return experiment.ranks.broadcast({row["label"]: row for row in experiment.run.evals()})


async def evaluate_if_due(experiment: Experiment, worker: RolloutWorker, state: State) -> None:
    """Every `eval_every` steps, evaluate tasks set aside for that, and keep the best weights so far."""
    config, step, label = experiment.config, state["step"], f"eval_{Run.step_label(state['step'])}"
    due = config.eval_every and step and step % config.eval_every == 0
    if not due or label in evaluated(experiment):  # it may have been made before --resume
        return
    tasks = experiment.tasks.validation[: config.eval_size]
    success = await evaluate(experiment, worker, tasks, label, step)
    regular = [row["success"] for name, row in evaluated(experiment).items() if name.startswith(REGULAR)]
    if success == max(regular):
        experiment.checkpoints.export("best", state)


def end_step(
    experiment: Experiment, state: State, collected: Collected, groups: list[Group], metrics: dict[str, float]
) -> None:
    """Count a finished step: its dump, its metrics, and the checkpoint if one is due."""
    step = state["step"] + 1
    state |= {"step": step, "cursor": collected.next_cursor}
    if collected.finished:  # a replay has none, and leaves the dumps where they are
        dumped = [trajectory for group in [*groups, collected.in_no_group] for trajectory in group]
        experiment.run.save_trajectories(Run.step_label(step), dumped)
        metrics = {**metrics, **rollout_metrics(collected), **step_metrics(collected.finished)}
    experiment.log.step(step, metrics)
    if step % experiment.config.save_every == 0:
        save(experiment, state)


def save(experiment: Experiment, state: State) -> None:
    """Write the checkpoint of the step that was finished last, if it is not there yet."""
    name, kept = Run.step_label(state["step"]), experiment.checkpoints
    if state["step"] and name not in kept.saved():
        kept.save(name, state, experiment.config.keep)
        experiment.run.prune(keep_steps=state["step"] if experiment.config.rollout.dump_all else 10)


@contextmanager
def saving(experiment: Experiment, state: State) -> Iterator[None]:
    """Save the last step when the block ends, and as far as possible when it is interrupted."""
    try:
        yield
    except asyncio.CancelledError:  # Ctrl-C; it arrives between two updates, so the weights are whole
        if experiment.ranks.world == 1:  # several ranks were not stopped at the same place
            save(experiment, state)
            experiment.checkpoints.finish()
        experiment.log.close()
        say(f"interrupted after step {state['step']}; --resume goes on from the last checkpoint")
        raise
    except RunEnds as end:
        try:
            save(experiment, state)
            experiment.checkpoints.finish()
        except (RuntimeError, OSError) as problem:  # a GPU that failed may have taken the weights along
            raise RunEnds(f"{end}; step {state['step']} could not be saved: {problem}") from None
        raise RunEnds(f"{end}; --resume goes on after step {state['step']}") from None
    save(experiment, state)
    experiment.checkpoints.finish()


def finish(experiment: Experiment) -> None:
    """Write the report, and print the evaluations of the whole held-out set."""
    experiment.log.close()
    rows = {row["label"]: row for row in experiment.run.evals()}
    experiment.log.final_table([rows[name] for name in PHASES.values() if name in rows])
