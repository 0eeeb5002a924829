"""Statistics over rounds."""

import numpy as np
import pytest

from iobench.results import stats
from iobench.results.stats import Estimate


def noisy(rng, centre, rounds=7, spread=0.05):
    return (centre * np.exp(rng.normal(0, spread, rounds))).tolist()


SEVENTEEN = [float(number) for number in range(1, 18)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], Estimate(5)),
        ([5.0, 7.0], Estimate(6)),
        ([4.0] * 5, Estimate(4, 4, 4)),
        ([4.0, 1.0, 2.0], Estimate(2, 1, 4)),
        # the median of a resample is at most the fifth with a probability of 3.6 %, the fourth of 0.8 %
        (SEVENTEEN, Estimate(9, 5, 13)),
    ],
)
def test_an_estimate_is_the_median_and_its_interval(values, expected):
    assert stats.estimate(values) == expected
    assert stats.ratio(values, [2.0] * len(values)) == expected.times(0.5)
    assert (stats.ratio(values, [1.0, 2.0, 3.0]).low is None) == (len(values) < 3)


def test_the_interval_of_many_normal_values_is_the_known_one():
    values = np.random.default_rng(2).normal(100, 10, 2_000)
    result = stats.estimate(values.tolist())
    expected = 1.96 * 1.2533 * 10 / np.sqrt(2_000)  # the standard error of a normal sample's median
    assert (result.high - result.low) / 2 == pytest.approx(expected, rel=0.25)


def disturbed(rng, rounds, speeds):
    """Return cases on a machine whose speed changes from round to round by up to a third."""
    speed_of_round = np.exp(rng.choice([0.0, -0.35], rounds)) * np.exp(rng.normal(0, 0.02, rounds))
    return [
        dict(enumerate((speed * speed_of_round * np.exp(rng.normal(0, 0.02, rounds))).tolist()))
        for speed in speeds
    ]


def test_interleaved_cases_share_the_disturbances_of_each_round():
    rng = np.random.default_rng(5)
    pairs = [disturbed(rng, 21, (100, 90)) for _ in range(20)]
    apart = [stats.compare_rates(list(a.values()), list(b.values())).outcome for a, b in pairs]
    together = [stats.compare_paired(a, b).outcome for a, b in pairs]
    assert together.count("faster") >= 19
    assert apart.count("faster") < 10


@pytest.mark.parametrize("rounds", [5, 7, 10, 15, 31])
def test_a_case_against_itself_is_called_different_at_most_one_time_in_twenty(monkeypatch, rounds):
    monkeypatch.setattr(stats, "RESAMPLES", 499)
    rng = np.random.default_rng(6)
    for spread in (0.03, 0.12):
        pairs = [[dict(enumerate(noisy(rng, 100, rounds, spread))) for _ in "ab"] for _ in range(200)]
        outcomes = [stats.compare_paired(a, b).outcome for a, b in pairs]
        assert outcomes.count("faster") + outcomes.count("slower") <= 13  # 5 % of 200, and luck


def test_rounds_that_only_one_case_has_are_excluded():
    one = {number: 100.0 + number % 3 for number in range(12)}
    other = {**{number: 50.0 + number % 3 / 2 for number in range(12)}, 12: 1e9}
    assert stats.compare_paired(one, other).ratio == Estimate(2, 2, 2)


def test_few_rounds_or_many_comparisons_are_compared_by_medians():
    rng = np.random.default_rng(7)
    one, other = (dict(enumerate(noisy(rng, speed, 12))) for speed in (100, 60))
    by_round, by_median = (
        stats.compare_paired(one, other),
        stats.compare_rates([*one.values()], [*other.values()]),
    )
    assert by_round != by_median
    assert stats.compare_paired(one, other, comparisons=1000).ratio.median == by_median.ratio.median
    few = [dict(list(case.items())[:9]) for case in (one, other)]
    assert stats.compare_paired(*few) == stats.compare_rates(*([*case.values()] for case in few))


def test_the_interval_of_paired_ratios_is_the_exact_one():
    ratios = [1.0 + number / 100 for number in range(12)]
    result = stats.compare_paired(dict(enumerate(ratios)), dict.fromkeys(range(12), 1.0)).ratio
    assert (result.low, result.high) == (ratios[2], ratios[9])  # 3rd and 10th of 12: 96.1 %


def test_a_trend_is_the_rise_and_its_p_value():
    change, chance = stats.trend([100, 110, 120, 130, 140])
    assert change == pytest.approx(40 / 120)
    assert chance < 0.05
    change, chance = stats.trend([100, 101, 100, 99, 100, 101])
    assert abs(change) < 0.02
    assert chance > 0.5
    assert stats.trend(list(range(1, 5001)))[0] == pytest.approx(2, rel=0.05)


def test_spread_is_the_standard_deviation_of_normal_values_and_ignores_outliers():
    values = np.random.default_rng(9).normal(100, 5, 1000)
    assert stats.spread(values.tolist()) == pytest.approx(0.05, rel=0.1)
    assert stats.spread([100, 101, 99, 100, 1000]) < 0.02
