"""What a step's episodes say in numbers. Keys are those of metrics.jsonl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean, pstdev

from minirl.rollout import Collected
from minirl.types import Trajectory


def trajectory_tokens(trajectory: Trajectory) -> int:
    """The length of the last turn's prompt and response: what the whole episode takes as one context."""
    turn = trajectory.turns[-1]
    return turn.shared + len(turn.branch) + len(turn.response_ids)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def judge_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    """How a judge's rewards compare with what the tasks' own verifiers found (`--reward.by judge`): the share
    of the valid episodes that earned 1, which stands beside `success`; how many the judge was asked about;
    and of these, the shares that it was right on, that failed and it let pass, and that succeeded and it did
    not. Nothing if no judge was asked about a task that can tell the truth."""
    asked = [t for t in valid if t.task.goal and t.final_state.get("verdict") is not None]
    if not asked:
        return {}
    told = [(t.success, t.final_state["verdict"]) for t in asked]
    return {
        "judged_success": mean(t.reward == 1 for t in valid),
        "judge/asked": len(asked),
        "judge/agreement": mean(truth == verdict for truth, verdict in told),
        "judge/false_pos": mean(verdict and not truth for truth, verdict in told),
        "judge/false_neg": mean(truth and not verdict for truth, verdict in told),
    }


def rollout_metrics(collected: Collected) -> dict[str, float]:
    """Success and reward over all valid episodes that finished, so that dropping equal groups does not
    colour them; how the groups fared; and the browsers' diagnostics (see Trajectory), means over all episodes
    that got one. A step without a valid episode has no means, only counts."""
    valid = [t for t in collected.finished if t.valid]
    means = {}
    if valid:
        rewards = [t.reward for t in valid]
        tokens = [trajectory_tokens(t) for t in valid]
        asked = [(turn.shared + len(turn.branch), turn.cached) for t in valid for turn in t.turns]
        means = {
            "success": mean(t.success for t in valid),
            **judge_metrics(valid),
            "reward": mean(rewards),
            "reward_std": pstdev(rewards),
            "tokens_mean": mean(tokens),
            "tokens_p90": percentile(tokens, 0.9),
            "response_tokens": mean(t.response_tokens for t in valid),
            "turns": mean(len(t.turns) for t in valid),
            "prefix_hits": sum(cached for _, cached in asked) / sum(prompt for prompt, _ in asked),
        }
    browsers = [t.diagnostics for t in collected.finished if t.diagnostics]
    for name in browsers[0] if browsers else ():
        means[f"browser/{name}"] = mean(browser[name] for browser in browsers)
    stops = Counter(t.stop.value for t in collected.finished)
    return {
        **means,
        "episodes": len(collected.finished),
        "invalid": len(collected.finished) - len(valid),
        "groups_submitted": collected.submitted,
        "groups_kept": len(collected.groups),
        "groups_dropped": collected.dropped,
        **{f"stop/{stop}": count for stop, count in stops.items()},
    }
