"""Multi-turn GRPO for web agents, start to end.

    python train.py                                    the tiny recipe, on a laptop
    python train.py openwebrl-4b --model.path FOLDER   a paper's recipe
    python train.py tiny --help                        every flag

    tasks --> episodes in Chromium --> groups --> rewards --> advantages --> rows --> clipped loss --> weights
      ^        (minirl/rollout.py)      (minirl/advantages.py)   (minirl/rows.py)  (minirl/loss.py)        |
      +------------------------------------ the next step samples from them <---------------------------+

OpenWebRL section 3.4, WebAgent-R1 section 3. What differs from them is said in the modules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from minirl.advantages import assign_advantages, shuffle_rewards
from minirl.checkpoint import checkpoints
from minirl.cli.memory_plan import plan, show
from minirl.config import Config
from minirl.console import final_table, progress, say
from minirl.distributed import Ranks, open_ranks
from minirl.evaluation.failures import step_metrics
from minirl.experiment import (
    PHASES,
    Experiment,
    open_experiment,
    refuse_other_settings,
    refuse_remote,
    refuse_unjudged,
)
from minirl.metrics import rollout_metrics
from minirl.recipes import from_command_line, run_main
from minirl.rollout import Collected, RolloutWorker, TaskStream
from minirl.run_folder import Run
from minirl.types import SamplerDied
from sft import warm_start


async def train(parts: Experiment, rollouts: RolloutWorker, state: dict[str, Any]) -> None:
    """The algorithm."""
    config, trainer = parts.config, parts.trainer
    stream = TaskStream(parts.tasks.train, config.seed)
    while state["step"] < config.steps:
        step, started = state["step"], time.monotonic()
        await evaluate_if_due(parts, rollouts, state)

        collected = await collect(parts, rollouts, stream, state["cursor"], step)
        if not collected.groups:
            how = rescue(parts, state)
            raise ValueError(f"step {step + 1}: no group to learn from. {collected.reason}; {how}")
        groups = shuffle_rewards(collected.groups, step) if config.shuffle_rewards else collected.groups
        groups = assign_advantages(groups, config.loss)
        parts.checkpoints.finish()  # it was written while the episodes ran
        gathered = time.monotonic()

        rollouts.sleep()
        with progress(f"step {step + 1}: updating", config.batch.epochs) as meter:
            metrics = trainer.rl_step(groups, config.seed + 1000 * step, meter.advance)
        rollouts.sync(trainer.weights())

        state |= {"step": step + 1, "cursor": collected.next_cursor}
        updated = time.monotonic()
        metrics |= rollout_metrics(collected) | step_metrics(collected.finished)
        metrics |= {"seconds/rollout": gathered - started, "seconds/train": updated - gathered}
        metrics["seconds/total"] = updated - started
        parts.run.save_trajectories(Run.step_label(step + 1), [*groups, *collected.in_no_group])
        parts.log.step(step + 1, metrics)
        if (step + 1) % config.save_every == 0:
            save(parts, state)


async def collect(
    parts: Experiment, rollouts: RolloutWorker, stream: TaskStream, cursor: int, step: int
) -> Collected:
    """A step's groups from the browsers, with a progress bar."""
    with progress(f"step {step + 1}: episodes", parts.config.rollout.groups) as meter:
        collected = await rollouts.collect(stream, cursor, step, lambda n: meter.advance(n - meter.done))
    if collected.reason:
        say(f"step {step + 1}: {collected.reason}")
    return collected


async def evaluate_if_due(parts: Experiment, rollouts: RolloutWorker, state: dict[str, Any]) -> None:
    """Every `eval_every` steps a small held-out evaluation; the weights are kept if they are the best so
    far. One that was interrupted is made up for after --resume."""
    step, label = state["step"], f"eval_step_{state['step']:05d}"
    due = parts.config.eval_every and step and step % parts.config.eval_every == 0
    if not due or label in parts.evaluated():
        return
    success = await parts.evaluate(rollouts, parts.tasks.heldout[: parts.config.eval_size], label, step)
    if success == max(row["success"] for row in parts.evaluated().values() if is_regular(row["label"])):
        parts.checkpoints.export("best", state)


def is_regular(label: str) -> bool:
    """Whether an evaluation is one of those every `eval_every` steps."""
    return label.startswith("eval_step_")


def save(parts: Experiment, state: dict[str, Any]) -> None:
    """The checkpoint of the step that was finished last, if it is not there yet."""
    name, checkpoints = Run.step_label(state["step"]), parts.checkpoints
    if state["step"] and name not in checkpoints.saved():
        checkpoints.save(name, state, parts.config.keep)
        parts.run.prune(keep_steps=10)


def rescue(parts: Experiment, state: dict[str, Any]) -> str:
    """Saves what there is before the run ends early, and says how to go on. A GPU that failed may have taken
    the weights along."""
    try:
        save(parts, state)
        parts.checkpoints.finish()
    except (RuntimeError, OSError) as problem:
        return f"step {state['step']} could not be saved ({problem}); --resume goes on from an earlier one"
    return f"--resume goes on after step {state['step']}"


