"""Process of a resume check: it reads a stretch of an epoch, and waits in the middle of it to be killed.

It passes on the hashes of the samples, and the state as the bytes of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.standard_streams import stdout_to_stderr
from iobench.bench.content_check import Hashes
from iobench.dataset.verify import SampleHashes
from iobench.host.child import SharedCount
from iobench.loading import checkpoint, user_errors


@dataclass(frozen=True)
class Stretch:
    """A part of an epoch that one process reads."""

    ranks: int | None = None  # None for the loader's own
    workers: int | None = None  # of each rank; likewise
    rank: int = 0
    state: bytes | None = None  # where to resume; None for the start of the epoch
    stop: int | None = None  # batches after which the state is saved; None for the rest of the epoch
    most_samples: int | None = None  # after which a loader that does not end is stopped


@dataclass
class Delivery:
    """Hashes of the samples of each batch of a stretch, the state after them, and the error that ended it."""

    batches: list[Hashes] = field(default_factory=list)
    first_batch_s: float | None = None
    state: bytes | None = None
    error: IobenchError | None = None


Opened = tuple[Iterator[Hashes], Callable[[], Any]]  # hashes of each batch, and the state after the last one


class ResumableLoader(Protocol):
    """A loader that can be opened in any process."""

    @property
    def name(self) -> str:
        """The loader with its options."""

    @property
    def takes_ranks(self) -> bool:
        """True if it is given its rank; else it follows torchrun's variables, or reads everything."""

    def obstacle(self, stretch: Stretch) -> InvalidSettings | None:
        """Return why it cannot have this number of ranks or workers; None if it can."""

    def open(self, stretch: Stretch) -> Opened:
        """Open it, and load the state."""

    def expected(self, unbroken: Hashes) -> SampleHashes:
        """Return the hashes of the samples of an epoch, given those that came without a stop."""


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Read the stretch that the parent sends, answer with a Delivery, and wait in its middle."""
    loader, stretch = connection.recv()
    heartbeats.count += 1  # all is imported: from now on batches are due
    np.random.seed()  # as a new interpreter does: NumPy 1 drew its seed before this process was forked
    done, stream = Delivery(), None
    try:
        began = time.perf_counter()
        with stdout_to_stderr():
            stream, state = loader.open(stretch)
            _read(stream, stretch, done, heartbeats, began)
        if stretch.stop is not None and len(done.batches) == stretch.stop:
            done.state = checkpoint.encode(state())
    except IobenchError as error:
        done.error = error.changed()  # without its frames, which do not pickle
    except user_errors.USER_ERRORS as error:
        done.error = user_errors.loader_error(error).changed()
    connection.send(done)
    with suppress(EOFError):
        connection.recv()
    del stream


def _read(
    stream: Iterator[Hashes], stretch: Stretch, done: Delivery, heartbeats: SharedCount, began: float
) -> None:
    samples = 0
    while stretch.stop is None or len(done.batches) < stretch.stop:
        batch = next(stream, None)
        if batch is None:
            return
        if done.first_batch_s is None:
            done.first_batch_s = time.perf_counter() - began
        done.batches.append(batch)
        heartbeats.count += 1
        samples += len(batch)
        if stretch.most_samples is not None and samples > stretch.most_samples:
            return
