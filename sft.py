"""Warm start: behaviour cloning on demonstrations, up to the success rate from which RL can learn.

    python sft.py tiny

Loss on the response tokens only, cosine schedule with warm-up. It stops when validation episodes succeed
often enough: a policy that never succeeds gives reinforcement nothing to compare, one cloned to the end
leaves it little to learn. OpenWebRL section 3.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from minirl.cli.command_line import from_command_line, run_async, run_main
from minirl.cli.folders import refuse_default_tasks, refuse_other_settings, refuse_remote
from minirl.cli.lifecycle import evaluate
from minirl.config import Config
from minirl.console import progress, say
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import Experiment, open_experiment
from minirl.rollout import RolloutWorker
from minirl.rows import TrajectoryRows, that_fit, turn_rows
from minirl.run_folder import Run
from minirl.trainer import cloning_batches


async def warm_start(experiment: Experiment, worker: RolloutWorker) -> None:
    """Evaluate the model as it is, clone the demonstrations and save the checkpoint `sft`."""
    config, sft, trainer = experiment.config, experiment.config.sft, experiment.trainer
    await evaluate(experiment, worker, experiment.tasks.heldout, "before", 0)
    demos = await experiment.demonstrate(worker)
    if sft.thoughts:
        from minirl.agents.chain_of_thought import with_thoughts

        demos = await with_thoughts(demos, worker.harness)
        experiment.run.save_trajectories("demos", demos)
    if not demos:
        raise ValueError("no demonstration succeeded; look at the dump demos.jsonl in the run folder")

    examples = [TrajectoryRows(i, turn_rows(demo, advantage=1.0)) for i, demo in enumerate(demos)]
    examples = that_fit(examples, config.batch.micro_tokens, "--batch.micro-tokens", "demonstration")
    worker.sleep()
    with progress("cloning demonstrations", len(cloning_batches(examples, sft, config.seed))) as meter:
        for update, loss in enumerate(trainer.clone(examples, config.seed), 1):
            meter.advance(note=f"loss {loss:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
            due = update >= sft.eval_from and (update - sft.eval_from) % sft.eval_every == 0
            if sft.stop_success is not None and due:
                worker.sync(trainer.weights())
                tasks = experiment.tasks.validation[: sft.eval_episodes]
                tried = await experiment.run_tasks(worker, tasks, "validation")
                success = sum(t.success for t in tried) / len(tried)
                say(f"cloning: update {update}, loss {loss:.3f}, validation success {success:.1%}")
                if success >= sft.stop_success:
                    break
                worker.sleep()
    worker.sync(trainer.weights())
    experiment.checkpoints.export("sft", {"step": 0, "cursor": 0})


async def main(config: Config, ranks: Ranks) -> None:
    experiment = open_experiment(config, ranks)
    async with experiment.worker() as worker:
        await warm_start(experiment, worker)
        await evaluate(experiment, worker, experiment.tasks.heldout, "after_sft", 0)
    experiment.log.close()


def run(argv: Sequence[str]) -> None:
    config = from_command_line(argv, "sft.py")
    refuse_default_tasks(config, argv)
    refuse_remote(config)
    refuse_other_settings(config)
    with open_ranks(config.browser.episode_seconds) as ranks, Run(config.run_dir, ranks.is_main).held():
        run_async(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
