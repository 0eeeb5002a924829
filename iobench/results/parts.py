"""The typed parts of a record; each field says by its type how what several ranks measured is joined."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Required, TypedDict, TypeVar, get_type_hints

import msgspec

from iobench.base.errors import InvalidSettings, conflict
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.base.text import shortened
from iobench.base.units import GIB

T = TypeVar("T")


def _mean(values: Sequence[Any]) -> Any:
    known = [one for one in values if one is not None]
    if known and isinstance(known[0], dict):
        return {name: statistics.fmean(one.get(name, 0.0) for one in known) for name in known[0]}
    return statistics.fmean(known) if known else None


Summed = Annotated[T, lambda values: None if None in values else sum(values)]  # None where any is unknown
Largest = Annotated[T, lambda values: max((one for one in values if one is not None), default=None)]
Averaged = Annotated[T, _mean]  # of the known ones; a dict by key
OfFirst = Annotated[T, lambda values: values[0]]  # the same for all ranks, or of the machine itself
OfRank = Annotated[T, lambda values: None]  # of a single rank only
Listed = Annotated[T, lambda values: [item for one in values for item in one or ()]]
# a part whose own fields declare it
Part = Annotated[T, lambda values: joined([one for one in values if one is not None] or [None])]


def joined(parts: Sequence[T]) -> T:
    """Return one part for those of all ranks; TypeError if a field does not declare how."""
    if len(parts) == 1:
        return parts[0]
    kind: Any = type(parts[0])
    values = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        join = next(filter(callable, getattr(hint, "__metadata__", ())), None)
        if join is None:
            raise TypeError(f"{kind.__name__}.{name} does not say how ranks join it")
        values[name] = join([getattr(one, name) for one in parts])
    joined_part: T = kind(**values)
    return joined_part


class CasePart(TypedDict, total=False):
    """Facets of a case in a record: see `iobench.results.cases`."""

    format: Required[str]
    loader: Required[str]
    options: dict[str, bool | int | float | str | None]
    dataset: str
    content: str
    device: str
    order: str
    cache: str
    model: str
    step_s: float
    batch_size: int
    block_bytes: int
    window_bytes: int
    seed: int
    max_batches: int
    round_seconds: float
    world_size: int
    strict: bool
    profile: bool
    isolated: bool


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """A field of the dataset: its name, the shape of one sample, its dtype."""

    name: str
    shape: list[int]  # -1 for an axis that varies
    dtype: str
    total: int | None = None  # sum of the lengths of all samples, if they differ


@dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """The dataset that was read, or what is known of the data of a live loader."""

    name: str  # of a live loader its own
    samples: int | None  # None where that is unknown
    fields: list[FieldSpec]
    source: dict[str, Any] = field(default_factory=dict)
    content: str | None = None  # checksum, hexadecimal
    stored_bytes: int | None = None  # allocated on disk for the samples in the format; None of more samples
    write_s: float | None = None  # seconds that writing this format took


@dataclass(frozen=True, kw_only=True)
class CachePart:
    """State of the page cache before the round, and how it was established."""

    mode: str  # warm, cold, remote, warm object or cold object
    residency: float | None  # of the data's files, 0 to 1; None where unknown
    method: str = ""
    read_ahead_kib: int | None = None
    prefault_bytes_per_s: float | None = None  # rate of touching memory before a cold round
    lower_cache_p50_s: list[float] | None = None  # p50 of single 4 KiB reads, first and second pass


@dataclass(frozen=True, kw_only=True)
class PartialEpoch:
    """Part of an epoch that a round measured, and the whole epoch, extrapolated."""

    batches: OfFirst[int]
    epoch_batches: OfFirst[int | None]  # None where the length is unknown
    epoch_s: Largest[float]
    epoch_samples: Summed[float]
    starts: OfFirst[list[int] | None] = None  # the first batch of each part; None where the order is unknown
    short: Largest[bool] = False  # --max-time ended the window before it was long enough
    head: OfFirst[bool] = False  # the part begins where the epoch does: the loader cannot begin elsewhere


@dataclass(frozen=True, kw_only=True)
class TimingPart:
    """Times of a round's epochs, summed over all epochs unless noted otherwise."""

    samples: Summed[int]
    logical_bytes: Summed[int]
    epochs_s: OfFirst[float]  # from each epoch's first request until the device finished its last batch; with
    # several ranks, from the common start until the slowest rank's device finished
    own_s: OfRank[float | None] = None  # until this rank's own device finished; None for a single rank
    epochs: OfFirst[int] = 1
    open_s: Largest[float]  # until the loader was ready for the first request
    first_batch_s: Largest[float]  # until the first batch of the first epoch was ready on the device
    wait_s: Averaged[float]  # idle time of the device between steps; on the CPU, time blocked in next()
    wait_p50_s: Averaged[float]
    wait_p99_s: Largest[float]
    stages: Averaged[dict[str, float] | None] = None  # seconds of the consuming thread by stage
    reader_threads_s: Averaged[float | None] = None  # that threads other than the consumer spent reading
    profiling_s: Averaged[float | None] = None  # overhead of --profile itself
    partial: Part[PartialEpoch | None] = None  # where the round ended before its epoch did


@dataclass(frozen=True, kw_only=True)
class ProcessorPart:
    """Processor time of a round."""

    cpu_s: Summed[float]  # of this process and its workers
    major_faults: Summed[int] = 0
    cpu_speed_per_s: Averaged[float | None] = (
        None  # rate of plain Python right before and after: see iobench.host.machine_load
    )
    suspended_s: Largest[float] = 0.0  # in which the process did not run at all
    torch_threads: Largest[int | None] = None  # of OpenMP, for operations of torch in the consuming process


