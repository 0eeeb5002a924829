"""The ranks of a run as a group: they meet, tell each other things, and agree on what went wrong.

The only module that imports torch.distributed. What is said goes over gloo, beside whatever a training
uses; every wait is a chain of short ones, so that Ctrl-C and the loss of a rank end it. Messages are
pickles of our own making.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import TCPStore, rendezvous  # type: ignore[attr-defined]

from iobench.base.errors import (
    CaseDied,
    RankLost,
)
from iobench.base.text import reason
from iobench.bench.observer import Progress
from iobench.ranks.place import Place
from iobench.ranks.watch import Board, Watch

T = TypeVar("T")

JOIN_S = 120.0  # for all ranks to have started: importing torch takes some seconds
SLICE_S = 0.2  # of a wait
FOR_EVER = timedelta(days=30)  # as far as gloo is concerned: the watch knows better


class Group(ABC):
    """Ranks that make the same calls in the same order. RankLost where one of them is no longer there.

    `patience_s`: how long a rank may make no progress while others wait for it; None for ever.
    """

    place: Place
    places: Sequence[Place]  # of all ranks
    patience_s: float | None = None

    @property
    def alive(self) -> bool:
        """Whether nobody is known to be gone."""
        return True

    @abstractmethod
    def show(self, progress: Progress) -> None:
        """Let those who wait for this rank see what it is doing."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """What every rank says, by rank, on every rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks have come here."""

    @abstractmethod
    def check(self) -> None:
        """RankLost where another rank is known to be gone, CaseDied where rank 0 was interrupted."""

    @abstractmethod
    def while_waiting(self, check_interrupt: Callable[[], None]) -> None:
        """Ask this while it waits for others: where it raises KeyboardInterrupt, their `check` says so."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. A second call does nothing."""

    def broadcast(self, value: T) -> T:
        """What rank 0 says."""
        return self.gather(value)[0]


def named(problems: Sequence[tuple[Place, str | None]]) -> str | None:
    """The first problem with the rank and host that have it, and how many others have one, too.

    Without a rank where all have the same.
    """
    found = [(place, said) for place, said in problems if said is not None]
    if not found:
        return None
    place, said = found[0]
    if len(found) == len(problems) and len({said for _, said in found}) == 1:
        return said
    more = f" (and {len(found) - 1} more of {len(problems)} ranks)" if len(found) > 1 else ""
    return f"{place}: {said}{more}"


class Gloo(Group):
    """Processes, anywhere, that reach a store at one address."""

    def __init__(self, place: Place, store: Store, beats: Store) -> None:
        self.place = place
        self._check_interrupt: Callable[[], None] = lambda: None
        try:
            dist.init_process_group(
                "gloo", store=store, rank=place.rank, world_size=place.world_size, timeout=FOR_EVER
            )
        except RuntimeError as error:
            raise _unreachable(place, error) from error
        self.watch = Watch(place, StoreBoard(beats))
        self.places = self.gather(place)
        self.watch.start(self.places)

    @property
    def alive(self) -> bool:
        """Whether nobody is known to be gone."""
        return self.watch.verdict is None

    def show(self, progress: Progress) -> None:
        """Let those who wait for this rank see what it is doing."""
        self.watch.progress = progress

    def gather(self, value: T) -> list[T]:
        """What every rank says: first how long it is, then the words."""
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(one) for one in self._all(torch.tensor([len(own)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(own)] = own
        said = self._all(padded)
        pairs = zip(said, lengths, strict=True)
        return [pickle.loads(one[:length].numpy().tobytes()) for one, length in pairs]

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._wait(lambda: dist.barrier(async_op=True))

    def check(self) -> None:
        """RankLost where the watch has given up a rank, CaseDied where rank 0 was interrupted."""
        self.watch.check()
        if self.watch.interrupted:
            raise CaseDied("interrupted")

    def while_waiting(self, check_interrupt: Callable[[], None]) -> None:
        """Ask this while it waits: a meeting that has begun is not left, but others can be hurried."""
        self._check_interrupt = check_interrupt

    def close(self) -> None:
        """Leave the group; whoever is still in it notices."""
        self.watch.stop()
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _all(self, own: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(own) for _ in range(self.place.world_size)]
        self._wait(lambda: dist.all_gather(found, own, async_op=True))
        return found

    def _wait(self, begin: Callable[[], Any]) -> None:
        self.watch.arrived()
        try:
            work = begin()
            while not self._came(work):
                self.watch.check(self.patience_s)
                self._hurry()
        except RuntimeError as error:
            if isinstance(error, RankLost):
                raise
            raise self.watch.broken(reason(error)) from error
        except KeyboardInterrupt:  # in the middle of a meeting, after which nobody understands anybody
            self.watch.give_up("interrupted")
            raise

    def _hurry(self) -> None:
        try:
            self._check_interrupt()
        except KeyboardInterrupt:  # raised again by whoever asks next
            self.watch.interrupt()

    @staticmethod
    def _came(work: Any) -> bool:
        """Whether all have come, after a short wait; RuntimeError where a connection has broken."""
        try:
            work.wait(timedelta(seconds=SLICE_S))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # which returns at once: it may have come just as the wait was over
        return True


class StoreBoard(Board):
    """Notes in a store that all ranks reach: a connection of its own, because waits block one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, name: str, text: str) -> None:
        """Put a note there; RuntimeError where the store cannot be reached."""
        self._store.set(name, text)

    def write_first(self, name: str, text: str) -> str:
        """Put a note there unless there is one; the one that is there now."""
        return bytes(self._store.compare_set(name, "", text)).decode()

    def read(self, names: Sequence[str]) -> list[str | None]:
        """Notes, as far as they are there; RuntimeError where the store cannot be reached."""
        return [self._store.get(name).decode() if self._store.check([name]) else None for name in names]


def join(place: Place) -> Gloo:
    """Meet all ranks at the address that torchrun gave; RankLost where they do not come together."""
    try:
        wait = timedelta(seconds=JOIN_S)
        store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=wait))
        beats = TCPStore(store.host, store.port, is_master=False, wait_for_workers=False, timeout=wait)
    except (RuntimeError, ValueError, OSError) as error:
        raise _unreachable(place, error) from error
    return Gloo(place, PrefixStore("iobench", store), PrefixStore("iobench-watch", beats))


def _unreachable(place: Place, error: Exception) -> RankLost:
    return RankLost(
        f"{place} did not reach the other ranks: {reason(error)}; see that all hosts resolve each other's "
        "names, or set GLOO_SOCKET_IFNAME to the network's interface"
    )
