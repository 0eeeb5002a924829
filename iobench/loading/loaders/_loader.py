"""What a loader is: options that say how an artifact's batches reach host memory, and epochs of them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
    LoaderFailed,
)
from iobench.dataset.manifest import Opener
from iobench.formats import Format, Options, Rows, declared, option
from iobench.loading.order import ORDERS, Order
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.tensors import pinned

if TYPE_CHECKING:  # it loads torch
    from iobench.loading.host_to_device import HostBatch

Self = TypeVar("Self", bound="Loader")
# the rows of each batch for a loader that is told them, the epoch's number for one with its own order
Asked: TypeAlias = "Sequence[Rows] | int"


@dataclass(frozen=True)
class Job:
    """What a loader is opened over: an artifact, the order of its epochs, where batches go, a profile."""

    opener: Opener
    order: Order
    device: str = "cpu"
    stages: Stages = field(default=UNTIMED, compare=False)


@dataclass(frozen=True)
class Loader(Options, ABC):
    """Opens artifacts for epochs of batches. The dataclass fields are its options.

    Two kinds. One is told the rows of each batch, and has to give these. One has an order of its own
    (`own_order`) among the kinds in `orders`: it has to give every sample exactly once, or at least once
    where it `repeats`, or at most once where it `drops` some; how many of them, the proof counts. A module
    of a loader loads its library when it is opened, not when it is imported.
    """

    kind: ClassVar[str] = "loader"
    library: ClassVar[str]  # by its name on PyPI
    advised: ClassVar[str] = ""  # options for throughput, by its documentation; {cores} are the processors
    orders: ClassVar[tuple[str, ...]] = ORDERS
    own_order: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    reuses: ClassVar[bool] = False  # fills a batch's memory again once the next one is asked for
    isolated: ClassVar[bool] = False  # wants a process for each case of the run, unless told otherwise
    foreign: ClassVar[bool] = False  # somebody's own: what it gives is looked at, not promised

    @classmethod
    def tuned(cls) -> str | None:
        """Its word with the options that its documentation advises; None where it advises its defaults."""
        cores = len(os.sched_getaffinity(0))
        return f"{cls.name}:{cls.advised.format(cores=cores)}" if cls.advised else None

    @property
    def called(self) -> str:
        """What it is called in records."""
        return self.name

    @property
    def settable(self) -> tuple[str, ...]:
        """The options that can be set of it by plain options of a run, too."""
        return tuple(spec.name for spec in declared(type(self)))

    @property
    def own_data(self) -> bool:
        """Whether it reads other files than the artifact's, and knows by itself where they lie."""
        return False

    def reads(self, format: Format) -> bool:
        """Whether it can read artifacts of that format."""
        return True

    def on(self: Self, device: str) -> Self:
        """The same with what depends on the device decided; InvalidSettings where it cannot be had."""
        return self

    @property
    def workers(self) -> int:
        """Processes that it starts for each epoch."""
        return 0

    def pins(self, device: str) -> bool:
        """Whether batches are copied to that device out of pinned memory."""
        return False

    @property
    def copies_without_blocking(self) -> bool:
        """Whether whoever moves its batches does not wait for each copy."""
        return False

    def slots(self, batch_bytes: int) -> tuple[int, int]:
        """Bytes of a piece of memory that it fills, and how many it goes around in."""
        return batch_bytes, 2  # one is filled while the last one is held

    def rows(self, order: Order, samples: int, epoch: int) -> list[Rows]:
        """The rows of each batch that it is told of an epoch: of its rank, where there are several.

        All ranks are told equally many batches.
        """
        return order.batches(samples, epoch)

    def again(self, order: Order, samples: int) -> int:
        """How many of the last rows of an epoch are told to another rank, too; 0 where each is told once."""
        return 0

    @abstractmethod
    def open(self, job: Job) -> Epochs:
        """The loader over an artifact, opened in this process unless its workers will open it."""


