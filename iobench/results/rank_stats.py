"""Statistics of several ranks: their total, imbalance and the slowest rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from iobench.base.units import counted
from iobench.results import stats
from iobench.results.parts import DiskPart, Measured, MemoryPart, PartialEpoch, ProcessorPart, TimingPart
from iobench.results.record import Record
from iobench.results.stats import Estimate

NO_STRAGGLER = "no clear straggler"


def total_of_ranks(measured: Sequence[Measured]) -> Measured:
    """Combine the measurements of all ranks of a round.

    Samples, bytes and CPU seconds are sums; the time is that of the slowest rank. Waits are means; opening
    and first batch are maxima. Figures of the machine itself are those of the first rank.
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
        reader_threads_s=_mean(one.reader_threads_s for one in timings),
        profiling_s=_mean(one.profiling_s for one in timings),
        partial=_partial([one.partial for one in timings if one.partial is not None]),
    )


def _partial(parts: Sequence[PartialEpoch]) -> PartialEpoch | None:
    """Return the part of all ranks together, whose epoch lasts as long as that of the slowest."""
    if not parts:
        return None
    return replace(
        parts[0],
        epoch_s=max(one.epoch_s for one in parts),
        epoch_samples=sum(one.epoch_samples for one in parts),
    )


def _processor(parts: Sequence[ProcessorPart]) -> ProcessorPart:
    return ProcessorPart(
        cpu_s=sum(one.cpu_s for one in parts),
        major_faults=sum(one.major_faults for one in parts),
        steal_s=parts[0].steal_s,
        cpu_speed_per_s=_mean(one.cpu_speed_per_s for one in parts),
        suspended_s=max(one.suspended_s for one in parts),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None where any value is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None where there are none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


@dataclass(frozen=True)
class SlowestRank:
    """The rank with the longest median time.

    It is `significant` where its interval lies above the intervals of all other ranks.
    """

    rank: int
    host: str
    seconds: Estimate  # of an epoch
    significant: bool

    @property
    def name(self) -> str:
        """The rank and its host, where significant."""
        return f"rank {self.rank} on {self.host}" if self.significant else NO_STRAGGLER


def slowest_rank(records: Sequence[Record]) -> SlowestRank | None:
    """Return the slowest rank over the rounds of a case; None with a single rank."""
    by_rank: dict[tuple[int, str], list[float]] = {}
    for record in records:
        for part in record.ranks or ():
            by_rank.setdefault((part.rank, part.host), []).append(part.own_s / record.timing.epochs)
    if not by_rank:
        return None
    times = {rank: stats.estimate(values) for rank, values in by_rank.items()}
    (rank, host), *others = sorted(times, key=lambda one: times[one].median, reverse=True)
    own = times[rank, host]
    ends = [times[other].high for other in others]
    significant = own.low is not None and all(end is not None and end < own.low for end in ends)
    return SlowestRank(rank, host, own, significant)


def rates(record: Record) -> list[float] | None:
    """Return the logical bytes per second of each rank; None with a single rank."""
    return [part.logical_bytes / part.own_s for part in record.ranks] if record.ranks else None


def imbalance(record: Record) -> float | None:
    """Return the time of the slowest rank over that of the median rank; None with a single rank."""
    seconds = [part.own_s for part in record.ranks or ()]
    return max(seconds) / statistics.median(seconds) if seconds else None


def straggler_wait_share(record: Record) -> float | None:
    """Return the share of the time that the other ranks waited for the slowest, on average."""
    seconds = [part.own_s for part in record.ranks or ()]
    if len(seconds) < 2:
        return None
    whole = record.timing.epochs_s
    return (len(seconds) * whole - sum(seconds)) / ((len(seconds) - 1) * whole)


def device_wait_share(record: Record) -> float:
    """Return the share of the time that devices waited for batches or the slowest rank, on average."""
    timing = record.timing
    waits = [part.wait_s + timing.epochs_s - part.own_s for part in record.ranks or ()] or [timing.wait_s]
    return statistics.fmean(waits) / timing.epochs_s


def rank_layout(record: Record) -> str | None:
    """Return the number of ranks and hosts in words; None with a single rank."""
    if not record.ranks:
        return None
    hosts = {(part.node, part.host) for part in record.ranks}
    threads = {part.threads for part in record.ranks}
    each = f", {counted(threads.pop(), 'torch thread')} each" if len(threads) == 1 else ""
    return f"{counted(len(record.ranks), 'rank')} on {counted(len(hosts), 'host')}{each}"
