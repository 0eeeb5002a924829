"""Hardware limits of cases: the lowest bandwidth on a case's data path, in logical bytes per second.

There is one limit per run and resource (page cache, gathers from it, disk, decoding, link to a device),
whatever buffers and threads a case uses. With a limit of its own for each case, the share of the limit could
not be compared.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from iobench.base.errors import CorruptArtifact, IobenchError, LoaderFailed, ManifestError
from iobench.base.finding import Finding
from iobench.bench.case import WARM_OBJECTS, Case
from iobench.bench.decode_limit import DecodeLimit
from iobench.dataset.manifest import Manifest
from iobench.dataset.placement_file import RemoteOpener
from iobench.host import hardware_limits, memory_limits, usable_memory
from iobench.host.aio import DirectUnavailable
from iobench.host.device import pick_device
from iobench.host.hardware_limits import Limit, LowerCacheProbe
from iobench.objects import limits as store_limits
from iobench.objects.reader import REQUEST_BYTES
from iobench.results.parts import DECODING, LimitPart

SECONDS = 0.1  # per measurement, and four times as long after a case has exceeded a limit
FIRST_SAMPLES = 2  # of each method
EVERY_S = 2.0  # between two samples of a resource, at least,
REST = 9  # and this many times what a sample of each resource took: together a tenth of the time
TO_DEVICE = "host to device"

Key = tuple[object, ...]
Measure = Callable[[float], Limit]
_Step = tuple[Key, float, dict[Key, Measure]]  # resource, logical bytes per byte, methods


@dataclass
class _Resource:
    """A resource on the data path: methods to measure it, and their results."""

    methods: dict[Key, Measure] = field(default_factory=dict)
    best: Limit | None = None
    best_method: Measure | None = None
    now: Limit | None = None  # the latest sample
    due: float = -math.inf  # when the next sample is to be taken
    broken: bool = False

    def sample(self, seconds: float, resources: int) -> None:
        """Measure by the best method, or at first by every method several times; one of so many resources."""
        methods = [self.best_method] if self.best_method else list(self.methods.values()) * FIRST_SAMPLES
        began = time.monotonic()
        self.measure(methods, seconds)
        ended = time.monotonic()
        self.due = ended + max(EVERY_S, REST * resources * (ended - began) / max(1, len(methods)))

    def measure(self, methods: Iterable[Measure], seconds: float) -> None:
        """Measure by these methods; their best is the current sample, the best of all samples the limit."""
        results = [(limit, one) for one in methods if (limit := self._measured(one, seconds)) is not None]
        if not results:
            return
        self.now, method = max(results, key=lambda one: one[0].bytes_per_s)
        if self.best is None or self.now.bytes_per_s > self.best.bytes_per_s:
            self.best, self.best_method = self.now, method

    def _measured(self, method: Measure, seconds: float) -> Limit | None:
        if self.broken:
            return None
        try:
            return method(seconds)
        except (
            DirectUnavailable,
            OSError,
            LoaderFailed,
            CorruptArtifact,
        ):  # the rounds of its cases report a disk that fails
            self.broken = True
            return None


class CaseLimits:
    """Limits of the resources that the cases of a run share: the highest bandwidth of any method.

    Each resource is sampled before the first round and then every few seconds, so that changes of the
    machine show. Limits only rise.
    """

    def __init__(self, manifest: Manifest, cases: Sequence[Case]) -> None:
        self._manifest, self._cases = manifest, cases
        self._resources: dict[Key, _Resource] = {}
        self._paths: dict[str, list[_Step]] = {}  # by case

    def sample(self, devices: bool | None = None) -> None:
        """Measure the resources that are due.

        `devices`: only links to devices (True), or only what the ranks of a host share (False); by default
        both.
        """
        if not self._resources:
            self._add_resources()
        for key, resource in self._resources.items():
            if devices in (None, key[0] == TO_DEVICE) and time.monotonic() > resource.due:
                resource.sample(SECONDS, len(self._resources))

    def lowest_for(self, case: Case) -> LimitPart | None:
        """Return the lowest limit on the case's path with its latest sample; None if none was measured."""
        return lowest(self.all_for(case))

    def all_for(self, case: Case) -> list[LimitPart]:
        """Return every limit on the case's path that was measured."""
        limits = []
        for key, factor, _ in self._path(case):
            resource = self._resources.get(key, _Resource())
            if resource.best is not None and resource.now is not None:
                limits.append(
                    LimitPart(
                        name=resource.best.name,
                        how=resource.best.how,
                        bytes_per_s=resource.best.bytes_per_s * factor,
                        reads_per_s=resource.best.reads_per_s,
                        now_bytes_per_s=resource.now.bytes_per_s * factor,
                        logical_per_byte=factor,
                    )
                )
        return limits

    def remeasure(self, case: Case, devices: bool | None = None) -> LimitPart | None:
        """Measure longer, with the buffers of a case that exceeded its limit, and return the lowest."""
        for key, _, methods in self._path(case):
            if devices in (None, key[0] == TO_DEVICE):
                self._resources.setdefault(key, _Resource()).measure(methods.values(), 4 * SECONDS)
        return self.lowest_for(case)

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below this kernel; None if the disk cannot be read past the page cache."""
        try:
            return hardware_limits.probe_lower_cache(largest_file(self._manifest, self._manifest.artifacts))
        except (DirectUnavailable, OSError, IobenchError):
            return None

    def _add_resources(self) -> None:
        for case in self._cases:
            for key, _, methods in self._path(case):
                self._resources.setdefault(key, _Resource()).methods.update(methods)

    def _path(self, case: Case) -> list[_Step]:
        if case.key not in self._paths:
            with contextlib.suppress(OSError, IobenchError):  # the case's rounds report files that are gone
                self._paths[case.key] = list(self._steps(case))
        return self._paths.get(case.key, [])

    def _steps(self, case: Case) -> Iterator[_Step]:
        """Yield each resource on the path, logical bytes per byte that it counts, and its methods."""
        schema = self._manifest.schema
        if self._manifest.url:
            if case.cache != WARM_OBJECTS:  # there some of the path is a disk, in a share that varies
                yield from self._remote_steps(case)
            yield from self._device_steps(case)
            return
        files = self._manifest.files_of(case.variant)
        stored, largest = sum(map(_size, files)), self._largest
        slot_bytes, slots = case.loader.slots(case.batch_bytes(schema))
        if case.cache == "warm":
            yield ("page cache",), 1.0, dict(_page_cache_methods(largest, slot_bytes, slots))
            if case.order != "sequential":
                yield ("gather", case.order), 1.0, dict(self._gather_methods(case, slot_bytes))
        elif case.order == "random" and stored > usable_memory.free_memory():
            size = schema.sample_bytes
            method = partial(hardware_limits.random_read, largest, size)
            yield ("disk, random",), schema.logical_bytes / stored, {(): method}
        else:
            method = partial(hardware_limits.sequential_read, largest)
            yield ("disk",), schema.logical_bytes / stored, {(): method}
        opener = self._manifest.opener(case.variant)
        if opener.format.parallel:
            yield (DECODING,), 1.0, {(case.variant,): DecodeLimit(opener)}
        yield from self._device_steps(case)

    def _remote_steps(self, case: Case) -> Iterator[_Step]:
        """Yield the object store: single rows in random order without a cache, else large requests.

        A library fetches what it has encoded, in fewer bytes than the samples have or in more.
        """
        schema, single = self._manifest.schema, case.order == "random" and not case.object_cache
        size = max(field.sample_bytes for field in schema.fields) if single else REQUEST_BYTES
        files = [remote.files for remote in remote_openers(self._manifest)]
        methods: dict[Key, Measure] = {
            (count,): partial(store_limits.ranged_gets, files, size, count)
            for count in store_limits.many_in_flight(size)
        }
        remote = self._manifest.opener(case.variant).remote
        placed = remote is None or remote.placed
        stored = self._manifest.artifacts[case.variant].stored_bytes
        yield (store_limits.NAME, size), 1.0 if placed else schema.logical_bytes / stored, methods

    def _device_steps(self, case: Case) -> Iterator[_Step]:
        """Yield the link to the device, if the case has one."""
        slot_bytes, _ = case.loader.slots(case.batch_bytes(self._manifest.schema))
        device = pick_device(case.device)
        if device.type != "cpu":
            pinned = case.loader.pins(case.device)
            method = partial(hardware_limits.host_to_device, device, slot_bytes, pinned)
            yield (TO_DEVICE, case.device), 1.0, {(slot_bytes, pinned): method}

    def _gather_methods(self, case: Case, slot_bytes: int) -> Iterator[tuple[Key, Measure]]:
        """Yield methods that gather rows in the case's order with one thread, and with all cores."""
        row_bytes = self._manifest.schema.sample_bytes
        window_rows = max(1, case.window_bytes // row_bytes) if case.order == "block" else None
        for threads in thread_counts():
            method = partial(
                memory_limits.gather_rows, self._largest, row_bytes, window_rows, slot_bytes, threads
            )
            yield (slot_bytes, threads), method

    @cached_property
    def _largest(self) -> Path:
        """The file that all limits are measured with: the largest one of the cases."""
        return largest_file(self._manifest, dict.fromkeys(case.variant for case in self._cases))


def remote_openers(manifest: Manifest) -> list[RemoteOpener]:
    """Return the openers of all artifacts in an object store."""
    openers = (manifest.opener(variant).remote for variant in manifest.artifacts)
    return [opener for opener in openers if opener is not None]


def lowest(limits: Iterable[LimitPart]) -> LimitPart | None:
    """Return the lowest limit; None if there is none."""
    return min(limits, key=lambda limit: limit.bytes_per_s, default=None)


def _page_cache_methods(file: Path, slot_bytes: int, slots: int) -> Iterator[tuple[Key, Measure]]:
    """Yield methods that copy into such slots with one thread, and with all cores."""
    for threads in thread_counts():
        yield (
            (slot_bytes, slots, threads),
            partial(memory_limits.page_cache_read, file, slot_bytes, slots, threads),
        )


def thread_counts() -> list[int]:
    """Return the numbers of threads that memory is measured with: one, and all cores."""
    return sorted({1, len(os.sched_getaffinity(0))})


def largest_file(manifest: Manifest, variants: Iterable[str]) -> Path:
    """Return the largest file of the intact variants; raises the error of one if none is intact."""
    files: list[Path] = []
    wrong: IobenchError = ManifestError(
        f"dataset {manifest.name} has no artifact to read",
        kind="no-artifacts",
        hint="add one with 'iobench prepare'",
    )
    for variant in variants:
        try:
            manifest.opener(variant)
        except IobenchError as error:  # the variant's own cases report it
            wrong = error
        else:
            files += manifest.files_of(variant)
    if not files:
        raise wrong
    return max(files, key=_size)


def lower_cache_note(probe: LowerCacheProbe) -> Finding:
    """Return the note on a probe for a cache below the kernel."""
    return Finding(
        "lower-cache", probe.sentence, values={"first_s": probe.first_s, "second_s": probe.second_s}
    )


def _size(file: Path) -> int:
    return file.stat().st_size
