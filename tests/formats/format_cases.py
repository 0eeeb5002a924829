"""Variants of the built-in formats that the tests go through."""

import contextlib
import dataclasses
import itertools

from conftest import installed_formats

from iobench import formats
from iobench.base.errors import InvalidOption

MORE_VALUES = {
    ("hdf5", "chunk_bytes"): (0, 4096),
    ("webdataset", "shard_bytes"): (20_000,),
    ("tfrecord", "shard_bytes"): (900,),
    ("mds", "shard_bytes"): (900,),
    ("litdata", "chunk_bytes"): (900,),
}
# of slow formats with many options, the variants that are read differently
CHOSEN = {
    "zarr": ("zarr",),
    "parquet": ("parquet", "parquet:codec=zstd"),
    **dict.fromkeys(("audio", "images", "megatron", "tokens"), ()),  # only certain samples: see below
}
IMAGES = ("images", "images:lossy=jpeg")
TOKENS = ("megatron", "tokens", "tokens:dtype=uint16,window=17,stride=17")
# pieces so small that the contract's few samples are in several; with many samples these are many files
SMALL = (
    "arrow:batch_bytes=200",
    "zarr:chunk_bytes=100,shard_bytes=300,codec=zstd",
    "parquet:row_group_bytes=300",
)


def variants():
    """Return every format with all valid combinations of option values, or some; defaults first."""
    all_variants = []
    for name in installed_formats():
        if name in CHOSEN:
            all_variants += map(formats.parse, CHOSEN[name])
            continue
        specs = dataclasses.fields(formats.type_of(name))
        for values in itertools.product(*(_values(name, spec) for spec in specs)):
            options = {spec.name: value for spec, value in zip(specs, values, strict=True)}
            with contextlib.suppress(InvalidOption):
                all_variants.append(formats.get(name, **options))
    return all_variants


def _values(name, spec):
    return spec.metadata["choices"] or (spec.default, *MORE_VALUES.get((name, spec.name), ()))
