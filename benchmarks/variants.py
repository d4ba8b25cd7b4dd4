"""WebAgent-R1's ablations in small: R1, R1-Zero and R1-CoT, with and without thoughts (its figures 3 to 5,
table 3).

    python benchmarks/variants.py

Each variant is one run of train.py, as in learning.py: found again if it is there, and gone on with if it was
interrupted; R1 is the very run of learning.py. Zero starts from a model that has cloned for only as long as
it takes to succeed at all, as the paper's base model does (6.1%): random weights never write an action.
CoT's thoughts come from a scripted endpoint, which repeats the task before it names the element; there is no
CoT without thoughts. Zero takes every group, as the paper does: where next to nothing succeeds dynamic
sampling would search for hours. The table has success, response length and turns before and after
reinforcement, and for R1 how success grows with the turns that are allowed; a variant that found no group
to learn from has no second row. The last line is JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import learning  # noqa: E402
from endpoint_server import say, serve  # noqa: E402

from minirl.checkpoint import checkpoints  # noqa: E402
from minirl.evaluation.results import read_results  # noqa: E402
from minirl.evaluation.tables import within  # noqa: E402
from minirl.run_folder import Run  # noqa: E402

# So that few episodes succeed at first: after 4 updates none of 64, after 6 10 and 18% of 128 (seeds 0, 1)
ZERO = ["--sft.max-steps", "5", "--rollout.no-dynamic"]
TEACHER = "scripted"
BUDGETS = (5, 8, 10, 20, 30)  # turns that R1 is allowed, which was trained with 10


Variant = Literal["R1", "R1, no thoughts", "CoT", "Zero", "Zero, no thoughts"]


@dataclass
class Args:
    variants: list[Variant] = field(default_factory=lambda: list(get_args(Variant)))
    seed: int = 0
    out: Path = Path("runs/learning")
    flags: str = ""
    """Further flags for train.py, separated by blanks: --flags="--steps 10"."""


def thought(request: dict[str, Any]) -> str:
    """The task again, then the element that the demonstration's next action is about."""
    asked = request["messages"][0]["content"][0]["text"]
    task = asked.partition("this request:")[2].strip().splitlines()[0]
    action = re.findall(r"^and do: (.*)$", asked, flags=re.MULTILINE)[-1]
    number = re.search(r'element="(\d+)"', action)
    match = re.search(rf'id="{number[1]}"[^>]*>(?: <span[^>]*>)? ?([^<]*?) ?<', asked) if number else None
    return f"{task} # Element: {match[1] if match else 'done'}"


def demos_with_thoughts(run: Run, url: str) -> Path:
    """R1's demonstrations, with the thoughts of the endpoint."""
    script = learning.ROOT / "examples/chain_of_thought/rewrite.py"
    endpoint = ["--endpoint.url", url, "--endpoint.model", TEACHER]
    command = [sys.executable, script, run.trajectory_path("demos"), *endpoint]
    subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    return run.trajectory_path("demos_thoughts")


def measured(run: Run, label: str) -> dict[str, float]:
    """Of an evaluation: success, tokens a response, turns an episode."""
    trajectories = [t for t in run.load_trajectories(label) if t.valid]
    return {
        "success": round(mean(t.success for t in trajectories), 3),
        "tokens": round(
            sum(t.response_tokens for t in trajectories) / sum(len(t.turns) for t in trajectories), 1
        ),
        "turns": round(mean(len(t.turns) for t in trajectories), 2),
    }


def curve(run: Run, weights: Path, flags: str) -> dict[int, float]:
    """Success within so many turns of what a run has saved, on its held-out tasks."""
    place = ["--name", str(run.root.resolve()), "--model.path", str(weights)]
    budgets = ["--success-within", *map(str, BUDGETS)]
    command = [sys.executable, str(learning.ROOT / "eval.py"), "tiny-text", *place, *flags.split(), *budgets]
    subprocess.run(command, check=True, stdout=sys.stderr)
    files = run.root.with_name(f"{run.root.name}-eval").glob(f"results-eval_{weights.name}*.json")
    newest = max(files, key=lambda path: path.stat().st_mtime)  # written just now
    results = read_results(newest).results
    valid = [r for r in results if r.stop.is_agent_fault]
    return {most: round(mean(r.success for r in within(valid, most)), 3) for most in BUDGETS}


def main() -> None:
    args = tyro.cli(Args)
    bench = learning.Args(recipe="tiny-text", out=args.out, flags=args.flags)
    rows: dict[str, Any] = {}
    with serve([say(thought)]) as server:
        longer = ["--agent.response-tokens", "80", "--eval.response-tokens", "80"]
        flags_of: dict[Variant, list[str]] = {
            "R1": [],
            "R1, no thoughts": ["--agent.answers", "action"],
            "CoT": longer,
            "Zero": ZERO,
            "Zero, no thoughts": [*ZERO, "--agent.answers", "action"],
        }
        for name in args.variants:
            folder = "_".join([f"seed{args.seed}", *re.findall(r"\w+", name.removeprefix("R1").lower())])
            flags = flags_of[name]
            if name == "CoT":
                base = learning.train(bench, f"seed{args.seed}", args.seed)
                flags = [*flags, "--sft.demos", str(demos_with_thoughts(base, server.url))]
            run = learning.train_as_far_as_it_goes(bench, folder, args.seed, *flags)
            rows[name] = {"before": measured(run, "after_sft")}
            if run.metrics():  # else it found no group to learn from
                rows[name]["after"] = measured(run, "after_rl")
            if name == "R1":
                ends = {"before": run.checkpoint_dir / "sft", "after": checkpoints(run.checkpoint_dir)[-1]}
                for when, weights in ends.items():
                    rows[name][when]["within"] = curve(run, weights, args.flags)
    Console(stderr=True).print(table_of(rows))
    print(json.dumps(rows))


def table_of(rows: dict[str, Any]) -> Table:
    budgets = BUDGETS if "R1" in rows else ()
    table = Table("", "", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits into 80 columns
    for title in ("success", "tokens", "turns", *(f"in {most}" for most in budgets)):
        table.add_column(title, justify="right")
    for name, row in rows.items():
        for when, figures in row.items():
            grown = figures.get("within", {})
            cells = [f"{figures['success']:.1%}", f"{figures['tokens']:.1f}", f"{figures['turns']:.1f}"]
            cells += [f"{grown[most]:.1%}" if grown else "" for most in budgets]
            table.add_row(name if when == "before" else "", when, *cells)
    return table


if __name__ == "__main__":
    main()
