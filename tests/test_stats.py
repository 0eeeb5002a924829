"""Statistics over rounds."""

import numpy as np
import pytest

from iobench.results import stats
from iobench.results.ranking import verdict_on
from iobench.results.stats import Estimate


def noisy(rng, centre, rounds=7, spread=0.05):
    return (centre * np.exp(rng.normal(0, spread, rounds))).tolist()


def verdict(rates):
    return verdict_on({label: dict(enumerate(values)) for label, values in rates.items()})


def test_the_median_is_the_middle_value():
    assert stats.estimate([3, 1, 2, 9, 4]).median == 3
    assert stats.estimate([1, 2, 3, 4]).median == 2.5


@pytest.mark.parametrize("values", [[5.0], [5.0, 7.0]])
def test_one_or_two_rounds_give_no_interval(values):
    assert stats.estimate(values) == Estimate(sum(values) / len(values), None, None)
    assert stats.ratio(values, values) == Estimate(1, None, None)
    assert stats.ratio(values, [1.0, 2.0, 3.0]).low is None


def test_equal_values_give_an_interval_of_no_width():
    assert stats.estimate([4.0] * 5) == Estimate(4, 4, 4)
    assert stats.ratio([4.0] * 5, [2.0] * 5) == Estimate(2, 2, 2)


def test_an_interval_lies_within_the_values_and_holds_the_median():
    values = noisy(np.random.default_rng(1), 100)
    result = stats.estimate(values)
    assert min(values) <= result.low <= result.median <= result.high <= max(values)


def test_three_rounds_are_as_wide_as_their_values():
    assert stats.estimate([1.0, 2.0, 4.0]) == Estimate(2, 1, 4)


def test_the_interval_of_many_normal_values_is_the_known_one():
    values = np.random.default_rng(2).normal(100, 10, 2_000)
    result = stats.estimate(values.tolist())
    expected = 1.96 * 1.2533 * 10 / np.sqrt(2_000)  # the standard error of a normal sample's median
    assert (result.high - result.low) / 2 == pytest.approx(expected, rel=0.25)


def test_the_interval_of_seventeen_values_ends_at_the_fifth_from_either_end():
    """The median of a resample is at most the fifth with a probability of 3.6 %, the fourth of 0.8 %."""
    values = [float(number) for number in range(1, 18)]
    assert stats.estimate(values) == Estimate(9, 5, 13)
    assert stats.ratio(values, [2.0] * 17) == Estimate(4.5, 2.5, 6.5)


def test_an_interval_is_reproducible():
    values = noisy(np.random.default_rng(3), 100)
    assert stats.estimate(values) == stats.estimate(values)


@pytest.mark.parametrize(
    ("rates", "outcome"),
    [
        ({"a": [100, 101, 102], "b": [50, 51, 52]}, "faster"),
        ({"a": [100, 101, 102], "b": [100, 101, 102]}, "equivalent"),
        ({"a": [100, 150, 300], "b": [90, 140, 310]}, "inconclusive"),
        ({"a": [104, 104, 104], "b": [97, 99, 101]}, "inconclusive"),  # its interval reaches below 1.05
        ({"a": [108] * 5, "b": [98, 99, 101, 102, 103]}, "faster"),
        (
            {"a": [103] * 5, "b": [98, 99, 100, 101, 102]},
            "inconclusive",
        ),  # below the minimum difference
        ({"a": [100, 101], "b": [50, 51]}, "faster"),
        ({"a": [100, 140], "b": [50, 90]}, "inconclusive"),
        ({"a": [100], "b": [50]}, "inconclusive"),
        ({"a": [100, 101, 102]}, "single"),
    ],
)
def test_the_verdict_is_no_stronger_than_the_intervals(rates, outcome):
    assert verdict(rates).outcome == outcome


def test_the_verdict_compares_the_two_fastest():
    result = verdict({"slow": [1, 1, 1], "fast": [4, 4, 4], "middle": [2, 2, 2]})
    assert (result.fastest, result.runner_up, result.ratio) == ("fast", "middle", Estimate(2, 2, 2))


def test_a_case_against_itself_is_called_faster_at_most_one_time_in_twenty(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 499)  # enough here, and ten times as quick
    rng = np.random.default_rng(4)
    outcomes = [
        verdict({"a": noisy(rng, 100, rounds=5), "a again": noisy(rng, 100, rounds=5)}).outcome
        for _ in range(200)
    ]
    assert outcomes.count("faster") <= 10


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


def test_the_whole_interval_of_few_rounds_has_to_exceed_the_minimum_difference():
    assert verdict({"a": [106, 109, 110], "b": [100, 101, 102]}).outcome == "inconclusive"
    assert verdict({"a": [120, 121, 122], "b": [100, 101, 102]}).outcome == "faster"


def test_many_cases_are_many_comparisons():
    rng = np.random.default_rng(8)
    rates = {f"case {number}": noisy(rng, 100 - number, 6) for number in range(8)}
    result = verdict(rates)
    assert result.correction == stats.correction(7)
    assert "7" in result.correction
    assert set(result.against) == set(rates) - {result.fastest}
    alone = stats.compare_rates(rates[result.fastest], rates[result.runner_up]).ratio
    assert result.ratio.low <= alone.low <= alone.high <= result.ratio.high


def test_rivals_have_no_significant_difference_from_the_fastest():
    result = verdict({"a": [100.0] * 5, "b": [99.0] * 5, "c": [98.0] * 5, "slow": [50.0] * 5})
    assert (result.outcome, result.fastest, result.rivals) == ("equivalent", "a", ["b", "c"])
    assert result.against["slow"].outcome == "faster"


def test_the_nearest_to_the_fastest_comes_first():
    fastest = [100.0] * 5 + [1000.0] * 5
    disturbed = [60.0] * 5 + [950.0] * 5  # of higher median than 90 % in each round
    result = verdict({"disturbed": disturbed, "steady": [0.9 * rate for rate in fastest], "fastest": fastest})
    assert list(result.against) == ["steady", "disturbed"]
    assert result.against["steady"].ratio.median < result.against["disturbed"].ratio.median


def test_the_fastest_is_ahead_in_the_rounds_that_it_shares_with_others():
    # the slower case was eliminated, and the machine became slower afterwards
    fast, slow = [110.0] * 10 + [80.0] * 12, [100.0] * 10
    result = verdict({"slow": slow, "fast": fast, "slowest": [50.0] * 3})
    assert (result.fastest, list(result.against)) == ("fast", ["slow", "slowest"])
    assert result.against["slow"].ratio.median == pytest.approx(1.1)
    assert result.outcome == "faster"


def test_an_eliminated_case_is_not_ahead_because_others_had_slow_rounds_of_their_own():
    rates = {
        "steady": [21.0, 21.2, 21.4, 21.3, 21.1, 21.2, 21.5],
        "often slow": [21.9, 22.0, 16.4, 14.0, 14.4, 21.7, 21.8],
        "eliminated": [15.0, 14.0, 16.7, 17.2, 17.4],
    }
    result = verdict(rates)
    assert (result.fastest, result.runner_up) == ("often slow", "steady")


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
