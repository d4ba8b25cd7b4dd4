"""A RolloutWorker for tests, with a benchmark that says what the test wants."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from peers import alone

from minirl.browser.host_backoff import HostBackoff
from minirl.config import Config
from minirl.episode import Harness
from minirl.experiment import make_agent
from minirl.rollout import RolloutWorker
from minirl.types import Score, Task

ScoreFn = Callable[[Task, Any, str], Awaitable[Score]]


async def always(task: Task, session: Any, answer: str) -> Score:
    return Score(1.0, {"asked": True})


@dataclass
class Scored:
    """A benchmark whose tasks are scored by one function; without a function the judge scores them."""

    by: ScoreFn | None = always
    prepared: list[str] = field(default_factory=list)
    recorded = False

    @property
    def judged(self) -> bool:
        return self.by is None

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        return {(task.id,)}

    def missing(self, task: Task) -> list[str]:
        return []

    def places(self, task: Task) -> set[tuple[str, int]]:
        return set()

    def folders(self) -> dict[str, Any]:
        return {}

    async def has_ended(self, session: Any, task: Task) -> bool:
        return False

    def needs_judge(self, task: Task) -> bool:
        return False

    def session(self, harness: Any, task: Task) -> Any:
        return harness.browsers.session()

    async def state(self, session: Any) -> str:
        return ""

    async def prepare(self, session: Any, task: Task) -> None:
        self.prepared.append(task.id)

    async def score(self, task: Task, session: Any, answer: str) -> Score:
        assert self.by is not None
        return await self.by(task, session, answer)


def make_worker(
    config: Config,
    preprocessor: Any = None,
    sampler: Any = None,
    browsers: Any = None,
    images: Any = None,
    benchmark: Any = None,
    judge: Any = None,
    ranks: Any = None,
) -> RolloutWorker:
    """Whatever a test does not need may be left out."""
    benchmark = benchmark or Scored()
    agent = make_agent(config, preprocessor)
    harness = Harness(config, preprocessor, agent, browsers, images, lambda task: benchmark)
    hosts = HostBackoff()
    return RolloutWorker(harness, sampler, ranks or alone(), hosts, judge)
