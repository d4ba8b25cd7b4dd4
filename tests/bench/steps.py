"""How far do recorded steps take a small model that sees? Judged on live sites that it never met.

    python tests/bench/steps.py                          all cells: hours
    python tests/bench/steps.py --sizes 8 64 --no-online

Sites of the first level are made, and the solutions of their tasks recorded. Of these steps each cell gets so
many, clones them and goes on with step-wise GRPO (AutoWebWorld, section 4.3), which needs no browser; before,
in between and behind that the agent browses held-out sites of other themes, whose machines judge it:

    steps       recorded steps alone; action, coordinate and format are rewarded as by the released code
    grounding   a fifth of them replaced by steps that are asked for by themselves
    contents    as the first, but texts and directions are checked, too; from the same warm start
    shuffled    as the first with each group's rewards permuted: the control; from the same warm start

and, without recorded steps, `online` and `online_shuffled`: the tiny recipe as it is, on the same sites.
Thoughts are put into the words that the base model was taught, "choose delta 220 160".

Every cell is a run of train.py as in learning.py: found again if it is there, gone on with if it was
interrupted. It draws docs/steps.svg, and docs/steps_rewards.svg, the rewards of the last `steps` cell over
its training steps as in the paper's figure 5. The last line is JSON, by cell: the three success rates with
their intervals, and the rewards of the first and the last step.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import learning
import tyro
from drawing import COLOURS, Curve, lines

from minirl.agents.autowebworld import action_of, spell
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.worlds.shop import CHOICES

CELLS = ("steps", "grounding", "contents", "shuffled")
LABELS = {"before training": "before", "after SFT": "cloned", "after RL": "reinforced"}
REWARDS = ("action", "coordinate", "format")
GROUNDING = 0.2
WIDTH, HEIGHT = tiny().browser.width, tiny().browser.height
SAID = re.compile(r'<think>[^<]*"(\w+)"[^<]*</think>(<action>[^<]*\[(\d+), (\d+)\])')
# step-wise, as recipes.autowebworld_7b; what it leaves open is the tiny recipe's
STEPWISE = [
    *("--agent.kind", "autowebworld", "--agent.no-feedback", "--eval.max-steps", "8"),
    *("--rollout.max-steps", "1", "--rollout.stage-steps", "--rollout.no-dynamic"),
    *("--reward.after", "any", "--reward.format-error", "0"),
    *("--loss.weighting", "grpo", "--loss.clip-high", "0.2"),
    *("--sft.max-steps", "240"),  # for the base model has not met this agent's words
]


@dataclass
class Args:
    sizes: list[int] = field(default_factory=lambda: [8, 64, 512, 4096])
    cells: list[str] = field(default_factory=lambda: list(CELLS))
    online: bool = True
    sites: int = 200
    """How many are made; three in five are for training."""
    seed: int = 0
    out: Path = Path("runs/steps")
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    docs: Path = Path("docs")
    """Where the pictures go."""


def worlds(*flags: object) -> None:
    command = [sys.executable, "-m", "minirl.worlds", *map(str, flags)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def recorded(args: Args) -> list[dict[str, Any]]:
    """Makes the sites, records their tasks' solutions; returns the steps, in the base model's words."""
    sites, steps = args.out / f"sites{args.sites}", args.out / f"recorded{args.sites}"
    if not (sites / "index.html").is_file():
        worlds("make", "--level", "first", "--count", args.sites, "--out", sites)
    if not (steps / "steps.json").is_file():
        folders, size = sorted((sites / "train").iterdir()), ["--width", WIDTH, "--height", HEIGHT]
        tasks = sites / "train.jsonl"
        tasks.write_text("".join((folder / "tasks.jsonl").read_text() for folder in folders))
        worlds("record", tasks, "--sites", *folders, "--out", steps, "--grounding", GROUNDING, *size)
    return [in_own_words(row) for row in json.loads((steps / "steps.json").read_text())]


def in_own_words(row: dict[str, Any]) -> dict[str, Any]:
    def own(match: re.Match[str]) -> str:
        word, action, x, y = match.groups()
        # a quantity is shown as a digit
        word = CHOICES["quantity"]["words"][int(word) - 1] if word.isdigit() else word.lower()
        x, y = (20 * round(50 * int(at) / side) for at, side in ((x, WIDTH), (y, HEIGHT)))
        return f"<think>choose {word} {x} {y}</think>{action}"

    said = SAID.sub(own, spell(row["thought"], action_of(row) or {}))
    thought = said.partition("</think>")[0].removeprefix("<think>")
    return row | {"thought": thought, "history": SAID.sub(own, row["history"])}


def choose(rows: list[dict[str, Any]], size: int, grounding: bool, seed: int) -> list[dict[str, Any]]:
    """Returns so many steps, a fifth of them for grounding or none. ValueError if there are too few."""
    alone = [row for row in rows if not row["history"] and row["instruction"].startswith("Click on")]
    own = [row for row in rows if row not in alone]
    extra = round(GROUNDING * size) if grounding else 0
    if size - extra > len(own) or extra > len(alone):
        raise ValueError(f"{len(own)} steps and {len(alone)} for grounding are recorded: make more --sites")
    rng = random.Random(f"{seed} {size}")
    return rng.sample(own, size - extra) + rng.sample(alone, extra)


def cells(args: Args) -> Iterator[tuple[str, Run]]:
    """Trains cell by cell; yields each one's name and run."""
    bench = learning.Args(out=args.out, flags=args.flags)
    sites = args.out / f"sites{args.sites}"
    rows = recorded(args)
    heldout = ["--task.heldout", str(sites / "heldout")]
    for size in args.sizes:
        starts: dict[str, list[str]] = {}
        for cell in args.cells:
            kind = "grounding" if cell == "grounding" else "steps"
            file = args.out / f"recorded{args.sites}" / f"{kind}{size}_{args.seed}.json"
            if not file.is_file():
                file.write_text(json.dumps(choose(rows, size, kind == "grounding", args.seed)))
            flags = [*STEPWISE, "--task.train", str(file), "--task.demo-goals", str(size), *heldout]
            flags += ["--reward.contents"] * (cell == "contents")
            flags += ["--shuffle-rewards"] * (cell == "shuffled") + starts.get(kind, [])
            run = learning.train(bench, f"{cell}{size}_seed{args.seed}", args.seed, *flags)
            starts.setdefault(kind, learning.start_of(run))
            yield f"{cell} {size}", run
    if args.online:
        flags = ["--task.train", str(sites / "train"), *heldout]
        run = learning.train(bench, f"online_seed{args.seed}", args.seed, *flags)
        yield "online", run
        flags += [*learning.start_of(run), "--shuffle-rewards"]
        yield "online_shuffled", learning.train(bench, f"online_shuffled_seed{args.seed}", args.seed, *flags)


