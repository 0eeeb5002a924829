"""Two runs of a case are told apart only where the machine cannot be blamed."""

import dataclasses
import math
import random
import statistics

import pytest
from record_cases import MIB, rounds_of

from iobench.base import thresholds
from iobench.results.between import CANNOT_TELL, compare_runs, over_runs
from iobench.results.following import following as find_following
from iobench.results.parts import LimitPart, OthersPart
from iobench.results.summary import summarise

STEADY = [1000, 1010, 990, 1005, 995] * 3
QUIET, BUSY = OthersPart(processors=0.02), OthersPart(processors=0.5)


def run(factor=1.0, limits=(10_000, 10_050, 9_950), others=None, speeds=STEADY):
    """Rounds of a run at so many times the usual speed, with what its limit and others did, in turn."""
    made = rounds_of([speed * factor for speed in speeds])
    now = [limits[n * len(limits) // len(made)] * MIB for n in range(len(made))]
    best = max(limits) * MIB
    looks = [LimitPart(name="page cache", bytes_per_s=best, now_bytes_per_s=look) for look in now]
    each = others or [QUIET] * len(made)
    return [
        dataclasses.replace(record, limit=look, others=other)
        for record, look, other in zip(made, looks, each, strict=True)
    ]


def outcome(base, new):
    return compare_runs(base, new, 0.05).comparison.outcome


@pytest.mark.parametrize(("factor", "called"), [(1, "equivalent"), (0.85, "slower"), (1.2, "faster")])
def test_on_a_machine_that_stays_as_it_is_a_difference_is_one(factor, called):
    assert outcome(run(), run(factor)) == called


def test_identical_commands_on_a_machine_that_became_slower_are_not_called_different():
    base, new = run(), run(0.25, limits=(2500, 2600, 2450))
    found = compare_runs(base, new, 0.05)
    assert found.comparison.outcome == CANNOT_TELL
    assert found.comparison.ratio.median == pytest.approx(0.25)
    assert found.machine.limit_change.median == pytest.approx(0.25, rel=0.05)
    assert "the machine's own page cache" in found.because
    assert outcome(new, base) == CANNOT_TELL


def test_records_of_before_looks_were_noted_tell_it_by_their_limits():
    def before(factor, mib_per_s):
        limit = LimitPart(name="page cache", bytes_per_s=mib_per_s * MIB)
        return [dataclasses.replace(record, others=None, limit=limit) for record in run(factor)]

    assert outcome(before(1, 5181), before(0.25, 1300)) == CANNOT_TELL
    assert outcome(before(1, 5181), before(0.25, 5100)) == "slower"


def test_what_got_much_slower_than_its_machine_is_slower():
    assert outcome(run(), run(0.3, limits=(8000, 8100, 7900))) == "slower"


def test_what_keeps_its_speed_on_another_machine_is_not_called_the_same():
    assert outcome(run(), run(1, limits=(2500, 2600, 2450))) == CANNOT_TELL


def test_limits_that_scatter_say_nothing_about_the_machine():
    assert outcome(run(limits=(9000, 12_000, 10_000)), run(0.85, limits=(8500, 11_500, 10_100))) == "slower"


def test_a_neighbour_in_most_rounds_leaves_nothing_to_tell():
    found = compare_runs(run(), run(0.7, others=[QUIET] * 3 + [BUSY] * 12), 0.05)
    assert found.comparison.outcome == CANNOT_TELL
    assert "other processes" in found.because
    assert found.machine.quiet == (15, 3)


def test_a_neighbour_who_comes_in_the_middle_leaves_the_rounds_before():
    speeds = [*STEADY[:8], *(speed * 0.5 for speed in STEADY[8:])]
    disturbed = run(speeds=speeds, others=[QUIET] * 8 + [BUSY] * 7)
    assert outcome(run(), disturbed) == "equivalent"
    assert outcome(run(), [dataclasses.replace(r, others=None) for r in disturbed]) != "equivalent"
    slower = run(0.85, speeds=speeds, others=[QUIET] * 8 + [BUSY] * 7)
    assert outcome(run(), slower) == "slower"


@pytest.mark.parametrize(
    "sign",
    [
        {"steal": 2 * thresholds.STEAL},
        {"disk_bytes_per_s": 2 * thresholds.OTHERS_DISK_BYTES_PER_S},
        {"memory_stalled": 2 * thresholds.MEMORY_STALLED},
    ],
)
def test_each_sign_of_other_work_counts(sign):
    assert outcome(run(), run(0.7, others=[OthersPart(**sign)] * 15)) == CANNOT_TELL


def at_pace(records, pace):
    return [
        dataclasses.replace(
            r, processor=dataclasses.replace(r.processor, pace_per_s=pace * (1 + r.round / 2000))
        )
        for r in records
    ]


def test_processors_that_became_slower_are_not_the_cases_fault():
    found = compare_runs(at_pace(run(), 5000), at_pace(run(0.7), 3500), 0.05)
    assert found.comparison.outcome == CANNOT_TELL
    assert "processors ran 0.70 × as fast beside the newer rounds" in found.because
    assert outcome(at_pace(run(), 5000), at_pace(run(0.7), 5000)) == "slower"
    assert outcome(at_pace(run(), 5000), at_pace(run(0.5), 3500)) == "slower"
    assert outcome(at_pace(run(), 5000), run(0.7)) == "slower"  # nobody noted it


def following(paces, times=1.0):
    """A run whose rounds follow these paces of a processor, but for the scatter of STEADY."""
    rounds = run(times, speeds=[speed * pace / 5000 for speed, pace in zip(STEADY, paces, strict=False)])
    return [
        dataclasses.replace(one, processor=dataclasses.replace(one.processor, pace_per_s=pace))
        for one, pace in zip(rounds, paces, strict=True)
    ]


MOSTLY_FAST = [5000] * 10 + [2600] * 5
MOSTLY_SLOW = [2600] * 9 + [5000] * 6
FAST_TO_SLOW = [5000] * 7 + [3800] + [2600] * 7
SLOW_TO_FAST = FAST_TO_SLOW[::-1]


def test_rounds_that_follow_the_processors_are_held_against_them():
    same = compare_runs(following(FAST_TO_SLOW), following(SLOW_TO_FAST), 0.05)
    assert same.paced
    assert same.comparison.outcome == "equivalent"
    assert outcome(following(FAST_TO_SLOW), following(SLOW_TO_FAST, 0.88)) == "slower"
    assert outcome(following(SLOW_TO_FAST), following(FAST_TO_SLOW, 1.15)) == "faster"


def test_a_pace_that_differs_between_the_runs_makes_the_ratio_less_sure():
    """What the power may differ by from run to run counts as far as the pace does."""
    same = compare_runs(following(MOSTLY_FAST), following(MOSTLY_SLOW), 0.05)
    assert same.paced
    assert same.comparison.outcome == "inconclusive"
    assert same.comparison.ratio.low < 0.9 < 0.99 < same.comparison.ratio.median < 1.01
    assert outcome(following(MOSTLY_FAST), following(MOSTLY_SLOW, 0.88)) == "inconclusive"
    assert outcome(following(MOSTLY_FAST), following(MOSTLY_SLOW, 0.6)) == "slower"
    assert outcome(following(MOSTLY_SLOW), following(MOSTLY_FAST, 1.6)) == "faster"


def test_rounds_may_follow_the_pace_by_another_power():
    def at_power(paces, power):
        return [
            dataclasses.replace(r, timing=dataclasses.replace(r.timing, epochs_s=r.timing.epochs_s * factor))
            for r, factor in zip(
                following(paces), [(5000 / pace) ** (power - 1) for pace in paces], strict=True
            )
        ]

    found = find_following([at_power(FAST_TO_SLOW, 1.4), at_power(SLOW_TO_FAST, 1.4)])
    assert found.power == pytest.approx(1.4, abs=0.05)
    assert outcome(at_power(FAST_TO_SLOW, 1.4), at_power(SLOW_TO_FAST, 1.4)) == "equivalent"
    assert find_following([at_power(FAST_TO_SLOW, 0.0)]).power == 0
    assert find_following([following(FAST_TO_SLOW)[:4]]).power == 0  # too few
    assert find_following([run()]).power == 0  # nobody noted it


def test_rounds_that_do_not_follow_the_processors_are_compared_as_they_are():
    base = at_pace(run(), 5000)
    new = [
        dataclasses.replace(one, processor=dataclasses.replace(one.processor, pace_per_s=pace))
        for one, pace in zip(run(0.8), MOSTLY_SLOW, strict=True)
    ]
    assert not compare_runs(base, new, 0.05).paced


def wandering(generator, rounds=15, alike=0.6, spread=0.05):
    """Rates that resemble the ones before them."""
    away, speeds = generator.gauss(0, 1), []
    for _ in range(rounds):
        speeds.append(1000 * (1 + spread * away))
        away = alike * away + (1 - alike**2) ** 0.5 * generator.gauss(0, 1)
    return speeds


def test_rounds_that_resemble_their_neighbours_do_not_make_an_interval_narrow():
    generator = random.Random(3)
    pairs = [(run(speeds=wandering(generator)), run(speeds=wandering(generator))) for _ in range(60)]
    ratios = [compare_runs(*pair, 0.05).comparison.ratio for pair in pairs]
    assert statistics.fmean(ratio.low <= 1 <= ratio.high for ratio in ratios) > 0.83
    shuffled = [
        compare_runs(run(), run(speeds=random.Random(n).sample(STEADY, 15)), 0.05).comparison.ratio
        for n in range(5)
    ]
    assert all(ratio.high - ratio.low < 0.03 for ratio in shuffled)


def runs_of(medians):
    """A run for each of these speeds, whose rounds hardly scatter."""
    return [
        dataclasses.replace(record, run=f"run {number}")
        for number, median in enumerate(medians)
        for record in run(speeds=[median * factor for factor in (0.999, 1.0, 1.001, 1.0, 1.0)])
    ]


def test_runs_that_differ_among_themselves_make_a_wide_interval():
    """Within a run rounds differ by 0.1 %, from run to run by 10 %: rounds alone would be sure."""
    base, new = [1000, 900, 1100], [880, 800, 970]
    found = compare_runs(runs_of(base), runs_of(new), 0.05)
    assert found.runs == (3, 3)
    assert found.comparison.outcome == "inconclusive"
    alone = compare_runs(runs_of(base[:1]), runs_of(new[:1]), 0.05)
    assert (alone.runs, alone.comparison.outcome) == ((1, 1), "slower")
    sure = compare_runs(runs_of([1000, 1010, 990]), runs_of([800, 805, 795]), 0.05)
    assert sure.comparison.outcome == "slower"
    assert sure.comparison.ratio.median == pytest.approx(0.8, rel=1e-3)


def test_one_run_is_held_against_several():
    found = compare_runs(runs_of([1000, 1010, 990, 1005]), runs_of([800]), 0.05)
    assert (found.runs, found.comparison.outcome) == ((4, 1), "slower")


@pytest.mark.parametrize("runs", [(2, 2), (3, 3), (1, 5)])
def test_the_interval_of_runs_holds_the_truth_as_often_as_it_says(runs):
    generator, held = random.Random(1), 0
    for _ in range(400):
        base, new = ([1000 * math.exp(generator.gauss(0, 0.05)) for _ in range(n)] for n in runs)
        ratio = over_runs(base, new)
        held += ratio.low <= 1 <= ratio.high
    assert 0.92 <= held / 400 <= 0.98


def test_limits_of_two_definitions_are_neither_compared_nor_mixed():
    """The same case on the same machine: what is called the page cache gives half as much by definition."""
    old, new = run(limits=(40_000, 40_100)), run(limits=(20_000, 20_050))
    new = [dataclasses.replace(r, run="r2", limit=dataclasses.replace(r.limit, definition=2)) for r in new]
    found = compare_runs(old, new, 0.05)
    assert found.comparison.outcome == "equivalent"
    assert (found.machine.limit_change, found.machine.redefined) == (None, "page cache")
    assert compare_runs(old, run(limits=(20_000, 20_050)), 0.05).comparison.outcome == CANNOT_TELL
    both = summarise(old + new)
    assert any("measured the page cache in an older way" in one.said for one in both.warnings)
    assert both.cases[0].value("limit_bytes_per_s") is None
    alone = summarise(old)
    assert alone.cases[0].value("limit_bytes_per_s") == 40_100 * MIB
    assert not any("older way" in one.said for one in alone.warnings)
