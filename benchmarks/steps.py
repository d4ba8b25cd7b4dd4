"""How far do recorded steps take a small model that sees? Judged on live sites that it never met.

    python benchmarks/steps.py                          all cells: hours
    python benchmarks/steps.py --sizes 8 64 --no-online

As in AutoWebWorld (sections 5.3 and 5.4) one model begins every cell, which knows the agent's language and
no site. There it is Qwen2.5-VL; here the tiny recipe's base model, which has not met that language (a loss of
21.6 on its first steps), so it clones recorded solutions in shops first. Then solutions on sites of the first
level are recorded, and a cell learns from so many of their steps by step-wise GRPO, without a browser. Before
and behind that the agent browses held-out sites of other themes, whose machines judge it:

    steps       recorded steps alone; action, coordinate and format are rewarded as by the released code
    grounding   a fifth of them replaced by steps that are asked for by themselves
    longer      as the first, but few steps are trained on as long as 4,096: is it the steps or the updates?
    shuffled    as the first with each group's rewards permuted: the control

and, without recorded steps, `online` and `online_shuffled`: the tiny recipe on the same sites, with a fifth
of its demonstrations, since a hundred leave little to learn (83.3% in docs/results.md).
All steps are seen once, as there, 32 at a time; few ones again and again, until there were 16 times, or 128.
Thoughts are put into the words that the base model was taught, "choose delta 220 160".

Every cell is a run of train.py as in learning.py: found again if it is there, gone on with if it was
interrupted; other numbers want another --out. The last line is JSON, by cell: the success rates with their
intervals, and the rewards of the first and the last step.
"""

from __future__ import annotations

import json
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

from minirl.agents.autowebworld import action_of, spell
from minirl.agents.openwebrl_actions import SCALE
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.worlds.hand import GRID
from minirl.worlds.shop import CHOICES

