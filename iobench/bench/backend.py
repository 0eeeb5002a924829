"""Backends of a run: executors of its cases, and what is done once per host: caches, limits and eviction."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Sequence

from iobench.base.errors import LoaderFailed
from iobench.base.files import system_errors_as
from iobench.base.finding import Finding
from iobench.base.thresholds import PART_WARMED
from iobench.bench.case import COLD_OBJECTS, REMOTE, WARM_OBJECTS, Case
from iobench.bench.executor import Executor, InProcess
from iobench.bench.isolated import Isolated
from iobench.bench.limits import CaseLimits
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.host import page_cache
from iobench.host.hardware_limits import LowerCacheProbe
from iobench.results.parts import CachePart, LimitPart

LOCK = ".lock"


class ObjectCaches:
    """Caches of all cases on this host; only one run of a dataset may have some.

    Raises LoaderFailed if another run has, or if their folder cannot be written.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest, folder = manifest, manifest.case_caches
        failing = system_errors_as(LoaderFailed, "the object caches cannot be written", folder)
        with failing, contextlib.ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(folder / LOCK, "w"))
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem, hint = "another run has object caches of the dataset", "wait until it has finished"
                raise LoaderFailed(problem, kind="locked", path=folder, hint=hint) from None
            self._remove_all()
            self._files = stack.pop_all()

    def empty(self, case: Case) -> None:
        """Remove the pieces of a case."""
        shutil.rmtree(case.object_cache_of(self._manifest).folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the pieces of all cases."""
        self._remove_all()
        self._files.close()

    def _remove_all(self) -> None:
        for path in self._manifest.case_caches.iterdir():
            if path.name != LOCK:
                shutil.rmtree(path, ignore_errors=True)


WARMED = "by earlier rounds: the files are the loader's own"
OBJECTS = {
    REMOTE: "none: the rows are in an object store, and no page of them is kept here",
    COLD_OBJECTS: "the cache of objects was emptied",
    WARM_OBJECTS: "the cache of objects was filled by a whole epoch",
}


class RunBackend:
    """Executors of a run's cases, and the caches and limits of the hosts; this class is for the local host.

    Of several ranks on it only the one that `leads` empties the object caches.
    """

    world_size = 1
    limits: CaseLimits | None = None
    _manifest: Manifest | None = None
    _object_caches: ObjectCaches | None = None
    _sudo = False

    def __init__(self, leads: bool = True) -> None:
        self._leads, self._executors = leads, dict[bool, Executor]()  # by whether a case is isolated

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[Finding]:
        """Prepare for a run over a dataset and return notes about it.

        Raises RanksDiffer if the ranks would not measure the same thing, LoaderFailed as ObjectCaches.
        """
        self._manifest, self._sudo, self._timeout_s = manifest, options.sudo, options.timeout
        self.limits = CaseLimits(manifest, cases) if options.limits else None
        if self._leads and any(case.object_cache for case in cases):
            self._object_caches = ObjectCaches(manifest)
        return []

    def executor(self, case: Case) -> Executor:
        """Return the executor that verifies and measures a case."""
        if case.isolated not in self._executors:
            assert self._manifest is not None, "begin comes first"
            own, limit_s = self._manifest, self._timeout_s
            self._executors[case.isolated] = Isolated(own, limit_s) if case.isolated else InProcess(own)
        return self._executors[case.isolated]

    def establish(self, case: Case, logical_bytes: int) -> CachePart:
        """Bring the caches into the case's state for a round over so many bytes, and describe it.

        Raises ColdCacheUnavailable if that is impossible.
        """
        manifest = self._manifest
        if manifest is None or case.loader.own_data:
            return CachePart(mode=case.cache, residency=None, method=WARMED)
        if manifest.url:
            if self._object_caches and case.cache == COLD_OBJECTS:
                self._object_caches.empty(case)
            return CachePart(mode=case.cache, residency=None, method=OBJECTS[case.cache])
        added = manifest.added.get(case.variant)
        if added is not None and added.samples is not None and case.cache == "warm":
            return CachePart(mode=case.cache, residency=None, method=PART_WARMED)
        files = manifest.files_of(case.variant)
        return CachePart(**page_cache.establish(case.cache, files, logical_bytes, self._sudo))

    def sample_limits(self) -> None:
        """Measure the limits that are due, if the run measures limits."""
        if self.limits:
            self.limits.sample()

    def limit(self, case: Case) -> LimitPart | None:
        """Return the lowest limit on a case's path; None without, and if it reads files that are not ours."""
        return self.limits.lowest_for(case) if self.limits and not case.loader.own_data else None

    def remeasure_limit(self, case: Case) -> LimitPart | None:
        """Return the same after a longer measurement, because the case has exceeded it."""
        return self.limits.remeasure(case) if self.limits else None

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below the kernel; None if that is impossible or limits are off."""
        return self.limits.lower_cache() if self.limits else None

    def close(self) -> None:
        """End all processes started for the run, and remove object caches."""
        for executor in self._executors.values():
            executor.close()
        if self._object_caches:
            self._object_caches.close()
