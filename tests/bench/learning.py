"""Does reinforcement teach what imitation left out? The whole loop, per seed, against a control.

    python tests/bench/learning.py --seeds 0 1 2
    python tests/bench/learning.py --recipe tiny-text --seeds 0 1 2 --baselines

For every seed: warm start, evaluate, reinforce, evaluate; and once more from the same warm start with the
rewards permuted within each group, which keeps everything but the information. Held-out goals, one episode
each. With --baselines the first seed's warm start is also reinforced by filtered behaviour cloning and by
AWR, as WebAgent-R1 compares itself with (section 4), for as many steps; cloning takes no dynamic sampling, so
it gets the episodes that the first run spent on that as further groups.

Every run is a subprocess of train.py in its own folder; one that is there already is not repeated, and one
that was interrupted goes on from its last checkpoint, so the script can be stopped at any time.

The last line is JSON: success rates per seed, mean gains in percentage points.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import tyro

from minirl.checkpoint import checkpoints
from minirl.run_folder import Run

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Args:
    seeds: list[int] = field(default_factory=lambda: [0])
    recipe: str = "tiny"
    out: Path = Path("runs/learning")
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    control: bool = True
    """Train with permuted rewards, too."""
    baselines: bool = False
    """Train with filtered behaviour cloning and AWR, too, with the first seed."""


def outcome(run: Run, label: str) -> float | None:
    """The success rate recorded under a label, or None if that evaluation has not been made."""
    found = [row["success"] for row in run.evals() if row["label"] == label]
    return found[-1] if found else None


def train(args: Args, name: str, seed: int, *flags: str) -> Run:
    """Runs train.py to its end, from wherever an earlier call has left it. Other recipe or flags, other
    folder."""
    run = run_of(args, name)
    if outcome(run, "after RL") is None:
        resume = ["--resume"] if checkpoints(run.checkpoint_dir) else []
        seeds = ["--seed", str(seed), "--task.seed", str(seed)]
        place = ["--out", str(run.root.parent), "--name", run.root.name]
        command = [sys.executable, str(ROOT / "train.py"), args.recipe, *seeds, *place, *flags, *resume]
        subprocess.run(command + args.flags.split(), check=True, stdout=sys.stderr)
    return run


def run_of(args: Args, name: str) -> Run:
    return Run(args.out / args.recipe / (name + suffix(args.flags)))


def suffix(flags: str) -> str:
    """What the folders of runs with these flags end with."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", flags)


def start_of(run: Run) -> list[str]:
    """Flags that let another run begin with what this one had cloned."""
    return ["--warm-start", str(run.checkpoint_dir / "sft")]


def baselines(run: Run) -> dict[str, list[str]]:
    """Flags of the methods that are compared with a run."""
    groups = round(mean(row["groups_kept"] + row["groups_dropped"] for row in run.metrics()))
    cloned = ["--loss.method", "filtered-bc", "--rollout.no-dynamic", "--rollout.groups", str(groups)]
    return {"filtered-bc": [*cloned, "--loss.kl", "0"], "awr": ["--loss.method", "awr", "--loss.kl", "0"]}


def episodes(run: Run) -> int:
    """How many it has learned from, or sampled and dropped."""
    return sum(row["episodes"] for row in run.metrics())


def main() -> None:
    args = tyro.cli(Args)
    sft, rl, control = [], [], []
    runs: list[Run] = []
    for seed in args.seeds:
        learned = train(args, f"seed{seed}", seed)
        runs.append(learned)
        sft.append(outcome(learned, "after SFT"))
        rl.append(outcome(learned, "after RL"))
        if args.control:
            permuted = train(args, f"seed{seed}_control", seed, *start_of(learned), "--shuffle-rewards")
            control.append(outcome(permuted, "after RL"))
    result: dict[str, Any] = {"sft": sft, "rl": rl, "gain": gain(sft, rl)}
    if args.control:
        result["control_gain"] = gain(sft, control)
    if args.baselines:
        seed, start = args.seeds[0], start_of(runs[0])
        result["episodes"] = {"rl": episodes(runs[0])}
        for method, flags in baselines(runs[0]).items():
            run = train(args, f"seed{seed}_{method}", seed, *start, *flags)
            result[method], result["episodes"][method] = outcome(run, "after RL"), episodes(run)
    print(json.dumps(result))


def gain(before: list[float], after: list[float]) -> float:
    """Mean, in percentage points."""
    return round(mean(100 * (b - a) for a, b in zip(before, after, strict=True)), 2)


if __name__ == "__main__":
    main()
