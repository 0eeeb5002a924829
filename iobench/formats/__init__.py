"""Storage formats: one module per format, named as on the command line.

Modules whose names start with an underscore hold what several formats share. Other packages add formats
through entry points (`iobench.formats._registry`); `iobench.testing` holds the contract tests for them.
"""

from __future__ import annotations

from iobench.base.errors import UnknownFormat
from iobench.formats._arrays import (
    DTYPE_HINT,
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
    field_names,
    plain_bools,
    raw_bytes,
)
from iobench.formats._tensors import array_of

__all__ = [
    "DTYPES",
    "DTYPE_HINT",
    "NUMPY_DTYPES",
    "RESERVED_NAMES",
    "Array",
    "Batch",
    "Blocks",
    "Build",
    "Chunked",
    "Convert",
    "Field",
    "Format",
    "Listed",
    "LoadOrBuild",
    "Option",
    "Options",
    "Placement",
    "Reader",
    "Registry",
    "Rows",
    "Schema",
    "ShapeAndDtype",
    "Strided",
    "TimingWrapper",
    "array_of",
    "arrays_schema",
    "build",
    "check_sample",
    "declared",
    "describe",
    "field_names",
    "get",
    "identity",
    "names",
    "native_dtype",
    "option",
    "parse",
    "plain_bools",
    "raw_bytes",
    "read_only",
    "read_word",
    "select_arrays",
    "selection_hint",
    "split_selection",
    "type_of",
    "word",
]

# `Format` is abstract, and mypy expects a type[T] to be callable.
FORMATS: Registry[Format] = Registry(Format, __name__, "iobench.formats", UnknownFormat)  # type: ignore[type-abstract]

names = FORMATS.names
type_of = FORMATS.type_of
get = FORMATS.get
parse = FORMATS.parse
describe = FORMATS.describe
