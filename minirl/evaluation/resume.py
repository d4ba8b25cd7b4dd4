"""Find an evaluation's settings, weights and tasks, and keep the ledger of its episodes.

    flags --resolve_run--> config --eval.py--> Trajectories --Ledger--> Results

Stands behind eval.py. An episode is appended to the dump of trajectories as it ends, and results-LABEL.json
(results.py) is made from it. The same command goes on after an interruption, because a label belongs to one
evaluation: the same weights and tasks, told by their digests, settings, versions and seeds.

OpenWebRL, section 4 and table 8. Deviation: the paper's parallel browsers are episodes in flight here, each
in a browser context (minirl/browser/pool.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BaseModel, ValidationError

from minirl.benchmarks import protocols
from minirl.benchmarks.protocols import protocol_of
from minirl.checkpoint import checkpoints
from minirl.config import Config, Positive, TaskConfig, to_json
from minirl.console import say
from minirl.distributed import Ranks
from minirl.evaluation import results
from minirl.evaluation.results import Evaluation, Result, result_of
from minirl.judges.rubrics import Question
from minirl.model import check_checkpoint
from minirl.run_folder import Run
from minirl.types import Task, Trajectory


@dataclass(frozen=True)
class EvalScriptConfig(Config):
    """The settings of an evaluation: a run's, and eval.py's own."""

    tasks: Path | None = None
    """A file of tasks; the same as --task.heldout."""
    limit: Annotated[int, Ge(0)] = 0
    """Only the first so many tasks; 0: all."""
    protocol: str = ""
    """A protocol of minirl/benchmarks/protocols.py: its tasks, and its settings where no flag is given."""
    seeds: tuple[int, ...] = (0,)
    """An episode of every task for each of these seeds of sampling."""
    retry: bool = False
    """When an evaluation goes on, try again what was aborted."""
    compare: tuple[Path, ...] = ()
    """Two files of results, which are compared; nothing is run."""
    success_within: tuple[Positive, ...] = ()
    """Numbers of turns, for the success within each of them; the largest is the episodes'."""


class SavedRun(BaseModel):
    """The part of a run's config.json that an evaluation takes over."""

    task: TaskConfig


def resolve_run(recipe: Config, parse: Callable[[EvalScriptConfig], EvalScriptConfig]) -> EvalScriptConfig:
    """Return the settings of an evaluation, with its checkpoint, tasks and folder. `parse` reads the flags of
    the command line into a config. ValueError for a setting of eval.py that can't be.

    The flags are read twice: first to know which run, protocol and model are meant, then with these as
    defaults, so that every flag wins. Defaults are, from the bottom: the recipe; the protocol; the newest
    checkpoint of the run NAME, and the tasks it held out (also if --model.path is another checkpoint of that
    run). `--name NAME` and `--name NAME-eval` are the same.
    """
    default = EvalScriptConfig(**vars(recipe))
    # a run's own settings are empty where no flag gives them
    model, task = replace(recipe.model, path=""), replace(recipe.task, heldout="")
    asked = parse(replace(default, model=model, task=task, eval=replace(recipe.eval, episodes=0)))
    if not asked.seeds or len(set(asked.seeds)) < len(asked.seeds):
        raise ValueError("--seeds needs at least one seed, and none twice")
    if len(asked.compare) not in (0, 2):
        raise ValueError("--compare needs two files of results")
    if asked.compare:
        return asked
    path, is_remote = asked.model.path, asked.sampler.kind == "remote"
    folder = asked.out / (asked.name or asked.recipe).removesuffix("-eval")
    has_path, has_tasks = path not in ("", "tiny"), bool(asked.tasks or asked.task.heldout)

    if asked.protocol:
        judge = replace(default.judge, model=asked.judge.model, path=asked.judge.path)
        default = protocols.apply(protocol_of(asked.protocol), replace(default, judge=judge))
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
    elif not has_tasks and task.seed != default.task.seed:
        task = replace(task, heldout=recipe.task.heldout)  # another shop than the run's is asked for
    if is_remote and how.top_k:
        say(f"a served model is not told --eval.top-k {how.top_k}: the API has no such parameter")
        how = replace(how, top_k=0)
    how = replace(how, max_steps=max(asked.success_within, default=how.max_steps))
    limits = [limit for limit in (asked.limit, asked.eval.episodes) if limit]  # fewer than a file holds
    Question.of(config.judge)  # refuses a parser that can't read the answers before anything is loaded
    name, limit = f"{folder.name}-eval", min(limits, default=0)
    return replace(config, name=name, model=model, task=task, eval=how, limit=limit)


