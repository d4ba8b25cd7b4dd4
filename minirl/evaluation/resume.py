"""Find an evaluation's settings, weights and tasks, and keep the ledger of its episodes.

    flags --resolve_run--> config --eval.py--> Trajectories --Ledger--> Results

Stands behind eval.py. An episode is appended to the dump of trajectories as it ends, and results-LABEL.json
(results.py) is made from it. The same command goes on after an interruption, because a label belongs to one
evaluation: the same weights and tasks, told by their digests, settings, versions and seeds. OpenWebRL,
section 4 and table 8; its parallel browsers are episodes in flight here.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import TypeAdapter

from minirl.benchmarks import protocols
from minirl.benchmarks.protocols import protocol_of
from minirl.checkpoint import checkpoints
from minirl.config import Config, Positive, TaskConfig, to_json
from minirl.console import say
from minirl.distributed import Ranks
from minirl.evaluation import results
from minirl.evaluation.results import Evaluation, Result, result_of
from minirl.run_folder import Run, differences
from minirl.types import Task, Trajectory


@dataclass(frozen=True)
class EvalScriptConfig(Config):
    tasks: Path | None = None  # a file of tasks; the same as --task.heldout
    limit: Annotated[int, Ge(0)] = 0  # only the first so many tasks; 0: all
    protocol: str = ""
    """A protocol of minirl/benchmarks/protocols.py: its tasks, and its settings where no flag is given."""
    seeds: tuple[int, ...] = (0,)  # an episode of every task for each of these seeds of sampling
    retry: bool = False  # when an evaluation goes on, try again what was aborted
    compare: tuple[Path, Path] | None = None  # two files of results, which are compared; nothing is run
    success_within: tuple[Positive, ...] = ()
    """Numbers of turns, for the success within each of them; the largest is the episodes'."""


def resolve_run(recipe: Config, parse: Callable[[EvalScriptConfig], EvalScriptConfig]) -> EvalScriptConfig:
    """Return the settings of an evaluation, with its checkpoint, tasks and folder. `parse` reads the flags of
    the command line into a config: first to know which run, protocol and model are meant, then with these as
    defaults, so that every flag wins. Defaults are, from the bottom: the recipe; the protocol; the newest
    checkpoint of the run NAME or NAME-eval, and the tasks it held out (also for its other checkpoints).
    """
    # a run's own settings are empty where no flag gives them
    model, task = replace(recipe.model, path=""), replace(recipe.task, heldout="")
    blank = replace(recipe, model=model, task=task, eval=replace(recipe.eval, episodes=0))
    asked = parse(EvalScriptConfig(**vars(blank)))
    if asked.compare:
        return asked
    path, is_remote = asked.model.path, asked.sampler.kind == "remote"
    name = (asked.name or asked.recipe).removesuffix("-eval")
    folder = replace(asked, name=name).run_dir
    has_path, has_tasks = path not in ("", "tiny"), bool(asked.tasks or asked.task.heldout)
    if asked.protocol:
        judge = replace(recipe.judge, model=asked.judge.model, path=asked.judge.path)
        recipe = protocols.apply(protocol_of(asked.protocol), replace(recipe, judge=judge))
    default = EvalScriptConfig(**vars(recipe))
    if is_remote or not has_path or Path(path).resolve().is_relative_to(folder.resolve()):
        default = replace(default, task=tasks_of_run(folder, recipe.task))
    if not is_remote and not has_path:
        checkpoint = newest_checkpoint(recipe, folder / "checkpoints", has_tasks)
        default = replace(default, model=replace(default.model, path=checkpoint))
    config = parse(default)
    model, task, how = config.model, config.task, config.eval
    if not has_path:
        model = replace(model, path=default.model.path)  # in place of "tiny", which has no weights
    if asked.tasks is not None:
        task = replace(task, heldout=str(asked.tasks))
    top_k = 0 if is_remote else how.top_k  # a served model's API has no such parameter
    how = replace(how, max_steps=max(asked.success_within, default=how.max_steps), top_k=top_k)
    limit = asked.limit or asked.eval.episodes  # fewer than a file holds
    seeds = tuple(sorted(set(asked.seeds)))
    return replace(config, name=f"{name}-eval", model=model, task=task, eval=how, limit=limit, seeds=seeds)


def tasks_of_run(folder: Path, task: TaskConfig) -> TaskConfig:
    """Return the recipe's tasks as the run in the folder was given them, held out what it held out."""
    if saved := Run(folder).config():
        own = {name: getattr(task, name) for name in ("heldout", "logins", "reset")}
        task = replace(TypeAdapter(TaskConfig).validate_python(saved["task"]), **own)
    heldout = folder / "heldout.jsonl"
    return replace(task, heldout=str(heldout)) if heldout.is_file() else task


def newest_checkpoint(recipe: Config, folder: Path, has_tasks: bool) -> str:
    """Return the newest RL checkpoint in the folder, or the warm start, or the recipe's model."""
    if found := [path for path in (folder / "sft", *checkpoints(folder)) if path.is_dir()]:
        return str(found[-1])
    if recipe.model.path == "tiny":
        if not has_tasks:
            raise ValueError(f"no checkpoint in {folder}; train first, or name a folder with --model.path")
        say(f"no checkpoint in {folder}: an UNTRAINED tiny model is evaluated, which can do nothing")
    return recipe.model.path


