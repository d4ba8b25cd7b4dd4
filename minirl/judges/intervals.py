"""How sure a success rate is that was measured on few episodes: Wilson's interval.

The papers give rates without intervals.
"""

from math import sqrt

Z = 1.96  # of 95%


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval of a success rate. It stays inside [0, 1] and keeps its width at 0
    or n successes, where small evaluations often land; with n = 0 it is (0, 1).

    >>> [round(bound, 3) for bound in wilson(0, 10)]
    [0.0, 0.278]
    """
    assert 0 <= successes <= n, (successes, n)
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    denominator = 1 + Z * Z / n
    centre = (rate + Z * Z / (2 * n)) / denominator
    half = Z * sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n)) / denominator
    # At 0 and n the bound is exactly 0 or 1; rounding may leave it 1e-17 outside.
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_wilson(successes: int, episodes: int, tasks: int) -> tuple[float, float]:
    """Return the 95% interval of a rate over episodes; those of one task are much alike, and count once."""
    return wilson(successes * tasks / max(episodes, 1), tasks)
