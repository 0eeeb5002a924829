"""Hardware limits: of a case, measured in the same run, and of this machine for one dataset."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.errors import (
    ColdCacheUnavailable,
    CorruptArtifact,
    IobenchError,
    LoaderFailed,
    ManifestError,
)
from iobench.base.files import system_errors_as
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.bench.case import WARM_OBJECTS, Case
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.dataset.opener import Opener
from iobench.formats import Reader
from iobench.host import hardware_limits, machine_info, memory
from iobench.host.device import pick_device
from iobench.host.hardware_limits import Limit, LowerCacheProbe, calls_per_s
from iobench.host.io_engines import DirectUnavailable
from iobench.host.memory import PAGE
from iobench.objects import limits as store_limits
from iobench.objects.reader import REQUEST_BYTES, RemoteFiles
from iobench.results.display import Block, table
from iobench.results.metrics import mib_text
from iobench.results.parts import DECODING, LimitPart

if TYPE_CHECKING:
    import torch

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, are spread evenly, however many there are


class DecodeLimit:
    """Measures how fast the samples of an artifact can be decoded, without a loader.

    The reader stays open, because it may take seconds to list a million files.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @cached_property
    def _reader(self) -> Reader:
        return self._opener()

    def __call__(self, seconds: float) -> Limit:
        """Decode for `seconds` with one thread per core, the same samples each time."""
        schema, threads = self._opener.schema, len(os.sched_getaffinity(0))

        def decode(number: int) -> None:
            row = int(number * GOLDEN % 1 * schema.samples)
            self._reader.batch(slice(row, row + 1))

        rate = calls_per_s(decode, threads, seconds)
        sample_bytes = schema.logical_bytes / schema.samples
        return Limit(DECODING, f"one by one, {counted(threads, 'thread')}", rate * sample_bytes)


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
        except (DirectUnavailable, OSError, LoaderFailed, CorruptArtifact):
            self.broken = True  # the rounds of its cases report a disk that fails
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
            for case in self._cases:
                for key, _, methods in self._path(case):
                    self._resources.setdefault(key, _Resource()).methods.update(methods)
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
            best, now = resource.best, resource.now
            if best is not None and now is not None:
                limits.append(
                    LimitPart(
                        name=best.name,
                        how=best.how,
                        bytes_per_s=best.bytes_per_s * factor,
                        reads_per_s=best.reads_per_s,
                        now_bytes_per_s=now.bytes_per_s * factor,
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
            read = partial(hardware_limits.page_cache_read, largest, slot_bytes, slots)
            yield ("page cache",), 1.0, {(slot_bytes, slots, n): partial(read, n) for n in thread_counts()}
            if case.order != "sequential":
                row_bytes = schema.sample_bytes
                window_rows = max(1, case.window_bytes // row_bytes) if case.order == "block" else None
                take = partial(hardware_limits.gather_rows, largest, row_bytes, window_rows, slot_bytes)
                ways: dict[Key, Measure] = {(slot_bytes, n): partial(take, n) for n in thread_counts()}
                yield ("gather", case.order), 1.0, ways
        elif case.order == "random" and stored > memory.free_memory():
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
        files = _remote_files(self._manifest)
        methods: dict[Key, Measure] = {
            (count,): partial(store_limits.ranged_gets, files, size, count)
            for count in store_limits.many_in_flight(size)
        }
        remote = self._manifest.opener(case.variant).remote
        placed = remote is None or remote.placed
        stored = self._manifest.artifacts[case.variant].stored_bytes
        yield (store_limits.NAME, size), 1.0 if placed else schema.logical_bytes / stored, methods

    def _device_steps(self, case: Case) -> Iterator[_Step]:
        slot_bytes, _ = case.loader.slots(case.batch_bytes(self._manifest.schema))
        device = pick_device(case.device)
        if device.type != "cpu":
            pinned = case.loader.pins(case.device)
            method = partial(hardware_limits.host_to_device, device, slot_bytes, pinned)
            yield (TO_DEVICE, case.device), 1.0, {(slot_bytes, pinned): method}

    @cached_property
    def _largest(self) -> Path:
        """The file that all limits are measured with: the largest one of the cases."""
        return largest_file(self._manifest, dict.fromkeys(case.variant for case in self._cases))


def _remote_files(manifest: Manifest) -> list[RemoteFiles]:
    """Return the objects of all artifacts in an object store."""
    openers = (manifest.opener(variant).remote for variant in manifest.artifacts)
    return [opener.files for opener in openers if opener is not None]


def lowest(limits: Iterable[LimitPart]) -> LimitPart | None:
    """Return the lowest limit; None if there is none."""
    return min(limits, key=lambda limit: limit.bytes_per_s, default=None)


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
    values = {"first_s": probe.first_s, "second_s": probe.second_s}
    return Finding("lower-cache", probe.sentence, values={**values})


def _size(file: Path) -> int:
    return file.stat().st_size


SLOTS = 5  # buffers that a survey copies into, as many as StreamLoader has
WAITING = 2.0  # ratio of reads in flight to reads one after the other, from which on each waits for long


@dataclass
class Survey:
    """All limits of this machine for one dataset, and notes about them."""

    limits: list[Limit] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Yield the limits, and the notes."""
        rows = [
            (
                one.name,
                one.how,
                mib_text(one.bytes_per_s),
                None if one.reads_per_s is None else rate_text(one.reads_per_s),
            )
            for one in self.limits
        ]
        yield table(("limit", "measured by", "MiB/s", "reads/s"), rows, heads=2)
        if self.notes:
            yield Block("list", list(map(str, self.notes)))


def survey(
    manifest: Manifest,
    device: torch.device,
    batch_size: int,
    seconds: float,
    on_status: Callable[[str], None] = lambda text: None,
) -> Survey:
    """Measure every limit that a case of this dataset can have, for `seconds` per method.

    Artifacts whose library is not installed are skipped with a note, unless there are no others.
    Raises CorruptArtifact if an artifact is not as it was prepared, LoaderFailed if the disk fails.
    """
    missing = missing_libraries(manifest)
    variants = [variant for variant in manifest.artifacts if variant not in missing] or [*missing]
    for variant in variants:
        manifest.opener(variant)
    if manifest.url:
        return _remote_survey(manifest, seconds, on_status)
    result = Survey(notes=[Finding("skipped", f"skipped: {error}") for error in missing.values()])
    file, sample_bytes = largest_file(manifest, variants), manifest.schema.sample_bytes
    slot_bytes = max(1, min(batch_size, manifest.schema.samples) * sample_bytes)
    with system_errors_as(LoaderFailed, "cannot be read", file, kind="read-error", hint="check the disk"):
        on_status("reading past the page cache")
        _survey_disk(result, file, sample_bytes, seconds)
        on_status("copying memory")
        for threads in thread_counts():
            result.limits += [
                hardware_limits.page_cache_read(file, slot_bytes, SLOTS, threads, seconds),
                hardware_limits.gather_rows(file, sample_bytes, None, slot_bytes, threads, seconds),
                hardware_limits.memory_copy(slot_bytes, SLOTS, threads, seconds),
            ]
    if device.type != "cpu":
        on_status("copying to the device and back")
        result.limits += [
            measure(device, slot_bytes, pinned, seconds)
            for measure in (hardware_limits.host_to_device, hardware_limits.device_to_host)
            for pinned in (True, False)
        ]
    return result


def _survey_disk(result: Survey, file: Path, sample_bytes: int, seconds: float) -> None:
    """Add the limits of the disk, or a note where it cannot be read past the page cache."""
    methods: list[Measure] = [partial(hardware_limits.sequential_read, file)]
    methods += [partial(hardware_limits.random_read, file, size) for size in sorted({PAGE, sample_bytes})]
    try:
        result.limits += [measure(seconds) for measure in methods]
        result.notes.append(lower_cache_note(hardware_limits.probe_lower_cache(file)))
    except DirectUnavailable as error:
        result.notes.append(Finding("no-disk-limits", f"the limits of the disk were not measured: {error}"))
    try:
        ways = [hardware_limits.plain_reads(file, seconds), hardware_limits.mapped_reads(file, seconds)]
    except ColdCacheUnavailable as error:
        problem = f"reads through the page cache were not measured: {error}"
        result.notes.append(Finding("no-cached-reads", problem))
        return
    result.limits += ways
    if machine_info.is_remote(file):
        result.notes += remote_notes(result.limits, file)


def remote_notes(limits: Sequence[Limit], file: Path) -> Iterator[Finding]:
    """Yield what opening a file takes, and how reads in flight compare with one after the other."""
    opening_s = hardware_limits.opening_s(file)
    takes = f"opening a file takes {seconds_text(opening_s)}"
    message = f"{takes}, which a sample in a file of its own pays each time"
    yield Finding("opening", message, values={"seconds": opening_s})
    *in_flight, plain, mapped = (one.bytes_per_s for one in limits)
    at_once = max(in_flight, default=plain)
    if (ratio := plain / at_once) > WAITING:
        yield Finding(
            "one-reader",
            f"one reader in order is {three_digits(ratio)} × as fast as reads in flight past the page cache",
            "compare stream with native here: 'iobench run --cache cold'",
            {"ratio": ratio},
        )
    if (ratio := at_once / mapped) > WAITING:
        yield Finding(
            "waiting",
            f"reads in flight are {three_digits(ratio)} × as fast as a memory map, which waits for one after "
            "the other",
            "read ahead with StreamLoader, or with several workers",
            {"ratio": ratio},
        )


def _remote_survey(manifest: Manifest, seconds: float, on_status: Callable[[str], None]) -> Survey:
    """Measure an object store: requests of a sample, of a loader and of whole objects, one and many."""
    sample = max(field.sample_bytes for field in manifest.schema.fields)
    files, result = _remote_files(manifest), Survey()
    for size, counts in (
        (sample, (1, *store_limits.many_in_flight(sample))),
        (REQUEST_BYTES, (1, *store_limits.many_in_flight(REQUEST_BYTES))),
        (store_limits.WHOLE_BYTES, (1, 4)),
    ):
        for count in counts:
            on_status(f"requests of {bytes_text(size)}, {count} in flight")
            result.limits.append(store_limits.ranged_gets(files, size, count, seconds))
    return result
