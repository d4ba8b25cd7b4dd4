"""Multi-turn GRPO for web agents, start to end.

    python train.py                                    the tiny recipe, on a laptop
    python train.py openwebrl-4b --model.path FOLDER   a paper's recipe
    python train.py tiny --help                        every flag

    tasks --> episodes in Chromium --> groups --> rewards --> advantages --> rows --> clipped loss --> weights
      ^        (minirl/rollout.py)      (minirl/reward.py)   (minirl/batch.py)  (minirl/loss.py)        |
      +------------------------------------ the next step samples from them <---------------------------+

OpenWebRL section 3.4, WebAgent-R1 section 3. What differs from them is said in the modules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from minirl.config import from_command_line, run_main
from minirl.log import final_table, progress, say
from minirl.metrics import rollout_metrics
from minirl.parts import Parts, open_parts
from minirl.reward import assign_advantages, shuffle_rewards
from minirl.rollout import Collected, Rollouts, TaskStream
from minirl.store import Run
from minirl.trainer import checkpoints, load_latest, prune
from sft import warm_start


async def train(parts: Parts, rollouts: Rollouts, state: dict[str, Any]) -> None:
    """The algorithm."""
    config, trainer = parts.config, parts.trainer
    stream = TaskStream(parts.tasks.train, config.seed)
    while state["step"] < config.steps:
        step, started = state["step"], time.monotonic()

        collected = await collect(parts, rollouts, stream, state["cursor"], step)
        if not collected.groups:
            raise ValueError(f"step {step + 1}: no group to learn from. {collected.reason}")
        groups = shuffle_rewards(collected.groups, step) if config.shuffle_rewards else collected.groups
        groups = assign_advantages(groups, config.loss.std_eps)
        gathered = time.monotonic()

        with progress(f"step {step + 1}: updating", config.batch.epochs) as meter:
            metrics = trainer.reinforce(groups, config.seed + 1000 * step, meter.advance)
        rollouts.sampler.sync()

        state |= {"step": step + 1, "cursor": collected.next_cursor}
        updated = time.monotonic()
        metrics |= rollout_metrics(collected)
        metrics |= {"seconds/rollout": gathered - started, "seconds/train": updated - gathered}
        metrics["seconds/total"] = time.monotonic() - started
        invalid = [trajectory for trajectory in collected.finished if not trajectory.valid]
        parts.run.save_trajectories(Run.step_label(step + 1), [*groups, *invalid])
        if config.eval_every and (step + 1) % config.eval_every == 0:
            metrics["eval_success"] = await evaluate_and_keep_best(parts, rollouts, state)
        parts.log.step(step + 1, metrics)
        if (step + 1) % config.save_every == 0:
            save(parts, state)


async def collect(parts: Parts, rollouts: Rollouts, stream: TaskStream, cursor: int, step: int) -> Collected:
    """A step's groups from the browsers, with a progress bar."""
    with progress(f"step {step + 1}: episodes", parts.config.rollout.groups) as meter:
        collected = await rollouts.collect(stream, cursor, step, lambda n: meter.advance(n - meter.done))
    if collected.reason:
        say(f"step {step + 1}: {collected.reason}")
    return collected


def train_on_dumps(parts: Parts, source: Run) -> None:
    """The updates alone, on the groups that another run has dumped; opens no browser."""
    config, state = parts.config, {"step": 0, "cursor": 0}
    parts.run.truncate_after(-1)
    prune(parts.run.checkpoint_dir, keep=0)
    if config.warm_start is not None:
        parts.trainer.load(config.warm_start, optimizer=False)
    for label in [label for label in source.labels() if label.startswith("step_")][: config.steps]:
        step = int(label.removeprefix("step_")) - 1
        groups = assign_advantages(source.load_groups(label), config.loss.std_eps)
        with progress(f"{label}: updating", config.batch.epochs) as meter:
            metrics = parts.trainer.reinforce(groups, config.seed + 1000 * step, meter.advance)
        state["step"] = step + 1
        parts.log.step(step + 1, metrics)
    if not state["step"]:
        raise ValueError(f"--replay {config.replay}: no dumped RL steps in its trajectories folder")
    save(parts, state)
    parts.log.close()


async def evaluate_and_keep_best(parts: Parts, rollouts: Rollouts, state: dict[str, Any]) -> float:
    """A small held-out evaluation; the weights are kept if they are the best so far."""
    tasks = parts.tasks.heldout[: parts.config.eval_size]
    success = await parts.evaluate(rollouts, tasks, f"eval_step_{state['step']:05d}", state["step"])
    if success > state.get("best", -1.0):
        state["best"] = success
        parts.trainer.save(parts.run.checkpoint_dir / "best", state)
    return success


def save(parts: Parts, state: dict[str, Any]) -> None:
    folder = parts.run.checkpoint_dir
    parts.trainer.save(folder / Run.step_label(state["step"]), state)
    prune(folder, parts.config.keep)
    parts.run.prune(keep_steps=10)


async def prepare(parts: Parts, rollouts: Rollouts) -> dict[str, Any]:
    """Where to start: the last checkpoint, a given one, or a warm start made here and now."""
    config, trainer, folder = parts.config, parts.trainer, parts.run.checkpoint_dir
    if config.resume and checkpoints(folder):
        state = load_latest(trainer, folder, say)
        parts.run.truncate_after(state["step"])
        say(f"resumed after step {state['step']}")
        return state
    sft, heldout = folder / "sft", parts.tasks.heldout
    reuse_sft = config.warm_start is None and (sft / "state.json").is_file()
    parts.run.truncate_after(0 if reuse_sft else -1)
    prune(folder, keep=0)
    if reuse_sft:
        trainer.load(sft, optimizer=False)
        say(f"starting from {sft}")
    elif config.warm_start is not None:
        trainer.load(config.warm_start, optimizer=False)
        await parts.evaluate(rollouts, heldout, "after_sft", 0)
    else:
        await parts.evaluate(rollouts, heldout, "before", 0)
        await warm_start(parts, rollouts)
        await parts.evaluate(rollouts, heldout, "after_sft", 0)
    trainer.reset_optimizer()
    return {"step": 0, "cursor": 0}


async def main(argv: Sequence[str]) -> None:
    parts = open_parts(from_command_line(argv, "train.py"))
    if parts.config.replay is not None:
        return train_on_dumps(parts, Run(parts.config.replay))
    async with parts.rollouts() as rollouts:
        state = await prepare(parts, rollouts)
        saved = state["step"]
        try:
            await train(parts, rollouts, state)
            await parts.evaluate(rollouts, parts.tasks.heldout, "after_rl", state["step"])
        finally:  # also on Ctrl-C, which arrives here as a cancellation between two steps
            if state["step"] > saved:
                save(parts, state)
            parts.log.close()
    phases = {"before": "before training", "after_sft": "after SFT", "after_rl": "after RL"}
    rows = {row["label"]: row for row in parts.run.evals()}  # the latest of each
    final_table([rows[label] | {"label": name} for label, name in phases.items() if label in rows])


if __name__ == "__main__":
    run_main(lambda argv: asyncio.run(main(argv)))
