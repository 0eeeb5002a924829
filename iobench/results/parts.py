"""The typed parts of a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import msgspec


class _CaseAlways(TypedDict):
    format: str
    loader: str


class CasePart(_CaseAlways, total=False):
    """The facets of a case as a record holds them: see iobench.results.cases."""

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
    world_size: int
    strict: bool
    profile: bool
    isolated: bool


@dataclass(frozen=True, kw_only=True)
class FieldSpec:
    """A field of the dataset: its name, one sample's shape, its dtype."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """What was read."""

    name: str
    samples: int
    fields: list[FieldSpec]
    source: dict[str, Any] = field(default_factory=dict)
    content: str | None = None  # checksum, hexadecimal
    stored_bytes: int | None = None  # allocated on disk for the format that was read
    write_s: float | None = None  # that preparing this format took


@dataclass(frozen=True, kw_only=True)
class CachePart:
    """The state of the page cache before the round, and how it was brought about."""

    mode: str  # warm or cold
    residency: float | None  # of the data's files, 0 to 1; None where nobody could tell
    method: str = ""
    read_ahead_kib: int | None = None
    prefault_bytes_per_s: float | None = None  # at which memory was touched before a cold round
    below_s: list[float] | None = None  # p50 of single 4 KiB reads, twice over the same places


@dataclass(frozen=True, kw_only=True)
class TimingPart:
    """What the epochs of a round took; all of them together where nothing else is said."""

    samples: int
    logical_bytes: int
    epochs_s: float  # from each epoch's first request until the device had finished its last batch; over
    # ranks from the moment at which all began until the slowest rank's device had
    own_s: float | None = None  # the same until this rank's own device had; None where there is but one
    epochs: int = 1
    open_s: float  # until the loader could be asked for its first batch
    first_batch_s: float  # of the first epoch: until a step could begin with it, on the device
    wait_s: float  # the device's own idle time between steps; on the CPU, blocked in next()
    wait_p50_s: float
    wait_p99_s: float
    stages: dict[str, float] | None = None  # seconds of the consuming thread by stage
    beside_s: float | None = None  # that threads beside it spent reading
    spans_s: float | None = None  # what telling the stages apart cost


@dataclass(frozen=True, kw_only=True)
class ProcessorPart:
    """What the processors did."""

    cpu_s: float  # of this process and its workers
    major_faults: int = 0
    steal_s: float | None = None  # of all processors, that a hypervisor gave to others
    pace_per_s: float | None = None  # of plain Python work right before and after: iobench.host.pace


@dataclass(frozen=True, kw_only=True)
class DiskPart:
    """What came from disk, in bytes; None where the kernel keeps no account."""

    read_bytes: int | None = None  # for this process and its workers
    opening_bytes: int | None = None  # of these, before the clock of the first epoch started
    device_read_bytes: int | None = None  # of the disk under the data, for whoever asked


@dataclass(frozen=True, kw_only=True)
class OthersPart:
    """What other processes did to the machine meanwhile; None where the kernel keeps no such account.

    See iobench.host.others. `processors` and `steal` are shares of the time of the processors that could
    be used; stalled is the share of the time in which some task, ours or not, waited for that resource.
    """

    processors: float | None = None
    steal: float | None = None
    disk_bytes_per_s: float | None = None  # that other processes read from the disk under the data
    cpu_stalled: float | None = None
    io_stalled: float | None = None
    memory_stalled: float | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """Peaks of memory, in bytes."""

    peak_bytes: int | None = None  # anonymous and shared, workers included
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProofPart:
    """What the proof of a case found of a loader that has an order of its own, in one epoch.

    `missing`: of somebody's own loader, why nobody can say that all of the dataset came.
    """

    missing: str | None = None
    dropped: int = 0  # samples that never came
    repeated: int = 0  # that came, beyond the first time of each
    in_order: bool | None = None  # as they are stored; None where that was not asked for
    shuffledness: float | None = None  # of random order: see iobench.loading.order


@dataclass(frozen=True, kw_only=True)
class LimitPart:
    """The lowest limit on the way of a case's bytes, measured in the same run.

    `bytes_per_s` is the most that the resource gave so far, `now_bytes_per_s` what it gave at the last look
    before the record was made; both count logical bytes, `logical_per_byte` of them for each stored one.
    `definition` says what the name meant then: see iobench.host.limits.
    """

    name: str
    bytes_per_s: float  # logical
    how: str = ""
    reads_per_s: float | None = None
    now_bytes_per_s: float | None = None  # None in records of before it was noted
    logical_per_byte: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    alone_bytes_per_s: float | None = None  # of several hosts: the sum of what each gave while others waited
    definition: int = 1


@dataclass(frozen=True, kw_only=True)
class MachineDisk:
    """The disk under the data."""

    file_system: str | None = None
    device: str | None = None
    model: str | None = None
    read_ahead_kib: int | None = None


@dataclass(frozen=True, kw_only=True)
class MachineGpu:
    """The device that the data went to."""

    name: str
    memory_bytes: int | None = None
    cuda: str | None = None
    driver: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MachinePart:
    """Where it was measured."""

    cpu: str
    disk: MachineDisk
    host: str = ""
    cores: int | None = None
    usable_cores: int | None = None
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    gpu: MachineGpu | None = None
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None


class _SnapshotAlways(TypedDict):
    time: float  # seconds since 1970
    cores: list[float]  # busy, 0 to 1, each
    iowait: float  # of all processors' time


class SnapshotPart(_SnapshotAlways, total=False):
    """The machine over a second, as iobench.host.monitor sees it; None where nobody can tell."""

    disk_bytes_per_s: float | None
    disk_queue: float | None
    gpu: float | None
    gpu_memory_bytes: int | None
    gpu_power_w: float | None
    gpu_clock_mhz: int | None
    gpu_throttled: list[str] | None


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """What one rank of several did in a round, and where it is; in seconds of all epochs together."""

    rank: int
    local_rank: int  # among those of its host
    node: int  # number of its host
    host: str
    device: str
    threads: int  # that torch computes with on the processor: torchrun's OMP_NUM_THREADS, unless it is set
    samples: int
    logical_bytes: int
    own_s: float  # until its own device had finished
    wait_s: float  # blocked in next()
    open_s: float
    first_batch_s: float
    cpu_s: float
    disk_bytes: int | None = None  # for it and its workers: ranks of a host share the page cache
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a round took: the parts of a record that whoever measures can know.

    `ranks`: what each of several did; the other parts are then of all of them together.
    """

    timing: TimingPart
    processor: ProcessorPart
    disk: DiskPart
    memory: MemoryPart
    others: OthersPart | None = None  # None in records of before it was noted
    loss: float | None = None  # of the last step of the round's first epoch
    ranks: list[RankPart] | None = None
