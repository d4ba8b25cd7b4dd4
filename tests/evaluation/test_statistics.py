"""The Wilson interval against numbers worked out by hand."""

from __future__ import annotations

import pytest

from minirl.evaluation.statistics import wilson


def test_five_of_ten_by_hand():
    # z^2 = 3.8416; denominator 1.38416; centre (0.5 + 0.19208) / 1.38416 = 0.5
    # half = 1.96 * sqrt(0.025 + 0.009604) / 1.38416 = 1.96 * 0.186022 / 1.38416 = 0.263411
    low, high = wilson(5, 10)
    assert low == pytest.approx(0.236589, abs=1e-5)
    assert high == pytest.approx(0.763411, abs=1e-5)


def test_one_of_four_with_z_two():
    # denominator 2; centre (0.25 + 0.5) / 2 = 0.375; half = 2 * sqrt(0.046875 + 0.0625) / 2 = 0.330719
    assert wilson(1, 4, z=2.0) == pytest.approx((0.044281, 0.705719), abs=1e-6)


def test_the_edges_stay_inside_and_keep_their_width():
    low, high = wilson(0, 20)  # high = z^2 / (n + z^2) = 3.8416 / 23.8416
    assert low == 0.0 and high == pytest.approx(3.8416 / 23.8416)
    low, high = wilson(20, 20)
    assert low == pytest.approx(20 / 23.8416) and high == 1.0


def test_the_interval_is_symmetric_under_swapping_success_and_failure():
    low, high = wilson(7, 50)
    assert wilson(43, 50) == pytest.approx((1 - high, 1 - low))


def test_nothing_measured_means_nothing_known():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match="between 0 and n"):
        wilson(successes, n)
