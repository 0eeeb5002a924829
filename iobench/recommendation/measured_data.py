"""What the race is run over: a dataset that is prepared, or the first samples of a source in every format."""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    InvalidSettings,
    IobenchError,
    UnsupportedSchema,
)
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.dataset.add import AddedSource
from iobench.dataset.manifest import Manifest, Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import FirstSamples, Source
from iobench.dataset.verify import read_back
from iobench.formats import Batch, Schema
from iobench.host import page_cache
from iobench.recommendation.candidates import USUAL, storable_variants
from iobench.recommendation.requirements import Requirements

WARM_BYTES, COLD_BYTES = 64 << 20, 256 << 20  # of a sample: enough for rounds that are not all overhead
BATCHES = 20  # the fewest in a sample
STEPS = 200  # the most in a sample where each takes as long as a training step
STEPPING = 0.01  # of the time that there is, for an epoch of these: half a dozen cases need four each
RUSHED = 0.1  # of that time: in the last of it nothing more is begun
WRITING, ALONE = 0.3, 0.5  # at most, of the time that there is; while there is nothing else yet


@dataclass
class Data:
    """What is measured, out of what, and how it stands for it.

    `full_bytes` are those that will be trained on; `cold` where these do not fit in this machine's memory.
    `source` is None where a dataset was prepared already; `added` are the variants in which its data lie
    somewhere, so that they need not be written.
    """

    manifest: Manifest
    full_bytes: int
    cold: bool
    source: Source | None = None
    source_words: tuple[str, ...] = ()  # as they are typed after `iobench prepare`
    left_out: list[str] = field(default_factory=list)
    added: tuple[str, ...] = ()

    @property
    def usual(self) -> str:
        """The variant that people read by default: npy, or what they have."""
        return self.added[0] if self.added else USUAL

    def lies_there(self, variant: str) -> bool:
        """Whether the user's own files are in that variant, so that nothing has to be written."""
        artifact = self.manifest.artifacts.get(variant)
        return variant in self.added or (artifact is not None and bool(artifact.added))

    @property
    def scale(self) -> float:
        """The real data are so many times as large as what is measured."""
        return self.full_bytes / self.manifest.schema.logical_bytes

    @property
    def cache(self) -> str:
        """The state of the page cache in which the real data will be read."""
        return "cold" if self.cold else "warm"


def prepared(manifest: Manifest, requirements: Requirements) -> Data:
    """A dataset as it is."""
    full_bytes = requirements.full_bytes or manifest.schema.logical_bytes
    return Data(manifest, full_bytes, _too_large(full_bytes))


def sampled(
    source: Source, words: Sequence[str], requirements: Requirements, data_dir: Path, status: Callable[[str], None]
) -> Data:
    """The first samples of a source in every format that could hold them, as a dataset of their own.

    InvalidSettings where no format can.
    """
    full_bytes = requirements.full_bytes or source.schema.logical_bytes
    cold = _too_large(full_bytes)
    first = FirstSamples(source, sample_count(source.schema, requirements, cold))
    added = tuple(source.manifest.added) if isinstance(source, AddedSource) else ()
    worth, left_out = storable_variants(first.schema, replace(requirements, full_bytes=full_bytes))
    variants = list(dict.fromkeys([*added, *(one for one in worth if one == USUAL), *worth]))
    _say_how_much(first, [one for one in variants if one not in added], data_dir, status)
    manifest, why, began = None, "no format can hold", time.monotonic()
    for number, variant in enumerate(variants):
        share = ALONE if manifest is None else WRITING  # something has to be there
        left_s = share * requirements.max_time_s - (time.monotonic() - began)
        if left_s <= RUSHED * share * requirements.max_time_s:
            left_out += [f"{one}: no time was left to write it" for one in variants[number:]]
            break
        last = manifest is None or number + 1 == len(variants)
        turn_s = left_s if last else left_s / 2  # what takes long leaves time for others
        status(f"writing {first.schema.samples:,} samples in {variant}")
        try:
            manifest = _written(_once_decoded(first, manifest), [variant], data_dir, turn_s)
        except ArtifactExists:
            raise
        except IobenchError as error:
            why = "no time was left to write" if isinstance(error, OutOfTime) else why
            plain = isinstance(error, UnsupportedSchema | OutOfTime)
            left_out.append(str(error) if plain else f"format {variant}: {error}")
    if manifest is None:
        raise InvalidSettings(f"{why} {source.name}: {'; '.join(left_out)}")
    return Data(manifest, full_bytes, cold, source, tuple(words), left_out, added)


