"""Adapters of the sandbox for tables in text, packed by gzip or not.

Of .csv files, each column is a field of scalars. The first line names the columns and shows their separator:
a comma, semicolon, tab or bar. The others are read as pandas reads them.

Of .jsonl files, each key is a field: one object of numbers and lists of numbers per line. Lists that differ
in length are a ragged field. Integers in lists, such as token ids, have the smallest of the dtypes uint16,
uint32 and int64 that holds all of them: JSON has no dtypes.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from csv import Error as CellError
from csv import reader as cells_of
from dataclasses import dataclass
from json import loads as parsed_json
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, needing
from iobench.base.finding import Finding
from iobench.base.text import enumerated, numbered, reason, shortened
from iobench.dataset.file_set import tables_in
from iobench.formats import VARIES, Array, Batch, Field, Ragged, Schema

with needing("a .csv or .jsonl source", "parquet"):
    import pyarrow
    from pyarrow import compute, csv, json

BLOCK_BYTES = 4 << 20  # parsed together
DAMAGE = (OSError, EOFError, ValueError, zlib.error)  # of packed files


def blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, unpacked by gzip if it is packed."""
    with open(path, "rb") as stored:
        packed = stored.read(2) == b"\x1f\x8b"
        stored.seek(0)
        file = cast(BinaryIO, gzip.GzipFile(fileobj=stored)) if packed else stored
        while block := file.read(BLOCK_BYTES):
            block += file.readline()
            if block.strip():
                yield block


FLOAT_INTEGERS = 2**53  # up to here float64 holds each integer
INT64 = np.iinfo(np.int64)
MOST_BITS = 1000  # of an integer that becomes a float64


@dataclass
class Numbers:
    """Range and type of the numbers in a column, or under a key, so far."""

    what: str
    kind: Any = None  # Arrow's type that holds all of them
    low: int = 0
    high: int = 0
    rounded: tuple[int, Path] | None = None  # an integer that float64 does not hold, and where it is

    def add(self, values: Any, path: Path) -> None:
        """Add the values of a block; ArrowException if no type holds them and those before.

        CorruptArtifact (``rounded``) if no type holds them all exactly.
        """
        if pyarrow.types.is_integer(values.type) and len(values) > values.null_count:
            integers = values.drop_null().to_numpy()
            self.low, self.high = min(self.low, int(integers.min())), max(self.high, int(integers.max()))
            if self.rounded is None and max(self.high, -self.low) > FLOAT_INTEGERS:
                large = integers[(integers > FLOAT_INTEGERS) | (integers < -FLOAT_INTEGERS)]
                first = _inexact(large.tolist())
                self.rounded = (first, path) if first is not None else None
        schemas = [pyarrow.schema([("", kind)]) for kind in (self.kind or values.type, values.type)]
        self.kind = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
        if pyarrow.types.is_integer(self.kind) and self.high > INT64.max:
            self.kind = pyarrow.uint64()  # Arrow's common type of int64 and uint64 is int64
            if self.low < 0:
                raise self.inexact(path, self.high)
        if pyarrow.types.is_floating(self.kind) and self.rounded is not None:
            raise self.inexact(self.rounded[1], self.rounded[0])

    def inexact(self, path: Path, number: int) -> CorruptArtifact:
        """Return the error for an integer beside fractions or others that no dtype holds with it."""
        problem = f"{self.what}: no dtype holds all its numbers without rounding an integer"
        hint = "write integers alone, of at most 64 bits; or select others with '::'"
        return CorruptArtifact(problem, "rounded", path, found=number, hint=hint)


def _inexact(integers: Iterable[int]) -> int | None:
    """Return the first integer that float64 does not hold."""
    return next((one for one in integers if one.bit_length() > MOST_BITS or int(float(one)) != one), None)


def _may_be_rounded(values: Any) -> bool:
    """Return whether any value is a float64 that Arrow may have made of a larger integer."""
    return pyarrow.types.is_floating(values.type) and bool(
        (np.abs(values.to_numpy()) >= FLOAT_INTEGERS).any()
    )


