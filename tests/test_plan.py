"""How many rounds a run makes."""

import pytest

import iobench
from iobench.base.errors import (
    InvalidSettings,
)
from iobench.bench.observer import Observer
from iobench.bench.plan import RoundPlan, interleaved, worst
from iobench.results import stats

SURE, UNSURE = {"a": [100.0] * 5}, {"a": [100.0] * 5, "b": [80.0, 90.0, 100.0, 110.0, 120.0]}


@pytest.mark.parametrize(("wanted", "count"), [(3, 3), ("7", 7), ("auto", None)])
def test_a_number_or_auto(wanted, count):
    assert RoundPlan.parse(wanted).count == count


@pytest.mark.parametrize(
    ("wanted", "seconds", "said"),
    [
        (0, None, "rounds 0 is below 1"),
        ("-1", None, "rounds -1 is below 1"),
        ("many", None, "'many' is neither a number nor auto"),
        ("1.5", None, "neither a number"),
        ("5", -1.0, "max-time -1.0 is not a number of seconds above 0"),
        ("auto", 0.0, "max-time 0.0 is not a number of seconds above 0"),
        ("auto", float("nan"), "not a number of seconds"),
        ("auto", float("inf"), "not a number of seconds"),
    ],
)
def test_anything_else_is_refused(wanted, seconds, said):
    with pytest.raises(InvalidSettings, match=said):
        RoundPlan.parse(wanted, seconds)


def test_a_number_is_kept_whatever_comes_out():
    plan = RoundPlan.parse(3)
    assert [plan.go_on(done, 1e9, UNSURE) for done in range(5)] == [True, True, True, False, False]


def test_auto_goes_on_until_every_interval_is_narrow():
    plan = RoundPlan.parse("auto", 100)
    assert plan.go_on(0, 0.0, {})
    assert plan.go_on(stats.PAIRED - 1, 1.0, SURE)
    assert not plan.go_on(stats.PAIRED, 1.0, SURE)
    assert plan.go_on(stats.PAIRED, 1.0, UNSURE)


def test_auto_ends_before_the_round_that_would_take_too_long():
    plan = RoundPlan.parse("auto", 10)
    assert plan.go_on(9, 9.0, UNSURE)
    assert not plan.go_on(9, 9.1, UNSURE)
    assert not plan.go_on(1, 30.0, UNSURE)
    assert plan.go_on(0, 0.0, {}), "a run without a round says nothing"


def test_the_case_that_is_least_sure_is_named():
    assert worst(UNSURE) == ("b", pytest.approx(0.2))
    assert worst({"a": [1.0]}) == ("", 0.0)


def test_a_number_of_rounds_ends_with_max_time_too():
    plan = RoundPlan.parse(5, 10)
    assert plan.go_on(3, 7.0, UNSURE)
    assert not plan.go_on(3, 9.0, UNSURE)
    assert not plan.go_on(5, 1.0, UNSURE)


def test_each_round_has_everybody_once_in_an_order_of_its_own():
    turns = list(interleaved("abcdef", lambda done: done < 8, seed=1))
    rounds = [[item for number, item in turns if number == wanted] for wanted in range(1, 9)]
    assert all(sorted(one) == list("abcdef") for one in rounds)
    assert len({tuple(one) for one in rounds}) > 4
    assert turns == list(interleaved("abcdef", lambda done: done < 8, seed=1))
    assert turns != list(interleaved("abcdef", lambda done: done < 8, seed=2))


def test_the_first_round_can_be_sorted():
    turns = list(interleaved("cab", lambda done: done < 9, seed=1, first=ord))
    assert [item for number, item in turns if number == 1] == list("abc")
    assert len({tuple(item for number, item in turns if number == wanted) for wanted in range(2, 10)}) > 2


class Counting(Observer):
    def __init__(self):
        self.records = []

    def recorded(self, key, record):
        self.records.append(record)


def test_a_run_with_auto_says_how_it_ended(images, tmp_path):
    seen = Counting()
    options = iobench.RunOptions(
        format=("npy",), loader=("native",), device=("cpu",), rounds="auto", max_time=2.0, limits=False
    )
    found = iobench.run(images, options, out=tmp_path / "r.jsonl", observer=seen)
    assert 1 <= len(found.records) == len(seen.records)
    assert found.remarks[-1].startswith(f"{len(found.records)} rounds in ")
    rates = {"it": [record.samples_per_s for record in found.records]}
    narrow = worst(rates)[1] <= 0.02 and len(found.records) >= stats.ENOUGH
    assert ("within 2%" in found.remarks[-1]) == narrow


def test_a_grid_says_how_long_it_will_take_before_it_starts(images, tmp_path):
    said = []

    class Saying(Observer):
        def status(self, text):
            said.append(text)

    options = iobench.RunOptions(
        format=("npy",), loader=("native",), device=("cpu",), rounds="500", max_time=1.0, limits=False
    )
    found = iobench.run(images, options, out=tmp_path / "r.jsonl", observer=Saying())
    assert said[-2].startswith("1 case × 500 rounds: roughly ")
    assert "no round begins that would end after 1.00 s" in said[-2]
    assert said[-1].startswith("after 1 of 500 rounds: about ")
    assert found.remarks == [f"{len(found.records)} of 500 rounds were made before --max-time was over"]
