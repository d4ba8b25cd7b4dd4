"""Labels: what a teacher says of dumped trajectories, and which of them a judge may learn from.

    dumps of runs --teacher--> labels.jsonl --read_examples--> examples --split--> train | held out

Stands before distillation (minirl/judges/distill.py). OpenWebRL, section 4.3: 12.5K online rollouts
labelled by
GPT-4.1; section 5.3: 500 more, from different training stages, to measure agreement with it. The teacher is
a served model, or the task's own verifier, whose reasons are a template. Only trajectories that a judge would
be asked about are labelled: the rules of minirl/advantages.py decide the others.

Deviation: the paper does not say how its 500 were kept apart. Here whole goals are held out, and with them
all their trajectories, since the episodes of one group are much alike; and whole training steps, since the
judge will be asked about a policy that it has not seen. Unlike the episodes that a judge rewards, a step's
dump lacks those of groups that dynamic sampling dropped, all successes or all failures.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from minirl.advantages import needs_verdict
from minirl.config import Config, DistilConfig
from minirl.console import progress
from minirl.context import control_tokens, inert
from minirl.experiment import names_of
from minirl.judges.judge import parse_verdict
from minirl.judges.local import Judge
from minirl.model import Preprocessor
from minirl.run_folder import STEP_LABEL, Run, append_line, read_lines
from minirl.types import Trajectory, Verdict
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.interpreter import meets, value_at

SCRIPTED = "demos"  # a dump that no policy made: no judge will be asked about its like
WORDS = {True: "SUCCESS", False: "NOT SUCCESS"}
PARTS = {  # by whether the goal and the stage are held out
    (False, False): "",
    (True, False): "new goal",
    (False, True): "new stage",
    (True, True): "new goal and stage",
}


@dataclass(frozen=True)
class Label:
    """One line of labels.jsonl. The trajectory is the `line`-th (from 0) of the dump `dump` in the folder
    `run`; `digest` tells whether it still is the one that was labelled."""

    run: str
    dump: str
    line: int
    digest: str
    rationale: str
    verdict: bool
    source: str  # "world", or the model's name
    part: str = ""  # of a held-out one, what is new about it: "new goal", "new stage" or both

    @property
    def key(self) -> tuple[str, str, int]:
        return self.run, self.dump, self.line


@dataclass(frozen=True)
class Example:
    """A labelled trajectory."""

    label: Label
    trajectory: Trajectory


def digest_of(trajectory: Trajectory) -> str:
    """A trajectory told by what a judge may read of it."""
    turns = [(turn.text, turn.feedback, turn.images) for turn in trajectory.turns]
    seen = (trajectory.task.id, trajectory.task.instruction, trajectory.member, trajectory.answer, turns)
    return sha256(json.dumps([*seen, trajectory.final_image]).encode()).hexdigest()[:16]


# --- teachers ------------------------------------------------------------------------------------------


async def world_teacher(trajectory: Trajectory, image: Callable[[str], bytes]) -> Verdict:
    """A `Judge` that says what the task's own verifier found; no verdict if the task has none."""
    if not trajectory.task.goal:
        return Verdict(None, "", "the task has no goal of its own")
    return Verdict(trajectory.success, world_rationale(trajectory))


def world_rationale(trajectory: Trajectory) -> str:
    """Why the verifier decided as it did: the goal's conditions on the final state, one by one, or, where
    there is no state to compare, what it said and what the browser reported last.

        The page should be DONE, is DONE. The colour should be red, is blue, which is wrong.
    """
    goal, state = trajectory.task.goal, trajectory.final_state
    if "page" not in goal or "page" not in state:
        reports = [line for turn in trajectory.turns for line in turn.feedback]
        last = word(reports[-1])[:200] if reports else "nothing"
        found = "holds" if trajectory.success else "does not hold"
        reason = f" ({word(state['reason'])[:200]})" if state.get("reason") else ""
        return f"The task's own check {found}{reason}. The browser reported last: {last}"
    wanted = load_goal(goal)
    facts = [sentence("page", wanted.page, state["page"], state["page"] == wanted.page)]
    for condition in wanted.where:
        value = "" if condition.value is None else word(condition.value)
        words = value if condition.cond == "eq" else f"{condition.cond} {value}".strip()
        found = value_at(state["signature"], condition.path)
        facts.append(sentence(condition.path[-1], words, found, meets(state["signature"], condition)))
    return " ".join(facts)


