"""Does reinforcement teach what imitation left out? The whole loop, per seed, against a control.

    python tests/bench/learning.py --seeds 0 1 2

For every seed: warm start, evaluate, reinforce, evaluate; and once more from the same warm start with the
rewards permuted within each group, which keeps everything but the information. Held-out goals, one episode
each. Every run is a subprocess of train.py in its own folder; one that is there already is not repeated,
and one that was interrupted goes on from its last checkpoint, so the script can be stopped at any time.

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

import tyro

from minirl.checkpoint import checkpoints
from minirl.store import Run

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Args:
    seeds: list[int] = field(default_factory=lambda: [0])
    recipe: str = "tiny"
    out: Path = Path("runs/learning")
    flags: str = ""
    """Further flags for train.py, separated by blanks."""


def outcome(run: Run, label: str) -> float | None:
    """The success rate recorded under a label, or None if that evaluation has not been made."""
    found = [row["success"] for row in run.evals() if row["label"] == label]
    return found[-1] if found else None


def train(args: Args, name: str, seed: int, *flags: str) -> Run:
    """Runs train.py to its end, from wherever an earlier call has left it. Other flags, other folder."""
    name += re.sub(r"[^A-Za-z0-9.]+", "-", args.flags)
    run = Run(args.out / name)
    if outcome(run, "after RL") is None:
        resume = ["--resume"] if checkpoints(run.checkpoint_dir) else []
        seeds = ["--seed", str(seed), "--task.seed", str(seed)]
        place = ["--out", str(args.out), "--name", name]
        command = [sys.executable, str(ROOT / "train.py"), args.recipe, *seeds, *place, *flags, *resume]
        subprocess.run(command + args.flags.split(), check=True, stdout=sys.stderr)
    return run


def main() -> None:
    args = tyro.cli(Args)
    sft, rl, control = [], [], []
    for seed in args.seeds:
        learned = train(args, f"seed{seed}", seed)
        start = learned.checkpoint_dir / "sft"
        permuted = train(args, f"seed{seed}_control", seed, "--warm-start", str(start), "--shuffle-rewards")
        sft.append(outcome(learned, "after SFT"))
        rl.append(outcome(learned, "after RL"))
        control.append(outcome(permuted, "after RL"))
    gains = [100 * (after - before) for before, after in zip(sft, rl, strict=True)]
    control_gains = [100 * (after - before) for before, after in zip(sft, control, strict=True)]
    result = {
        "sft": sft,
        "rl": rl,
        "gain": round(mean(gains), 2),
        "control_gain": round(mean(control_gains), 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
