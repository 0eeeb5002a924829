"""Storage formats: what a format implements, and four formats: npy, hdf5, lmdb and memmap.

Formats of other projects are in `iobench.contrib.formats`. Each, also one of another package, is found by its
entry point in the group `iobench.formats`; `iobench.testing` holds the contract tests.
"""

from __future__ import annotations

from iobench.base.errors import UnknownFormat
from iobench.base.registry import Registry
from iobench.formats._array_format import ArrayFormat, StoredArray, stored_arrays
from iobench.formats._arrays import (
    DTYPE_HINT,
    ShapeAndDtype,
    arrays_schema,
    check_sample,
    fields_by_name,
    native,
    native_dtype,
    select_arrays,
    split_selection,
    suggesting_selection,
    unstorable_columns,
    unsupported_dtype,
    with_own_extents,
    with_selection,
)
from iobench.formats._first_rows import FirstRows
from iobench.formats._format import (
    Addressable,
    Checkable,
    Detectable,
    Format,
    StoreAddress,
    WholeDecoder,
)
from iobench.formats._mapped_reader import MappedReader
from iobench.formats._placement import (
    AdjacentSpans,
    Blocks,
    Chunked,
    Decode,
    Index,
    Listed,
    ListedSpans,
    Placement,
    Spans,
    Strided,
)
from iobench.formats._ragged import (
    VARIES,
    Ragged,
    check_extents,
    check_offsets,
    element_mask,
    joined,
    map_arrays,
    map_values,
    offsets_of,
)
from iobench.formats._ragged_reader import RaggedColumn, RaggedReader
from iobench.formats._reader import (
    Build,
    Convert,
    Epoch,
    LoadOrBuild,
    Reader,
    Rows,
    TimingWrapper,
    build_now,
    identity,
    index_of,
    only_sample,
    read_only,
    unclosed,
)
from iobench.formats._schema import (
    COMPLEX,
    DTYPES,
    NUMPY_DTYPES,
    RESERVED_NAMES,
    Array,
    Batch,
    Field,
    Schema,
    field_names,
    names_within,
    own_extents,
    plain_bools,
    raw_bytes,
    renamed,
    stored_names,
    with_extents,
)
from iobench.formats._tensors import array_of

__all__ = [
    "COMPLEX",
    "DTYPES",
    "DTYPE_HINT",
    "NUMPY_DTYPES",
    "RESERVED_NAMES",
    "VARIES",
    "Addressable",
    "AdjacentSpans",
    "Array",
    "ArrayFormat",
    "Batch",
    "Blocks",
    "Build",
    "Checkable",
    "Chunked",
    "Convert",
    "Decode",
    "Detectable",
    "Epoch",
    "Field",
    "FirstRows",
    "Format",
    "Index",
    "Listed",
    "ListedSpans",
    "LoadOrBuild",
    "MappedReader",
    "Placement",
    "Ragged",
    "RaggedColumn",
    "RaggedReader",
    "Reader",
    "Rows",
    "Schema",
    "ShapeAndDtype",
    "Spans",
    "StoreAddress",
    "StoredArray",
    "Strided",
    "TimingWrapper",
    "WholeDecoder",
    "array_of",
    "arrays_schema",
    "build_now",
    "check_extents",
    "check_offsets",
    "check_sample",
    "class_of",
    "describe",
    "element_mask",
    "field_names",
    "fields_by_name",
    "get",
    "identity",
    "index_of",
    "joined",
    "map_arrays",
    "map_values",
    "names",
    "names_within",
    "native",
    "native_dtype",
    "offsets_of",
    "only_sample",
    "own_extents",
    "parse",
    "plain_bools",
    "raw_bytes",
    "read_only",
    "renamed",
    "select_arrays",
    "split_selection",
    "stored_arrays",
    "stored_names",
    "suggesting_selection",
    "type_of",
    "unclosed",
    "unstorable_columns",
    "unsupported_dtype",
    "with_extents",
    "with_own_extents",
    "with_selection",
]

# `Format` is abstract, and mypy expects a type[T] to be callable.
USUAL_WORDS = {
    "arrow": "feather ipc",
    "audio": "wav flac mp3",
    "ffcv": "beton",
    "hdf5": "h5 hdf h5py",
    "images": "jpg jpeg png imagefolder",
    "mds": "mosaic mosaicml streaming",
    "memmap": "tensordict mmap",
    "npy": "numpy npz",
    "recordio": "rec mxnet",
    "tfrecord": "tensorflow tf tfrecords",
    "tokens": "bin nanogpt",
    "webdataset": "wds tar",
}
FORMATS: Registry[Format] = Registry(Format, "iobench.formats", UnknownFormat, USUAL_WORDS)  # type: ignore[type-abstract]

names = FORMATS.names
meant = FORMATS.meant
class_of = FORMATS.class_of
type_of = FORMATS.type_of
get = FORMATS.get
parse = FORMATS.parse
describe = FORMATS.describe
