"""Data of the race: a prepared dataset, or the first samples of a source in every format."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.advise.candidates import DEFAULT_FORMAT, skipped_by, storable_variants
from iobench.advise.requirements import Requirements
from iobench.base.errors import ArtifactExists, InvalidSettings, IobenchError, UnsupportedSchema
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.dataset.add import AddedSource, add
from iobench.dataset.manifest import Manifest, Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.read_back import read_back
from iobench.dataset.sources import FirstSamples, Source
from iobench.formats import Batch
from iobench.host import page_cache

WARM_BYTES, COLD_BYTES = 64 << 20, 256 << 20  # of a sample: large enough that overhead does not dominate
MIN_BATCHES, DECODED_BATCHES = 20, 4  # in a sample; the latter where each sample is an image to decode
MAX_STEPS = 200  # in a sample, where there is a training step
STEPPING = 0.01  # of the time, for an epoch with steps: half a dozen cases need four epochs each
LAST_PART = 0.1  # of the time for writing: nothing more starts in it
WRITING, FIRST_FORMAT = 0.3, 0.5  # at most, of the time; for the first format alone


@dataclass
class MeasuredData:
    """Data that are measured, and how they represent the full data.

    Attributes
    ----------
    manifest : Manifest
        The measured dataset.
    full_bytes : int
        Logical bytes of the full data.
    cold : bool
        The full data do not fit in this machine's memory.
    source : Source or None
        Source of the sample; None for a dataset that was prepared before.
    source_words : tuple of str
        Arguments of `iobench prepare` that name the source.
    skipped : list of Finding
        Formats that the sample was not written in, and why.
    added : tuple of str
        Variants in which the user's own files are stored, so that they need not be written.
    """

    manifest: Manifest
    full_bytes: int
    cold: bool
    source: Source | None = None
    source_words: tuple[str, ...] = ()
    skipped: list[Finding] = field(default_factory=list)
    added: tuple[str, ...] = ()

    @property
    def own_format(self) -> str | None:
        """Variant of the user's own files, which the default reads; None if they are in no format."""
        return next(iter(self.added), None)

    @property
    def rewritten(self) -> bool:
        """True if the user's own files are represented by a copy of their first samples."""
        artifact = self.manifest.artifacts.get(self.own_format or "")
        return artifact is not None and not artifact.added

    def full_stored_bytes(self, variant: str) -> float:
        """Return the bytes that all of the data take on disk in a variant.

        Those of the user's own files are known: they may hold more samples than were measured of them.
        """
        artifact = self.manifest.artifacts[variant]
        held = self.source.schema if artifact.added and self.source is not None else self.manifest.schema
        return artifact.stored_bytes * self.full_bytes / held.logical_bytes

    def stored_already(self, variant: str) -> bool:
        """Return True if the user's own files are in that variant, so that nothing has to be written."""
        artifact = self.manifest.artifacts.get(variant)
        return variant in self.added or (artifact is not None and bool(artifact.added))

    @property
    def scale(self) -> float:
        """Ratio of the full data's size to the measured one."""
        return self.full_bytes / self.manifest.schema.logical_bytes

    @property
    def cache(self) -> str:
        """State of the page cache in which the full data will be read: ``cold`` or ``warm``."""
        return "cold" if self.cold else "warm"


def from_dataset(manifest: Manifest, requirements: Requirements) -> MeasuredData:
    """Return a prepared dataset as it is."""
    full_bytes = requirements.full_bytes or manifest.schema.logical_bytes
    return MeasuredData(manifest, full_bytes, _exceeds_memory(full_bytes))


def from_source(
    source: Source,
    words: Sequence[str],
    requirements: Requirements,
    data_dir: Path,
    status: Callable[[str], None],
) -> MeasuredData:
    """Write the first samples of a source, as a dataset of their own, in every format that can hold them.

    InvalidSettings if no format can (``no-format``), or there is no time to write one (``out-of-time``).
    """
    full_bytes = requirements.full_bytes or source.schema.logical_bytes
    cold = _exceeds_memory(full_bytes)
    first = FirstSamples(source, sample_count(source, requirements, cold))
    added = tuple(source.manifest.added) if isinstance(source, AddedSource) else ()
    storable, skipped = storable_variants(first.schema, replace(requirements, full_bytes=full_bytes))
    usual = [one for one in storable if one == DEFAULT_FORMAT]
    variants = [*dict.fromkeys([*added, *usual, *storable])]
    own = source.in_place(first.schema.samples)
    if own is not None and (others := [one for one in variants if one != own[1]]):
        added, variants = (), others
    _announce(first, [one for one in variants if one not in added], data_dir, status)
    manifest, late, began = None, False, time.monotonic()
    for number, variant in enumerate(variants):
        share = FIRST_FORMAT if manifest is None else WRITING  # one format is indispensable
        left_s = share * requirements.max_time_s - (time.monotonic() - began)
        if left_s <= LAST_PART * share * requirements.max_time_s:
            skipped += [_no_time(one) for one in variants[number:]]
            break
        last = manifest is None or number + 1 == len(variants)
        turn_s = left_s if last else left_s / 2  # a slow format leaves time for others
        status(f"writing {first.schema.samples:,} samples in {variant}")
        try:
            manifest = _written(_decoded_once(first, manifest), [variant], data_dir, turn_s)
        except ArtifactExists:
            raise
        except IobenchError as error:
            late = late or isinstance(error, OutOfTime)
            plain = isinstance(error, UnsupportedSchema | OutOfTime)
            skipped.append(skipped_by(error, "" if plain else f"format {variant}: ", format=variant))
    if manifest is None:
        raise _nothing_written(source, skipped, late)
    if own is not None and own[1] not in variants:
        left_s = FIRST_FORMAT * requirements.max_time_s - (time.monotonic() - began)
        try:
            manifest, added = _registered(own, manifest, left_s), (own[1],)
        except IobenchError as error:
            skipped.append(skipped_by(error, "your own files were not measured: ", format=own[1]))
    return MeasuredData(manifest, full_bytes, cold, source, tuple(words), skipped, added)


