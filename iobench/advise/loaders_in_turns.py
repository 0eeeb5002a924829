"""Loaders of several versions of a program, measured in turns in one run, each in a process of its own.

A neighbor that takes half of the machine slows both sides of a pair of rounds alike, so that a busy machine
costs rounds and not the verdict. Each process has the modules of one version only.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path

from iobench.advise.settings.settings_race import MIN_TURN_S, UNVERIFIED, live_case, run_live
from iobench.advise.settings.turn import Consumer, Turn, TurnSpec
from iobench.base.errors import CaseDied, InvalidSettings, IobenchError, NoRounds
from iobench.base.standard_streams import stdout_to_stderr
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.executor import Executor, Tick
from iobench.bench.part import Proof
from iobench.bench.policies import FinalRounds
from iobench.host.child import Child, ChildEnded, SharedCount
from iobench.host.device import pick_device
from iobench.loading.target import parse_target
from iobench.results import stats
from iobench.results.parts import ContentCheckPart, DatasetPart, Measured
from iobench.results.record import Record
from iobench.results.run_warning import LONGER

ROUNDS = 40  # of each loader, at most
WANTED = 15  # rounds that fit in the time: an epoch for which there is less time is cut off
FIRST = 0.1  # share of the time, for the first turn of all loaders


def measured_in_turns(
    targets: Sequence[str],
    *,
    device: str = "auto",
    budget: Budget | None = None,
    timeout_s: float = 60.0,
    out: Path | None = None,
) -> dict[str, list[Record]]:
    """Return the records of the loaders that functions make, whose rounds are taken in turns, by function.

    Functions are given as ``base/train.py:make_loader:batch_size=64``; batches go to the `device`. The
    `budget` is the time for everything, 60 s by default; after `timeout_s` without a batch a loader hangs.
    Records are appended to `out`.

    TargetError or CaseDied if a loader cannot be made, fails or hangs; InvalidSettings for the same function
    twice; NoRounds if the time ends before each had a round.
    """
    if len(set(targets)) < len(targets):
        found = " ".join(targets)
        raise InvalidSettings(
            "loaders to compare", kind="same-loader", expected="different ones", found=found
        )
    budget, place = budget or Budget(60.0), str(pick_device(device))
    lengths = _Lengths(budget, len(targets))
    loaders = [
        (live_case(target, target, {}, device=place, batch_size=0), _Process(target, timeout_s, lengths))
        for target in targets
    ]
    try:
        policy = FinalRounds(budget, ROUNDS, at_least=stats.MIN_ROUNDS)
        data = DatasetPart(name="own loaders", samples=None, fields=[])
        made = run_live(loaders, policy, budget, data, out)
    finally:
        for _, process in loaders:
            process.close()
    for error in made.failures.values():
        raise error
    rounds = {
        case.dataset: [one for one in made.records if one.settings_key == case.key] for case, _ in loaders
    }
    if not all(rounds.values()):
        problem = "the time ended before each loader was started and had a round"
        raise NoRounds(problem, kind="no-time", hint=LONGER)
    return rounds


class _Lengths:
    """Lengths of turns in the time for `loaders` of them."""

    def __init__(self, budget: Budget, loaders: int) -> None:
        self._budget, self._loaders = budget, loaders
        self.epoch_s: dict[str, float] = {}  # by the key of the case, from its first turn

    @property
    def first_s(self) -> float:
        """Seconds for the first turn of a loader."""
        return FIRST * self._budget.left() / self._loaders

    @cached_property
    def round_s(self) -> float | None:
        """Seconds after which the epoch of a round is cut off; None for whole epochs."""
        left_s = self._budget.left()
        if WANTED * sum(self.epoch_s.values()) <= left_s:
            return None
        return max(MIN_TURN_S, left_s / WANTED / self._loaders)


class _Process(Executor):
    def __init__(self, target: str, timeout_s: float, lengths: _Lengths) -> None:
        self._target, self._timeout_s, self._lengths = target, timeout_s, lengths
        self._child = Child(f"{__name__}:serve")  # imports torch while others do

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Run a turn that counts for nothing."""
        began = time.monotonic()
        self._child.send((self._target, case.device))
        _, epoch_s = self._turn(min(limit_s, self._lengths.first_s), tick)
        self._lengths.epoch_s[case.key] = epoch_s
        return Proof(ContentCheckPart(unverified=[UNVERIFIED]), took_s=time.monotonic() - began)

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time one turn."""
        return [self._turn(self._lengths.round_s, tick)[0]]

    def _turn(self, limit_s: float | None, tick: Tick) -> tuple[Measured, float]:
        with contextlib.suppress(ChildEnded):  # which `reply` reports
            self._child.send(limit_s)
        try:
            measured: tuple[Measured, float] = self._child.reply(self._timeout_s, tick.check_interrupt)
        except CaseDied as error:
            raise error.changed(problem=f"{self._target}: {error.problem}") from None
        return measured

    def close(self) -> None:
        """End the process with its workers."""
        self._child.end()


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Take turns over one loader, one for each limit in seconds that the parent sends, until it ends."""
    target, device = connection.recv()
    beats = itertools.count(1)

    def beat() -> None:
        heartbeats.count = next(beats)

    with stdout_to_stderr(), contextlib.suppress(EOFError):
        while True:
            connection.send(_turn_of(target, device, connection.recv(), beat))


def _turn_of(
    target: str, device: str, limit_s: float | None, beat: Callable[[], None]
) -> tuple[Measured, float] | IobenchError:
    """Return a turn over a new loader and the seconds of its epoch, or the error that ended it."""
    try:
        call = parse_target(target)  # the module is imported once
        turn = Turn(call.build, 0, TurnSpec(Consumer(device), limit_s)).run(Tick(beat))
    except IobenchError as error:
        named = error.problem if error.path else f"{target}: {error.problem}"
        return error.changed(problem=named)  # without its frames, which do not pickle
    return turn.measured, turn.epoch_s
