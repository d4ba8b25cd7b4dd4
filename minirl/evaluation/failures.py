"""Count how agents reason in finished episodes, and why they fail.

    trajectories --> rows of numbers --> metrics.jsonl --> the report's curves

Stands behind the loop; nothing here is trained on. OpenWebRL, section 5.2 and appendix D: how often, and at
what length, reasoning has phrases of four families (failures.toml). Appendix E: why episodes fail.

Deviations: the paper's patterns are not in its text, so these were written anew from the phrases of its table
10, and their rates are comparable with each other, not with the paper's. The paper's error categories were
given by hand; here rules give them, from how the episode stopped, the browser's reports and the verdict.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import mean
from typing import Literal

from minirl.metrics import percentile
from minirl.types import Stop, Trajectory, Turn

_PHRASES = tomllib.loads(files("minirl.evaluation").joinpath("failures.toml").read_text())


def _compile(patterns: Sequence[str]) -> re.Pattern[str]:
    text = re.sub("<([a-z]+)>", lambda part: _PHRASES["parts"][part[1]], "|".join(patterns))
    return re.compile(text, re.IGNORECASE)


PROXIES = {name: _compile(patterns) for name, patterns in _PHRASES["families"].items()}

Category = Literal["access", "grounding", "reasoning", "evaluation", "form"]
# Figure 9: the share of each in 100 failures on Online-Mind2Web
PAPER_SHARES: Mapping[str, float] = {"access": 0.51, "reasoning": 0.27, "grounding": 0.13, "evaluation": 0.09}
MISSES = 1 / 3  # of an episode's calls: from here on it is called a failure of grounding
_MISSED = re.compile(
    r"\bfailed, |Nothing on the page changed\.|did not move \w+;|which differs from what was typed"
)


@dataclass(frozen=True)
class ProxyRow:
    """How many turns match a family of phrases, and how long these are in tokens. `rate` is None if there are
    no turns, `mean` and `p90` if none of the matching ones has token ids."""

    name: str
    turns: int
    rate: float | None
    mean: float | None
    p90: float | None


@dataclass(frozen=True)
class ErrorRow:
    """How many failures are of one category, their share of all failures, and the paper's."""

    category: Category
    count: int
    share: float
    paper: float | None


def proxies_of(turn: Turn) -> frozenset[str]:
    """Return the families that a response's reasoning matches: its text before the first call.

    >>> sorted(proxies_of(Turn(0, (), (), (), "I have tried the search. Let me go back.</think>")))
    ['history', 'retry']
    """
    reasoning = turn.text.partition("<tool_call>")[0]
    return frozenset(name for name, pattern in PROXIES.items() if pattern.search(reasoning))


def proxy_rows(trajectories: Sequence[Trajectory]) -> list[ProxyRow]:
    """Return a row for each family, then one for the turns that match any, those that match none, and all."""
    lengths: dict[str, list[int]] = {name: [] for name in (*PROXIES, "any", "none", "all")}
    for turn in (turn for trajectory in trajectories for turn in trajectory.turns):
        found = proxies_of(turn)
        for name in (*found, "any" if found else "none", "all"):
            lengths[name].append(len(turn.response_ids))
    turns, rows = len(lengths["all"]), []
    for name, of_family in lengths.items():
        known = [length for length in of_family if length]  # a served model's response has no ids
        sizes = (mean(known), percentile(known, 0.9)) if known else (None, None)
        rows.append(ProxyRow(name, len(of_family), len(of_family) / turns if turns else None, *sizes))
    return rows


def category_of(trajectory: Trajectory) -> Category | None:
    """Return why an episode failed; None if it did not, or was only cut off at the end of a batch.

    access      the browser, the site or its guards, or our own sampler: something did not open, crashed, took
                too long, or the agent ended on a blocker (the last response or the answer names one)
    evaluation  no verdict could be had, or the judge denies what `trajectory.success` affirms
    form        responses that could not be read, or were cut off (the paper has no such category)
    grounding   a third of the calls or more failed or changed nothing
    reasoning   everything else: the agent acted well, and did the wrong things or too few of them
    """
    verdict = trajectory.verdict
    if trajectory.success:
        return "evaluation" if verdict is not None and verdict.success is False else None
    if trajectory.stop is Stop.CANCELLED:
        return None
    if trajectory.stop is Stop.JUDGE_ERROR or (verdict is not None and verdict.success is None):
        return "evaluation"
    said = trajectory.answer + "\n" + (trajectory.turns[-1].text if trajectory.turns else "")
    if not trajectory.stop.is_agent_fault or PROXIES["blocker"].search(said):
        return "access"
    if trajectory.stop in (Stop.FORMAT_ERROR, Stop.LENGTH):
        return "form"
    feedback = [line for turn in trajectory.turns if not turn.parsed.error for line in turn.feedback]
    missed = sum(bool(_MISSED.search(line)) for line in feedback)
    return "grounding" if feedback and missed / len(feedback) >= MISSES else "reasoning"


def error_rows(trajectories: Sequence[Trajectory]) -> list[ErrorRow]:
    """Return the categories of all failures, the most frequent first."""
    found = Counter(filter(None, map(category_of, trajectories)))
    return [ErrorRow(name, n, n / found.total(), PAPER_SHARES.get(name)) for name, n in found.most_common()]


def step_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return a training step's numbers for metrics.jsonl: the share of turns that each family matches, mean
    and 90th percentile of their tokens (figure 3c), of turns that match none, too, and failures by reason."""
    rows = {row.name: row for row in proxy_rows(trajectories)}
    found = {f"proxy/{name}": rows[name].rate for name in PROXIES}
    for name in (*PROXIES, "none"):
        found |= {f"proxy_mean/{name}": rows[name].mean, f"proxy_p90/{name}": rows[name].p90}
    found |= {f"error/{row.category}": float(row.count) for row in error_rows(trajectories)}
    return {name: value for name, value in found.items() if value is not None}
