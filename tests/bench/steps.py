"""How far do recorded steps take a small model that sees? Judged on live sites that it never met.

    python tests/bench/steps.py                          all cells: hours
    python tests/bench/steps.py --sizes 8 64 --no-online

As in AutoWebWorld (sections 5.3 and 5.4) one model begins every cell, which knows the agent's language and
no site. There it is Qwen2.5-VL; here the tiny recipe's base model, which has not met that language (a loss of
21.6 on its first steps), so it clones recorded solutions in shops first. Then solutions on sites of the first
level are recorded, and a cell learns from so many of their steps by step-wise GRPO, without a browser. Before
and behind that the agent browses held-out sites of other themes, whose machines judge it:

    steps       recorded steps alone; action, coordinate and format are rewarded as by the released code
    grounding   a fifth of them replaced by steps that are asked for by themselves
    contents    as the first, but texts and directions are checked, too; left out where no step has any, for
                then both rewards are the same: on the first level all is clicked
    longer      as the first, but few steps are trained on as long as 4,096: is it the steps or the updates?
    shuffled    as the first with each group's rewards permuted: the control

and, without recorded steps, `online` and `online_shuffled`: the tiny recipe on the same sites, with a fifth
of its demonstrations, since a hundred leave little to learn (83.3% in docs/results.md).
All steps are seen once, as there, 32 at a time; few ones again and again, until there were 16 times, or 128.
Thoughts are put into the words that the base model was taught, "choose delta 220 160".

Every cell is a run of train.py as in learning.py: found again if it is there, gone on with if it was
interrupted. It draws docs/steps.svg, and docs/steps_rewards.svg, the rewards of the largest `steps` and
`grounding` over their training steps as in the paper's figure 5. The last line is JSON, by cell: the success
rates with their intervals, and the rewards of the first and the last step.
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
from statistics import mean
from typing import Any

import learning
import tyro
from drawing import COLOURS, Curve, lines

from minirl.agents.autowebworld import action_of, spell
from minirl.agents.openwebrl import SCALE
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.worlds.hand import GRID
from minirl.worlds.shop import CHOICES

CELLS = ("steps", "grounding", "contents", "longer", "shuffled")
LABELS = {"before training": "base", "after SFT": "before", "after RL": "after"}
REWARDS = ("reward", "reward/action", "reward/coordinate", "reward/format")
CHECKED = {"text", "value", "to"}  # fields of a record that the released reward leaves alone
GROUNDING = 0.2
BATCH, FEWEST, LONG = 32, 16, 128  # steps of the recording in a step of training, and of these
WIDTH, HEIGHT = tiny().browser.width, tiny().browser.height
SAID = re.compile(r'<think>[^<]*"(\w+)"[^<]*</think>(<action>[^<]*)\[(\d+), (\d+)\]')
AGENT = ["--agent.kind", "autowebworld", "--agent.no-feedback", "--eval.max-steps", "8", "--eval-size", "8"]
# as recipes.autowebworld_7b; what it leaves open is the tiny recipe's
STEPWISE = [
    *("--rollout.max-steps", "1", "--rollout.stage-steps", "--rollout.no-dynamic"),
    *("--rollout.groups", str(BATCH), "--sampler.temperature", "1"),
    *("--reward.after", "any", "--reward.format-error", "0"),
    *("--loss.weighting", "grpo", "--loss.clip-high", "0.2", "--loss.kl", "0.04"),
    *("--batch.epochs", "1", "--batch.minibatch-turns", "64"),  # there 256
]


@dataclass
class Args:
    sizes: list[int] = field(default_factory=lambda: [8, 64, 512, 4096])
    cells: list[str] = field(default_factory=lambda: list(CELLS))
    online: bool = True
    sites: int = 300
    """How many are made; three in five are for training."""
    orders: int = 300
    """How many are recorded in shops,"""
    updates: int = 600
    """and in how many updates they are cloned."""
    episodes: int = 128
    """Of an evaluation."""
    seed: int = 0
    out: Path = Path("runs/steps")
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    docs: Path = Path("docs")
    """Where the pictures go."""


def worlds(*flags: object) -> None:
    command = [sys.executable, "-m", "minirl.worlds", *map(str, flags)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def sites_of(args: Args) -> Path:
    """Makes the sites, if they are not there; returns their folder."""
    sites = args.out / f"sites{args.sites}"
    if not (sites / "index.html").is_file():
        worlds("make", "--level", "first", "--count", args.sites, "--out", sites)
        folders = sorted((sites / "train").iterdir())
        (sites / "train.jsonl").write_text("".join((one / "tasks.jsonl").read_text() for one in folders))
    return sites


def recorded(folder: Path, tasks: Path | str, *flags: object) -> list[dict[str, Any]]:
    """Records solutions, if they are not there; returns their steps, in the base model's words."""
    if not (folder / "steps.json").is_file():
        size = ["--width", WIDTH, "--height", HEIGHT]
        worlds("record", tasks, "--out", folder, "--grounding", GROUNDING, *size, *flags)
    return [in_own_words(row) for row in json.loads((folder / "steps.json").read_text())]


