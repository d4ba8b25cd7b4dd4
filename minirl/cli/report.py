"""Make a run's `report.html`: learning curves, evaluations, why episodes failed, and a trajectory browser.

    config.json, metrics.jsonl, evals.jsonl, trajectories/*.jsonl --report.html.j2--> header and tables
    the same as one JSON object --report.js, report_browser.js--> curves and trajectories

The page opens from disk and loads nothing but screenshots/*.png. It stays small: curves are thinned, a dump
shows its first trajectories, and the page says so. Everything that a model or a web page wrote is shown as
text: the template escapes it, and the scripts set only textContent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from pydantic import TypeAdapter

from minirl.run_folder import STEP_LABEL, Run, write_atomic
from minirl.types import Trajectory

MAX_POINTS = 1000  # steps that a curve draws
MAX_DUMPS = 12  # evaluations and demonstrations first, then RL steps
MIN_STEP_DUMPS = 4  # RL steps that are shown however many others there are
MAX_TRAJECTORIES = 40  # per dump
MAX_DUMP_CHARACTERS = 700_000  # per dump: the whole page stays below ten megabytes
MAX_TEXT = 3000  # characters of one observation or response

TRAJECTORY = TypeAdapter(Trajectory)
STEP = re.compile(r"(^|[ _])step[ _]*\d+$")  # the label of an evaluation in the middle of training

# Shown under the title; the other settings are one click away
KEY_SETTINGS = ("model.path", "agent.kind", "task.train", "rollout.group", "rollout.groups", "steps",
                "optim.lr", "loss.weighting", "seed")  # fmt: skip


def write_report(run_root: Path) -> Path:
    """Make `report.html` in the run folder from the files that the run has so far. Returns its path."""
    run = Run(run_root)
    metrics, evals, settings = run.metrics(), run.evals(), dict(flatten(run.config()))
    seconds = sum(record.get("seconds/total", 0.0) for record in metrics)
    facts = [
        f"recipe {settings['recipe']}" if "recipe" in settings else "",
        f"{metrics[-1]['step'] if metrics else 0} steps",
        f"{timedelta(seconds=round(seconds))} of training" if seconds else "",
        f"written {datetime.now():%Y-%m-%d %H:%M}",
    ]
    chosen = choose_dumps(run.labels())
    dumps = [read_dump(path, path.stat().st_mtime_ns) for path in map(run.trajectory_path, chosen)]
    data = {"curves": curves(metrics), "evals": evals, "dumps": dumps}
    page = template().render(
        name=run.root.resolve().name,
        facts=filter(None, facts),
        settings=settings,
        chosen=[(key, settings[key]) for key in KEY_SETTINGS if settings.get(key, "null") != "null"],
        data=inert({**data, "dumps_left_out": len(run.labels()) - len(chosen)}),
        evals=milestones(evals),
    )
    # A title may hold half a surrogate pair; it must not keep the report from being written.
    write_atomic(run.report_path, page.encode("utf-8", "replace"))
    return run.report_path


@cache
def template() -> jinja2.Template:
    """Return the page's template with its style and scripts. All values are escaped, `data` for JSON in a
    script: no tag or entity survives in it."""
    files = resources.files("minirl.cli")
    environment = jinja2.Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    js = "".join((files / name).read_text() for name in ("report_browser.js", "report.js"))
    page = (files / "report.html.j2").read_text()
    return environment.from_string(page, {"css": (files / "report.css").read_text(), "js": js})


def inert(value: Any) -> Any:
    """Return a value for the page's JSON: long texts are cut; NaN and infinity, which JSON lacks, are null.

    >>> inert({"a": (float("nan"), "x" * 3005)})["a"][1][-23:]
    '… (5 more characters)'
    """
    match value:
        case str():
            rest = len(value) - MAX_TEXT
            return value if rest <= 0 else f"{value[:MAX_TEXT]} … ({rest} more characters)"
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {str(key): inert(item) for key, item in value.items()}
        case list() | tuple():
            return [inert(item) for item in value]
    return value


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """
    >>> dict(flatten({"seed": 0, "optim": {"lr": 1e-6}}))
    {'seed': '0', 'optim.lr': '1e-06'}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def milestones(evals: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evaluations for the table. Those in the middle of training belong to the curve; without any
    other, the first and last stay. Those of eval.py, which name their checkpoint, all stay."""
    named = [row for row in evals if row.get("checkpoint") or not STEP.search(row["label"])]
    return named or [*evals[:1], *evals[1:][-1:]]


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return metrics by column: {"steps": [...], "series": {key: [value or None, ...]}, "stride": 1}.

    Of more than `MAX_POINTS` steps every second, third, ... is drawn, counted back from the newest.
    """
    stride = max(1, math.ceil(len(metrics) / MAX_POINTS))
    drawn = metrics[::-1][::stride][::-1]
    keys = sorted({key for record in drawn for key in record} - {"step"})
    series = {key: [record.get(key) for record in drawn] for key in keys}
    return {"steps": [record["step"] for record in drawn], "series": series, "stride": stride}


def choose_dumps(labels: Sequence[str]) -> list[str]:
    """Return the dumps that fit into the page: evaluations and demonstrations, then RL steps. Of too many
    these are the first, the last, and some at equal distances between."""

    def spread(items: Sequence[str], most: int) -> list[str]:
        chosen = [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)] if items else []
        return chosen if len(items) > most else list(items)

    steps = [label for label in labels if STEP_LABEL.fullmatch(label)]
    others = spread([label for label in labels if label not in steps], MAX_DUMPS)
    return others + spread(steps, max(MAX_DUMPS - len(others), MIN_STEP_DUMPS))


@lru_cache(maxsize=64)
def read_dump(path: Path, changed: int) -> dict[str, Any]:
    """Return the first trajectories of a dump; kept until the file changes. A line that cannot be read is
    counted and left out: a report must not end a training run."""
    shown: list[dict[str, Any]] = []
    total = broken = characters = 0
    with open(path, "rb") as file:
        for line in file:
            total += 1
            if len(shown) == MAX_TRAJECTORIES or characters > MAX_DUMP_CHARACTERS:
                continue
            try:
                record = json.loads(line)
                shown.append(inert(episode(record, TRAJECTORY.validate_python(record))))
                characters += len(json.dumps(shown[-1]))
            except ValueError:
                broken += 1
    return {"label": path.stem, "total": total, "broken": broken, "trajectories": shown}


def episode(record: Mapping[str, Any], trajectory: Trajectory) -> dict[str, Any]:
    """Return a line of a dump for the page: without token ids, which people do not read."""
    shown = asdict(trajectory) | {"group": record.get("group"), "advantage": record.get("advantage")}
    shown |= {"stop": trajectory.stop.value, "valid": trajectory.valid, "trunk": ()}
    for turn in shown["turns"]:
        turn["prompt_tokens"] = turn["shared"] + len(turn.pop("branch")) or turn["counted"][0]
        turn["response_tokens"] = len(turn.pop("response_ids")) or turn["counted"][1]
        del turn["logprobs"]
        # Calls are shown as understood; the raw text matters where little or nothing was.
        if turn["parsed"]["calls"] and not turn["parsed"]["error"]:
            del turn["text"]
    return shown
