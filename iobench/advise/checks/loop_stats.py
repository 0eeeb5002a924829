"""Figures of a loop over a loader: facts about the loader, signs in its batches, and times."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import InvalidSettings
from iobench.base.machine import BackgroundLoad
from iobench.base.thresholds import CPU_CONTENDED
from iobench.host.rank_info import process_rank
from iobench.loading.inspection import Replay, attributes_of, batch_tensors, is_dataloader, open_handles

MOST_BYTES = 64 << 20  # of batches that are examined
MIN_LENGTH = 8  # of a sequence: shorter ones are not padded in practice
INSIDE = 0.05  # of the rest, that may equal the padding value


def padding_of(batches: Iterable[Sequence[Any]]) -> float | None:
    """Return the share of padding in the padded fields of some batches; None if no field is padded.

    A field is padded if its sequences end in a run of one value, the same for the whole batch, if that value
    hardly occurs before, and if the sequences end at different positions.
    """
    counts = [one for tensors in batches for tensor in tensors if (one := _padded(tensor)) is not None]
    if not counts:
        return None
    return sum(padded for padded, _ in counts) / sum(size for _, size in counts)


def _padded(tensor: Any) -> tuple[int, int] | None:
    """Return the padded and all positions of one tensor; None if it holds no padded sequences."""
    if tensor.ndim not in (2, 3) or tensor.shape[0] < 2 or tensor.shape[1] < MIN_LENGTH:
        return None
    values: npt.NDArray[Any] = np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    same = values == values[:, -1:]
    padded = same if values.ndim == 2 else same.all(axis=2)
    lengths = values.shape[1] - np.argmin(padded[:, ::-1], axis=1)  # where the run at the end begins
    lengths = np.where(padded.all(axis=1), 0, lengths)
    short = lengths < values.shape[1] - 1
    if not short.any() or len(np.unique(lengths)) < 2:
        return None
    pad = values[np.argmax(short), -1]
    if (values[short, -1] != pad).any():
        return None
    inside = np.arange(values.shape[1]) < lengths[:, None]
    alike = values == pad if values.ndim == 2 else (values == pad).all(axis=2)
    if (alike & inside).sum() > INSIDE * max(1, inside.sum()):
        return None
    rows = np.where(short, values.shape[1] - lengths, 0)
    return int(rows.sum()), int(values.shape[0] * values.shape[1])


USUAL = 0.1  # of a worker's own samples, that may be the same: above it samples have few values


def repeated_share(batches: Sequence[Sequence[Any]], workers: int) -> float | None:
    """Return the share of samples that more than one worker delivered; None where that cannot be seen.

    Each of the first batches is a sequence of tensors; a worker delivers every `workers`-th one.
    """
    if workers < 2 or len(batches) < workers:
        return None
    samples = [list(chain(*map(_hashes, batches[worker::workers]))) for worker in range(workers)]
    total, distinct = sum(map(len, samples)), [set(one) for one in samples]
    if not total or sum(map(len, distinct)) < (1 - USUAL) * total:
        return None
    seen = sum(len(one) for one in distinct)
    return (seen - len(set().union(*distinct))) / seen * workers / (workers - 1)


def _hashes(tensors: Sequence[Any]) -> list[int]:
    if not tensors or not tensors[0].shape:
        return []
    count = tensors[0].shape[0]
    rows = [np.asarray(one) for one in tensors if one.shape and one.shape[0] == count]
    return [hash(tuple(one[row].tobytes() for one in rows)) for row in range(count)]


ACCELERATED = "_is_accelerate_prepared"  # attribute that Accelerate asks a loader for, and gives its own ones
COUNTS = ("num_replicas", "num_processes", "num_shards", "world_size")  # attributes of what takes a share
RANKS = ("rank", "process_index", "shard_index")  # of what takes one without knowing how many there are
INNER = ("sampler", "batch_sampler", "dataset", "base_dataloader")  # attributes that lead to it
MAX_DEPTH = 4
LATE_S, POLL_S = 1.0, 0.002  # that the first rank waits for others to end their loops
MAX_TENSORS, MAX_VALUES = 16, 4096  # of a batch, and about so many of a tensor, that are compared
# of a store that is gone, of a strange tensor
FAILURES = (RuntimeError, TypeError, ValueError, AttributeError)


def number_of_ranks() -> int:
    """Return how many ranks train together; 1 where what says so is contradictory."""
    try:
        return process_rank().world_size
    except InvalidSettings:
        return 1


def is_sharded(loader: Any) -> bool | None:
    """Return whether a sampler or the dataset takes a rank's share; None if that is unknown.

    It is unknown for an IterableDataset, which may share its samples itself, and for other loaders.
    """
    if not is_dataloader(loader):
        return None
    from torch.utils.data import IterableDataset

    if vars(loader).get(ACCELERATED) or _takes_share(loader, MAX_DEPTH):
        return True
    return None if isinstance(loader.dataset, IterableDataset) else False


def _takes_share(one: Any, depth: int) -> bool:
    own = {name.lstrip("_"): value for name, value in getattr(one, "__dict__", {}).items()}
    counts = [own[name] for name in COUNTS if isinstance(own.get(name), int)]
    if any(count > 1 for count in counts) or (not counts and any(name in own for name in RANKS)):
        return True
    return depth > 0 and any(_takes_share(own[name], depth - 1) for name in INNER if name in own)


class OtherRanks:
    """Messages among the ranks that run a loop, through the store of the process group.

    A rank that has not published its first batch by the loop's end does not run the loop.
    """

    def __init__(self, loop: str, ranks: int) -> None:
        self._key, self._ranks = f"iobench/loop/{loop}", ranks
        self._digest: bytes | None = None
        self._others: list[int] = []  # that run the loop

    def publish(self, batch: Any) -> None:
        """Publish a digest of this rank's first batch."""
        with suppress(*FAILURES):  # the loop itself goes on, or meets it as well
            self._digest = _digest(batch)
            _store().set(self._name("batch", process_rank().rank), self._digest or b"-")

    def compare(self) -> tuple[int, bool | None]:
        """Return how many ranks run the loop, and whether two received the same batch; None if unknown."""
        if (store := _store()) is None:
            return self._ranks, None
        try:
            own = process_rank().rank
            names = {rank: self._name("batch", rank) for rank in range(self._ranks) if rank != own}
            self._others = [rank for rank, name in names.items() if store.check([name])]
            batches = [store.get(names[rank]) for rank in self._others]
        except FAILURES:
            return 1, None
        return 1 + len(batches), None if self._digest is None or not batches else self._digest in batches

    def wait_shares(self, own: float) -> dict[int, float]:
        """Publish this rank's share of waiting; on rank 0 return those of the ranks that end within 1 s."""
        shares, end = dict[int, float](), time.monotonic() + LATE_S
        with suppress(*FAILURES):
            store, rank = _store(), process_rank().rank
            store.set(self._name("waits", rank), repr(own))
            for other in self._others if rank == 0 else ():
                name = self._name("waits", other)
                while not (there := store.check([name])) and time.monotonic() < end:
                    time.sleep(POLL_S)
                if there:
                    shares[other] = float(store.get(name))
        return shares

    def _name(self, what: str, rank: int) -> str:
        return f"{self._key}/{what}/{rank}"


