"""Failures of the cases of a run: each is noted, and the others continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iobench import formats
from iobench.base.errors import (
    ColdCacheUnavailable,
    CorruptArtifact,
    IobenchError,
    RankLost,
    RecordError,
    WrongContent,
)
from iobench.bench.case import Case
from iobench.bench.epoch import disk_errors
from iobench.bench.executor import TookTooLong
from iobench.bench.outcome import Run
from iobench.dataset.index_cache import IndexLate
from iobench.dataset.verify import verify_in_time
from iobench.results.record import Record

COMPARED = ("order", "batch_size", "block_bytes", "window_bytes", "seed", "model", "device", "world_size")


def loss_mismatches(run: Run, case: Case, made: Record) -> dict[str, WrongContent]:
    """Return an error, by case key, for each case whose loss differs from the majority's in this round.

    Without a majority all compared cases are wrong.
    """
    comparable = {one.key for one in run.cases if not one.loader.iterable_style}
    losses = {
        other.settings_key: repr(other.loss)
        for other in run.records
        if other.round == made.round and other.loss is not None and _same_samples(other, made)
    }
    losses = {key: loss for key, loss in losses.items() if key in comparable}
    if made.loss is None or len(set(losses.values())) < 2:
        return {}
    (usual, votes), *_ = Counter(losses.values()).most_common(1)
    decided = 2 * votes > len(losses)
    return {
        key: WrongContent(
            f"loss in round {made.round} differs from other cases' on the same samples",
            kind="loss-mismatch",
            expected=" and ".join(sorted(set(losses.values()) - {loss})),
            found=loss,
        )
        for key, loss in losses.items()
        if not decided or loss != usual
    }


def _same_samples(one: Record, other: Record) -> bool:
    same = all(one.case.get(name) == other.case.get(name) for name in COMPARED)
    return same and _lossy_variant(one) == _lossy_variant(other)


def _lossy_variant(record: Record) -> str | None:
    """Return the variant of a lossy format, whose decoded data no other variant has; else None."""
    form = formats.parse(str(record.case["format"]))
    return None if form.lossless else form.variant


FATAL = (ColdCacheUnavailable, RecordError, RankLost)  # nothing can be measured after one of these


class CaseFailures:
    """Notes the failures of a run's cases, and skips those that there was no time for."""

    def __init__(self, run: Run, skip: Callable[[Case, str], None]) -> None:
        self._run, self._skip = run, skip
        self._wrong = set[str]()  # cases whose stored data or delivered samples were wrong
        self.checked = set[str]()  # variants whose stored data are known to be right, or were reread

    @contextmanager
    def collecting(self, case: Case) -> Iterator[None]:
        """Note the error of one case and continue with the others; an error of FATAL ends the run."""
        manifest = None if case.loader.own_data else self._run.manifest
        try:
            with disk_errors(self._run.path_of(case)):
                yield
        except FATAL:
            raise
        except TookTooLong as late:
            self._skip(case, str(late))
        except IndexLate as late:
            self._skip(case, late.problem)
        except IobenchError as error:
            advised = error if manifest is None else manifest.location_of(case.variant).with_hint(error)
            self._run.failures[case.key] = advised
            if isinstance(error, WrongContent | CorruptArtifact):
                self._wrong.add(case.key)

    def check_stored(self, case: Case, limit_s: float) -> None:
        """Reread the variant of a wrong case, if others read it, too; fail all of them if it is wrong.

        In the time there may be no more than a sample of its rows, or nothing that proves them wrong.
        """
        if case.key not in self._wrong or case.variant in self.checked:
            return
        self.checked.add(case.variant)
        same = [one.key for one in self._run.cases if one.variant == case.variant]
        if len(same) == 1 or self._run.manifest is None:
            return
        try:
            verify_in_time(self._run.manifest, case.variant, limit_s)
        except IobenchError as error:
            if error.kind != "no-hashes":
                self._run.failures |= dict.fromkeys(same, error)
