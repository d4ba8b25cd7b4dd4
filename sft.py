"""Warm start: behaviour cloning on demonstrations, up to the success rate from which RL can learn.

    python sft.py tiny

Loss on the response tokens only, cosine schedule with warm-up, stopped when validation episodes in the
browser succeed often enough: a policy that never succeeds gives reinforcement nothing to compare, and one
that has been cloned to the end leaves it little to learn. OpenWebRL section 3.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from minirl.agents.chain_of_thought import with_thoughts
from minirl.config import Config
from minirl.console import progress, say
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import Experiment, open_experiment, refuse_other_settings, refuse_remote
from minirl.recipes import from_command_line, run_main
from minirl.rollout import RolloutWorker
from minirl.rows import Row, TrajectoryRows, minibatches, turn_rows
from minirl.trainer import cosine
from minirl.types import Trajectory


def batches(demos: Sequence[Trajectory], turns: int, epochs: int, seed: int) -> list[list[Row]]:
    """Whole demonstrations in random order, about `turns` turns at a time, for so many epochs."""
    members = [TrajectoryRows(i, turn_rows(trajectory, advantage=1.0)) for i, trajectory in enumerate(demos)]
    shuffled = (minibatches(members, turns, seed + epoch) for epoch in range(epochs))
    return [[row for member in part for row in member.rows] for parts in shuffled for part in parts]


async def warm_start(parts: Experiment, rollouts: RolloutWorker) -> None:
    """Evaluates what there is, clones the demonstrations and saves the checkpoint `sft`."""
    config, sft = parts.config, parts.config.sft
    await parts.evaluate(rollouts, parts.tasks.heldout, "before", 0)
    demos = await parts.demonstrate(rollouts)
    if config.sft.thoughts:
        demos = await with_thoughts(demos, config, parts.preprocessor)
        parts.run.save_trajectories("demos", demos)
    if not demos:
        raise ValueError("no demonstration succeeded; look at the dump demos.jsonl in the run folder")
    updates = batches(demos, sft.batch, sft.epochs, config.seed)[: sft.max_steps]
    with progress("cloning demonstrations", len(updates)) as meter:
        for i, rows in enumerate(updates):
            rollouts.sleep()
            loss = parts.trainer.sft_step(rows, sft.lr * cosine(i, len(updates), sft.warmup))
            meter.advance(note=f"loss {loss:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
            due = i + 1 >= sft.eval_from and (i + 1 - sft.eval_from) % sft.eval_every == 0
            if sft.stop_success is not None and due:
                tasks = parts.tasks.validation[: sft.eval_episodes]
                rollouts.sync(parts.trainer.weights())
                tried = await parts.run_tasks(rollouts, tasks, "validation")
                success = sum(t.success for t in tried) / len(tried)
                say(f"cloning: update {i + 1}, loss {loss:.3f}, validation success {success:.1%}")
                if success >= sft.stop_success:
                    break
    rollouts.sync(parts.trainer.weights())
    parts.checkpoints.export("sft", {"step": 0, "cursor": 0})


async def main(config: Config, ranks: Ranks) -> None:
    parts = open_experiment(config, ranks)
    async with parts.rollouts() as rollouts:
        await warm_start(parts, rollouts)
        await parts.evaluate(rollouts, parts.tasks.heldout, "after_sft", 0)
    parts.log.close()


def run(argv: Sequence[str]) -> None:
    config = from_command_line(argv, "sft.py")
    refuse_remote(config)
    refuse_other_settings(config)
    with open_ranks(config.browser.episode_seconds) as ranks:
        asyncio.run(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
