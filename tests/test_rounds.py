"""How many rounds a run makes."""

import pytest

import iobench
from iobench.bench.observer import Observer
from iobench.bench.plan import Rounds, worst
from iobench.errors import InvalidSettings
from iobench.results import stats

SURE, UNSURE = {"a": [100.0] * 5}, {"a": [100.0] * 5, "b": [80.0, 90.0, 100.0, 110.0, 120.0]}


@pytest.mark.parametrize(("wanted", "count"), [(3, 3), ("7", 7), ("auto", None)])
def test_a_number_or_auto(wanted, count):
    assert Rounds.parse(wanted).count == count


@pytest.mark.parametrize(
    ("wanted", "seconds", "said"),
    [
        (0, None, "rounds 0 is below 1"),
        ("-1", None, "rounds -1 is below 1"),
        ("many", None, "'many' is neither a number nor auto"),
        ("1.5", None, "neither a number"),
        ("5", 10.0, "max-time goes with rounds auto"),
        ("auto", 0.0, "max-time 0.0 is not above 0"),
        ("auto", float("nan"), "not above 0"),
    ],
)
def test_anything_else_is_refused(wanted, seconds, said):
    with pytest.raises(InvalidSettings, match=said):
        Rounds.parse(wanted, seconds)


def test_a_number_is_kept_whatever_comes_out():
    plan = Rounds.parse(3)
    assert [plan.go_on(done, 1e9, UNSURE) for done in range(5)] == [True, True, True, False, False]


def test_auto_goes_on_until_every_interval_is_narrow():
    plan = Rounds.parse("auto", 100)
    assert plan.go_on(0, 0.0, {})
    assert plan.go_on(stats.ENOUGH - 1, 1.0, SURE)
    assert not plan.go_on(stats.ENOUGH, 1.0, SURE)
    assert plan.go_on(stats.ENOUGH, 1.0, UNSURE)


def test_auto_ends_before_the_round_that_would_take_too_long():
    plan = Rounds.parse("auto", 10)
    assert plan.go_on(9, 9.0, UNSURE)
    assert not plan.go_on(9, 9.1, UNSURE)
    assert not plan.go_on(1, 30.0, UNSURE)
    assert plan.go_on(0, 0.0, {}), "a run without a round says nothing"


def test_the_arm_that_is_least_sure_is_named():
    assert worst(UNSURE) == ("b", pytest.approx(0.2))
    assert worst({"a": [1.0]}) == ("", 0.0)


class Counting(Observer):
    def __init__(self):
        self.records = []

    def recorded(self, record):
        self.records.append(record)


def test_a_run_with_auto_says_how_it_ended(images, tmp_path):
    plan, seen = Rounds.parse("auto", 0.5), Counting()
    found = iobench.run(
        images, ["npy"], ["native"], device="cpu", rounds=plan, out=tmp_path / "r.jsonl", observer=seen
    )
    assert found.rounds is None
    assert 1 <= len(found.records) == len(seen.records)
    assert found.remarks[-1].startswith(f"{len(found.records)} rounds in ")
    rates = {"it": [record.samples_per_s for record in found.records]}
    narrow = worst(rates)[1] <= 0.02 and len(found.records) >= stats.ENOUGH
    assert ("within 2%" in found.remarks[-1]) == narrow
