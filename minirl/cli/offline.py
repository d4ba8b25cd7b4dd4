"""Train on the groups that another run has dumped, to compare two losses on the same episodes (`--replay`).

`Replay` takes the place of a RolloutWorker in train.py's loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minirl.cli.lifecycle import State
from minirl.experiment import Experiment
from minirl.rollout import Collected, TaskStream
from minirl.run_folder import Run


@dataclass
class Replay:
    """The steps that another run has dumped. There is no browser, and no sampler to sleep or to sync."""

    source: Run

    async def collect(self, stream: TaskStream, cursor: int, step: int, tick: Callable) -> Collected:
        groups = self.source.load_groups(self.source.step_labels()[step])
        tick(len(groups))
        return Collected(groups, cursor, finished=[], submitted=len(groups), dropped=0)

    def sleep(self) -> None: ...

    def sync(self, weights: Iterator) -> None: ...


def begin_replay(experiment: Experiment, source: Run) -> State:
    """Return the state to start a replay from, with the weights that the source has started from."""
    config, checkpoints = experiment.config, experiment.checkpoints
    state = {"step": 0, "cursor": 0}
    sft = source.checkpoint_dir / "sft"
    is_cloned = experiment.ranks.broadcast(sft.exists())
    if config.warm_start not in ("sft", "none"):
        checkpoints.start_from(Path(config.warm_start))
    elif config.warm_start == "sft" and is_cloned:
        checkpoints.start_from(sft)
    experiment.trainer.keep_reference()
    if checkpoints.saved():
        state = checkpoints.resume()
    experiment.run.truncate_after(state["step"] or -1)
    return state
