"""What is attacked: every format that is installed, plain and as its options lay samples out otherwise.

A format is in it by being one: its choices of a codec by being choices, and small pieces by having an
option for their bytes. The process that forks the trials uses no format's library: some must not be
forked once they were used.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

import iobench
from _faults.children import DONE, forked
from iobench import Manifest, formats
from iobench.base.errors import (
    MissingDependency,
    UnsupportedSchema,
)
from iobench.dataset import index_cache, seal
from iobench.formats import Batch, Field, Schema

PIECE_BYTES = 20_000  # of a chunk, shard, row group or record batch: several, of some samples each
MORE = (
    "hdf5:chunk_bytes=0",
    "hdf5:chunk_bytes=20000,compression=gzip",
    "zarr:chunk_bytes=5000,shard_bytes=20000,codec=zstd",
    "parquet:row_group_bytes=20000,codec=zstd",
    "blosc2:chunk_bytes=20000,codec=zstd",
)
TOGETHER = 3  # formats in one dataset
SIDE = 16  # of an image, in pixels


def names() -> list[str]:
    """Every format whose library is installed."""
    found = []
    for name in formats.names():
        try:
            formats.get(name)
        except MissingDependency:
            continue
        found.append(name)
    return found


def variants() -> tuple[str, ...]:
    """Each of them by default, with every other choice of an option, and in small pieces."""
    found = []
    for name in names():
        found.append(name)
        for spec in dataclasses.fields(formats.type_of(name)):
            values = [one for one in spec.metadata["choices"] or () if one != spec.default]
            values += [PIECE_BYTES] if spec.name.endswith("_bytes") else []
            found += [formats.get(name, **{spec.name: value}).variant for value in values]
    more = [word for word in MORE if word.partition(":")[0] in found]
    return tuple(dict.fromkeys([*found, *more]))


def grouped(chance: random.Random) -> list[list[str]]:
    """All formats in an order left to chance, a few together."""
    mixed = chance.sample(names(), len(names()))
    return [mixed[first : first + TOGETHER] for first in range(0, len(mixed), TOGETHER)]


def arrays(variant: str, samples: int) -> Batch:
    """What a variant is given: vectors, their rows, and flags, or, where it holds no vectors, images."""
    rng = np.random.default_rng(3)
    x = rng.random((samples, 64), np.float32)
    vectors = {"x": x, "y": np.arange(samples), "flag": rng.random((samples, 3)) < 0.5}
    if holds(variant, schema_of(vectors)):
        return vectors
    return {
        "image": rng.integers(0, 256, (samples, SIDE, SIDE, 3), np.uint8),
        "y": np.arange(samples),
        "flag": rng.random(samples) < 0.5,
    }


def schema_of(batch: Batch) -> Schema:
    """The schema of a batch."""
    fields = tuple(Field(name, array.shape[1:], array.dtype.name) for name, array in batch.items())
    return Schema(len(next(iter(batch.values()))), fields)


def holds(variant: str, schema: Schema) -> bool:
    """Whether a variant can hold such samples."""
    try:
        formats.parse(variant).check_schema(schema)
    except UnsupportedSchema:
        return False
    return True


class Whole:
    """Every variant prepared, in one dataset for each kind of samples, and read once."""

    def __init__(
        self, folder: Path, wanted: Iterable[str], samples: int = 300, pictures: int | None = None
    ) -> None:
        self._manifests = dict[str, Manifest]()
        groups: dict[str, list[str]] = {}
        for variant in wanted:
            groups.setdefault("images" if "image" in arrays(variant, 1) else "vectors", []).append(variant)
        for name, group in groups.items():
            count = pictures or samples if name == "images" else samples
            done(functools.partial(_prepare, folder / name, group, count))
            manifest = Manifest.load(folder / name / "d")
            self._manifests |= dict.fromkeys(group, manifest)

    def of(self, variant: str) -> Manifest:
        """The manifest that lists it."""
        return self._manifests[variant]

    @property
    def variants(self) -> list[str]:
        """All of them."""
        return list(self._manifests)

    def files(self, variant: str) -> list[Path]:
        """Its files, and those that hold what readers found out about them."""
        manifest = self.of(variant)
        index = manifest.root / index_cache.FOLDER
        return [*manifest.files_of(variant), *index.glob(f"{manifest.path_of(variant).name}.*")]

    def copy(self, variant: str, root: Path) -> Path:
        """A dataset of its own at `root` with this variant alone, as it was when it was verified."""
        manifest = self.of(variant)
        for file in [*self.files(variant), manifest.path_of(variant) / seal.FILE_NAME]:
            target = root / file.relative_to(manifest.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        shutil.copy2(manifest.root / "manifest.json", root)
        return root


def done(work: Callable[[], None], patience_s: float = 300) -> None:
    """Have it done in a child; RuntimeError where it is not."""
    ended = forked(work, patience_s=patience_s)
    if ended.code != DONE:
        raise RuntimeError(f"undisturbed it ended with {ended.code}: {ended.said}")


def _prepare(data_dir: Path, group: list[str], samples: int) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    np.savez(data_dir / "source.npz", **arrays(group[0], samples))  # type: ignore[arg-type]
    source = iobench.open_source(data_dir / "source.npz")
    manifest = iobench.prepare(source, group, data_dir=data_dir, name="d")[0]
    for variant in group:
        for _ in iobench.StreamLoader(manifest.root, format=variant):
            pass
