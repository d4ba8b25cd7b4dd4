"""Labels: what a teacher says of dumped trajectories, and which of them a judge may learn from.

    dumps of runs --teacher--> labels.jsonl --read_examples--> examples --split--> train | held out

Stands before distill.py. OpenWebRL, section 4.3: 12.5K online rollouts labelled by GPT-4.1; section 5.3: 500
more. The teacher is a served model, or the task's own verifier; only trajectories that a judge would be asked
about are labelled. Deviation: how the paper held its 500 out is not stated. Here whole goals are held out,
and whole training steps, since the judge will be asked about a policy that it has not seen.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from minirl.console import say
from minirl.context import control_tokens, escape_control_tokens
from minirl.distributed import Ranks
from minirl.judges.judge import open_judge
from minirl.judges.settings import JudgeScriptConfig
from minirl.model import Preprocessor
from minirl.rewards import needs_verdict
from minirl.run_folder import STEP_LABEL, Run, append_line, read_records, write_lines
from minirl.samplers.endpoint import ask_all
from minirl.types import Judge, Task, Trajectory

SCRIPTED = "demos"  # a dump that no policy made


@dataclass(frozen=True)
class Label:
    """One line of labels.jsonl. `digest` tells whether the trajectory still is the one that was labelled."""

    run: str  # folder
    dump: str
    line: int  # from 0
    digest: str
    rationale: str
    verdict: bool
    source: str  # "world", or the model's name

    @property
    def place(self) -> tuple[str, str, int]:
        return self.run, self.dump, self.line


@dataclass(frozen=True)
class Example:
    label: Label
    trajectory: Trajectory


class RunsImages:
    """The screenshots of several runs, as one image store."""

    def __init__(self, folders: Iterable[str | Path]):
        self.runs = [Run(Path(folder)) for folder in set(folders)]

    def get(self, name: str) -> bytes:
        for run in self.runs:
            with suppress(ValueError):
                return run.images.get(name)
        raise ValueError(f"screenshot {name} is in none of the runs; its dump may have been pruned")


def digest_of(trajectory: Trajectory) -> str:
    """Return a digest of everything in a trajectory that a judge may read."""
    task = trajectory.task
    turns = [(turn.text, turn.feedback, turn.images) for turn in trajectory.turns]
    evidence = (trajectory.member, trajectory.answer, turns, trajectory.final_image)
    content = json.dumps([task.id, task.instruction, *evidence])
    return sha256(content.encode()).hexdigest()[:16]


def target(rationale: str, verdict: bool, preprocessor: Preprocessor | None = None) -> str:
    """Return what the judge learns to answer: reasons, and the verdict on the last line. No text in it can
    spell a control token."""
    control = control_tokens(preprocessor.tokenizer) if preprocessor else None
    reasons = escape_control_tokens(rationale.strip(), control)
    answer = "SUCCESS" if verdict else "NOT SUCCESS"
    if reasons:
        answer = f"{reasons}\n{answer}"
    if preprocessor and preprocessor.chat.opens_think:
        answer = f"</think>\n\n{answer}"
    return answer


async def label_dumps(config: JudgeScriptConfig, ranks: Ranks, world_teacher: Judge) -> None:
    """Label the dumps of `--runs`, and say how many of each kind there are. The teacher is the model that is
    served as `--judge.model`; without one, the task's own verifier."""
    refuse_training_run(config)
    if config.judge.model:
        served = replace(config, judge=replace(config.judge, path=""))
        async with open_judge(served, ranks, RunsImages(config.runs)) as teacher:
            counts = await label_all(config, teacher, config.judge.model)
    else:
        counts = await label_all(config, world_teacher, "world")
    say(", ".join(f"{number} {outcome}" for outcome, number in counts.most_common()))
    path = config.run_dir / "labels.jsonl"
    verdicts = [label.verdict for label in read_labels(path)]
    say(f"{path} holds {len(verdicts)} labels; {sum(verdicts) / len(verdicts):.1%} are SUCCESS")


def refuse_training_run(config: JudgeScriptConfig) -> None:
    if Run(config.run_dir).labels():
        raise ValueError(f"{config.run_dir} holds a policy's run; choose another --name")


