"""Measurements of a loop over a loader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iobench.advise.checks.loader_info import LoaderInfo
from iobench.base.background_load import BackgroundLoad
from iobench.base.thresholds import CPU_CONTENDED

QUEUE_THREADS = 2  # of a worker: its own, and the one that feeds its queue
IDLE = 0.5  # of the time on a core
REPEATED = 0.1  # of the samples, from which on it is no chance that workers deliver the same


@dataclass(frozen=True)
class LoopStats:
    """Times and costs of one loop; None where the system does not report a figure.

    The first batch is counted separately: `wait_s`, `step_s` and the percentiles cover the batches after
    it. Waits and steps are measured by the device's clock; on the CPU, by the loop's own.
    """

    derived: ClassVar = ("wait_share", "rate", "bytes_per_s", "headroom")

    loader: LoaderInfo
    batches: int  # delivered in total
    samples: int  # 0 where batches hold no tensors, as bytes are
    bytes: int
    tensors: int  # in a batch
    elapsed_s: float
    first_wait_s: float  # for the first batch
    wait_s: float  # in total, after the first batch
    step_s: float  # likewise
    wait_p50_s: float  # of single waits
    wait_p99_s: float
    wait_max_s: float
    cpu_s: float  # of the main process
    workers: int  # most child processes at one time
    worker_cpu_s: float
    iowait: float | None  # share of all cores' time spent waiting for disks
    disk_bytes: int | None  # read
    gpu: float | None  # mean utilisation
    gpu_low: float | None  # share of the snapshots in which it was below one half
    memory_bytes: int | None  # peak of this process, plus the USS of its workers, without the page cache
    memory_growth_bytes: int | None  # growth of the workers' private memory since the loop was steady
    device: str = "cpu"
    pins: bool = False  # the device copies asynchronously from pinned memory
    background: BackgroundLoad = field(default_factory=BackgroundLoad)  # by other processes
    epoch_batches: int | None = None  # None where the length is unknown
    worker_threads: int = 0  # most of any worker
    replay_step_s: float | None = None  # of a step over batches that were on the device already
    padding: float | None = None  # share of the sequences that is padding
    repeated: float | None = None  # share of the first samples that several workers delivered, if known
    gc_s: float = 0.0  # of Python's garbage collector in the main process

    @property
    def wait_share(self) -> float:
        """Share of the time after the first batch that the step waited for data."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    @property
    def whole_epoch(self) -> bool:
        """True if the loop was a whole epoch."""
        return self.epoch_batches is not None and self.batches >= self.epoch_batches

    @property
    def epoch_s(self) -> float:
        """Seconds of a whole epoch, extrapolated from the batches so far."""
        return self.elapsed_s * self._epoch_factor

    @property
    def dataset_bytes(self) -> float:
        """Bytes of all samples of an epoch, as the loader delivers them."""
        return self.bytes * self._epoch_factor

    @property
    def repeats(self) -> bool:
        """True if several workers deliver the same samples."""
        return self.loader.iterable and (self.repeated or 0.0) >= REPEATED

    @property
    def queued_bytes(self) -> float:
        """Bytes of the batches that workers may hold ready, those of an epoch at most."""
        queued = (self.loader.workers or 0) * (self.loader.prefetch_factor or 0)
        return self.bytes / max(1, self.batches) * min(queued, self.epoch_batches or queued)

    @property
    def _epoch_factor(self) -> float:
        return max(1.0, (self.epoch_batches or 0) / max(1, self.batches))

    @property
    def idle(self) -> bool:
        """True if all processes mostly slept or waited for a disk, not for a core."""
        if (self.background.processors or 0.0) > CPU_CONTENDED:
            return False
        return max(self.cpu_s, self.worker_cpu_s / max(1, self.workers)) < IDLE * self.elapsed_s

    @property
    def headroom(self) -> float | None:
        """Speed-up of the loop over batches already on the device; None without such batches."""
        if not self.replay_step_s or self.batches < 2:
            return None
        return (self.wait_s + self.step_s) / (self.batches - 1) / self.replay_step_s

    @property
    def threads(self) -> bool:
        """True if libraries use threads of their own, in addition to torch's and those of a queue."""
        if self.workers:
            return self.worker_threads > QUEUE_THREADS
        return self.cpu_s > (1 + IDLE) * self.elapsed_s

    @property
    def rate(self) -> float:
        """Samples per second after the first batch; batches per second if samples cannot be counted."""
        count = self.samples / max(1, self.batches) if self.samples else 1.0
        steady_s = self.wait_s + self.step_s
        return count * (self.batches - 1) / steady_s if steady_s and self.batches > 1 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes of tensors per second after the first batch."""
        return self.rate * self.bytes / self.samples if self.samples else 0.0
