"""Numbers of a step's episodes: success, rewards, lengths and groups.

Stands at the end of a training step. What `rollout_metrics` returns goes into metrics.jsonl.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import mean, pstdev

import numpy as np

from minirl.rollout import Collected
from minirl.types import Trajectory


def judge_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of episodes that earned 1 where a judge rewards them (`--reward.by judge`), beside
    the true `success`. Empty if no judge was asked about a task that can tell the truth."""
    for t in valid:
        if t.task.goal and t.verdict and t.verdict.success is not None:
            return {"judged_success": mean(t.reward == 1 for t in valid)}
    return {}


def rollout_metrics(collected: Collected) -> dict[str, float]:
    """Return means over all valid episodes that finished, those of dropped groups included, if there are any,
    and the counts of endings, groups and unreadable responses."""
    finished = collected.finished
    valid = [t for t in finished if t.valid]
    means = episode_means(valid) if valid else {}
    # the parts of a recorded step's reward
    parts = [t.final_state["rewards"] for t in valid if "rewards" in t.final_state]
    for name in parts[0] if parts else ():
        means[f"reward/{name}"] = mean(part[name] for part in parts)
    stops = Counter(f"stop/{t.stop.value}" for t in finished)
    parsed = [turn.parsed for t in finished for turn in t.turns]
    kinds = Counter(f"format/{response.kind}" for response in parsed if response.error)
    counts = {
        "episodes": len(finished),
        "invalid": len(finished) - len(valid),
        "groups_submitted": collected.submitted,
        "groups_kept": len(collected.groups),
        "groups_dropped": collected.dropped,
    }
    return means | counts | stops | kinds


def episode_means(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Return means over episodes: of success, reward, and lengths in tokens and turns."""
    rewards = [t.reward for t in valid]
    tokens = [t.turns[-1].context_tokens for t in valid]
    return {
        "success": mean(t.success for t in valid),
        **judge_metrics(valid),
        "reward": mean(rewards),
        "reward_std": pstdev(rewards),
        "tokens_mean": mean(tokens),
        "tokens_p90": np.quantile(tokens, 0.9, method="inverted_cdf").item(),
        "response_tokens": mean(t.response_tokens for t in valid),
        "turns": mean(len(t.turns) for t in valid),
    }
