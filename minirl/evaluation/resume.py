"""What eval.py needs before and beside episodes: a protocol's settings, weights and tasks, and the books.

    flags + protocol --read_flags, choose--> Config --eval.py--> Trajectories --Ledger--> Results

Stands behind eval.py. The ledger writes every episode down as it ends, so that the same command goes on after
an interruption: a trajectory into the dump that the report shows, a row into results-LABEL.json (see
minirl/evaluation/results.py). A label belongs to one evaluation: the same weights and tasks, told by
their digests, the
same settings, versions and seeds. Whatever differs gets a label of its own.

OpenWebRL, section 4 and table 8: an official success rate, and one without aborted tasks. Deviation: the
paper's parallel browsers are episodes in flight here, each in a context of its own (minirl/browser/pool.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from minirl.agents.openwebrl import read_prompt
from minirl.benchmarks.protocols import Protocol, protocol_of
from minirl.checkpoint import checkpoints
from minirl.config import Config, TaskConfig, check, to_json
from minirl.console import say
from minirl.distributed import Ranks
from minirl.evaluation.results import Evaluation, Result, read_results, result_of, versions, write_results
from minirl.evaluation.tables import UNNAMED, differences
from minirl.experiment import Experiment
from minirl.judges.rubrics import judge_config
from minirl.model import check_checkpoint
from minirl.recipes import parsed
from minirl.run_folder import Run
from minirl.types import Task, Trajectory

# ---- The command line ------------------------------------------------------------------------------


def read_flags(argv: Sequence[str]) -> Config:
    """The config of a command line; with --protocol its settings stand before the user's flags, which win.
    ValueError for what can't be understood or can't be."""
    config = parsed(argv, "eval.py")
    how = config.eval
    if how.limit < 0:
        raise ValueError("--limit can't be negative")
    if not how.seeds or len(set(how.seeds)) < len(how.seeds):
        raise ValueError("--seeds needs at least one seed, and none twice")
    if len(how.compare) not in (0, 2):
        raise ValueError("--compare needs two files of results")
    if how.budgets and min(how.budgets) < 1:
        raise ValueError("--max-steps: every number of turns must be at least 1")
    if how.protocol:
        config = _under(protocol_of(how.protocol), argv)
    if how.budgets:
        config = replace(config, eval=replace(config.eval, max_steps=max(how.budgets)))
    if how.tasks is not None:
        config = replace(config, task=replace(config.task, heldout=str(how.tasks)))
    if config.sampler.kind == "remote" and config.eval.top_k:
        say(f"a served model is not told --eval.top-k {config.eval.top_k}: the API has no such parameter")
        config = replace(config, eval=replace(config.eval, top_k=0))
    return check(config)


def names_in(argv: Sequence[str]) -> frozenset[str]:
    """The flags that stand in a command line, however they are spelled.

    >>> sorted(names_in(["tiny", "--eval.top_k=3", "--seeds", "0", "1"]))
    ['--eval.top-k', '--seeds']
    """
    words = (word.partition("=")[0].replace("_", "-") for word in argv)
    return frozenset(word for word in words if word.startswith("--"))


def _under(protocol: Protocol, argv: Sequence[str]) -> Config:
    usual = flags_of(protocol)
    recipe = [] if argv[0].startswith("-") else [argv[0]]
    flags = argv[len(recipe) :]
    words = [word for flag, value in usual.items() for word in (flag, str(value))]
    config = parsed([*recipe, *words, *flags], "eval.py")
    names = names_in(flags)
    if "--max-steps" in names:
        names |= {"--eval.max-steps"}
    judge = {f"--judge.{name.replace('_', '-')}": name for name in vars(protocol.judge)}
    usual |= {flag: vars(protocol.judge)[name] for flag, name in judge.items()}
    if unlike := [f"{flag} {value}" for flag, value in usual.items() if flag in names]:
        say(f"your flags go before protocol {protocol.name}, which has {', '.join(unlike)}")
    fields = [name for flag, name in judge.items() if flag in names]
    return replace(config, judge=judge_config(protocol, config.judge, fields))


def flags_of(protocol: Protocol) -> dict[str, float]:
    """A protocol's settings, the judge's apart. Those of a text agent, which sees none, leave screenshots as
    they are; --batch.micro-tokens has no effect here, but must be at least the context. Under a protocol
    --browser.episodes are those of all ranks together: `shared`."""
    flags: dict[str, float] = {
        "--eval.temperature": protocol.sampling.temperature,
        "--eval.top-p": protocol.sampling.top_p,
        "--eval.top-k": protocol.sampling.top_k,
        "--eval.response-tokens": protocol.response_tokens,
        "--eval.max-steps": protocol.max_steps,
        "--agent.context-tokens": protocol.context_tokens,
        "--batch.micro-tokens": protocol.context_tokens,
        "--sampler.request-seconds": protocol.request_seconds,
        "--endpoint.seconds": protocol.request_seconds,
        "--browser.episode-seconds": protocol.episode_seconds,
        "--browser.episodes": protocol.browsers,
    }
    return flags | ({"--agent.screenshots": protocol.screenshots} if protocol.screenshots else {})


def shared(config: Config, ranks: Ranks) -> Config:
    """The config with a rank's share of the protocol's browsers, if it has one."""
    if not config.eval.protocol:
        return config
    episodes = max(1, config.browser.episodes // ranks.world)
    return replace(config, browser=replace(config.browser, episodes=episodes))


# ---- Which weights, which tasks --------------------------------------------------------------------

MODEL, TASKS = "--model.path", frozenset({"--tasks", "--task.heldout"})  # the flags that choose these


def choose(config: Config, given: Collection[str]) -> Config:
    """The config with the checkpoint as its model, and the evaluations' folder as its name. `given` are the
    flags of the command line: one that repeats the recipe's value is a choice, too.

    The folder belongs to the run that is evaluated: `--name tiny` and `--name tiny-eval` mean the same.
    """
    run = (config.name or config.recipe).removesuffix("-eval")
    folder = config.out / run
    if config.sampler.kind == "remote":  # served weights; the recipe's tokenizer measures conversations
        return replace(config, name=f"{run}-eval", task=tasks_of(config, folder, given))
    is_given = MODEL in given and config.model.path != "tiny"  # which has no weights yet
    path = config.model.path if is_given else checkpoint_of(config, folder / "checkpoints", given)
    is_own = not is_given or Path(path).resolve().is_relative_to(folder.resolve())
    task = tasks_of(config, folder, given) if is_own else config.task
    return replace(config, name=f"{run}-eval", model=replace(config.model, path=path), task=task)


def checkpoint_of(config: Config, folder: Path, given: Collection[str]) -> str:
    """The newest RL checkpoint in the folder, or the warm start, or what the recipe starts from. A checkpoint
    that can't be read is named, and the one before it is taken."""
    for path in [*reversed(checkpoints(folder)), folder / "sft"]:
        if not path.is_dir():
            continue
        try:
            check_checkpoint(replace(config.model, path=str(path)))
            return str(path)
        except ValueError as problem:
            say(f"passed over: {problem}")
    if config.model.path == "tiny" and TASKS.isdisjoint(given):
        raise ValueError(f"no checkpoint in {folder}; train first, or name a folder with --model.path")
    if config.model.path == "tiny":
        say(f"no checkpoint in {folder}: an UNTRAINED tiny model is evaluated, which can do nothing")
    return config.model.path


