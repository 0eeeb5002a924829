"""Failures of the cases of a run: each is noted, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iobench.base.errors import (
    ColdCacheUnavailable,
    CorruptArtifact,
    IobenchError,
    RankLost,
    RecordError,
    WrongContent,
)
from iobench.bench.case import Case
from iobench.bench.opening import disk_errors
from iobench.bench.outcome import Run
from iobench.dataset.index_cache import LATE
from iobench.dataset.verify import verify_in_time

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
        manifest, own_data = self._run.manifest, case.loader.own_data
        try:
            with disk_errors(manifest.root if own_data else manifest.path_of(case.variant)):
                yield
        except FATAL:
            raise
        except IobenchError as error:
            if error.kind == LATE:
                self._skip(case, error.problem)
                return
            advised = error if own_data else manifest.location_of(case.variant).with_hint(error)
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
        if len(same) == 1:
            return
        try:
            verify_in_time(self._run.manifest, case.variant, limit_s)
        except IobenchError as error:
            if error.kind != "no-hashes":
                self._run.failures |= dict.fromkeys(same, error)