def sentence(name: object, wanted: object, found: object, right: bool) -> str:
    """
    >>> sentence("colour", "red", "blue", False)
    'The colour should be red, is blue, which is wrong.'
    """
    return f"The {name} should be {wanted}, is {word(found)}{'' if right else ', which is wrong'}."


def word(value: object) -> str:
    """A value on one line: text as it is, nothing as "nothing", and anything else as JSON."""
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.split())


def target(rationale: str, verdict: bool, preprocessor: Preprocessor | None = None) -> str:
    """What the judge learns to say, as it would be read: `parse_verdict(target(...)).success` is the verdict.
    Nothing in a teacher's reasons can spell one of the model's control tokens."""
    control = control_tokens(preprocessor.tokenizer) if preprocessor else None
    opening = "</think>\n\n" if preprocessor and preprocessor.chat.opens_think else ""
    reasons = inert(rationale.strip(), control)
    return opening + (f"{reasons}\n" if reasons else "") + WORDS[verdict]


# --- labelling -----------------------------------------------------------------------------------------


async def label_runs(config: Config, teacher: Judge, source: str) -> Counter[str]:
    """Asks the teacher about every trajectory of the dumps that a judge would be asked about and that has no
    label yet, and appends the labels to this run's labels.jsonl. Counts what came of them all: "labelled",
    "labelled before", "left to the rules", and for each reason "no verdict: ...", which a later call tries
    again. (With --judge.cache a served teacher says again what it has said.)"""
    run, known = Run(config.run_dir), set()
    for label in read_labels(labels_path(run)) if labels_path(run).exists() else ():
        if label.source != source:
            other = f"{labels_path(run)} holds labels by {label.source}, not by {source}"
            raise ValueError(f"{other}; choose another --name")
        known.add(label.key)
    counts: Counter[str] = Counter()
    slots = asyncio.Semaphore(config.judge.concurrency)

    async def ask(label: Label, trajectory: Trajectory, image: Callable[[str], bytes]) -> None:
        async with slots:
            said = await teacher(trajectory, image)
        if said.success is None:
            counts[f"no verdict: {said.error}"] += 1
        elif parse_verdict(target(said.rationale, said.success)).success is not said.success:
            counts["no verdict: the reasons read like another one"] += 1
        else:
            label = replace(label, rationale=said.rationale.strip(), verdict=said.success)
            append_line(labels_path(run), vars(label))
            counts["labelled"] += 1
        meter.advance()

    for folder, dump in dumps_of(config.distil):  # one dump at a time: all of them may not fit in memory
        named = str(folder.root.resolve())
        todo = []
        for line, trajectory in enumerate(folder.load_trajectories(dump)):
            label = Label(named, dump, line, digest_of(trajectory), "", False, source)
            if not needs_verdict(trajectory, config.reward.format):
                counts["left to the rules"] += 1
            elif label.key in known:
                counts["labelled before"] += 1
            else:
                todo.append((label, trajectory))
        with progress(f"labelling {folder.root.name}/{dump}", len(todo)) as meter:
            async with asyncio.TaskGroup() as tasks:
                for label, trajectory in todo:
                    tasks.create_task(ask(label, trajectory, folder.image))
    return counts


def dumps_of(config: DistilConfig) -> Iterator[tuple[Run, str]]:
    """The dumps to label. ValueError if there is none."""
    if not config.runs:
        raise ValueError("--runs is missing: the run folders whose trajectories are to be labelled")
    for path in config.runs:
        run = Run(path)
        wanted = config.dumps or [name for name in run.labels() if name != SCRIPTED]
        dumps = [name for name in run.labels() if name in wanted]
        if not dumps:
            kind = " ".join(config.dumps) or "of a policy"
            raise ValueError(f"--runs {path} has no dump {kind} in its trajectories folder")
        yield from ((run, dump) for dump in dumps)


