"""Data of the race: a prepared dataset, or the first samples of a source, which are written for it."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.advise.answer import skipped_together
from iobench.advise.candidates import DEFAULT_FORMAT, skipped_by, storable_variants
from iobench.advise.requirements import Requirements
from iobench.base.errors import ArtifactExists, InvalidSettings, IobenchError, SourceError, UnsupportedSchema
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted
from iobench.bench.budget import Budget
from iobench.bench.case import REMOTE
from iobench.bench.meter import Meter
from iobench.dataset.add import AddOptions, add_files
from iobench.dataset.manifest import Manifest, missing_libraries
from iobench.dataset.opener import Opener
from iobench.dataset.prepare import is_free, prepare
from iobench.dataset.sources import FirstSamples, Source
from iobench.dataset.verify import read_back
from iobench.formats import Batch
from iobench.host import memory
from iobench.results.run_warning import LONGER

WRITING = 0.2  # at most, of the time; for other decoders, too: each reads all samples
INDISPENSABLE = 0.5  # at most, of the time: for the user's own files, or for one format without them
LAST_PART = 0.1  # of the time for writing: nothing more starts in it


class OutOfTime(IobenchError):
    """There was no time left to write or read all of a sample."""


class TimedSamples(FirstSamples):
    """The first samples of a source, with the seconds that yielding all of them took; None before."""

    seconds: float | None = None

    def batches(self) -> Iterator[Batch]:
        """Yield the same batches."""
        meter = Meter()
        yield from meter.over(super().batches())
        self.seconds = meter.waits.total_s


@dataclass
class SampleWriter:
    """Writes the first samples of a source, and registers the user's own files with them."""

    first: FirstSamples
    data_dir: Path  # folder of all datasets
    budget: Budget  # of the whole recommendation, of which writing has a share
    status: Callable[[str], None]  # receives progress
    manifest: Manifest | None = None  # the dataset with all that was written; None before anything was
    skipped: list[Finding] = field(default_factory=list)  # what was not written, and why
    late: bool = False  # the time was too short for something

    def write_all(
        self, variants: Sequence[str], own: tuple[Path, str] | None, decoders: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Write the variants as there is time, and return the variants of the user's own files.

        These join the dataset after the first format, which decodes the samples once for all others. With
        them come the `decoders`, variants that decode the same files in other ways.
        """
        root = self.data_dir / self.first.name
        if not is_free(root, self.first):
            self.status(f"replacing the sample in {root}, which was written in another way")
        if variants:
            bound = sum(formats.parse(variant).size_bound(self.first.schema) for variant in variants)
            self.status(
                f"writing a sample of {bytes_text(self.first.schema.logical_bytes)} in "
                f"{counted(len(variants), 'format')}: up to {bytes_text(bound)} in {root}"
            )
        added: tuple[str, ...] = ()
        if own is None:
            self._write(variants[:1], INDISPENSABLE)
        else:
            self._write(variants[:1], WRITING)
            added = self._register(*own, "your own files were not measured: ", INDISPENSABLE)
            for other in decoders if added else ():
                added += self._register(own[0], other, f"{other}: ", WRITING)
        self._write(variants[1:], WRITING)
        return added

    def _write(self, variants: Sequence[str], share: float) -> None:
        for number, variant in enumerate(variants):
            left = self._share(share)
            if left.seconds <= LAST_PART * share * self.budget.seconds:
                self.skipped += [skipped_by(_out_of_time(one), format=one) for one in variants[number:]]
                return
            last = number + 1 == len(variants)
            turn = left if last else left.share(0.5)  # a slow format leaves time for others
            self.status(f"writing {self.first.schema.samples:,} samples in {variant}")
            try:
                source: Source = self.first
                if source.decodes and self.manifest and DEFAULT_FORMAT in self.manifest.artifacts:
                    source = _StoredSource(source, self.manifest.opener(DEFAULT_FORMAT))  # decoded once
                self.manifest = written(source, [variant], self.data_dir, turn)
            except (ArtifactExists, SourceError):
                raise  # no other format could be written either
            except IobenchError as error:
                plain = isinstance(error, UnsupportedSchema | OutOfTime)
                self._skip(error, variant, "" if plain else f"format {variant}: ")

    def _register(self, path: Path, variant: str, prefix: str, share: float) -> tuple[str, ...]:
        """Add the user's own files to the sample where they lie; return their variant if that succeeds.

        `prefix` begins the reason if it does not: at the end of the `share` of the time, or because they are
        not the samples that were written.
        """
        manifest, root, schema = self.manifest, self.data_dir / self.first.name, self.first.schema
        if manifest is not None and variant in manifest.added and manifest.unchanged(variant):
            return (variant,)
        self.status(f"reading {schema.samples:,} samples of {path}")
        late = OutOfTime(f"no time was left to read {path}", kind="not-read-in-time", hint=LONGER)
        options = AddOptions(
            variant,
            root.name,
            schema.fields,
            self.data_dir,
            overwrite=manifest is None and _is_sample(root),
            first=schema,
            progress=_ending(self._share(share), late),
        )
        try:
            self.manifest = add_files(path, options)[0]
        except IobenchError as error:
            self._skip(error, variant, prefix)
            return ()
        return (variant,)

    def _share(self, share: float) -> Budget:
        """Return the time that is left of a share of all the time, which began with it."""
        return self.budget.sub(self.budget.left() - (1 - share) * self.budget.seconds)

    def _skip(self, error: IobenchError, variant: str, prefix: str) -> None:
        self.late = self.late or isinstance(error, OutOfTime)
        self.skipped.append(skipped_by(error, prefix, format=variant))


def _out_of_time(variant: str) -> OutOfTime:
    return OutOfTime(f"no time was left to write {variant}", hint=LONGER)


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


def _ending(budget: Budget, late: OutOfTime) -> Callable[[str, int, int], None]:
    def in_time(what: str, done: int, total: int) -> None:
        if budget.over:
            raise late

    return in_time


def _is_sample(root: Path) -> bool:
    """Return whether a dataset is a sample that recommend wrote, which a new one may replace."""
    try:
        return "first" in Manifest.load(root).source
    except IobenchError:
        return False


def written(first: Source, variants: list[str], data_dir: Path, budget: Budget) -> Manifest:
    """Write samples in these variants; they replace a sample of other data or of another shape.

    OutOfTime if they are not written in time.
    """
    late = _out_of_time(" and ".join(variants))
    write = partial(
        prepare, first, variants, data_dir=data_dir, name=first.name, progress=_ending(budget, late)
    )
    try:
        return write()[0]
    except ArtifactExists:
        if not _is_sample(data_dir / first.name):
            raise  # the folder is no sample of iobench's
        return write(overwrite=True)[0]
    except IobenchError as error:
        if budget.over:  # some libraries wrap errors of their callbacks
            raise late from error
        raise


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
    def own_unmeasured(self) -> bool:
        """True if a loader reads the user's files where they lie, or decodes them, but none was measured."""
        read = self.source is not None and (self.source.decodes or self.source.in_place() is not None)
        return read and self.own_format is None

    @property
    def own_bytes(self) -> float | None:
        """Bytes that all of the data take now; None if they are in no files of the user's."""
        if self.own_format is not None:
            return self.full_stored_bytes(self.own_format)
        held = self.source.description.get("bytes") if self.source is not None else None
        if held is None or self.source is None:
            return None
        return float(held) * self.full_bytes / self.source.schema.logical_bytes

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
    if not manifest.url:
        return MeasuredData(manifest, full_bytes, _exceeds_memory(full_bytes), added=tuple(manifest.added))
    usable = [variant for variant in manifest.artifacts if variant not in missing_libraries(manifest)]
    if "all" not in requirements.formats:
        usable = [formats.parse(word).variant for word in requirements.formats]
    usable.sort(key=lambda variant: variant != DEFAULT_FORMAT)  # that of the default comes first
    return MeasuredData(manifest, full_bytes, cold=False, added=tuple(usable))


def from_source(
    source: Source,
    words: Sequence[str],
    requirements: Requirements,
    data_dir: Path,
    status: Callable[[str], None],
    budget: Budget | None = None,
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
    writer = SampleWriter(first, data_dir, budget or Budget(requirements.max_time_s), status)
    added = writer.write_all(variants, own, source.other_decoders())
    skipped += writer.skipped
    if writer.manifest is None:
        late = writer.late
        problem = f"no {'time was left to write' if late else 'format can hold'} {source.name}"
        reasons = "; ".join(one.sentence for one in skipped_together(skipped))
        raise InvalidSettings(f"{problem}: {reasons}", kind="out-of-time" if late else "no-format")
    decoding_s = 0.0
    if source.decodes:
        if first.seconds is None:  # the sample was written before
            first = TimedSamples(source, DECODED_SAMPLES)
            for _ in first.batches():
                pass
        decoding_s = (first.seconds or 0.0) * full_bytes / first.schema.logical_bytes
    return MeasuredData(
        writer.manifest, full_bytes, cold, source, tuple(words), skipped, added, decoding_s=decoding_s
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


def half_sample(data: MeasuredData, variants: list[str], budget: Budget) -> Manifest | None:
    """Write half as many samples of the same source; None where there is no source, or too few samples.

    OutOfTime if they are not written in time.
    """
    count = data.manifest.schema.samples // 2
    if data.source is None or not count:
        return None
    first = FirstSamples(data.source, count)
    return written(first, variants, data.manifest.root.parent, budget)


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
    return full_bytes > memory.free_memory()
