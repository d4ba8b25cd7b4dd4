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

MAX_DUMPS = 12
MAX_OTHERS = 8  # of these: evaluations and demonstrations, which come before RL steps
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
    metrics, evals, labels = run.metrics(), run.evals(), run.labels()
    dumps = []
    for label in choose_dumps(labels):
        path = run.trajectory_path(label)
        dumps.append(read_dump(path, path.stat().st_mtime_ns))
    names = sorted(set().union(*metrics))
    series = {name: [row.get(name) for row in metrics] for name in names}
    seconds = sum(row.get("seconds/total", 0.0) for row in metrics)
    # the evaluations in the middle of training belong to the curve, but for eval.py's
    tabled = [row for row in evals if row.get("checkpoint") or not row["label"].startswith(REGULAR)]
    page = TEMPLATES.get_template("report.html.j2").render(
        name=run.root.resolve().name,
        config=run.config(),
        time=timedelta(seconds=round(seconds)),
        now=f"{datetime.now():%Y-%m-%d %H:%M}",
        data=for_json(
            {"series": series, "evals": evals, "dumps": dumps, "dumps_left_out": len(labels) - len(dumps)}
        ),
        evals=tabled or evals[-1:],
    )
    # a title may hold half a surrogate pair, which must not keep the report from being written
    write_atomic(run.report_path, page.encode("utf-8", "replace"))
    return run.report_path


def for_json(value: Any) -> Any:
    """Return a value for the page's JSON: long texts are cut; NaN and infinity, which JSON lacks, are null.

    >>> for_json({"a": (float("nan"), "x" * 3005)})["a"][1][-23:]
    '… (5 more characters)'
    """
    match value:
        case str() if len(value) > MAX_TEXT:
            return f"{value[:MAX_TEXT]} … ({len(value) - MAX_TEXT} more characters)"
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {str(key): for_json(item) for key, item in value.items()}
        case list() | tuple():
            return [for_json(item) for item in value]
    return value


def choose_dumps(labels: Sequence[str]) -> list[str]:
    """Return the dumps for the page: evaluations and demonstrations, then the newest steps."""
    steps = [label for label in labels if STEP_LABEL.fullmatch(label)]
    others = [label for label in labels if label not in steps][:MAX_OTHERS]
    return others + steps[-(MAX_DUMPS - len(others)) :]


@lru_cache(maxsize=64)
def read_dump(path: Path, changed: int) -> dict[str, Any]:
    """Return the first trajectories of a dump, and count the lines that cannot be read. The time of its last
    change, `changed`, makes a changed file be read again."""
    shown: list[dict[str, Any]] = []
    total = broken = characters = 0
    with open(path, "rb") as file:
        for line in file:
            total += 1
            if len(shown) == MAX_TRAJECTORIES or characters > MAX_DUMP_CHARACTERS:
                continue
            try:
                record = for_json(episode(TRAJECTORY.validate_python(json.loads(line))))
            except (ValueError, RecursionError):
                broken += 1
                continue
            shown.append(record)
            characters += len(json.dumps(record))
    return {"label": path.stem, "total": total, "broken": broken, "trajectories": shown}


def episode(trajectory: Trajectory) -> dict[str, Any]:
    """Return a line of a dump for the page: without token ids, which people do not read."""
    record = to_record(trajectory) | {"valid": trajectory.valid, "prefix": ()}
    for turn in record["turns"]:
        prompt_tokens, response_tokens = turn["counted"]  # by a served model's API
        turn["prompt_tokens"] = turn["shared"] + len(turn.pop("suffix")) or prompt_tokens
        turn["response_tokens"] = len(turn.pop("response_ids")) or response_tokens
        del turn["logprobs"]
        # calls are shown as understood; the raw text matters where little or nothing was
        if turn["parsed"]["calls"] and not turn["parsed"]["error"]:
            del turn["text"]
    return record
