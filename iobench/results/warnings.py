"""Warnings about the figures of a run: what happened, which cases it concerns, and what to do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from iobench.base import grouped, thresholds
from iobench.base.thresholds import LARGER_THAN_MEMORY, PART_WARMED
from iobench.base.units import bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.results import cases, stats
from iobench.results.cases import Groups
from iobench.results.record import Record, Rounds
from iobench.results.run_warning import (
    BACKGROUND_CPU,
    BACKGROUND_DISK,
    LONGER,
    MEMORY_PRESSURE,
    MORE_ROUNDS,
    BackgroundSign,
    RunWarning,
    Values,
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
OVERREAD = 1.25  # of what a part delivered, from which on an epoch would find much of it in memory


Check: TypeAlias = Callable[[Groups], "RunWarning | None"]


@dataclass(frozen=True)
class CaseCheck:
    """Decorator of a function that returns a case's figure, None or False where nothing is wrong with it.

    The warning holds the `worst` figure of all cases concerned: as a text in the message, and as the value
    of that name.
    """

    kind: str
    message: str  # with the worst figure as {}
    hints: tuple[str, ...] = ()
    value: str = ""
    text: Callable[[Any], str] = "{:.0%}".format
    worst: Callable[[Iterable[Any]], Any] = max

    def __call__(self, figure_of: Callable[[Rounds], Any]) -> Check:
        """Return the check of all cases."""

        def check(groups: Groups) -> RunWarning | None:
            figures = {key: figure_of(rounds) for key, rounds in groups.items()}
            bad = {key: figure for key, figure in figures.items() if not (figure is None or figure is False)}
            if not bad:
                return None
            worst = self.worst(bad.values())
            values = {self.value: worst} if self.value else {}
            return RunWarning(self.kind, self.message.format(self.text(worst)), list(bad), self.hints, values)

        return check


def above(threshold: float, figure: float | None) -> float | None:
    """Return a figure above a threshold, None for one that is not."""
    return figure if figure is not None and figure > threshold else None


def warnings_of(records: Sequence[Record], more_rounds: str = MORE_ROUNDS) -> list[RunWarning]:
    """Return all warnings about these records, those that could change the answer most first.

    `more_rounds` is the hint for more rounds of the command that shows them.
    """
    groups = cases.by_case(records)
    return case_warnings(groups, cases.labels_of(groups), more_rounds)


def case_warnings(
    groups: Groups, labels: Mapping[str, cases.Label], more_rounds: str = MORE_ROUNDS
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


def _unverified(groups: Groups) -> Iterator[RunWarning]:
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


def _first(values: Iterable[Any]) -> Any:
    return next(iter(values))


def _lower_cache(groups: Groups) -> RunWarning | None:
    """Warn if a cache below this kernel, such as a hypervisor's, served reads of cold rounds."""
    probes = [probe for one in groups.values() for r in one if (probe := r.cache.lower_cache_p50_s)]
    if not probes or len(probes[0]) != 2 or not probes[0][0] > thresholds.LOWER_CACHE_SPEEDUP * probes[0][1]:
        return None
    first, second = probes[0]
    return RunWarning(
        "lower-cache",
        "a cache below this kernel keeps data: reads after the first round may have come from it",
        hints=("prepare more data than it can hold", "treat the figures as cold for this kernel only"),
        values={"first_p50_s": first, "second_p50_s": second},
    )


@CaseCheck(
    "remote-cache",
    "cold for this machine only: {} may have read from a cache of its own or of its server",
    ("prepare more data than it can hold", "empty that cache before"),
    "file_system",
    text=str,
    worst=_first,
)
def _remote_cache(rounds: Rounds) -> str | None:
    """Warn that another machine or program may have served cold rounds from its memory."""
    disk = rounds[0].machine.disk
    return str(disk.file_system) if rounds[0].cache.mode == "cold" and disk.remote else None