def tasks_of(config: Config, folder: Path, given: Collection[str]) -> TaskConfig:
    """The run's own tasks: what was not given is as in its config.json, and held out is what it held out."""
    task, saved = config.task, {}
    settings = folder / "config.json"
    if settings.is_file():
        try:
            saved = json.loads(settings.read_text())["task"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{settings} can't be read: {error!r}") from None
        for name in ("train", "seed", "train_goals", "demo_goals"):
            if f"--task.{name.replace('_', '-')}" not in given:
                task = replace(task, **{name: saved.get(name, getattr(task, name))})
    heldout, same_shop = folder / "heldout.jsonl", task.seed == saved.get("seed", task.seed)
    if TASKS.isdisjoint(given) and same_shop and heldout.is_file():
        task = replace(task, heldout=str(heldout))
    return task


def selected(config: Config, tasks: Sequence[Task], protocol: Protocol, given: Collection[str]) -> list[Task]:
    """The tasks that are to be evaluated, in their order. ValueError if the protocol has none of them."""
    if protocol is not UNNAMED:
        tasks = protocol.select(tasks)
        if len(tasks) != protocol.tasks:
            say(f"protocol {protocol.name} is for {protocol.tasks} tasks, and these are {len(tasks)}")
    if "--eval.episodes" in given:  # fewer than a file holds
        tasks = tasks[: config.eval.episodes]
    return list(tasks[: config.eval.limit or None])


# ---- Books -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ledger:
    """What is finished of one evaluation, on disk. The first rank writes the row and the dump of what it ran
    itself at once; other ranks have dumps of their own, which `collect` brings in."""

    run: Run
    label: str
    evaluation: Evaluation
    places: Sequence[tuple[Task, int]]  # every task with every seed, in the order of the dump
    ranks: Ranks

    @property
    def path(self) -> Path:
        return path_of(self.run, self.label)

    def add(self, trajectory: Trajectory) -> None:
        """Writes an episode down. The dump comes first: `collect` makes up for a row that is missing."""
        if not self.ranks.is_main:
            self.run.add_trajectory(f"{self.label}.rank{self.ranks.rank}", trajectory)
            return
        self.run.add_trajectory(self.label, trajectory)
        write_results(self.path, self.evaluation, [result_of(trajectory)])

    def collect(self) -> list[Result]:
        """Every result so far, on all ranks, from whichever rank and run; the dump is put in order. A
        collective call. ValueError if a file can't be read."""
        results: list[Result] = []
        if self.ranks.is_main:
            others = [label for label in self.run.labels() if label.startswith(f"{self.label}.rank")]
            own = [self.label] if self.label in self.run.labels() else []
            loaded = [t for label in own + others for t in self.run.load_trajectories(label)]
            newest = {(t.task.id, t.member): t for t in loaded}  # of one that was tried again
            order = [newest.get((task.id, seed)) for task, seed in self.places]
            found = [trajectory for trajectory in order if trajectory is not None]
            write_results(self.path, self.evaluation, list(map(result_of, found)))
            self.run.save_trajectories(self.label, found)
            for label in others:
                self.run.remove_dump(label)
            _, results = read_results(self.path)
        return self.ranks.broadcast(results)

    def missing(self, results: Sequence[Result], retry: bool) -> list[tuple[Task, int]]:
        """What is still to be run; aborted episodes too, if they are to be tried again."""
        done = {(r.task, r.seed) for r in results if r.stop.is_agent_fault or not retry}
        return [(task, seed) for task, seed in self.places if (task.id, seed) not in done]


def open_ledger(parts: Experiment, protocol: Protocol, subject: str) -> Ledger:
    """The books of an evaluation of `parts.tasks.heldout`: those of an earlier start, if there was one."""
    config, tasks, ranks = parts.config, parts.tasks.heldout, parts.ranks
    seeds, label, evaluation = config.eval.seeds, "", None
    if ranks.is_main:  # the digest of the weights takes a while
        evaluation = Evaluation(
            protocol.name, protocol.rule, settings(config, tasks), versions(), tuple(sorted(seeds))
        )
        label = label_of(parts.run, subject, evaluation)
    label, evaluation = ranks.broadcast((label, evaluation))
    places = [(task, seed) for seed in seeds for task in tasks]
    return Ledger(parts.run, label, evaluation, places, ranks)


def settings(config: Config, tasks: Sequence[Task]) -> dict[str, object]:
    """The config as JSON data, with what it only names, and without what only says how to go on. (What should
    change nothing but the time, such as the number of browsers, stays: sites that are asked too much abort.)
    """
    seeds = tuple(sorted(config.eval.seeds))
    plain = replace(config, eval=replace(config.eval, retry=False, compare=(), budgets=(), seeds=seeds))
    words = json.dumps([asdict(task) for task in tasks], sort_keys=True)
    digests = {"tasks": hashlib.sha256(words.encode()).hexdigest(), "weights": weights_of(config.model.path)}
    if config.judge.path:
        digests["judge"] = weights_of(config.judge.path)
    for name, file in (("prompt", config.agent.prompt), ("judge_prompt", config.judge.prompt)):
        if file is not None:
            digests[name] = hashlib.sha256(read_prompt(file).encode()).hexdigest()
    return to_json(plain) | {"digests": digests}


def weights_of(path: str) -> str:
    """The digest of a folder's weights, "" of a model on a hub. A run that is trained again has other weights
    under the same names."""
    found = hashlib.sha256()
    files = sorted(file for ending in ("safetensors", "bin") for file in Path(path).glob(f"*.{ending}"))
    for file in files:
        with open(file, "rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest() if files else ""


def label_of(run: Run, subject: str, evaluation: Evaluation) -> str:
    """The label under which this evaluation was begun, or a new one."""
    words = [Path(subject).name, *([evaluation.protocol] if evaluation.protocol else [])]
    name = "eval_" + re.sub(r"[^A-Za-z0-9.-]", "_", "_".join(words))
    for number in count(1):
        label = name if number == 1 else f"{name}-{number}"
        path = path_of(run, label)
        if path.exists():
            earlier, _ = read_results(path)
            if earlier == evaluation:
                return label
            unlike = ", ".join(differences(asdict(earlier), asdict(evaluation)))
            say(f"{path} is another evaluation: it differs in {unlike}")
        elif label not in run.labels():
            return label
    raise AssertionError("there is always another number")


def path_of(run: Run, label: str) -> Path:
    return run.root / f"results-{label}.json"