@contextlib.contextmanager
def _table_errors(path: Path, what: str = "a table of numbers", hint: str | None = None) -> Iterator[None]:
    """Turn what pyarrow and damaged files raise into CorruptArtifact (``not-a-table``)."""
    try:
        yield
    except (pyarrow.ArrowException, CellError, *DAMAGE) as error:
        if isinstance(error, (CorruptArtifact, MemoryError)):
            raise
        problem = f"cannot be read as {what}: {reason(error)}"
        raise CorruptArtifact(problem, "not-a-table", path, hint=hint) from error


SEPARATORS = ",;\t|"
MISSING = ["", "NA", "N/A", "n/a", "NULL", "null", "<NA>"]  # nan is a number
INDEX = "Unnamed: 0"  # what pandas calls a first column without a name, the index that its to_csv writes
MOST_NAMED = 5  # cells
COUNTED = 4  # columns that are named 0, 1, 2 … by pandas and not the first sample of a table


class TextTable(formats.Detectable):
    """A table, or the tables in a folder."""

    def files(self, path: Path) -> Sequence[Path]:
        """Return the files of a folder."""
        return tables_in(path)[1]


class CsvAdapter(TextTable):
    """Adapter for .csv and .tsv."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the columns in the first line, or of those named after `::`.

        The whole file is read once to count its lines and to check that all cells are numbers.
        """
        path, chosen = formats.split_selection(path)
        every, samples, counts = _tables(path), 0, True
        names = formats.select_arrays(path, every[0].names, chosen)
        columns = {name: Numbers(f"column {shortened(name)}") for name in names}
        for layout in every:
            before = samples
            for piece in layout.pieces(dict.fromkeys(names)):
                for name, numbers in columns.items():
                    try:
                        numbers.add(piece.column(name), layout.path)
                    except pyarrow.ArrowException:
                        numbers.kind = pyarrow.string()
                kinds = {name: numbers.kind for name, numbers in columns.items()}
                if refused := {name: kind for name, kind in kinds.items() if not _is_stored(kind)}:
                    raise layout.refusal(refused, piece, bool(chosen))
                for name in names:
                    if (column := piece.column(name)).null_count:
                        row = samples - before + column.is_null().to_pylist().index(True)
                        problem = f"column {shortened(name)} has an empty cell in sample {row}"
                        hint = "fill it, or select other columns with '::'"
                        raise CorruptArtifact(problem, "empty-cell", layout.path, hint=hint)
                if INDEX in names:
                    expected = np.arange(samples - before, samples - before + len(piece))
                    counts = counts and np.array_equal(piece.column(INDEX).to_numpy(), expected)
                samples += len(piece)
        if not samples:
            raise CorruptArtifact("no numbers below the line of column names", "empty", path)
        if not chosen and len(names) > 1 and INDEX in names and counts:
            del columns[INDEX]
        shapes = {name: ((samples,), np.dtype(one.kind.to_pandas_dtype())) for name, one in columns.items()}
        return formats.arrays_schema(path, shapes, every[0].names)

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield all rows."""
        every = _tables(path)
        names = formats.field_names(every[0].names)
        types = {names[field.name]: pyarrow.from_numpy_dtype(field.dtype) for field in schema.fields}
        for piece in itertools.chain.from_iterable(layout.pieces(types) for layout in every):
            yield {field.name: piece.column(names[field.name]).to_numpy() for field in schema.fields}

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return a note if the column that counts the rows is not read."""
        path, chosen = formats.split_selection(path)
        layout = _Columns(tables_in(path)[1][0])
        if chosen or INDEX not in layout.names or len(schema.fields) == len(layout.names):
            return []
        message = "1 column not read: the first, without a name, counts the rows, as pandas' index"
        hint = f"to read it, select it by its name, '::{INDEX},…'"
        return [Finding("coverage", message, hint, {"columns": 1})]