# --- reading -------------------------------------------------------------------------------------------


def labels_path(run: Run) -> Path:
    return run.root / "labels.jsonl"


def read_labels(path: Path) -> list[Label]:
    """In the dumps' order, whatever order they were written in. ValueError if there are none."""
    try:
        labels = [Label(**record) for _, record in read_lines(path)]
    except TypeError as error:
        raise ValueError(f"{path} holds no labels: {error}") from None
    if not labels:
        raise ValueError(f"{path} has no labels; make them with judge.py label --runs FOLDER")
    return sorted(labels, key=lambda label: label.key)


def read_examples(path: Path) -> list[Example]:
    """The labels with their trajectories. ValueError if one is gone, or not the one that was labelled."""
    labels, loaded = read_labels(path), {}
    for run, dump in sorted({(label.run, label.dump) for label in labels}):
        loaded[run, dump] = Run(Path(run)).load_trajectories(dump)
    out = []
    for label in labels:
        trajectories = loaded[label.run, label.dump]
        if label.line >= len(trajectories) or digest_of(trajectories[label.line]) != label.digest:
            changed = f"the dump {label.dump} of {label.run} has changed since it was labelled"
            raise ValueError(f"{path}: {changed}; label it again, under another --name")
        out.append(Example(label, trajectories[label.line]))
    return out


# --- the split -----------------------------------------------------------------------------------------


def split(
    examples: Sequence[Example], config: DistilConfig, seed: int
) -> tuple[list[Example], list[Example]]:
    """What the judge learns from, and what is held out: all trajectories of a share of the goals, and of a
    share of the training steps. The same examples and seed give the same split. ValueError if that leaves
    nothing on one side."""
    goals = goals_of(examples)
    new_goals = chosen(set(goals), config.goals, f"goals {seed}")
    steps = {stage for e in examples if STEP_LABEL.fullmatch(stage := stage_of(e.label))}
    new_stages = chosen(steps, config.stages, f"stages {seed}")
    train, heldout = [], []
    for example, goal in zip(examples, goals, strict=True):
        part = PARTS[goal in new_goals, stage_of(example.label) in new_stages]
        (heldout if part else train).append(replace(example, label=replace(example.label, part=part)))
    if not train or not heldout:
        few = f"{len(examples)} labels on {len(set(goals))} goals are too few to hold some out"
        raise ValueError(f"{few}; label more, or change --distil.goals and --distil.stages")
    return train, heldout


def goals_of(examples: Sequence[Example]) -> list[str]:
    """A name for each example's goal. Two are the same if they share any of a task's names, or if a third one
    shares a name with either."""
    parent: dict[Any, Any] = {}

    def root(name: Any) -> Any:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    for example in examples:
        first, *others = sorted(names_of(example.trajectory.task))
        for other in others:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    return [str(root(min(names_of(example.trajectory.task)))) for example in examples]


def stage_of(label: Label) -> str:
    """The training step that a trajectory's policy samples in, in whichever run; else its dump's name. An
    evaluation after step 4 is of the policy of step 5, that of the warm start of the policy of step 1."""
    number = STEP_LABEL.search(label.dump)
    if number is None:
        return Run.step_label(1) if label.dump == "after_sft" else label.dump
    return Run.step_label(int(number[1]) + label.dump.startswith("eval_"))


def chosen(names: set[str], share: float, seed: str) -> set[str]:
    """A share of the names, at least one if there are two. A name's place does not depend on the others, so
    that more labels change little."""
    ordered = sorted(names, key=lambda name: sha256(f"{seed}|{name}".encode()).digest())
    count = max(1, round(share * len(names))) if share and len(names) > 1 else 0
    return set(ordered[:count])


def shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """The control: the same labels, reasons and verdicts together, on random trajectories."""
    labels = [example.label for example in examples]
    random.Random(f"labels {seed}").shuffle(labels)
    return [
        replace(e, label=replace(e.label, rationale=other.rationale, verdict=other.verdict))
        for e, other in zip(examples, labels, strict=True)
    ]
