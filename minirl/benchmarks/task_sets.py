"""A run's tasks by what they serve, and the benchmark that each belongs to."""

import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.benchmarks.own_reward import OwnReward, load_reward
from minirl.benchmarks.page_goals import PageGoalBenchmark, is_page_goal
from minirl.benchmarks.recorded import RecordedBenchmark, is_recorded
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.tasks import is_webarena
from minirl.benchmarks.world import WorldBenchmark
from minirl.config import Config, JudgeConfig, TaskConfig
from minirl.samplers.endpoint import Endpoint
from minirl.types import Benchmark, Task
from minirl.worlds.render import find_task_files
from minirl.worlds.shop import NAMED, shops_named, tasks_of

FindBenchmark = Callable[[Task], Benchmark]


@dataclass(frozen=True)
class TaskSets:
    train: list[Task]
    demos: list[Task]
    heldout: list[Task]  # shares no goal with the others
    aside: list[Task] = field(default_factory=list)  # nor does this one, of shops of its own or part of a
    # file: the best weights are chosen by it

    @property
    def all(self) -> list[Task]:
        return self.train + self.demos + self.heldout + self.aside


def make_task_sets(config: Config) -> TaskSets:
    """Return the config's tasks, generated or from files. ValueError if one is held out and trained on."""
    settings, benchmark_of = config.task, choose_benchmarks(config)
    spare = config.eval.interim_episodes if config.eval_every else 0
    in_shops = NAMED.fullmatch(settings.train) is not None
    train = _tasks(settings.train, settings.train_goals if in_shops else sys.maxsize, config)
    heldout = _tasks(settings.heldout, config.eval.episodes, config)
    is_apart = in_shops or Path(settings.validation).is_dir()
    aside = _tasks(settings.validation, spare, config) if is_apart and spare else []
    clean = apart(heldout, train, benchmark_of)
    if (leaked := len(heldout) - len(clean)) and config.sampler.kind != "remote":  # which may be a teacher
        first = next(task.id for task in heldout if task not in clean)
        raise ValueError(f"{leaked} held-out tasks are also training tasks, {first} for one")
    if not is_apart and config.eval_every:
        mixed = random.Random("aside").sample(train, len(train))
        aside = mixed[: math.ceil(settings.aside * len(train))]
        train = apart(train, aside, benchmark_of)
        if not train:
            raise ValueError(f"--task.aside {settings.aside} of {settings.train} leaves no task to train on")
    demos = train[: settings.demo_goals]
    if in_shops and settings.short:
        train, demos = divide(train, settings)
    return TaskSets(train, demos, heldout, apart(aside, heldout, benchmark_of))


def divide(tasks: list[Task], settings: TaskConfig) -> tuple[list[Task], list[Task]]:
    """Return the tasks of more than --task.short conditions, and as demos the others and a few of these."""
    short, long = list[Task](), list[Task]()
    for task in tasks:
        (long if len(task.goal["where"]) > settings.short else short).append(task)
    few = round(settings.demo_long * settings.demo_goals)
    demos = [*short, *long[few:]][: settings.demo_goals - few]
    random.Random("demos").shuffle(demos)
    for place, task in enumerate(long[:few]):  # evenly: the first demos are held back, and should be alike
        demos.insert(int((place + 0.5) * settings.demo_goals / few), task)
    return long, demos


def _tasks(source: str, count: int, config: Config) -> list[Task]:
    """Return `count` tasks in the shops that a setting names, at most `count` of those of the sites in a
    folder that the agent has the means for, or a file's."""
    if not source:
        return []
    if shops := shops_named(source):
        return tasks_of(shops, count)
    path, any_goal, sites = Path(source), bool(config.task.reward), list[list[Task]]()
    sees = config.agent.kind != "text"  # and has the means for any task
    if not path.is_dir():
        return load_tasks(path, any_goal)
    for file in find_task_files(path):
        tasks, place = load_tasks(file, any_goal), {"folder": str(file.parent.resolve())}
        fit = [task for task in tasks if sees or "text" in task.meta.get("agents", ["text"])]
        sites.append([replace(task, meta={**task.meta, **place}) for task in fit])
    # one of each site, then a second one of each, and so on
    mixed = [task for round in itertools.zip_longest(*sites) for task in round if task is not None]
    return mixed[:count]


def apart(tasks: Sequence[Task], others: Sequence[Task], benchmark_of: FindBenchmark) -> list[Task]:
    """Return the tasks that share no goal with the others."""
    known = {name for task in others for name in benchmark_of(task).identity(task)}
    return [task for task in tasks if not benchmark_of(task).identity(task) & known]


def choose_benchmarks(config: Config, endpoint: Endpoint | None = None) -> FindBenchmark:
    """Return the function that finds a task's benchmark. WebArena's may ask the model at `endpoint`."""
    own = OwnReward(load_reward(config.task.reward)) if config.task.reward else None
    webarena = WebArenaBenchmark(config.task.logins, endpoint)
    page_goals, world, judged = PageGoalBenchmark(), WorldBenchmark(config.reward.partial), JudgedBenchmark()
    recorded = RecordedBenchmark(config.reward.contents)

    def benchmark_of(task: Task) -> Benchmark:
        if is_recorded(task):
            return recorded
        if own is not None:
            return own
        if is_webarena(task):
            return webarena
        if is_page_goal(task.goal):
            return page_goals
        return world if task.goal else judged

    return benchmark_of


def refuse_impossible(
    judge: JudgeConfig, tasks: Sequence[Task], benchmark_of: FindBenchmark, rewarded: bool
) -> None:
    """Raise ValueError if a task's site has no address or, where it is to be `rewarded`, no score."""
    for task in tasks:
        benchmark = benchmark_of(task)
        if benchmark.judged and rewarded and not (judge.model or judge.path):
            raise ValueError(f"task {task.id} has no goal to check: give --judge.model, or --judge.path")
        if not benchmark.judged and benchmark.needs_judge(task) and (judge.path or not judge.model):
            told = "give --judge.model and --judge.url, and no --judge.path"
            raise ValueError(f"task {task.id} wants an answer judged: {told}")
    if missing := {name for task in tasks for name in benchmark_of(task).missing(task)}:
        raise ValueError(f"set {', '.join(sorted(missing))} to the addresses of WebArena's sites")
