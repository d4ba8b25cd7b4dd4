"""Multi-turn GRPO for web agents, start to end.

    python train.py                                    the tiny recipe, on a laptop
    python train.py openwebrl-4b --model.path FOLDER   a paper's recipe; --help shows its flags

    tasks --> episodes in Chromium --> groups --> advantages --> rows --> clipped loss --> weights
      ^        (minirl/rollout.py)      (advantages.py)      (rows.py)     (loss.py)         |
      +----------------------------- the next step samples from them <-----------------------+

OpenWebRL, section 4.4, WebAgent-R1, section 2.3; the modules list deviations. What a run does beside learning
is in minirl/cli/lifecycle.py.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from minirl.cli.command_line import from_command_line, run_async, run_main

if __name__ == "__main__":  # --help and mistakes need not wait for torch
    run_main(lambda argv: from_command_line(argv, "train.py", __doc__))

from minirl.advantages import assign_advantages, shuffle_rewards
from minirl.cli.lifecycle import State, begin, check_run, end_step, evaluate, evaluate_if_due, finish, saving
from minirl.cli.offline import Replay
from minirl.config import ACQUIRE_SECONDS, Config
from minirl.console import progress, say
from minirl.credit import assign_credit
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import Experiment, open_experiment
from minirl.rollout import Collected, RolloutWorker, TaskStream
from minirl.rows import TrajectoryRows, make_rows
from minirl.run_folder import Run
from minirl.types import Group, RunEnds
from sft import warm_start


async def train(experiment: Experiment, worker: RolloutWorker | Replay, state: State) -> None:
    """Run the algorithm; a resumed run begins after `state["step"]` steps."""
    config = experiment.config
    trainer = experiment.trainer
    stream = TaskStream(experiment.tasks.train, config.seed)
    ahead: Collected | None = None

    async def collect(cursor: int, step: int) -> Collected:
        with progress(f"step {step + 1}: episodes", config.rollout.groups) as meter:
            return await worker.collect(stream, cursor, step, meter.reach)

    while state["step"] < config.steps:
        if isinstance(worker, RolloutWorker):
            await evaluate_if_due(experiment, worker, state)
        step = state["step"]
        started = time.monotonic()

        # 1. Collect: G episodes for each task of the stream, until enough groups teach something.
        collected: Collected = ahead or await collect(state["cursor"], step)
        ahead = None
        if collected.reason:
            say(f"step {step + 1}: {collected.reason}")
        if not collected.groups:
            raise RunEnds(f"step {step + 1}: no group to learn from. {collected.reason}")
        if config.rollout.delay and step + 1 < config.steps:  # from the weights before this step's update
            ahead = await collect(collected.next_cursor, step + 1)

        # 2. Advantages: how much better each episode was than the others of its task.
        groups: list[Group] = collected.groups
        if config.shuffle_rewards:  # the control, which must learn nothing
            groups = shuffle_rewards(groups, step)
        groups = assign_advantages(groups, config.loss, config.reward.success)
        groups = assign_credit(groups, config.loss)

        # 3. Rows: every turn as the tokens that were sampled, and the weight of each in the loss.
        rows: list[TrajectoryRows] = make_rows(groups, config.loss)
        experiment.checkpoints.finish()  # the last one was written while the episodes ran
        collected_at = time.monotonic()

        # 4. Update: minibatches of whole trajectories, prefix trees, clipped loss, AdamW.
        worker.sleep()
        with progress(f"step {step + 1}: updating", config.batch.epochs) as meter:
            metrics: dict[str, float] = trainer.update(rows, step, meter.advance)

        # 5. Sync: the next step's episodes are sampled from the new weights.
        worker.sync(trainer.weights())

        ended = time.monotonic()
        metrics |= {"seconds/rollout": collected_at - started, "seconds/train": ended - collected_at}
        metrics["seconds/total"] = ended - started
        end_step(experiment, state, collected, groups, metrics)


async def main(config: Config, ranks: Ranks) -> None:
    """Run from the start, or from where a run was left, to the last evaluation."""
    experiment = open_experiment(config, ranks)
    opened = contextlib.nullcontext(Replay(Run(config.replay))) if config.replay else experiment.worker()
    async with opened as worker:
        state = await begin(experiment, worker, warm_start)
        with saving(experiment, state):
            await train(experiment, worker, state)
        if isinstance(worker, RolloutWorker):
            await evaluate_if_due(experiment, worker, state)
            await evaluate(experiment, worker, experiment.tasks.heldout, "after_rl", state["step"])
    finish(experiment)


def run(argv: Sequence[str]) -> None:
    config = from_command_line(argv, "train.py")
    check_run(config)
    if config.replay:
        config = replace(config, steps=min(config.steps, len(Run(config.replay).step_labels())))
    seconds = ACQUIRE_SECONDS + config.browser.episode_seconds
    with open_ranks(seconds) as ranks, Run(config.run_dir, ranks.is_main).held():
        run_async(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
