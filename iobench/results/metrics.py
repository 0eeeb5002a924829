"""Every figure that is shown, declared once: its name, its unit, how it is written, what it means.

Tables, the report, exports and the README's list are made from these.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iobench.base.units import MIB, bytes_text, percent_text, rate_text, seconds_text, three_digits
from iobench.results import ranks, stats
from iobench.results.record import Record
from iobench.results.stats import Estimate

Rounds = Sequence[Record]
OfRound = Callable[[Record], "float | None"]


@dataclass(frozen=True)
class Metric:
    """A figure of a case.

    `of` gives it for one round, None where that does not know; `over` makes one figure of those of
    all rounds. `main` ones stand in every table, others where there is room or more was asked for.
    """

    name: str  # in JSON and exports, ending in its unit
    title: str  # of its column
    meaning: str
    text: Callable[[float], str]
    of: OfRound
    over: Callable[[list[float]], Estimate]
    main: bool = False
    interval: Callable[[float], str] | None = None  # how the ends of its interval are written

    def summarise(self, rounds: Rounds) -> Estimate | None:
        """The figure over the rounds of a case; None where some round does not have it."""
        values = [value for value in map(self.of, rounds) if value is not None]
        return self.over(values) if len(values) == len(rounds) else None


def _median(values: list[float]) -> Estimate:
    return Estimate(statistics.median(values), None, None)


def _most(values: list[float]) -> Estimate:
    return Estimate(max(values), None, None)


def _last(values: list[float]) -> Estimate:
    return Estimate(values[-1], None, None)


def _mib(value: float) -> str:
    return three_digits(value / MIB)


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None else part / whole


def _per_epoch(seconds: float, record: Record) -> float:
    return seconds / record.timing.epochs


def _of_ranks(record: Record, one: Callable[[list[float]], float]) -> float | None:
    found = ranks.rates(record)
    return None if found is None else one(found)


def _spans(record: Record) -> float | None:
    return _ratio(record.timing.spans_s, record.timing.epochs_s)


METRICS: tuple[Metric, ...] = (
    Metric(
        "samples_per_s",
        "samples/s",
        "samples on the device per second of an epoch; the clock stops after the device is synchronised",
        rate_text,
        lambda r: r.samples_per_s,
        stats.estimate,
        main=True,
        interval=rate_text,
    ),
    Metric(
        "bytes_per_s",
        "MiB/s",
        "logical bytes (the array's own) on the device per second of an epoch",
        _mib,
        lambda r: r.bytes_per_s,
        stats.estimate,
        main=True,
        interval=_mib,
    ),
    Metric(
        "limit_bytes_per_s",
        "limit MiB/s",
        "the lowest limit on the way of the case's bytes, measured in the same run",
        _mib,
        lambda r: r.limit.bytes_per_s if r.limit else None,
        _most,
    ),
    Metric(
        "wait_share",
        "waiting",
        "part of the epochs that the step waited for batches: blocked in next(), "
        "or on a GPU its own idle time",
        percent_text,
        lambda r: r.timing.wait_s / r.timing.epochs_s,
        _median,
    ),
    Metric(
        "headroom",
        "headroom",
        "how many times as fast the same loop was over batches that were on the device already",
        lambda value: f"{value:.2f}",
        lambda r: None if r.headroom_samples_per_s is None else r.headroom_samples_per_s / r.samples_per_s,
        stats.estimate,
    ),
    Metric(
        "rank_min_bytes_per_s",
        "slowest rank's",
        "of several ranks: MiB/s of the slowest by itself, until its own device had finished",
        _mib,
        lambda r: _of_ranks(r, min),
        _median,
    ),
    Metric(
        "rank_bytes_per_s",
        "median rank's",
        "of several ranks: MiB/s of the median one",
        _mib,
        lambda r: _of_ranks(r, statistics.median),
        _median,
    ),
    Metric(
        "rank_max_bytes_per_s",
        "fastest rank's",
        "of several ranks: MiB/s of the fastest",
        _mib,
        lambda r: _of_ranks(r, max),
        _median,
    ),
    Metric(
        "rank_skew",
        "skew",
        "of several ranks: how many times as long the slowest takes as the median one",
        lambda value: f"{value:.2f}",
        ranks.skew,
        _median,
    ),
    Metric(
        "rank_wait_share",
        "others wait",
        "of several ranks: part of the time that the others waited for the slowest",
        percent_text,
        ranks.wait_share,
        _median,
    ),
    Metric(
        "loss",
        "loss",
        "training loss after a round's first epoch: equal for every case of one order",
        lambda value: f"{value:.9g}",
        lambda r: r.loss,
        _last,
    ),
    Metric(
        "shuffledness",
        "shuffled",
        "how random batches of block or a loader's own order are: 0 (one block) to about 1 (a full shuffle)",
        percent_text,
        lambda r: r.shuffledness,
        _last,
    ),
    Metric(
        "epoch_s",
        "epoch",
        "seconds of one epoch; a round repeats short ones until it has lasted 0.2 s",
        seconds_text,
        lambda r: r.epoch_s,
        _median,
    ),
    Metric(
        "open_s",
        "open",
        "seconds until the loader can be asked for its first batch; once a training, not once an epoch",
        seconds_text,
        lambda r: r.timing.open_s,
        _median,
    ),
    Metric(
        "first_batch_s",
        "first batch",
        "seconds until the first batch of a round, the start of workers included",
        seconds_text,
        lambda r: r.timing.first_batch_s,
        _median,
    ),
    Metric(
        "wait_p50_s",
        "wait p50",
        "what half of the waits for a batch do not exceed",
        seconds_text,
        lambda r: r.timing.wait_p50_s,
        _median,
    ),
    Metric(
        "wait_p99_s",
        "wait p99",
        "what 99 % of the waits for a batch do not exceed",
        seconds_text,
        lambda r: r.timing.wait_p99_s,
        _median,
    ),
    Metric(
        "cpu_s_per_gib",
        "CPU s/GiB",
        "processor seconds per GiB delivered, workers included",
        lambda value: f"{value:.2f}",
        lambda r: r.processor.cpu_s / (r.timing.logical_bytes / 2**30),
        _median,
    ),
    Metric(
        "disk_bytes",
        "disk",
        "bytes that an epoch fetched from disk, workers included",
        bytes_text,
        lambda r: None if r.disk.read_bytes is None else _per_epoch(r.disk.read_bytes, r),
        _median,
    ),
    Metric(
        "read_amplification",
        "disk/data",
        "bytes from disk per logical byte",
        lambda value: f"{value:.2f}",
        lambda r: _ratio(r.disk.read_bytes, r.timing.logical_bytes),
        _median,
    ),
    Metric(
        "memory_bytes",
        "memory",
        "peak of anonymous and shared memory, workers included; pages of the page cache do not count",
        bytes_text,
        lambda r: r.memory.peak_bytes,
        _most,
    ),
    Metric(
        "device_allocated_bytes",
        "device alloc",
        "peak of device memory in use",
        bytes_text,
        lambda r: r.memory.device_allocated_bytes,
        _most,
    ),
    Metric(
        "device_reserved_bytes",
        "device reserved",
        "peak of device memory that torch's allocator kept",
        bytes_text,
        lambda r: r.memory.device_reserved_bytes,
        _most,
    ),
    Metric(
        "residency",
        "in cache",
        "part of the files' pages in the page cache before a round",
        lambda value: f"{value:.1%}",
        lambda r: r.cache.residency,
        _median,
    ),
    Metric(
        "other_cpu_share",
        "others' CPU",
        "part of the processors' time that other processes used meanwhile",
        percent_text,
        lambda r: r.others.processors if r.others else None,
        _median,
    ),
    Metric(
        "other_disk_bytes_per_s",
        "others' disk",
        "bytes per second that other processes read from the disk under the data meanwhile",
        lambda value: f"{bytes_text(value)}/s",
        lambda r: r.others.disk_bytes_per_s if r.others else None,
        _median,
    ),
    Metric(
        "spans_share",
        "profiling",
        "part of the epochs that --profile itself took",
        lambda value: f"{value:.2%}",
        _spans,
        _median,
    ),
)
NAMED = {metric.name: metric for metric in METRICS}


def row_of(record: Record) -> dict[str, float | None]:
    """Every metric of one round by its name, for an export."""
    return {metric.name: metric.of(record) for metric in METRICS}
