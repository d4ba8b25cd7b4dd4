"""Makes a run's `report.html`: learning curves, the before/after table, and a trajectory browser.

    config.json, metrics.jsonl, evals.jsonl, trajectories/*.jsonl  ->  one JSON object
    that object + report.css + report*.js  ->  report.html, which refers only to screenshots/*.png

The page opens from disk and loads nothing from elsewhere. A long run does not make a large page: curves
are thinned, a dump shows its first trajectories, and the page says what was left out. Everything that
a model or a web page wrote is shown as text: the JSON is escaped, and the script sets only textContent.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from minirl.run_folder import STEP_LABEL, Run, trajectory_from_json, write_atomic
from minirl.types import Trajectory, Turn

MAX_POINTS = 1000  # steps that a curve draws
MAX_DUMPS = 12  # evaluations and demonstrations first, then RL steps
MIN_STEP_DUMPS = 4  # RL steps that are shown however many others there are
MAX_TRAJECTORIES = 40  # per dump
MAX_DUMP_CHARACTERS = 700_000  # per dump: the whole page stays below ten megabytes
MAX_TEXT = 3000  # characters of one observation or response

# Shown under the title. The other settings are one click away.
KEY_SETTINGS = (
    *("model.path", "agent.kind", "task.train", "rollout.group", "rollout.groups"),
    *("steps", "optim.lr", "loss.weighting", "seed"),
)


def write_report(run_root: Path) -> Path:
    """Make `report.html` in the run folder from whatever the run has written so far."""
    run = Run(run_root)
    here = Path(__file__).parent
    data = report_data(run)
    page = PAGE.format(
        title=html.escape(data["name"]),
        css=(here / "report.css").read_text(),
        data=to_inert_json(data),
        js=(here / "report_browser.js").read_text() + (here / "report.js").read_text(),
    )
    # A title may hold half a surrogate pair; it must not keep the report from being written.
    write_atomic(run.report_path, page.encode("utf-8", "replace"))
    return run.report_path


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title} · minirl</title>
<style>
{css}
</style>
</head>
<body>
<main id="report"><noscript>This report is drawn by a script inside this file.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>
{js}
</script>
</body>
</html>
"""


def to_inert_json(data: Any) -> str:
    """JSON that no HTML parser takes for markup: no tag, entity or exotic line end survives in it.

    >>> print(to_inert_json("</script>"))
    "\\u003c/script\\u003e"
    """
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)  # pure ASCII
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(value: Any) -> Any:
    """The same value with null for NaN and infinity, which JSON in a browser lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


# ---- The run ---------------------------------------------------------------------------------------


def report_data(run: Run) -> dict[str, Any]:
    """All that the page shows."""
    config, metrics = run.config(), run.metrics()
    settings = dict(flatten(config))
    chosen = choose_dumps(run.labels())
    return {
        "name": run.root.resolve().name,
        "recipe": str(config.get("recipe", "")),
        "written": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "seconds": sum(record.get("seconds/total", 0.0) for record in metrics),
        "settings": settings,
        "key_settings": [key for key in KEY_SETTINGS if settings.get(key) is not None],
        "steps_done": metrics[-1]["step"] if metrics else 0,
        "curves": curves(metrics),
        "evals": run.evals(),
        "dumps": [dump(run.trajectory_path(label)) for label in chosen],
        "dumps_left_out": len(run.labels()) - len(chosen),
    }


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> dict(flatten({"seed": 0, "optim": {"lr": 1e-6}}))
    {'seed': 0, 'optim.lr': 1e-06}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics by column: {"steps": [...], "series": {key: [value or None, ...]}, "stride": 1}.

    Of more than `MAX_POINTS` steps every second, third, ... is drawn, counted back from the newest.
    """
    stride = max(1, math.ceil(len(metrics) / MAX_POINTS))
    drawn = metrics[::-1][::stride][::-1]
    keys = sorted({key for record in drawn for key in record} - {"step"})
    series = {key: [shorten(record.get(key)) for record in drawn] for key in keys}
    return {"steps": [record["step"] for record in drawn], "series": series, "stride": stride}


def shorten(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def choose_dumps(labels: Sequence[str]) -> list[str]:
    """The dumps that fit into the page: evaluations and demonstrations, then RL steps, first to last."""
    steps = [label for label in labels if STEP_LABEL.fullmatch(label)]
    others = [label for label in labels if label not in steps]
    others = spread(others, MAX_DUMPS)
    return others + spread(steps, max(MAX_DUMPS - len(others), MIN_STEP_DUMPS))


def spread(items: Sequence[str], most: int) -> list[str]:
    """At most `most` items: the first, the last, and some at equal distances between.

    >>> spread("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


# ---- Trajectories ----------------------------------------------------------------------------------


def dump(path: Path) -> dict[str, Any]:
    return read_dump(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def read_dump(path: Path, changed: int) -> dict[str, Any]:
    """The first trajectories of a dump. Kept until the file changes: the report is made again and again.

    A line that cannot be read is counted and left out, since a report must not end a training run.
    """
    shown: list[dict[str, Any]] = []
    total = broken = characters = 0
    with open(path, "rb") as file:
        for line in file:
            total += 1
            if len(shown) == MAX_TRAJECTORIES or characters > MAX_DUMP_CHARACTERS:
                continue
            try:
                record = json.loads(line)
                item = episode(trajectory_from_json(record))
            except (AttributeError, KeyError, TypeError, ValueError):
                broken += 1
                continue
            item |= {"group": record.get("group"), "advantage": record.get("advantage")}
            characters += len(json.dumps(item, default=str))
            shown.append(item)
    return {"label": path.stem, "total": total, "broken": broken, "trajectories": shown}


def episode(trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory without its token ids, which people do not read."""
    return {
        "task": trajectory.task.id,
        "instruction": cut(trajectory.task.instruction),
        "start_url": trajectory.task.start_url,
        "member": trajectory.member,
        "stop": trajectory.stop.value,
        "valid": trajectory.valid,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "answer": cut(trajectory.answer),
        "error": cut(trajectory.error),
        "seconds": trajectory.seconds,
        "response_tokens": trajectory.response_tokens,
        "final_image": trajectory.final_image,
        "final_state": cut(json.dumps(dict(trajectory.final_state), indent=1, default=str)),
        "turns": [shown_turn(turn) for turn in trajectory.turns],
    }


def shown_turn(turn: Turn) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": shown_arguments(call.arguments)} for call in turn.parsed.calls]
    return {
        "image": turn.images[-1] if turn.images else "",  # the newest screenshot is what was acted on
        "url": cut(turn.url),
        "observation": cut(turn.observation or turn.page_text),
        "thought": cut(turn.parsed.thought),
        "calls": calls,
        "error": cut(turn.parsed.error or ""),
        "feedback": [cut(line) for line in turn.feedback],
        # What was understood is shown above; the raw text matters where little or nothing was.
        "text": cut(turn.text) if turn.parsed.error or not calls else "",
        "prompt_tokens": turn.shared + len(turn.branch) or turn.counted[0],
        "response_tokens": len(turn.response_ids) or turn.counted[1],
        "finish": turn.finish,
        "seconds": dict(turn.seconds),
    }


def shown_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: cut(value) if isinstance(value, str) else value for key, value in arguments.items()}


def cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters)"