class _Columns:
    """The first line of a file: separator, and the name of each column as pandas gives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _table_errors(path):
            first = next(blocks(path), b"").lstrip().removeprefix(b"\xef\xbb\xbf")
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            hint = f"iconv -f UTF-16 -t UTF-8 {shlex.quote(path.name)} > utf-8.csv"
            raise CorruptArtifact("it is text in UTF-16", "not-a-table", path, hint=hint)
        line, second = [*first.split(b"\n", 2), b""][:2]
        try:
            self.encoding, text = "utf-8", line.decode().strip("\r")
        except UnicodeDecodeError:  # as in the files of Windows and in old ones
            self.encoding, text = "latin-1", line.decode("latin-1").strip("\r")
        counts = Counter(re.sub('"[^"]*"', "", text))
        self.separator = max(SEPARATORS, key=lambda one: counts[one])
        if not counts[self.separator] and len(text.split()) == len(second.split()) > 1:
            code = f'pandas.read_csv("{path.name}", sep=r"\\s+").to_csv("table.csv", index=False)'
            problem = "its columns are separated by blanks"
            raise CorruptArtifact(problem, "not-a-table", path, hint=f"convert it: {code}")
        if "\r" in text:
            hint = rf"tr '\r' '\n' < {shlex.quote(path.name)} > lines.csv"
            raise CorruptArtifact("lines end in carriage returns", "not-a-table", path, hint=hint)
        with _table_errors(path):
            cells = next(cells_of([text], delimiter=self.separator, skipinitialspace=True), [])
        own = [cell.strip() for cell in cells]
        counted = len(own) >= COUNTED and own == [str(number) for number in range(len(own))]
        if own and all(map(_reads_as_number, own)) and not counted:
            raise _without_names(path)
        self.names: list[str] = []
        for number, cell in enumerate(own):
            name = cell or f"Unnamed: {number}"
            self.names.append(next(one for one in numbered(name, 1, ".") if one not in self.names))

    def pieces(self, types: dict[str, Any]) -> Iterator[Any]:
        """Yield the columns of `types`, by name, in tables of a few MiB; of any type where it is None."""
        read = csv.ReadOptions(use_threads=False, column_names=self.names)
        told = {name: kind for name, kind in types.items() if kind is not None}
        # other columns may hold text in any encoding
        convert = csv.ConvertOptions(
            check_utf8=False,
            include_columns=list(types),
            column_types=told,
            null_values=MISSING,
            strings_can_be_null=True,
        )
        parse = csv.ParseOptions(delimiter=self.separator)
        hint = "name the columns in the first line, without comments above, and give each row as many cells"
        with _table_errors(self.path, hint=hint):
            for number, block in enumerate(blocks(self.path)):
                lines = block.lstrip().partition(b"\n")[2] if number == 0 else block
                if lines.strip():
                    read.block_size = len(lines)
                    piece = csv.read_csv(pyarrow.py_buffer(lines), read, parse, convert).combine_chunks()
                    large = [one for one in types if one not in told and _may_be_rounded(piece.column(one))]
                    if large:
                        kinds = dict.fromkeys(large, pyarrow.string())
                        text = csv.ConvertOptions(include_columns=large, column_types=kinds)
                        written = csv.read_csv(pyarrow.py_buffer(lines), read, parse, text)
                        piece = self._with_integers(piece, written.combine_chunks())
                    yield piece

    def _with_integers(self, piece: Any, written: Any) -> Any:
        """Return a piece with columns as integers that Arrow reads as float64, if all cells are written so.

        CorruptArtifact if only some are, and float64 does not hold one of them.
        """
        for name in written.column_names:
            cells = written.column(name)
            whole = compute.match_substring_regex(cells, r"^\s*[-+]?\d+\s*$")
            if compute.all(whole).as_py():
                with contextlib.suppress(pyarrow.ArrowInvalid):  # beyond 64 bits
                    integers = compute.utf8_trim_whitespace(cells).cast(pyarrow.uint64())
                    piece = piece.set_column(piece.column_names.index(name), name, integers)
                    continue
            if (rounded := _inexact(map(int, cells.filter(whole).to_pylist()))) is not None:
                raise Numbers(f"column {shortened(name)}").inexact(self.path, rounded)
        return piece

    def refusal(self, refused: dict[str, Any], piece: Any, chosen: bool) -> CorruptArtifact:
        """Return the error for columns, by name with their types, that hold no numbers."""
        others = [name for name in self.names if name not in refused]
        if others and not chosen and all(map(_reads_as_number, others)):
            return _without_names(self.path)
        columns = {name: [_shown(one).strip() for one in piece.column(name)] for name in refused}
        every = list(itertools.chain(*columns.values()))
        forms = {"thousands": r"-?\d{1,3}(,\d{3})+(\.\d*)?"}
        if self.separator != ",":
            forms = {"decimal": r"-?\d+,\d+"} | forms
        for meaning, form in forms.items():
            written = [cell for cell in every if re.fullmatch(form, cell)]
            if written and all(map(_reads_as_number, set(every).difference(written))):
                arguments = f'"{self.path.name}", sep={self.separator!r}, {meaning}=","'
                code = f'pandas.read_csv({arguments}, encoding="{self.encoding}")'
                problem, kind = f"its numbers have {meaning} commas", f"{meaning}-commas"
                hint = f'convert it: {code}.to_csv("table.csv", index=False)'
                return CorruptArtifact(problem, kind, self.path, found=written[0], hint=hint)
        for name, cells in columns.items():
            odd = sorted({cell for cell in cells if not _reads_as_number(cell)})
            if odd and 2 * sum(map(_reads_as_number, cells)) >= len(cells):
                problem, found = (
                    f"column {shortened(name)} holds numbers and text",
                    enumerated(odd, MOST_NAMED),
                )
                arguments = f'"{self.path.name}", sep={self.separator!r}, na_values={odd[:MOST_NAMED]}'
                code = f'pandas.read_csv({arguments}).dropna().to_csv("table.csv", index=False)'
                hint = f"if that means a missing value, leave out its rows: {code}"
                return CorruptArtifact(problem, "numbers-and-text", self.path, found=found, hint=hint)
        return formats.unstorable_columns(self.path, refused, [] if chosen else others)


def _shown(cell: Any) -> str:
    """Return a cell as text; text in any encoding as latin-1, which has all bytes."""
    is_text = cell.is_valid and pyarrow.types.is_string(cell.type)
    return cell.as_buffer().to_pybytes().decode("latin-1") if is_text else str(cell)


def _tables(path: Path) -> list[_Columns]:
    """Return the tables of a file, or of the files of a folder, which have the same columns."""
    first, *others = map(_Columns, tables_in(path)[1])
    for one in others:
        if differing := set(one.names) ^ set(first.names):
            problem = f"its columns are not those of {first.path.name}"
            found = f"{enumerated(sorted(map(shortened, differing)))} in one of them"
            hint = "move it out of the folder, or name one file to read"
            raise CorruptArtifact(problem, "missing-array", one.path, found=found, hint=hint)
    return [first, *others]


def _without_names(path: Path) -> CorruptArtifact:
    hint = "add a first line that names the columns, like x,y,label"
    return CorruptArtifact("the first line contains numbers", "no-column-names", path, hint=hint)


def _is_stored(kind: Any) -> bool:
    types = pyarrow.types
    stored = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
    return any(is_one(kind) for is_one in stored)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


NARROW = ("uint16", "uint32")


class JsonlAdapter(TextTable):
    """Adapter for .jsonl."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the keys of the lines, or of those named after `::`.

        The whole file is read once to count its lines, and to check that all values are numbers of one type.
        """
        path, chosen = formats.split_selection(path)
        keys, known, samples = dict[str, Key](), list[str](), 0
        for piece in _pieces(path):
            known += [name for name in piece.schema.names if name not in known]
            names = formats.select_arrays(path, known, chosen)
            every = {one.name: one.type for one in piece.schema}
            numbers = [name for name, kind in every.items() if _is_number(kind)]
            if refused := {name: every[name] for name in names if name in every and name not in numbers}:
                raise formats.unstorable_columns(path, refused, numbers)
            for name in names:
                key = keys.setdefault(name, Key(path, name, Numbers(f"key {shortened(name)}")))
                if name not in every:
                    raise key.missing(samples)
                if samples and key.numbers.kind is None:
                    raise key.missing(0)
                key.add(piece.column(name), samples)
            samples += piece.num_rows
        if not samples:
            raise CorruptArtifact("it holds no lines", "empty", path)
        shapes = {name: ((samples, *key.shape), key.dtype) for name, key in keys.items()}
        totals = {name: key.total for name, key in keys.items()}
        return formats.arrays_schema(path, shapes, known, totals=totals)

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield all samples."""
        names = {field.name: schema.renamed.get(field.name, field.name) for field in schema.fields}
        columns = pyarrow.schema([(names[field.name], _type(field)) for field in schema.fields])
        for piece in _pieces(path, columns):
            yield {field.name: _array(field, piece.column(names[field.name])) for field in schema.fields}


