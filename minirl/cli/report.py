"""Make a run's `report.html`: learning curves, evaluations, why episodes failed, and a trajectory browser.

    config.json, metrics.jsonl, evals.jsonl, trajectories/*.jsonl --report.html.j2--> header and tables
    the same as one JSON object --report.js, report_browser.js--> curves and trajectories

The page opens from disk and loads nothing but screenshots/*.png. A dump's trajectories are packed by gzip,
and unpacked by the page when they are asked for. All that a model or a web page wrote is shown as text: the
template escapes it, and the scripts set textContent.
"""

import base64
import gzip
import json
import math
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from minirl.config import to_json
from minirl.recipes import RECIPES
from minirl.run_folder import REGULAR, TRAJECTORY, Run, read_records, to_record, write_atomic
from minirl.types import Json, Trajectory
from minirl.worlds.teacher import compared

MAX_STEPS = 10  # dumps of RL steps, the newest, beside those of evaluations and demonstrations
MAX_TEXT = 3000  # characters of one observation or response

# All values are escaped, `data` for JSON in a script: no tag or entity survives in it
TEMPLATES = jinja2.Environment(
    autoescape=True, undefined=jinja2.ChainableUndefined, loader=jinja2.PackageLoader("minirl.cli", "")
)
TEMPLATES.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}


def write_report(run_root: Path) -> Path:
    """Make `report.html` in the run folder from the files that the run has so far. Returns its path."""
    run = Run(run_root)
    metrics = run.metrics()
    evals = run.evals()
    config = run.config()
    recipe = RECIPES.get(str(config.get("recipe")))
    steps = run.step_labels()
    others = [label for label in run.labels() if label not in steps]
    dumps = []
    for label in [*others, *steps[-MAX_STEPS:]]:
        path = run.trajectory_path(label)
        dumps.append(read_dump(path, path.stat().st_mtime_ns))
    names = sorted(set().union(*metrics))
    series = {name: [row.get(name) for row in metrics] for name in names}
    # the evaluations in the middle of training belong to the curve, but for eval.py's
    tabled = [row for row in evals if row.get("checkpoint") or not row["label"].startswith(REGULAR)]
    page = TEMPLATES.get_template("report.html.j2").render(
        name=run.root.resolve().name,
        config=config,
        usual=to_json(recipe()) if recipe else {},
        starts=read_records(run.root / "starts.jsonl", dict),
        now=f"{datetime.now():%Y-%m-%d %H:%M}",
        data=for_json({"series": series, "evals": evals})
        | {"dumps": dumps, "dumps_left_out": len(others) + len(steps) - len(dumps)},
        evals=tabled or evals[-1:],
    )
    # a title may hold half a surrogate pair, which must not keep the report from being written
    write_atomic(run.report_path, page.encode("utf-8", "replace"))
    return run.report_path


def for_json(value: Any) -> Any:
    """Return a value for the page's JSON: long texts are cut; NaN and infinity, which JSON lacks, are null.

    >>> for_json({"a": (float("nan"), "x" * 3005)})["a"][1][-21:]
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


@lru_cache(maxsize=64)
def read_dump(path: Path, changed: int) -> Json:
    """Return the trajectories of a dump, packed to about a fifth, and how many lines cannot be read. The time
    of its last change, `changed`, makes a changed file be read again."""
    shown = []
    broken = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                shown.append(for_json(episode(TRAJECTORY.validate_python(json.loads(line)))))
            except (ValueError, TypeError, RecursionError):
                broken += 1
    packed = base64.b64encode(gzip.compress(json.dumps(shown).encode(), mtime=0))
    return {"label": path.stem, "broken": broken, "packed": packed.decode()}


def episode(trajectory: Trajectory) -> Json:
    """Return a line of a dump for the page: without token ids, which people do not read."""
    record = to_record(trajectory) | {"valid": trajectory.valid, "prefix": ()}
    record["compared"] = compared(trajectory)
    for turn in record["turns"]:
        prompt_tokens, response_tokens = turn["counted"]  # by a served model's API
        turn["prompt_tokens"] = turn["shared"] + len(turn.pop("suffix")) or prompt_tokens
        turn["response_tokens"] = len(turn.pop("response_ids")) or response_tokens
        del turn["logprobs"]
        # calls are shown as understood; the raw text matters where little or nothing was
        if turn["parsed"]["calls"] and not turn["parsed"]["error"]:
            del turn["text"]
    return record