@dataclass(frozen=True)
class CopyingLoader(Loader):
    """A loader whose batches are moved to the device by whoever takes them."""

    pin_memory: bool | None = option(None, "batches in pinned memory; by default on with an accelerator")
    non_blocking: bool | None = option(None, "copy to the device without waiting; by default as pin_memory")

    def on(self: Self, device: str) -> Self:
        """The same with pinning and non-blocking copies decided for a device."""
        accelerated = device != "cpu" and _can_pin(device)
        pin, non_blocking = self.pin_memory, self.non_blocking  # type: ignore[attr-defined]
        if not accelerated and (pin or non_blocking):
            raise InvalidSettings(
                f"{self.variant}: pinned memory and copies that do not block need an accelerator that can "
                f"pin, not device {device}"
            )
        pin = accelerated if pin is None else pin
        changes: dict[str, Any] = {
            "pin_memory": pin,
            "non_blocking": pin if non_blocking is None else non_blocking,
        }
        return replace(self, **changes)

    def pins(self, device: str) -> bool:
        """As its option says."""
        return bool(self.pin_memory)

    @property
    def copies_without_blocking(self) -> bool:
        """As its option says."""
        return bool(self.non_blocking)


def _can_pin(device: str) -> bool:
    from torch import device as torch_device  # loading it takes seconds, and listing loaders needs none

    from iobench.host.device import device_of

    return device_of(torch_device(device)).pins


class Epochs(ABC):
    """A loader over an artifact: yields epochs of host batches until it is closed."""

    def __init__(self, loader: Loader, job: Job) -> None:
        self.loader, self.job = loader, job
        self.opener, self.stages = job.opener, job.stages

    @property
    def ahead(self) -> bool:
        """Whether something reads ahead of the consumer, so that what `next()` takes is waiting."""
        return False

    def epoch(self, asked: Asked) -> Generator[HostBatch, None, None]:
        """The batches of an epoch, by its rows or its number; ends its workers when it is closed.

        An IobenchError where a batch cannot be had.
        """
        try:
            yield from self._epoch(asked)
            return
        except IobenchError as error:
            failed: Exception = error.changed(problem=_reason(error.problem))
        except Exception as error:  # noqa: BLE001 - a loader of another package may fail in any way
            failed = failure(self.loader, self.opener, error)
        raise failed  # anew: the frames behind the first error would keep workers alive and files mapped

    def pinned(self, batch: HostBatch) -> HostBatch:
        """A copy in memory that is pinned for the device; the batch itself where it is not to be.

        Of whichever thread asks: one that begins has the first device, and would wake that up.
        """
        if not self.loader.pins(self.job.device):
            return batch
        from torch import device as torch_device

        from iobench.host.device import device_of

        with device_of(torch_device(self.job.device)).current():
            return pinned(batch)

    @abstractmethod
    def close(self) -> None:
        """Let go of readers and workers; a second call does nothing."""

    @abstractmethod
    def _epoch(self, asked: Any) -> Iterator[HostBatch]:
        """What `epoch` yields, with errors as they come."""


def failure(loader: Loader, opener: Opener, error: Exception) -> LoaderFailed:
    """The LoaderFailed that says in one line what a loader met."""
    kind, said = type(error).__name__, _reason(str(error.with_traceback(None)))
    if not isinstance(error, (RuntimeError, OSError)) and said:
        said = f"{kind}: {said}"
    if isinstance(error, EOFError) and loader.workers:  # its end of the pipe went before torch noticed
        said = "DataLoader worker died while it answered, its pid is not known"
    return LoaderFailed(f"{loader.called} over {opener.path}: {said or kind}")


def _reason(message: str) -> str:
    """Return one line of a message: the last one where torch wrote a worker's traceback into it."""
    first, *more = message.strip().splitlines() or [""]
    if "Original Traceback" not in message:
        return first
    kind, _, said = more[-1].partition(": ")
    return said or kind