@dataclass
class Key:
    """Statistics of the values under one key so far: type, lengths, total."""

    path: Path
    name: str
    numbers: Numbers
    is_list: bool | None = None
    shortest: int | None = None  # of the lists; None for single numbers
    longest: int = 0
    total: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        if self.shortest is None:
            return ()
        return (self.longest if self.shortest == self.longest else VARIES,)

    @property
    def dtype(self) -> str:
        """NumPy dtype that holds all values."""
        dtype: str = np.dtype(self.numbers.kind.to_pandas_dtype()).name
        if self.shortest is None or dtype != "int64" or self.numbers.low < 0:
            return dtype
        return next((narrow for narrow in NARROW if self.numbers.high <= np.iinfo(narrow).max), dtype)

    def add(self, column: Any, before: int) -> None:
        """Add the values of the lines from `before` on; CorruptArtifact if they are no numbers."""
        flat, is_list = column, pyarrow.types.is_list(column.type)
        if is_list:
            flat, lengths = column.flatten(), np.diff(column.offsets.to_numpy())
            self.shortest = int(min(lengths.min(), lengths[0] if self.shortest is None else self.shortest))
            self.longest = max(self.longest, int(lengths.max()))
            self.total += len(flat)
        if column.null_count or flat.null_count:
            lists = [one if isinstance(one, list) else [one] for one in column.to_pylist()]
            raise self.missing(before + next(i for i, one in enumerate(lists) if None in one))
        try:
            self.numbers.add(flat, self.path)
        except pyarrow.ArrowException:
            raise self._changed(flat.type, before) from None
        if self.is_list not in (None, is_list):
            raise self._changed(column.type, before)
        self.is_list = is_list

    def missing(self, row: int) -> CorruptArtifact:
        """Return the error for a line that lacks the key, or a number under it."""
        problem = f"key {shortened(self.name)} has no number in sample {row:,}"
        hint = "give every line the same keys with numbers, or select other keys with '::'"
        return CorruptArtifact(problem, "empty-cell", self.path, hint=hint)

    def _changed(self, kind: Any, before: int) -> CorruptArtifact:
        problem = f"key {shortened(self.name)} holds another kind of value from about sample {before:,} on"
        expected = f"list of {self.numbers.kind}" if self.is_list else self.numbers.kind
        return CorruptArtifact(problem, "not-a-table", self.path, expected=expected, found=kind)


