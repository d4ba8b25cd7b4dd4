"""What does a policy make of its judge? The shop's own word, a distilled judge, an ignorant one.

    python benchmarks/judges.py

A policy is trained by what the site knows of its episodes. A judge is distilled from these episodes and
scored on goals that were held out, and so is an ignorant one, which is distilled only for
as long as it takes to write verdicts at all. (The base model never would, and a judge without verdicts is no
reward.) By each of the two another policy is trained, from the first one's warm start and on the same tasks.
Their rewards pass the gates of minirl/rewards.py first; what the site knows needs none. A run's metrics
say what its judge takes for a success and what is one: where the first rises and the second does not, the
judge is exploited. One that is exploited to the end leaves no group to learn from, and such a run ends there.
A third judge is distilled from permuted labels and only scored: the control.

Every part is a subprocess in a folder below --out; what has been trained or distilled there already is not
repeated. The last line is JSON: agreement, true success before and after, and of each judge what share of the
last step's episodes it let pass and how many were successes.
OpenWebRL, section 5.3 and table 3.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import learning
import tyro

from minirl.distributed import open_ranks
from minirl.judges.agreement import AgreementRow, Pair, is_success, score
from minirl.judges.judge import open_judge
from minirl.judges.labels import HELD_OUT, LABELLED
from minirl.judges.rubrics import newest_screenshots
from minirl.judges.settings import tiny_judge
from minirl.run_folder import Run, read_records
from minirl.samplers.endpoint import ask_all
from minirl.types import Trajectory


@dataclass
class Args:
    seed: int = 0
    out: Path = Path("runs/judges")
    ignorant: int = 80
    """Updates of the ignorant judge. With seed 1 it wrote no verdict after 80, too few after 120."""
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    distil_flags: str = ""
    """Further flags for judge.py distil."""


def judge(args: Args, command: str, name: str, *flags: str) -> None:
    place = ["--name", str((args.out / name).resolve()), "--seed", str(args.seed)]
    script = str(learning.ROOT / "judge.py")
    subprocess.run(
        [sys.executable, script, command, "tiny-judge", *place, *flags], check=True, stdout=sys.stderr
    )


def distilled(args: Args, name: str, flags: Sequence[str], labels: Path) -> Path:
    """The checkpoint of a judge that has learned from the labels."""
    checkpoint = args.out / name / "checkpoints" / "judge"
    if not checkpoint.is_dir():
        judge(args, "distil", name, "--labelled", str(labels), *args.distil_flags.split(), *flags)
    return checkpoint


def agreement(args: Args, checkpoint: Path, asked: str) -> AgreementRow:
    """How far a judge agrees with the truth on what was kept from the one called `asked`."""
    judge(args, "score", asked, "--judge.path", str(checkpoint.resolve()))
    name = str(checkpoint.relative_to(args.out))
    path = args.out / asked / "scores" / f"{name.replace('/', '_')}.jsonl"
    return score(read_records(path, Pair))[0]


def permuted(args: Args, labels: Path) -> Path:
    """The control: a folder with the same labels, reasons and verdicts together, on random trajectories."""
    folder = args.out / "labels_permuted"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)  # an earlier call was interrupted
        shutil.copytree(labels, part)
        trajectories = Run(labels).load_trajectories(LABELLED)
        verdicts = [trajectory.verdict for trajectory in trajectories]
        random.Random(args.seed).shuffle(verdicts)
        pairs = zip(trajectories, verdicts, strict=True)
        mixed = [replace(trajectory, verdict=verdict) for trajectory, verdict in pairs]
        Run(part).save_trajectories(LABELLED, mixed)
        part.rename(folder)
    return folder


async def other_screenshots(args: Args, checkpoint: Path, asked: str) -> dict[str, Any]:
    """How many verdicts stay as they are when every episode's newest screenshot is another one's, and how
    many are right then: a judge that reads the text alone loses nothing. (Black ones would be no test:
    nothing that a small model has seen looks like that.)"""
    run = Run(args.out / asked)
    episodes = run.load_trajectories(HELD_OUT)
    config = replace(tiny_judge(), judge=replace(tiny_judge().judge, path=str(checkpoint)))
    with open_ranks() as ranks:
        async with open_judge(config, ranks, run.images) as ask:
            verdicts = await ask_all(ask, episodes)
            swapped = await ask_all(ask, exchanged(episodes))
    pairs = [(a.success, b.success) for a, b in zip(verdicts, swapped, strict=True)]
    right = sum(b == is_success(e) for e, (_, b) in zip(episodes, pairs, strict=True))
    stay = [a == b for a, b in pairs if a is not None]
    return {
        "as before with another screenshot": f"{sum(stay)} of {len(stay)}",
        "right with another screenshot": f"{right} of {len(pairs)}",
    }


def exchanged(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The same with the newest screenshot of another episode, where that has one."""
    half = len(episodes) // 2
    out = []
    for episode, other in zip(episodes, [*episodes[half:], *episodes[:half]], strict=True):
        names = newest_screenshots(other, 1)
        if names:
            turns = (*episode.turns[:-1], replace(episode.turns[-1], images=names))
            episode = replace(episode, turns=turns, final_image=names[0])
        out.append(episode)
    return out