def tasks_of_run(folder: Path, task: TaskConfig) -> TaskConfig:
    """Return the recipe's tasks as the run in the folder was given them, held out what it held out."""
    if (file := folder / "config.json").is_file():
        try:
            saved = SavedRun.model_validate_json(file.read_bytes()).task
        except ValidationError as error:
            raise ValueError(f"{file} can't be read: {results.first_problem(error)}") from None
        task = replace(saved, heldout=task.heldout, rules=task.rules, logins=task.logins, reset=task.reset)
    heldout = folder / "heldout.jsonl"
    return replace(task, heldout=str(heldout)) if heldout.is_file() else task


def newest_checkpoint(recipe: Config, folder: Path, has_tasks: bool) -> str:
    """Return the newest RL checkpoint in the folder, or the warm start, or the recipe's model. A checkpoint
    that can't be read is named, and the one before it is taken."""
    for path in filter(Path.is_dir, [*reversed(checkpoints(folder)), folder / "sft"]):
        try:
            check_checkpoint(replace(recipe.model, path=str(path)))
            return str(path)
        except ValueError as problem:
            say(f"passed over: {problem}")
    if recipe.model.path == "tiny":
        if not has_tasks:
            raise ValueError(f"no checkpoint in {folder}; train first, or name a folder with --model.path")
        say(f"no checkpoint in {folder}: an UNTRAINED tiny model is evaluated, which can do nothing")
    return recipe.model.path


