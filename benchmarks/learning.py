"""Does reinforcement teach what imitation left out? The whole loop, per seed, against a control.

    python benchmarks/learning.py --seeds 2 3 4 5 6
    python benchmarks/learning.py --recipe tiny-text --seeds 0 1 2 --baselines

For every seed: warm start, evaluate, reinforce, evaluate; once more from the same warm start with the
rewards permuted within each group, which keeps everything but the information; and once with cloning going
on for as many minutes as reinforcement took. Held-out shops, one episode each. With --baselines the first
seed's warm start is also reinforced by filtered behaviour cloning and by AWR, for as many steps: two of the
four that WebAgent-R1 compares itself with (section 3.2); DigiRL and WebRL are not here. Cloning takes no
dynamic sampling, so it gets the episodes that the first run spent on that as further groups.

Every run is a subprocess of train.py in its own folder; one that is there already is not repeated, and one
that was interrupted goes on from its last checkpoint, so the script can be stopped at any time.

The last line is JSON: success rates and minutes per seed, mean gains in percentage points, and how fast the
machine is: seconds for a fixed matrix product and for opening a fixed page, timed in this call.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import tyro

from minirl.browser.pool import BrowserPool
from minirl.checkpoint import checkpoints
from minirl.recipes import tiny
from minirl.run_folder import Run, append_line, read_records
from minirl.worlds.render import SiteServer
from minirl.worlds.shop import make_shop

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Args:
    seeds: list[int] = field(default_factory=lambda: [0])
    recipe: str = "tiny"
    out: Path = Path("runs/learning")
    ranks: int = 2
    """Processes, as of `make train`."""
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""
    control: bool = True
    """Train with permuted rewards, and clone on, too."""
    cloning_seconds: float = 0.35
    """How long an update of cloning takes: the warm start's progress shows it."""
    baselines: bool = False
    """Train with filtered behaviour cloning and AWR, too, with the first seed."""


def outcome(run: Run, label: str) -> float | None:
    """The success rate recorded under a label, or None if that evaluation has not been made."""
    rates = [row["success"] for row in run.evals() if row["label"] == label]
    return rates[-1] if rates else None


def train(args: Args, name: str, seed: int, *flags: str) -> Run:
    """Runs train.py to its end, from wherever an earlier call has left it. Other recipe or flags, other
    folder."""
    run = run_of(args, name)
    if outcome(run, "after RL") is None:
        resume = ["--resume"] if checkpoints(run.checkpoint_dir) else []
        start(args, run, "train.py", "--seed", str(seed), *flags, *resume)
    return run


def train_as_far_as_it_goes(args: Args, name: str, seed: int, *flags: str) -> Run:
    """The same, for a run that may find no group to learn from, and ends there."""
    try:
        return train(args, name, seed, *flags)
    except subprocess.CalledProcessError:  # train.py has told why; what it has learned so far is there
        print(f"{name} ended before its last step", file=sys.stderr)
        return run_of(args, name)


def start(args: Args, run: Run, script: str, *flags: str) -> None:
    """Runs a script to its end, and notes its minutes in the run's folder."""
    place = ["--name", str(run.root.resolve())]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    command = [sys.executable, *launcher, str(ROOT / script), args.recipe, *place]
    started = time.monotonic()
    try:
        # the last of two flags counts: what a cell or a control sets is its own
        subprocess.run([*command, *args.flags.split(), *flags], check=True, stdout=sys.stderr)
    finally:
        append_line(run.root / "minutes.jsonl", {"minutes": (time.monotonic() - started) / 60})


def minutes(run: Run) -> float:
    """All that were spent on a run."""
    rows = read_records(run.root / "minutes.jsonl", dict[str, float])
    return round(sum(row["minutes"] for row in rows), 1)


def clone_on(args: Args, learned: Run, seed: int) -> Run:
    """Clones the same demonstrations, none held back, for as many more updates as take the time that
    reinforcement took; how long one takes is told, for it is not known before."""
    updates = learned.config()["sft"]["max_steps"] + updates_of(learned, args.cloning_seconds)
    demos = str(learned.trajectory_path("demos"))
    return clone(args, f"seed{seed}_cloned", seed, *cloning(demos, updates))


def updates_of(learned: Run, cloning_seconds: float) -> int:
    """How many updates of cloning take the time of a run's reinforcement."""
    return round(sum(row["seconds/total"] for row in learned.metrics()) / cloning_seconds)


def cloning(demos: str, updates: int, held_back: float = 0.0) -> list[str]:
    """Flags that clone a dump for so many updates; the least loss on what is held back is kept."""
    as_long = ["--sft.epochs", str(updates), "--sft.max-steps", str(updates)]
    return ["--sft.held-back", str(held_back), *as_long, "--sft.demos", demos]


def clone(args: Args, name: str, seed: int, *flags: str) -> Run:
    """Runs sft.py, if it was not run yet."""
    run = run_of(args, name)
    if outcome(run, "after SFT") is None:
        start(args, run, "sft.py", "--seed", str(seed), *flags)
    return run


def machine() -> dict[str, float]:
    """Seconds for ten products of 1024 x 1024 matrices on a core, and for opening a shop's page ten times."""
    torch.set_num_threads(1)
    matrix = torch.ones(1024, 1024)
    matrix @ matrix
    started = time.perf_counter()
    for _ in range(10):
        matrix @ matrix
    product = time.perf_counter() - started

    async def pages() -> float:
        with SiteServer([make_shop(0)]) as server:
            async with (
                BrowserPool(tiny().browser, server.sites, sealed=True) as pool,
                pool.session() as session,
            ):
                await session.start("http://shop-0.test/")
                started = time.perf_counter()
                for _ in range(10):
                    await session.goto("http://shop-0.test/")
                return time.perf_counter() - started

    return {"ten_products": round(product, 3), "ten_pages": round(asyncio.run(pages()), 3)}


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
    sft = []
    rl = []
    control = []
    cloned = []
    speed = machine()
    runs: list[Run] = []
    for seed in args.seeds:
        learned = train(args, f"seed{seed}", seed)
        runs.append(learned)
        sft.append(outcome(learned, "after SFT"))
        rl.append(outcome(learned, "after RL"))
        if args.control:
            permuted = train(args, f"seed{seed}_control", seed, *start_of(learned), "--shuffle-rewards")
            control.append(outcome(permuted, "after RL"))
            cloned.append(outcome(clone_on(args, learned, seed), "after SFT"))
    result: dict[str, Any] = {
        "sft": sft,
        "rl": rl,
        "gain": gain(sft, rl),
        "minutes": list(map(minutes, runs)),
    }
    result |= speed
    if args.control:
        result |= {"control": control, "control_gain": gain(sft, control)}
        result |= {"cloned": cloned, "cloned_gain": gain(sft, cloned)}
    if args.baselines:
        seed = args.seeds[0]
        start = start_of(runs[0])
        result["episodes"] = {"rl": episodes(runs[0])}
        for method, flags in baselines(runs[0]).items():
            run = train(args, f"seed{seed}_{method}", seed, *start, *flags)
            result[method] = outcome(run, "after RL")
            result["episodes"][method] = episodes(run)
    print(json.dumps(result))


def gain(before: list[float], after: list[float]) -> float:
    """Mean, in percentage points."""
    return round(mean(100 * (b - a) for a, b in zip(before, after, strict=True)), 2)


if __name__ == "__main__":
    main()
