"""Format parts: several files, folders, or groups of a file, of one other format, end to end.

`write` makes numbered folders of parts, equal in length. Of data that other programs
wrote, the parts are the files in a folder, or the alike groups of a file, in natural order (`part2` before
`part10`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, InvalidOption, UnsupportedSchema, corrupt
from iobench.base.finding import Finding
from iobench.base.open_pool import OpenPool
from iobench.base.options import option
from iobench.base.units import counted
from iobench.dataset.file_set import WHOLE, load, parts_in, shapes_in, texts_in
from iobench.formats import Array, Batch, Blocks, Index, Reader, Schema, offsets_of, shares, split_selection
from iobench.formats.array_schema import with_selection
from iobench.formats.folders import parts_not_read, said_by_names
from iobench.formats.placement import end_to_end

WRITTEN = "iobench-part-"  # begins the name of each folder that `write` makes
MOST_OPEN = 64  # parts that one reader has open: each takes descriptors, and memory for a cache of chunks
MOST_WHOLE = 2  # of those, parts that are in memory as wholes


@dataclass(frozen=True)
class Parts(formats.Format, formats.Detectable, formats.Checkable):
    """Several parts in one other format."""

    name: ClassVar[str] = "parts"
    summary: ClassVar[str] = "several files of one other format, end to end"
    library: ClassVar[str] = "numpy"
    survives_unlink: ClassVar[bool] = False
    selectable: ClassVar[bool] = True
    offered: ClassVar[bool] = False

    of: str = option("npy", "format of each part, with its options after +, such as tokens+window=513")
    count: int = option(4, "parts that are written", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.part, formats.Format) and not self.part.offered:
            problem = f"parts cannot be {self.part.name}"
            raise InvalidOption(problem, "invalid-value", hint="name another format")
        # attributes of a class elsewhere: here they are those of the format of the parts
        for name in ("dtypes", "forkable", "empty_page"):
            object.__setattr__(self, name, getattr(self.part, name, getattr(self, name)))

    @cached_property
    def part(self) -> Any:
        """The format of each part."""
        name, *options = self.of.split("+")
        return _WholeFile() if name in WHOLE else formats.parse(f"{name}:{','.join(options)}")

    @property
    def libraries(self) -> tuple[str, ...]:
        """PyPI names of the packages of the format of the parts."""
        known: tuple[str, ...] = self.part.libraries
        return known

    @property
    def parallel(self) -> bool:
        """As the format of the parts."""
        return bool(self.part.parallel)

    @property
    def lossless(self) -> bool:
        """As the format of the parts."""
        return bool(self.part.lossless)

    def roundtrip(self, batch: Batch) -> Batch:
        """Return the batch as the format of the parts will return it."""
        known: Batch = self.part.roundtrip(batch)
        return known

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for what the format of the parts cannot hold."""
        super().check_schema(schema)
        self.part.check_schema(schema)

    def size_bound(self, schema: Schema) -> int:
        """Return the bound of all parts."""
        rows = -(-schema.samples // self.count)
        return self.count * int(self.part.size_bound(replace(schema, samples=rows)))

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write parts of equal length, `00000` and so on; the last may be shorter."""
        path.mkdir()
        stream = formats.BatchStream(batches)
        for number, length in enumerate(self._lengths(schema.samples)):
            some = stream.take(length)
            self.part.write(path / f"{WRITTEN}{number:05}", replace(schema, samples=length), some)

    def _lengths(self, samples: int) -> list[int]:
        """Return the numbers of samples in the parts that `write` makes."""
        rows = -(-samples // self.count)
        return [min(rows, samples - start) for start in range(0, samples, rows)]

    def open(self, path: Path, schema: Schema, random: bool = False) -> _PartsReader:
        """Return a reader, which opens a part when a row of it is requested."""
        path, chosen = split_selection(path)
        if not any(path.glob(f"{WRITTEN}*")):
            paths = [with_selection(file, chosen) for file in parts_in(path, self.part)]
            return _PartsReader(schema, self.part, paths, random)
        lengths = self._lengths(schema.samples)
        paths = [path / f"{WRITTEN}{number:05}" for number in range(len(lengths))]
        reader = _PartsReader(schema, self.part, paths, random, lengths)
        reader.check()
        return reader

    def infer_schema(self, path: Path, fields: Sequence[formats.Field] = ()) -> Schema:
        """Return the schema of all parts; each is described.

        CorruptArtifact of kind ``missing-array``, ``unequal-shapes`` or ``no-files``, and as of the format.
        """
        path, chosen = split_selection(path)
        parts = parts_in(path, self.part)
        if not parts:
            raise CorruptArtifact("it holds no parts", "no-files", path)
        for part in parts if path.is_dir() else ():
            if inside := set(self.part.others(part)).intersection(parts):
                problem = f"it holds what is in {counted(len(inside), 'file')} beside it"
                hint = f"name {part} alone to read all of them, or move it out of the folder"
                raise CorruptArtifact(problem, "several-readings", part, hint=hint)
        schemas = [self._described(with_selection(file, chosen), fields) for file in parts]
        first: Schema = schemas[0]
        for file, schema in zip(parts, schemas, strict=True):
            if set(schema.fields) != set(first.fields):
                raise _unlike(file, schema, parts[0], first)
        totals = {name: sum(schema.totals[name] for schema in schemas) for name in first.totals}
        return replace(first, samples=sum(schema.samples for schema in schemas), totals=totals)

    def _described(self, part: Path, fields: Sequence[formats.Field]) -> Schema:
        try:
            schema: Schema = self.part.infer_schema(part, fields)
        except CorruptArtifact as error:
            raise error.changed(hint=self._for_parts(error.hint)) from error
        return schema

    def _for_parts(self, hint: str | None) -> str | None:
        """Return a hint of the format of the parts with its options as they are given here."""
        name = self.of.split("+")[0]
        for given in re.findall(rf"(?<!\S){re.escape(name)}:(\S+)", hint or ""):
            hint = (hint or "").replace(f"{name}:{given}", f"parts:of={name}+{given.replace(',', '+')}")
        return hint

    def files(self, path: Path) -> Sequence[Path] | None:
        """Return the files that are parts; None if folders are."""
        parts = parts_in(path, self.part)
        return parts if all(part.is_file() for part in parts) else None

    def others(self, path: Path) -> Sequence[Path]:
        """Return the other files of a file of groups."""
        path, chosen = split_selection(path)
        parts = (with_selection(one, chosen) for one in parts_in(path, self.part))
        return sorted({other for part in parts for other in self.part.others(part)})

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the notes about the parts, the first one of each kind."""
        path, chosen = split_selection(path)
        of_parts: dict[tuple[str, ...], list[tuple[Path, Finding]]] = {}  # by kind and names of values
        parts = parts_in(path, self.part)
        for file in parts:
            part = with_selection(file, chosen)
            for note in self.part.notes(part, self.part.infer_schema(part)):
                own = replace(note, hint=self._for_parts(note.hint))
                of_parts.setdefault((note.kind, *note.values), []).append((file, own))
        left = self.part.groups(path).left if self.part.sniff(path) else ()
        notes = parts_not_read("array", left, " outside of the groups")
        if self.files(path) is None:  # of files, the sandbox adds what their names say
            notes += said_by_names(path, parts, "folder" if path.is_dir() else "group")
        for (file, first), *others in of_parts.values():
            message = first.message
            if len(others) + 1 < len(parts):
                message = f"{file.relative_to(path)}: {message}"
            if others:
                message += f"; likewise {counted(len(others), 'time')} more"
            notes.append(replace(first, message=message))
        return notes

    def check(self, path: Path, schema: Schema) -> None:
        """Check each part, if its format has to be checked."""
        if isinstance(self.part, formats.Checkable):
            with closing(self.open(path, schema)) as reader:
                for part, own in reader.parts():
                    self.part.check(part, own)


def _unlike(file: Path, schema: Schema, other: Path, first: Schema) -> CorruptArtifact:
    """Return the error for a part with other fields than the first one."""
    names = {field.name for field in schema.fields} ^ {field.name for field in first.fields}
    return CorruptArtifact(
        f"its fields are not those of {other}",
        "missing-array" if names else "unequal-shapes",
        file,
        expected=first.describe(),
        found=schema.describe(),
        hint="move it out of the folder, name one file to read, or append ::NAME,NAME to read what all have",
    )


class _WholeFile(formats.Detectable):
    """The methods of a format that parts need, for files of arrays that are read as wholes."""

    libraries, parallel, lossless = ("numpy",), False, True

    def sniff(self, path: Path) -> bool:
        return path.suffix.lower()[1:] in WHOLE

    def infer_schema(self, path: Path, fields: Sequence[formats.Field] = ()) -> Schema:
        return formats.arrays_schema(path, {name: (a.shape, a.dtype) for name, a in shapes_in(path).items()})

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        return parts_not_read("array", texts_in(path), "")

    def open(self, path: Path, schema: Schema, random: bool = False) -> formats.MappedReader:
        names = formats.field_names(shapes_in(path))
        arrays = load(path, set(names.values()))
        fields = {field.name: arrays[names[field.name]] for field in schema.fields}
        return formats.MappedReader(
            schema, {name: formats.native(array) for name, array in fields.items()}, {}
        )

    def check_schema(self, schema: Schema) -> None:
        raise UnsupportedSchema("such parts are only read", "not-written", hint="name another format")


class _PartsReader(Reader):
    """Reads rows of parts, a bounded number of which are open at once.

    `lengths` are the numbers of samples in the parts; by default they are looked up when they are needed.
    """

    def __init__(
        self,
        schema: Schema,
        form: Any,
        paths: Sequence[Path],
        random: bool,
        lengths: Sequence[int] | None = None,
    ) -> None:
        super().__init__(schema)
        self._form, self._paths, self._random, self._lengths = form, paths, random, lengths
        most = MOST_WHOLE if isinstance(form, _WholeFile) else MOST_OPEN
        self._open: OpenPool[Reader] = OpenPool(self._opened, lambda reader: reader.close(), most)
        self._known: tuple[list[Schema], Index] | None = None

    def parts(self) -> Iterator[tuple[Path, Schema]]:
        yield from zip(self._paths, self._schemas(), strict=True)

    def check(self) -> None:
        """Open each part once; raises CorruptArtifact if one is damaged."""
        try:
            for _ in self._each():
                pass
        except BaseException:
            self.close()
            raise

    def batch(self, rows: formats.Rows | Sequence[int]) -> Batch:
        if not self.schema.ragged:
            return super().batch(rows)
        checked, _ = self._checked(rows)
        parts, slots = [self.schema.empty(0)], list[Any]()
        for number, local, at in shares(self._starts(), checked):
            with self._open.use(number) as reader:
                parts.append(reader.batch(local))
            slots.append(at)
        return formats.gathered(parts, slots)

    def sample(self, row: int, convert: formats.Convert = formats.identity) -> dict[str, Any]:
        self._check_row(row)
        starts = self._starts()
        number = int(np.searchsorted(starts, row, side="right")) - 1
        with self._open.use(number) as reader:
            return reader.sample(row - int(starts[number]), convert)

    def time_decoding(self, timed: formats.TimingWrapper) -> None:
        self._timed = timed
        for reader in self._open.present():
            reader.time_decoding(timed)

    def placement(self) -> Mapping[str, formats.Placement]:
        """Return the locations of the fields that all parts have stored as in memory."""
        places = [reader.placement() for reader in self._each()]
        common = [field.name for field in self.schema.fields if all(field.name in one for one in places)]
        lengths = np.diff(self._starts())
        return {name: end_to_end([one[name] for one in places], lengths) for name in common}

    def blocks(self) -> Sequence[Blocks]:
        """Return the blocks of all parts, if each has them of the same fields."""
        parts = [reader.blocks() for reader in self._each()]
        if len({tuple(one.fields for one in part) for part in parts}) != 1:
            return ()
        return [self._joined_blocks(same) for same in zip(*parts, strict=True)]

    def close(self) -> None:
        self._open.close()

    def _schemas(self) -> list[Schema]:
        return self._parts()[0]

    def _starts(self) -> Index:
        return self._parts()[1]

    def _parts(self) -> tuple[list[Schema], Index]:
        """Return the schema of each part, and the first row of each and the number of rows."""
        if self._open.is_closed:
            raise ValueError("this reader is closed")
        if self._known is None:
            index = {} if self._lengths else self.load_or_build("parts", self._lengths_of_parts)
            rows = np.array(self._lengths) if self._lengths else index["rows"]
            if int(rows.sum()) != self.schema.samples:
                found = counted(int(rows.sum()), "sample")
                raise corrupt(self._paths[0].parent, counted(self.schema.samples, "sample"), found)
            schemas = [
                Schema(
                    int(count),
                    self.schema.fields,
                    totals={f.name: int(index[f.name][n]) for f in self.schema.ragged},
                )
                for n, count in enumerate(rows)
            ]
            self._known = schemas, offsets_of(rows)
        return self._known

    def _lengths_of_parts(self) -> Iterator[dict[str, Array]]:
        schemas = list(map(self._schema_of, self._paths))
        lengths = {"rows": np.array([one.samples for one in schemas])}
        for field in self.schema.ragged:
            lengths[field.name] = np.array([one.totals.get(field.name, 0) for one in schemas])
        yield lengths

    def _schema_of(self, part: Path) -> Schema:
        """Return the schema of a part; of the own fields alone, if others have another length."""
        try:
            return self._form.infer_schema(part)  # type: ignore[no-any-return]
        except CorruptArtifact:
            if not self._form.selectable or split_selection(part)[1]:
                raise
            names = [self.schema.renamed.get(field.name, field.name) for field in self.schema.fields]
            return self._form.infer_schema(with_selection(part, names))  # type: ignore[no-any-return]

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for number, local, at in shares(self._starts(), slice(start, stop)):
            with self._open.use(number) as reader:
                reader.read(local, {name: array[at] for name, array in out.items()})

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        for number, local, at in shares(self._starts(), rows):
            some = {name: np.empty((len(at), *array.shape[1:]), array.dtype) for name, array in out.items()}
            with self._open.use(number) as reader:
                reader.read(local, some)
            for name, array in out.items():
                array[at] = some[name]

    def _each(self) -> Iterator[Reader]:
        for number in range(len(self._schemas())):
            with self._open.use(number) as reader:
                yield reader

    def _opened(self, number: int) -> Reader:
        path, _ = split_selection(self._paths[number])
        reader: Reader = self._form.open(path, self._schemas()[number], self._random)
        reader.load_or_build = lambda name, build: self.load_or_build(f"{name}-{number}", build)
        reader.epoch = self.epoch
        reader.time_decoding(self._timed)
        return reader

    def _joined_blocks(self, parts: Sequence[Blocks]) -> Blocks:
        files = tuple(file for part in parts for file in part.files)
        bases = offsets_of(np.array([len(part.files) for part in parts]))[:-1]
        first = _added(self._starts()[:-1], [part.first for part in parts])
        file = _added(bases, [part.file for part in parts])
        offset = np.concatenate([part.offset for part in parts])
        stored = np.concatenate([part.stored for part in parts])
        edges = offsets_of(np.array([len(part.first) for part in parts]))

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            part = int(np.searchsorted(edges, number, side="right")) - 1
            parts[part].decode(number - int(edges[part]), stored, out)

        return Blocks(parts[0].fields, files, first, file, offset, stored, decode)


def _added(bases: Index, parts: Sequence[Index]) -> Index:
    """Return the numbers of all parts, each with the base of its part added."""
    return np.concatenate([base + part for base, part in zip(bases, parts, strict=True)])
