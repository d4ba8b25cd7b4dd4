"""Count how agents reason in finished episodes, and why they fail.

    trajectories --> rows of numbers --> metrics.jsonl --> the report's curves

Stands behind the loop; nothing here is trained on. OpenWebRL, section 5.2 and appendix D: how often, and at
what length, reasoning has phrases of four families (failures.toml). Appendix E: why episodes fail.
Deviations:
1. The paper's patterns are not in its text; these were written anew from the phrases of its table 10, so
   rates are not comparable with the paper's.
2. Its error categories were given by hand, here by rules.
"""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import mean

import numpy as np

from minirl.package_files import table_of
from minirl.types import Json, Stop, Trajectory, Turn

_PHRASES = table_of("evaluation/failures.toml")


def compile_family(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return one pattern for a family of phrases, with the parts in place of their names: <met>."""
    pattern = "|".join(patterns)
    for name, part in _PHRASES["parts"].items():
        pattern = pattern.replace(f"<{name}>", part)
    return re.compile(pattern, re.IGNORECASE)


PROXIES = {name: compile_family(patterns) for name, patterns in _PHRASES["families"].items()}
# Figure 9: the share of each in 100 failures on Online-Mind2Web
PAPER_SHARES = {"access": 0.51, "reasoning": 0.27, "grounding": 0.13, "evaluation": 0.09}
# Feedback on calls that failed or changed nothing (minirl/agents/openwebrl_actions.py); after each bar its
# wording in dumps of earlier versions
_MISSED = re.compile(
    r"^Failed: |\bfailed, "
    r"|no visible navigation|Nothing on the page changed\."
    r"|may be at a boundary|did not move \w+;"
    r"|differs from (the typed text|what was typed)"
)


def proxies_of(turn: Turn) -> frozenset[str]:
    """Return the families that a response's reasoning matches: its text before the first call."""
    reasoning = turn.text.partition("<tool_call>")[0]
    return frozenset(name for name, pattern in PROXIES.items() if pattern.search(reasoning))


def proxy_rows(trajectories: Sequence[Trajectory]) -> list[Json]:
    """Return a row for each family, then one for the turns that match any, those that match none, and all:
    how many turns, their share of all, and the mean and the 90th percentile of their tokens."""
    lengths: dict[str, list[int]] = {name: [] for name in (*PROXIES, "any", "none", "all")}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            families = proxies_of(turn)
            for name in (*families, "any" if families else "none", "all"):
                lengths[name].append(len(turn.response_ids))
    total = len(lengths["all"])
    rows = []
    for name, tokens in lengths.items():
        known = [number for number in tokens if number]  # a served model's response has no ids
        rows.append(
            {
                "name": name,
                "turns": len(tokens),
                "rate": len(tokens) / total if total else None,
                "mean": mean(known) if known else None,
                "p90": np.quantile(known, 0.9, method="inverted_cdf").item() if known else None,
            }
        )
    return rows


def category_of(trajectory: Trajectory) -> str | None:
    """Return why an episode failed; None if it did not. The paper counts blocked pages under access,
    and has no category form."""
    stop = trajectory.stop
    verdict = trajectory.verdict
    if trajectory.success:
        # The judge denies what the task's own rules affirm
        return "evaluation" if verdict and verdict.success is False else None
    if stop is Stop.JUDGE_ERROR or (verdict and verdict.success is None):
        return "evaluation"
    if stop is Stop.BLOCKED:
        return "blocked"
    # Browser, site or sampler failed, or the agent's last words name a blocker
    last_response = trajectory.turns[-1].text if trajectory.turns else ""
    if not stop.is_agent_fault or PROXIES["blocker"].search(f"{trajectory.answer}\n{last_response}"):
        return "access"
    if stop in (Stop.FORMAT_ERROR, Stop.LENGTH):
        return "form"
    feedback = []
    for turn in trajectory.turns:
        if not turn.parsed.error:
            feedback += turn.feedback
    missed = sum(bool(_MISSED.search(line)) for line in feedback)
    if feedback and missed / len(feedback) >= 1 / 3:
        return "grounding"
    # The agent acted well, and did the wrong things or too few of them
    return "reasoning"


def error_rows(trajectories: Sequence[Trajectory]) -> list[Json]:
    """Return the categories of all failures, the most frequent first, with their shares and the paper's."""
    counts = Counter(filter(None, map(category_of, trajectories)))
    total = counts.total()
    return [
        {"category": name, "count": count, "share": count / total, "paper": PAPER_SHARES.get(name)}
        for name, count in counts.most_common()
    ]


def step_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return a training step's numbers for metrics.jsonl: the share of turns that each family matches, their
    tokens (figure 3c) and those of turns that match none, and failures by category."""
    metrics = {}
    for row in error_rows(trajectories):
        metrics[f"error/{row['category']}"] = float(row["count"])
    for row in proxy_rows(trajectories):
        name = row["name"]
        if name in PROXIES:
            metrics[f"proxy/{name}"] = row["rate"]
        if name in PROXIES or name == "none":
            metrics[f"proxy_mean/{name}"] = row["mean"]
            metrics[f"proxy_p90/{name}"] = row["p90"]
    return {name: value for name, value in metrics.items() if value is not None}
