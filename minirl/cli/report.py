"""Make a run's `report.html`: learning curves, evaluations, why episodes failed, and a trajectory browser.

    config.json, metrics.jsonl, evals.jsonl, trajectories/*.jsonl --report.html.j2--> header and tables
    the same as one JSON object --report.js, report_browser.js--> curves and trajectories

The page opens from disk and loads nothing but screenshots/*.png; a dump shows its first trajectories. All
that a model or a web page wrote is shown as text: the template escapes it, and the scripts set textContent.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from minirl.run_folder import REGULAR, STEP_LABEL, TRAJECTORY, Run, to_record, write_atomic
from minirl.types import Trajectory

MAX_DUMPS, MAX_OTHERS = 12, 8  # in all; evaluations and demonstrations, which come before RL steps
MAX_TRAJECTORIES = 40  # per dump
MAX_DUMP_CHARACTERS = 700_000  # per dump: the whole page stays below ten megabytes
MAX_TEXT = 3000  # characters of one observation or response

# All values are escaped, `data` for JSON in a script: no tag or entity survives in it
TEMPLATES = jinja2.Environment(
    autoescape=True, undefined=jinja2.ChainableUndefined, loader=jinja2.PackageLoader("minirl.cli", "")
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


def write_report(run_root: Path) -> Path:
    """Make `report.html` in the run folder from the files that the run has so far. Returns its path."""
    run = Run(run_root)
    labels = run.labels()
    # what has another type than expected is left out, so that the rest can be drawn
    metrics = [{key: one for key, one in row.items() if is_number(one)} for row in run.metrics()]
    metrics = [row for row in metrics if "step" in row]
    evals = [row for row in run.evals() if isinstance(row.get("label"), str)]
    evals = [row for row in evals if all(is_number(row.get(key)) for key in ("success", "low", "high", "n"))]
    chosen = choose_dumps(labels)
    dumps = [read_dump(path, path.stat().st_mtime_ns) for path in map(run.trajectory_path, chosen)]
    series = {key: [record.get(key) for record in metrics] for key in sorted(set().union(*metrics))}
    data = {"series": series, "evals": evals, "dumps": dumps, "dumps_left_out": len(labels) - len(chosen)}
    seconds = sum(record.get("seconds/total", 0.0) for record in metrics)
    # the evaluations in the middle of training belong to the curve, but for eval.py's
    apart = [row for row in evals if row.get("checkpoint") or not row["label"].startswith(REGULAR)]
    page = TEMPLATES.get_template("report.html.j2").render(
        name=run.root.resolve().name,
        config=run.config(),
        time=timedelta(seconds=min(round(seconds), 10**9)),
        now=f"{datetime.now():%Y-%m-%d %H:%M}",
        data=inert(data),
        evals=apart or evals[-1:],
    )
    # A title may hold half a surrogate pair; it must not keep the report from being written.
    write_atomic(run.report_path, page.encode("utf-8", "replace"))
    return run.report_path


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15


def inert(value: Any) -> Any:
    """Return a value for the page's JSON: long texts are cut; NaN and infinity, which JSON lacks, are null.

    >>> inert({"a": (float("nan"), "x" * 3005)})["a"][1][-23:]
    '… (5 more characters)'
    """
    match value:
        case str() if len(value) > MAX_TEXT:
            return f"{value[:MAX_TEXT]} … ({len(value) - MAX_TEXT} more characters)"
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {str(key): inert(item) for key, item in value.items()}
        case list() | tuple():
            return [inert(item) for item in value]
    return value


def choose_dumps(labels: Sequence[str]) -> list[str]:
    """Return the dumps for the page; of too many steps the first, the last, and some in equal distances."""
    steps = [label for label in labels if STEP_LABEL.fullmatch(label)]
    others = [label for label in labels if label not in steps][:MAX_OTHERS]
    room = MAX_DUMPS - len(others)
    if len(steps) > room:
        steps = [steps[round(i * (len(steps) - 1) / (room - 1))] for i in range(room)]
    return others + steps


@lru_cache(maxsize=64)
def read_dump(path: Path, changed: int) -> dict[str, Any]:
    """Return the first trajectories of a dump, and count the lines that cannot be read."""
    shown: list[dict[str, Any]] = []
    total = broken = characters = 0
    with open(path, "rb") as file:
        for line in file:
            total += 1
            if len(shown) == MAX_TRAJECTORIES or characters > MAX_DUMP_CHARACTERS:
                continue
            try:
                shown.append(inert(episode(TRAJECTORY.validate_python(json.loads(line)))))
                characters += len(json.dumps(shown[-1]))
            except (ValueError, RecursionError):
                broken += 1
    return {"label": path.stem, "total": total, "broken": broken, "trajectories": shown}


def episode(trajectory: Trajectory) -> dict[str, Any]:
    """Return a line of a dump for the page: without token ids, which people do not read."""
    shown = to_record(trajectory) | {"valid": trajectory.valid, "trunk": ()}
    for turn in shown["turns"]:
        turn["prompt_tokens"] = turn["shared"] + len(turn.pop("branch")) or turn["counted"][0]
        turn["response_tokens"] = len(turn.pop("response_ids")) or turn["counted"][1]
        del turn["logprobs"]
        # Calls are shown as understood; the raw text matters where little or nothing was.
        if turn["parsed"]["calls"] and not turn["parsed"]["error"]:
            del turn["text"]
    return shown
