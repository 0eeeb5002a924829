"""Backend of runs over the settings of one live loader: each setting is a case, measured in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import Turn, TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached
from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text, counted
from iobench.bench.case import Case
from iobench.bench.executor import Executor, Tick
from iobench.bench.hosts import Hosts, LocalHost
from iobench.bench.options import RunOptions
from iobench.bench.proof import Proof
from iobench.dataset.index_cache import LATE
from iobench.dataset.manifest import Manifest
from iobench.host.process_counters import descendants
from iobench.results.parts import ContentCheckPart, Measured

UNVERIFIED = Finding("no-checksums", "it reads data that iobench has no checksums of")
DIFFERENT_SAMPLES = 0.02  # of an epoch's samples; a larger difference means other work


@dataclass(frozen=True)
class ResourceLimits:
    """Limits on settings: worker processes, and bytes of memory of all processes together."""

    workers: int | None = None
    memory_bytes: int | None = None


@contextmanager
def _skipped_if_late() -> Iterator[None]:
    """Let a run skip the case whose turn the end of the time cut off."""
    try:
        yield
    except DeadlineReached as error:
        raise error.changed(kind=LATE) from None


class SettingsBackend(Executor):
    """Executor of every setting, since a live loader and its persistent workers cannot be sent elsewhere."""

    world_size = 1

    def __init__(self, loader: TunableLoader, spec: TurnSpec, limits: ResourceLimits | None = None) -> None:
        self.loader, self._spec, self._limits = loader, spec, limits or ResourceLimits()
        self.limit_s: float | None = None  # of an epoch; None for whole ones
        self.candidates: dict[str, Candidate] = {}  # by the key of their case
        self.first: Turn | None = None
        # persistent workers by candidate: their memory is not that of other candidates
        self._persistent: dict[str, set[int]] = {}
        self._samples: float | None = None  # of a whole baseline epoch, once there was one

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[Finding]:
        """Describe the host; there are no notes."""
        self._hosts = LocalHost(manifest, cases, options.sudo, options.limits)
        return []

    def executor(self, case: Case) -> Executor:
        """Return itself."""
        return self

    @property
    def hosts(self) -> Hosts:
        """The local host."""
        return self._hosts

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Start persistent workers: starting is part of their first epoch and of no later one."""
        candidate = self.candidates[case.key]
        if self.limit_s is None and candidate.changes.get("persistent_workers"):
            with _skipped_if_late():
                self.take(candidate, self.limit_s, tick)
        return Proof(ContentCheckPart(unverified=[UNVERIFIED]))

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time one turn; raises InvalidSettings if a setting other than the baseline exceeds a limit."""
        candidate = self.candidates[case.key]
        with _skipped_if_late():
            turn = self.take(candidate, self.limit_s, tick)
        if (problem := self._violation(candidate, turn)) is None:
            return [turn.measured]
        if candidate.changes:
            candidate.failure = problem
            raise InvalidSettings(problem.message, kind=problem.kind)
        candidate.over_limit = problem
        return [turn.measured]

    def close(self) -> None:
        """Drop the loaders with persistent workers, which ends these."""
        self.loader.close()

    def take(self, candidate: Candidate, limit_s: float | None, tick: Tick | None = None) -> Turn:
        """Run one turn of a candidate; a TargetError of its loader is noted."""
        make = candidate.make or (lambda: self.loader.with_changes(candidate.changes))
        others = (pids for name, pids in self._persistent.items() if name != candidate.name)
        before = set(descendants())
        turn = Turn(make, self.loader.workers(candidate.changes), replace(self._spec, limit_s=limit_s))
        try:
            turn.run(tick, set[int]().union(*others))
        except DeadlineReached:
            raise
        except TargetError as error:
            cause = error.__cause__ or error
            values: dict[str, Any] = {"error": type(cause).__name__, "reason": reason(cause)}
            candidate.failure = Finding("raised", reason(cause), values=values)
            raise
        candidate.turns.append(turn)
        self._persistent.setdefault(candidate.name, set()).update(set(descendants()) - before)
        if not turn.complete:
            self.loader.close()  # else persistent workers would start their next epoch inside this one
        if not candidate.changes and candidate.make is None:
            self._samples = turn.samples if turn.complete else None
        self.first = self.first or turn
        return turn

    def _violation(self, candidate: Candidate, turn: Turn) -> Finding | None:
        """Return why settings that work cannot be chosen; None if they can."""
        limit, used, expected = self._limits.memory_bytes, candidate.memory_bytes, self._samples
        if candidate.make is not None:
            return None
        if limit is not None and used is None:
            return Finding("memory-unknown", "its memory use is unknown")
        if limit is not None and used is not None and used > limit:
            return Finding(
                "memory-limit",
                f"used {bytes_text(used)} of memory, more than {bytes_text(limit)}",
                values={"memory_bytes": used, "limit_bytes": limit},
            )
        if expected is not None and turn.complete and abs(turn.samples / expected - 1) > DIFFERENT_SAMPLES:
            return Finding(
                "samples-not-sharded",
                f"yields {counted(round(turn.samples), 'sample')} an epoch, not {expected:,.0f}: "
                "its dataset does not shard them over the workers",
                values={"samples": turn.samples, "expected": expected},
            )
        return None
