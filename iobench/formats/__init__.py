"""Storage formats: one module beside this one = one format = one word on the command line.

A module whose name starts with an underscore is none. Other packages add formats by entry points:
see `iobench.formats._registry`; `iobench.testing` tests what they promise.
"""

from __future__ import annotations

from iobench.base.errors import UnknownFormat
from iobench.formats._arrays import (
    NO_NUMBER,
    ShapeAndDtype,
    arrays_schema,
    check_sample,
    native_dtype,
    select_arrays,
    selection_hint,
    split_selection,
)
from iobench.formats._format import Format
from iobench.formats._options import Option, Options, build, declared, option, read_word, word
from iobench.formats._placement import Blocks, Chunked, Listed, Placement, Strided
from iobench.formats._reader import (
    Build,
    Convert,
    LoadOrBuild,
    Reader,
    Rows,
    TimingWrapper,
    identity,
    read_only,
)
from iobench.formats._registry import Registry
from iobench.formats._schema import (
    DTYPES,
    NUMPY_DTYPES,
    RESERVED_NAMES,
    Array,
    Batch,
    Field,
    Schema,
    field_name,
    plain_bools,
    raw_bytes,
)
from iobench.formats._tensors import array_of

__all__ = [
    "DTYPES",
    "NO_NUMBER",
    "NUMPY_DTYPES",
    "RESERVED_NAMES",
    "Array",
    "Batch",
    "Blocks",
    "Chunked",
    "Convert",
    "Field",
    "Build",
    "Format",
    "LoadOrBuild",
    "Listed",
    "Option",
    "Options",
    "Placement",
    "Reader",
    "Registry",
    "Rows",
    "Schema",
    "ShapeAndDtype",
    "Strided",
    "Timed",
    "array_of",
    "arrays_schema",
    "build",
    "check_sample",
    "split_selection",
    "select_arrays",
    "declared",
    "describe",
    "field_name",
    "get",
    "selection_hint",
    "names",
    "native_dtype",
    "option",
    "parse",
    "plain_bools",
    "raw_bytes",
    "read_word",
    "identity",
    "type_of",
    "unread",
    "word",
]

# The base is abstract, and mypy takes a type[T] for one that can be called.
FORMATS: Registry[Format] = Registry(Format, __name__, "iobench.formats", UnknownFormat)  # type: ignore[type-abstract]

names = FORMATS.names
type_of = FORMATS.type_of
get = FORMATS.get
parse = FORMATS.parse
describe = FORMATS.describe
