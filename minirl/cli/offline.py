"""Train on the groups that another run has dumped (`--replay`): two losses compared on the same episodes."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minirl.rollout import Collected, TaskStream
from minirl.run_folder import Run


@dataclass
class Replay:
    """The steps that another run has dumped, in place of a RolloutWorker in train.py's loop. There is no
    browser, and no sampler to sleep or to sync."""

    source: Run

    async def collect(self, stream: TaskStream, cursor: int, step: int, tick: Callable) -> Collected:
        await asyncio.sleep(0)  # lets the loop see Ctrl-C
        groups = self.source.load_groups(self.source.step_labels()[step])
        tick(len(groups))
        return Collected(groups, cursor, finished=[], submitted=len(groups), dropped=0)

    def sleep(self) -> None: ...

    def sync(self, weights: Iterator) -> None: ...
