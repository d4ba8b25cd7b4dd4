"""Numbers of a step's episodes: success, rewards, lengths, groups and a judge's agreement.

Stands at the end of a training step. The keys of `rollout_metrics` are those of metrics.jsonl.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import mean, pstdev

import numpy as np

from minirl.rollout import Collected
from minirl.types import Trajectory


def judge_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Return how a judge's rewards compare with the tasks' own rules (`--reward.by judge`): the share of
    episodes that earned 1, the number of verdicts, and the shares of these that are right, that passed a
    failure and that failed a success. Empty if no judge was asked about a task that can tell the truth."""
    judged = [(t.success, t.verdict) for t in valid if t.task.goal and t.verdict is not None]
    pairs = [(truth, verdict.success) for truth, verdict in judged if verdict.success is not None]
    if not pairs:
        return {}
    return {
        "judged_success": mean(t.reward == 1 for t in valid),
        "judge/asked": len(pairs),
        "judge/agreement": mean(truth == said for truth, said in pairs),
        "judge/false_pos": mean(said and not truth for truth, said in pairs),
        "judge/false_neg": mean(truth and not said for truth, said in pairs),
    }


def rollout_metrics(collected: Collected) -> dict[str, float]:
    """Return means over all valid episodes that finished, those of dropped groups included, if there are any;
    means of the browsers' diagnostics (see Trajectory); and the counts of endings and groups."""
    valid = [t for t in collected.finished if t.valid]
    means = {}
    if valid:
        rewards = [t.reward for t in valid]
        last = [t.turns[-1] for t in valid]  # whose prompt and response hold the whole episode
        tokens = [turn.shared + len(turn.branch) + len(turn.response_ids) for turn in last]
        asked = [(turn.shared + len(turn.branch), turn.cached) for t in valid for turn in t.turns]
        means = {
            "success": mean(t.success for t in valid),
            **judge_metrics(valid),
            "reward": mean(rewards),
            "reward_std": pstdev(rewards),
            "tokens_mean": mean(tokens),
            "tokens_p90": np.quantile(tokens, 0.9, method="inverted_cdf").item(),
            "response_tokens": mean(t.response_tokens for t in valid),
            "turns": mean(len(t.turns) for t in valid),
            "prefix_hits": sum(cached for _, cached in asked) / sum(prompt for prompt, _ in asked),
        }
    parts = [t.final_state["rewards"] for t in valid if "rewards" in t.final_state]  # of recorded steps
    for name in parts[0] if parts else ():
        means[f"reward/{name}"] = mean(part[name] for part in parts)
    browsers = [t.diagnostics for t in collected.finished if t.diagnostics]
    for name in browsers[0] if browsers else ():
        means[f"browser/{name}"] = mean(browser[name] for browser in browsers if name in browser)
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