def _slow_memory(groups: Groups) -> RunWarning | None:
    """Warn if the hypervisor had to provide memory again before cold rounds, which takes time."""
    backed = thresholds.BACKED_BYTES_PER_S
    rates = [r.cache.prefault_bytes_per_s or backed for rounds in groups.values() for r in rounds]
    slow = sum(rate < backed for rate in rates)
    if not slow:
        return None
    return RunWarning(
        "hypervisor-memory",
        f"the hypervisor provided memory at {rate_text(min(rates))}B/s before {slow} of "
        f"{counted(len(rates), 'round')}; iobench pays this before the clock starts, your training will pay "
        "it during reads",
        hints=("keep the machine busy", "give the virtual machine reserved memory"),
        values={"rounds": len(rates), "affected": slow, "bytes_per_s": min(rates)},
    )


@CaseCheck(
    "low-residency",
    "not warm: only {} of the pages were in memory before a round",
    ("free memory", "prepare less data"),
    "residency",
    worst=min,
)
def _not_warm(rounds: Rounds) -> float | None:
    """Warn if less than 99 % of the files' pages were in memory before a round of a warm case."""
    least = _least_residency(rounds)
    low = least is not None and least < thresholds.WARM_LIMIT
    return least if is_warm(rounds) and low and rounds[0].cache.method != LARGER_THAN_MEMORY else None


@CaseCheck(
    "larger-than-memory",
    "not warm: the data do not fit in memory, so the rounds read what was not in it from disk",
    ("give --cache cold", "prepare less data"),
)
def _larger_than_memory(rounds: Rounds) -> bool:
    """Warn if the files of a warm case do not fit in memory, so that there is no warm state of them."""
    return is_warm(rounds) and rounds[0].cache.method == LARGER_THAN_MEMORY


@CaseCheck(
    "cold-part",
    "rounds are parts of a cold epoch, and read up to {} times what they delivered: a whole epoch is faster, "
    "since its later batches find that in memory",
    ("give a longer --round-seconds",),
    "read_per_delivered",
    text="{:.1f}".format,
)
def _cold_part(rounds: Rounds) -> float | None:
    """Warn if parts of a cold epoch read more than they delivered, which the epoch would find in memory."""
    one = rounds[0]
    if one.cache.mode not in ("cold", "cold object") or one.case.get("order") == "sequential":
        return None
    if (one.dataset.stored_bytes or 0) >= one.machine.memory_bytes:
        return None
    return above(OVERREAD, statistics.median(map(_overread, rounds)))


def _overread(record: Record) -> float:
    """Return the share of the files that a part read, over the share of the samples that it delivered."""
    partial, stored = record.timing.partial, record.dataset.stored_bytes
    read = record.requests.fetched_bytes if record.requests else record.disk.read_bytes
    if partial is None or not stored or read is None:
        return 0.0
    return read / stored * partial.epoch_samples / record.timing.samples


@CaseCheck(
    "object-cache-disk",
    "the disk of the object cache did not take {}: the cache held less than it was allowed to",
    ("free space on the disk of --data-dir", "give a smaller --object-cache"),
    "pieces",
    text=lambda count: counted(count, "piece"),
    worst=sum,
)
def _rejected_pieces(rounds: Rounds) -> int | None:
    """Warn if the disk of an object cache did not take pieces, for want of space or for another reason."""
    return sum(one.requests.rejected_pieces for one in rounds if one.requests) or None


@CaseCheck(
    "unknown-residency",
    "residency unknown: the kernel does not show it to this user",
    ("run as the owner of the files",),
)
def _unknown_residency(rounds: Rounds) -> bool:
    """Warn if the residency of a warm case's files cannot be read by this user."""
    known = rounds[0].case["format"] != cases.OWN_DATA and rounds[0].cache.method not in (
        LARGER_THAN_MEMORY,
        PART_WARMED,
    )
    return known and is_warm(rounds) and _least_residency(rounds) is None


@CaseCheck(
    "mixed-eviction",
    "the page cache was emptied in different ways ({}): only root can drop all of it; elsewhere the file "
    "system's metadata stayed in memory",
    ("run as root on all hosts, or on none",),
    "method",
    text=str,
    worst=_first,
)
def _mixed_eviction(rounds: Rounds) -> str | None:
    """Warn if some hosts emptied the whole page cache, others evicted only the dataset's files."""
    return next((r.cache.method for r in rounds if r.cache.mode == "cold" and ", " in r.cache.method), None)


