"""Warnings about the figures of a run: what happened, which cases it concerns, and what to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from iobench.base import grouped, thresholds
from iobench.base.units import counted, rate_text, seconds_text, three_digits
from iobench.results import cache_warnings, cases, stats
from iobench.results.cache_warnings import is_warm
from iobench.results.record import Record, Rounds
from iobench.results.run_warning import (
    BACKGROUND_CPU,
    BACKGROUND_DISK,
    LONGER,
    MEMORY_PRESSURE,
    MORE_ROUNDS,
    BackgroundSign,
    CaseCheck,
    Check,
    RunWarning,
    Values,
    above,
    frequency_above,
)

# kinds of warnings about the machine and its background load, not about the cases
MACHINE_KINDS = (
    "cpu-steal",
    "suspended",
    "background-disk",
    "background-cpu",
    "memory-pressure",
    "unstable-limits",
    "unstable-cpu-speed",
)
MIN_SHUFFLE_QUALITY = 0.5
MAX_PROFILING_SHARE = 0.01  # of an epoch
MAX_SPREAD = 0.10  # robust standard deviation over median
MIN_DRIFT = 0.10  # from the first round to the last
SIGNIFICANCE = 0.05  # probability of such a drift in rounds that only scatter
MIN_OFFSET = 0.10  # of a first round from the rest, and at least three times their spread
MAX_FOREIGN_READS = 0.05  # bytes read by other processes from the same disk, per logical byte
MAX_LIMIT_SPREAD = 0.3  # interquartile range of a limit's samples over their median
SHARED_LIMIT = 0.8  # rate of all hosts together over the sum of each alone: below it they share the resource
MAX_CPU_SPEED_SPREAD = 0.1  # interquartile range of the CPU speed over its median


def warnings_of(records: Sequence[Record], more_rounds: str = MORE_ROUNDS) -> list[RunWarning]:
    """Return all warnings about these records, those that could change the answer most first.

    `more_rounds` is the hint for more rounds of the command that shows them.
    """
    groups = cases.by_case(records)
    return case_warnings(groups, cases.labels_of(groups), more_rounds)


def case_warnings(
    groups: cases.Groups, labels: Mapping[str, cases.Label], more_rounds: str = MORE_ROUNDS
) -> list[RunWarning]:
    """Return all warnings about cases that are grouped and labelled already."""
    results = [check(groups) for check in CHECKS] if groups else []
    return [
        replace(
            warning,
            cases=[str(labels[key]) for key in warning.cases],
            hints=tuple(more_rounds if hint == MORE_ROUNDS else hint for hint in warning.hints),
        )
        for warning in (*_unverified(groups), *results)
        if warning is not None
    ]


def _unverified(groups: cases.Groups) -> Iterator[RunWarning]:
    """Yield a warning for each set of reasons why content was not verified, with its cases."""
    every = {
        key: next((one.unverified for one in rounds if one.unverified), []) for key, rounds in groups.items()
    }
    alike = grouped(("; ".join(map(str, reasons)), key) for key, reasons in every.items() if reasons)
    for said, keys in alike.items():
        values: Values = {"reasons": ", ".join(one.kind for one in every[keys[0]])}
        yield RunWarning("unverified-content", f"content not verified: {said}", keys, values=values)


def _united(sets: Iterable[set[str]]) -> str:
    return ", ".join(sorted(set().union(*sets)))


@CaseCheck(
    "above-limit",
    "faster than its measured limit ({} ×), even after measuring it again",
    (MORE_ROUNDS,),
    "ratio",
    text="{:.2f}".format,
)
def _above_limit(rounds: Rounds) -> float | None:
    """Warn if a case was faster than its measured limit, so that the limit was measured too low."""
    limits = [r.limit.bytes_per_s for r in rounds if r.limit]
    return above(1, statistics.median(r.bytes_per_s for r in rounds) / max(limits)) if limits else None


@CaseCheck(
    "profiling-cost",
    "--profile itself took {} of the epoch",
    ("give a larger --batch-size",),
    "share",
    text="{:.1%}".format,
)
def _profiling_cost(rounds: Rounds) -> float | None:
    """Warn if `--profile` itself took more than 1 % of an epoch."""
    shares = [(r.timing.profiling_s or 0) / r.timing.epochs_s for r in rounds]
    return above(MAX_PROFILING_SHARE, statistics.median(shares))


def _sample_coverage(groups: cases.Groups) -> RunWarning | None:
    """Warn if a loader dropped or repeated samples in an epoch, counted by the content check."""
    checks = {key: rounds[0].content_check for key, rounds in groups.items()}
    lossy = {key: check for key, check in checks.items() if check and (check.dropped or check.repeated)}
    if not lossy:
        return None
    samples = max(groups[key][0].dataset.samples or 0 for key in lossy)
    counts = {name: max(getattr(check, name) for check in lossy.values()) for name in ("dropped", "repeated")}
    counted = " and ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return RunWarning(
        "sample-coverage",
        f"{counted} of {samples:,} samples in an epoch: two epochs need not train on the same ones",
        list(lossy),
        values={**counts, "samples": samples},
    )


def _loader_order(groups: cases.Groups) -> RunWarning | None:
    """Warn if a loader's own order is not the stored one, or shuffles only a little."""
    checks = {key: check for key, rounds in groups.items() if (check := rounds[0].content_check)}
    unordered = [key for key, check in checks.items() if check.in_order is False]
    qualities = {key: quality for key, one in checks.items() if (quality := one.shuffle_quality) is not None}
    poor = {key: quality for key, quality in qualities.items() if quality < MIN_SHUFFLE_QUALITY}
    if not unordered and not poor:
        return None
    parts = ["samples did not arrive in stored order"] if unordered else []
    if poor:
        parts.append(f"its shuffle quality is only {min(poor.values()):.0%} of a full shuffle")
    return RunWarning(
        "loader-order",
        "; ".join(parts),
        [*unordered, *poor],
        values={"shuffle_quality": min(poor.values())} if poor else {},
    )


