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

    Attributes
    ----------
    loader : LoaderInfo
        Settings of the loader.
    batches, samples, bytes : int
        Delivered in total; samples and bytes are 0 where batches hold no tensors.
    tensors : int
        Tensors in a batch.
    elapsed_s, first_wait_s, wait_s, step_s, wait_p50_s, wait_p99_s, wait_max_s : float
        Wall time, wait for the first batch, total wait and total step time after it, and the distribution
        of single waits, in seconds.
    cpu_s, worker_cpu_s : float
        CPU seconds of the main process and of its workers.
    workers : int
        Most child processes at one time.
    iowait : float or None
        Share of all cores' time spent waiting for disks.
    disk_bytes : int or None
        Bytes read from disk.
    gpu, gpu_low : float or None
        Mean utilisation of the GPU, and share of the snapshots in which it was below one half.
    memory_bytes : int or None
        Peak memory of this process, plus the USS of its workers, without the page cache.
    memory_growth_bytes : int or None
        Growth of the workers' private memory since the loop was steady.
    device : str
        Device of the loop.
    pins : bool
        The device copies asynchronously from pinned memory.
    background : BackgroundLoad
        Load of other processes meanwhile.
    epoch_batches : int or None
        Batches of an epoch; None where the length is unknown.
    worker_threads : int
        Most threads of any worker.
    replay_step_s : float or None
        Seconds of a step over batches that were on the device already.
    padding : float or None
        Share of the sequences that is padding.
    repeated : float or None
        Share of the first samples that more than one worker delivered; None where it is unknown.
    gc_s : float
        Seconds of Python's garbage collector in the main process.
    """

    derived: ClassVar = ("wait_share", "rate", "bytes_per_s", "headroom")

    loader: LoaderInfo
    batches: int
    samples: int
    bytes: int
    tensors: int
    elapsed_s: float
    first_wait_s: float
    wait_s: float
    step_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_max_s: float
    cpu_s: float
    workers: int
    worker_cpu_s: float
    iowait: float | None
    disk_bytes: int | None
    gpu: float | None
    gpu_low: float | None
    memory_bytes: int | None
    memory_growth_bytes: int | None
    device: str = "cpu"
    pins: bool = False
    background: BackgroundLoad = field(default_factory=BackgroundLoad)
    epoch_batches: int | None = None
    worker_threads: int = 0
    replay_step_s: float | None = None
    padding: float | None = None
    repeated: float | None = None
    gc_s: float = 0.0

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