@dataclass(frozen=True, kw_only=True)
class DiskPart:
    """Bytes read from disk; None where the kernel keeps no account."""

    read_bytes: Summed[int | None] = None  # by this process and its workers
    opening_bytes: Summed[int | None] = None  # of these, before the clock of the first epoch started
    device_read_bytes: OfFirst[int | None] = None  # of the disk under the data, by all processes


@dataclass(frozen=True, kw_only=True)
class RequestsPart:
    """Requests to an object store in a round, retries included; quantiles are of single requests.

    Where objects are cached, `needed_bytes` were read through the cache.
    """

    count: Summed[int]
    retries: Summed[int]
    throttles: Summed[int | None] = None  # of these, those that the store refused for their rate: 429 or 503
    fetched_bytes: Summed[int]  # in answers
    refetched_bytes: Summed[int | None] = None  # of these, in an epoch again; by one rank
    p50_s: Averaged[float | None]  # from a request to the last byte of its answer; None without requests
    p99_s: Largest[float | None]
    total_s: Summed[float | None] = None  # of all requests that succeeded, each from its start to its end
    needed_bytes: Summed[int] = 0
    cached_bytes: Summed[int] = 0  # of these, without a request
    rejected_pieces: Summed[int] = 0  # that the disk of the cache did not take


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """Peaks of memory, in bytes."""

    peak_bytes: Summed[int | None] = None  # of the process, plus the USS of its workers; no page cache
    device_allocated_bytes: Summed[int | None] = None
    device_reserved_bytes: Summed[int | None] = None


@dataclass(frozen=True, kw_only=True)
class ContentCheckPart:
    """Result of the content check of one epoch, or of a part of one.

    `unverified` are the reasons why the content could not be verified: of a user-defined loader, or of a part
    that holds no sample whose hash was kept. Of a part it is unknown which samples would have been dropped.
    """

    unverified: list[Finding] = field(default_factory=list)
    verified_samples: int | None = None  # None: all of them
    dropped: int = 0  # samples that never arrived
    repeated: int = 0  # arrivals beyond the first of each sample
    in_order: bool | None = None  # arrived in stored order; None where another order was requested
    shuffle_quality: float | None = None  # of random order: see iobench.loading.order
    fill: float | None = None  # share of real elements in ragged fields, padded at least to the longest
    length_p50: float | None = None  # elements along the axes that vary, of each sample's longest field
    length_p99: float | None = None


DECODING = "decoding"  # name of a limit


@dataclass(frozen=True, kw_only=True)
class LimitPart:
    """The lowest hardware limit on the path of a case's bytes, measured in the same run.

    `bytes_per_s` is the highest rate of the resource so far, `now_bytes_per_s` its rate in the last sample
    before the round. Both count logical bytes, of which there are `logical_per_byte` for each stored byte.
    """

    name: str
    bytes_per_s: float  # logical
    how: str = ""  # method of measurement
    reads_per_s: float | None = None
    now_bytes_per_s: float | None = None
    logical_per_byte: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    alone_bytes_per_s: float | None = None  # several hosts: sum of the rates of each host measured alone


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """Measurements of one rank in a round, and its place; seconds are sums over all epochs."""

    rank: int
    local_rank: int  # among those of its host
    node: int  # number of its host
    host: str
    device: str
    threads: int  # torch's intra-op threads: torchrun's OMP_NUM_THREADS, unless it is set
    samples: int
    logical_bytes: int
    own_s: float  # until its own device finished
    wait_s: float  # blocked in next()
    open_s: float
    first_batch_s: float
    cpu_s: float
    disk_bytes: int | None = None  # by it and its workers; ranks of a host share the page cache
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a round: the parts of a record that an executor fills.

    `ranks` holds those of each rank; the other parts are then those of all ranks, joined as each field says.
    """

    timing: Part[TimingPart]
    processor: Part[ProcessorPart]
    disk: Part[DiskPart]
    memory: Part[MemoryPart]
    background: OfFirst[BackgroundLoad | None] = None  # by other processes
    loss: OfFirst[float | None] = None  # of the last step of the round's first epoch
    ranks: Listed[list[RankPart] | None] = None
    requests: Part[RequestsPart | None] = None  # to an object store; None for data on a disk


THOUSAND = 1000  # requests, by which stores state the price of reading
PRICES_HELP = (  # of the option --prices
    "Prices of an object store, of 1,000 requests and of a GiB that leaves it, like 0.0004,0.09: shows what "
    "an epoch costs."
)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a store, in any currency."""

    thousand_requests: float  # price of 1,000 requests that read
    gib: float  # price of a GiB that leaves the store; 0 within a region, for most stores

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse ``0.0004,0.09``; raises InvalidSettings (``invalid-price``) for anything else."""
        try:
            thousand_requests, gib = map(float, text.split(","))
        except ValueError:
            thousand_requests = gib = math.nan
        if not (0 <= thousand_requests < math.inf and 0 <= gib < math.inf):
            raise InvalidSettings(
                "--prices",
                kind="invalid-price",
                expected="prices of 1,000 requests and of a GiB, like 0.0004,0.09",
                found=repr(shortened(text)),
            )
        return cls(thousand_requests=thousand_requests, gib=gib)

    def cost(self, requests: float, fetched_bytes: float) -> float:
        """Return what so many requests cost that fetch so many bytes."""
        return self.thousand_requests * requests / THOUSAND + self.gib * fetched_bytes / GIB


def check_prices(text: str, url: str | None) -> None:
    """Raise InvalidSettings for prices of data that are in no object store."""
    if text and not url:
        raise conflict("--prices with data on a disk, where no request is paid for", "omit --prices")