def _say_how_much(first: Source, variants: list[str], data_dir: Path, status: Callable[[str], None]) -> None:
    """Before anything is written, how much that may be, and where."""
    if not variants:
        return
    bound = sum(formats.parse(variant).size_bound(first.schema) for variant in variants)
    status(
        f"a sample of {bytes_text(first.schema.logical_bytes)} is written in "
        f"{counted(len(variants), 'format')}: up to {bytes_text(bound)} in {data_dir / first.name}"
    )


def other_samples(data: Data) -> list[Manifest]:
    """What else was written of the first samples of a source of this name: before, or half as many now."""
    if data.source is None:
        return []
    found = []
    for path in sorted(data.manifest.root.parent.glob(f"{glob.escape(data.source.name)}-first-*")):
        with contextlib.suppress(IobenchError):  # it is no dataset
            found.append(Manifest.load(path))
    return [one for one in found if "first" in one.source and one.root != data.manifest.root]


def half(data: Data, variants: list[str], end: float) -> Manifest | None:
    """Half as many samples of the same source in some variants; None where there is no source, or too few.

    OutOfTime where they are not written when the clock says `end`.
    """
    count = data.manifest.schema.samples // 2
    if data.source is None or not count:
        return None
    first = FirstSamples(data.source, count)
    return _written(first, variants, data.manifest.root.parent, end - time.monotonic())


class OutOfTime(IobenchError):
    """There was no time left to write all of it."""


class _Decoded(Source):
    """The samples of a source that takes long to decode, out of what was written of them already."""

    def __init__(self, whole: Source, opener: Opener) -> None:
        self.schema, self.name, self._whole, self._opener = whole.schema, whole.name, whole, opener

    @property
    def description(self) -> dict[str, Any]:
        """The whole's: these are the same data."""
        return self._whole.description

    def batches(self) -> Iterator[Batch]:
        """As they were written, and verified then."""
        return read_back(self._opener)


def _once_decoded(first: Source, manifest: Manifest | None) -> Source:
    """The same samples, which need no decoding where they are written as they are in memory."""
    if not first.decodes or manifest is None or USUAL not in manifest.artifacts:
        return first
    return _Decoded(first, manifest.opener(USUAL))


def _written(first: Source, variants: list[str], data_dir: Path, left_s: float) -> Manifest:
    """The sample in these variants; one that was written of other data, or in another shape, gives way.

    OutOfTime where that takes longer than `left_s`.
    """
    end = time.monotonic() + left_s
    late = OutOfTime(
        f"{', '.join(variants)}: writing the sample takes longer than the {seconds_text(left_s)} that there "
        "were; give a longer --max-time"
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
            raise  # it is no sample of ours
        return write(overwrite=True)
    except IobenchError as error:
        if time.monotonic() > end:  # some libraries wrap what they are given
            raise late from error
        raise


def sample_count(schema: Schema, requirements: Requirements, cold: bool) -> int:
    """Samples that are enough: some batches, some bytes, and no more steps than there is time for."""
    largest = max(requirements.batch_sizes)
    count = (COLD_BYTES if cold else WARM_BYTES) // schema.sample_bytes
    if requirements.step_ms:
        fitting = int(STEPPING * requirements.max_time_s / requirements.step_s(largest))
        count = min(count, min(STEPS, fitting) * largest)
    return min(schema.samples, max(count, BATCHES * largest))


def _too_large(full_bytes: int) -> bool:
    """Whether an epoch will find nothing of the epoch before in memory."""
    return full_bytes > page_cache.free_memory()