def _is_number(kind: Any) -> bool:
    """Return True for a number, a list of numbers or of none, or a missing value, which has its own error."""
    return _is_stored(kind.value_type if pyarrow.types.is_list(kind) else kind)


def _pieces(path: Path, schema: Any = None) -> Iterator[Any]:
    """Yield the lines in record batches: of the keys in `schema`, or all of any type."""
    others = "infer" if schema is None else "ignore"
    parsed = json.ParseOptions(schema, unexpected_field_behavior=others)
    for file in tables_in(path)[1]:
        with _table_errors(file, "lines of JSON objects"):
            for block in blocks(file):  # pyarrow's own streaming reader holds 32 of them
                options = json.ReadOptions(use_threads=False, block_size=len(block))
                table = json.read_json(pyarrow.py_buffer(block), options, parsed)
                for name in table.column_names if schema is None else ():
                    column = table.column(name)
                    is_list = pyarrow.types.is_list(column.type)
                    if _may_be_rounded(column.combine_chunks().flatten() if is_list else column):
                        _check_integers(file, name, block)
                yield from table.to_batches()


def _check_integers(path: Path, name: str, block: bytes) -> None:
    """Raise CorruptArtifact if a line has an integer under a key that float64 does not hold."""
    for line in filter(bytes.strip, block.split(b"\n")):
        value = parsed_json(line).get(name)
        numbers = [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
        if (rounded := _inexact(numbers)) is not None:
            raise Numbers(f"key {shortened(name)}").inexact(path, rounded)


def _type(field: Field) -> Any:
    """Return the Arrow type of a key's values as JSON has them: integers of 64 bits."""
    kind = pyarrow.int64() if field.dtype in NARROW else pyarrow.from_numpy_dtype(field.dtype)
    return pyarrow.list_(kind) if field.shape else kind


def _array(field: Field, column: Any) -> Any:
    flat = column.flatten() if field.shape else column
    values: Array = flat.to_numpy(zero_copy_only=False).astype(field.dtype, copy=False)
    if not field.is_ragged:
        return values.reshape(-1, *field.shape)
    offsets = column.offsets.to_numpy().astype(np.int64)
    return Ragged(values, offsets - offsets[0])