@CaseCheck(
    "short-window",
    "--max-time ended a round early: its figure includes more of the loader's start",
    (LONGER,),
)
def _short_window(rounds: Rounds) -> bool:
    """Warn if --max-time ended a round before its window was long enough."""
    return any(r.timing.partial is not None and r.timing.partial.short for r in rounds)


@CaseCheck("gds-inactive", "GPUDirect Storage was not active: KvikIO read with POSIX calls, through the host")
def _gds_inactive(rounds: Rounds) -> bool:
    """Warn if KvikIO read through the host, because GPUDirect Storage was not active."""
    case = rounds[0].case
    return bool(case["loader"] == "gds" and (case.get("options") or {}).get("mode") == "posix")


def _few_rounds(groups: cases.Groups) -> RunWarning | None:
    """Warn if there are fewer than five rounds: intervals lack their nominal coverage."""
    fewest = min(map(len, groups.values()))
    if fewest >= stats.ENOUGH_ROUNDS:
        return None
    return RunWarning(
        "few-rounds",
        f"{counted(fewest, 'round')}: too few for a reliable interval",
        hints=(f"give --rounds {stats.ENOUGH_ROUNDS} or more",),
        values={"rounds": fewest, "enough": stats.ENOUGH_ROUNDS},
    )


def _short_rounds(groups: cases.Groups) -> RunWarning | None:
    """Warn if rounds of a warm case last less than 0.2 s; a cold round is one epoch, however short."""
    enough_s = thresholds.ROUND_S
    times = {
        key: statistics.median(r.timing.epochs_s for r in one) for key, one in groups.items() if is_warm(one)
    }
    short = [key for key, time in times.items() if time < enough_s]
    if not short:
        return None
    least = min(times.values())
    return RunWarning(
        "short-rounds",
        f"rounds of only {seconds_text(least)} (below {seconds_text(enough_s)}) measure momentary "
        "disturbances as much as the case",
        short,
        ("prepare more data (--size)",),
        {"seconds": least, "enough_s": enough_s},
    )


def _spread(groups: cases.Groups) -> RunWarning | None:
    """Warn if rounds of a case differ by more than 10 % (robust standard deviation)."""
    spreads = {key: stats.spread(_rates(rounds)) for key, rounds in groups.items() if len(rounds) > 2}
    wide = [key for key, spread in spreads.items() if spread > MAX_SPREAD]
    if not wide:
        return None
    own = [r for key in wide for r in groups[key] if r.facets["loader"] == "native"]  # may gather by torch
    threads = max((r.processor.torch_threads or 1 for r in own), default=1)
    fewer = (f"try OMP_NUM_THREADS=1: torch's {threads} threads wait for each other beside other work",)
    return RunWarning(
        "round-spread",
        f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)",
        wide,
        ("stop background work", *(fewer if threads > 1 else ()), "prepare more data", MORE_ROUNDS),
        {"spread": max(spreads.values())},
    )


