"""What the race is run over: a dataset that is prepared, or the first samples of a source in every format."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from iobench.dataset.add import AddedSource
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import FirstSamples, Source
from iobench.errors import BenchError, InvalidSettings
from iobench.formats import ArtifactExists, FormatError, Schema, UnsupportedSchema
from iobench.host import cache
from iobench.recommendation.candidates import worth_writing
from iobench.recommendation.needs import Needs

WARM_BYTES, COLD_BYTES = 64 << 20, 256 << 20  # of a sample: enough for rounds that are not all overhead
BATCHES = 20  # the fewest in a sample
STEPS = 200  # the most in a sample where each takes as long as a training step
STEPPING = 0.01  # of the time that there is, for an epoch of these: half a dozen cases need four each
WRITING = 0.3  # of the time that there is


@dataclass
class Data:
    """What is measured, out of what, and how it stands for it.

    `real_bytes` are those that will be trained on; `cold` where these do not fit in this machine's memory.
    `source` is None where a dataset was prepared already; `added` are the variants in which its data lie
    somewhere, so that they need not be written.
    """

    manifest: Manifest
    real_bytes: int
    cold: bool
    source: Source | None = None
    source_words: tuple[str, ...] = ()  # as they are typed after `iobench prepare`
    left_out: list[str] = field(default_factory=list)
    added: tuple[str, ...] = ()

    @property
    def usual(self) -> str:
        """The variant that people read by default: npy, or what they have."""
        return self.added[0] if self.added else "npy"

    def lies_there(self, variant: str) -> bool:
        """Whether the user's own files are in that variant, so that nothing has to be written."""
        artifact = self.manifest.artifacts.get(variant)
        return variant in self.added or (artifact is not None and bool(artifact.added))

    @property
    def scale(self) -> float:
        """The real data are so many times as large as what is measured."""
        return self.real_bytes / self.manifest.schema.logical_bytes

    @property
    def cache(self) -> str:
        """The state of the page cache in which the real data will be read."""
        return "cold" if self.cold else "warm"


def prepared(manifest: Manifest, needs: Needs) -> Data:
    """A dataset as it is."""
    real_bytes = needs.real_bytes or manifest.schema.logical_bytes
    return Data(manifest, real_bytes, _too_large(real_bytes))


def sampled(
    source: Source, words: Sequence[str], needs: Needs, data_dir: Path, status: Callable[[str], None]
) -> Data:
    """The first samples of a source in every format that could hold them, as a dataset of their own.

    InvalidSettings where no format can.
    """
    real_bytes = needs.real_bytes or source.schema.logical_bytes
    cold = _too_large(real_bytes)
    first = FirstSamples(source, sample_count(source.schema, needs, cold))
    added = tuple(source.manifest.added) if isinstance(source, AddedSource) else ()
    worth, left_out = worth_writing(first.schema, replace(needs, real_bytes=real_bytes))
    variants = list(dict.fromkeys([*added, *worth]))
    manifest, began = None, time.monotonic()
    for number, variant in enumerate(variants):
        if manifest is not None and time.monotonic() - began > WRITING * needs.max_time_s:
            left_out += [f"{one}: no time was left to write it" for one in variants[number:]]
            break
        status(f"writing {first.schema.samples:,} samples in {variant}")
        try:
            manifest = _written(first, [variant], data_dir)
        except ArtifactExists:
            raise
        except (BenchError, FormatError) as error:
            left_out.append(
                str(error) if isinstance(error, UnsupportedSchema) else f"format {variant}: {error}"
            )
    if manifest is None:
        raise InvalidSettings(f"no format can hold {source.name}: {'; '.join(left_out)}")
    return Data(manifest, real_bytes, cold, source, tuple(words), left_out, added)


def half(data: Data, variants: list[str]) -> Manifest | None:
    """Half as many samples of the same source in some variants; None where there is no source, or too few."""
    count = data.manifest.schema.samples // 2
    if data.source is None or not count:
        return None
    return _written(FirstSamples(data.source, count), variants, data.manifest.root.parent)


def _written(first: FirstSamples, variants: list[str], data_dir: Path) -> Manifest:
    """The sample in these variants; one that was written of other data, or in another shape, gives way."""
    try:
        return prepare(first, variants, data_dir=data_dir, name=first.name)[0]
    except ArtifactExists:
        if "first" not in Manifest.load(data_dir / first.name).source:
            raise  # it is no sample of ours
        return prepare(first, variants, data_dir=data_dir, name=first.name, overwrite=True)[0]


def sample_count(schema: Schema, needs: Needs, cold: bool) -> int:
    """Samples that are enough: some batches, some bytes, and no more steps than there is time for."""
    largest = max(needs.batch_sizes)
    count = (COLD_BYTES if cold else WARM_BYTES) // schema.sample_bytes
    if needs.step_ms:
        fitting = int(STEPPING * needs.max_time_s / needs.step_s(largest))
        count = min(count, min(STEPS, fitting) * largest)
    return min(schema.samples, max(count, BATCHES * largest))


def _too_large(real_bytes: int) -> bool:
    """Whether an epoch will find nothing of the epoch before in memory."""
    return real_bytes > cache.free_memory()
