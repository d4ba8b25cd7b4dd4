"""Labels: what a teacher says of dumped trajectories, and which of them a judge may learn from.

    dumps of runs --teacher--> labels.jsonl --read_examples--> examples --split--> train | held out

Stands before distill.py. OpenWebRL, section 4.3: 12.5K online rollouts labelled by GPT-4.1; section 5.3: 500
more. The teacher is a served model, or the task's own verifier. Only trajectories that a judge would be asked
about are labelled (minirl/advantages.py), without those of groups that dynamic sampling dropped. Deviation:
how the paper's 500 were kept apart is not stated. Here whole goals are held out, told by site and
instruction, and whole training steps, since the judge will be asked about a policy that it has not seen.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from minirl.advantages import needs_verdict
from minirl.console import say
from minirl.context import control_tokens, inert
from minirl.distributed import Ranks
from minirl.judges.judge import ask_all, open_judge
from minirl.judges.parsers import parse
from minirl.judges.settings import JudgeScriptConfig
from minirl.model import Preprocessor
from minirl.run_folder import STEP_LABEL, Run, append_line, broken_line, read_lines
from minirl.types import Judge, Task, Trajectory, Verdict

T = TypeVar("T")
SCRIPTED = "demos"  # a dump that no policy made


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
    def name(self) -> str:
        """The same for the same trajectory in every scoring."""
        return f"{self.run}/{self.dump}/{self.line}"


@dataclass(frozen=True)
class Example:
    """A labelled trajectory."""

    label: Label
    trajectory: Trajectory


class RunsImages:
    """The screenshots of several runs. Names are content hashes, so equal names are equal pictures."""

    def __init__(self, folders: Iterable[str | Path]):
        self.runs = [Run(folder) for folder in sorted(map(Path, set(folders)))]

    def get(self, name: str) -> bytes:
        """Return PNG bytes. ValueError if no run has them."""
        for run in self.runs:
            with suppress(ValueError):
                return run.images.get(name)
        folders = ", ".join(str(run.root) for run in self.runs)
        raise ValueError(f"screenshot {name} is not in {folders}; its dump may have been pruned")


def digest_of(trajectory: Trajectory) -> str:
    """Return a digest of everything in a trajectory that a judge may read."""
    t, turns = trajectory, [(turn.text, turn.feedback, turn.images) for turn in trajectory.turns]
    read = (t.task.id, t.task.instruction, t.member, t.answer, turns, t.final_image)
    return sha256(json.dumps(read).encode()).hexdigest()[:16]


def target(rationale: str, verdict: bool, preprocessor: Preprocessor | None = None) -> str:
    """Return what the judge learns to say, for the parser "verdict-line". Nothing in a teacher's reasons can
    spell one of the model's control tokens."""
    control = control_tokens(preprocessor.tokenizer) if preprocessor else None
    opening = "</think>\n\n" if preprocessor and preprocessor.chat.opens_think else ""
    reasons = inert(rationale.strip(), control)
    return opening + (f"{reasons}\n" if reasons else "") + ("SUCCESS" if verdict else "NOT SUCCESS")


async def label_dumps(config: JudgeScriptConfig, ranks: Ranks, world_teacher: Judge) -> None:
    """Label the dumps of `--runs` with the teacher, and say how many of each kind there are. ValueError if
    nothing could be labelled."""
    refuse_training_run(config)
    if config.teacher == "endpoint" and not config.judge.model:
        raise ValueError("--teacher endpoint needs --judge.model, the name under which it is served")
    if not config.runs:
        raise ValueError("--runs is missing: the run folders whose trajectories are to be labelled")
    if config.teacher == "world":
        counts = await label_all(config, world_teacher, "world")
    else:
        served = replace(config, judge=replace(config.judge, path=""))
        async with open_judge(served, ranks, RunsImages(config.runs)) as teacher:
            counts = await label_all(config, teacher, config.judge.model)
    for outcome, number in counts.most_common():
        say(f"{number} {outcome}")
    path = config.run_dir / "labels.jsonl"
    if not path.exists():
        raise ValueError(f"nothing could be labelled: {', '.join(counts) or 'the dumps are empty'}")
    verdicts = [label.verdict for label in read_labels(path)]
    say(f"{path} holds {len(verdicts)} labels; {sum(verdicts) / len(verdicts):.1%} are SUCCESS")


def refuse_training_run(config: JudgeScriptConfig) -> None:
    if Run(config.run_dir).labels():
        raise ValueError(f"{config.run_dir} holds a policy's run; choose another --name")