def _by_context(check: Check) -> Check:
    """Return the check applied to each context separately: its rounds have a course of their own."""

    def run(groups: cases.Groups) -> RunWarning | None:
        contexts = cases.by_context(groups)
        for own in contexts:
            if (warning := check(own)) is not None:
                return replace(warning, cases=[] if len(contexts) == 1 else list(own))
        return None

    return run


@_by_context
def _drift(groups: cases.Groups) -> RunWarning | None:
    """Warn if rounds got steadily faster or slower; slowing cold rounds suggest a throttling disk.

    All cases are taken together, because a change of the machine affects all. The first round is excluded.
    """
    cycles = _cycles(groups)[1:]
    if len(cycles) < stats.ENOUGH_ROUNDS - 1:
        return None
    change, chance = stats.trend(cycles)
    least_chance = stats.trend(range(1, len(cycles) + 1))[1]  # that Kendall's test can give for so many
    if abs(change) < MIN_DRIFT or chance > max(SIGNIFICANCE, least_chance):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} during the run"
    cold = next(iter(groups.values()))[0].cache.mode == "cold"
    if cold and change < 0:
        return RunWarning(
            "disk-throttling",
            f"{course}: the disk may throttle after a burst",
            hints=("wait, and give --rounds 20 to see where it settles",),
            values={"change": change},
        )
    return RunWarning(
        "drift",
        f"{course}: the machine warms up, slows down or is shared",
        hints=("wait, and run again",),
        values={"change": change},
    )


@_by_context
def _first_round(groups: cases.Groups) -> RunWarning | None:
    """Warn if the first round differs from the rest, because something was not set up yet."""
    first, *rest = _cycles(groups) or [1.0]
    if len(rest) < stats.ENOUGH_ROUNDS - 1:
        return None
    offset = first / statistics.median(rest) - 1
    if abs(offset) < max(MIN_OFFSET, 3 * stats.spread(rest)):
        return None
    difference = f"{abs(offset):.0%} {'faster' if offset > 0 else 'slower'}"
    return RunWarning(
        "first-round",
        f"the first round was {difference} than the rest: something was not set up yet",
        hints=("give --warmup 2",),
        values={"offset": offset},
    )


def _rates(rounds: Rounds) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(groups: cases.Groups) -> list[float]:
    """Return, for each round that all cases have, the mean of their rates over their medians."""
    parts = []
    for rounds in groups.values():
        in_order = sorted(rounds, key=lambda r: (r.time, r.round))
        middle = statistics.median(_rates(rounds))
        parts.append([rate / middle for rate in _rates(in_order)])
    return [statistics.geometric_mean(cycle) for cycle in zip(*parts, strict=False)]


@CaseCheck(
    "cpu-steal",
    "the hypervisor gave {} of the CPU time to other machines",
    ("run again at another time", MORE_ROUNDS),
    "share",
)
def _steal(rounds: Rounds) -> float | None:
    """Warn if the hypervisor gave CPU time of this machine to others."""
    shares = [(r.background and r.background.steal) or 0.0 for r in rounds]
    return above(thresholds.STEAL, statistics.median(shares))


@CaseCheck(
    "suspended",
    "the process did not run for {} s of a round: it or the machine was suspended, or a library blocked it",
    ("run again", MORE_ROUNDS),
    "longest_s",
    text="{:.0f}".format,
)
def _suspended(rounds: Rounds) -> float | None:
    """Warn if a process did not run at all for seconds of a round."""
    return above(0, max(r.processor.suspended_s for r in rounds))


@CaseCheck(
    "background-disk",
    "other processes read up to {} the data's size from the same disk during a round",
    BACKGROUND_DISK.hints,
    "share",
    text=lambda highest: f"{three_digits(highest)} ×" if highest >= 2 else f"{highest:.0%} of",
)
def _background_disk(rounds: Rounds) -> float | None:
    """Warn if other processes read from the same disk during the rounds."""
    seen = frequency_above(list(map(_foreign_reads, rounds)), MAX_FOREIGN_READS)
    return seen and seen.highest


def _foreign_reads(record: Record) -> float:
    """Return the bytes that other processes read from the same disk, per logical byte; 0 without any."""
    if record.cache.mode == "remote" or not record.timing.logical_bytes:
        return 0.0
    if record.disk.device_read_bytes is None or record.disk.read_bytes is None:
        return 0.0
    return max(0, record.disk.device_read_bytes - record.disk.read_bytes) / record.timing.logical_bytes


