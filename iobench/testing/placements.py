"""Contract tests of placement and blocks: the locations that a reader returns hold for every sample."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from iobench.formats import Array, Batch, Blocks, Format, Reader, Schema
from iobench.testing.cases import StoredArtifact, assert_rows, store


def rows_of(blocks: Blocks, number: int, samples: int) -> slice:
    """Return the rows of a block."""
    ends = [*blocks.first[1:].tolist(), samples]
    return slice(int(blocks.first[number]), ends[number])


def stored(blocks: Blocks, number: int) -> bytes:
    """Return the bytes of a block from its file."""
    path, offset = blocks.files[int(blocks.file[number])], int(blocks.offset[number])
    return path.read_bytes()[offset : offset + int(blocks.stored[number])]


def decoded(schema: Schema, blocks: Blocks, number: int, content: bytes, before: int = 0) -> Batch:
    """Return the decoded rows of a block's bytes, in memory that held the byte `before`."""
    rows = rows_of(blocks, number, schema.samples)
    whole = schema.empty(rows.stop - rows.start)
    for array in whole.values():
        array.reshape(-1).view(np.uint8)[:] = before
    out = {name: whole[name] for name in blocks.fields}
    blocks.decode(number, memoryview(content), out)
    return out


def assert_placements(reader: Reader, source: Mapping[str, Array]) -> None:
    """Assert that the reader's placement and blocks give the right bytes for every sample."""
    every = np.arange(len(reader))
    for name, placement in reader.placement().items():
        width = reader.schema.field(name).sample_bytes
        contents = [file.read_bytes() for file in placement.files]
        for row, file, offset in zip(
            every.tolist(), *map(np.ndarray.tolist, placement.locate(every)), strict=True
        ):
            content = contents[file][offset : offset + width]
            assert content == source[name][row].tobytes(), (name, row)
    for blocks in reader.blocks():
        assert blocks.first[0] == 0
        for number in range(len(blocks.first)):
            rows = rows_of(blocks, number, len(reader))
            assert rows.start < rows.stop
            batch = decoded(reader.schema, blocks, number, stored(blocks, number))
            assert_rows(batch, {name: source[name] for name in blocks.fields}, rows)


class PlacementTests:
    """Tests of placement and blocks."""

    def test_no_field_has_two_locations(self, reader: Reader) -> None:
        named = [*reader.placement(), *(name for blocks in reader.blocks() for name in blocks.fields)]
        assert len(named) == len(set(named))
        assert set(named) <= {field.name for field in reader.schema.fields}

    def test_placement_locates_every_sample(self, artifact: StoredArtifact, reader: Reader) -> None:
        assert_placements(reader, artifact.source)

    def test_placement_of_many_samples(self, fmt: Format, schema: Schema, tmp_path: Path) -> None:
        several = store(fmt, tmp_path / "a", Schema(203, schema.fields[:2]), (50,) * 4)
        with several.open() as reader:
            assert_placements(reader, several.source)

    def test_blocks_are_decoded_by_several_threads(self, artifact: StoredArtifact, reader: Reader) -> None:
        for blocks in reader.blocks():
            numbers = list(range(len(blocks.first))) * 8
            with ThreadPoolExecutor(8) as pool:
                batches = pool.map(lambda n, b=blocks: decoded(reader.schema, b, n, stored(b, n)), numbers)
                held = {name: artifact.source[name] for name in blocks.fields}
                for number, batch in zip(numbers, batches, strict=True):
                    assert_rows(batch, held, rows_of(blocks, number, len(reader)))

    def test_some_fields_of_a_block_can_be_decoded(self, artifact: StoredArtifact, reader: Reader) -> None:
        for blocks in reader.blocks():
            rows = rows_of(blocks, 0, len(reader))
            for name in blocks.fields:
                out = {name: artifact.schema.empty(rows.stop - rows.start)[name]}
                blocks.decode(0, memoryview(stored(blocks, 0)), out)
                assert_rows(out, {name: artifact.source[name]}, rows)