def measured(run: Run) -> dict[str, Any]:
    evals = {LABELS[row["label"]]: row for row in run.evals() if row["label"] in LABELS}
    found: dict[str, Any] = {
        name: [round(row[key], 4) for key in ("success", "low", "high")] for name, row in evals.items()
    }
    metrics = run.metrics()
    for when, row in (("first", metrics[0]), ("last", metrics[-1])):
        found[f"{when}_step"] = {name: round(row[f"reward/{name}"], 3) for name in rewards(metrics)}
    return found


def rewards(metrics: list[dict[str, float]]) -> list[str]:
    return [name for name in REWARDS if f"reward/{name}" in metrics[0]]


def draw(found: dict[str, dict[str, Any]], last: Run | None, docs: Path) -> None:
    """Draws success by the number of steps (dashed: cloned, else reinforced), and the rewards of a run."""
    curves, sizes = [], sorted({int(name.split()[1]) for name in found if " " in name})
    for cell, colour in zip(CELLS, COLOURS, strict=False):
        for when, is_dashed in (("cloned", True), ("reinforced", False)):
            points = [
                (math.log2(size), found[f"{cell} {size}"][when][0])
                for size in sizes
                if when in found.get(f"{cell} {size}", {})
            ]
            curves.append(Curve(cell, points, colour, is_dashed))
    title = "Success on held-out sites by recorded steps: after cloning (dashed), after step-wise GRPO"
    marks = [math.log2(size) for size in sizes]
    (docs / "steps.svg").write_text(lines(title, curves, "recorded steps, as a power of two", marks))
    if last is not None:
        metrics = last.metrics()
        curves = [
            Curve(name, [(n, row[f"reward/{name}"]) for n, row in enumerate(metrics, 1)], colour)
            for name, colour in zip(rewards(metrics), COLOURS, strict=False)
        ]
        picture = lines("Rewards of step-wise GRPO", curves, "training step", range(1, len(metrics) + 1))
        (docs / "steps_rewards.svg").write_text(picture)


def main() -> None:
    args, found, last = tyro.cli(Args), dict[str, dict[str, Any]](), None
    for name, run in cells(args):
        found[name] = measured(run)
        print(name, json.dumps(found[name]), file=sys.stderr)
        last = run if name.startswith("steps ") else last
    draw(found, last, args.docs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