def _sign(sign: BackgroundSign) -> Check:
    """Return the check of a sign of background load in enough rounds of a case to move its median."""

    def check(groups: cases.Groups) -> RunWarning | None:
        frequencies = {key: sign.frequency([r.background for r in rounds]) for key, rounds in groups.items()}
        affected = {key: seen for key, seen in frequencies.items() if seen is not None}
        if not affected:
            return None
        worst = max(affected, key=lambda key: affected[key].highest)
        return sign.warning(affected[worst], len(groups[worst]), cases=list(affected))

    return check


def _shared_limit(groups: cases.Groups) -> RunWarning | None:
    """Warn if several hosts share a resource: together they get less than the sum of each alone."""
    shares = {
        (limit.name, limit.bytes_per_s / limit.alone_bytes_per_s)
        for rounds in groups.values()
        for limit in (record.limit for record in rounds)
        if limit is not None and limit.alone_bytes_per_s
    }
    name, share = min(shares, key=lambda one: one[1], default=("", 1.0))
    if share > SHARED_LIMIT:
        return None
    return RunWarning(
        "shared-limit",
        f"the hosts share the {name}: together they got {share:.0%} of the sum of each alone; more hosts "
        "will not read faster from it",
        values={"limit": name, "share": share},
    )


def _unstable_limits(groups: cases.Groups) -> RunWarning | None:
    """Warn if a limit of the machine itself varied by more than 30 % during a run."""
    runs = cases.by_run(record for rounds in groups.values() for record in rounds).values()
    limits = [item for run in runs for item in cases.measured_rates(run).items()]
    spread, name, rates = max(
        ((_quartile_spread(rates), name, rates) for name, rates in limits), default=(0.0, "", [])
    )
    if spread < MAX_LIMIT_SPREAD:
        return None
    return RunWarning(
        "unstable-limits",
        f"the machine's own {name} limit varied during the run, between {rate_text(min(rates))}B/s and "
        f"{rate_text(max(rates))}B/s",
        hints=("stop background work and measure again",),
        values={"limit": name, "lowest_bytes_per_s": min(rates), "highest_bytes_per_s": max(rates)},
    )


def _unstable_cpu_speed(groups: cases.Groups) -> RunWarning | None:
    """Warn if the CPU speed varied between rounds, by heat or by other virtual machines."""
    speeds = [speed for one in groups.values() for r in one if (speed := r.processor.cpu_speed_per_s)]
    if len(speeds) < stats.ENOUGH_ROUNDS or _quartile_spread(speeds) < MAX_CPU_SPEED_SPREAD:
        return None
    slow, *_, fast = statistics.quantiles(speeds, n=10, method="inclusive")
    return RunWarning(
        "unstable-cpu-speed",
        f"the CPU speed varied by a factor of {fast / slow:.1f} between rounds (heat, or other virtual "
        "machines)",
        hints=("measure again at another time", MORE_ROUNDS),
        values={"ratio": fast / slow},
    )


def _quartile_spread(values: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for fewer than three values."""
    if len(values) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(values, method="inclusive")
    return (high - low) / middle


@CaseCheck(
    "device-throttling",
    "the device ran below its clocks under load ({})",
    ("improve its cooling", "raise its power limit"),
    "reasons",
    text=str,
    worst=_united,
)
def _throttled_device(rounds: Rounds) -> set[str] | None:
    """Warn if the device ran below its clocks under load."""
    return {why for r in rounds for one in r.snapshots or () for why in one.gpu_throttled or ()} or None


@CaseCheck(
    "mixed-versions",
    "its rounds were measured with different versions of {}",
    ("compare the runs instead ('iobench compare')",),
    "software",
    text=str,
    worst=_united,
)
def _mixed_versions(rounds: Rounds) -> set[str] | None:
    """Warn if rounds of one case were measured with different software versions."""
    first, *others = [
        {**r.machine.versions, "kernel": r.machine.kernel, "python": r.machine.python} for r in rounds
    ]
    return {name for one in others for name in one if one.get(name) != first.get(name)} or None


CHECKS: tuple[Check, ...] = (
    *cache_warnings.CHECKS,
    *(_above_limit, _profiling_cost, _sample_coverage, _loader_order, _short_window, _gds_inactive),
    *(_few_rounds, _short_rounds, _spread, _drift, _first_round),
    *(_steal, _suspended, _background_disk, _sign(BACKGROUND_CPU), _sign(MEMORY_PRESSURE)),
    *(_shared_limit, _unstable_limits, _unstable_cpu_speed, _throttled_device, _mixed_versions),
)
