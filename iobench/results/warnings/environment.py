"""Warnings about the environment: background load, limits, CPU speed, device and software."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from iobench.base.thresholds import STEAL
from iobench.base.units import rate_text, three_digits
from iobench.results import background_signs, run_limits, stats
from iobench.results.background_signs import BackgroundSign
from iobench.results.cases import by_run
from iobench.results.record import Record
from iobench.results.run_warning import MORE_ROUNDS, Cases, Check, RunWarning

MAX_FOREIGN_READS = 0.05  # bytes read by other processes from the same disk, per logical byte
MAX_LIMIT_SPREAD = 0.3  # interquartile range of a limit's samples over their median
SHARED_LIMIT = 0.8  # rate of all hosts together over the sum of each alone: below it they share the resource
MAX_CPU_SPEED_SPREAD = 0.1  # interquartile range of the CPU speed over its median


def _steal(groups: Cases) -> RunWarning | None:
    """Warn if the hypervisor gave CPU time of this machine to others."""
    shares = {
        key: statistics.median((r.background and r.background.steal) or 0.0 for r in rounds)
        for key, rounds in groups.items()
    }
    affected = [key for key, share in shares.items() if share > STEAL]
    if not affected:
        return None
    return RunWarning(
        "cpu-steal",
        f"the hypervisor gave {max(shares.values()):.0%} of the CPU time to other machines",
        affected,
        ("run again at another time", MORE_ROUNDS),
        {"share": max(shares.values())},
    )


def _suspended(groups: Cases) -> RunWarning | None:
    """Warn if a process did not run at all for seconds of a round."""
    longest = {key: max(r.processor.suspended_s for r in rounds) for key, rounds in groups.items()}
    affected = [key for key, seconds in longest.items() if seconds > 0]
    if not affected:
        return None
    most = max(longest.values())
    return RunWarning(
        "suspended",
        f"the process did not run for {most:.0f} s of a round: it or the machine was suspended, or a library "
        "blocked it",
        affected,
        ("run again", MORE_ROUNDS),
        {"longest_s": most},
    )


def _background_disk(groups: Cases) -> RunWarning | None:
    """Warn if other processes read from the same disk during the rounds."""
    frequencies = {
        key: background_signs.frequency_above(list(map(_foreign_reads, rounds)), MAX_FOREIGN_READS)
        for key, rounds in groups.items()
    }
    affected = {key: seen for key, seen in frequencies.items() if seen is not None}
    if not affected:
        return None
    highest = max(seen.highest for seen in affected.values())
    size = f"{three_digits(highest)} ×" if highest >= 2 else f"{highest:.0%} of"
    return RunWarning(
        "background-disk",
        f"other processes read up to {size} the data's size from the same disk during a round",
        list(affected),
        background_signs.DISK.hints,
        {"share": highest},
    )


def _sign(sign: BackgroundSign) -> Check:
    """Return the check of a sign of background load in enough rounds of a case to move its median."""

    def check(groups: Cases) -> RunWarning | None:
        frequencies = {key: sign.frequency([r.background for r in rounds]) for key, rounds in groups.items()}
        affected = {key: seen for key, seen in frequencies.items() if seen is not None}
        if not affected:
            return None
        worst = max(affected, key=lambda key: affected[key].highest)
        return sign.warning(affected[worst], len(groups[worst]), cases=list(affected))

    return check


def _shared_limit(groups: Cases) -> RunWarning | None:
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


def _unstable_limits(groups: Cases) -> RunWarning | None:
    """Warn if a limit of the machine itself varied by more than 30 % during a run."""
    records = (record for rounds in groups.values() for record in rounds)
    limits = [
        (name, rates)
        for run in by_run(records).values()
        for name, rates in run_limits.measured_rates(run).items()
    ]
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


def _unstable_cpu_speed(groups: Cases) -> RunWarning | None:
    """Warn if the CPU speed varied between rounds, by heat or by other virtual machines."""
    all_speeds = (record.processor.cpu_speed_per_s for rounds in groups.values() for record in rounds)
    speeds = [speed for speed in all_speeds if speed]
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


def _throttled_device(groups: Cases) -> RunWarning | None:
    """Warn if the device ran below its clocks under load."""
    reasons = {
        key: {why for r in rounds for s in r.snapshots or () for why in s.gpu_throttled or ()}
        for key, rounds in groups.items()
    }
    throttled = [key for key, whys in reasons.items() if whys]
    if not throttled:
        return None
    names = ", ".join(sorted(set().union(*reasons.values())))
    return RunWarning(
        "device-throttling",
        f"the device ran below its clocks under load ({names})",
        throttled,
        ("improve its cooling", "raise its power limit"),
        {"reasons": names},
    )


def _mixed_versions(groups: Cases) -> RunWarning | None:
    """Warn if rounds of one case were measured with different software versions."""
    mixed, names = [], set()
    for key, rounds in groups.items():
        software = [
            {**r.machine.versions, "kernel": r.machine.kernel, "python": r.machine.python} for r in rounds
        ]
        differing = {name for one in software for name in one if one.get(name) != software[0].get(name)}
        if differing:
            mixed.append(key)
            names |= differing
    if not mixed:
        return None
    listed = ", ".join(sorted(names))
    return RunWarning(
        "mixed-versions",
        f"its rounds were measured with different versions of {listed}",
        mixed,
        ("compare the runs instead ('iobench compare')",),
        {"software": listed},
    )


def _quartile_spread(values: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for fewer than three values."""
    if len(values) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(values, method="inclusive")
    return (high - low) / middle


def _foreign_reads(record: Record) -> float:
    """Return the bytes that other processes read from the same disk, per logical byte; 0 without any."""
    if record.cache.mode == "remote" or not record.timing.logical_bytes:
        return 0.0
    if record.disk.device_read_bytes is None or record.disk.read_bytes is None:
        return 0.0
    return max(0, record.disk.device_read_bytes - record.disk.read_bytes) / record.timing.logical_bytes


CHECKS: tuple[Check, ...] = (
    _steal,
    _suspended,
    _background_disk,
    _sign(background_signs.CPU),
    _sign(background_signs.MEMORY),
    _shared_limit,
    _unstable_limits,
    _unstable_cpu_speed,
    _throttled_device,
    _mixed_versions,
)