def _store() -> Any:
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return module._get_default_store()
    except FAILURES:  # no group, or one without a store, as of MPI
        return None


def _digest(batch: Any) -> bytes | None:
    """Return a digest of a batch; None for one whose samples could be alike by chance, as of zeros."""
    digest, varies = hashlib.blake2b(digest_size=16), False
    for one in batch_tensors(batch)[:MAX_TENSORS]:
        flat = one.reshape(-1)
        some = flat[:: max(1, len(flat) // MAX_VALUES)]
        values = (some.detach().cpu() if hasattr(some, "detach") else some).tolist()
        varies = varies or any(value != values[0] for value in values)
        digest.update(repr((tuple(one.shape), values)).encode())
    return digest.digest() if varies else None


@dataclass(frozen=True)
class LoaderInfo:
    """A loader's settings; those of torch's DataLoader are None for any other iterable."""

    class_name: str
    dataset: str | None = None  # name of its dataset's class
    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    by_sample: bool | None = None  # the dataset is asked for one sample at a time
    tensor_dataset: bool = False
    iterable: bool = False  # an IterableDataset
    sharded: bool | None = None  # a sampler or the dataset takes the rank's share; None: unknown
    sampler: str | None = None  # name of the class that orders the samples
    sampler_rows: int | None = None  # samples that one of torch's random samplers draws from
    drawn: int | None = None  # samples that it draws in an epoch
    in_order: bool = False  # samples are requested in storage order
    handles: list[str] = field(default_factory=list)  # open files, which a fork must not inherit
    chunks: list[str] = field(default_factory=list)  # HDF5 datasets whose chunks hold several samples each


def inspect_loader(loader: Any) -> LoaderInfo:
    """Return the facts about a loader."""
    if not is_dataloader(loader):
        return LoaderInfo(class_name=type(loader).__name__)
    from torch.utils import data

    dataset, batches = loader.dataset, loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    rows = drawn = None
    if type(sampler) in (data.RandomSampler, data.WeightedRandomSampler):
        weighted = type(sampler) is data.WeightedRandomSampler
        rows, drawn = len(sampler.weights if weighted else sampler.data_source), sampler.num_samples
    iterable, whole = isinstance(dataset, data.IterableDataset), hasattr(dataset, "__getitems__")
    return LoaderInfo(
        class_name=type(loader).__name__,
        dataset=type(dataset).__name__,
        workers=loader.num_workers,
        batch_size=getattr(batches, "batch_size", None),
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        by_sample=batches is not None and not iterable and not whole,
        tensor_dataset=isinstance(dataset, data.TensorDataset),
        iterable=iterable,
        sharded=is_sharded(loader),
        sampler=type(sampler).__name__,
        sampler_rows=rows,
        drawn=drawn,
        in_order=isinstance(loader.sampler, data.SequentialSampler),
        handles=open_handles(dataset),
        chunks=chunks_of(dataset),
    )


def chunks_of(dataset: Any) -> list[str]:
    """Return a description of each open HDF5 dataset whose chunks hold several samples each."""
    h5py = sys.modules.get("h5py")
    if h5py is None:
        return []
    chunks = []
    for name, value in attributes_of(dataset):
        inside = [value] if isinstance(value, h5py.Dataset) else []
        if isinstance(value, h5py.Group) and value:
            inside = [item for item in value.values() if isinstance(item, h5py.Dataset)]
        chunked = [one for one in inside if one.chunks and one.chunks[0] > 1]
        chunks += [f"{name}: chunks of {one.chunks[0]} samples" for one in chunked]
    return chunks


QUEUE_THREADS = 2  # of a worker: its own, and the one that feeds its queue
IDLE = 0.5  # of the time on a core
UNEVEN = 0.2  # of the mean wait: below it, half of the batches hardly wait at all
ONCE = 0.4  # of all waiting: above it, one late batch is an exception
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
    samples: int  # in a long loop from some of its batches; 0 where they hold no tensors, as bytes are
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
    sampler_s: float = 0.0  # of the sampler, in the main process
    pickling_s: float = 0.0  # of pickling the dataset for workers, likewise
    gc_s: float = 0.0  # of Python's garbage collector in the main process
    ranks: int = 1  # that run the loop
    same_on_ranks: bool | None = None  # another rank received the same first batch; None: unknown
    open_files: int = 0  # most that one process held, beyond those that this one held before
    shared_bytes: int = 0  # growth of /dev/shm at its peak
    rank_waits: dict[int, float] = field(default_factory=dict)  # shares of waiting of other ranks, on rank 0
    raised: str = ""  # class of the error with which the loader ended the loop

    @property
    def wait_share(self) -> float:
        """Share of the time after the first batch that the step waited for data."""
        return self.wait_s / (self.wait_s + self.step_s) if self.wait_s + self.step_s else 0.0

    @property
    def slowest(self) -> tuple[int | None, float]:
        """The rank that waited most and its share; None is this one, whose step waits for the others."""
        return max([(None, self.wait_share), *self.rank_waits.items()], key=lambda one: one[1])

    @property
    def whole_epoch(self) -> bool:
        """True if the loop was a whole epoch."""
        return self.epoch_batches is not None and self.batches >= self.epoch_batches

    @property
    def epoch_s(self) -> float:
        """Seconds of a whole epoch: the first wait, and the rest extrapolated from the batches so far."""
        if self.batches < 2:
            return self.elapsed_s * self._epoch_factor
        return self.first_wait_s + (self.elapsed_s - self.first_wait_s) * self._rest_factor

    @property
    def start_s(self) -> float:
        """Seconds of the first wait that are more than a worker's batch takes: those of its start."""
        batch_s = (self.loader.workers or 0) * self.wait_s / max(1, self.batches - 1)
        return max(0.0, self.first_wait_s - batch_s)

    @property
    def sampler_epoch_s(self) -> float:
        """Seconds of the sampler in a whole epoch: those of the first wait once, others with the batches."""
        first = min(self.sampler_s, self.first_wait_s)
        return first + (self.sampler_s - first) * self._rest_factor

    @property
    def dataset_bytes(self) -> float:
        """Bytes of all samples of an epoch, as the loader delivers them."""
        return self.bytes * self._epoch_factor

    @property
    def repeats(self) -> bool:
        """True if several workers deliver the same samples."""
        return self.loader.iterable and (self.repeated or 0.0) >= REPEATED

    @property
    def uneven(self) -> bool:
        """True if half of the batches hardly wait, and the others do, not a single one of them."""
        mean_s = self.wait_s / max(1, self.batches - 1)
        return self.wait_p50_s <= UNEVEN * mean_s and self.wait_max_s <= ONCE * self.wait_s

    @property
    def queued_bytes(self) -> float:
        """Bytes of the batches that workers may hold ready, those of an epoch at most."""
        queued = (self.loader.workers or 0) * (self.loader.prefetch_factor or 0)
        return self.bytes / max(1, self.batches) * min(queued, self.epoch_batches or queued)

    @property
    def _epoch_factor(self) -> float:
        return max(1.0, (self.epoch_batches or 0) / max(1, self.batches))

    @property
    def _rest_factor(self) -> float:
        return max(1.0, ((self.epoch_batches or 0) - 1) / max(1, self.batches - 1))

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


T = TypeVar("T")


class LoopReplay(Replay[T]):
    """Holds the first batches of a loop, and yields `count` of them, repeatedly, after its end."""

    step_s: float | None = None  # of one step, once the device has finished them all

    def holding(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and hold the first ones."""
        for item in items:
            if self.count:
                self.hold(item)
            yield item

    def __iter__(self) -> Iterator[T]:
        if not self.count or not self.held:
            return
        self.device.synchronize()
        began = time.perf_counter()
        yield from super().__iter__()
        self.device.synchronize()
        self.step_s = (time.perf_counter() - began) / self.count
