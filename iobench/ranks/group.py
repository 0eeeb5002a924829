"""Communication of the ranks of a run: collectives over gloo, common errors, a store for heartbeats.

The only module that imports torch.distributed. It uses gloo next to whatever backend a training uses. Each
wait is a chain of short ones, so that Ctrl-C and the loss of a rank end it. Messages are pickles of
iobench's own objects.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import TCPStore, rendezvous  # type: ignore[attr-defined]

from iobench.base.errors import CaseDied, IobenchError, RankLost
from iobench.base.text import reason
from iobench.bench.epoch import ProcessGroup
from iobench.bench.outcome import Progress
from iobench.host.rank_info import RankInfo
from iobench.ranks.heartbeat import HeartbeatMonitor, KVStore

T = TypeVar("T")

JOIN_S = 120.0  # for all ranks to start: importing torch takes some seconds
SLICE_S = 0.2  # of a wait
FOR_EVER = timedelta(days=30)  # gloo's own timeout: the heartbeats decide instead


class RankGroup:
    """Ranks that make the same calls in the same order; a call raises RankLost if one of them is gone.

    They are processes on any hosts that reach a store at one address. `patience_s` is how long a rank may
    make no progress while others wait for it; None for no limit.
    """

    patience_s: float | None = None

    def __init__(self, info: RankInfo, store: Store, heartbeats: Store) -> None:
        self.info = info
        self._check_interrupt: Callable[[], None] = lambda: None
        try:
            dist.init_process_group(
                "gloo", store=store, rank=info.rank, world_size=info.world_size, timeout=FOR_EVER
            )
        except RuntimeError as error:
            raise _unreachable(info, error) from error
        self.monitor = HeartbeatMonitor(info, KVStore(heartbeats))
        self.ranks: Sequence[RankInfo] = self.all_gather(info)  # all of the group
        self.monitor.start(self.ranks)

    @property
    def alive(self) -> bool:
        """True unless a rank is known to be gone."""
        return self.monitor.verdict is None

    def report_progress(self, progress: Progress) -> None:
        """Make this rank's progress visible to those that wait for it."""
        self.monitor.progress = progress

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks: gather their lengths first, then their pickles."""
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(one) for one in self._gather_tensors(torch.tensor([len(own)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(own)] = own
        pairs = zip(self._gather_tensors(padded), lengths, strict=True)
        return [pickle.loads(one[:length].numpy().tobytes()) for one, length in pairs]

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        return self.all_gather(value)[0]

    def barrier(self) -> None:
        """Block until all ranks arrive."""
        self._wait(lambda: dist.barrier(async_op=True))

    def check(self) -> None:
        """Raise RankLost if a rank was marked dead, CaseDied if rank 0 was interrupted."""
        self.monitor.check()
        if self.monitor.interrupted:
            raise CaseDied("interrupted", kind="interrupted")

    def poll_while_waiting(self, check_interrupt: Callable[[], None]) -> None:
        """Call this while waiting for others; if it raises KeyboardInterrupt, their `check` raises.

        A collective that has begun completes.
        """
        self._check_interrupt = check_interrupt

    def close(self) -> None:
        """Leave the group; the ranks still in it notice."""
        self.monitor.stop()
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _gather_tensors(self, own: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(own) for _ in range(self.info.world_size)]
        self._wait(lambda: dist.all_gather(gathered, own, async_op=True))
        return gathered

    def _wait(self, begin: Callable[[], Any]) -> None:
        self.monitor.enter_collective()
        try:
            work = begin()
            while not self.is_done(work):
                self.monitor.check(self.patience_s)
                self._forward_interrupt()
        except RuntimeError as error:
            if isinstance(error, RankLost):
                raise
            raise self.monitor.connection_broken(reason(error)) from error
        except KeyboardInterrupt:  # within a collective, after which the ranks are out of step
            self.monitor.mark_dead(RankLost("interrupted", kind="interrupted"))
            raise

    def _forward_interrupt(self) -> None:
        try:
            self._check_interrupt()
        except KeyboardInterrupt:  # raised again by the next caller
            self.monitor.interrupt()

    @staticmethod
    def is_done(work: Any) -> bool:
        """Wait shortly and return whether the work is done; RuntimeError if a connection broke."""
        try:
            work.wait(timedelta(seconds=SLICE_S))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # returns at once: the work may have completed just as the wait ended
        return True


def join(info: RankInfo) -> RankGroup:
    """Meet all ranks at the address that torchrun set; raises RankLost if they do not come together."""
    try:
        wait = timedelta(seconds=JOIN_S)
        store, _, _ = next(rendezvous("env://", info.rank, info.world_size, timeout=wait))
        heartbeats = TCPStore(store.host, store.port, is_master=False, wait_for_workers=False, timeout=wait)
    except (RuntimeError, ValueError, OSError) as error:
        raise _unreachable(info, error) from error
    return RankGroup(info, PrefixStore("iobench", store), PrefixStore("iobench-heartbeat", heartbeats))


def _unreachable(info: RankInfo, error: Exception) -> RankLost:
    return RankLost(
        f"{info} did not reach the other ranks: {reason(error)}",
        kind="ranks-unreachable",
        hint="make sure that all hosts resolve each other's names, or set GLOO_SOCKET_IFNAME to the "
        "network's interface",
    )


@dataclass(frozen=True)
class _Failure:
    """Sent by a rank in place of a value: its error, after which it makes no further call."""

    error: IobenchError


class _OtherRankFailed(IobenchError):
    """Another rank failed; `answers` are what all ranks sent."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("another rank failed")
        self.answers = answers


