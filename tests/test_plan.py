"""Number and order of a run's rounds."""

import pytest
from kinds import kind
from record_cases import by_round

import iobench
from iobench.base.errors import InvalidSettings
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.rounds import interleaved, worst
from iobench.bench.run_strategies import AutoRounds, parse
from iobench.results import stats

SURE = {"a": by_round(*[100.0] * 5)}
UNSURE = {**SURE, "b": by_round(80.0, 90.0, 100.0, 110.0, 120.0)}


def continues(strategy, done, elapsed_s, rates, next_s=1.0):
    """Return whether another round follows, in which each case takes an equal part of `next_s`."""
    return strategy.after_round(done, elapsed_s, rates, dict.fromkeys(rates, next_s / len(rates)))[1]


@pytest.mark.parametrize(("wanted", "count"), [(3, 3), ("7", 7), ("auto", None)])
def test_a_number_or_auto(wanted, count):
    assert parse(wanted).planned == count


@pytest.mark.parametrize(
    ("wanted", "name", "value"),
    [
        (0, "out-of-range", "0"),
        ("-1", "out-of-range", "-1"),
        ("many", "not-a-number", "'many'"),
        ("1.5", "not-a-number", "'1.5'"),
    ],
)
def test_anything_else_is_refused(wanted, name, value):
    with pytest.raises(InvalidSettings, check=kind(name, found=value), match="--rounds"):
        parse(wanted)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("option", ["max_time", "timeout", "round_seconds"])
def test_seconds_are_a_number_above_0(option, seconds):
    with pytest.raises(InvalidSettings, check=kind("out-of-range", found=f"{seconds:g}")):
        RunOptions(**{option: seconds})


def test_a_number_of_rounds_does_not_depend_on_intervals():
    plan = parse(3)
    assert [continues(plan, done, 1e9, UNSURE) for done in range(5)] == [True, True, True, False, False]


def test_auto_continues_until_every_interval_is_narrow():
    plan = parse("auto", 100)
    assert continues(plan, 0, 0.0, UNSURE)
    assert continues(plan, stats.PAIRED_ROUNDS - 1, 1.0, SURE)
    assert not continues(plan, stats.PAIRED_ROUNDS, 1.0, SURE)
    assert continues(plan, stats.PAIRED_ROUNDS, 1.0, UNSURE)


def test_auto_ends_before_the_round_that_would_take_too_long():
    plan = parse("auto", 10)
    assert continues(plan, 9, 9.0, UNSURE)
    assert not continues(plan, 9, 9.1, UNSURE)
    assert not continues(plan, 1, 30.0, UNSURE)
    assert continues(plan, 0, 0.0, UNSURE, 99.0), "there is always one round"


def test_the_case_with_the_widest_interval_is_found():
    assert worst(UNSURE) == ("b", pytest.approx(0.2))
    assert worst({"a": {1: 1.0}}) == ("", 0.0)


def test_a_number_of_rounds_ends_with_max_time_too():
    plan = parse(5, 10)
    assert continues(plan, 3, 7.0, UNSURE, 3.0)
    assert not continues(plan, 3, 9.0, UNSURE, 3.0)
    assert not continues(plan, 5, 1.0, UNSURE)


def test_each_round_has_every_case_once_in_its_own_order():
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


def test_a_run_with_auto_notes_how_it_ended(images, tmp_path, ticking):
    seen = Counting()
    options = iobench.RunOptions(
        format=("npy",), loader=("native",), device=("cpu",), rounds="auto", max_time=2.0, limits=False
    )
    result = iobench.run(images, options, out=tmp_path / "r.jsonl", observer=seen)
    assert 1 <= len(result.records) == len(seen.records)
    note = result.notes[-1]
    assert note.values["rounds"] == len(result.records)
    rates = {"it": by_round(*[record.samples_per_s for record in result.records])}
    reach = worst(rates)[1]
    enough = len(result.records) >= stats.MIN_ROUNDS
    if not enough:
        assert note.kind == "auto-few-rounds"
        return
    assert note.kind == ("auto-precise" if reach <= 0.02 else "auto-imprecise")
    assert note.values["precision"] == reach


def test_a_round_without_time_for_a_case_does_not_count(images, tmp_path, monkeypatch):
    monkeypatch.setattr(AutoRounds, "skips", lambda self, number, *args: number > 2)
    monkeypatch.setattr(AutoRounds, "continues", lambda self, done, *args: done < 4)
    options = iobench.RunOptions(
        format=("npy",), loader=("native",), device=("cpu",), rounds="auto", limits=False
    )
    result = iobench.run(images, options, out=tmp_path / "r.jsonl")
    assert [one.round for one in result.records] == [1, 2]
    assert result.notes[-1].values["rounds"] == 2


def test_a_run_estimates_its_duration_before_the_rounds(images, tmp_path):
    lines = []

    class Listening(Observer):
        def status(self, text):
            lines.append(text)

    options = iobench.RunOptions(
        format=("npy",), loader=("native",), device=("cpu",), rounds="500", max_time=1.0, limits=False
    )
    result = iobench.run(images, options, out=tmp_path / "r.jsonl", observer=Listening())
    assert lines[-2].startswith("1 case × 500 rounds")
    assert lines[-2].endswith(" 1.00 s")  # of --max-time
    assert "1 of 500" in lines[-1]
    (note,) = result.notes
    assert note.kind == "max-time-reached"
    assert (note.values["rounds"], note.values["planned"]) == (len(result.records), 500)
