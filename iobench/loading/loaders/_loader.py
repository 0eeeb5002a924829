"""Base classes of loaders: options, and the epochs of batches that a loader reads from an artifact."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from iobench.base.errors import InvalidSettings, IobenchError, LoaderFailed
from iobench.base.options import Options, declared, option
from iobench.dataset.opener import Opener
from iobench.formats import Format, Rows, Schema
from iobench.host.device import device_named
from iobench.host.system_errors import system_error
from iobench.loading.collate import Collate
from iobench.loading.order import ORDERS, Order, refuse_ragged
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.tensors import HostBatch, pinned
from iobench.loading.user_errors import WORKER_DIED, PortableError, first_line

# the rows of each batch for a map-style loader, the epoch's number for an iterable-style one
EpochRequest: TypeAlias = "Sequence[Rows] | int"

AHEAD = 2  # batches that each worker reads ahead, unless a loader has an option for it


@dataclass(frozen=True)
class Job:
    """Arguments of `Loader.open`.

    Attributes
    ----------
    opener : Opener
        Opens the artifact, in any process.
    order : Order
        Order of the samples and batch size.
    device : str
        Device that the batches go to.
    stages : Stages
        Profile of the time spent in each stage of loading.
    collate : Collate
        How samples that differ in length become a batch.
    dataset : Path or None
        Folder of the dataset, if epochs are to be saved and resumed.
    """

    opener: Opener
    order: Order
    device: str = "cpu"
    stages: Stages = field(default=UNTIMED, compare=False)
    collate: Collate = field(default_factory=Collate)
    dataset: Path | None = None


@dataclass(frozen=True)
class Loader(Options, ABC):
    """A way to read batches from an artifact. The dataclass fields are its options.

    A map-style loader is given the rows of each batch and returns exactly these. An iterable-style one
    (`iterable_style`) decides the order itself, in one of the kinds in `orders`. It returns every sample
    exactly once, unless it declares that it `repeats` or `drops` samples; the content check counts these.

    A loader's module imports its library in `open`, so that listing loaders imports no library.

    Attributes
    ----------
    library : str
        Name of its library on PyPI.
    format_names : tuple of str
        Names of the formats that it reads with its library; all, through the opener, if empty.
    on_disk : bool
        Whether it reads datasets on a disk.
    schemes : tuple of str
        Schemes of addresses at which its library reads; if empty, the opener reads at all of them.
    unpinned : tuple of str
        Those at which its library compares no versions of objects; after each round iobench does.
    recommended_options : str
        Options that its documentation recommends for throughput; ``{cores}`` is the number of cores.
    orders : tuple of str
        Kinds of order that it supports.
    iterable_style : bool
        Whether it decides the order of samples.
    repeats, drops : bool
        Whether it returns some samples more than once, or not at all.
    reuses : bool
        Whether it overwrites a batch's memory when the next batch is requested.
    isolated : bool
        Whether each case of a run with this loader needs a process of its own by default: with `modules`.
    stateful : bool
        Whether its epochs have a `state` and can be resumed from it, if the job has a `dataset`.
    ragged : bool
        Whether it delivers fields whose samples differ in length, as the job's `collate` makes them.
    user_defined : bool
        True for the user's own function, whose content is checked as far as its batches allow.
    """

    kind: ClassVar[str] = "loader"
    library: ClassVar[str]
    format_names: ClassVar[tuple[str, ...]] = ()
    on_disk: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = ()
    unpinned: ClassVar[tuple[str, ...]] = ()
    recommended_options: ClassVar[str] = ""
    orders: ClassVar[tuple[str, ...]] = ORDERS
    iterable_style: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    reuses: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    ragged: ClassVar[bool] = False
    user_defined: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "isolated" not in cls.__dict__:
            cls.isolated = bool(cls.modules)

    @classmethod
    def recommended_variant(cls) -> str | None:
        """Return its name with the recommended options; None if these are the defaults."""
        cores = len(os.sched_getaffinity(0))
        return (
            f"{cls.name}:{cls.recommended_options.format(cores=cores)}" if cls.recommended_options else None
        )

    @property
    def display_name(self) -> str:
        """Its name in records."""
        return self.name

    @property
    def settable(self) -> tuple[str, ...]:
        """Names of the options that options of a run can also set."""
        return tuple(spec.name for spec in declared(type(self)))

    @property
    def tolerance(self) -> int:
        """Allowed difference of pixels, of 255, from the format's, if it decodes images itself; else 0."""
        return 0

    @property
    def own_data(self) -> bool:
        """True if it reads files other than the artifact's."""
        return False

    def reads(self, format: Format) -> bool:
        """Return whether it can read artifacts of a format."""
        return not self.format_names or format.name in self.format_names

    def reads_at(self, url: str) -> bool:
        """Return whether it can read a dataset at an address, or on a disk (an empty one)."""
        if not url:
            return self.on_disk
        return url.partition("://")[0] in self.schemes or not (self.schemes or self.format_names)

    def requests_ranges(self, url: str) -> bool:
        """Return whether iobench's own client requests what it reads at an address, and no library's."""
        return not self.own_data and url.partition("://")[0] not in self.unpinned

    def check_schema(self, schema: Schema) -> None:
        """Raise InvalidSettings for samples that differ in length, unless it delivers them."""
        if not self.ragged:
            refuse_ragged(schema, f"loader {self.display_name}")

    def collates(self, collate: Collate) -> bool:
        """Return whether it makes batches of samples that differ in length in a way."""
        return True

    def on(self, device: str) -> Self:
        """Return it with all options that depend on the device resolved.

        Raises InvalidSettings if the device cannot provide what the options request.
        """
        return self

    @property
    def workers(self) -> int:
        """Number of processes that it starts for each epoch."""
        return 0

    @property
    def read_ahead(self) -> int:
        """Most batches that are read ahead of the consumer, as far as the options tell."""
        return AHEAD * max(1, self.workers)

    def pins(self, device: str) -> bool:
        """Return whether batches are copied to a device from pinned memory."""
        return False

    @property
    def copies_without_blocking(self) -> bool:
        """True if batches are copied to the device with ``non_blocking=True``."""
        return False

    def slots(self, batch_bytes: int) -> tuple[int, int]:
        """Return the bytes of one of the buffers that it cycles through, and their number."""
        return batch_bytes, 2  # one is filled while the consumer holds the other

    def rows(self, order: Order, samples: int, epoch: int) -> Sequence[Rows]:
        """Return the rows of each batch of this rank's epoch; every rank has the same number of batches."""
        return order.batches(samples, epoch)

    @property
    def ranks_obstacle(self) -> InvalidSettings | None:
        """Why it cannot be one of several ranks; None if it can."""
        if not self.iterable_style:
            return None
        return InvalidSettings(
            "it chooses its own rows, and iobench does not know how it shares them among ranks",
            kind="ranks-own-order",
            hint="measure it in one process",
        )

    def padding_samples(self, order: Order, samples: int) -> int:
        """Return how many rows at the end of this rank's epoch are also read by another rank."""
        return 0

    @abstractmethod
    def open(self, job: Job) -> Epochs:
        """Open an artifact in this process, or leave that to the workers."""


