"""Who of the ranks is still there, told by notes on a board that each renews twice a second.

Rank 0 watches all, the others watch rank 0. Whoever gives up a rank writes so on the board, once for all:
the verdict that every rank ends with, also the one that it is about, where it only hangs.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from iobench.base.errors import (
    InvalidSettings,
    RankLost,
)
from iobench.bench.observer import Progress
from iobench.ranks.place import Place

BEAT_S = 0.5
LAST_BEAT_S = 5.0  # for a beat that is under way when a rank leaves: the board may have gone
SILENT_S = 30.0  # without a sign of life: a process that is stopped, a host or a network that has gone
SUSPECT_S = 3.0  # the same where a connection has broken already
STUCK_S = 5.0  # from the verdict until a process that has not heard of it is ended where it stands
ENDING_S = 30.0  # the same for one that has
READING = 4  # beats, within which all ranks have read the verdict
TIMEOUT = "IOBENCH_RANK_TIMEOUT"  # seconds, in the place of any patience; half of them in that of SILENT_S
VERDICT, INTERRUPTED = "verdict", "interrupted"


def own_timeout() -> float | None:
    """The seconds that IOBENCH_RANK_TIMEOUT sets; None where it is not set. InvalidSettings for no number."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidSettings(f"{TIMEOUT}={text} is not a number of seconds above 0")
    return seconds


def silent_s() -> float:
    """Seconds without a sign of life after which a rank is given up: half of a patience that was set."""
    return min(SILENT_S, (own_timeout() or 2 * SILENT_S) / 2)


class Board(ABC):
    """Notes that all ranks read and write; RuntimeError where it cannot be reached."""

    @abstractmethod
    def write(self, name: str, text: str) -> None:
        """Put a note there."""

    @abstractmethod
    def write_first(self, name: str, text: str) -> str:
        """Put a note there unless there is one; the one that is there now."""

    @abstractmethod
    def read(self, names: Sequence[str]) -> list[str | None]:
        """Notes by their names, None for one that is not there."""


@dataclass
class _Seen:
    """What a rank has last said, and when it last said anything new, and anything that is progress."""

    note: str = ""
    meetings: int = 0
    alive: float = 0.0
    moved: float = 0.0


