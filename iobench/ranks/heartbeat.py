"""Failure detection: heartbeats of all ranks in a key-value store, renewed twice a second.

Rank 0 watches all ranks, the others watch rank 0. A rank that marks another as dead writes the verdict to
the store, once for all: every rank ends with that error, the marked one too if it only hangs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from iobench.base.errors import InvalidSettings, RankLost
from iobench.bench.outcome import BatchCount, Progress
from iobench.host.rank_info import RankInfo

SILENT_S = 30.0  # without a heartbeat: a stopped process, or a host or network that is gone
SUSPECT_S = 3.0  # the same after a connection has broken
TIMEOUT = "IOBENCH_RANK_TIMEOUT"  # seconds, instead of any patience; half of them instead of SILENT_S


def own_timeout() -> float | None:
    """Return the seconds in IOBENCH_RANK_TIMEOUT, or None; raises InvalidSettings for an invalid number."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidSettings(
            f"environment variable {TIMEOUT}",
            kind="out-of-range",
            expected="a number of seconds above 0",
            found=repr(text),
        )
    return seconds


def silent_s() -> float:
    """Return the seconds without a heartbeat after which a rank is marked dead."""
    return min(SILENT_S, (own_timeout() or 2 * SILENT_S) / 2)


HEARTBEAT_S = 0.5
LAST_HEARTBEAT_S = 5.0  # for a heartbeat under way when a rank leaves: the store may be gone
STUCK_S = 5.0  # from the verdict until a process whose main thread does not know it is killed
ENDING_S = 30.0  # the same for one whose main thread knows it
READING = 4  # heartbeats within which all ranks have read the verdict
VERDICT, INTERRUPTED = "verdict", "interrupted"