def in_own_words(row: dict[str, Any]) -> dict[str, Any]:
    def own(match: re.Match[str]) -> str:
        word, action, x, y = match.groups()
        # a quantity is shown as a digit
        word = CHOICES["quantity"]["words"][int(word) - 1] if word.isdigit() else word.lower()
        x, y = (GRID * round(SCALE // GRID * int(at) / side) for at, side in ((x, WIDTH), (y, HEIGHT)))
        return f"<think>choose {word} {x} {y}</think>{action}{pixels(x, y)}"

    said = SAID.sub(own, spell(row["thought"], action_of(row) or {}))
    thought = said.removeprefix("<think>").partition("</think>")[0]
    told = thought if thought.startswith("choose") else "choose"  # an answer looks for nothing
    return row | {"thought": told, "history": SAID.sub(own, row["history"])}


def pixels(x: int, y: int) -> list[int]:
    return [round(x * WIDTH / SCALE), round(y * HEIGHT / SCALE)]


def to_clone(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a step whose click is just where its thought says, so that there is one answer to learn."""
    named = row["thought"].split()[2:]
    return row | {"bbox": 2 * pixels(*map(int, named))} if named else row


def choose(rows: list[dict[str, Any]], size: int, kind: str, seed: int) -> list[dict[str, Any]]:
    """Returns so many steps, a fifth of them for grounding or none. ValueError if there are too few."""
    own, alone = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in rows:
        (alone if row["instruction"].startswith("Click on") else own).append(row)
    extra = round(GROUNDING * size) if kind == "grounding" else 0
    if size - extra > len(own) or extra > len(alone):
        raise ValueError(f"{len(own)} steps and {len(alone)} for grounding are recorded: make more --sites")
    rng = random.Random(f"{seed} {size}")
    return rng.sample(own, size - extra) + rng.sample(alone, extra)


def start(args: Args, bench: learning.Args, heldout: list[str]) -> Run:
    """Teaches the base model the agent's language, if that has not been done; returns the run."""
    run = learning.run_of(bench, f"start_seed{args.seed}")
    if learning.outcome(run, "after SFT") is None:
        folder = args.out / f"shops{args.orders}"
        rows = [to_clone(row) for row in recorded(folder, tiny().task.train, "--count", args.orders)]
        file = folder / "own_words.json"
        file.write_text(json.dumps(rows))
        cloning = ["--sft.max-steps", str(args.updates), "--sft.lr", "1e-3"]
        cloning += ["--task.train-goals", str(len(rows)), "--task.demo-goals", str(len(rows))]
        flags = ["--seed", str(args.seed), "--task.train", str(file), *heldout, *cloning]
        learning.start(bench, run, "sft.py", *AGENT, *flags)
    return run


def cells(args: Args) -> Iterator[tuple[str, Run]]:
    """Trains cell by cell; yields each one's name and run."""
    bench, sites = learning.Args(out=args.out, flags=args.flags), sites_of(args)
    folder = args.out / f"recorded{args.sites}"
    rows = recorded(folder, sites / "train.jsonl", "--sites", *sorted((sites / "train").iterdir()))
    heldout = ["--task.heldout", str(sites / "heldout"), "--eval.episodes", str(args.episodes)]
    first = learning.start_of(start(args, bench, heldout))
    for size in args.sizes:
        for cell in args.cells:
            steps = max(LONG if cell == "longer" else FEWEST, size // BATCH)
            # so many take that long anyway
            name = "steps" if cell == "longer" and steps == size // BATCH else cell
            kind = "grounding" if cell == "grounding" else "steps"
            file, chosen = folder / f"{kind}{size}_{args.seed}.json", choose(rows, size, kind, args.seed)
            file.write_text(json.dumps(chosen))
            if cell == "contents" and not any(row.keys() & CHECKED for row in chosen):
                print(f"contents {size}: no step has a text, a direction or an end", file=sys.stderr)
                continue
            flags = [*AGENT, *STEPWISE, *first, "--steps", str(steps), "--task.train", str(file), *heldout]
            flags += ["--reward.contents"] * (cell == "contents")
            flags += ["--shuffle-rewards"] * (cell == "shuffled")
            yield f"{cell} {size}", learning.train(bench, f"{name}{size}_seed{args.seed}", args.seed, *flags)
    if args.online:
        flags = ["--task.train", str(sites / "train"), *heldout, "--task.demo-goals", "20"]
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
        found[f"{when}_step"] = {name: round(row[name], 3) for name in REWARDS if name in row}
    return found


def draw(found: dict[str, dict[str, Any]], runs: dict[str, Run], docs: Path) -> None:
    """Draws success by the number of steps, and rewards of the largest cells with grounding and without."""
    sizes = sorted({int(name.split()[1]) for name in found if " " in name})
    if not sizes:
        return
    marks = {size: math.log2(size) for size in sizes}
    before = next(one["before"][0] for name, one in found.items() if " " in name)
    curves = [Curve("before", [(mark, before) for mark in marks.values()], "#999999", True)]
    for cell, colour in zip(CELLS, COLOURS, strict=False):
        seen = {mark: found.get(f"{cell} {size}") for size, mark in marks.items()}
        points = [(mark, one["after"][0]) for mark, one in seen.items() if one]
        curves += [Curve(cell, points, colour)] if points else []
    title = "Success on held-out sites after step-wise GRPO, and before (dashed)"
    named = {mark: f"{size:,}" for size, mark in marks.items()}
    (docs / "steps.svg").write_text(lines(title, curves, "recorded steps", named))

    most, curves = sizes[-1], list[Curve]()
    for cell in ("steps", "grounding"):
        metrics = runs[f"{cell} {most}"].metrics() if f"{cell} {most}" in runs else []
        for name, colour in zip(REWARDS, COLOURS, strict=False):
            points = [  # means of eight steps
                (some[-1]["step"], mean(row[name] for row in some))
                for some in (metrics[n : n + 8] for n in range(0, len(metrics), 8))
            ]
            curves.append(Curve(name.removeprefix("reward/"), points, colour, cell == "steps"))
    title = f"Rewards in training on {most:,} steps, with steps for grounding, and without (dashed)"
    every = range(0, max(FEWEST, most // BATCH) + 1, 16)
    (docs / "steps_rewards.svg").write_text(lines(title, curves, "training step", every))


def main() -> None:
    args, found, runs = tyro.cli(Args), dict[str, dict[str, Any]](), dict[str, Run]()
    for name, run in cells(args):
        found[name], runs[name] = measured(run), run
        print(name, json.dumps(found[name]), file=sys.stderr)
        draw(found, runs, args.docs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
