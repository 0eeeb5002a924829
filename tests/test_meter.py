import contextlib

import pytest

from iobench.bench.meter import Meter


class FakeClock:
    """A clock that moves only by `spend`."""

    def __init__(self):
        self.now = 1_000

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock():
    return FakeClock()


def slowly(clock, waits):
    for wait in waits:
        clock.spend(wait)
        yield wait


def consume(clock, waits, work):
    meter = Meter(clock)
    with meter:
        for _ in meter.over(slowly(clock, waits)):
            clock.spend(work)
    return meter


def test_waits_exclude_the_consumers_time(clock):
    assert consume(clock, [1, 2, 3], work=100).waits.total_s == 6


def test_elapsed_has_both(clock):
    assert consume(clock, [1, 2, 3], work=100).elapsed_s == 306


def test_the_first_wait_stands_apart(clock):
    assert consume(clock, [5, 1, 1], work=0).waits.first_s == 5


def test_quantiles_are_of_the_waits(clock):
    meter = consume(clock, [4, 1, 3, 2, 0], work=7)
    assert [meter.waits.quantile_s(q) for q in (0, 0.5, 1)] == [0, 2, 4]


def test_items_come_through_as_they_are(clock):
    assert list(Meter(clock).over("abc")) == ["a", "b", "c"]


def test_the_first_wait_includes_starting_the_iterator(clock):
    class Slow:
        def __iter__(self):
            clock.spend(9)
            return iter("a")

    meter = Meter(clock)
    with meter:
        list(meter.over(Slow()))
    assert meter.waits.first_s == 9


def test_without_items_there_are_no_waits(clock):
    meter = consume(clock, [], work=1)
    assert (meter.elapsed_s, meter.waits.total_s, meter.waits.first_s, meter.waits.quantile_s(0.5)) == (
        0,
        0,
        0,
        0,
    )


def test_an_interval_that_fails_has_ended(clock):
    meter = Meter(clock)
    with contextlib.suppress(ZeroDivisionError), meter:
        clock.spend(2)
        clock.spend(1 / 0)
    assert meter.elapsed_s == 2
