"""Contract tests of damaged artifacts: each fails with CorruptArtifact of one line."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import CorruptArtifact, IobenchError
from iobench.formats import Blocks, Detectable, Field, Format, Reader, Schema, get
from iobench.testing.cases import (
    SAMPLES,
    Call,
    StoredArtifact,
    assert_rows,
    bare_files,
    files_of,
    flat,
    other_dtype,
    read_all,
    store,
    turned,
    varied_field,
)
from iobench.testing.placements import decoded, stored

# no magic, and those of a zip archive, of NumPy's and HDF5's files and of a pickle
STARTS = [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x89HDF\r\n\x1a\n", b"\x80\x04"]
FLIPS = 60
WAITING_S = 20.0  # an open of a pipe that takes longer is taken to block


def changed(schema: Schema, **changes: Any) -> Schema:
    """Return the schema with a changed field, the one that `varied_field` names."""
    varied = varied_field(schema)
    return replace(schema, fields=tuple(replace(f, **changes) if f == varied else f for f in schema.fields))


OTHERS: dict[str, Callable[[Schema], Schema]] = {
    "more": lambda schema: replace(schema, samples=SAMPLES + 1),
    "fewer": lambda schema: replace(schema, samples=SAMPLES - 1),
    "extra field": lambda schema: replace(schema, fields=(*schema.fields, Field("depth", (), "uint8"))),
    "name": lambda schema: changed(schema, name="sound"),
    "shape": lambda schema: changed(schema, shape=turned(varied_field(schema).shape)),
    "flat": lambda schema: changed(schema, shape=flat(varied_field(schema).shape)),
    "dtype": lambda schema: changed(schema, dtype=other_dtype(varied_field(schema), "int32", "float32")),
    "width": lambda schema: changed(schema, dtype=other_dtype(varied_field(schema), "float64", "int8")),
}


class Bomb:
    """Creates a folder when unpickled."""

    def __init__(self, fuse: Path) -> None:
        self.fuse = fuse

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.fuse),)


@contextmanager
def not_blocking(file: Path) -> Iterator[None]:
    """Fail the test if the block takes longer than `WAITING_S`, because it waits for a pipe."""

    def late(number: int, frame: Any) -> None:
        pytest.fail(f"{file.name}: opening the pipe blocks")

    before, left = signal.signal(signal.SIGALRM, late), signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        signal.signal(signal.SIGALRM, before)


def flipped(content: bytes, place: int, mask: int) -> bytes:
    """Return the content with flipped bits of the byte at `place`."""
    return content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :]


def assert_flips_fit(artifact: StoredArtifact, damaged: Path, flips: list[tuple[Path, int, int]]) -> None:
    """Assert that each flipped bit is refused, or gives samples of the right shapes and dtypes."""
    expected = {name: (array.shape, array.dtype) for name, array in artifact.source.items()}
    for file, place, bit in flips:
        content = file.read_bytes()
        file.write_bytes(flipped(content, place, 1 << bit))
        batch = read_all(artifact.format, damaged, artifact.schema)
        assert batch is None or expected == {name: (a.shape, a.dtype) for name, a in batch.items()}
        file.write_bytes(content)


def block_error(reader: Reader, blocks: Blocks, damage: bytes) -> str | None:
    """Return the error's message for these bytes in place of the first block; None if they are decoded."""
    try:
        batch = decoded(reader.schema, blocks, 0, damage)
    except CorruptArtifact as error:
        return str(error)
    assert_rows(decoded(reader.schema, blocks, 0, damage, before=1), batch, slice(None))
    return None


