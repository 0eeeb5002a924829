"""Statistics of several ranks: their total, imbalance and the slowest rank."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from iobench.base.units import counted
from iobench.results import stats
from iobench.results.record import Record
from iobench.results.stats import Estimate

NO_STRAGGLER = "no clear straggler"


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
