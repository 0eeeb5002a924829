"""All metrics, each declared once: name, unit, text form, meaning.

Tables, the report, exports and the reference are generated from this list.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iobench.base import grouped
from iobench.base.units import (
    GIB,
    MIB,
    bytes_text,
    counted,
    percent_text,
    price_text,
    rate_text,
    seconds_text,
    three_digits,
)
from iobench.results import stats
from iobench.results.parts import DECODING, RequestsPart
from iobench.results.record import Record, Rounds
from iobench.results.stats import Estimate

NO_STRAGGLER = "no clear straggler"
TOKENS = ("tokens", "input_ids")  # the usual names of fields of tokens
RoundFigure = Callable[[Record], "float | None"]


@dataclass(frozen=True)
class Metric:
    """A figure of a case.

    `of` returns it for one round, None where it was not measured; `over` aggregates the rounds. `main`
    metrics are in every table of cases that have them, the others with --wide or where they matter. With
    --wide, some have a column with their `interval`.
    """

    name: str  # in JSON and exports, ending in its unit
    title: str  # of its column
    text: Callable[[float], str]
    of: RoundFigure
    over: Callable[[list[float]], float | Estimate] = statistics.median
    main: bool = False
    interval: bool = False
    meaning: str = ""

    def means(self, meaning: str) -> Metric:
        """Return it with its meaning in words."""
        return replace(self, meaning=meaning)

    def summarise(self, rounds: Rounds) -> Estimate | None:
        """Return the figure over the rounds of a case; None where some round lacks it."""
        values = [value for value in map(self.of, rounds) if value is not None]
        if len(values) < len(rounds):
            return None
        figure = self.over(values)
        return figure if isinstance(figure, Estimate) else Estimate(figure)


def _last(values: list[float]) -> float:
    return values[-1]


def mib_text(value: float) -> str:
    """Return bytes, or bytes per second, in MiB."""
    return three_digits(value / MIB)


def epoch_share_text(share: float) -> str:
    """Return a share of an epoch as a percentage, rounded down, so that `100 %` is all of it."""
    return f"{math.floor(100 * share)} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def _read_bytes(record: Record) -> int | None:
    """Return the bytes that came from disk or store; None where a loader's own client fetched them."""
    if record.requests:
        return record.requests.fetched_bytes
    return None if record.cache.mode == "remote" else record.disk.read_bytes


def _of_requests(figure: Callable[[RequestsPart, Record], float | None]) -> RoundFigure:
    """Return a figure of the requests of a round; None for data on a disk."""
    return lambda record: figure(record.requests, record) if record.requests else None


def _of_content(name: str) -> RoundFigure:
    """Return a figure of the content check; None without one."""
    return lambda record: getattr(record.content_check, name) if record.content_check else None


def _of_ranks(record: Record, statistic: Callable[[list[float]], float]) -> float | None:
    rates = [part.logical_bytes / part.own_s for part in record.ranks or ()]
    return statistic(rates) if rates else None


def _of_tokens(record: Record, samples: float) -> float | None:
    """Return the tokens in so many samples of mean length; None without a field of tokens.

    Tokens are the integers of a field named so, or of the first ragged one of one axis; bytes are none.
    """
    integers = [one for one in record.dataset.fields if len(one.shape) == 1 and "int" in one.dtype]
    named = [one for one in integers if one.name in TOKENS]
    ragged = [one for one in integers if one.total is not None and one.dtype not in ("int8", "uint8")]
    if not (fields := [*named, *ragged]):
        return None
    first = fields[0]
    return samples * (first.shape[0] if first.total is None else first.total / (record.dataset.samples or 1))


def _decode_s(record: Record) -> float | None:
    if record.limit is None or record.limit.name != DECODING:
        return None
    return record.bytes_per_s / record.samples_per_s / record.limit.bytes_per_s


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
    by_rank = grouped(
        ((part.rank, part.host), part.own_s / record.timing.epochs)
        for record in records
        for part in record.ranks or ()
    )
    if not by_rank:
        return None
    times = {rank: stats.estimate(values) for rank, values in by_rank.items()}
    (rank, host), *others = sorted(times, key=lambda one: times[one].median, reverse=True)
    own = times[rank, host]
    ends = [times[other].high for other in others]
    significant = own.low is not None and all(end is not None and end < own.low for end in ends)
    return SlowestRank(rank, host, own, significant)


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


def _rate(name: str, title: str, text: Callable[[float], str], of: RoundFigure) -> Metric:
    return Metric(name, title, text, of, stats.estimate, main=True, interval=True)


