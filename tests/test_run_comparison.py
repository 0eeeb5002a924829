"""Two runs of a case differ only where the machine does not explain the difference."""

import dataclasses
import math
import random
import statistics

import pytest
from record_cases import MIB, STEADY, times, varied

from iobench.base import thresholds
from iobench.base.machine import BackgroundLoad
from iobench.results import stats
from iobench.results.run_comparison import MACHINE_CHANGED, compare_runs

MANY = STEADY * 3
QUIET, BUSY = BackgroundLoad(processors=0.02), BackgroundLoad(processors=0.5)


def run(factor=1.0, limits=(10_000, 10_050, 9_950), background=None, speeds=MANY):
    """Return rounds at a multiple of the usual speed, with samples of the limit and background load."""
    now = [limits[n * len(limits) // len(speeds)] * MIB for n in range(len(speeds))]
    records = varied("limit", "now_bytes_per_s", now, times(factor, speeds))
    each = background or [QUIET] * len(records)
    return [dataclasses.replace(one, background=load) for one, load in zip(records, each, strict=True)]


def outcome(base, new):
    return compare_runs(base, new, 0.05).comparison.outcome


NEIGHBOR = [BUSY] * 15
DISK = BackgroundLoad(disk_bytes_per_s=2 * thresholds.BACKGROUND_DISK_BYTES_PER_S)
STALLED = BackgroundLoad(memory_stalled=2 * thresholds.MEMORY_STALLED)
STOLEN = BackgroundLoad(steal=2 * thresholds.STEAL)
SLOWER_MACHINE = (2500, 2600, 2450)


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        ({}, {"factor": 1}, "equivalent"),
        ({}, {"factor": 0.85}, "slower"),
        ({}, {"factor": 1.2}, "faster"),
        # load alike on both sides is no change, and neither are limits that scatter
        ({"background": NEIGHBOR}, {"factor": 1, "background": NEIGHBOR}, "equivalent"),
        ({"background": NEIGHBOR}, {"factor": 0.85, "background": NEIGHBOR}, "slower"),
        ({"background": NEIGHBOR}, {"factor": 1.2, "background": NEIGHBOR}, "faster"),
        ({"limits": (9000, 12_000, 10_000)}, {"factor": 0.85, "limits": (8500, 11_500, 10_100)}, "slower"),
        # a case that slows down more than its machine, and one that does not slow down with it
        ({}, {"factor": 0.3, "limits": (8000, 8100, 7900)}, "slower"),
        ({}, {"factor": 1, "limits": SLOWER_MACHINE}, MACHINE_CHANGED),
        # each sign of background load counts
        ({}, {"factor": 0.7, "background": [STOLEN] * 15}, MACHINE_CHANGED),
        ({}, {"factor": 0.7, "background": [DISK] * 15}, MACHINE_CHANGED),
        ({}, {"factor": 0.7, "background": [STALLED] * 15}, MACHINE_CHANGED),
    ],
)
def test_a_difference_counts_where_the_machine_does_not_explain_it(base, new, expected):
    assert outcome(run(**base), run(**new)) == expected


def test_identical_commands_on_a_slower_machine_are_not_different():
    base, new = run(), run(0.25, limits=SLOWER_MACHINE)
    result = compare_runs(base, new, 0.05)
    assert result.comparison.outcome == MACHINE_CHANGED
    assert result.comparison.ratio.median == pytest.approx(0.25)
    assert result.machine.limit_ratio.median == pytest.approx(0.25, rel=0.05)
    assert result.doubt.kind == "limit-changed"
    assert result.doubt.values == {"limit": "page cache", "limit_ratio": result.machine.limit_ratio.median}
    assert outcome(new, base) == MACHINE_CHANGED


def test_background_load_in_most_rounds_leaves_no_verdict():
    result = compare_runs(run(), run(0.7, background=[QUIET] * 3 + [BUSY] * 12), 0.05)
    assert result.comparison.outcome == MACHINE_CHANGED
    assert result.doubt.kind == "background-load"
    assert result.doubt.values == {"quiet_rounds_base": 15, "quiet_rounds_new": 3}
    assert result.machine.quiet_rounds == (15, 3)


HALF_DISTURBED = {"speeds": [*MANY[:8], *times(0.5, MANY[8:])], "background": [QUIET] * 8 + [BUSY] * 7}


