"""The papers' ablations in small, cell by cell, in one table.

    python benchmarks/ablations.py --only "table 4" --budget-minutes 60
    python benchmarks/ablations.py --list --earlier docs/ablations.json --plot docs/ablations.svg

A cell is one run of train.py from the warm start of its recipe's own run (benchmarks/learning.py makes it, or
finds it), with some flags; where the flags change what an agent sees or says, the cell clones the same
demonstrations anew. Seeds 0 and 1; the cells of the papers' main claims take five. All cells come with seed 0
first, in the order of these claims, then with the next seed. One that is there is not repeated, one that was
interrupted goes on, so the script can be stopped at any time; none begins that is expected to end after the
budget. Absent cells are listed as such. The second command draws what docs/ablations.json has.

WebAgent-R1's figures 4 and 5 and table 3 are benchmarks/variants.py, AutoWebWorld's figures 4 and 5
benchmarks/steps.py, the judge's curves benchmarks/judges.py. The last line is JSON: success by cell and seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import learning
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from minirl.judges.intervals import wilson
from minirl.run_folder import Run, write_atomic

SITES = ["--task.train", "sites/train", "--task.heldout", "sites/heldout", "--eval.episodes", "96"]


Figures = list[dict[str, Any] | None]  # of a cell's seeds: success before and after; None where it is absent


class Cell(NamedTuple):
    part: str  # the table or figure
    name: str
    flags: list[str]
    recipe: str = "tiny"
    own_start: bool = False  # what it sees or says is another, so that it clones by itself
    method: str = ""  # of learning.baselines, which count the recipe's own episodes first
    seeds: tuple[int, ...] = (0, 1)


FIVE = (0, 1, 2, 3, 4)
FIXED = ["--rollout.no-dynamic"]
# from as many more shops, so that as few of the demonstrations are of long orders as in the recipe
MANY = ["--task.train", "shops:600-1799", "--task.demo-goals", "400"]
CELLS = [
    Cell("OpenWebRL, table 4", "as the recipe has it", [], seeds=FIVE),
    Cell("OpenWebRL, table 4", "without feedback", ["--agent.no-feedback"], own_start=True, seeds=FIVE),
    Cell("OpenWebRL, table 4", "without reasoning", ["--agent.no-reasoning"], own_start=True),
    Cell("OpenWebRL, table 4", "two screenshots", ["--agent.screenshots", "2"], own_start=True),
    Cell("OpenWebRL, table 4", "at most 5 turns throughout", ["--rollout.max-steps", "5"]),
    Cell("OpenWebRL, table 4", "at most 6 turns throughout", ["--rollout.max-steps", "6"]),
    Cell("OpenWebRL, figure 8", "filtered behaviour cloning", [], method="filtered-bc", seeds=FIVE),
    Cell("WebAgent-R1, table 2", "M-GRPO", [], "tiny-text"),
    Cell("WebAgent-R1, table 2", "filtered behaviour cloning", [], "tiny-text", method="filtered-bc"),
    Cell("WebAgent-R1, table 2", "AWR", [], "tiny-text", method="awr"),
    Cell("OpenWebRL, figure 6", "no dynamic sampling", FIXED, seeds=FIVE),
    Cell("OpenWebRL, figure 6", "one epoch", ["--batch.epochs", "1"]),
    Cell("OpenWebRL, figure 6", "two epochs", ["--batch.epochs", "2"]),
    Cell("OpenWebRL, figure 5", "a third of the cloning", ["--sft.max-steps", "20"], own_start=True),
    Cell("OpenWebRL, figure 5", "four times the demonstrations", MANY, own_start=True),
    Cell("credit of turns", "the episode's", SITES, own_start=True),
    Cell("credit of turns", "return to go", [*SITES, "--loss.credit", "return-to-go"], own_start=True),
    Cell("credit of turns", "GiGPO", [*SITES, "--loss.credit", "gigpo"], own_start=True),
]


@dataclass
class Args:
    only: str = ""
    """Cells whose part or name has these words."""
    budget_minutes: float = 60.0
    """No cell begins that would take longer than what is left, by the longest so far."""
    list: bool = False
    """List the cells, and run none."""
    earlier: Path | None = None
    """The last line of an earlier call with the same --flags, in a file: figures of cells whose runs are on
    another machine, and which are not run again."""
    plot: Path | None = None
    """Draw all cells into this file, an SVG."""
    out: Path = Path("runs/learning")
    ranks: int = 2
    flags: str = ""
    """Further flags for train.py in every cell, separated by blanks: --flags="--steps 2"."""


def place(cell: Cell, seed: int) -> str:
    """The name of a cell's run: seed0 for the recipe as it is."""
    if cell.method:
        return f"seed{seed}_{cell.method}"  # where learning.py --baselines has it
    return f"seed{seed}{learning.suffix(' '.join(cell.flags)).strip('-').replace('sites-train', 'sites')}"


def run_cell(args: Args, cell: Cell, seed: int) -> Run:
    """Train a cell to its end; its warm start is made first if it is missing."""
    bench = learning.Args(recipe=cell.recipe, out=args.out, ranks=args.ranks, flags=args.flags)
    flags = list(cell.flags)
    if cell.method or (flags and not cell.own_start):
        recipe = learning.train(bench, f"seed{seed}", seed)
        if cell.method:
            flags += learning.baselines(recipe)[cell.method]
        flags += learning.start_of(recipe)
    return learning.train(bench, place(cell, seed), seed, *flags)


