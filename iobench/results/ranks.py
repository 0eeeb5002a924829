"""What several ranks did in a round: together, and each."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from iobench.base.units import counted
from iobench.results import stats
from iobench.results.parts import DiskPart, Measured, MemoryPart, ProcessorPart, TimingPart
from iobench.results.record import Record
from iobench.results.stats import Estimate


def together(measured: Sequence[Measured]) -> Measured:
    """The ranks of a round as one: samples, bytes and processor seconds are sums, the time is the slowest's.

    What is of the machine itself is that of the first rank. Waits are means, opening and first batch those
    of the last to have them.
    """
    if len(measured) == 1:
        return measured[0]
    first, timings = measured[0], [one.timing for one in measured]
    return replace(
        first,
        timing=_timing(timings),
        processor=_processor([one.processor for one in measured]),
        disk=DiskPart(
            read_bytes=_sum(one.disk.read_bytes for one in measured),
            opening_bytes=_sum(one.disk.opening_bytes for one in measured),
            device_read_bytes=first.disk.device_read_bytes,
        ),
        memory=MemoryPart(
            peak_bytes=_sum(one.memory.peak_bytes for one in measured),
            device_allocated_bytes=_sum(one.memory.device_allocated_bytes for one in measured),
            device_reserved_bytes=_sum(one.memory.device_reserved_bytes for one in measured),
        ),
        ranks=[part for one in measured for part in one.ranks or ()],
    )


def _timing(timings: Sequence[TimingPart]) -> TimingPart:
    first = timings[0]
    stages = [one.stages for one in timings if one.stages is not None]
    return TimingPart(
        samples=sum(one.samples for one in timings),
        logical_bytes=sum(one.logical_bytes for one in timings),
        epochs_s=first.epochs_s,
        epochs=first.epochs,
        open_s=max(one.open_s for one in timings),
        first_batch_s=max(one.first_batch_s for one in timings),
        wait_s=statistics.fmean(one.wait_s for one in timings),
        wait_p50_s=statistics.fmean(one.wait_p50_s for one in timings),
        wait_p99_s=max(one.wait_p99_s for one in timings),
        stages={name: statistics.fmean(one.get(name, 0.0) for one in stages) for name in stages[0]}
        if stages
        else None,
        beside_s=_mean(one.beside_s for one in timings),
        spans_s=_mean(one.spans_s for one in timings),
    )


def _processor(parts: Sequence[ProcessorPart]) -> ProcessorPart:
    return ProcessorPart(
        cpu_s=sum(one.cpu_s for one in parts),
        major_faults=sum(one.major_faults for one in parts),
        steal_s=parts[0].steal_s,
        pace_per_s=_mean(one.pace_per_s for one in parts),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """None where somebody does not know."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    """None where nobody knows."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class Slowest:
    """The rank that took longest by median, and whether that is sure: its interval lies beyond all others."""

    rank: int
    host: str
    seconds: Estimate  # of an epoch
    sure: bool

    @property
    def named(self) -> str:
        """The rank and its host, if that is sure."""
        return f"rank {self.rank} on {self.host}" if self.sure else "none surely"


def slowest(records: Sequence[Record]) -> Slowest | None:
    """Of the ranks of some rounds of a case the one that the others wait for; None where there is but one."""
    by_rank: dict[tuple[int, str], list[float]] = {}
    for record in records:
        for part in record.ranks or ():
            by_rank.setdefault((part.rank, part.host), []).append(part.own_s / record.timing.epochs)
    if not by_rank:
        return None
    found = {rank: stats.estimate(values) for rank, values in by_rank.items()}
    (rank, host), *others = sorted(found, key=lambda one: found[one].median, reverse=True)
    own = found[rank, host]
    ends = [found[other].high for other in others]
    sure = own.low is not None and all(end is not None and end < own.low for end in ends)
    return Slowest(rank, host, own, sure)


def rates(record: Record) -> list[float] | None:
    """Logical bytes per second of each rank by itself; None where there is but one."""
    return [part.logical_bytes / part.own_s for part in record.ranks] if record.ranks else None


def skew(record: Record) -> float | None:
    """How many times as long the slowest rank takes as the median one."""
    seconds = [part.own_s for part in record.ranks or ()]
    return max(seconds) / statistics.median(seconds) if seconds else None


def wait_share(record: Record) -> float | None:
    """The part of the time that the ranks other than the slowest waited for it, their mean."""
    seconds = [part.own_s for part in record.ranks or ()]
    if len(seconds) < 2:
        return None
    whole = record.timing.epochs_s
    return (len(seconds) * whole - sum(seconds)) / ((len(seconds) - 1) * whole)


def device_wait_share(record: Record) -> float:
    """The part of the time that devices waited for batches, or for the slowest rank; mean of the ranks."""
    timing = record.timing
    waits = [part.wait_s + timing.epochs_s - part.own_s for part in record.ranks or ()] or [timing.wait_s]
    return statistics.fmean(waits) / timing.epochs_s


def where(record: Record) -> str | None:
    """How many ranks on how many hosts, in words; None where there is but one."""
    if not record.ranks:
        return None
    hosts = {(part.node, part.host) for part in record.ranks}
    threads = {part.threads for part in record.ranks}
    each = f", {counted(threads.pop(), 'torch thread')} each" if len(threads) == 1 else ""
    return f"{counted(len(record.ranks), 'rank')} on {counted(len(hosts), 'host')}{each}"
