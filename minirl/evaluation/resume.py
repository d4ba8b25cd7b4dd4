"""Find an evaluation's settings, weights and tasks, and keep the ledger of its episodes.

    flags --resolve--> config --eval.py--> Trajectories --Ledger--> Results

Stands behind eval.py. An episode is appended to a dump of trajectories as it ends, and what is in the dump is
not run again: so the same command goes on after an interruption. A dump and its results-LABEL.json belong to
one evaluation: the same weights and tasks, told by their digests, settings, versions and seeds. OpenWebRL,
section 5 and table 8; its parallel browsers are episodes in flight here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge
from pydantic import TypeAdapter

from minirl.benchmarks import protocols
from minirl.benchmarks.protocols import protocol_of
from minirl.config import Config, Positive, to_json
from minirl.evaluation import results
from minirl.evaluation.results import Evaluation, Result, result_of
from minirl.run_folder import Run, checkpoints, flatten, read_as
from minirl.types import Json, Task, Trajectory
from minirl.worlds.shop import NAMED

if TYPE_CHECKING:
    from minirl.distributed import Ranks


@dataclass(frozen=True)
class EvalScriptConfig(Config):
    tasks: Path | None = None  # a file of tasks; the same as --task.heldout
    limit: Annotated[int, Ge(0)] = 0  # only the first so many tasks; 0: all
    protocol: str = ""
    """A protocol of minirl/benchmarks/protocols.py: its tasks, and its settings where no flag is given. The
    agent stays the run's."""
    seeds: tuple[int, ...] = (0,)  # an episode of every task for each of these seeds of sampling
    retry: bool = False  # when an evaluation goes on, try again what was aborted
    compare: tuple[Path, Path] | None = None  # two files of results, which are compared; nothing is run
    success_within: tuple[Positive, ...] = ()
    """Numbers of turns, for the success within each of them; the largest is the episodes'."""


# An evaluation has these from the run. Micro-batches, which are without effect, must hold the agent's context
SHAPING = (
    "agent.",
    "browser.",
    "model.dtype",
    "model.max_pixels",
    "batch.",
    "eval.",
    "reward.after",
    "reward.success",
    "reward.partial",
    "judge.input",
    "judge.prompt",
    "task.",
)
# But for what names code, files and addresses, or opens doors: a run's folder may come from anybody
DOORS = (
    "agent.prompt",
    "browser.connect",
    "browser.insecure",
    "browser.private",
    "judge.prompt",
    "task.reward",
    "task.reset",
    "task.servers",
)
SUFFIX = "-eval"  # of the folder of a run's evaluations


def resolve(recipe: Config, parse: Callable[[EvalScriptConfig], EvalScriptConfig]) -> EvalScriptConfig:
    """Return the settings of an evaluation, with its checkpoint, tasks and folder. `parse` reads the flags
    over their defaults, which are, from the bottom: the recipe's; those of the run that trained the weights;
    the protocol's. The weights are the newest checkpoint of the run NAME, if no flag names others, and the
    tasks those that it held out."""
    # weights, name and protocol are read first: defaults of other flags depend on them
    first = parse(EvalScriptConfig(**vars(recipe)))
    if first.compare:
        return first
    folder = first.run_dir
    default = as_trained(recipe, first.model.path, folder)
    if first.protocol:
        default = protocols.apply(protocol_of(first.protocol), default)
    default = replace(default, model=replace(default.model, path=""))
    heldout = folder / "heldout.jsonl"
    if heldout.is_file():
        default = replace(default, task=replace(default.task, heldout=str(heldout)))
    config = parse(EvalScriptConfig(**vars(default)))
    task = config.task
    sampling = config.eval
    if config.limit > 0 and not config.protocol:  # a protocol chooses among all
        sampling = replace(sampling, episodes=config.limit)
    if config.tasks:
        task = replace(task, heldout=str(config.tasks))
    if config.success_within:
        sampling = replace(sampling, max_steps=max(1, *config.success_within))
        if config.reward.after == "any":
            problem = "--success-within counts longer episodes as failures; here they are graded at the limit"
            raise ValueError(f"{problem}: give --eval.max-steps instead, and evaluate once for each")
    path = config.model.path
    if config.sampler.kind == "remote":
        path = path or recipe.model.path  # its tokenizer measures
    elif path in ("", "tiny"):
        path = newest_checkpoint(recipe, folder / "checkpoints")
    return replace(
        config,
        name=(config.name or recipe.recipe).rstrip("/") + SUFFIX,
        model=replace(config.model, path=path),
        task=task,
        eval=sampling,
        seeds=tuple(sorted(set(config.seeds))),
    )


def run_of(weights: str, folder: Path) -> Path:
    """Return the run that a checkpoint lies in, as runs/tiny of runs/tiny/checkpoints/best, or the folder."""
    place = Path(weights).parent
    return place.parent if place.name == "checkpoints" else folder


def as_trained(recipe: Config, weights: str, folder: Path) -> Config:
    """Return the recipe with agent, browser, limits, sampling, grading and tasks of the run that the weights
    lie in, else of the one in the folder, if there is one, but for DOORS. ValueError if another version has
    made it, with settings that are not known here."""
    folder = run_of(weights, folder)
    settings = to_json(recipe)
    for name, value in flatten(Run(folder).config()).items():
        is_path = name in ("task.train", "task.heldout") and not NAMED.fullmatch(str(value))
        if is_path or name in DOORS or not name.startswith(SHAPING):
            continue
        part, field = name.split(".", 1)
        if field not in settings[part]:
            raise ValueError(f"{folder} was made by another version, with {name}; evaluate it with that")
        settings[part][field] = value
    return read_as(json.dumps(settings).encode(), TypeAdapter(Config), f"{folder}/config.json can't be used")