def select_tasks(config: EvalScriptConfig, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks to be evaluated, in their order. ValueError if the protocol has none of them."""
    if config.protocol:
        protocol = protocol_of(config.protocol)
        tasks = protocol.select(tasks)
        if len(tasks) != protocol.tasks:
            say(f"protocol {protocol.name} is for {protocol.tasks} tasks, and these are {len(tasks)}")
    return list(tasks[: config.limit or None])


def share_browsers(config: EvalScriptConfig, ranks: Ranks) -> EvalScriptConfig:
    """Return the config with a rank's share of the protocol's browsers, if it has a protocol."""
    episodes = max(1, config.browser.episodes // (ranks.world if config.protocol else 1))
    return replace(config, browser=replace(config.browser, episodes=episodes))


@dataclass(frozen=True)
class Ledger:
    """The finished episodes of one evaluation, on disk. Ranks but the first have their own dumps, which
    `collect` brings in."""

    run: Run
    label: str
    evaluation: Evaluation
    places: Sequence[tuple[Task, int]]  # every task with every seed, in the order of the dump
    ranks: Ranks

    @property
    def path(self) -> Path:
        return self.run.root / f"results-{self.label}.json"

    def add(self, trajectory: Trajectory) -> None:
        """Append an episode to the rank's dump."""
        suffix = "" if self.ranks.is_main else f".rank{self.ranks.rank}"
        self.run.add_trajectory(self.label + suffix, trajectory)

    def write(self) -> list[Trajectory]:
        """Write the file of results from all dumps, on the first rank; returns the episodes in their order.
        Of one that was tried again the newest counts. ValueError if a dump can't be read."""
        if not self.ranks.is_main:
            return []
        loaded = [t for label in self._dumps() for t in self.run.load_trajectories(label)]
        newest = {(t.task.id, t.member): t for t in loaded}
        places = [(task.id, seed) for task, seed in self.places]
        found = [newest[place] for place in places if place in newest]
        results.write_results(self.path, self.evaluation, list(map(result_of, found)))
        return found

    def collect(self) -> list[Result]:
        """Return every result so far by task and seed, on all ranks; the dumps of all ranks become one, in
        order. A collective call. ValueError if a file can't be read."""
        found = self.write()
        if self.ranks.is_main:
            self.run.save_trajectories(self.label, found)
            for label in set(self._dumps()) - {self.label}:
                self.run.remove_dump(label)
        return self.ranks.broadcast(sorted(map(result_of, found), key=lambda r: r.place))

    def missing(self, finished: Sequence[Result], retry: bool) -> list[tuple[Task, int]]:
        """Return the places still to be run; aborted episodes too, if they are to be tried again."""
        done = {r.place for r in finished if r.stop.is_agent_fault or not retry}
        return [(task, seed) for task, seed in self.places if (task.id, seed) not in done]

    def _dumps(self) -> list[str]:
        """Return the labels of this evaluation's dumps, the first rank's first."""
        own = re.compile(re.escape(self.label) + r"(\.rank\d+)?")
        return [label for label in self.run.labels() if own.fullmatch(label)]


def open_ledger(config: EvalScriptConfig, tasks: Sequence[Task], run: Run, ranks: Ranks, rule: str) -> Ledger:
    """Return the ledger of an evaluation: that of an earlier start, if there was one. A collective call."""
    begun = None
    if ranks.is_main:  # the digest of the weights takes a while
        seeds = tuple(sorted(config.seeds))
        evaluation = Evaluation(config.protocol, rule, settings(config, tasks), results.versions(), seeds)
        begun = label_of(run, subject_of(config), evaluation), evaluation
    places = [(task, seed) for seed in config.seeds for task in tasks]
    return Ledger(run, *ranks.broadcast(begun), places, ranks)


def subject_of(config: Config) -> str:
    """Return the name of the model that is evaluated: a folder, or a served model's name."""
    return config.endpoint.model if config.sampler.kind == "remote" else config.model.path


def settings(config: EvalScriptConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the config as JSON data, with digests of the files that it only names, and without settings that
    only say how to go on. (The number of browsers stays: sites that are asked too much abort.)"""
    seeds = tuple(sorted(config.seeds))
    plain = replace(config, retry=False, compare=(), success_within=(), seeds=seeds)
    words = json.dumps([asdict(task) for task in tasks], sort_keys=True)
    digests = {"tasks": hashlib.sha256(words.encode()).hexdigest(), "weights": weights_of(config.model.path)}
    if config.judge.path:
        digests["judge"] = weights_of(config.judge.path)
    for name, file in (("prompt", config.agent.prompt), ("judge_prompt", config.judge.prompt)):
        if file is not None:
            digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return to_json(plain) | {"digests": digests}


def weights_of(path: str) -> str:
    """Return the digest of a folder's weights, "" of a model on a hub."""
    found = hashlib.sha256()
    files = sorted(file for ending in ("safetensors", "bin") for file in Path(path).glob(f"*.{ending}"))
    for file in files:
        with open(file, "rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest() if files else ""


def label_of(run: Run, subject: str, evaluation: Evaluation) -> str:
    """Return the label under which this evaluation was begun, or a new one."""
    words = "_".join(filter(None, (Path(subject).name, evaluation.protocol)))
    name = "eval_" + re.sub(r"[^A-Za-z0-9.-]", "_", words)
    for number in count(1):
        label = name if number == 1 else f"{name}-{number}"
        path = run.root / f"results-{label}.json"
        if path.exists():
            earlier, _ = results.read_results(path)
            if earlier == evaluation:
                return label
            unlike = results.unlike(asdict(earlier), asdict(evaluation))
            say(f"{path} is another evaluation: it differs in {', '.join(unlike)}")
        elif label not in run.labels():  # a dump without results is not ours
            return label
    raise AssertionError("there is always another number")
