"""Survey of all hardware limits of this machine, for one dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.errors import ColdCacheUnavailable, LoaderFailed
from iobench.base.files import system_errors_as
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, seconds_text, three_digits
from iobench.bench.case_limits import Measure, largest_file, lower_cache_note, remote_openers, thread_counts
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.host import cached_reads, disk, hardware_limits, memory_limits
from iobench.host.aio import DirectUnavailable
from iobench.host.hardware_limits import Limit
from iobench.host.memory import PAGE
from iobench.objects import limits as store_limits
from iobench.objects.reader import REQUEST_BYTES

if TYPE_CHECKING:
    import torch

SLOTS = 5  # buffers that a survey copies into, as many as StreamLoader has
WAITING = 2.0  # ratio of reads in flight to reads one after the other, from which on each waits for long


@dataclass
class Survey:
    """All limits of this machine for one dataset, and notes about them."""

    limits: list[Limit] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


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
        result.limits += _memory_limits(file, sample_bytes, slot_bytes, seconds)
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
        ways = [cached_reads.plain_reads(file, seconds), cached_reads.mapped_reads(file, seconds)]
    except ColdCacheUnavailable as error:
        problem = f"reads through the page cache were not measured: {error}"
        result.notes.append(Finding("no-cached-reads", problem))
        return
    result.limits += ways
    if disk.is_remote(file):
        result.notes += remote_notes(result.limits, file)


def remote_notes(limits: Sequence[Limit], file: Path) -> Iterator[Finding]:
    """Yield what opening a file takes, and how reads in flight compare with one after the other."""
    opening_s = cached_reads.opening_s(file)
    yield Finding(
        "opening",
        f"opening a file takes {seconds_text(opening_s)}, which a sample in a file of its own pays each time",
        values={"seconds": opening_s},
    )
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


def _memory_limits(file: Path, sample_bytes: int, slot_bytes: int, seconds: float) -> Iterator[Limit]:
    for threads in thread_counts():
        yield memory_limits.page_cache_read(file, slot_bytes, SLOTS, threads, seconds)
        yield memory_limits.gather_rows(file, sample_bytes, None, slot_bytes, threads, seconds)
        yield memory_limits.memory_copy(slot_bytes, SLOTS, threads, seconds)


def _remote_survey(manifest: Manifest, seconds: float, on_status: Callable[[str], None]) -> Survey:
    """Measure an object store: requests of a sample, of a loader and of whole objects, one and many."""
    files = [opener.files for opener in remote_openers(manifest)]
    sample = max(field.sample_bytes for field in manifest.schema.fields)
    result = Survey()
    for size, counts in (
        (sample, (1, *store_limits.many_in_flight(sample))),
        (REQUEST_BYTES, (1, *store_limits.many_in_flight(REQUEST_BYTES))),
        (store_limits.WHOLE_BYTES, (1, 4)),
    ):
        for count in counts:
            on_status(f"requests of {bytes_text(size)}, {count} in flight")
            result.limits.append(store_limits.ranged_gets(files, size, count, seconds))
    return result