def unlike_run(config: EvalScriptConfig) -> list[str]:
    """Return what the run had otherwise, as "agent.screenshots 1 (2)" where that had two. ValueError where
    this would be another agent, or another success."""
    folder = run_of(config.model.path, Path(str(config.run_dir).removesuffix(SUFFIX)))
    trained = flatten(Run(folder).config())
    unlike = []
    for name, value in flatten(to_json(config)).items():
        before = trained.get(name, value)
        if before == value or name == "task.heldout" or not name.startswith(SHAPING):
            continue
        if name in ("agent.prompt", "task.reward") and not value:
            problem = f"{folder} was trained with {name} {before}, and a run's folder may come from anybody"
            raise ValueError(f"{problem}: if that is yours, give it again")
        unlike.append(f"{name} {value} ({before})")
    return unlike


def newest_checkpoint(recipe: Config, folder: Path) -> str:
    """Return the newest RL checkpoint in the folder, or the warm start, or the recipe's model. ValueError if
    that has no weights."""
    folders = [path for path in (folder / "sft", *checkpoints(folder)) if path.is_dir()]
    if folders:
        return str(folders[-1])
    if recipe.model.path == "tiny":
        raise ValueError(f"no checkpoint in {folder}; train first, or name a folder with --model.path")
    return recipe.model.path


def select_tasks(config: EvalScriptConfig, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks to be evaluated, in their order. ValueError if the protocol has none of them."""
    if config.protocol:
        tasks = protocol_of(config.protocol).select(tasks)
    return list(tasks[: config.limit or None])


@dataclass(frozen=True)
class Ledger:
    """The finished episodes of one evaluation, on disk."""

    run: Run
    label: str
    evaluation: Evaluation
    places: Sequence[tuple[Task, int]]  # every task with every seed, in the order of the dump
    ranks: Ranks

    @property
    def path(self) -> Path:
        return results_path(self.run, self.label)

    def add(self, trajectory: Trajectory) -> None:
        self.run.add_trajectory(self.label, trajectory)

    def collect(self) -> list[Result]:
        """Put the dump in order, with the newest episode of each place, and write the file of results. Return
        the results on all ranks; call it while no episode runs."""
        finished = []
        if self.ranks.is_main:
            newest = {}  # by task and seed
            if self.label in self.run.labels():
                for trajectory in self.run.load_trajectories(self.label):
                    newest[trajectory.task.id, trajectory.member] = trajectory
            places = [(task.id, seed) for task, seed in self.places]
            trajectories = [newest[place] for place in places if place in newest]
            finished = [result_of(trajectory) for trajectory in trajectories]
            results.write_results(self.path, self.evaluation, finished)
            self.run.save_trajectories(self.label, trajectories)
        return self.ranks.broadcast(finished)

    def missing(self, finished: Sequence[Result], retry: bool) -> list[tuple[Task, int]]:
        """Return the places still to be run; aborted ones too, if they are to be tried again."""
        done = {result.place for result in finished if result.stop.is_agent_fault or not retry}
        return [(task, seed) for task, seed in self.places if (task.id, seed) not in done]


def open_ledger(config: EvalScriptConfig, tasks: Sequence[Task], run: Run, ranks: Ranks, rule: str) -> Ledger:
    """Return the ledger of an evaluation: that of an earlier start, if there was one."""
    evaluation = Evaluation(config.protocol, rule, settings(config, tasks), results.versions(), config.seeds)
    label = ranks.broadcast(label_of(run, subject_of(config), evaluation))
    places = [(task, seed) for seed in config.seeds for task in tasks]
    return Ledger(run, label, evaluation, places, ranks)


def subject_of(config: Config) -> str:
    """Return the name of the model that is evaluated: a folder, or a served model's name."""
    return config.endpoint.model if config.sampler.kind == "remote" else config.model.path


def settings(config: EvalScriptConfig, tasks: Sequence[Task]) -> Json:
    """Return the config as JSON data, with digests of the files that it names, without settings that only say
    how to go on. The number of browsers stays: sites that are asked too much abort."""
    files = {
        "weights": config.model.path,
        "judge": config.judge.path,
        "prompt": config.agent.prompt,
        "judge_prompt": config.judge.prompt,
        "reward": config.task.reward.partition(":")[0],
    }
    digests = {name: digest_of(Path(path)) for name, path in files.items() if path}
    content = json.dumps([asdict(task) for task in tasks], sort_keys=True)
    digests["tasks"] = hashlib.sha256(content.encode()).hexdigest()
    return to_json(replace(config, retry=False, success_within=())) | {"digests": digests}


def digest_of(path: Path) -> str:
    """Return the digest of a file, or those of all files of a model's folder; "" of a model on a hub."""
    files = [path] if path.is_file() else sorted(path.glob("*"))
    digests = []
    for name in filter(Path.is_file, files):
        with open(name, "rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return " ".join(digests)


def label_of(run: Run, subject: str, evaluation: Evaluation) -> str:
    """Return the label under which this evaluation was begun, or a new one: eval_step_00010, with -2 behind
    it if that is another evaluation's."""
    words = [word for word in ("eval", Path(subject).name, evaluation.protocol) if word]
    name = re.sub(r"[^A-Za-z0-9.-]", "_", "_".join(words))
    label = name
    number = 1
    while label in run.labels():
        path = results_path(run, label)
        if path.exists() and results.read_results(path).evaluation == evaluation:
            break
        number += 1
        label = f"{name}-{number}"
    return label


def results_path(run: Run, label: str) -> Path:
    return run.root / f"results-{label}.json"
