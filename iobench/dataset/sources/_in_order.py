"""Reader of files of lines, which can only be read from their beginning to their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from iobench.base.errors import CorruptArtifact
from iobench.formats import Array, Batch, Reader, Rows, Schema, joined


class InOrderReader(Reader):
    """Goes through batches of any size once, in order; batches that are requested follow each other.

    `batches` are all samples; errors name `path`.
    """

    def __init__(self, path: Path, schema: Schema, batches: Iterator[Batch]) -> None:
        super().__init__(schema)
        self._path, self._batches = path, batches
        self._left: dict[str, Any] = schema.empty(0)

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the next rows."""
        _, count = self._checked(rows)
        parts = [{name: array[:0] for name, array in self._left.items()}]
        while count:
            if not len(next(iter(self._left.values()))):
                self._left = self._next()
            parts.append({name: array[:count] for name, array in self._left.items()})
            self._left = {name: array[count:] for name, array in self._left.items()}
            count -= len(next(iter(parts[-1].values())))
        return {name: joined([part[name] for part in parts]) for name in self._left}

    def close(self) -> None:
        """Close the file."""
        self._batches.close()  # type: ignore[attr-defined]

    def _read_rows(self, rows: npt.NDArray[Any], out: Mapping[str, Array]) -> None:
        raise NotImplementedError

    def _next(self) -> dict[str, Any]:
        for batch in self._batches:
            return batch
        raise CorruptArtifact("truncated while it was read", kind="truncated", path=self._path)
