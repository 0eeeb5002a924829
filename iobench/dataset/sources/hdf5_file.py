"""The user's HDF5 file: every dataset in it, or those that were chosen, becomes a field.

The library that reads HDF5 trusts what it reads: a damaged file can end the process, fill its memory
or keep it busy for ever. So a child process reads, with a limit to its memory and to its time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from iobench.dataset.sources._base import BATCH_BYTES, FileSource
from iobench.dataset.sources._hdf5_child import BATCH, DONE, FAILED
from iobench.dataset.sources._schema import NO_NUMBER, choose, how_to_choose, schema_of
from iobench.errors import SourceError
from iobench.formats import Batch, raw_bytes
from iobench.text import shortened

LIMIT_S = 120.0  # for opening a file, and for reading one batch of it
MEMORY_BYTES = 768 << 20  # that reading may take: a sample, a chunk as stored and as unpacked, and room
MAX_ANSWER_BYTES = 16 << 20

# isolated, so that no module in the working directory or beside this file is taken for one of Python's
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from iobench.dataset.sources import _hdf5_child
_hdf5_child.main()
"""


class Hdf5File(FileSource):
    """Datasets of the file, nested ones named by their path; they share one leading axis."""

    kind = "hdf5"

    def __init__(self, path: Path, chosen: tuple[str, ...] = ()) -> None:
        super().__init__(path, chosen)
        with self.opened() as file, _child(file, {"do": "describe"}) as answers:
            kind, found = _answer(path, answers)
        if kind == FAILED:
            raise _unreadable(path, found["why"])
        described: dict[str, dict[str, Any]] = found["datasets"]
        self._keys = choose(path, described, chosen)
        for key in self._keys:
            if why := described[key].get("refused"):
                number = f" ({described[key]['dtype']}), {NO_NUMBER}" if "dtype" in described[key] else ""
                raise SourceError(
                    f"--source {path}: {shortened(key)} is {why}{number}{how_to_choose(path, described)}"
                )
        shapes = {
            key: (tuple(described[key]["shape"]), np.dtype(described[key]["dtype"])) for key in self._keys
        }
        self.schema = schema_of(path, shapes, described)

    def batches(self) -> Iterator[Batch]:
        """Slices along the leading axis."""
        rows, samples = self.schema.batch_rows(BATCH_BYTES), self.schema.samples
        fields = self.schema.fields
        asked = {
            "do": "read",
            "rows": rows,
            "samples": samples,
            "fields": [[k, f.shape, f.dtype] for k, f in zip(self._keys, fields, strict=True)],
        }
        with self.opened() as file, _child(file, asked) as answers:
            for start in range(0, samples, rows):
                kind, found = _answer(self.path, answers)
                if kind != BATCH:
                    raise _unreadable(self.path, found["why"])
                batch = {f.name: np.empty((min(rows, samples - start), *f.shape), f.dtype) for f in fields}
                for array in batch.values():
                    _receive(self.path, answers, raw_bytes(array))
                yield batch


class _Answers:
    """What a child process says, on its standard output."""

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        self.process, self.stream = process, stream


@contextmanager
def _child(file: BinaryIO, asked: dict[str, Any]) -> Iterator[_Answers]:
    """A process that reads an open file and was asked something; it is gone afterwards."""
    asked = asked | {"file": file.fileno(), "limit_s": LIMIT_S, "memory_bytes": MEMORY_BYTES}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what a library says before it aborts: the error says it in one line
        pass_fds=(file.fileno(),),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each of its threads takes memory
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), process.stdin as questions:  # its end is told when it should answer
            questions.write(json.dumps(asked).encode())
        yield _Answers(process, process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _answer(path: Path, answers: _Answers) -> tuple[int, dict[str, Any]]:
    """The kind of the next answer, and what it says."""
    head = bytearray(9)
    _receive(path, answers, memoryview(head))
    kind, size = head[0], int.from_bytes(head[1:], "little")
    if kind not in (BATCH, DONE, FAILED) or size > MAX_ANSWER_BYTES:
        raise _unreadable(path, "the process that reads it answered what it cannot")
    body = bytearray(size)
    _receive(path, answers, memoryview(body))
    return kind, json.loads(body) if size else {}


def _receive(path: Path, answers: _Answers, view: memoryview) -> None:
    while view:
        count = os.readv(answers.stream.fileno(), [view])
        if not count:
            raise _unreadable(path, _end(answers.process.wait()))
        view = view[count:]


def _end(code: int) -> str:
    if code == -signal.SIGALRM:
        return f"it took longer than {LIMIT_S:.0f} s; it is damaged, or its disk does not answer"
    if code < 0:
        return f"it is damaged, which ended the HDF5 library ({signal.strsignal(-code)})"
    return f"the process that reads it ended with {code}; it is damaged, or memory is short"


def _unreadable(path: Path, why: str) -> SourceError:
    return SourceError(f"--source {path}: cannot be read as HDF5: {why}")
