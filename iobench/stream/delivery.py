"""Delivery of the batches of epochs, kept between them with its maps, open files, index and memory."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from iobench.base.errors import LoaderFailed
from iobench.formats import Rows
from iobench.stream.backend import Backend
from iobench.stream.transfer import Tensors


class BatchDelivery(ABC):
    """A backend opened for epochs of one order; each way to deliver their batches is a subclass.

    `completed` is True if the last epoch came to its end. At most `read_ahead` batches are read ahead of the
    consumer.
    """

    completed = False
    read_ahead = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @abstractmethod
    def run(self, batches: Sequence[Rows], start: int = 0) -> Generator[Tensors, None, None]:
        """Yield an epoch's batches in order, from number `start` on.

        An error of reading ahead is raised when its batch is due. Raises LoaderFailed in a forked child.
        """

    def set_epoch(self, number: int, seed: int) -> None:
        """Set the epoch and the seed that random parts of samples follow from; not while an epoch runs."""
        epoch = self._backend.reader.epoch
        epoch.number, epoch.seed = number, seed

    def check_files(self) -> None:
        """Look at every file, at the end of an epoch; CorruptArtifact if one changed since it was opened."""
        try:
            self._backend.unchanged.check(every=True)
        except BaseException:
            self.completed = False
            raise

    def is_current(self) -> bool:
        """Return True if the files are those that were opened, and as much in the page cache."""
        return self._backend.is_current()

    def close(self) -> None:
        """Close the files and release all memory except that of batches in use."""
        self._backend.close()


def refuse_child(process: int) -> None:
    """Raise LoaderFailed in a forked child of the process in which an epoch began."""
    if os.getpid() != process:
        raise LoaderFailed(
            f"an epoch of process {process} cannot continue in its forked child {os.getpid()}, "
            "which has none of its threads",
            "forked",
            hint="start a new epoch in the child",
        )


class DeliveryKeeper:
    """Keeps the delivery of the last completed epoch for the next one.

    It is closed with the keeper, and replaced if its files changed or their state in the page cache asks for
    another backend. A forked child opens its own. A copy or an unpickled keeper starts without one.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._kept: list[BatchDelivery] = []  # at most one
        weakref.finalize(self, _close, self._kept, self._process)

    @contextmanager
    def lend(self, open_delivery: Callable[[], BatchDelivery]) -> Iterator[BatchDelivery]:
        """Lend the kept delivery, or a new one, for an epoch; keep it if the epoch was completed.

        An interrupt leaves nothing behind: it comes with calls, and no call is between two owners.
        """
        lent: list[BatchDelivery] = []
        own, whole = os.getpid() == self._process, False
        try:
            if own:
                lent, self._kept[:] = self._kept[:], ()
            if lent and not lent[0].is_current():
                _close(lent, self._process)
            if not lent:
                lent = [open_delivery()]
            yield lent[0]
            whole = True
        finally:
            # an epoch that ran at the same time may have returned its own
            if own and whole and lent[0].completed and not self._kept:
                self._kept[:] = lent
            else:
                try:
                    _close(lent, os.getpid())
                finally:
                    _close(lent, os.getpid())  # in case of an interrupt

    def close(self) -> None:
        """Close the kept delivery; the next epoch opens a new one."""
        _close(self._kept, self._process)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a new keeper: a delivery belongs to one loader in one process."""
        return DeliveryKeeper, ()


def _close(deliveries: list[BatchDelivery], process: int) -> None:
    while deliveries and os.getpid() == process:  # in a forked child a kept delivery is its parent's
        deliveries[0].close()
        del deliveries[0]
