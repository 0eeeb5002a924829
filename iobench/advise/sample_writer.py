"""Writing of the sample that recommend measures, in the time for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.advise.candidates import DEFAULT_FORMAT, skipped_by
from iobench.base.errors import ArtifactExists, IobenchError, SourceError, UnsupportedSchema
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted
from iobench.dataset.add_files import AddOptions, add_files
from iobench.dataset.manifest import Manifest
from iobench.dataset.opener import Opener
from iobench.dataset.prepare import is_free, prepare
from iobench.dataset.read_back import read_back
from iobench.dataset.sources import FirstSamples, Source
from iobench.formats import Batch
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
        batches, spent = super().batches(), 0.0
        while True:
            before = time.monotonic()
            batch = next(batches, None)
            spent += time.monotonic() - before
            if batch is None:
                break
            yield batch
        self.seconds = spent


@dataclass
class SampleWriter:
    """Writes the first samples of a source, and registers the user's own files with them."""

    first: FirstSamples
    data_dir: Path  # folder of all datasets
    max_time_s: float  # seconds for the whole recommendation, of which writing has a share
    status: Callable[[str], None]  # receives progress
    began: float  # start of that time, in seconds of the monotonic clock
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
        self._announce(variants)
        share = WRITING if own is not None else INDISPENSABLE
        self._write(variants[:1], share)
        added = self._register_all(*own, decoders) if own is not None else ()
        self._write(variants[1:], WRITING)
        return added

    def _register_all(self, path: Path, variant: str, decoders: Sequence[str]) -> tuple[str, ...]:
        added = self._register(path, variant, "your own files were not measured: ", INDISPENSABLE)
        for other in decoders if added else ():
            added += self._register(path, other, f"{other}: ", WRITING)
        return added

    def _announce(self, variants: Sequence[str]) -> None:
        """Report the size and the place of the sample before it is written."""
        root = self.data_dir / self.first.name
        if not is_free(root, self.first):
            self.status(f"replacing the sample in {root}, which was written in another way")
        if variants:
            bound = sum(formats.parse(variant).size_bound(self.first.schema) for variant in variants)
            self.status(
                f"writing a sample of {bytes_text(self.first.schema.logical_bytes)} in "
                f"{counted(len(variants), 'format')}: up to {bytes_text(bound)} in {root}"
            )

    def _write(self, variants: Sequence[str], share: float) -> None:
        for number, variant in enumerate(variants):
            left_s = self.began + share * self.max_time_s - time.monotonic()
            if left_s <= LAST_PART * share * self.max_time_s:
                self.skipped += [skipped_by(_out_of_time(one), format=one) for one in variants[number:]]
                return
            last = number + 1 == len(variants)
            turn_s = left_s if last else left_s / 2  # a slow format leaves time for others
            self.status(f"writing {self.first.schema.samples:,} samples in {variant}")
            try:
                source = _decoded_once(self.first, self.manifest)
                self.manifest = written(source, [variant], self.data_dir, time.monotonic() + turn_s)
            except (ArtifactExists, SourceError):
                raise  # no other format could be written either
            except IobenchError as error:
                plain = isinstance(error, UnsupportedSchema | OutOfTime)
                self._skip(error, variant, "" if plain else f"format {variant}: ")

    def _register(self, path: Path, variant: str, prefix: str, share: float) -> tuple[str, ...]:
        """Add the user's own files to the sample where they lie; return their variant if that succeeds.

        `prefix` begins the reason if it does not. At the end of the `share` of the time it does not.
        """
        manifest = self.manifest
        if manifest is None or variant not in manifest.added or not manifest.unchanged(variant):
            self.status(f"reading {self.first.schema.samples:,} samples of {path}")
            try:
                self.manifest = self._added(path, variant, share)
            except IobenchError as error:
                self._skip(error, variant, prefix)
                return ()
        return (variant,)

    def _added(self, path: Path, variant: str, share: float) -> Manifest:
        """Add the files; raises ArtifactExists if they are not the samples that were written."""
        late = OutOfTime(f"no time was left to read {path}", kind="not-read-in-time", hint=LONGER)
        in_time = _ending(self.began + share * self.max_time_s, late)
        root, schema = self.data_dir / self.first.name, self.first.schema
        options = AddOptions(
            variant,
            root.name,
            schema.fields,
            self.data_dir,
            overwrite=self.manifest is None and _is_sample(root),
            first=schema,
            progress=in_time,
        )
        return add_files(path, options)[0]

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


def _decoded_once(first: Source, manifest: Manifest | None) -> Source:
    """Return the same samples from the default format, if decoding them again would take time."""
    if not first.decodes or manifest is None or DEFAULT_FORMAT not in manifest.artifacts:
        return first
    return _StoredSource(first, manifest.opener(DEFAULT_FORMAT))


def _ending(end: float, late: OutOfTime) -> Callable[[str, int, int], None]:
    """Return a progress callback that raises `late` from `end` on, in seconds of the monotonic clock."""

    def in_time(what: str, done: int, total: int) -> None:
        if time.monotonic() > end:
            raise late

    return in_time


def _is_sample(root: Path) -> bool:
    """Return whether a dataset is a sample that recommend wrote, which a new one may replace."""
    try:
        return "first" in Manifest.load(root).source
    except IobenchError:
        return False


def written(first: Source, variants: list[str], data_dir: Path, end: float) -> Manifest:
    """Write samples in these variants; they replace a sample of other data or of another shape.

    OutOfTime if they are not written by `end`, in seconds of the monotonic clock.
    """
    late = _out_of_time(" and ".join(variants))

    def write(overwrite: bool) -> Manifest:
        in_time = _ending(end, late)
        return prepare(
            first, variants, data_dir=data_dir, name=first.name, overwrite=overwrite, progress=in_time
        )[0]

    try:
        return write(overwrite=False)
    except ArtifactExists:
        if not _is_sample(data_dir / first.name):
            raise  # the folder is no sample of iobench's
        return write(overwrite=True)
    except IobenchError as error:
        if time.monotonic() > end:  # some libraries wrap errors of their callbacks
            raise late from error
        raise
