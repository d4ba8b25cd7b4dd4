"""Two agents on the same tasks: which one is better, and how sure that is.

Stands after evaluations. Agents that met the same tasks are compared task by task, which takes the tasks'
difficulty out of the difference; a task with several seeds counts once, with its mean. OpenWebRL compares
success rates (table 2) without intervals; here they have some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import mean


@dataclass(frozen=True)
class Paired:
    """How much better the second agent is than the first: `difference` with its interval [`low`, `high`]."""

    tasks: int  # that both have met
    first: float  # success rates on them, 0 to 1
    second: float
    difference: float  # second - first
    low: float
    high: float
    better: int  # tasks that the second solves more often
    worse: int
    unpaired: int  # tasks that only one has met; left out


def paired(
    first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]], z: float = 1.96
) -> Paired:
    """Return the difference of success rates on the tasks in both, each with one success or failure per seed;
    with z = 1.96 its interval is the 95% one. ValueError if no task is in both.

    Method: Agresti and Min, "Simple improved confidence intervals for comparing matched proportions",
    Statistics in Medicine 24 (2005): half a pair is added to each of the four outcomes (both, none, only
    first, only second), then the normal interval of a mean of paired differences is taken. So two agents that
    agree on all of 20 tasks are not proven equal, as the plain normal interval [0, 0] would have it. With
    several seeds a task's difference is that of its two means. With differences d of n tasks:

        centre = sum d / (n + 2)        variance = ((sum d^2 + 1) / (n + 2) - centre^2) / (n + 2)

    >>> p = paired({"a": [False], "b": [False], "c": [True]}, {"a": [True], "b": [True], "c": [True]})
    >>> round(p.difference, 3), p.better, p.worse
    (0.667, 2, 0)
    """
    common = sorted(task for task in first.keys() & second.keys() if first[task] and second[task])
    if not common:
        raise ValueError("the two evaluations have no task in common; compare evaluations of the same tasks")
    ours, theirs = ([mean(map(int, side[task])) for task in common] for side in (first, second))
    differences = [b - a for a, b in zip(ours, theirs, strict=True)]

    n = len(common)
    centre = fsum(differences) / (n + 2)
    variance = ((fsum(d * d for d in differences) + 1) / (n + 2) - centre * centre) / (n + 2)
    half = z * sqrt(variance)
    return Paired(
        tasks=n,
        first=fsum(ours) / n,
        second=fsum(theirs) / n,
        difference=fsum(differences) / n,
        low=max(-1.0, centre - half),
        high=min(1.0, centre + half),
        better=sum(d > 0 for d in differences),
        worse=sum(d < 0 for d in differences),
        unpaired=len(first.keys() | second.keys()) - n,
    )
