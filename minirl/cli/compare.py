"""`python -m minirl compare RUN RUN ...`: the curves and evaluations of several runs on one page.

    config.json, metrics.jsonl, evals.jsonl of each --compare.html.j2--> settings that differ, rates, curves

The page loads nothing, and everything that it shows is escaped, as in a run's own report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from minirl.cli.report import TEMPLATES, for_json
from minirl.console import say
from minirl.run_folder import Run, flatten, write_atomic
from minirl.types import Json


@dataclass(frozen=True)
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of two or more runs, which are shown side by side."""
    out: Path = Path("compare.html")
    """The page that is written."""


def compare(folders: Sequence[Path], out: Path) -> None:
    """Write a page with the runs in these folders. ValueError if one holds no run."""
    runs = [Run(folder) for folder in folders]
    names = list(map(str, folders))
    for run in runs:
        if not run.config():
            raise ValueError(f"{run.root} holds no run: there is no config.json")
    settings = [flatten(run.config()) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    differing = {}
    for key in keys:
        values = [each.get(key) for each in settings]
        if any(value != values[0] for value in values):
            differing[key] = values
    page = TEMPLATES.get_template("compare.html.j2").render(
        names=names,
        settings=differing,
        rates=rates(runs),
        data={"series": for_json(curves(runs, names)), "evals": [], "dumps": [], "compared": True},
    )
    write_atomic(out, page.encode("utf-8", "replace"))


def rates(runs: Sequence[Run]) -> dict[str, list[Json | None]]:
    """Return by label each run's evaluation, None where it has none; of several the newest."""
    by_run = [{row["label"]: row for row in run.evals()} for run in runs]
    labels = dict.fromkeys(label for rows in by_run for label in rows)
    return {label: [rows.get(label) for rows in by_run] for label in labels}


def curves(runs: Sequence[Run], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return a series "KEY of NAME" for each number and run, over all steps that any run has; None: a gap."""
    by_step: list[dict[int, Json]] = []
    for run in runs:
        rows = {row["step"]: dict(row) for row in run.metrics()}
        for row in run.evals():
            if row["n"]:
                rows.setdefault(row["step"], {})["evaluated"] = row["success"]
        by_step.append(rows)
    steps = sorted(set().union(*by_step))
    keys = dict.fromkeys(key for rows in by_step for row in rows.values() for key in row)
    series: dict[str, list[Any]] = {"step": steps}
    for name, rows in zip(names, by_step, strict=True):
        for key in keys:
            series[f"{key} of {name}"] = [rows.get(step, {}).get(key) for step in steps]
    return series


def run(argv: Sequence[str]) -> None:
    options = tyro.cli(Options, args=argv, prog="python -m minirl compare")
    if len(options.runs) < 2:
        raise ValueError("name at least two runs: python -m minirl compare runs/tiny runs/wide")
    compare(options.runs, options.out)
    say(f"written: {options.out}")
