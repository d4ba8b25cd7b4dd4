"""Small statistics for evaluations: how sure is a success rate measured on few episodes?"""

from __future__ import annotations

from math import sqrt


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a success rate; with z = 1.96 it is the 95% interval.

    Unlike mean +- z * deviation it stays inside [0, 1] and does not shrink to nothing at 0 or n
    successes, which is where small evaluations often land. With n = 0 nothing is known: (0, 1). A task that
    was tried several times may be a fraction of a success.

    >>> [round(bound, 3) for bound in wilson(0, 10)]
    [0.0, 0.278]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and n = {n}, but is {successes}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    denominator = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / denominator
    half = z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / denominator
    # At 0 and n the bound is exactly 0 or 1; rounding may leave it 1e-17 outside.
    return max(0.0, centre - half), min(1.0, centre + half)