def select_tasks(config: EvalScriptConfig, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks to be evaluated, in their order. ValueError if the protocol has none of them."""
    if config.protocol:
        tasks = protocol_of(config.protocol).select(tasks)
    return list(tasks[: config.limit or None])


@dataclass(frozen=True)
class Ledger:
    """The finished episodes of one evaluation, on disk; every rank has its own dump until `collect`."""

    run: Run
    label: str
    evaluation: Evaluation
    places: Sequence[tuple[Task, int]]  # every task with every seed, in the order of the dump
    ranks: Ranks

    @property
    def path(self) -> Path:
        return self.run.root / f"results-{self.label}.json"

    def add(self, trajectory: Trajectory) -> None:
        suffix = "" if self.ranks.is_main else f".rank{self.ranks.rank}"
        self.run.add_trajectory(self.label + suffix, trajectory)

    def write(self) -> list[Trajectory]:
        """Write the file of results on the first rank; returns the newest episode of each place, in order."""
        if not self.ranks.is_main:
            return []
        loaded = [t for label in self._dumps() for t in self.run.load_trajectories(label)]
        newest = {(t.task.id, t.member): t for t in loaded}
        places = [(task.id, seed) for task, seed in self.places]
        found = [newest[place] for place in places if place in newest]
        results.write_results(self.path, self.evaluation, list(map(result_of, found)))
        return found

    def collect(self) -> list[Result]:
        """Return every result so far by task and seed, on all ranks; their dumps become one, in order."""
        found = self.write()
        if self.ranks.is_main:
            self.run.save_trajectories(self.label, found)
            for label in set(self._dumps()) - {self.label}:
                self.run.trajectory_path(label).unlink()
        return self.ranks.broadcast(sorted(map(result_of, found), key=lambda r: r.place))

    def missing(self, finished: Sequence[Result], retry: bool) -> list[tuple[Task, int]]:
        """Return the places still to be run; aborted ones too, if they are to be tried again."""
        done = {r.place for r in finished if r.stop.is_agent_fault or not retry}
        return [(task, seed) for task, seed in self.places if (task.id, seed) not in done]

    def _dumps(self) -> list[str]:
        return [label for label in self.run.labels() if re.sub(r"\.rank\d+$", "", label) == self.label]


def open_ledger(config: EvalScriptConfig, tasks: Sequence[Task], run: Run, ranks: Ranks, rule: str) -> Ledger:
    """Return the ledger of an evaluation: that of an earlier start, if there was one."""
    begun: Any = None
    if ranks.is_main:  # the digest of the weights takes a while
        recorded = settings(config, tasks)
        evaluation = Evaluation(config.protocol, rule, recorded, results.versions(), config.seeds)
        begun = label_of(run, subject_of(config), evaluation), evaluation
    places = [(task, seed) for seed in config.seeds for task in tasks]
    label, evaluation = ranks.broadcast(begun)
    return Ledger(run, label, evaluation, places, ranks)


def subject_of(config: Config) -> str:
    """Return the name of the model that is evaluated: a folder, or a served model's name."""
    return config.endpoint.model if config.sampler.kind == "remote" else config.model.path


def settings(config: EvalScriptConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the config as JSON data, with digests of the files that it names, without settings that only say
    how to go on. The number of browsers stays: sites that are asked too much abort."""
    plain = replace(config, retry=False, compare=None, success_within=())
    files = {"weights": config.model.path, "judge": config.judge.path}
    files |= {"prompt": config.agent.prompt, "judge_prompt": config.judge.prompt}
    digests = {name: digest_of(Path(path)) for name, path in files.items() if path}
    words = json.dumps([asdict(task) for task in tasks], sort_keys=True)
    digests["tasks"] = hashlib.sha256(words.encode()).hexdigest()
    return to_json(plain) | {"digests": digests}


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the weights in a folder; "" of a model on a hub."""
    if path.is_file():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    weights = sorted(file for file in path.glob("*") if file.suffix in (".safetensors", ".bin"))
    digests = b"".join(bytes.fromhex(digest_of(file)) for file in weights)
    return hashlib.sha256(digests).hexdigest() if digests else ""


def label_of(run: Run, subject: str, evaluation: Evaluation) -> str:
    """Return the label under which this evaluation was begun, or a new one."""
    words = "_".join(filter(None, ("eval", Path(subject).name, evaluation.protocol)))
    label = name = re.sub(r"[^A-Za-z0-9.-]", "_", words)
    number = 1
    while (path := run.root / f"results-{label}.json").exists() or label in run.labels():
        if path.exists():  # else it is somebody else's dump
            earlier, _ = results.read_results(path)
            if earlier == evaluation:
                break
            unlike = ", ".join(name for name, *_ in differences(asdict(earlier), asdict(evaluation)))
            say(f"{path} is another evaluation: it differs in {unlike}")
        number += 1
        label = f"{name}-{number}"
    return label