class Collectives(ProcessGroup):
    """The process group of a rank that verifies or measures its share."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.rank, self.world_size = group.info.rank, group.info.world_size

    def barrier(self) -> None:
        """Block until all ranks arrive and none has failed."""
        self.all_gather(None)
        self._group.barrier()

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        answers: list[Any] = self._group.all_gather(value)
        if any(isinstance(one, _Failure) for one in answers):
            raise _OtherRankFailed(answers)
        return answers


def run_on_all_ranks(group: RankGroup, call: Callable[[], T]) -> list[T]:
    """Call a function on every rank and return all results, by rank, on every rank.

    If some ranks raise IobenchError, all raise the first one's, with its rank and host in `problem`. Any
    other exception propagates on its own rank, and is a CaseDied on the others.
    """
    try:
        answers: list[Any] = Collectives(group).all_gather(call())
    except _OtherRankFailed as error:
        answers = error.answers
    except IobenchError as error:
        if not group.alive:
            raise
        answers = group.all_gather(_Failure(error.changed()))
    except BaseException as error:
        if group.alive:
            died = CaseDied(f"{type(error).__name__}: {error}".strip(": "), kind="rank-raised")
            group.all_gather(_Failure(died))
        raise
    errors = [one.error if isinstance(one, _Failure) else None for one in answers]
    common = common_error(list(zip(group.ranks, errors, strict=True)))
    if common is not None:
        raise common
    return answers


def common_error(errors: Sequence[tuple[RankInfo, IobenchError | None]]) -> IobenchError | None:
    """Return the first error, with its rank and host and the number of other failed ranks in `problem`.

    No rank is named if all ranks have the same error. None if there is no error.
    """
    failed = [(rank, error) for rank, error in errors if error is not None]
    if not failed:
        return None
    rank, first = failed[0]
    if len(failed) == len(errors) and all(error.fields() == first.fields() for _, error in failed):
        return first.changed()
    more = f" (and {len(failed) - 1} more of {len(errors)} ranks)" if len(failed) > 1 else ""
    return first.changed(problem=f"{rank}{more}: {first.problem}".removesuffix(": "))