def test_background_load_from_the_middle_on_leaves_the_rounds_before():
    disturbed = run(**HALF_DISTURBED)
    assert outcome(run(), [dataclasses.replace(r, background=None) for r in disturbed]) != "equivalent"
    assert outcome(run(), run(0.85, **HALF_DISTURBED)) == "slower"
    result = compare_runs(run(), disturbed, 0.05)
    assert result.comparison.outcome == "equivalent"
    assert result.comparison.ratio.median == pytest.approx(result.new_rate.median / result.base_rate.median)
    plain = statistics.median(HALF_DISTURBED["speeds"]) / statistics.median(MANY)
    assert result.plain_ratio == pytest.approx(plain)


def test_cases_whose_rounds_were_taken_in_turns_are_compared_in_pairs():
    machine = [1000 * (1 + 0.5 * math.sin(number)) for number in range(15)]  # each round at another speed
    base, new = run(speeds=machine), run(0.87, speeds=machine)
    assert compare_runs(base, new, 0.05, in_turns=True).comparison.outcome == "slower"
    assert outcome(base, new) == "inconclusive"


def at_pace(records, pace):
    return [
        dataclasses.replace(r, processor=dataclasses.replace(r.processor, cpu_speed_per_s=pace + r.round))
        for r in records
    ]


def test_slower_processors_may_explain_a_difference():
    result = compare_runs(at_pace(run(), 5000), at_pace(run(0.7), 3500), 0.05)
    assert result.comparison.outcome == MACHINE_CHANGED
    assert result.doubt.kind == "cpu-speed-changed"
    assert result.doubt.values["cpu_speed_ratio"] == pytest.approx(0.7, rel=1e-3)
    assert outcome(at_pace(run(), 5000), at_pace(run(0.7), 5000)) == "slower"
    assert outcome(at_pace(run(), 5000), at_pace(run(0.5), 3500)) == "slower"
    assert outcome(at_pace(run(), 5000), run(0.7)) == "slower"  # not measured


def wandering(generator, rounds=15, alike=0.6, spread=0.05):
    """Return autocorrelated rates."""
    away, speeds = generator.gauss(0, 1), []
    for _ in range(rounds):
        speeds.append(1000 * (1 + spread * away))
        away = alike * away + (1 - alike**2) ** 0.5 * generator.gauss(0, 1)
    return speeds


def test_autocorrelated_rounds_do_not_narrow_the_interval():
    generator = random.Random(3)
    pairs = [(run(speeds=wandering(generator)), run(speeds=wandering(generator))) for _ in range(60)]
    ratios = [compare_runs(*pair, 0.05).comparison.ratio for pair in pairs]
    assert statistics.fmean(ratio.low <= 1 <= ratio.high for ratio in ratios) > 0.83
    shuffled = [
        compare_runs(run(), run(speeds=random.Random(n).sample(MANY, 15)), 0.05).comparison.ratio
        for n in range(5)
    ]
    assert all(ratio.high - ratio.low < 0.03 for ratio in shuffled)


def runs_of(medians):
    """Return a run for each of these speeds, whose rounds hardly scatter."""
    return [
        dataclasses.replace(record, run=f"run {number}")
        for number, median in enumerate(medians)
        for record in run(speeds=[median * factor for factor in (0.999, 1.0, 1.001, 1.0, 1.0)])
    ]


def test_runs_that_differ_widen_the_interval():
    """Within a run rounds differ by 0.1 %, between runs by 10 %: rounds alone would be significant."""
    base, new = [1000, 900, 1100], [880, 800, 970]
    result = compare_runs(runs_of(base), runs_of(new), 0.05)
    assert (result.runs, result.comparison.outcome, result.plain_ratio) == ((3, 3), "inconclusive", None)
    assert result.comparison.ratio.median == pytest.approx(result.new_rate.median / result.base_rate.median)
    one = compare_runs(runs_of([1000, 1010, 990, 1005]), runs_of([800]), 0.05)
    assert (one.runs, one.comparison.outcome) == ((4, 1), "slower")
    alone = compare_runs(runs_of(base[:1]), runs_of(new[:1]), 0.05)
    assert (alone.runs, alone.comparison.outcome) == ((1, 1), "slower")
    sure = compare_runs(runs_of([1000, 1010, 990]), runs_of([800, 805, 795]), 0.05)
    assert sure.comparison.outcome == "slower"
    assert sure.comparison.ratio.median == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (1, 5)])
def test_the_interval_of_runs_has_its_nominal_coverage(runs):
    generator, held = random.Random(1), 0
    for _ in range(400):
        base, new = ([1000 * math.exp(generator.gauss(0, 0.05)) for _ in range(n)] for n in runs)
        ratio = stats.student(base, new)
        held += ratio.low <= 1 <= ratio.high
    assert 0.92 <= held / 400 <= 0.98