def _registered(own: tuple[Path, str], sample: Manifest, left_s: float) -> Manifest:
    """Add the user's own files to the sample where they lie, so that they are what others are compared with.

    Raises ArtifactExists if they are not the samples that were written, OutOfTime if that takes longer than
    `left_s`.
    """
    path, variant = own
    if variant in sample.added and sample.unchanged(variant):
        return sample
    end = time.monotonic() + left_s

    def in_time(what: str, done: int, total: int) -> None:
        if time.monotonic() > end:
            raise OutOfTime("no time was left to read them", hint="give a longer --max-time")

    data_dir, fields = sample.root.parent, sample.schema.fields
    return add(path, variant, name=sample.name, fields=fields, data_dir=data_dir, progress=in_time)[0]


def _no_time(variant: str) -> Finding:
    return Finding("out-of-time", f"{variant}: no time was left to write it", values={"format": variant})


def _nothing_written(source: Source, skipped: Sequence[Finding], late: bool) -> InvalidSettings:
    problem = f"no time was left to write {source.name}" if late else f"no format can hold {source.name}"
    reasons = "; ".join(one.sentence for one in skipped)
    return InvalidSettings(f"{problem}: {reasons}", kind="out-of-time" if late else "no-format")


def _announce(first: Source, variants: list[str], data_dir: Path, status: Callable[[str], None]) -> None:
    """Report the size and the place of the sample before it is written."""
    if not variants:
        return
    bound = sum(formats.parse(variant).size_bound(first.schema) for variant in variants)
    status(
        f"writing a sample of {bytes_text(first.schema.logical_bytes)} in "
        f"{counted(len(variants), 'format')}: up to {bytes_text(bound)} in {data_dir / first.name}"
    )


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
    return _written(first, variants, data.manifest.root.parent, end - time.monotonic())


class OutOfTime(IobenchError):
    """There was no time left to write all of a sample."""


class _StoredSource(Source):
    """Samples of a source that is slow to decode, read from a format that they were written in."""

    def __init__(self, whole: Source, opener: Opener) -> None:
        self.schema, self.name, self._whole, self._opener = whole.schema, whole.name, whole, opener

    @property
    def description(self) -> dict[str, Any]:
        """Description of the original source: these are the same data."""
        return self._whole.description

    def batches(self) -> Iterator[Batch]:
        """Yield the samples as they were written and verified."""
        return read_back(self._opener)


def _decoded_once(first: Source, manifest: Manifest | None) -> Source:
    """Return the same samples from the default format, if decoding them again would take time."""
    if not first.decodes or manifest is None or DEFAULT_FORMAT not in manifest.artifacts:
        return first
    return _StoredSource(first, manifest.opener(DEFAULT_FORMAT))


def _written(first: Source, variants: list[str], data_dir: Path, left_s: float) -> Manifest:
    """Write the sample in these variants; it replaces a sample of other data or of another shape.

    OutOfTime if that takes longer than `left_s`.
    """
    end = time.monotonic() + left_s
    late = OutOfTime(
        f"{', '.join(variants)}: writing the sample takes longer than the {seconds_text(left_s)} available",
        hint="give a longer --max-time",
    )

    def in_time(what: str, done: int, total: int) -> None:
        if time.monotonic() > end:
            raise late

    def write(overwrite: bool) -> Manifest:
        return prepare(
            first, variants, data_dir=data_dir, name=first.name, overwrite=overwrite, progress=in_time
        )[0]

    try:
        return write(overwrite=False)
    except ArtifactExists:
        if "first" not in Manifest.load(data_dir / first.name).source:
            raise  # the folder is no sample of iobench's
        return write(overwrite=True)
    except IobenchError as error:
        if time.monotonic() > end:  # some libraries wrap errors of their callbacks
            raise late from error
        raise


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
    return full_bytes > page_cache.free_memory()
