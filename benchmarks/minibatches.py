"""What would minibatches of single turns cost? The tokens in prefix trees, against whole trajectories.

    python benchmarks/minibatches.py [--run runs/tiny]

OpenWebRL's released code shuffles the turns of a step and leaves an incomplete last minibatch out; here a
minibatch is whole trajectories (minirl/rows.py). A step of 48 groups of 5, at OpenWebRL's lengths divided by
8, in minibatches of 256 turns; with `--run` also the dumped steps of a run, in those of its recipe. Nothing
is computed but the layout. The last line is JSON: updates, turns trained, and tokens for each of these.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from tree import GROUP, Lengths, trajectory_rows

from minirl.advantages import assign_advantages
from minirl.config import LossConfig
from minirl.model import load_preprocessor
from minirl.prefix_tree import micro_batches
from minirl.recipes import RECIPES
from minirl.rows import TrajectoryRows, make_rows, minibatches
from minirl.run_folder import Run

SCALE = 8
NO_PAD = -1  # no token of these rows is an image's


@dataclass
class Args:
    turns: tuple[int, ...] = (15, 30)
    groups: int = 48
    minibatch: int = 256
    run: Path | None = None


def single_turns(trajectories: Sequence[TrajectoryRows], turns: int, seed: int) -> list[list[TrajectoryRows]]:
    """Return single turns in random order, `turns` at a time, without the rest; all if there are fewer."""
    single = []
    for trajectory in trajectories:
        single += [TrajectoryRows(trajectory.group, (row,)) for row in trajectory.rows]
    random.Random(seed).shuffle(single)
    full = max(1, len(single) // turns)
    return [single[n * turns : (n + 1) * turns] for n in range(full)]


def count(steps: Iterable[Sequence[TrajectoryRows]], turns: int, budget: int, pad: int) -> dict[str, float]:
    """Return what an epoch over each step takes with both kinds of minibatches."""
    steps = list(steps)
    results: dict[str, float] = {}
    for name, cut in (("whole", minibatches), ("single", single_turns)):
        updates = rows_trained = tokens = 0
        for seed, trajectories in enumerate(steps):
            for minibatch in cut(trajectories, turns, seed):
                rows = [row for trajectory in minibatch for row in trajectory.rows]
                updates += 1
                rows_trained += len(rows)
                tokens += sum(part.tokens for part in micro_batches(rows, budget, pad, budget))
        per_turn = round(tokens / rows_trained, 1)
        results |= {f"{name}_updates": updates, f"{name}_turns": rows_trained, f"{name}_tokens": per_turn}
    results["ratio"] = round(results["single_tokens"] / results["whole_tokens"], 2)
    return results


def main(args: Args) -> None:
    results = {}
    budget = RECIPES["openwebrl_4b"]().batch.micro_tokens // SCALE
    for turns in args.turns:
        rows = trajectory_rows(Lengths().divided(SCALE), turns, args.groups * GROUP)
        step = [TrajectoryRows(n // turns, rows[n : n + turns]) for n in range(0, len(rows), turns)]
        results[f"{turns} turns"] = count([step], args.minibatch, budget, NO_PAD)
    if args.run:
        run = Run(args.run)
        config = RECIPES[run.config()["recipe"]]()
        preprocessor = load_preprocessor(replace(config.model, path=str(args.run / "model")))
        steps = []
        for label in run.step_labels():
            groups = assign_advantages(run.load_groups(label), LossConfig())
            steps.append(make_rows(groups, LossConfig()))
        results[str(args.run)] = count(
            steps, config.batch.minibatch_turns, config.batch.micro_tokens, preprocessor.pad
        )
    for name, numbers in results.items():
        print(name, *(f"{key} {value}" for key, value in numbers.items()))
    print(json.dumps(results))


if __name__ == "__main__":
    main(tyro.cli(Args))
