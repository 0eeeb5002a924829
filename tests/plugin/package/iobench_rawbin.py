"""A format from another package: one raw binary file per field, read by plain reads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt
from iobench.base.options import option
from iobench.formats import Array, Batch, Format, Reader, Schema, Strided, raw_bytes


@dataclass(frozen=True)
class RawBin(Format):
    """`<field>.bin` per field: its samples as in memory; `fields.json` describes them."""

    name: ClassVar[str] = "rawbin"
    summary: ClassVar[str] = "one raw binary file per field"
    library: ClassVar[str] = "numpy"

    buffer_bytes: int = option(1 << 20, "size of the write buffer", minimum=4096, unit="bytes")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `fields.json`, and `<field>.bin` for every field."""
        path.mkdir()
        (path / "fields.json").write_text(_described(schema))
        with ExitStack() as stack:
            files = {
                f.name: stack.enter_context(open(path / f"{f.name}.bin", "wb", self.buffer_bytes))
                for f in schema.fields
            }
            for batch in batches:
                for name, file in files.items():
                    file.write(raw_bytes(batch[name]))

    def open(self, path: Path, schema: Schema, random: bool = False) -> RawBinReader:
        """Check the description and the sizes of the files, and return a reader."""
        described = path / "fields.json"
        content = described.read_bytes() if described.is_file() else "no such file"
        if content != _described(schema).encode():
            raise corrupt(described, _described(schema), content[:200])
        places = {}
        for field in schema.fields:
            file = path / f"{field.name}.bin"
            size = file.stat().st_size if file.is_file() else "no such file"
            if size != schema.samples * field.sample_bytes:
                raise corrupt(file, f"{schema.samples * field.sample_bytes} bytes", size)
            places[field.name] = Strided((file,), 0, field.sample_bytes)
        return RawBinReader(schema, places)


def _described(schema: Schema) -> str:
    return json.dumps([asdict(field) for field in schema.fields])


class RawBinReader(Reader):
    """Reads each row, or all rows of a slice, from its location in the file."""

    def __init__(self, schema: Schema, places: dict[str, Strided]) -> None:
        super().__init__(schema)
        self._places = places
        self._files = {name: os.open(place.files[0], os.O_RDONLY) for name, place in places.items()}

    def placement(self) -> dict[str, Strided]:
        """Return each field's location in its own file."""
        return self._places

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            self._read(name, start, raw_bytes(target))

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            width = self._places[name].stride
            memory = raw_bytes(target)
            for slot, row in enumerate(rows.tolist()):
                self._read(name, row, memory[slot * width : (slot + 1) * width])

    def _read(self, name: str, row: int, into: memoryview) -> None:
        if name not in self._files:
            raise ValueError("this reader is closed")
        done, place = 0, self._places[name]
        while done < len(into):
            got = os.preadv(self._files[name], [into[done:]], row * place.stride + done)
            if not got:
                raise corrupt(place.files[0], f"{self.schema.samples} samples", "the end of the file")
            done += got