CELLS = ("steps", "grounding", "longer", "shuffled")
LABELS = {"before training": "base", "after SFT": "before", "after RL": "after"}
REWARDS = ("reward", "reward/action", "reward/coordinate", "reward/format")
GROUNDING = 0.2
BATCH = 32  # steps of the recording in a step of training
FEWEST = 16  # of these
LONG = 128  # of these, where a cell trains for longer
WIDTH = tiny().browser.width
HEIGHT = tiny().browser.height
THOUGHT = re.compile(r'<think>[^<]*"(\w+)"[^<]*</think>(<action>[^<]*)\[(\d+), (\d+)\]')
AGENT = ["--agent.kind", "autowebworld", "--agent.no-feedback", "--eval.max-steps", "8"]
# as recipes.autowebworld_7b; what it leaves open is the tiny recipe's
STEPWISE = [
    *("--rollout.max-steps", "1", "--rollout.no-dynamic"),
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
    """Further flags for train.py, separated by blanks: --flags="--rollout.group 4"."""


def worlds(*flags: object) -> None:
    command = [sys.executable, "-m", "minirl.worlds", *map(str, flags)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def sites_of(args: Args) -> Path:
    """Makes the sites, if they are not there; returns their folder."""
    sites = args.out / f"sites{args.sites}"
    if not (sites / "train.jsonl").is_file():
        worlds("make", "--level", "first", "--count", args.sites, "--out", sites)
        folders = sorted((sites / "train").iterdir())
        (sites / "train.jsonl").write_text("".join((one / "tasks.jsonl").read_text() for one in folders))
    return sites


def recorded(folder: Path, tasks: Path | str, *flags: object) -> list[dict[str, Any]]:
    """Records solutions, if they are not there; returns their steps, in the base model's words."""
    if not (folder / "steps.json").is_file():
        size = ["--browser.width", WIDTH, "--browser.height", HEIGHT]
        worlds("record", tasks, "--out", folder, "--grounding", GROUNDING, *size, *flags)
    return [in_own_words(row) for row in json.loads((folder / "steps.json").read_text())]


def in_own_words(row: dict[str, Any]) -> dict[str, Any]:
    def as_taught(match: re.Match[str]) -> str:
        word, action, x, y = match.groups()
        # a quantity is shown as a digit
        word = CHOICES["quantity"]["words"][int(word) - 1] if word.isdigit() else word.lower()
        x, y = (GRID * round(SCALE // GRID * int(at) / side) for at, side in ((x, WIDTH), (y, HEIGHT)))
        return f"<think>choose {word} {x} {y}</think>{action}{pixels(x, y)}"

    response = THOUGHT.sub(as_taught, spell(row["thought"], action_of(row) or {}))
    thought = response.removeprefix("<think>").partition("</think>")[0]
    words = thought if thought.startswith("choose") else "choose"  # an answer looks for nothing
    return row | {"thought": words, "history": THOUGHT.sub(as_taught, row["history"])}


def pixels(x: int, y: int) -> list[int]:
    return [round(x * WIDTH / SCALE), round(y * HEIGHT / SCALE)]


def to_clone(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a step whose click is just where its thought says, so that there is one answer to learn."""
    named = row["thought"].split()[2:]
    if not named:
        return row
    x, y = pixels(*map(int, named))
    return row | {"bbox": [x - 1, y - 1, x + 1, y + 1]}  # the smallest box that a record may have


def choose(rows: list[dict[str, Any]], size: int, kind: str, seed: int) -> list[dict[str, Any]]:
    """Returns so many steps, a fifth of them for grounding or none. ValueError if there are too few."""
    steps = list[dict[str, Any]]()
    alone = list[dict[str, Any]]()
    for row in rows:
        (alone if row["instruction"].startswith("Click on") else steps).append(row)
    extra = round(GROUNDING * size) if kind == "grounding" else 0
    if size - extra > len(steps) or extra > len(alone):
        raise ValueError(f"{len(steps)} steps and {len(alone)} for grounding are recorded: make more --sites")
    rng = random.Random(f"{seed} {size}")
    return rng.sample(steps, size - extra) + rng.sample(alone, extra)


def start(args: Args, bench: learning.Args, heldout: list[str]) -> Run:
    """Teaches the base model the agent's language, if that has not been done; returns the run."""
    run = learning.run_of(bench, f"start_seed{args.seed}")
    if learning.outcome(run, "after SFT") is None:
        folder = args.out / f"shops{args.orders}"
        rows = [to_clone(row) for row in recorded(folder, tiny().task.train, "--count", args.orders)]
        file = folder / "own_words.json"
        file.write_text(json.dumps(rows))
        cloning = ["--sft.max-steps", str(args.updates), "--sft.lr", "1e-3"]
        cloning += ["--task.demo-goals", str(len(rows))]
        flags = ["--seed", str(args.seed), "--task.train", str(file), *heldout, *cloning]
        learning.start(bench, run, "sft.py", *AGENT, *flags)
    return run


def cells(args: Args) -> Iterator[tuple[str, Run]]:
    """Trains cell by cell; yields each one's name and run."""
    bench = learning.Args(out=args.out, flags=args.flags)
    sites = sites_of(args)
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
            file = folder / f"{kind}{size}_{args.seed}.json"
            chosen = choose(rows, size, kind, args.seed)
            file.write_text(json.dumps(chosen))
            flags = [*AGENT, *STEPWISE, *first, "--steps", str(steps), "--task.train", str(file), *heldout]
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
    figures: dict[str, Any] = {
        name: [round(row[key], 4) for key in ("success", "low", "high")] for name, row in evals.items()
    }
    metrics = run.metrics()
    for when, row in (("first", metrics[0]), ("last", metrics[-1])):
        figures[f"{when}_step"] = {name: round(row[name], 3) for name in REWARDS if name in row}
    return figures


def main() -> None:
    args = tyro.cli(Args)
    results = dict[str, dict[str, Any]]()
    for name, run in cells(args):
        results[name] = measured(run)
        print(name, json.dumps(results[name]), file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
