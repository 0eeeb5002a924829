"""What is done once for each host, whatever number of processes measure there: its page cache, its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iobench.bench.case import Case
from iobench.bench.case_limits import CaseLimits
from iobench.dataset.manifest import Manifest
from iobench.host import cache
from iobench.host.limits import Below
from iobench.results.parts import CachePart, LimitPart

WARMED = "by the rounds before: the files are the loader's own"


class Hosts(Protocol):
    """Every host that takes part in a run."""

    def establish(self, case: Case) -> CachePart:
        """Bring the page cache into the case's state, and say how.

        ColdCacheUnavailable where it cannot be.
        """

    def look_at_limits(self) -> None:
        """Measure what was never measured, or not for a while, if that is wanted."""

    def limit(self, case: Case) -> LimitPart | None:
        """The lowest limit on a case's way; None where none can be, or is to be, measured."""

    def limit_again(self, case: Case) -> LimitPart | None:
        """The same after a longer look, because the case has beaten it."""

    def below(self) -> Below | None:
        """Whether a layer below the kernel caches; None where nobody can tell, or nobody asks."""


class OneHost:
    """This one."""

    def __init__(self, manifest: Manifest, cases: Sequence[Case], sudo: bool, limits: bool) -> None:
        self._manifest, self._sudo = manifest, sudo
        self.limits = CaseLimits(manifest, cases) if limits else None

    def establish(self, case: Case) -> CachePart:
        """Warm its files, or evict them and see that they are gone."""
        manifest = self._manifest
        if case.loader.own_data:
            return CachePart(mode=case.cache, residency=None, method=WARMED)
        files, logical = manifest.files_of(case.variant), manifest.schema.logical_bytes
        return CachePart(**cache.establish(case.cache, files, logical, self._sudo))

    def look_at_limits(self) -> None:
        """Measure what was never measured, or not for a while."""
        if self.limits:
            self.limits.look()

    def limit(self, case: Case) -> LimitPart | None:
        """The lowest limit on the case's way."""
        return self.limits.of(case) if self.limits and not case.loader.own_data else None

    def limit_again(self, case: Case) -> LimitPart | None:
        """The same after a longer look."""
        return self.limits.again(case) if self.limits else None

    def below(self) -> Below | None:
        """Whether a layer below this kernel caches."""
        return self.limits.below() if self.limits else None
