import numpy as np
import pytest

from iobench import stats
from iobench.stats import Estimate


def noisy(rng, centre, rounds=7, spread=0.05):
    return (centre * np.exp(rng.normal(0, spread, rounds))).tolist()


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
    found = stats.estimate(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_three_rounds_are_as_wide_as_their_values():
    assert stats.estimate([1.0, 2.0, 4.0]) == Estimate(2, 1, 4)


def test_the_interval_of_many_normal_values_is_the_known_one():
    values = np.random.default_rng(2).normal(100, 10, 2_000)
    found = stats.estimate(values.tolist())
    expected = 1.96 * 1.2533 * 10 / np.sqrt(2_000)  # the standard error of a normal sample's median
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.25)


def test_an_interval_does_not_change_when_it_is_asked_for_again():
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
        ({"a": [103] * 5, "b": [98, 99, 100, 101, 102]}, "inconclusive"),  # sure, but is it worth naming?
        ({"a": [100, 101], "b": [50, 51]}, "inconclusive"),
        ({"a": [100, 101, 102]}, "single"),
    ],
)
def test_the_verdict_is_no_more_than_the_intervals_allow(rates, outcome):
    assert stats.verdict(rates).outcome == outcome


def test_the_verdict_compares_the_two_fastest():
    found = stats.verdict({"slow": [1, 1, 1], "fast": [4, 4, 4], "middle": [2, 2, 2]})
    assert (found.fastest, found.runner_up, found.ratio) == ("fast", "middle", Estimate(2, 2, 2))


def test_an_arm_against_itself_is_called_faster_at_most_one_time_in_twenty(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 499)  # enough here, and ten times as quick
    rng = np.random.default_rng(4)
    outcomes = [
        stats.verdict({"a": noisy(rng, 100, rounds=5), "a again": noisy(rng, 100, rounds=5)}).outcome
        for _ in range(200)
    ]
    assert outcomes.count("faster") <= 10
