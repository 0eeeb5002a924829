"""Which limit a case runs into: the lowest one on the way of its bytes, in logical bytes per second.

There is one limit for each resource (page cache, disk, way to a device) and run, whatever slots and
threads a case uses: else each case would have one of its own, and how much of it is reached would rank
nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.base.errors import (
    IobenchError,
    LoaderFailed,
    ManifestError,
)
from iobench.bench.case import Case
from iobench.dataset.manifest import Manifest
from iobench.host import cache, limits
from iobench.host.aio import DirectUnavailable
from iobench.host.device import pick_device
from iobench.host.limits import Below, Limit
from iobench.host.memory import PAGE
from iobench.results.parts import LimitPart

if TYPE_CHECKING:
    import torch

SECONDS = 0.1  # for each way to a limit, and four times as long where a case has beaten one
FIRST_LOOKS = 2  # at each way
EVERY_S = 2.0  # from one look at a resource to the next: a tenth of the time at most
SLOTS = 5  # that a survey copies into, as StreamLoader does

TO_DEVICE = "host to device"

Key = tuple[object, ...]
Measure = Callable[[float], Limit]
_Passed = tuple[Key, float, dict[Key, Measure]]


@dataclass
class _Resource:
    """What bytes pass on the way: ways to find out how many it can pass, and what they found."""

    ways: dict[Key, Measure] = field(default_factory=dict)
    best: Limit | None = None
    best_way: Measure | None = None
    now: Limit | None = None  # the last look
    looked: float = -math.inf
    broken: bool = False

    def look(self, seconds: float) -> None:
        """Once more by the best way, or by every way several times where there was none yet."""
        ways = [self.best_way] if self.best_way else list(self.ways.values()) * FIRST_LOOKS
        self.try_all(ways, seconds)
        self.looked = time.monotonic()

    def try_all(self, ways: Iterable[Measure], seconds: float) -> None:
        """Try these ways; the best of a look is what the resource gives now, the best of all its limit."""
        found = [(measured, way) for way in ways if (measured := self._measured(way, seconds)) is not None]
        if not found:
            return
        self.now, way = max(found, key=lambda one: one[0].bytes_per_s)
        if self.best is None or self.now.bytes_per_s > self.best.bytes_per_s:
            self.best, self.best_way = self.now, way

    def _measured(self, way: Measure, seconds: float) -> Limit | None:
        if self.broken:
            return None
        try:
            return way(seconds)
        except (DirectUnavailable, OSError):  # a disk that fails is the case's to complain of
            self.broken = True
            return None


class CaseLimits:
    """One limit for each resource that the cases of a run share: the most that any way got out of it.

    Each is looked at before the first round and again every few seconds, so that a machine that changes
    meanwhile is seen; limits only rise.
    """

    def __init__(self, manifest: Manifest, cases: Sequence[Case]) -> None:
        self._manifest, self._cases = manifest, cases
        self._resources: dict[Key, _Resource] = {}
        self._ways: dict[str, list[_Passed]] = {}  # by case

    def look(self, devices: bool | None = None) -> None:
        """Measure what was never measured, or not for a while.

        `devices`: only the ways to devices, or only what ranks of a host share; by default both.
        """
        if not self._resources:
            self._find_resources()
        for key, resource in self._resources.items():
            if devices in (None, key[0] == TO_DEVICE) and time.monotonic() - resource.looked > EVERY_S:
                resource.look(SECONDS)

    def of(self, case: Case) -> LimitPart | None:
        """The lowest limit on the case's way, and what it gives now; None where none can be measured."""
        return lowest(self.each(case))

    def each(self, case: Case) -> list[LimitPart]:
        """Every limit on the case's way that could be measured."""
        found = []
        for key, factor, _ in self._on_the_way(case):
            resource = self._resources.get(key, _Resource())
            if resource.best is not None and resource.now is not None:
                found.append(
                    LimitPart(
                        name=resource.best.name,
                        how=resource.best.how,
                        bytes_per_s=resource.best.bytes_per_s * factor,
                        reads_per_s=resource.best.reads_per_s,
                        now_bytes_per_s=resource.now.bytes_per_s * factor,
                        logical_per_byte=factor,
                        definition=resource.best.definition,
                    )
                )
        return found

    def again(self, case: Case, devices: bool | None = None) -> LimitPart | None:
        """The lowest after a longer look at them, in the very slots of a case that has beaten it."""
        for key, _, ways in self._on_the_way(case):
            if devices in (None, key[0] == TO_DEVICE):
                self._resources.setdefault(key, _Resource()).try_all(ways.values(), 4 * SECONDS)
        return self.of(case)

    def below(self) -> Below | None:
        """Whether a layer below this kernel caches; None where nobody can tell."""
        try:
            return limits.below(_largest_file(self._manifest, self._manifest.artifacts))
        except (DirectUnavailable, OSError, IobenchError):
            return None

    def _find_resources(self) -> None:
        for case in self._cases:
            for key, _, ways in self._on_the_way(case):
                self._resources.setdefault(key, _Resource()).ways.update(ways)

    def _on_the_way(self, case: Case) -> list[_Passed]:
        if case.key not in self._ways:
            with contextlib.suppress(OSError, IobenchError):  # files that have gone, of which rounds complain
                self._ways[case.key] = list(self._passed(case))
        return self._ways.get(case.key, [])

    def _passed(self, case: Case) -> Iterator[_Passed]:
        """Each resource, logical bytes per byte that it counts, and ways to measure it as the case does."""
        schema, files = self._manifest.schema, self._manifest.files_of(case.variant)
        stored, largest = sum(map(_size, files)), self._largest
        slot_bytes, slots = case.loader.slots(case.batch_bytes(schema))
        if case.cache == "warm":
            yield ("page cache",), 1.0, dict(_page_cache_ways(largest, slot_bytes, slots))
        elif case.order == "random" and stored > cache.free_memory():
            size = schema.sample_bytes
            way = partial(limits.random_read, largest, size)
            yield ("disk, random",), schema.logical_bytes / stored, {(): way}
        else:
            way = partial(limits.sequential_read, largest)
            yield ("disk",), schema.logical_bytes / stored, {(): way}
        device = pick_device(case.device)
        if device.type != "cpu":
            pinned = case.loader.pins(case.device)
            way = partial(limits.host_to_device, device, slot_bytes, pinned)
            yield (TO_DEVICE, case.device), 1.0, {(slot_bytes, pinned): way}

    @cached_property
    def _largest(self) -> Path:
        """The file that all limits are measured with: the largest of the cases'."""
        return _largest_file(self._manifest, dict.fromkeys(case.variant for case in self._cases))