class KVStore:
    """Key-value store of text that all ranks share; RuntimeError if it cannot be reached.

    It is a store of torch with a connection of its own, because a wait blocks one.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def write(self, name: str, text: str) -> None:
        """Set a key."""
        self._store.set(name, text)

    def write_first(self, name: str, text: str) -> str:
        """Set a key unless it is set; return its value."""
        return bytes(self._store.compare_set(name, "", text)).decode()

    def read(self, names: Sequence[str]) -> list[str | None]:
        """Return the values of keys, None for each one that is not set."""
        return [self._store.get(name).decode() if self._store.check([name]) else None for name in names]


@dataclass
class _PeerState:
    """Latest heartbeat of a rank, when it last changed at all, and when it last showed progress."""

    heartbeat: str = ""
    collectives: int = 0
    alive: float = 0.0
    moved: float = 0.0


class HeartbeatMonitor:
    """Sends this rank's heartbeats and watches those of others, in threads.

    The main thread calls `check`, which raises the verdict.
    """

    def __init__(self, info: RankInfo, store: KVStore) -> None:
        self.info = info
        self.progress: Progress = BatchCount()  # the others see it in this rank's heartbeats
        # called with the verdict if the main thread hangs and does not end by itself
        self.end: Callable[[RankLost], None] = lambda verdict: None
        self.verdict: RankLost | None = None  # why all ranks end
        self.interrupted = False  # whether rank 0 was interrupted
        self.reports_failure = False  # whether this rank prints the verdict
        self.acknowledged = False  # whether the main thread knows the verdict
        self.store, self._timeout = store, own_timeout()
        self._silent_s = silent_s()
        self._collectives = self._heartbeats = 0
        self._waiting_since = time.monotonic()
        self._ranks: Sequence[RankInfo] = ()
        self._peers: dict[int, _PeerState] = {}
        self._decided = self._store_seen = 0.0
        self._terminated = self._suspicious = False
        self._lock, self.stopped = threading.Lock(), threading.Event()
        # two threads, because a store whose network is gone may block its caller for minutes
        steps = {"iobench-heartbeat": self.send, "iobench-watchdog": self.watch}
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), name=name, daemon=True)
            for name, step in steps.items()
        ]

    def start(self, ranks: Sequence[RankInfo]) -> None:
        """Start to send heartbeats and to watch these ranks, in threads."""
        self.expect(ranks)
        for thread in self._threads:
            thread.start()

    def expect(self, ranks: Sequence[RankInfo]) -> None:
        """Count the silence of these ranks from now on."""
        now = self._store_seen = time.monotonic()
        self._ranks = ranks
        watched = range(1, len(ranks)) if self.info.rank == 0 else (0,)
        self._peers = {rank: _PeerState(alive=now, moved=now) for rank in watched}

    def stop(self) -> None:
        """Stop the threads: one that is still in torch's code when Python ends aborts the process."""
        self.stopped.set()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(LAST_HEARTBEAT_S)

    def enter_collective(self) -> None:
        """Note that this rank has entered a collective call."""
        self._collectives += 1
        self._waiting_since = time.monotonic()

    def interrupt(self) -> None:
        """Notify all ranks that rank 0 was interrupted, so that they cancel what they are doing."""
        if not self.interrupted:
            self.interrupted = True
            with suppress(RuntimeError):  # noticed at the next heartbeat
                self.store.write(INTERRUPTED, "yes")

    def terminate(self) -> None:
        """Note a SIGTERM, which torchrun sends to all ranks after one has died."""
        self._terminated = True

    def check(self, patience_s: float | None = None) -> None:
        """Raise RankLost if a rank is dead, or has kept others waiting for `patience_s`."""
        if self.verdict is not None:
            raise self._acknowledge(self.verdict)
        if self._terminated:
            raise self.connection_broken("it was terminated (SIGTERM)", "terminated")
        if patience_s is not None:
            self._check_patience(self._timeout or patience_s)

    def connection_broken(self, why: str, kind: str = "connection-lost") -> RankLost:
        """Return the error after a broken connection, once heartbeats have shown which rank is gone."""
        until = time.monotonic() + (2 if self.info.rank == 0 else 4) * SUSPECT_S
        self._silent_s, self._suspicious = min(self._silent_s, SUSPECT_S), True
        while self.verdict is None and time.monotonic() < until:
            time.sleep(HEARTBEAT_S / 5)
        if self.verdict is None:
            self.mark_dead(RankLost(f"{self.info} lost the other ranks: {why}", kind=kind))
        assert self.verdict is not None
        return self._acknowledge(self.verdict)

    def wait_for_readers(self) -> None:
        """Wait until all ranks have read the verdict, on the host of the store: rank 0's."""
        if self._ranks and self.info.node == self._ranks[0].node:
            time.sleep(max(0.0, self._decided + READING * HEARTBEAT_S - time.monotonic()))

    def mark_dead(self, error: RankLost) -> None:
        """Write the verdict to the store, unless there is one."""
        if self.verdict is None:
            text = json.dumps({"author": self.info.rank, **error.fields()})
            try:
                self._take(self.store.write_first(VERDICT, text))
            except RuntimeError:
                self._lose_store()

    def _acknowledge(self, verdict: RankLost) -> RankLost:
        self.acknowledged = True
        return verdict.changed()

    def _check_patience(self, patience_s: float) -> None:
        now = time.monotonic()
        for rank, peer in self._peers.items():
            since = max(peer.moved, self._waiting_since)
            if peer.collectives < self._collectives and now - since > patience_s:
                hangs = f"{self._ranks[rank]} hangs: no batch for {patience_s:g} s while the others wait"
                self.mark_dead(RankLost(hangs, kind="rank-hangs"))

    def send(self) -> None:
        """Send one heartbeat and read those of others."""
        self._heartbeats += 1
        text = f"{self._heartbeats} {self._collectives} {self.progress.count}"
        try:
            self.store.write(_name(self.info.rank), text)
            interrupted, verdict, *texts = self.store.read([INTERRUPTED, VERDICT, *map(_name, self._peers)])
        except RuntimeError:  # the store cannot be reached: `watch` notices
            return
        self.interrupted = self.interrupted or interrupted is not None
        if verdict is not None:
            self._take(verdict)
        now = self._store_seen = time.monotonic()
        for (rank, peer), latest in zip(self._peers.items(), texts, strict=True):
            if latest is not None and latest != peer.heartbeat:
                if peer.heartbeat.split()[1:] != latest.split()[1:]:
                    peer.moved = now
                peer.heartbeat, peer.collectives, peer.alive = latest, int(latest.split()[1]), now
            elif now - peer.alive > self._silent_s:
                self.mark_dead(self._silent(rank, now - peer.alive))

    def watch(self) -> None:
        """Check once that the store is reached and that the main thread follows the verdict."""
        if time.monotonic() - self._store_seen > self._silent_s:
            self._lose_store()
        if self.verdict is not None:
            allowed_s = ENDING_S if self.acknowledged else STUCK_S
            if time.monotonic() - self._decided > allowed_s:
                self.end(self.verdict)

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self.stopped.wait(HEARTBEAT_S):
            step()

    def _silent(self, rank: int, seconds: float) -> RankLost:
        info = self._ranks[rank]
        if self._suspicious:
            return RankLost(f"{info} is gone: its process, host or network ended", kind="rank-gone")
        return RankLost(
            f"{info} sent no heartbeat for {seconds:.0f} s: it was stopped, or its host is gone",
            kind="rank-silent",
        )

    def _take(self, text: str) -> None:
        fields = json.loads(text)
        author = fields.pop("author")
        with self._lock:
            if self.verdict is not None:
                return
            self.reports_failure = author == self.info.rank and not self._first_is_alive()
            self.verdict, self._decided = RankLost(**fields), time.monotonic()

    def _first_is_alive(self) -> bool:
        """Return whether this is not rank 0, and rank 0 is alive and reports the verdict."""
        first = self._peers.get(0)
        return first is not None and time.monotonic() - first.alive <= self._silent_s

    def _lose_store(self) -> None:
        """Mark rank 0 as dead, whose launcher serves the store."""
        with self._lock:
            if self.verdict is None:
                self.reports_failure = self.info.leads_host
                first = self._ranks[0] if self._ranks else "rank 0"
                lost = f"{self.info} lost {first}: its host or network is gone"
                self.verdict, self._decided = RankLost(lost, kind="host-gone"), time.monotonic()


def _name(rank: int) -> str:
    return f"rank {rank}"