@CaseCheck(
    "page-reclaim",
    "a warm round read {} from disk: pages were reclaimed meanwhile",
    ("free memory",),
    "read_bytes",
    text=bytes_text,
)
def _page_reclaim(rounds: Rounds) -> float | None:
    """Warn if a warm case read from disk, because the kernel reclaimed pages during the run."""
    if not is_warm(rounds) or (_least_residency(rounds) or 0) < thresholds.WARM_LIMIT:
        return None
    read = [r.disk.read_bytes or 0 for r in rounds]
    shares = [of / r.timing.logical_bytes for of, r in zip(read, rounds, strict=True)]
    return statistics.median(read) if statistics.median(shares) > 1 - thresholds.WARM_LIMIT else None


def read_on_open(rounds: Rounds) -> float | None:
    """Return the share of the data that opening read in cold rounds; None where they stayed cold."""
    if rounds[0].cache.mode != "cold":
        return None
    shares = [(r.disk.opening_bytes or 0) * r.timing.epochs / r.timing.logical_bytes for r in rounds]
    return above(thresholds.OPENING_SHARE, statistics.median(shares))


@CaseCheck(
    "read-on-open",
    "not cold: opening read up to {} of the data before the clock started, so these cases are not in the "
    "verdict",
    ("measure more data", "add the time of opening, which --json and the report show"),
    "share",
)
def _read_on_open(rounds: Rounds) -> float | None:
    """Warn if opening read the data of a cold case before the clock started."""
    return read_on_open(rounds)


def is_warm(rounds: Rounds) -> bool:
    """Return whether a case was read with a warm cache."""
    return rounds[0].cache.mode == "warm"


def _least_residency(rounds: Rounds) -> float | None:
    known = [residency for r in rounds if (residency := r.cache.residency) is not None]
    return min(known) if len(known) == len(rounds) else None


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


def _sample_coverage(groups: Groups) -> RunWarning | None:
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


def _loader_order(groups: Groups) -> RunWarning | None:
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


def _few_rounds(groups: Groups) -> RunWarning | None:
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


def _short_rounds(groups: Groups) -> RunWarning | None:
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


def _spread(groups: Groups) -> RunWarning | None:
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

    def run(groups: Groups) -> RunWarning | None:
        contexts = cases.by_context(groups)
        for own in contexts:
            if (warning := check(own)) is not None:
                return replace(warning, cases=[] if len(contexts) == 1 else list(own))
        return None

    return run


@_by_context
def _drift(groups: Groups) -> RunWarning | None:
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
def _first_round(groups: Groups) -> RunWarning | None:
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


def _cycles(groups: Groups) -> list[float]:
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

    def check(groups: Groups) -> RunWarning | None:
        frequencies = {key: sign.frequency([r.background for r in rounds]) for key, rounds in groups.items()}
        affected = {key: seen for key, seen in frequencies.items() if seen is not None}
        if not affected:
            return None
        worst = max(affected, key=lambda key: affected[key].highest)
        return sign.warning(affected[worst], len(groups[worst]), cases=list(affected))

    return check


def _shared_limit(groups: Groups) -> RunWarning | None:
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


def _unstable_limits(groups: Groups) -> RunWarning | None:
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


def _unstable_cpu_speed(groups: Groups) -> RunWarning | None:
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
    *(_lower_cache, _remote_cache, _slow_memory, _not_warm, _larger_than_memory, _cold_part),
    *(_rejected_pieces, _unknown_residency, _mixed_eviction, _page_reclaim, _read_on_open),
    *(_above_limit, _profiling_cost, _sample_coverage, _loader_order, _short_window, _gds_inactive),
    *(_few_rounds, _short_rounds, _spread, _drift, _first_round),
    *(_steal, _suspended, _background_disk, _sign(BACKGROUND_CPU), _sign(MEMORY_PRESSURE)),
    *(_shared_limit, _unstable_limits, _unstable_cpu_speed, _throttled_device, _mixed_versions),
)