async def label_all(config: JudgeScriptConfig, teacher: Judge, source: str) -> Counter[str]:
    """Ask the teacher about every trajectory that a judge would be asked about and that has no label yet, and
    append the labels to labels.jsonl. Return how many were labelled, and why others were not."""
    path = config.run_dir / "labels.jsonl"
    labels = read_records(path, Label)
    write_lines(path, map(vars, labels))  # without a line that a killed process has torn
    labelled = {label.place for label in labels}
    counts: Counter[str] = Counter()

    async def ask(example: Example) -> None:
        verdict = await teacher(example.trajectory)
        if verdict.success is None:
            counts[f"no verdict: {verdict.error}"] += 1
            return
        label = replace(example.label, verdict=verdict.success, rationale=verdict.rationale.strip())
        append_line(path, vars(label))
        counts["labelled"] += 1

    # One dump at a time: all of them may not fit in memory
    for run, dump in dumps_of(config):
        unlabelled = []
        for line, trajectory in enumerate(run.load_trajectories(dump)):
            label = Label(str(run.root.resolve()), dump, line, digest_of(trajectory), "", False, source)
            if not needs_verdict(trajectory, config.reward.format):
                counts["left to the rules"] += 1
            elif label.place in labelled:
                counts["labelled before"] += 1
            else:
                unlabelled.append(Example(label, trajectory))
        await ask_all(ask, unlabelled, phase=f"labelling {run.root.name}/{dump}")
    return counts


def dumps_of(config: JudgeScriptConfig) -> list[tuple[Run, str]]:
    """Return the dumps of `--runs` that a policy made. ValueError if there is none."""
    dumps = []
    for run in map(Run, config.runs):
        dumps += [(run, name) for name in run.labels() if name != SCRIPTED]
    if not dumps:
        folders = " ".join(map(str, config.runs))
        raise ValueError(f"no dump of a policy in --runs {folders}; give the folders of runs")
    return dumps


def read_labels(path: Path) -> list[Label]:
    """Return the labels in the dumps' order. ValueError if there are none."""
    labels = read_records(path, Label)
    if not labels:
        raise ValueError(f"{path} has no labels; make them with judge.py label --runs FOLDER")
    return sorted(labels, key=lambda label: label.place)


def read_examples(path: Path) -> list[Example]:
    """Return the labels with their trajectories. ValueError if one is not what was labelled."""
    examples = []
    for (run, dump), labels in groupby(read_labels(path), key=lambda label: (label.run, label.dump)):
        trajectories = Run(Path(run)).load_trajectories(dump)
        for label in labels:
            if label.line >= len(trajectories) or digest_of(trajectories[label.line]) != label.digest:
                raise ValueError(f"{path}: dump {dump} of {run} has changed since it was labelled; redo it")
            examples.append(Example(label, trajectories[label.line]))
    return examples


def split(
    examples: Sequence[Example], goal_share: float, stage_share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return the examples to learn from and those held out: all of a share of the goals and of the steps."""
    goals = {goal_of(example.trajectory.task) for example in examples}
    stages = {stage_of(example.label) for example in examples}
    steps = set(filter(STEP_LABEL.fullmatch, stages))
    new_goals = draw_share(goals, goal_share, f"goals {seed}")
    new_stages = draw_share(steps, stage_share, f"stages {seed}")
    train, heldout = [], []
    for example in examples:
        is_new = goal_of(example.trajectory.task) in new_goals or stage_of(example.label) in new_stages
        (heldout if is_new else train).append(example)
    if not train or not heldout:
        raise ValueError(f"{len(examples)} labels on {len(goals)} goals are too few to hold some out")
    return train, heldout


def goal_of(task: Task) -> str:
    return f"{urlsplit(task.start_url).netloc}: {task.instruction}"


def stage_of(label: Label) -> str:
    """Return the training step that a trajectory's policy samples in, else its dump's name. An evaluation
    after step 4 is of the policy of step 5, that of the warm start of the policy of step 1."""
    if label.dump == "after_sft":
        return Run.step_label(1)
    number = STEP_LABEL.search(label.dump)
    if number is None:
        return label.dump
    step = int(number[1])
    return Run.step_label(step + 1 if label.dump.startswith("eval_") else step)


def draw_share(names: set[str], share: float, seed: str) -> set[str]:
    """Return a share of the names, at least one of two. They are drawn by their digests, so that more labels
    change little of it."""
    if not share or len(names) < 2:
        return set()
    ordered = sorted(names, key=lambda name: sha256(f"{seed}|{name}".encode()).digest())
    return set(ordered[: max(1, round(share * len(names)))])


def shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    """Return the control: the same labels, reasons and verdicts together, on random trajectories."""
    labels = [example.label for example in examples]
    random.Random(f"labels {seed}").shuffle(labels)
    mixed = []
    for example, other in zip(examples, labels, strict=True):
        label = replace(example.label, rationale=other.rationale, verdict=other.verdict)
        mixed.append(replace(example, label=label))
    return mixed
