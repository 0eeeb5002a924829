"""Storage formats: what a format implements, and four formats: npy, hdf5, lmdb and memmap.

All that is imported here is for packages that add a format. Formats of other projects are in
`iobench.contrib.formats`. Each, also one of another package, is found by its entry point in the group
`iobench.formats`; `iobench.testing` holds the contract tests.
"""

from __future__ import annotations

from iobench.base.errors import UnknownFormat
from iobench.base.registry import Registry
from iobench.formats.array_format import ArrayFormat, RaggedColumn, RaggedReader, StoredArray, stored_arrays
from iobench.formats.array_schema import (
    Groups,
    arrays_schema,
    check_sample,
    fields_by_name,
    native,
    select_arrays,
    selected_schema,
    split_selection,
    unstorable_columns,
    unsupported_dtype,
    with_own_extents,
    without_samples,
)
from iobench.formats.format import Addressable, Checkable, Detectable, Format, StoreAddress, WholeDecoder
from iobench.formats.placement import (
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
from iobench.formats.ragged import (
    VARIES,
    Ragged,
    array_of,
    check_offsets,
    joined,
    map_arrays,
    map_values,
    offsets_of,
)
from iobench.formats.reader import (
    Convert,
    Epoch,
    LoadOrBuild,
    MappedReader,
    Reader,
    Rows,
    TimingWrapper,
    build_now,
    gathered,
    identity,
    index_of,
    only_sample,
    read_only,
    shares,
    unclosed,
)
from iobench.formats.schema import (
    COMPLEX,
    DTYPES,
    NUMPY_DTYPES,
    Array,
    Batch,
    BatchStream,
    Field,
    Schema,
    field_names,
    names_within,
    numpy_dtype,
    own_extents,
    raw_bytes,
    stored_names,
    with_extents,
)

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
# `Format` is abstract, and mypy expects a type[T] to be callable.
FORMATS: Registry[Format] = Registry(Format, "iobench.formats", UnknownFormat, USUAL_WORDS)  # type: ignore[type-abstract]

names = FORMATS.names
meant = FORMATS.meant
class_of = FORMATS.class_of
type_of = FORMATS.type_of
get = FORMATS.get
parse = FORMATS.parse
describe = FORMATS.describe