def main() -> None:
    args = tyro.cli(Args)
    args.out = args.out.with_name(args.out.name + learning.suffix(f"{args.flags}{args.distil_flags}"))
    bench = learning.Args(recipe="tiny", out=args.out, flags=args.flags)
    runs = {"truth": learning.train(bench, "truth", args.seed)}
    labels = args.out / "labels"
    judge(args, "label", "labels", "--runs", str(runs["truth"].root))
    judges = {
        "distilled": ("judge_distilled", [], labels),
        "ignorant": (f"judge_ignorant_{args.ignorant}", ["--sft.max-steps", str(args.ignorant)], labels),
        "permuted": ("judge_permuted", [], permuted(args, labels)),
    }
    rows = {}
    for name, (folder, flags, taught) in judges.items():
        checkpoint = distilled(args, folder, flags, taught)
        rows[name] = figures(agreement(args, checkpoint, "judge_distilled"))
        if name == "distilled":
            with redirect_stdout(sys.stderr):  # progress; the last line alone goes to stdout
                rows[name] |= asyncio.run(other_screenshots(args, checkpoint, "judge_distilled"))
        if name != "permuted":
            runs[name] = judged(args, bench, f"by_{folder}", runs["truth"], checkpoint)
    success = {name: learning.outcome(run, "after RL") for name, run in runs.items()}
    warm = learning.outcome(runs["truth"], "after SFT")
    ends = {name: last_step(run) for name, run in runs.items() if name != "truth"}
    print(json.dumps({"agreement": rows, "after_sft": warm, "after_rl": success, "last_step": ends}))


def judged(args: Args, bench: learning.Args, name: str, truth: Run, checkpoint: Path) -> Run:
    """A policy that starts as the true one did, and is rewarded by a judge."""
    by = ["--reward.by", "judge", "--judge.path", str(checkpoint)]
    return learning.train_as_far_as_it_goes(bench, name, args.seed, *learning.start_of(truth), *by)


def last_step(run: Run) -> dict[str, float]:
    """Of the last step that was made: what the judge took for a success, and what was one. (The former is
    left out where the judge was not asked once.)"""
    last = (run.metrics() or [{}])[-1]
    return {name: last[name] for name in ("step", "judged_success", "success") if name in last}


def figures(row: AgreementRow) -> dict[str, Any]:
    """Table 3's columns in percent."""
    names = ("accuracy", "precision", "recall", "f1")
    values = {name: getattr(row, name) for name in names}
    percent = {name: None if v is None else round(100 * v, 1) for name, v in values.items()}
    return {**percent, "n": row.n, "invalid": row.invalid}


if __name__ == "__main__":
    main()
