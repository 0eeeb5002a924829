"""Per-host work of a run, whatever number of processes measure there: caches and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iobench.base.thresholds import PART_WARMED
from iobench.bench.case import COLD_OBJECTS, REMOTE, WARM_OBJECTS, Case
from iobench.bench.case_limits import CaseLimits
from iobench.bench.object_caches import ObjectCaches
from iobench.dataset.manifest import Manifest
from iobench.host import page_cache
from iobench.host.hardware_limits import LowerCacheProbe
from iobench.results.parts import CachePart, LimitPart

WARMED = "by earlier rounds: the files are the loader's own"
OBJECTS = {
    REMOTE: "none: the rows are in an object store, and no page of them is kept here",
    COLD_OBJECTS: "the cache of objects was emptied",
    WARM_OBJECTS: "the cache of objects was filled by a whole epoch",
}


class Hosts(Protocol):
    """All hosts of a run."""

    def establish(self, case: Case, logical_bytes: int) -> CachePart:
        """Bring the page cache into the case's state for a round over so many bytes, and describe it.

        Raises ColdCacheUnavailable if that is impossible.
        """

    def sample_limits(self) -> None:
        """Measure the limits that are due, if the run measures limits."""

    def limit(self, case: Case) -> LimitPart | None:
        """Return the lowest limit on a case's path; None if none is measured."""

    def remeasure_limit(self, case: Case) -> LimitPart | None:
        """Return the same after a longer measurement, because the case has exceeded it."""

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below the kernel; None if that is impossible or limits are off."""


class LocalHost:
    """The local host, as the only one of a run."""

    def __init__(self, manifest: Manifest, cases: Sequence[Case], sudo: bool, limits: bool) -> None:
        self._manifest, self._sudo, self._cases = manifest, sudo, cases
        self._object_caches: ObjectCaches | None = None
        self.limits = CaseLimits(manifest, cases) if limits else None

    def begin(self) -> None:
        """Empty the object caches of the cases, if they have some; raises LoaderFailed as ObjectCaches."""
        if any(case.object_cache for case in self._cases):
            self._object_caches = ObjectCaches(self._manifest)

    def close(self) -> None:
        """Remove the object caches."""
        if self._object_caches:
            self._object_caches.close()

    def establish(self, case: Case, logical_bytes: int) -> CachePart:
        """Warm the case's files, or evict them and verify that; empty a cold object cache."""
        manifest = self._manifest
        if case.loader.own_data:
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
        """Measure the limits that are due."""
        if self.limits:
            self.limits.sample()

    def limit(self, case: Case) -> LimitPart | None:
        """Return the lowest limit on the case's path; None if it reads files that are not ours."""
        return self.limits.lowest_for(case) if self.limits and not case.loader.own_data else None

    def remeasure_limit(self, case: Case) -> LimitPart | None:
        """Return the same after a longer measurement."""
        return self.limits.remeasure(case) if self.limits else None

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below this kernel."""
        return self.limits.lower_cache() if self.limits else None
