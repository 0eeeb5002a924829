"""What the contract says of artifacts: who opens them, and how damaged ones fail."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.formats import (
    Blocks,
    CorruptArtifact,
    Field,
    Format,
    Reader,
    Schema,
    UnsupportedSchema,
    build,
    get,
    read_word,
)
from iobench.testing._cases import (
    INDICES,
    SAMPLES,
    Artifact,
    Call,
    assert_rows,
    bare_files,
    files_of,
    open_and_read,
    read_all,
    store,
)
from iobench.testing._places import decoded

# of nothing, a zip archive, NumPy's and HDF5's files and a pickle
STARTS = [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x89HDF\r\n\x1a\n", b"\x80\x04"]
FLIPS = 60


def with_signal(schema: Schema, **changes: Any) -> Schema:
    """The schema with another `signal`."""
    return replace(
        schema, fields=tuple(replace(f, **changes) if f.name == "signal" else f for f in schema.fields)
    )


OTHERS: dict[str, Callable[[Schema], Schema]] = {
    "more": lambda schema: replace(schema, samples=SAMPLES + 1),
    "fewer": lambda schema: replace(schema, samples=SAMPLES - 1),
    "extra field": lambda schema: replace(schema, fields=(*schema.fields, Field("depth", (), "uint8"))),
    "name": lambda schema: with_signal(schema, name="sound"),
    "shape": lambda schema: with_signal(schema, shape=(5, 2)),
    "flat": lambda schema: with_signal(schema, shape=(10,)),
    "dtype": lambda schema: with_signal(schema, dtype="int32"),
    "width": lambda schema: with_signal(schema, dtype="float64"),
}


class Bomb:
    """Creates a folder when unpickled."""

    def __init__(self, fuse: Path) -> None:
        self.fuse = fuse

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.fuse),)


def read_flipped(artifact: Artifact, damaged: Path, flips: list[tuple[Path, int, int]]) -> int:
    """How many flipped bits were complained of; with the others all was read, whatever it gave."""
    complaints = 0
    for file, place, bit in flips:
        content = file.read_bytes()
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        complaints += read_all(artifact.format, damaged, artifact.schema) is None
        file.write_bytes(content)
    return complaints


def complaint(reader: Reader, blocks: Blocks, damage: bytes) -> str | None:
    """What is said of these bytes in place of the first block; None where they are decoded."""
    try:
        decoded(reader.schema, blocks, 0, damage)
    except CorruptArtifact as error:
        return str(error)
    return None


class Life:
    """What a format says of itself; opening, closing and sharing, and what lies on disk.

    A blob has axes of `blob_axes` and one of its bytes; there are at most `most_samples` of them, of
    `most_bytes` in all.
    """

    blob_axes: tuple[int, ...] = ()
    most_samples, most_bytes = 5_000, 2_000_000

    def test_it_says_what_it_is(self, fmt: Format) -> None:
        assert re.fullmatch("[a-z][a-z0-9_-]*", fmt.name)
        assert fmt.summary
        assert "\n" not in fmt.summary
        assert metadata.version(fmt.library), "the installed package that does the work"

    def test_its_variant_is_the_format_in_one_word(self, fmt: Format) -> None:
        assert read_word(type(fmt), fmt.variant) == fmt
        assert build(type(fmt), fmt.options) == fmt
        assert not set(fmt.variant) & set(" /\\\n")

    def test_a_spawned_process_opens_from_pickled_parts(self, artifact: Artifact, elsewhere: Call) -> None:
        parts = pickle.dumps((artifact.format, artifact.path, artifact.schema))
        assert_rows(elsewhere(open_and_read, parts, INDICES), artifact.source, INDICES)

    def test_threads_read_one_reader_at_once(self, artifact: Artifact, reader: Reader) -> None:
        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(10):
                start = int(rng.integers(SAMPLES))
                for rows in (rng.integers(0, SAMPLES, 9), slice(start, start + 7)):
                    assert_rows(reader.batch(rows), artifact.source, rows)
                assert_rows(reader.sample(start), artifact.source, start)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))

    def test_readers_of_one_artifact_live_apart(self, artifact: Artifact) -> None:
        first, second = artifact.open(), artifact.open()
        assert_rows(first.batch(INDICES), artifact.source, INDICES)
        first.close()
        assert_rows(second.batch(INDICES), artifact.source, INDICES)
        second.close()
        with artifact.open() as third:
            assert_rows(third.batch(INDICES), artifact.source, INDICES)

    def test_a_closed_reader_reads_no_more(self, artifact: Artifact) -> None:
        reader = artifact.open()
        reader.close()
        reader.close()
        for read in (reader.batch, reader.native):
            for rows in (slice(0, 2), INDICES):
                with pytest.raises(ValueError):
                    read(rows)
        with pytest.raises(ValueError):
            reader.sample(0)

    def test_a_new_artifact_is_not_taken_for_an_open_old_one_in_its_place(
        self, fmt: Format, schema: Schema, tmp_path: Path
    ) -> None:
        old = store(fmt, tmp_path / "a", replace(schema, samples=3))
        with old.open() as old_reader:
            shutil.rmtree(old.path)
            if not fmt.holds_files:
                with contextlib.suppress(CorruptArtifact):  # what was read before may be at hand
                    assert_rows(old_reader.batch(slice(None)), old.source, slice(None))
                old_reader.close()
            new = store(fmt, tmp_path / "a", schema)
            with new.open() as new_reader:
                assert_rows(new_reader.batch(slice(None)), new.source, slice(None))
                if fmt.holds_files:
                    assert_rows(old_reader.batch(slice(None)), old.source, slice(None))

    def test_lists_that_are_kept_give_the_same(self, artifact: Artifact) -> None:
        """A reader that is given what another one found finds nothing itself, and need not."""
        lists: dict[str, dict[str, np.ndarray[Any, Any]]] = {}

        def keep(name: str, find: Any) -> Any:
            lists[name] = find()
            assert all(array.ndim == 1 for array in lists[name].values())
            return lists[name]

        rows = np.arange(SAMPLES)
        with artifact.open() as first, artifact.open() as second:
            first.kept, second.kept = keep, lambda name, find: lists[name]
            for one, other in zip(first.placement().items(), second.placement().items(), strict=True):
                assert one[0] == other[0]
                np.testing.assert_array_equal(one[1].locate(rows), other[1].locate(rows))
            for mine, its in zip(first.blocks(), second.blocks(), strict=True):
                np.testing.assert_array_equal(mine.offset, its.offset)

    def test_placement_and_blocks_of_a_closed_reader_are_value_errors_or_as_before(
        self, artifact: Artifact
    ) -> None:
        reader = artifact.open()
        reader.close()
        for ask in (reader.placement, reader.blocks):
            with suppress(ValueError):
                ask()

    def test_size_bound_holds_for_random_data(self, fmt: Format, tmp_path: Path) -> None:
        for sample_bytes in (1, 100, 512, 2048, 5120, 150_000):
            samples = min(self.most_samples, max(3, self.most_bytes // sample_bytes))
            fields = (Field("blob", (*self.blob_axes, sample_bytes), "uint8"),)
            schema = Schema(samples, fields)
            with contextlib.suppress(UnsupportedSchema):
                fmt.check_schema(schema)
                self.assert_bound(store(fmt, tmp_path / "a", schema))

    @staticmethod
    def assert_bound(artifact: Artifact) -> None:
        """What was written takes no more than its format said that it would."""
        stored = sum(file.stat().st_blocks * 512 for file in files_of(artifact.path))
        assert stored <= artifact.format.size_bound(artifact.schema), artifact.schema
        shutil.rmtree(artifact.path)


class Damage:
    """Damage is one CorruptArtifact of one line, and nothing is unpickled."""

    def test_a_truncated_file_is_corrupt(self, artifact: Artifact, damaged: Path, elsewhere: Call) -> None:
        for file in files_of(damaged):
            content = file.read_bytes()
            for size in (len(content) - 1, len(content) // 2, 0):
                os.truncate(file, size)
                assert elsewhere(read_all, artifact.format, damaged, artifact.schema) is None, (
                    file.name,
                    size,
                )
                file.write_bytes(content)

    def test_a_longer_file_is_corrupt_or_reads_the_same(
        self, artifact: Artifact, damaged: Path, elsewhere: Call
    ) -> None:
        for file in files_of(damaged):
            content = file.read_bytes()
            file.write_bytes(content + b"!")
            found = elsewhere(read_all, artifact.format, damaged, artifact.schema)
            if found is not None:
                assert_rows(found, artifact.source, slice(None))
            file.write_bytes(content)

    def test_a_missing_file_is_corrupt(self, artifact: Artifact, damaged: Path) -> None:
        for file in files_of(damaged):
            content = file.read_bytes()
            file.unlink()
            assert read_all(artifact.format, damaged, artifact.schema) is None, file.name
            file.write_bytes(content)

    def test_a_folder_in_place_of_a_file_is_corrupt(self, artifact: Artifact, damaged: Path) -> None:
        for file in files_of(damaged):
            aside = file.rename(damaged.parent / "aside")
            file.mkdir()
            assert read_all(artifact.format, damaged, artifact.schema) is None, file.name
            file.rmdir()
            aside.rename(file)

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

    def test_flipped_bits_are_corrupt_or_other_content(
        self, artifact: Artifact, damaged: Path, elsewhere: Call
    ) -> None:
        files, rng = files_of(damaged), np.random.default_rng(2)
        flips = []
        for _ in range(FLIPS):
            file = files[int(rng.integers(len(files)))]
            size = file.stat().st_size
            reach = size if rng.random() < 0.5 else min(size, 600)  # headers are where files begin
            flips.append((file, int(rng.integers(reach)), int(rng.integers(8))))
        assert elsewhere(read_flipped, artifact, damaged, flips) <= FLIPS

    def test_damaged_blocks_are_corrupt_or_other_content(self, reader: Reader) -> None:
        """Cut, emptied, of other bytes or of zeros: CorruptArtifact, or an array that is full."""
        for blocks in reader.blocks():
            count = int(blocks.stored[0])
            for damage in (b"", b"\0", bytes(count), np.random.default_rng(3).bytes(count)):
                told = complaint(reader, blocks, damage)
                assert told is None or "\n" not in told
                assert told or len(damage) == count, "a block that is cut is corrupt"

    def test_a_missing_artifact_is_corrupt(self, fmt: Format, schema: Schema, tmp_path: Path) -> None:
        with pytest.raises(CorruptArtifact):
            fmt.open(tmp_path / "nothing", schema)

    def test_garbage_is_corrupt_unless_a_file_is_nothing_but_samples(
        self, artifact: Artifact, reader: Reader, damaged: Path, elsewhere: Call
    ) -> None:
        bare = bare_files(artifact, reader)
        for file in files_of(damaged):
            content = file.read_bytes()
            for start in STARTS:
                file.write_bytes((start + np.random.default_rng(1).bytes(len(content)))[: len(content)])
                found = elsewhere(read_all, artifact.format, damaged, artifact.schema)
                assert found is None or file.relative_to(damaged) in bare, (file.name, start)
            file.write_bytes(content)

    def test_another_schema_is_corrupt(self, artifact: Artifact, elsewhere: Call) -> None:
        for what, other in OTHERS.items():
            schema = other(artifact.schema)
            assert elsewhere(read_all, artifact.format, artifact.path, schema) is None, what

    def test_a_pickle_beside_the_files_is_left_alone(
        self, artifact: Artifact, damaged: Path, tmp_path: Path
    ) -> None:
        (damaged / "other.pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
        read_all(artifact.format, damaged, artifact.schema)
        assert not (tmp_path / "exploded").exists()

    def test_a_pickle_in_place_of_a_file_is_corrupt(
        self, artifact: Artifact, reader: Reader, damaged: Path, tmp_path: Path, elsewhere: Call
    ) -> None:
        for file in files_of(damaged):
            content = file.read_bytes()
            file.write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
            assert elsewhere(read_all, artifact.format, damaged, artifact.schema) is None
            assert not (tmp_path / "exploded").exists()
            file.write_bytes(content)
