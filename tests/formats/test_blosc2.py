"""Blosc2: its own library and iobench read the same files."""

import numpy as np
import pytest
from kinds import kind

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, assert_same, store
from iobench.testing.placements import assert_placements

blosc2 = pytest.importorskip("blosc2")

BLOSC2 = formats.get("blosc2")


def test_its_own_library_reads_what_was_written(tmp_path):
    artifact = store(formats.parse("blosc2:chunk_bytes=300,codec=zstd"), tmp_path / "a", SCHEMA)
    for name, array in artifact.source.items():
        assert_same(blosc2.open(str(artifact.path / f"{name}.b2nd"), mode="r")[:], array)


CUT = {"chunks": (8, 3), "blocks": (4, 3)}


@pytest.mark.parametrize(("options", "packed"), [({}, 1), ({"blocks": (4, 3)}, 0), (CUT, 0)])
def test_what_its_own_library_wrote_is_read_in_place(tmp_path, options, packed):
    data = np.random.default_rng(0).random((50, 6))
    options = {"chunks": (8, 6), "blocks": (4, 6)} | options
    blosc2.asarray(data, urlpath=str(tmp_path / "train-x.b2nd"), **options)
    assert BLOSC2.sniff(tmp_path / "train-x.b2nd")
    schema = BLOSC2.infer_schema(tmp_path / "train-x.b2nd")
    assert schema == Schema(50, (Field("train_x", (6,), "float64"),))
    with BLOSC2.open(tmp_path / "train-x.b2nd", schema) as reader:
        assert_rows(reader.batch(INDICES), {"train_x": data}, INDICES)
        assert_rows(reader.batch(slice(3, 49)), {"train_x": data}, slice(3, 49))
        assert len(reader.blocks()) == packed
        assert_placements(reader, {"train_x": data})


def test_numbers_are_returned_in_this_machines_byte_order(tmp_path):
    data, file = np.random.default_rng(0).random((50, 6)), tmp_path / "x.b2nd"
    blosc2.asarray(data.astype(">f8"), urlpath=str(file), chunks=(8, 6), blocks=(4, 6))
    with BLOSC2.open(file, BLOSC2.infer_schema(file)) as reader:
        arrays = [
            reader.sample(4)["x"],
            reader.native(slice(4, 5))["x"][0],
            reader.batch(slice(4, 5))["x"][0],
        ]
        assert reader.blocks() == []
    for one in arrays:
        assert one.dtype.isnative
        np.testing.assert_array_equal(one, data[4])


def test_an_expression_is_not_evaluated(tmp_path, monkeypatch):
    a = blosc2.asarray(np.arange(6.0), urlpath=str(tmp_path / "a.b2nd"))
    blosc2.lazyexpr("a + 1", {"a": a}).save(urlpath=str(tmp_path / "lazy.b2nd"))
    monkeypatch.setattr(blosc2, "open", lambda *arguments, **options: pytest.fail("opened"))
    with pytest.raises(CorruptArtifact, check=kind("computed-array", path=tmp_path / "lazy.b2nd")):
        BLOSC2.infer_schema(tmp_path / "lazy.b2nd")


def test_an_array_that_was_hardly_written_is_refused(tmp_path):
    blosc2.zeros((10**8, 1000), dtype=np.float64, urlpath=str(tmp_path / "x.b2nd"))
    with pytest.raises(CorruptArtifact, check=kind("not-stored", path=tmp_path / "x.b2nd")) as error:
        BLOSC2.infer_schema(tmp_path / "x.b2nd")
    assert "800,000,000,000" in error.value.expected


def test_constant_chunks_have_no_location_but_are_read(tmp_path):
    blosc2.zeros((50, 6), dtype="float32", chunks=(8, 6), urlpath=str(tmp_path / "x.b2nd"))
    with BLOSC2.open(tmp_path / "x.b2nd", BLOSC2.infer_schema(tmp_path / "x.b2nd")) as reader:
        assert not reader.blocks()
        assert not reader.batch(slice(None))["x"].any()


def test_a_file_that_is_not_an_array_is_refused(tmp_path):
    blosc2.SChunk(chunksize=800, data=np.arange(100), urlpath=str(tmp_path / "x.b2frame"), contiguous=True)
    with pytest.raises(CorruptArtifact, check=kind("not-an-array", found="SChunk")):
        BLOSC2.infer_schema(tmp_path / "x.b2frame")
