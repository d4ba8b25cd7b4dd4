"""A run's tasks by what they serve, and the benchmark that each belongs to."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minirl.benchmarks import miniwob
from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.own_reward import load_reward
from minirl.benchmarks.recorded import RecordedBenchmark, is_recorded
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.tasks import is_webarena
from minirl.benchmarks.webarena.verified import VerifiedBenchmark, is_verified
from minirl.benchmarks.world import WorldBenchmark
from minirl.config import Config, JudgeConfig, TaskConfig
from minirl.console import say
from minirl.samplers.endpoint import Endpoint
from minirl.types import Benchmark, Task
from minirl.worlds.render import find_task_files
from minirl.worlds.shop import NAMED, shops_named, tasks_of

VALIDATION_SHOPS = "shops:50001-50064"  # where --eval-every measures, if shops train
VALIDATION_SHARE = 0.1  # of other training tasks, for --eval-every alone to measure

FindBenchmark = Callable[[Task], Benchmark]


@dataclass(frozen=True)
class TaskSets:
    train: list[Task]
    demos: list[Task]
    heldout: list[Task]  # shares no goal with the others
    validation: list[Task] = field(default_factory=list)  # nor does this one: it chooses the best weights

    @property
    def all(self) -> list[Task]:
        return self.train + self.demos + self.heldout + self.validation


def make_task_sets(config: Config) -> TaskSets:
    """Return the config's tasks, generated or from files. ValueError if one is held out and trained on, but
    MiniWoB++'s are left out then: two seeds of a page may show the same."""
    settings = config.task
    benchmark_of = choose_benchmarks(config)
    in_shops = NAMED.fullmatch(settings.train) is not None
    train = load_source(settings.train, None, config)
    heldout = load_source(settings.heldout, config.eval.episodes, config)
    # a served model is not trained: it may be a teacher, which demonstrates what it is asked
    clean = drop_leaked(heldout, train, benchmark_of)
    if config.sampler.kind != "remote" and len(clean) < len(heldout):
        leaked = next(task for task in heldout if task not in clean)
        n_leaked = len(heldout) - len(clean)
        fault = f"{n_leaked} held-out tasks are also training tasks, {leaked.id} for one"
        if not clean or not settings.heldout.startswith(miniwob.PREFIX):
            raise ValueError(fault)
        say(f"{fault}; they are left out")
        heldout = clean

    validation: list[Task] = []
    if config.eval_every and in_shops:
        validation = load_source(VALIDATION_SHOPS, config.eval.interim_episodes, config)
    elif config.eval_every:
        mixed = random.Random("aside").sample(train, len(train))
        validation = mixed[: math.ceil(VALIDATION_SHARE * len(train))]
        train = drop_leaked(train, validation, benchmark_of)
        if not train:
            raise ValueError(f"--eval-every leaves no task of {settings.train} to train on: add tasks to it")

    train = train[: settings.train_goals or None]
    demos = train[: settings.demo_goals]
    if in_shops and settings.short:
        train, demos = split_by_length(train, settings)
    return TaskSets(train, demos, heldout, drop_leaked(validation, heldout, benchmark_of))


def split_by_length(tasks: Sequence[Task], settings: TaskConfig) -> tuple[list[Task], list[Task]]:
    """Return the tasks of more than --task.short conditions, to be practised, and the demonstrations: the
    shorter ones, and a few of the longer ones."""
    long = [task for task in tasks if len(task.goal["where"]) > settings.short]
    short = [task for task in tasks if len(task.goal["where"]) <= settings.short]
    n_long = round(settings.demo_long * settings.demo_goals)
    demos = [*short, *long[n_long:]]
    demos = demos[: settings.demo_goals - n_long]
    random.Random("demos").shuffle(demos)
    # evenly, because the first demonstrations are the validation split of cloning
    for n, task in enumerate(long[:n_long]):
        demos.insert(int((n + 0.5) * settings.demo_goals / n_long), task)
    return long, demos


def load_source(source: str, count: int | None, config: Config) -> list[Task]:
    """Return `count` tasks in the shops that a setting names, at most `count` of those of the sites in a
    folder that the agent has the means for, or a file's."""
    if not source:
        return []
    shops = shops_named(source)
    if shops:
        return tasks_of(shops, count or len(shops))
    if source.startswith(miniwob.PREFIX):
        return miniwob.tasks_named(source, count, config)
    any_goal = bool(config.task.reward)
    path = Path(source)
    if not path.is_dir():
        return load_tasks(path, any_goal)
    by_site = []
    for file in find_task_files(path):
        folder = str(file.parent.resolve())
        tasks = load_tasks(file, any_goal)
        if config.agent.kind == "text":  # agents that see have the means for any task
            tasks = [task for task in tasks if "text" in task.meta.get("agents", ["text"])]
        by_site.append([replace(task, meta={**task.meta, "folder": folder}) for task in tasks])
    # one of each site, then a second one of each, and so on
    rounds = itertools.zip_longest(*by_site)
    mixed = [task for tasks in rounds for task in tasks if task]
    if not mixed:
        raise ValueError(f"{source} has no task that this agent has the means for")
    if len({task.id for task in mixed}) < len(mixed):
        raise ValueError(f"{source}: two of its sites have a task of the same id; ids must differ")
    return mixed[:count]


def drop_leaked(tasks: Sequence[Task], others: Sequence[Task], benchmark_of: FindBenchmark) -> list[Task]:
    """Return the tasks that share no goal with the others."""
    known = {name for task in others for name in benchmark_of(task).identity(task)}
    return [task for task in tasks if known.isdisjoint(benchmark_of(task).identity(task))]


def choose_benchmarks(config: Config, endpoint: Endpoint | None = None) -> FindBenchmark:
    """Return the function that finds a task's benchmark. WebArena's may ask the model at `endpoint`."""
    own_reward = load_reward(config.task.reward) if config.task.reward else None
    webarena = WebArenaBenchmark(endpoint)
    verified = VerifiedBenchmark()
    world = WorldBenchmark(config.reward.partial)
    judged = JudgedBenchmark()
    recorded = RecordedBenchmark()
    pages = miniwob.MiniwobBenchmark()

    def benchmark_of(task: Task) -> Benchmark:
        if is_recorded(task):
            return recorded
        if own_reward:
            return own_reward
        if is_webarena(task):
            return webarena
        if is_verified(task):
            return verified
        if miniwob.is_miniwob(task):
            return pages
        return world if task.goal else judged

    return benchmark_of


def refuse_impossible(
    judge: JudgeConfig, tasks: Sequence[Task], benchmark_of: FindBenchmark, rewarded: bool
) -> None:
    """Raise ValueError if a task's site has no address or, where it is to be `rewarded`, no score."""
    has_model = judge.model and not judge.path
    for task in tasks:
        benchmark = benchmark_of(task)
        if benchmark.judged and rewarded and not (judge.model or judge.path):
            raise ValueError(f"task {task.id} has no goal to check: give --judge.model, or --judge.path")
        if not benchmark.judged and benchmark.needs_judge(task) and not has_model:
            raise ValueError(f"task {task.id} needs a served judge: --judge.model, and no --judge.path")
        unset = benchmark.missing(task)
        if unset:
            raise ValueError(f"set {', '.join(unset)} to the addresses of WebArena's sites")
