"""Data of the race: a prepared dataset, or the first samples of a source as they lie and in other formats."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from iobench import formats
from iobench.advise.candidates import DEFAULT_FORMAT, storable_variants
from iobench.advise.requirements import Requirements
from iobench.advise.sample_writer import SampleWriter, TimedSamples, written
from iobench.advise.sentences import skipped_together
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.finding import Finding
from iobench.bench.case import REMOTE
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.dataset.sources import FirstSamples, Source
from iobench.host import usable_memory

WARM_BYTES, COLD_BYTES = 64 << 20, 256 << 20  # of a sample: large enough that overhead does not dominate
LIKELY_FORMATS = (DEFAULT_FORMAT, "memmap", "lmdb", "hdf5")  # the fastest in most cases
MIN_BATCHES, DECODED_BATCHES = 20, 4  # in a sample; the latter where each sample is an image to decode
DECODED_SAMPLES = 64  # whose decoding is timed
MAX_STEPS = 200  # in a sample, where there is a training step
STEPPING = 0.01  # of the time, for an epoch with steps: half a dozen cases need four epochs each


@dataclass
class MeasuredData:
    """Data that are measured, and how they represent the full data."""

    manifest: Manifest  # of the measured dataset
    full_bytes: int  # logical, of the full data
    cold: bool  # the full data do not fit in this machine's memory
    source: Source | None = None  # of the sample; None for a dataset that was prepared before
    source_words: tuple[str, ...] = ()  # arguments of `iobench prepare` that name the source
    skipped: list[Finding] = field(default_factory=list)  # formats that were not written, and why
    added: tuple[str, ...] = ()  # variants of the user's own files; in an object store all variants
    decoding_s: float = 0.0  # for all of the full data, before they can be written; 0 for arrays

    @property
    def own_format(self) -> str | None:
        """Variant of the user's own files, which the default reads; None if they are in no format."""
        return next(iter(self.added), None)

    def full_stored_bytes(self, variant: str) -> float:
        """Return the bytes that all of the data take on disk in a variant.

        Those of the user's own files are known: they may hold more samples than were measured of them.
        """
        artifact = self.manifest.artifacts[variant]
        held = self.source.schema if artifact.added and self.source is not None else self.manifest.schema
        return artifact.stored_bytes * self.full_bytes / held.logical_bytes

    @property
    def own_bytes(self) -> float | None:
        """Bytes that all of the data take now; None if they are in no files of the user's."""
        if self.own_format is not None:
            return self.full_stored_bytes(self.own_format)
        held = self.source.description.get("bytes") if self.source is not None else None
        return (
            None
            if held is None or self.source is None
            else (held * self.full_bytes / self.source.schema.logical_bytes)
        )

    @property
    def scale(self) -> float:
        """Ratio of the full data's size to the measured one."""
        return self.full_bytes / self.manifest.schema.logical_bytes

    @property
    def cache(self) -> str:
        """State of the page cache in which the full data will be read: ``cold``, ``warm`` or ``remote``."""
        return REMOTE if self.manifest.url else "cold" if self.cold else "warm"


def from_dataset(manifest: Manifest, requirements: Requirements) -> MeasuredData:
    """Return a dataset as it is, on a disk or in an object store."""
    full_bytes = requirements.full_bytes or manifest.schema.logical_bytes
    if manifest.url:
        return MeasuredData(manifest, full_bytes, cold=False, added=_at_address(manifest, requirements))
    cold = _exceeds_memory(full_bytes)
    return MeasuredData(manifest, full_bytes, cold, added=tuple(manifest.added))


def _at_address(manifest: Manifest, requirements: Requirements) -> tuple[str, ...]:
    """Return the variants in an object store that take part, that of the default first."""
    usable = [variant for variant in manifest.artifacts if variant not in missing_libraries(manifest)]
    if "all" not in requirements.formats:
        usable = [formats.parse(word).variant for word in requirements.formats]
    return tuple(sorted(usable, key=lambda variant: variant != DEFAULT_FORMAT))


