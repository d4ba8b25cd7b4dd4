"""Warm start: behaviour cloning on demonstrations, so that reinforcement has successes to compare.

    python sft.py tiny                                        scripted solutions, acted out and cloned
    python sft.py tiny --sft.demos FILE --sft.max-steps 60    a file's successes; 60 updates

Its settings begin with --sft, and its evaluations' with --eval; --steps, --rollout, --loss and --optim are
those of reinforcement, for train.py. Loss on the response tokens only, cosine schedule with warm-up
(--sft.lr, --sft.warmup). With demonstrations held back for validation (--sft.held-back) the weights with the
lowest validation loss stay: early stopping. OpenWebRL, section 4.2 and appendix A.5.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

from minirl.cli.command_line import from_command_line, run_async, run_main

if __name__ == "__main__":  # --help and mistakes need not wait for torch
    run_main(lambda argv: from_command_line(argv, "sft.py", __doc__))

from minirl.cli.lifecycle import check_run, evaluate
from minirl.config import Config
from minirl.console import progress, say
from minirl.demonstrations import tokenised
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import Experiment, open_experiment
from minirl.model import load_preprocessor
from minirl.rollout import RolloutWorker
from minirl.rows import TrajectoryRows, filter_by_length, turn_rows
from minirl.run_folder import Run
from minirl.trainer import cloning_batches


async def warm_start(experiment: Experiment, worker: RolloutWorker) -> None:
    """Evaluate the model as it is, briefly, clone the demonstrations and save the checkpoint `sft`."""
    config = experiment.config
    trainer = experiment.trainer

    # 1. Demonstrations: of the dump that --sft.demos names, or scripted solutions, acted out now.
    demos = await experiment.demonstrate(worker)
    if not demos:
        raise ValueError("no demonstration succeeded; look at the dump demos.jsonl in the run folder")
    tasks = experiment.tasks.heldout[: config.eval.interim_episodes]
    await evaluate(experiment, worker, tasks, "before", 0)

    # 2. Rows: every turn as tokens, of which the response is cloned. Screenshots may be smaller than later.
    if (config.sft.max_pixels or math.inf) < (config.model.max_pixels or math.inf):
        trainer.preprocessor = load_preprocessor(replace(config.model, max_pixels=config.sft.max_pixels))
        harness = replace(worker.harness, preprocessor=trainer.preprocessor)
        demos = [tokenised(demo, harness) for demo in demos]
    examples = [TrajectoryRows(i, turn_rows(demo, advantage=1.0)) for i, demo in enumerate(demos)]
    examples = filter_by_length(examples, config.batch.micro_tokens, "--batch.micro-tokens", "demonstration")

    # 3. Clone: minibatches of whole trajectories, AdamW; the weights with the lowest validation loss stay.
    worker.sleep()
    n_updates = len(cloning_batches(examples, config.sft, config.seed))
    with progress("cloning demonstrations", n_updates) as meter:
        for update, metrics in enumerate(trainer.clone(examples, config.seed), start=1):
            note = f"loss {metrics['loss']:.3f}"
            meter.advance(note=note)
            if "validation" in metrics:
                say(f"cloning: update {update}, {note}, of those held back {metrics['validation']:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
    trainer.preprocessor = experiment.preprocessor
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
    if config.resume or config.replay:
        raise ValueError(
            "--resume and --replay are for train.py: cloning begins anew, of dumps by --sft.demos"
        )
    if config.warm_start not in ("sft", "none"):
        raise ValueError(f"--warm-start is for train.py: to clone from it, --model.path {config.warm_start}")
    check_run(config)
    with open_ranks(config.browser.episode_seconds) as ranks, Run(config.run_dir, ranks.is_main).held():
        run_async(main(config, ranks))


if __name__ == "__main__":
    run_main(run)