class Epochs(ABC):
    """A loader opened over an artifact: yields epochs of host batches until it is closed."""

    def __init__(self, loader: Loader, job: Job) -> None:
        self.loader, self.job = loader, job
        self.opener, self.stages = job.opener, job.stages
        self._resumed: Any = None  # state that the next epoch begins with
        self._library: Any = None  # what has the state of the running epoch

    @property
    def prefetches(self) -> bool:
        """True if batches are read ahead of the consumer, so that time in ``next()`` is waiting time."""
        return self.loader.workers > 0

    @property
    def read_ahead(self) -> int:
        """Most batches that are read ahead of the consumer."""
        return self.loader.read_ahead

    def epoch(self, request: EpochRequest) -> Generator[HostBatch, None, None]:
        """Yield the batches of an epoch; closing the generator ends its workers.

        Raises an IobenchError if a batch cannot be read.
        """
        try:
            yield from self._epoch(request)
            return
        except PortableError as error:
            failed: Exception = error.with_traceback(None).unwrap()
        except IobenchError as error:
            problem = first_line(error.problem, type(error).__name__)
            failed = error.with_traceback(None).changed(problem=problem)
        except Exception as error:  # noqa: BLE001 - a loader of another package may raise anything
            failed = failure(self.loader, self.opener, error)
        finally:
            self._library = None  # its workers end when nothing refers to it
        raise failed  # a new error: the frames of the first one would keep workers alive and files mapped

    def state(self) -> Any:
        """Return the state of the running epoch after the batch that was yielded last, for a checkpoint."""
        return self._library.state_dict()

    def resume(self, state: Any) -> None:
        """Begin the next epoch after the batch of a state, which may be of another process."""
        self._resumed = state

    def resumable(self, library: Any) -> Any:
        """Return the object that has the state of a new epoch, after loading the state to resume."""
        state, self._resumed, self._library = self._resumed, None, library
        if state is not None:
            library.load_state_dict(state)
        return library

    def pinned(self, batch: HostBatch) -> HostBatch:
        """Return a copy in pinned memory, or the batch itself if its loader does not pin.

        The device is made current first: in a new thread that would be the first device, which pinning
        would then initialize.
        """
        if not self.loader.pins(self.job.device):
            return batch
        with device_named(self.job.device).current():
            return pinned(batch)

    @abstractmethod
    def close(self) -> None:
        """Release readers and workers; a second call does nothing."""

    @abstractmethod
    def _epoch(self, request: Any) -> Iterator[HostBatch]:
        """Yield the batches of `epoch`, and raise errors as they occur."""


