"""Targets of the faults: every installed format, by default and with options that change its layout.

Formats and their options are taken from the registry: every choice of an option, and small chunks where an
option has a size. The process that forks the trials uses no format's library, because some libraries must
not be forked after their first use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import iobench
from eval.faults.children import run_or_raise
from iobench import Manifest, formats
from iobench.base.errors import InvalidOption, MissingDependency, UnsupportedSchema
from iobench.dataset import index_cache
from iobench.dataset.staging import SEAL
from iobench.formats import Batch, Field, Schema

CHUNK_BYTES = 20_000  # of a chunk, shard, row group or record batch: several per dataset
EXTRA_VARIANTS = (
    "hdf5:chunk_bytes=0",
    "hdf5:chunk_bytes=20000,compression=gzip",
    "zarr:chunk_bytes=5000,shard_bytes=20000,codec=zstd",
    "parquet:row_group_bytes=20000,codec=zstd",
)
FORMATS_PER_DATASET = 3  # formats in one dataset
IMAGE_SIDE = 16  # pixels


def installed_formats() -> list[str]:
    """Return every format whose library is installed and that holds arrays; audio holds only clips."""
    installed = []
    for name in formats.names():
        with contextlib.suppress(MissingDependency, StopIteration):
            arrays(name, 1)
            installed.append(name)
    return installed


def variants() -> tuple[str, ...]:
    """Return each format by default, with every other choice of an option, and with small chunks."""
    every = []
    for name in installed_formats():
        every.append(name)
        for spec in dataclasses.fields(formats.type_of(name)):
            values = [one for one in spec.metadata["choices"] or () if one != spec.default]
            values += [CHUNK_BYTES] if spec.name.endswith("_bytes") else []
            for value in values:
                with contextlib.suppress(InvalidOption):  # of existing files, and needs another option
                    every.append(formats.get(name, **{spec.name: value}).variant)
    more = [word for word in EXTRA_VARIANTS if word.partition(":")[0] in every]
    return tuple(dict.fromkeys([*every, *more]))


def random_groups(rng: random.Random) -> list[list[str]]:
    """Return all formats in random order, in groups for one dataset each."""
    mixed = installed_formats()
    rng.shuffle(mixed)
    windows = [name for name in mixed if "tokens" in arrays(name, 1)]  # which hold no other samples
    others = [name for name in mixed if name not in windows]
    size = FORMATS_PER_DATASET
    return [*(others[first : first + size] for first in range(0, len(others), size)), windows]


def arrays(variant: str, samples: int) -> Batch:
    """Return vectors, labels and flags for a variant, or else images, or else windows of tokens."""
    rng = np.random.default_rng(3)
    x = rng.random((samples, 64), np.float32)
    vectors = {"x": x, "y": np.arange(samples), "flag": rng.random((samples, 3)) < 0.5}
    if accepts(variant, schema_of(vectors)):
        return vectors
    images = {
        "image": rng.integers(0, 256, (samples, IMAGE_SIDE, IMAGE_SIDE, 3), np.uint8),
        "y": np.arange(samples),
        "flag": rng.random(samples) < 0.5,
    }
    if accepts(variant, schema_of(images)):
        return images
    ids = rng.integers(0, 200, (samples, 64))
    of_any_dtype = ({"tokens": ids.astype(dtype)} for dtype in ("uint16", "uint8", "uint32", "uint64"))
    return next(windows for windows in of_any_dtype if accepts(variant, schema_of(windows)))


def generated(variants: Iterable[str], elements: int, seed: int = 0) -> iobench.Synthetic:
    """Return vectors that all variants can store, or else images, or else windows of tokens."""
    kinds = (((16,), "float32"), ((8, 8, 3), "uint8"), ((16,), "uint16"))
    sources = (iobench.Synthetic(elements, shape, dtype, seed) for shape, dtype in kinds)
    return next(one for one in sources if all(accepts(variant, one.schema) for variant in variants))


def schema_of(batch: Batch) -> Schema:
    """Return the schema of a batch."""
    fields = tuple(Field(name, array.shape[1:], array.dtype.name) for name, array in batch.items())
    return Schema(len(next(iter(batch.values()))), fields)


def accepts(variant: str, schema: Schema) -> bool:
    """Return whether a variant can store samples of a schema."""
    try:
        formats.parse(variant).check_schema(schema)
    except UnsupportedSchema:
        return False
    return True


class VerifiedDatasets:
    """All variants, prepared in a dataset for each kind of `arrays`, and read once."""

    def __init__(
        self, folder: Path, variants: Iterable[str], samples: int = 300, image_samples: int | None = None
    ) -> None:
        self._manifests = dict[str, Manifest]()
        groups: dict[str, list[str]] = {}
        for variant in variants:
            first = schema_of(arrays(variant, 1)).fields[0]
            groups.setdefault(f"{first.name}-{first.dtype}", []).append(variant)
        for name, group in groups.items():
            count = image_samples or samples if name.startswith("image") else samples
            run_or_raise(functools.partial(_prepare, folder / name, group, count))
            manifest = Manifest.load(folder / name / "d")
            self._manifests |= dict.fromkeys(group, manifest)

    def manifest_for(self, variant: str) -> Manifest:
        """Return the manifest that lists a variant."""
        return self._manifests[variant]

    @property
    def variants(self) -> list[str]:
        """All prepared variants."""
        return list(self._manifests)

    def files(self, variant: str) -> list[Path]:
        """Return the files of a variant and of its cached indices."""
        manifest = self.manifest_for(variant)
        index = manifest.root / index_cache.FOLDER
        return [*manifest.files_of(variant), *index.glob(f"{manifest.path_of(variant).name}.*")]

    def copy(self, variant: str, root: Path) -> Path:
        """Copy this variant alone, unchanged, to a dataset at `root`."""
        manifest = self.manifest_for(variant)
        for file in [*self.files(variant), manifest.path_of(variant) / SEAL]:
            target = root / file.relative_to(manifest.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        shutil.copy2(manifest.root / "manifest.json", root)
        return root


def _prepare(data_dir: Path, group: list[str], samples: int) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    np.savez(data_dir / "source.npz", **arrays(group[0], samples))  # type: ignore[arg-type]
    source = iobench.open_source(data_dir / "source.npz")
    manifest = iobench.prepare(source, group, data_dir=data_dir, name="d")[0]
    for variant in group:
        for _ in iobench.StreamLoader(manifest.root, format=variant):
            pass