def each_file(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield every file below a folder and its content, which is restored afterwards."""
    for file in files_of(folder):
        content = file.read_bytes()
        yield file, content
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        file.write_bytes(content)


class CorruptionTests:
    """Tests that damage raises CorruptArtifact of one line, and that nothing is unpickled."""

    def test_a_truncated_file_is_corrupt(
        self, artifact: StoredArtifact, damaged: Path, elsewhere: Call
    ) -> None:
        for file, content in each_file(damaged):
            for size in (len(content) - 1, len(content) // 2, 0):
                os.truncate(file, size)
                batch = elsewhere(read_all, artifact.format, damaged, artifact.schema)
                assert batch is None, (file.name, size)
                file.write_bytes(content)

    def test_a_longer_file_is_corrupt_or_reads_the_same(
        self, artifact: StoredArtifact, damaged: Path, elsewhere: Call
    ) -> None:
        for file, content in each_file(damaged):
            file.write_bytes(content + b"!")
            batch = elsewhere(read_all, artifact.format, damaged, artifact.schema)
            if batch is not None:
                assert_rows(batch, artifact.source, slice(None))

    def test_a_missing_file_is_corrupt(self, artifact: StoredArtifact, damaged: Path) -> None:
        for file, _ in each_file(damaged):
            file.unlink()
            assert read_all(artifact.format, damaged, artifact.schema) is None, file.name

    def test_a_folder_in_place_of_a_file_is_corrupt(self, artifact: StoredArtifact, damaged: Path) -> None:
        for file, _ in each_file(damaged):
            file.unlink()
            file.mkdir()
            assert read_all(artifact.format, damaged, artifact.schema) is None, file.name

    def test_a_pipe_in_place_of_a_file_is_corrupt_and_does_not_block(
        self, fmt: Format, artifact: StoredArtifact, damaged: Path
    ) -> None:
        for file, _ in each_file(damaged):
            file.unlink()
            os.mkfifo(file)
            with not_blocking(file):
                assert read_all(artifact.format, damaged, artifact.schema) is None, file.name
                if isinstance(fmt, Detectable):
                    for path in (damaged, file):
                        with suppress(IobenchError):
                            assert not (fmt.sniff(path) and path == file)
                            fmt.infer_schema(path)

    def test_a_file_in_place_of_the_artifact_is_corrupt(
        self, fmt: Format, schema: Schema, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"file")
        assert read_all(fmt, tmp_path / "a", schema) is None

    def test_the_artifact_of_another_format_is_corrupt(
        self, fmt: Format, schema: Schema, tmp_path: Path, elsewhere: Call
    ) -> None:
        other = store(get("hdf5" if fmt.name == "npy" else "npy"), tmp_path / "a", schema)
        assert elsewhere(read_all, fmt, other.path, schema) is None

    def test_flipped_bits_are_corrupt_or_give_samples_of_the_right_form(
        self, artifact: StoredArtifact, damaged: Path, elsewhere: Call
    ) -> None:
        files, rng = files_of(damaged), np.random.default_rng(2)
        flips = []
        for _ in range(FLIPS):
            file = files[int(rng.integers(len(files)))]
            size = file.stat().st_size
            reach = size if rng.random() < 0.5 else min(size, 600)  # headers are where files begin
            flips.append((file, int(rng.integers(reach)), int(rng.integers(8))))
        elsewhere(assert_flips_fit, artifact, damaged, flips)

    def test_damaged_blocks_are_corrupt_or_other_content(self, reader: Reader) -> None:
        """Truncated, zeroed, random and flipped blocks raise CorruptArtifact or fill the whole array."""
        rng = np.random.default_rng(3)
        for blocks in reader.blocks():
            content = stored(blocks, 0)
            count = len(content)
            flips = [flipped(content, place, 0x81) for place in rng.integers(0, count, 30).tolist()]
            for damage in (b"", b"\0", content[: count // 2], bytes(count), rng.bytes(count), *flips):
                message = block_error(reader, blocks, damage)
                assert message is None or "\n" not in message
                assert message or len(damage) == count, "a truncated block must be corrupt"

    def test_a_missing_artifact_is_corrupt(self, fmt: Format, schema: Schema, tmp_path: Path) -> None:
        with pytest.raises(CorruptArtifact):
            fmt.open(tmp_path / "nothing", schema)

    def test_garbage_is_corrupt_unless_the_file_holds_only_samples(
        self, artifact: StoredArtifact, reader: Reader, damaged: Path, elsewhere: Call
    ) -> None:
        bare = bare_files(artifact, reader)
        for file, content in each_file(damaged):
            for start in STARTS:
                file.write_bytes((start + np.random.default_rng(1).bytes(len(content)))[: len(content)])
                batch = elsewhere(read_all, artifact.format, damaged, artifact.schema)
                assert batch is None or file.relative_to(damaged) in bare, (file.name, start)

    def test_another_schema_is_corrupt(self, artifact: StoredArtifact, elsewhere: Call) -> None:
        for name, other in OTHERS.items():
            schema = other(artifact.schema)
            assert elsewhere(read_all, artifact.format, artifact.path, schema) is None, name

    def test_another_pickle_in_the_folder_is_not_loaded(
        self, artifact: StoredArtifact, damaged: Path, tmp_path: Path
    ) -> None:
        (damaged / "other.pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
        read_all(artifact.format, damaged, artifact.schema)
        assert not (tmp_path / "exploded").exists()

    def test_a_pickle_in_place_of_a_file_is_corrupt(
        self, artifact: StoredArtifact, damaged: Path, tmp_path: Path, elsewhere: Call
    ) -> None:
        for file, _ in each_file(damaged):
            file.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
            assert elsewhere(read_all, artifact.format, damaged, artifact.schema) is None
            assert not (tmp_path / "exploded").exists()
