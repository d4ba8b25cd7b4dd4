"""A run's life beside learning: where it starts, its evaluations and checkpoints, how it ends.

    check_run --> begin --> { evaluate_if_due, one step of train.py, end_step } ... --> finish

Stands around train.py and sft.py, which show their algorithms alone. `state` is what a checkpoint remembers:
the number of finished steps and the task stream's cursor.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from minirl.cli.logger import rate_line
from minirl.cli.offline import Replay
from minirl.config import Config, to_json
from minirl.console import progress, say
from minirl.evaluation.failures import step_metrics
from minirl.experiment import Experiment
from minirl.metrics import rollout_metrics
from minirl.rollout import Collected, RolloutWorker
from minirl.run_folder import Run, checkpoints, flatten
from minirl.types import Group, Json, RunEnds, Task

State = Json
# Evaluations of the whole held-out set: the name of the dump, and for people
PHASES = {"before": "before training", "after_sft": "after SFT", "after_rl": "after RL"}
KEPT_DUMPS = 10  # the newest RL steps, beside every tenth
# A run with others of these would not be the same run: its weights and held-out tasks would not fit
FIXED = (
    "seed",
    "task.",
    "model.",
    "agent.",
    "sft.",
    "eval.",
    "warm_start",
    "shuffle_rewards",
)
# They are elsewhere where a run has moved to, or change no number
MOVABLE = ("task.reset", "task.servers", "sft.demos", "model.gradient_checkpointing")


def check_run(config: Config) -> None:
    """Raise ValueError if the config can't be trained with, or two runs would mix in the run's folder. The
    script ends here if only its `--plan` is asked for, or the run is finished."""
    if config.plan:
        from minirl.cli.memory_plan import plan, show

        show(plan(config))
        raise SystemExit(0)
    if config.sampler.kind == "remote":
        raise ValueError("--sampler remote: a served model can't be trained; use eval.py, or --sft.demos")
    for name in ("train", "heldout"):
        if not (getattr(config.task, name) or config.replay):
            raise ValueError(
                f"recipe {config.recipe} brings no tasks: give --task.{name} FILE, or shops:0-299"
            )
    given = flatten(to_json(config))
    if config.replay:
        source = Run(config.replay)
        if Run.step_label(1) not in source.labels():  # later episodes are of later weights
            raise ValueError(f"--replay {config.replay}: step 1 has no dump, which --rollout.dump-all keeps")
        replayed = flatten(source.config())
        # from other weights, or at another temperature, ratios would begin far from 1
        for name in ("warm_start", "sampler.temperature"):
            value = replayed.get(name, given[name])
            if value not in ("sft", "none", given[name]):
                raise ValueError(f"--replay: that run had another: add --{name.replace('_', '-')} {value}")
    folder = config.run_dir
    run = Run(folder)
    recorded = flatten(run.config())
    if config.model.path == "tiny":
        given["model.path"] = str((config.replay or folder) / "model")
        if (folder / "model").is_dir():  # its own, which has moved with it
            recorded["model.path"] = given["model.path"]
    unlike = []
    for name, value in recorded.items():
        if name not in given:
            raise ValueError(f"{folder} was made by another version, with {name}; choose another --name")
        if given[name] == value or name == "resume":
            continue
        unlike.append(name)
        # before the first step the clone may be of other demonstrations
        is_moved = name in MOVABLE and (config.resume or name != "sft.demos" or not given[name])
        if name.startswith(FIXED) and not is_moved:
            raise ValueError(
                f"{folder} was made with {name} {value}, not {given[name]}; choose another --name"
            )
    if checkpoints(run.checkpoint_dir) and not config.resume:
        raise ValueError(f"{folder} holds a run already; go on with --resume, or choose another --name")
    if config.resume and not folder.exists():
        raise ValueError(f"--resume: there is no run in {folder}")
    if unlike:
        say(f"unlike before: {', '.join(unlike)}")
    if config.sampler.kind == "vllm" and not find_spec("vllm"):
        raise ValueError("--sampler vllm: it is not installed; pip install 'minirl-web[vllm]'")
    ends = {row["label"]: row["step"] for row in run.evals()}
    if config.resume and ends.get(PHASES["after_rl"], 0) >= config.steps:
        say(f"{folder} has finished its {config.steps} steps; a larger --steps goes on")
        raise SystemExit(0)


async def begin(experiment: Experiment, worker: RolloutWorker | Replay, warm_start: Callable) -> State:
    """Return the state to start from: of the last checkpoint, a given one, or `warm_start`, made now.

    The sampler has its weights, and the held-out tasks have been evaluated with them. A replay starts from
    the weights that its source has started from.
    """
    config = experiment.config
    if config.eval_every and not (config.replay or experiment.tasks.validation):
        raise ValueError("--eval-every: the tasks set aside for it are all held out: change --task.heldout")
    trainer = experiment.trainer
    saved = experiment.checkpoints
    sft = Run(config.replay or config.run_dir).checkpoint_dir / "sft"
    is_resumed = experiment.ranks.broadcast(checkpoints(saved.folder) != [])
    is_cloned = experiment.ranks.broadcast((sft / "state.json").is_file())
    if not is_resumed:
        experiment.run.truncate_after(0 if is_cloned and config.warm_start == "sft" else -1)
        experiment.ranks.barrier()
    if config.warm_start == "none":
        say(f"starting from {config.model.path} as it is")
    elif config.warm_start == "sft" and not is_cloned:
        if not config.replay:  # a source that has cloned nothing has started from its model
            await warm_start(experiment, worker)
            if config.model.lora:  # reinforcement adapts the clone
                saved.start_from(sft)
    else:
        start = sft if config.warm_start == "sft" else Path(config.warm_start)
        saved.start_from(start)
        say(f"starting from {start}")
    # also of a resumed run the reference is what it started from
    trainer.keep_reference()
    trainer.reset_optimizer()
    state = {"step": 0, "cursor": 0}
    if is_resumed:
        state = saved.resume()
        experiment.run.truncate_after(state["step"])
    worker.sync(trainer.weights())
    label = "before" if config.warm_start == "none" else "after_sft"
    if not is_resumed and not isinstance(worker, Replay) and PHASES[label] not in evaluated(experiment):
        await evaluate(experiment, worker, experiment.tasks.heldout, label, 0)
    return state


async def evaluate(
    experiment: Experiment, worker: RolloutWorker, tasks: Sequence[Task], label: str, step: int
) -> None:
    """Record the success on tasks under `label`. The episodes are kept as the dump `label`."""
    from minirl.browser.servers import reset_sites

    await reset_sites(experiment)
    places = [(task, n) for n, task in enumerate(tasks)]
    with progress(f"evaluating {label}", len(tasks)) as meter:
        trajectories = await worker.evaluate(places, label, experiment.config.eval.max_steps, meter.reach)
    experiment.run.save_trajectories(label, trajectories)
    # as eval.py counts, without aborted ones
    valid = [trajectory for trajectory in trajectories if trajectory.stop.is_agent_fault]
    if not valid:
        raise RunEnds(f"{label}: no episode counts; of the first one: {trajectories[0].error}")
    successes = sum(trajectory.success for trajectory in valid)
    aborted = len(trajectories) - len(valid)
    experiment.log.evaluation(PHASES.get(label, label), step, successes, len(valid), aborted)


def evaluated(experiment: Experiment) -> dict[str, Json]:
    """Return the evaluations that have been recorded, by name, on all ranks."""
    return experiment.ranks.broadcast({row["label"]: row for row in experiment.run.evals()})


async def evaluate_if_due(experiment: Experiment, worker: RolloutWorker, state: State) -> None:
    """Every `eval_every` steps, evaluate tasks set aside for that, and keep the best weights so far."""
    config = experiment.config
    step = state["step"]
    label = f"eval_{Run.step_label(step)}"
    if not (config.eval_every and step and step % config.eval_every == 0):
        return
    if label not in evaluated(experiment):  # it may have been made before --resume
        tasks = experiment.tasks.validation[: config.eval.interim_episodes]
        await evaluate(experiment, worker, tasks, label, step)
    row = evaluated(experiment)[label]
    # aborted episodes count as failures here: one lucky episode of an outage is not the best
    success = row["success"] * row["n"] / (row["n"] + row["invalid"])
    best = experiment.ranks.broadcast(experiment.run.best())
    if success >= best.get("success", 0.0):
        experiment.checkpoints.export("best", state | {"success": success})


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
    name = Run.step_label(state["step"])
    if state["step"] and name != experiment.checkpoints.newest:
        experiment.checkpoints.save(name, state)
        rollout = experiment.config.rollout
        # with a delay the next step's screenshots are there, which no dump names yet
        if not rollout.delay or state["step"] >= experiment.config.steps:
            experiment.run.prune(keep_steps=state["step"] if rollout.dump_all else KEPT_DUMPS)
        experiment.ranks.barrier()  # the others' next episodes would store screenshots that no dump names


@contextmanager
def saving(experiment: Experiment, state: State) -> Iterator[None]:
    """Save the last step when the block ends, and as far as possible when it is interrupted."""

    def complete() -> None:
        save(experiment, state)
        experiment.checkpoints.finish()

    try:
        yield
    except asyncio.CancelledError:  # Ctrl-C; it arrives between two updates, so the weights are whole
        if experiment.ranks.world_size == 1:  # several ranks were not stopped at the same place
            complete()
        experiment.log.close()
        say(f"interrupted after step {state['step']}; --resume goes on from the last checkpoint")
        raise
    except RunEnds as end:
        complete()
        if not state["step"]:
            raise
        raise RunEnds(f"{end}; --resume goes on after step {state['step']}") from None
    complete()


def finish(experiment: Experiment) -> None:
    """Write the report, and print the evaluations of the whole held-out set."""
    experiment.log.close()
    rows = evaluated(experiment)
    for name in PHASES.values():
        if name in rows:
            say(rate_line(rows[name]), "bold")