def of(args: Args, cell: Cell, seed: int, earlier: dict[str, Figures]) -> dict[str, Any] | None:
    """The success of a cell before and after, if it has been run, here or earlier."""
    bench = learning.Args(recipe=cell.recipe, out=args.out, flags=args.flags)
    figures = earlier.get(title_of(cell), [])
    if seed < len(figures) and figures[seed]:
        return figures[seed]
    run = learning.run_of(bench, place(cell, seed))
    rows = {row["label"]: row for row in run.evals()}
    if "after RL" not in rows:
        return None
    before = rows.get("after SFT", {})
    after = rows["after RL"]
    return {"before": before.get("success"), "after": after["success"], "n": after["n"]}


def title_of(cell: Cell) -> str:
    return f"{cell.part}: {cell.name}"


def table_of(cells: list[Cell], figures_of: dict[str, Figures]) -> Table:
    table = Table("part", "cell", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("after RL, by seed", "mean", "95% interval"):
        table.add_column(title, justify="right")
    for cell in cells:
        figures = figures_of[title_of(cell)]
        rates = [figure["after"] for figure in figures if figure]
        by_seed = " ".join(f"{figure['after']:.1%}" if figure else "absent" for figure in figures)
        if not rates:
            table.add_row(cell.part, cell.name, by_seed, "", "")
            continue
        low, high = interval_of(figures)
        table.add_row(cell.part, cell.name, by_seed, f"{mean(rates):.1%}", f"{low:.1%} to {high:.1%}")
    return table


def interval_of(figures: Figures) -> tuple[float, float]:
    """The 95% interval of the mean over seeds, which are evaluated on the same tasks: each counts once."""
    there = [figure for figure in figures if figure]
    n = there[0]["n"]
    rate = mean(figure["after"] for figure in there)
    return wilson(round(rate * n), n)


def plot_of(cells: list[Cell], figures_of: dict[str, Figures]) -> str:
    """Draw a line for each cell: a ring for each seed's success before, a dot for that after, a bar for the
    interval of the mean."""
    left = 330
    width = 400
    line = 22
    legend = "○ after cloning, ● after reinforcement, each seed; bar: 95% interval of the mean"
    height = line * len(cells) + 70
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 30} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
    ]
    for percent in (0, 25, 50, 75, 100):
        x = left + percent / 100 * width
        svg.append(f'<path stroke="#ddd" d="M{x:.1f} 32V{height - 36}"/>')
        svg.append(f'<text x="{x:.1f}" y="{height - 20}" text-anchor="middle">{percent}%</text>')
    svg.append(f'<text x="{left}" y="{height - 4}">{legend}</text>')
    part = ""
    for row, cell in enumerate(cells):
        y = 44 + row * line
        if cell.part != part:
            part = cell.part
            svg.append(f'<text x="8" y="{y + 4}" font-weight="bold">{escape(part)}</text>')
            svg.append(f'<path stroke="#ddd" d="M8 {y - 11}H{left + width}"/>')
        svg.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(cell.name)}</text>')
        figures = figures_of[title_of(cell)]
        there = [figure for figure in figures if figure]
        if not there:
            svg.append(f'<text x="{left + 8}" y="{y + 4}" fill="#999">absent</text>')
            continue
        low, high = interval_of(figures)
        bar = f"M{left + low * width:.1f} {y}H{left + high * width:.1f}"
        svg.append(f'<path stroke="#9cc4b4" stroke-width="6" d="{bar}"/>')
        for figure in there:
            after = left + figure["after"] * width
            if figure["before"] is not None:
                before = left + figure["before"] * width
                svg.append(f'<circle cx="{before:.1f}" cy="{y}" r="4" fill="none" stroke="#777"/>')
            svg.append(f'<circle cx="{after:.1f}" cy="{y}" r="4" fill="#2f6f5e"/>')
    return "\n".join(svg) + "</svg>\n"


def main() -> None:
    args = tyro.cli(Args)
    earlier = json.loads(args.earlier.read_text()) if args.earlier else {}
    cells = [cell for cell in CELLS if args.only.lower() in f"{cell.part}, {cell.name}".lower()]
    started = time.monotonic()
    longest = 0.0
    planned = [(cell, seed) for seed in FIVE for cell in cells if seed in cell.seeds]
    for cell, seed in planned if not args.list else []:
        begun = time.monotonic()
        left = args.budget_minutes * 60 - (begun - started)
        if of(args, cell, seed, earlier) is None and left > longest:
            try:
                run_cell(args, cell, seed)
            except subprocess.CalledProcessError as error:  # it stays absent, as where no group teaches
                print(f"{title_of(cell)}, seed {seed}: {error}", file=sys.stderr)
            longest = max(longest, time.monotonic() - begun)
    figures_of = {}
    for cell in cells:
        figures_of[title_of(cell)] = [of(args, cell, seed, earlier) for seed in cell.seeds]
    Console(stderr=True).print(table_of(cells, figures_of))
    if args.plot:
        write_atomic(args.plot, plot_of(cells, figures_of).encode())
    print(json.dumps(figures_of))


if __name__ == "__main__":
    main()
