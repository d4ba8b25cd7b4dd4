"""What does a policy make of its judge? The shop's own word, a distilled judge, an ignorant one.

    python tests/bench/judges.py

A policy is trained by what the site knows of its episodes. A judge is distilled from these episodes and
scored on goals and training steps that were held out, and so is an ignorant one, which is distilled only for
as long as it takes to write verdicts at all. (Random weights never would, and a judge without verdicts is no
reward.) By each of the two another policy is trained, from the first one's warm start and on the same tasks.
Their rewards pass the gates of minirl/advantages.py first; what the site knows needs none. The picture
shows for
each what its judge takes for a success and what is one: where the first rises and the second does not, the
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
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import learning
import tyro

from minirl.distributed import open_ranks
from minirl.judges.agreement import Pair, Row, score
from minirl.judges.judge import ask_all, open_judge
from minirl.judges.labels import RunsImages, read_examples, read_records
from minirl.judges.rubrics import Question
from minirl.judges.settings import tiny_judge
from minirl.run_folder import Run, write_atomic
from minirl.types import Trajectory

COLOURS = {"truth": "#2f6f5e", "distilled": "#2d5fa4", "ignorant": "#c0562f"}
WIDTH, HEIGHT, LEFT, TOP = 720, 400, 56, 40  # of the picture; of its axes' corner


@dataclass
class Args:
    seed: int = 0
    out: Path = Path("runs/judges")
    ignorant: int = 80
    """Updates of the ignorant judge."""
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    distil_flags: str = ""
    """Further flags for judge.py distil."""


def judge(args: Args, command: str, name: str, *flags: str) -> None:
    place = ["--out", str(args.out), "--name", name, "--seed", str(args.seed), "--task.seed", str(args.seed)]
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


def agreement(args: Args, checkpoint: Path, asked: str) -> Row:
    """How far a judge agrees with the truth on what was kept from the one called `asked`."""
    judge(args, "score", asked, "--judge.path", str(checkpoint))
    name = str(checkpoint.relative_to(args.out))
    for path in (args.out / asked / "scores").rglob("*.jsonl"):
        pairs = read_records(path, Pair)
        if pairs[0].judge == name:
            return score(pairs)[0]
    raise FileNotFoundError(f"{checkpoint} has no scores")


async def read_from_text(args: Args, checkpoint: Path, asked: str) -> str:
    """How many verdicts stay as they are when every episode's newest screenshot is another one's: those were
    read from the text. (Black ones would be no test: nothing that a small model has seen looks like that.)"""
    examples = read_examples(args.out / asked / "heldout.jsonl")
    episodes = [example.trajectory for example in examples]
    config = replace(tiny_judge(), judge=replace(tiny_judge().judge, path=str(checkpoint)))
    images = RunsImages(example.label.run for example in examples)
    with open_ranks() as ranks:
        async with open_judge(config, ranks, images) as ask:
            own = await ask_all(ask, episodes, config.judge.concurrency)
            swapped = await ask_all(ask, exchanged(episodes), config.judge.concurrency)
    pairs = [(a.success, b.success) for a, b in zip(own, swapped, strict=True) if a.success is not None]
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)}"


def exchanged(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The same with the newest screenshot of another episode, where that has one."""
    half, out = len(episodes) // 2, []
    for episode, other in zip(episodes, [*episodes[half:], *episodes[:half]], strict=True):
        names = tuple(name for _, name in Question(screenshots=1).screenshots_of(other))
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
        "distilled": ("judge_distilled", []),
        "ignorant": (f"judge_ignorant_{args.ignorant}", ["--sft.max-steps", str(args.ignorant)]),
        "permuted": ("judge_permuted", ["--shuffle-labels"]),
    }
    rows = {}
    for name, (folder, flags) in judges.items():
        checkpoint = distilled(args, folder, flags, labels)
        rows[name] = figures(agreement(args, checkpoint, "judge_distilled"))
        if name == "distilled":
            stays = asyncio.run(read_from_text(args, checkpoint, "judge_distilled"))
            rows[name]["as before with another screenshot"] = stays
        if name != "permuted":
            runs[name] = judged(args, bench, f"by_{folder}", runs["truth"], checkpoint)
            drawn = picture({kind: run.metrics() for kind, run in runs.items()})
            write_atomic(args.out / "judges.svg", drawn.encode())
    success = {name: learning.outcome(run, "after RL") for name, run in runs.items()}
    warm = learning.outcome(runs["truth"], "after SFT")
    ends = {name: last_step(run) for name, run in runs.items() if name != "truth"}
    print(json.dumps({"agreement": rows, "after_sft": warm, "after_rl": success, "last_step": ends}))


