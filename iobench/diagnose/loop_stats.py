"""What a loop over a loader showed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from iobench.base.thresholds import CPU_CONTENDED
from iobench.diagnose.loader_info import LoaderInfo
from iobench.results.parts import OthersPart

QUEUE_THREADS = 2  # of a worker: its own, and that which feeds its queue
IDLE = 0.5  # of the time on a processor


@dataclass(frozen=True)
class LoopStats:
    """Times and costs of one loop; None where the system does not tell.

    The first batch is apart: `wait_s`, `step_s` and the percentiles are of those after it. Waits and
    steps are the device's own, by its clock; on the CPU they are the loop's.
    """

    facts: LoaderInfo
    batches: int
    samples: int  # 0 where batches hold no tensors, as for the next
    bytes: int
    tensors: int  # in a batch
    elapsed_s: float
    first_wait_s: float
    wait_s: float
    step_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    cpu_s: float  # of the main process
    workers: int  # child processes seen at once
    worker_cpu_s: float
    iowait: float | None
    disk_bytes: int | None
    gpu: float | None  # busy
    gpu_low: float | None  # the part of the snapshots that found it less than half busy
    memory_bytes: int | None  # the most of all processes together, by PSS
    memory_growth_bytes: int | None  # of what is the workers' own, since the loop was steady
    device: str = "cpu"
    pins: bool = False  # whether that device takes batches from pinned memory
    others: OthersPart = field(default_factory=OthersPart)  # what other processes did meanwhile
    of: int | None = None  # batches of an epoch, where that is known
    worker_threads: int = 0  # the most of any worker
    replayed_s: float | None = None  # a step's time over batches that were on the device already
    padding: float | None = None  # the part of sequences that is padding

    @property
    def wait_share(self) -> float:
        """The part of the steady state that the step waited for data."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    @property
    def whole(self) -> bool:
        """Whether it was a whole epoch."""
        return self.of is not None and self.batches >= self.of

    @property
    def epoch_s(self) -> float:
        """Seconds of a whole epoch, as far as this one went."""
        return self.elapsed_s * max(1.0, (self.of or 0) / max(1, self.batches))

    @property
    def dataset_bytes(self) -> float:
        """Bytes of all samples of an epoch, as they come out of the loader."""
        return self.bytes * max(1.0, (self.of or 0) / max(1, self.batches))

    @property
    def idle(self) -> bool:
        """Whether all processes spent most of the time waiting: sleeping, or for a disk, not for a core."""
        if (self.others.processors or 0.0) > CPU_CONTENDED:
            return False
        return max(self.cpu_s, self.worker_cpu_s / max(1, self.workers)) < IDLE * self.elapsed_s

    @property
    def headroom(self) -> float | None:
        """How many times as fast the loop was over batches that were on the device; None if none were."""
        if not self.replayed_s or self.batches < 2:
            return None
        return (self.wait_s + self.step_s) / (self.batches - 1) / self.replayed_s

    @property
    def threads(self) -> bool:
        """Whether libraries have threads of their own at work in it: beside torch's, or of a queue."""
        if self.workers:
            return self.worker_threads > QUEUE_THREADS
        return self.cpu_s > (1 + IDLE) * self.elapsed_s

    @property
    def rate(self) -> float:
        """Samples per second after the first batch; batches, where samples cannot be counted."""
        count = self.samples / max(1, self.batches) if self.samples else 1.0
        steady_s = self.wait_s + self.step_s
        return count * (self.batches - 1) / steady_s if steady_s and self.batches > 1 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of tensors per second after the first batch."""
        return self.rate * self.bytes / self.samples if self.samples else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        derived = {
            "wait_share": self.wait_share,
            "rate": self.rate,
            "bytes_per_s": self.bytes_per_s,
            "headroom": self.headroom,
        }
        return {**asdict(self), **derived}