async def prepare(parts: Experiment, rollouts: RolloutWorker) -> dict[str, Any]:
    """Where to start: the last checkpoint, a given one, or a warm start made here and now."""
    config, trainer, checkpoints = parts.config, parts.trainer, parts.checkpoints
    sft = checkpoints.folder / "sft"
    resumed, cloned = bool(checkpoints.saved()), parts.ranks.broadcast((sft / "state.json").is_file())
    if not resumed:
        parts.run.truncate_after(0 if cloned and config.warm_start is None else -1)
        parts.ranks.barrier()
    if config.zero:
        say(f"starting from {config.model.path} as it is")
    elif config.warm_start is None and not cloned:
        await warm_start(parts, rollouts)
    else:
        checkpoints.start_from(config.warm_start or sft)
        say(f"starting from {config.warm_start or sft}")
    trainer.keep_reference()
    trainer.reset_optimizer()
    state = {"step": 0, "cursor": 0}
    if resumed:
        state = checkpoints.resume(say)
        parts.run.truncate_after(state["step"])
        say(f"resumed after step {state['step']}")
    rollouts.sync(trainer.weights())
    label = "before" if config.zero else "after_sft"
    if PHASES[label] not in parts.evaluated():
        await parts.evaluate(rollouts, parts.tasks.heldout, label, 0)
    return state


def train_on_dumps(parts: Experiment, source: Run) -> None:
    """The updates alone, on the groups that another run has dumped; opens no browser."""
    config, checkpoints, state = parts.config, parts.checkpoints, {"step": 0, "cursor": 0}
    start = config.warm_start or source.checkpoint_dir / "sft"
    if config.warm_start or parts.ranks.broadcast(start.exists()):
        checkpoints.start_from(start)
    parts.trainer.keep_reference()
    if config.resume and checkpoints.saved():
        state = checkpoints.resume(say)
        say(f"resumed after step {state['step']}")
    else:
        checkpoints.clear()
    parts.run.truncate_after(state["step"] or -1)
    for label in dumped_steps(source)[: config.steps]:
        step = int(label.removeprefix("step_")) - 1
        if step < state["step"]:
            continue
        groups = assign_advantages(source.load_groups(label), config.loss)
        with progress(f"{label}: updating", config.batch.epochs) as meter:
            metrics = parts.trainer.rl_step(groups, config.seed + 1000 * step, meter.advance)
        state["step"] = step + 1
        parts.log.step(step + 1, metrics)
        if (step + 1) % config.save_every == 0:
            save(parts, state)
    save(parts, state)
    checkpoints.finish()
    parts.log.close()


def dumped_steps(source: Run) -> list[str]:
    return [label for label in source.labels() if label.startswith("step_")]


def check_folders(config: Config) -> None:
    """Refuses to mix two runs in one folder, before anything in it is changed."""
    refuse_remote(config)
    refuse_other_settings(config)
    run = Run(config.run_dir)
    if config.replay is not None:
        if config.replay.resolve() == config.run_dir.resolve():
            raise ValueError("--replay reads a run's dumps; give the new run another --name")
        if not dumped_steps(Run(config.replay)):
            raise ValueError(f"--replay {config.replay}: no dumped RL steps in its trajectories folder")
        if checkpoints(run.checkpoint_dir) and not run.config().get("replay"):
            raise ValueError(f"{run.root} holds a run that was not a replay; choose another --name")
    if config.resume and not run.root.exists():
        raise ValueError(f"--resume: there is no run in {run.root}")
    if not config.resume and config.replay is None and checkpoints(run.checkpoint_dir):
        raise ValueError(f"{run.root} holds a run already; go on with --resume, or choose another --name")


async def main(config: Config, ranks: Ranks) -> None:
    parts = open_experiment(config, ranks)
    if config.replay is not None:
        return train_on_dumps(parts, Run(config.replay))
    refuse_unjudged(config, parts.tasks.train + parts.tasks.heldout)
    async with parts.rollouts() as rollouts:
        state = await prepare(parts, rollouts)
        try:
            await train(parts, rollouts, state)
        except asyncio.CancelledError:  # Ctrl-C; it arrives between two updates, so the weights are whole
            if ranks.world == 1:  # several ranks were not stopped at the same place
                save(parts, state)
                parts.checkpoints.finish()
            parts.log.close()
            say(f"interrupted after step {state['step']}; --resume goes on from the last checkpoint")
            raise
        except SamplerDied as death:
            raise SamplerDied(f"{death}; {rescue(parts, state)}") from None
        save(parts, state)
        parts.checkpoints.finish()
        await parts.evaluate(rollouts, parts.tasks.heldout, "after_rl", state["step"])
    parts.log.close()
    rows = {row["label"]: row for row in parts.run.evals()}
    if ranks.is_main:
        final_table([rows[name] for name in PHASES.values() if name in rows])


def run(argv: Sequence[str]) -> None:
    config = from_command_line(argv, "train.py")
    if config.plan:
        return show(plan(config, config.gpus, config.gpu_gb))
    check_folders(config)
    with open_ranks(config.browser.acquire_seconds + config.browser.episode_seconds) as ranks:
        asyncio.run(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