def rank_layout(record: Record) -> str | None:
    """Return the number of ranks and hosts in words; None with a single rank."""
    if not record.ranks:
        return None
    hosts = {(part.node, part.host) for part in record.ranks}
    threads = {part.threads for part in record.ranks}
    each = f", {counted(threads.pop(), 'torch thread')} each" if len(threads) == 1 else ""
    return f"{counted(len(record.ranks), 'rank')} on {counted(len(hosts), 'host')}{each}"


METRICS: tuple[Metric, ...] = (
    _rate("samples_per_s", "samples/s", rate_text, lambda r: r.samples_per_s).means(
        "samples delivered to the device per second of an epoch; the clock stops after a device synchronize"
    ),
    _rate("bytes_per_s", "MiB/s", mib_text, lambda r: r.bytes_per_s).means(
        "logical bytes (uncompressed array bytes) delivered to the device per second of an epoch"
    ),
    _rate("tokens_per_s", "tokens/s", rate_text, lambda r: _of_tokens(r, r.samples_per_s)).means(
        "integers of a field of tokens (so named, or of different lengths) delivered to the device per second"
    ),
    Metric(
        "limit_bytes_per_s", "limit MiB/s", mib_text, lambda r: r.limit.bytes_per_s if r.limit else None, max
    ).means("lowest hardware limit on the path of the case's bytes, measured in the same run"),
    Metric("decode_s", "decode/sample", seconds_text, _decode_s).means(
        "seconds in which all cores together decode a sample without a loader, where that is the limit"
    ),
    Metric("wait_share", "waiting", percent_text, lambda r: r.timing.wait_s / r.timing.epochs_s).means(
        "share of the epochs that the step waited for batches: blocked in next(); on a GPU, its idle time"
    ),
    Metric(
        "headroom",
        "headroom",
        "{:.2f}".format,
        lambda r: _ratio(r.headroom_samples_per_s, r.samples_per_s),
        stats.estimate,
    ).means("speed of the same loop over batches already on the device, over the measured speed"),
    Metric("rank_min_bytes_per_s", "slowest rank MiB/s", mib_text, lambda r: _of_ranks(r, min)).means(
        "MiB/s of the slowest of several ranks, until its own device finished"
    ),
    Metric(
        "rank_bytes_per_s", "median rank MiB/s", mib_text, lambda r: _of_ranks(r, statistics.median)
    ).means("MiB/s of the median of several ranks"),
    Metric("rank_max_bytes_per_s", "fastest rank MiB/s", mib_text, lambda r: _of_ranks(r, max)).means(
        "MiB/s of the fastest of several ranks"
    ),
    Metric("rank_imbalance", "imbalance", "{:.2f}".format, imbalance).means(
        "time of the slowest rank over that of the median rank"
    ),
    Metric("straggler_wait_share", "straggler wait", percent_text, straggler_wait_share).means(
        "share of the time that the other ranks waited for the slowest"
    ),
    Metric("loss", "loss", "{:.9g}".format, lambda r: r.loss, _last).means(
        "training loss after a round's first epoch; equal for all cases with the same order"
    ),
    Metric(
        "shuffle_quality", "shuffle quality", percent_text, lambda r: r.shuffle_quality, _last, main=True
    ).means(
        "randomness of the batches of block order or a loader's own: 0 (one block) to about 1 (full shuffle)"
    ),
    Metric("fill", "fill", percent_text, _of_content("fill"), _last, main=True).means(
        "share of real elements in padded or packed batches; in jagged ones, were they padded to the longest"
    ),
    Metric("length_p50", "length p50", three_digits, _of_content("length_p50"), _last).means(
        "median length of the samples that were verified, where they differ"
    ),
    Metric("length_p99", "length p99", three_digits, _of_content("length_p99"), _last).means(
        "length that 99 % of the samples that were verified do not exceed, where they differ"
    ),
    Metric("epoch_s", "epoch", seconds_text, lambda r: r.epoch_s).means(
        "seconds of one epoch; a round repeats short epochs until it has lasted 0.2 s"
    ),
    Metric(
        "epoch_share", "part", epoch_share_text, lambda r: r.epochs if r.timing.partial else None, main=True
    ).means("share of an epoch that a round measured, where it is a part of one; the epoch is extrapolated"),
    Metric("open_s", "open", seconds_text, lambda r: r.timing.open_s).means(
        "seconds until the loader is ready for its first request; paid once per training, not per epoch"
    ),
    Metric("first_batch_s", "first batch", seconds_text, lambda r: r.timing.first_batch_s).means(
        "seconds until the first batch of a round, including the start of workers"
    ),
    Metric("wait_p50_s", "wait p50", seconds_text, lambda r: r.timing.wait_p50_s).means(
        "median wait for a batch"
    ),
    Metric("wait_p99_s", "wait p99", seconds_text, lambda r: r.timing.wait_p99_s).means(
        "99th percentile of the waits for a batch"
    ),
    Metric(
        "cpu_s_per_gib",
        "CPU s/GiB",
        "{:.2f}".format,
        lambda r: _ratio(r.processor.cpu_s, r.timing.logical_bytes / GIB),
    ).means("CPU seconds per GiB delivered, including workers"),
    Metric("disk_bytes", "disk", bytes_text, lambda r: _ratio(r.disk.read_bytes, r.epochs)).means(
        "bytes that an epoch read from disk, including workers"
    ),
    Metric(
        "read_amplification",
        "read amplification",
        "{:.2f}".format,
        lambda r: _ratio(_read_bytes(r), r.timing.logical_bytes),
    ).means("bytes read from disk, or fetched from an object store, per logical byte"),
    Metric("requests", "requests", rate_text, _of_requests(lambda q, r: q.count / r.epochs)).means(
        "requests to the object store for an epoch, those included that were sent again"
    ),
    Metric(
        "requests_per_gib",
        "requests/GiB",
        rate_text,
        _of_requests(lambda q, r: q.count / (r.timing.logical_bytes / GIB)),
    ).means(
        "requests to the object store for each GiB that was delivered, those included that were sent again"
    ),
    Metric(
        "requests_in_flight",
        "requests in flight",
        three_digits,
        _of_requests(lambda q, r: _ratio(q.total_s, r.timing.epochs_s)),
    ).means("mean number of requests to the object store at a time, from the times of those that succeeded"),
    Metric(
        "object_cache_hits",
        "cache hits",
        percent_text,
        _of_requests(lambda q, r: _ratio(q.cached_bytes, q.needed_bytes)),
        main=True,
    ).means("share of the bytes read of objects that the object cache held, so that they took no request"),
    Metric("request_retries", "retries", three_digits, _of_requests(lambda q, r: q.retries / r.epochs)).means(
        "requests to the object store that failed in an epoch and were sent again"
    ),
    Metric(
        "request_throttles",
        "throttles",
        three_digits,
        _of_requests(lambda q, r: _ratio(q.throttles, r.epochs)),
    ).means(
        "of the retries of an epoch, those that the object store refused for their rate (status 429 or 503)"
    ),
    Metric(
        "refetched_bytes",
        "refetched",
        bytes_text,
        _of_requests(lambda q, r: _ratio(q.refetched_bytes, r.epochs)),
    ).means(
        "bytes that an epoch fetched from an object store more than once, such as gaps between rows, pieces "
        "that several workers need, and requests that stalled and were sent a second time"
    ),
    Metric("epoch_cost", "cost/epoch", price_text, lambda r: r.epoch_cost, main=True).means(
        "price of an epoch's requests and of the bytes that they fetch, by the prices that --prices states"
    ),
    Metric("request_p50_s", "request p50", seconds_text, _of_requests(lambda q, r: q.p50_s)).means(
        "median time from a request to the object store to the last byte of its answer"
    ),
    Metric("request_p99_s", "request p99", seconds_text, _of_requests(lambda q, r: q.p99_s)).means(
        "99th percentile of the times of requests to the object store"
    ),
    Metric("memory_bytes", "memory", bytes_text, lambda r: r.memory.peak_bytes, max).means(
        "peak memory of the process, plus the USS of its workers, without the page cache"
    ),
    Metric(
        "device_allocated_bytes", "device alloc", bytes_text, lambda r: r.memory.device_allocated_bytes, max
    ).means("peak of device memory in use"),
    Metric(
        "device_reserved_bytes", "device reserved", bytes_text, lambda r: r.memory.device_reserved_bytes, max
    ).means("peak of device memory reserved by torch's allocator"),
    Metric("residency", "residency", "{:.1%}".format, lambda r: r.cache.residency).means(
        "share of the files' pages in the page cache before a round"
    ),
    Metric(
        "background_cpu_share",
        "background CPU",
        percent_text,
        lambda r: r.background.processors if r.background else None,
    ).means("share of CPU time used by other processes during the round"),
    Metric(
        "background_disk_bytes_per_s",
        "background disk",
        lambda value: f"{bytes_text(value)}/s",
        lambda r: r.background.disk_bytes_per_s if r.background else None,
    ).means("bytes per second read by other processes from the same disk during the round"),
    Metric(
        "profiling_share",
        "profiling",
        "{:.2%}".format,
        lambda r: _ratio(r.timing.profiling_s, r.timing.epochs_s),
    ).means("share of the epochs taken by --profile itself"),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def row_of(record: Record) -> dict[str, float | None]:
    """Return all metrics of one round by name, for an export."""
    return {metric.name: metric.of(record) for metric in METRICS}