async def label_all(config: JudgeScriptConfig, teacher: Judge, source: str) -> Counter[str]:
    """Ask the teacher about every trajectory that a judge would be asked about and that has no label yet, and
    append the labels to this run's labels.jsonl. Return how many were labelled, and why others were not; a
    later call tries again where there was no verdict."""
    dumps = []
    for run in map(Run, config.runs):
        names = config.dumps or set(run.labels()) - {SCRIPTED}
        if not (found := [(run, name) for name in run.labels() if name in names]):
            kind = " ".join(config.dumps) or "of a policy"
            raise ValueError(f"--runs {run.root} has no dump {kind} in its trajectories folder")
        dumps += found
    path = config.run_dir / "labels.jsonl"
    known = {label.name: label.source for label in (read_labels(path) if path.exists() else ())}
    if others := set(known.values()) - {source}:
        raise ValueError(f"{path} holds labels by {min(others)}, not by {source}; choose another --name")
    counts: Counter[str] = Counter()

    def keep(todo: Sequence[Example], n: int, said: Verdict) -> None:
        if said.success is None:
            counts[f"no verdict: {said.error}"] += 1
        elif parse("verdict-line", target(said.rationale, said.success)).success is not said.success:
            counts["no verdict: the reasons read like another one"] += 1
        else:
            label = replace(todo[n].label, rationale=said.rationale.strip(), verdict=said.success)
            append_line(path, vars(label))
            counts["labelled"] += 1

    for run, dump in dumps:  # one at a time: all of them may not fit in memory
        todo = []
        for line, trajectory in enumerate(run.load_trajectories(dump)):
            label = Label(str(run.root.resolve()), dump, line, digest_of(trajectory), "", False, source)
            if not needs_verdict(trajectory, config.reward.format):
                counts["left to the rules"] += 1
            elif label.name in known:
                counts["labelled before"] += 1
            else:
                todo.append(Example(label, trajectory))
        asked, phase = [example.trajectory for example in todo], f"labelling {run.root.name}/{dump}"
        await ask_all(teacher, asked, config.judge.concurrency, phase, partial(keep, todo))
    return counts


def read_records(path: Path, kind: type[T]) -> list[T]:
    """Return the lines of a file as records. ValueError names the line that is none."""
    records = []
    for number, line in read_lines(path):
        try:
            records.append(TypeAdapter(kind).validate_python(line))
        except ValidationError as error:
            raise broken_line(path, number, error) from None
    return records


def read_labels(path: Path) -> list[Label]:
    """Return the labels in the dumps' order. ValueError if there are none."""
    labels = read_records(path, Label)
    if not labels:
        raise ValueError(f"{path} has no labels; make them with judge.py label --runs FOLDER")
    return sorted(labels, key=lambda label: (label.run, label.dump, label.line))


def read_examples(path: Path) -> list[Example]:
    """Return the labels with their trajectories. ValueError if one is not what was labelled."""
    load, examples = cache(lambda run, dump: Run(Path(run)).load_trajectories(dump)), []
    for label in read_labels(path):
        trajectories = load(label.run, label.dump)
        if label.line >= len(trajectories) or digest_of(trajectories[label.line]) != label.digest:
            changed = f"the dump {label.dump} of {label.run} has changed since it was labelled"
            raise ValueError(f"{path}: {changed}; label it again, under another --name")
        examples.append(Example(label, trajectories[label.line]))
    return examples


def split(
    examples: Sequence[Example], goals: float, stages: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return the examples to learn from and those held out: all of a share of the goals, and all of a share
    of the training steps. The same examples and seed give the same split. ValueError if one side is empty."""
    names = {goal_of(example.trajectory.task) for example in examples}
    steps = {stage for e in examples if STEP_LABEL.fullmatch(stage := stage_of(e.label))}
    new_goals, new_stages = chosen(names, goals, f"goals {seed}"), chosen(steps, stages, f"stages {seed}")
    train, heldout = [], []
    for example in examples:
        new = ["goal"] if goal_of(example.trajectory.task) in new_goals else []
        new += ["stage"] if stage_of(example.label) in new_stages else []
        part = f"new {' and '.join(new)}" if new else ""
        (heldout if part else train).append(replace(example, label=replace(example.label, part=part)))
    if not train or not heldout:
        few = f"{len(examples)} labels on {len(names)} goals are too few to hold some out"
        raise ValueError(f"{few}; label more, or change --goals and --stages")
    return train, heldout


def goal_of(task: Task) -> str:
    """Return the name of a task's goal: its site and its instruction, "shop.test: Order a mug"."""
    return f"{urlsplit(task.start_url).netloc}: {task.instruction}"


def stage_of(label: Label) -> str:
    """Return the training step that a trajectory's policy samples in, in whichever run; else its dump's name.
    An evaluation after step 4 is of the policy of step 5, that of the warm start of the policy of step 1."""
    number = STEP_LABEL.search(label.dump)
    if number is None:
        return Run.step_label(1) if label.dump == "after_sft" else label.dump
    return Run.step_label(int(number[1]) + label.dump.startswith("eval_"))


def chosen(names: set[str], share: float, seed: str) -> set[str]:
    """Return a share of the names, at least one if there are two. A name's place does not depend on the
    others, so that more labels change little."""
    ordered = sorted(names, key=lambda name: sha256(f"{seed}|{name}".encode()).digest())
    return set(ordered[: max(1, round(share * len(names))) if share and len(names) > 1 else 0])


def shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """Return the control: the same labels, reasons and verdicts together, on random trajectories."""
    labels = [example.label for example in examples]
    random.Random(f"labels {seed}").shuffle(labels)
    return [
        replace(e, label=replace(e.label, rationale=other.rationale, verdict=other.verdict))
        for e, other in zip(examples, labels, strict=True)
    ]
