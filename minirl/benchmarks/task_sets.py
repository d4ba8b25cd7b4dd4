"""A run's tasks by what they serve, and the benchmark that each belongs to.

    Config --make_task_sets--> TaskSets        Task --choose_benchmarks--> its Benchmark

Stands between task files and an experiment. A task's goal says who can score it: WebArena's rules, the state
of a generated site, a goal without code, your own function; without a goal it is the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.own_reward import OwnReward, load_reward
from minirl.benchmarks.page_goals import PageGoalBenchmark, is_page_goal
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.tasks import is_webarena
from minirl.benchmarks.world import WorldBenchmark
from minirl.config import Config, JudgeConfig
from minirl.samplers.endpoint import Endpoint
from minirl.types import Benchmark, Task
from minirl.worlds.shop import make_shop, make_tasks


@dataclass(frozen=True)
class TaskSets:
    """The goals by what they serve. `heldout` shares no goal with the others; `demos` and `validation` are
    parts of `train`, disjoint unless every training goal is demonstrated."""

    train: list[Task]
    demos: list[Task]
    validation: list[Task]
    heldout: list[Task]

    @property
    def all(self) -> list[Task]:
        return self.train + self.heldout


def make_task_sets(config: Config) -> TaskSets:
    """Return the config's tasks, generated or from files. ValueError if a task is held out and trained on,
    or has a goal of an unknown form."""
    settings, benchmark_of = config.task, choose_benchmarks(config)
    world = make_shop(settings.seed)
    train, heldout = make_tasks(world, settings.train_goals, config.eval.episodes, seed=settings.seed)
    if settings.train != "shop":
        train = load_tasks(Path(settings.train), any_goal=bool(settings.reward))
    if settings.heldout != "shop":
        heldout = load_tasks(Path(settings.heldout), any_goal=bool(settings.reward))
    trained = {name for task in train for name in benchmark_of(task).identity(task)}
    leaked = [task.id for task in heldout if benchmark_of(task).identity(task) & trained]
    if leaked and config.sampler.kind != "remote":  # a served model trains nothing, and may teach
        raise ValueError(f"{len(leaked)} held-out tasks are also training tasks, {leaked[0]} for one")
    n = settings.demo_goals
    return TaskSets(train, train[:n], train[n : n + config.sft.eval_episodes] or train, heldout)


def choose_benchmarks(config: Config, endpoint: Endpoint | None = None) -> Callable[[Task], Benchmark]:
    """Return the function that finds a task's benchmark by its goal. The model at `endpoint` decides where
    WebArena's rules can't."""
    own = OwnReward(load_reward(config.task.reward)) if config.task.reward else None
    webarena = WebArenaBenchmark(config.task.rules, config.task.logins, endpoint)
    page_goals, world, judged = PageGoalBenchmark(), WorldBenchmark(), JudgedBenchmark()

    def benchmark_of(task: Task) -> Benchmark:
        if own is not None:
            return own
        if is_webarena(task):
            return webarena
        if is_page_goal(task.goal):
            return page_goals
        return world if task.goal else judged

    return benchmark_of


def refuse_impossible(
    judge: JudgeConfig, tasks: Sequence[Task], benchmark_of: Callable[[Task], Benchmark], rewarded: bool
) -> None:
    """Raise ValueError if a task can't be scored, or its site has no address. Episodes that are not
    `rewarded` may end without a verdict."""
    for task in tasks:
        benchmark = benchmark_of(task)
        if benchmark.judged and rewarded and not (judge.model or judge.path):
            raise ValueError(f"task {task.id} has no goal to check: give --judge.model, or --judge.path")
        if not benchmark.judged and benchmark.needs_judge(task) and not judge.model:
            raise ValueError(f"task {task.id} wants an answer judged: give --judge.model and --judge.url")
    if missing := {name for task in tasks for name in benchmark_of(task).missing([task])}:
        raise ValueError(f"set {', '.join(sorted(missing))} to the addresses of WebArena's sites")