def lowest(limits: Iterable[LimitPart]) -> LimitPart | None:
    """The one that ends a case's speed first; None of none."""
    return min(limits, key=lambda limit: limit.bytes_per_s, default=None)


def _page_cache_ways(file: Path, slot_bytes: int, slots: int) -> Iterator[tuple[Key, Measure]]:
    """Into such slots with one thread, and with all cores."""
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        yield (slot_bytes, slots, threads), partial(limits.page_cache, file, slot_bytes, slots, threads)


def _largest_file(manifest: Manifest, variants: Iterable[str]) -> Path:
    """The largest file of those variants that are there as they were; the error of one where none is."""
    files: list[Path] = []
    wrong: Exception = ManifestError(
        f"dataset {manifest.name} has no artifact to read; add one with 'iobench prepare'"
    )
    for variant in variants:
        try:
            manifest.opener(variant)
        except (IobenchError, ManifestError) as error:  # which its own cases complain of
            wrong = error
        else:
            files += manifest.files_of(variant)
    if not files:
        raise wrong
    return max(files, key=_size)


def _size(file: Path) -> int:
    return file.stat().st_size


@dataclass
class Survey:
    """All limits of this machine for one dataset, and what to know about them."""

    limits: list[Limit] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def survey(
    manifest: Manifest,
    device: torch.device,
    batch_size: int,
    seconds: float,
    on_status: Callable[[str], None] = lambda text: None,
) -> Survey:
    """Every limit that a case over this dataset can run into, each measured for `seconds` a way.

    CorruptArtifact where anything of it is not there as it was.
    """
    for variant in manifest.artifacts:
        manifest.opener(variant)
    found, schema = Survey(), manifest.schema
    file = _largest_file(manifest, manifest.artifacts)
    slot_bytes = max(1, min(batch_size, schema.samples) * schema.sample_bytes)
    sizes = sorted({PAGE, schema.sample_bytes})
    disk: list[Measure] = [partial(limits.sequential_read, file)]
    disk += [partial(limits.random_read, file, size) for size in sizes]
    on_status("reading past the page cache")
    try:
        try:
            found.limits += [measure(seconds) for measure in disk]
            found.remarks.append(limits.below(file).sentence)
        except DirectUnavailable as error:
            found.remarks.append(f"the limits of the disk were not measured: {error}")
        on_status("copying memory")
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            found.limits.append(limits.page_cache(file, slot_bytes, SLOTS, threads, seconds))
            found.limits.append(limits.memory_copy(slot_bytes, SLOTS, threads, seconds))
    except OSError as error:
        raise LoaderFailed(
            f"{file}: cannot be read: {error.strerror}; see what is wrong with the disk"
        ) from error
    if device.type != "cpu":
        on_status("copying to the device and back")
        found.limits += [
            measure(device, slot_bytes, pinned, seconds)
            for measure in (limits.host_to_device, limits.device_to_host)
            for pinned in (True, False)
        ]
    return found