class Watch:
    """This rank's beats, and its look at those of others, in a thread; `check` tells the main one.

    `progress` is what the rank is doing, for whoever waits for it. `end` is called with the verdict where
    the main thread does not end by itself: it hangs.
    """

    def __init__(self, place: Place, board: Board) -> None:
        self.place, self.progress = place, Progress()
        self.end: Callable[[str], None] = lambda verdict: None
        self.verdict: str | None = None
        self.interrupted = False
        self.speaks = False  # whether it is for this rank to tell the verdict
        self._board, self._timeout = board, own_timeout()
        self._silent_s = silent_s()
        self._meetings = self._beats = 0
        self._waiting_since = time.monotonic()
        self._places: Sequence[Place] = ()
        self._seen: dict[int, _Seen] = {}
        self._decided = self._board_seen = 0.0
        self.heard = False  # whether the main thread knows the verdict
        self._told_to_end = self._suspicious = False
        self._lock, self._over = threading.Lock(), threading.Event()
        # two of them, because a board whose network has gone may hold up whoever asks it for minutes
        loops = {"iobench-beat": self._keep_beating, "iobench-watch": self._keep_watching}
        self._threads = [
            threading.Thread(target=loop, name=name, daemon=True) for name, loop in loops.items()
        ]

    def start(self, places: Sequence[Place]) -> None:
        """Begin to watch these ranks."""
        now = self._board_seen = time.monotonic()
        self._places = places
        watched = range(1, len(places)) if self.place.rank == 0 else (0,)
        self._seen = {rank: _Seen(alive=now, moved=now) for rank in watched}
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No more beats: a thread that is still in torch's code when Python ends aborts the process."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(LAST_BEAT_S)

    def arrived(self) -> None:
        """Note that this rank has come to a meeting."""
        self._meetings += 1
        self._waiting_since = time.monotonic()

    def interrupt(self) -> None:
        """Tell all ranks that rank 0 was interrupted: what they are doing is of no use any more."""
        if not self.interrupted:
            self.interrupted = True
            with suppress(RuntimeError):  # which is seen at the next beat
                self._board.write(INTERRUPTED, "yes")

    def told_to_end(self) -> None:
        """Note that whoever started the ranks wants them to end, as torchrun does where one has died."""
        self._told_to_end = True

    def check(self, patience_s: float | None = None) -> None:
        """RankLost where a rank was given up; one that keeps others waiting for `patience_s` is, too."""
        if self.verdict is not None:
            self.heard = True
            raise RankLost(self.verdict)
        if self._told_to_end:
            raise self.broken("it was told to end (SIGTERM)")
        if patience_s is not None:
            self._check_patience(self._timeout or patience_s)

    def broken(self, why: str) -> RankLost:
        """What to raise where a connection broke, after the time that it takes to see who has gone."""
        until = time.monotonic() + (2 if self.place.rank == 0 else 4) * SUSPECT_S
        self._silent_s, self._suspicious = min(self._silent_s, SUSPECT_S), True
        while self.verdict is None and time.monotonic() < until:
            time.sleep(BEAT_S / 5)
        if self.verdict is None:
            self.give_up(f"{self.place} lost the other ranks: {why}")
        self.heard = True
        return RankLost(str(self.verdict))

    def let_others_read(self) -> None:
        """Wait until all ranks have read the verdict, on the host that keeps the board: rank 0's."""
        if self._places and self.place.node == self._places[0].node:
            time.sleep(max(0.0, self._decided + READING * BEAT_S - time.monotonic()))

    def _check_patience(self, patience_s: float) -> None:
        now = time.monotonic()
        for rank, seen in self._seen.items():
            since = max(seen.moved, self._waiting_since)
            if seen.meetings < self._meetings and now - since > patience_s:
                waited = f"the others wait for it, and no batch came for {patience_s:g} s"
                self.give_up(f"{self._places[rank]} hangs: {waited}")

    def _keep_beating(self) -> None:
        while not self._over.wait(BEAT_S):
            with suppress(RuntimeError):  # the board cannot be reached: see below
                self._beat()
                self._board_seen = time.monotonic()

    def _keep_watching(self) -> None:
        while not self._over.wait(BEAT_S):
            if time.monotonic() - self._board_seen > self._silent_s:
                self._lose_board()
            self._end_where_stuck()

    def _beat(self) -> None:
        self._beats += 1
        note = f"{self._beats} {self._meetings} {self.progress.batches}"
        self._board.write(_name(self.place.rank), note)
        interrupted, verdict, *notes = self._board.read([INTERRUPTED, VERDICT, *map(_name, self._seen)])
        self.interrupted = self.interrupted or interrupted is not None
        if verdict is not None:
            self._take(verdict)
        now = time.monotonic()
        for (rank, seen), said in zip(self._seen.items(), notes, strict=True):
            if said is not None and said != seen.note:
                if seen.note.split()[1:] != said.split()[1:]:
                    seen.moved = now
                seen.note, seen.meetings, seen.alive = said, int(said.split()[1]), now
            elif now - seen.alive > self._silent_s:
                self.give_up(self._gone(rank, now - seen.alive))

    def _gone(self, rank: int, seconds: float) -> str:
        place = self._places[rank]
        if self._suspicious:
            return f"{place} is gone: its process ended, or its host or its network did"
        return f"{place} gave no sign of life for {seconds:.0f} s: it was stopped, or its host is gone"

    def give_up(self, said: str) -> None:
        """Write the verdict, unless there is one."""
        if self.verdict is None:
            try:
                self._take(self._board.write_first(VERDICT, f"{self.place.rank} {said}"))
            except RuntimeError:
                self._lose_board()

    def _take(self, verdict: str) -> None:
        author, _, said = verdict.partition(" ")
        with self._lock:
            if self.verdict is not None:
                return
            self.speaks = int(author) == self.place.rank and not self._first_hears()
            self.verdict, self._decided = said, time.monotonic()

    def _first_hears(self) -> bool:
        """Whether this is not rank 0, which is there and says what it hears."""
        first = self._seen.get(0)
        return first is not None and time.monotonic() - first.alive <= self._silent_s

    def _lose_board(self) -> None:
        """Whoever started rank 0 keeps the board."""
        with self._lock:
            if self.verdict is None:
                self.speaks = self.place.leads_host
                first = self._places[0] if self._places else "rank 0"
                self.verdict = f"{self.place} lost {first}: its host or its network is gone"
                self._decided = time.monotonic()

    def _end_where_stuck(self) -> None:
        if self.verdict is not None:
            allowed_s = ENDING_S if self.heard else STUCK_S
            if time.monotonic() - self._decided > allowed_s:
                self.end(self.verdict)


def _name(rank: int) -> str:
    return f"rank {rank}"
