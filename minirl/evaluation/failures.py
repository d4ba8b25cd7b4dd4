"""Count how agents reason in finished episodes, and why they fail.

    trajectories --> rows of numbers --> metrics.jsonl --> the report's curves

Stands behind the loop; nothing here is trained on. OpenWebRL, section 5.2 and appendix D: how often, and at
what length, reasoning has phrases of four families (failures.toml). Appendix E: why episodes fail.
Deviations: the paper's patterns are not in its text; these were written anew from the phrases of its table
10, so rates are not comparable with the paper's. Its error categories were given by hand, here by rules.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from statistics import mean
from typing import Any

import numpy as np

from minirl.types import Stop, Trajectory, Turn

_PHRASES = tomllib.loads(files("minirl.evaluation").joinpath("failures.toml").read_text())
PROXIES = {
    name: re.compile(re.sub("<([a-z]+)>", lambda part: _PHRASES["parts"][part[1]], "|".join(patterns)), re.I)
    for name, patterns in _PHRASES["families"].items()
}
# Figure 9: the share of each in 100 failures on Online-Mind2Web
PAPER_SHARES = {"access": 0.51, "reasoning": 0.27, "grounding": 0.13, "evaluation": 0.09}
_MISSED = re.compile(
    r"\bfailed, |Nothing on the page changed\.|did not move \w+;|which differs from what was typed"
)


def proxies_of(turn: Turn) -> frozenset[str]:
    """Return the families that a response's reasoning matches: its text before the first call."""
    reasoning = turn.text.partition("<tool_call>")[0]
    return frozenset(name for name, pattern in PROXIES.items() if pattern.search(reasoning))


def proxy_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return a row for each family, then one for the turns that match any, those that match none, and all."""
    lengths: dict[str, list[int]] = {name: [] for name in (*PROXIES, "any", "none", "all")}
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        found = proxies_of(turn)
        for name in (*found, "any" if found else "none", "all"):
            lengths[name].append(len(turn.response_ids))
    turns, rows = len(lengths["all"]), []
    for name, of_family in lengths.items():
        known = [length for length in of_family if length]  # a served model's response has no ids
        p90 = np.quantile(known, 0.9, method="inverted_cdf").item() if known else None
        row = {"turns": len(of_family), "rate": len(of_family) / turns if turns else None}
        rows.append({"name": name, **row, "mean": mean(known) if known else None, "p90": p90})
    return rows


def category_of(trajectory: Trajectory) -> str | None:
    """Return why an episode failed; None if it did not, or was only cut off at the end of a batch."""
    stop, verdict = trajectory.stop, trajectory.verdict
    if trajectory.success:
        return "evaluation" if verdict is not None and verdict.success is False else None
    said = trajectory.answer + "\n" + (trajectory.turns[-1].text if trajectory.turns else "")
    feedback = [line for turn in trajectory.turns if not turn.parsed.error for line in turn.feedback]
    missed = sum(bool(_MISSED.search(line)) for line in feedback)
    rules = (
        (None, stop is Stop.CANCELLED),
        # no verdict; or, as above, the judge denies what the task's own rules affirm
        ("evaluation", stop is Stop.JUDGE_ERROR or (verdict is not None and verdict.success is None)),
        ("blocked", stop is Stop.BLOCKED),  # the paper counts these pages under access
        # browser, site or sampler failed, or the agent's last words name a blocker
        ("access", not stop.is_agent_fault or PROXIES["blocker"].search(said)),
        ("form", stop in (Stop.FORMAT_ERROR, Stop.LENGTH)),  # the paper has no such category
        ("grounding", feedback and missed / len(feedback) >= 1 / 3),  # calls failed or changed nothing
        ("reasoning", True),  # the agent acted well, and did the wrong things or too few of them
    )
    return next(category for category, holds in rules if holds)


def error_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Return the categories of all failures, the most frequent first, with their shares and the paper's."""
    found = Counter(filter(None, map(category_of, trajectories)))
    return [
        {"category": name, "count": n, "share": n / found.total(), "paper": PAPER_SHARES.get(name)}
        for name, n in found.most_common()
    ]


def step_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return a training step's numbers for metrics.jsonl: the share of turns that each family matches, their
    tokens (figure 3c) and those of turns that match none, and failures by category."""
    found = {f"error/{row['category']}": float(row["count"]) for row in error_rows(trajectories)}
    for row in proxy_rows(trajectories):
        name = row["name"]
        if name in PROXIES:
            found[f"proxy/{name}"] = row["rate"]
        if name in (*PROXIES, "none"):
            found |= {f"proxy_mean/{name}": row["mean"], f"proxy_p90/{name}": row["p90"]}
    return {name: value for name, value in found.items() if value is not None}