def failure(loader: Loader, opener: Opener, error: Exception) -> LoaderFailed:
    """Return a LoaderFailed of one line for an error that a loader raised."""
    if refused := system_error(error):
        return refused.converted(LoaderFailed)
    name = type(error).__name__
    message = first_line(str(error.with_traceback(None)), name)
    kind = "worker-died" if message.startswith(WORKER_DIED) else "raised"
    if not isinstance(error, (RuntimeError, OSError)) and message:
        message = f"{name}: {message}"
    # the pipe or socket was closed before torch noticed the death
    if isinstance(error, EOFError | ConnectionError) and loader.workers:
        kind, message = "worker-died", f"{WORKER_DIED} died while it sent a batch; its pid is unknown"
    return LoaderFailed(f"loader {loader.display_name}: {message or name}", kind=kind, path=opener.path)


@dataclass(frozen=True)
class CopyingLoader(Loader):
    """A loader whose batches the consumer copies to the device."""

    pin_memory: bool | None = option(None, "batches in pinned memory; by default on with an accelerator")
    non_blocking: bool | None = option(None, "copy to the device without waiting; by default as pin_memory")

    def on(self, device: str) -> Self:
        """Return it with pinning and non-blocking copies resolved for a device."""
        accelerated = device != "cpu" and device_named(device).pins
        pin, non_blocking = self.pin_memory, self.non_blocking
        if not accelerated and (pin or non_blocking):
            raise InvalidSettings(
                f"{self.variant}: pinned memory and non-blocking copies",
                kind="no-pinned-memory",
                expected="an accelerator that can pin memory",
                found=f"device {device}",
            )
        pin = accelerated if pin is None else pin
        return replace(self, pin_memory=pin, non_blocking=pin if non_blocking is None else non_blocking)

    def pins(self, device: str) -> bool:
        """Return the option `pin_memory`."""
        return bool(self.pin_memory)

    @property
    def copies_without_blocking(self) -> bool:
        """The option `non_blocking`."""
        return bool(self.non_blocking)


MAX_WORKERS, MAX_PREFETCH = 1024, 65536


def fetch_option() -> Any:
    """Return the option `fetch`: single samples that are collated, or whole batches."""
    return option(
        "sample",
        "sample: one __getitem__ per sample, collated; batch: whole batches by __getitems__",
        choices=("sample", "batch"),
    )


@dataclass(frozen=True)
class WorkerLoader(CopyingLoader):
    """A loader with worker processes, as torch's DataLoader has them."""

    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor",)  # options without effect if there are none

    num_workers: int = option(0, "worker processes", minimum=0, maximum=MAX_WORKERS)
    prefetch_factor: int | None = option(
        None,
        "batches that each worker reads ahead; by default the library's own number",
        minimum=1,
        maximum=MAX_PREFETCH,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {spec.name: spec.default for spec in declared(type(self))}
        given = [name for name in self.need_workers if getattr(self, name) != defaults[name]]
        if given and not self.num_workers:
            raise InvalidSettings(
                f"{self.name}: {', '.join(given)} needs workers", kind="needs-workers", hint="set num_workers"
            )

    @property
    def workers(self) -> int:
        """The option `num_workers`."""
        return self.num_workers

    @property
    def worker_arguments(self) -> dict[str, Any]:
        """The arguments of torch's DataLoader for workers and their batches."""
        return {
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "pin_memory": bool(self.pin_memory),
        }

    @property
    def read_ahead(self) -> int:
        """The batches that all workers read ahead."""
        return max(1, self.num_workers) * (self.prefetch_factor or AHEAD)