def judged(args: Args, bench: learning.Args, name: str, truth: Run, checkpoint: Path) -> Run:
    """A policy that starts as the true one did, and is rewarded by a judge."""
    by = ["--reward.by", "judge", "--judge.path", str(checkpoint)]
    try:
        return learning.train(bench, name, args.seed, *learning.start_of(truth), *by)
    except subprocess.CalledProcessError:  # train.py has told why; what it has learned so far is there
        print(f"{name} ended before its last step", file=sys.stderr)
        return learning.run_of(bench, name)


def last_step(run: Run) -> dict[str, float]:
    """Of the last step that was made: what the judge took for a success, and what was one. (The former is
    left out where the judge was not asked once.)"""
    last = (run.metrics() or [{}])[-1]
    return {name: last[name] for name in ("step", "judged_success", "success") if name in last}


def figures(row: Row) -> dict[str, Any]:
    """Table 3's columns in percent, and what share of the episodes succeed and pass."""
    names = ("accuracy", "precision", "recall", "f1", "base_rate", "passed")
    values = {name: getattr(row, name) for name in names}
    percent = {name: None if v is None else round(100 * v, 1) for name, v in values.items()}
    return {**percent, "n": row.n, "invalid": row.invalid}


def picture(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """True success (solid) and what the judge takes for one (dashed) over training, as SVG."""
    last = max(record["step"] for records in metrics.values() for record in records)
    wide, high = WIDTH - LEFT - 150, HEIGHT - TOP - 50

    def line(records: Sequence[Mapping[str, Any]], key: str, style: str) -> str:
        points = (f"{x(record['step']):.1f},{y(record[key]):.1f}" for record in records if key in record)
        return f'<polyline fill="none" stroke-width="2" {style} points="{" ".join(points)}"/>'

    def x(step: int) -> float:
        return LEFT + wide * (step - 1) / max(1, last - 1)

    def y(share: float) -> float:
        return TOP + high * (1 - share)

    def text(at_x: float, at_y: float, words: str, style: str = "") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" {style}>{words}</text>'

    title = "Success in truth (solid) and as the judge sees it (dashed), by who rewards"
    out = [text(LEFT, 22, title, 'font-weight="bold"')]
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<path stroke="#ddd" d="M{LEFT} {y(share):.1f}h{wide}"/>')
        out.append(text(LEFT - 8, y(share) + 4, f"{share:.0%}", 'text-anchor="end"'))
    for step in sorted({1, *range(5, last + 1, 5), last}):
        out.append(text(x(step), HEIGHT - 32, str(step), 'text-anchor="middle"'))
    out.append(text(LEFT + wide / 2, HEIGHT - 12, "step", 'text-anchor="middle"'))
    for n, (name, records) in enumerate(metrics.items()):
        colour = f'stroke="{COLOURS[name]}"'
        out.append(line(records, "success", colour))
        if name != "truth":
            out.append(line(records, "judged_success", f'{colour} stroke-dasharray="5 4"'))
        out.append(f'<path stroke-width="2" {colour} d="M{LEFT + wide + 14} {TOP + 16 + 24 * n}h22"/>')
        out.append(text(LEFT + wide + 42, TOP + 20 + 24 * n, name if name == "truth" else f"{name} judge"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    head += ' font-size="13" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
    return f"{head}{''.join(out)}</svg>\n"


if __name__ == "__main__":
    main()
