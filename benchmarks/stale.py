"""How far each loss drifts from a sampler that is never given new weights.

    python benchmarks/stale.py runs/tiny

The first step's episodes of a run are trained on again and again, one pass after another from the run's
warm start, at a constant rate, so that the sampler is staler with every minibatch. Drift is the mean over
response tokens of |log-prob now - log-prob when sampled| at the beginning of a pass, in nats; it is shown
with the share of clipped tokens, both as means over all passes but the first.

The last line is JSON: drift and clipped share by loss, and the drift pass by pass.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minirl.run_folder import Run

ROOT = Path(__file__).parents[1]
LOSSES = {
    "OpenWebRL's": "",
    "the same, dual clip at 3": "--loss.dual-clip 3",
    "mean over all tokens": "--loss.weighting token-mean",
    "WebAgent-R1's, KL 0.001": "--loss.weighting webagent-r1 --loss.clip-high 0.2 --loss.kl 0.001",
    "AutoWebWorld's, KL 0.04": "--loss.weighting grpo --loss.clip-high 0.2 --loss.kl 0.04",
}


@dataclass
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """A finished run of train.py tiny, of at most ten steps or with --rollout.dump-all."""
    passes: int = 6


def copy_first_step(run: Path, passes: int, folder: Path) -> None:
    """Make a run folder that has the first step's episodes as often as there are passes."""
    for part in ("model", "screenshots"):
        shutil.copytree(run / part, folder / part)
    shutil.copy(run / "config.json", folder)
    (folder / "trajectories").mkdir()
    for step in range(1, passes + 1):
        shutil.copy(run / "trajectories/step_00001.jsonl", folder / f"trajectories/step_{step:05}.jsonl")


def replay(args: Args, name: str, flags: str, folder: Path) -> Run:
    """Train on the copies with a loss; return the run."""
    out = folder / name.replace(" ", "_").replace("'", "")
    start = ["--warm-start", str(args.run / "checkpoints/sft"), "--replay", str(folder / "copies")]
    rest = ["--steps", str(args.passes), "--batch.epochs", "1", "--optim.no-decay"]
    command = [sys.executable, str(ROOT / "train.py"), "tiny", "--name", str(out), *start, *rest]
    env = {"OMP_NUM_THREADS": "1"} | os.environ
    subprocess.run(command + flags.split(), check=True, stdout=sys.stderr, env=env)
    return Run(out)


def main() -> None:
    args = tyro.cli(Args)
    table = Table("loss", "drift", "clipped", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "copies").mkdir()
        copy_first_step(args.run, args.passes, folder / "copies")
        for loss, flags in LOSSES.items():
            rows = replay(args, loss, flags, folder).metrics()
            drifts = [round(row["mismatch_mean"], 4) for row in rows]
            drift = mean(drifts[1:])
            clipped = mean(row["clip_fraction"] for row in rows[1:])
            result[loss] = {"drift": drift, "clipped": clipped, "passes": drifts}
            table.add_row(loss, f"{drift:.3f}", f"{clipped:.1%}")
    Console(stderr=True).print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
