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


@pytest.mark.parametrize(
    ("waits", "work", "elapsed_s", "first_s", "quantiles"),
    [
        ([1, 2, 3], 100, 306, 1, [1, 2, 3]),  # waits exclude the consumer's time
        ([4, 1, 3, 2, 0], 7, 45, 4, [0, 2, 4]),
        ([], 1, 0, 0, [0, 0, 0]),
    ],
)
def test_waits_stand_apart_from_the_work_and_the_first_from_the_others(
    clock, waits, work, elapsed_s, first_s, quantiles
):
    meter = consume(clock, waits, work)
    noted = meter.waits
    assert (meter.elapsed_s, noted.total_s, noted.first_s) == (elapsed_s, sum(waits), first_s)
    assert [noted.quantile_s(q) for q in (0, 0.5, 1)] == quantiles


def test_the_first_wait_includes_starting_the_iterator(clock):
    class Slow:
        def __iter__(self):
            clock.spend(9)
            return iter("a")

    meter = Meter(clock)
    with meter:
        assert list(meter.over(Slow())) == ["a"]
    assert meter.waits.first_s == 9


def test_an_interval_that_fails_has_ended(clock):
    meter = Meter(clock)
    with contextlib.suppress(ZeroDivisionError), meter:
        clock.spend(2)
        clock.spend(1 / 0)
    assert meter.elapsed_s == 2
