"""Rows read through the page cache, which is filled ahead of them where it is not full."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Convert, Extent, Field, Reader, Schema, corrupt, raw_bytes, same
from iobench.host.bus_errors import CAUGHT, GuardedMap
from iobench.loading.stream.ahead import ReadAhead, read_into

Index = npt.NDArray[np.int64]


class CachedReader(Reader):
    """Copies rows out of maps; of cold files, `read_ahead` brings them into the cache before.

    CorruptArtifact where a file ends too soon, OSError where the disk fails. A page of a map that
    cannot be read, or is cut off while it is read, is an OSError too (see `host.bus_errors`): not so
    where somebody else catches bus errors once this is open. Machines on which they cannot be caught
    have rows read one by one instead.
    """

    def __init__(self, schema: Schema, extents: Mapping[str, Extent], cold: bool) -> None:
        super().__init__(schema)
        self._extents, self.cold = dict(extents), cold
        self._ahead: ReadAhead | None = None
        self._files: dict[Path, int] = {}
        self._maps = {extent.path: _mapped(extent.path) for extent in extents.values()}
        self._arrays = {
            f.name: _array(f, self._maps[extents[f.name].path], schema.samples, extents[f.name])
            for f in schema.fields
        }
        for path, mapped in self._maps.items():
            self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if cold:  # `read_ahead` reads ahead, and a fault must not start a stream of its own beside it
                mapped.madvise(mmap.MADV_RANDOM)
                os.posix_fadvise(self._files[path], 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def extents(self) -> dict[str, Extent]:
        """Each field's place in its own file."""
        return self._extents

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample in fresh arrays."""
        return {name: convert(array[0]) for name, array in self.batch(slice(row, row + 1)).items()}

    def read_ahead(self, rows: slice, first: int | None = None) -> None:
        """Begin to read these rows into the cache.

        They will be asked for as they are stored; or else in another order, which begins with row `first`.
        """
        self.stop()
        if self.cold:
            self._ahead = ReadAhead(self.schema, self._extents, rows, first)

    def stop(self) -> None:
        """End reading ahead; whoever waits for it gets CancelledError."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def close(self) -> None:
        """End reading ahead and drop the maps."""
        self.stop()
        while self._files:
            os.close(self._files.popitem()[1])
        self._arrays.clear()
        self._maps.clear()

    def _file(self, path: Path) -> int:
        if path not in self._files:
            raise ValueError("this reader is closed")
        return self._files[path]

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """By plain reads, which are as fast as copies out of the map."""
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        for name, target in out.items():
            self._read_from(name, start, target)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        for name, target in out.items():
            if CAUGHT:
                self._gather(name, rows, target)
            else:
                for slot, row in enumerate(rows.tolist()):
                    self._read_from(name, row, target[slot : slot + 1])
        if self._ahead is not None:
            self._ahead.begin()

    def _gather(self, name: str, rows: Index, target: Array) -> None:
        path = self._extents[name].path
        self._file(path)
        # "clip" never clips here, the rows were checked; with "raise", take copies twice
        np.take(self._arrays[name], rows, axis=0, out=target, mode="clip")
        self._maps[path].guard.check()

    def _read_from(self, name: str, row: int, target: Array) -> None:
        """Fill an array with what lies from a row on."""
        place, into = self._extents[name], np.frombuffer(raw_bytes(target), np.uint8)
        read_into(self._file(place.path), place, place.offset + row * place.stride, into)


def _mapped(path: Path) -> GuardedMap:
    try:
        return GuardedMap(path)
    except ValueError as error:  # cut to nothing since its sizes were checked
        raise corrupt(path, "samples", "an empty file") from error


def _array(field: Field, mapped: GuardedMap, samples: int, place: Extent) -> Array:
    """The samples of a field as they lie in a map; CorruptArtifact where it ends before they do."""
    needed = place.offset + samples * field.sample_bytes
    if len(mapped) < needed:
        raise corrupt(place.path, f"{needed} bytes", f"{len(mapped)} bytes")
    flat = np.frombuffer(mapped, field.dtype, samples * field.elements, place.offset)
    return flat.reshape(samples, *field.shape)
