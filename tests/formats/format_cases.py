"""Every variant of every format of ours."""

import contextlib
import dataclasses
import itertools

from iobench import formats

MORE_VALUES = {
    ("hdf5", "chunk_bytes"): (0, 4096),
    ("webdataset", "shard_bytes"): (20_000,),
    ("tfrecord", "shard_bytes"): (900,),
    ("mds", "shard_bytes"): (900,),
    ("litdata", "chunk_bytes"): (900,),
}


def variants():
    """Every format with every combination of option values that it accepts, defaults first."""
    found = []
    for name in formats.names():
        specs = dataclasses.fields(formats.type_of(name))
        for values in itertools.product(*(_values(name, spec) for spec in specs)):
            options = {spec.name: value for spec, value in zip(specs, values, strict=True)}
            with contextlib.suppress(formats.InvalidOption):
                found.append(formats.get(name, **options))
    return found


def _values(name, spec):
    return spec.metadata["choices"] or (spec.default, *MORE_VALUES.get((name, spec.name), ()))