def from_source(
    source: Source,
    words: Sequence[str],
    requirements: Requirements,
    data_dir: Path,
    status: Callable[[str], None],
    began: float | None = None,
) -> MeasuredData:
    """Return the first samples of a source: where they lie, if a format reads them, and in other formats.

    Raises
    ------
    InvalidSettings
        No format can hold them (``no-format``), or there is no time to write one (``out-of-time``).
    """
    full_bytes = requirements.full_bytes or source.schema.logical_bytes
    cold = _exceeds_memory(full_bytes)
    first = TimedSamples(source, sample_count(source, requirements, cold))
    storable, skipped = storable_variants(first.schema, replace(requirements, full_bytes=full_bytes))
    likely = [one for one in LIKELY_FORMATS if one in storable]
    own = source.in_place()
    variants = [one for one in dict.fromkeys([*likely, *storable]) if own is None or one != own[1]]
    writer = SampleWriter(first, data_dir, requirements.max_time_s, status, began or time.monotonic())
    added = writer.write_all(variants, own, source.other_decoders())
    skipped += writer.skipped
    if writer.manifest is None:
        raise _nothing_written(source, skipped, writer.late)
    decoding_s = _decoding_s(source, first, full_bytes)
    return MeasuredData(
        writer.manifest, full_bytes, cold, source, tuple(words), skipped, added, decoding_s=decoding_s
    )


def _decoding_s(source: Source, first: TimedSamples, full_bytes: int) -> float:
    """Return the seconds that decoding all of the data takes; 0 if they are arrays.

    Where the sample was written before, a few of the first samples are decoded again.
    """
    if not source.decodes:
        return 0.0
    if first.seconds is None:
        first = TimedSamples(source, DECODED_SAMPLES)
        for _ in first.batches():
            pass
    return (first.seconds or 0.0) * full_bytes / first.schema.logical_bytes


def _nothing_written(source: Source, skipped: Sequence[Finding], late: bool) -> InvalidSettings:
    problem = f"no time was left to write {source.name}" if late else f"no format can hold {source.name}"
    reasons = "; ".join(one.sentence for one in skipped_together(skipped))
    return InvalidSettings(f"{problem}: {reasons}", kind="out-of-time" if late else "no-format")


def other_samples(data: MeasuredData) -> list[Manifest]:
    """Return other samples of the same source on disk: earlier ones, and the half-size one."""
    if data.source is None:
        return []
    samples = []
    for path in sorted(data.manifest.root.parent.glob(f"{glob.escape(data.source.name)}-first-*")):
        with contextlib.suppress(IobenchError):  # it is no dataset
            samples.append(Manifest.load(path))
    return [one for one in samples if "first" in one.source and one.root != data.manifest.root]


def half_sample(data: MeasuredData, variants: list[str], end: float) -> Manifest | None:
    """Write half as many samples of the same source; None where there is no source, or too few samples.

    OutOfTime if they are not written by `end`, in seconds of the monotonic clock.
    """
    count = data.manifest.schema.samples // 2
    if data.source is None or not count:
        return None
    first = FirstSamples(data.source, count)
    return written(first, variants, data.manifest.root.parent, end)


def sample_count(source: Source, requirements: Requirements, cold: bool) -> int:
    """Return a number of samples with enough batches and bytes, and no more steps than there is time for."""
    schema, largest = source.schema, max(requirements.batch_sizes)
    batches = DECODED_BATCHES if source.decodes else MIN_BATCHES
    count = (COLD_BYTES if cold else WARM_BYTES) // schema.sample_bytes
    if requirements.step_ms:
        fitting = int(STEPPING * requirements.max_time_s / requirements.step_s(largest))
        count = min(count, min(MAX_STEPS, fitting) * largest)
    return min(schema.samples, max(count, batches * largest))


def _exceeds_memory(full_bytes: int) -> bool:
    """Return True if an epoch finds nothing of the previous one in memory."""
    return full_bytes > usable_memory.free_memory()
