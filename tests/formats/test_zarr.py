"""Zarr: its own library and iobench read the same folders; only codecs that decompress are used."""

import gzip
import json
import os
import struct
import tracemalloc
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Schema
from iobench.testing.cases import INDICES, SCHEMA, assert_rows, random_batch, store
from iobench.testing.placements import assert_placements

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")
reader = pytest.importorskip("iobench.contrib.formats.zarr.reader")

ZARR = formats.get("zarr")


@pytest.mark.parametrize("options", ["", ":chunk_bytes=100,shard_bytes=300,codec=blosc", ":codec=zstd"])
def test_its_own_library_reads_what_was_written(tmp_path, options):
    artifact = store(formats.parse(f"zarr{options}"), tmp_path / "a", SCHEMA)
    group = zarr.open_group(artifact.path, mode="r")
    assert set(group.array_keys()) == set(artifact.source)
    assert_rows({name: group[name][:] for name in artifact.source}, artifact.source, slice(None))


PACKERS = {"zstd": numcodecs.Zstd(), "blosc": numcodecs.Blosc(), "gzip": numcodecs.GZip()}


def chunks_in(folder, codec, source):
    """Write an array of two chunks; return the file of the second."""
    compressor = {"name": codec, "configuration": {} if codec == "blosc" else {"level": 1}}
    group, rows = zarr.open_group(folder, mode="w"), len(source) // 2
    group.create_array("x", data=source, chunks=(rows,), compressors=compressor)
    return folder / "x" / "c" / "1"


@contextmanager
def decoding(folder, schema=None):
    """Yield a function that decodes the second chunk from these bytes."""
    with ZARR.open(folder, schema or ZARR.infer_schema(folder)) as reader:
        ((table,), (field,)) = reader.blocks(), reader.schema.fields

        def decode(stored):
            out = np.zeros(len(reader) // 2, field.dtype)
            table.decode(1, memoryview(bytes(stored)), {"x": out})
            return out

        yield decode


DAMAGED = {"name": "damaged-chunk", "match": "chunk 1 "}


@pytest.mark.parametrize("codec", PACKERS)
def test_a_chunk_that_decompresses_to_another_size_is_corrupt(tmp_path, codec):
    """Also where it is decompressed straight into the caller's memory, and without decompressing all."""
    source, pack = np.arange(8192, dtype=np.int16), PACKERS[codec].encode
    chunks_in(tmp_path, codec, source)
    with decoding(tmp_path) as decode:
        np.testing.assert_array_equal(decode(pack(source[4096:])), source[4096:])
        for wrong in (source[4095:], source[4097:]):
            with refused_as(**DAMAGED):
                decode(pack(wrong))
        bomb = pack(np.zeros(64 << 20, np.uint8))
        tracemalloc.start()
        with refused_as(**DAMAGED):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("content", ["noise", "ones"])
@pytest.mark.parametrize("harm", ["cut", "header"])
def test_a_blosc_chunk_shorter_than_its_header_claims_is_corrupt(tmp_path, content, harm):
    """c-blosc would read past its end: other memory, or a crash."""
    source = np.ones(8192, np.uint8)
    if content == "noise":
        source[:] = np.random.default_rng(0).integers(0, 255, 8192)
    chunk, schema = chunks_in(tmp_path, "blosc", source), Schema(8192, (Field("x", (), "uint8"),))
    assert ZARR.infer_schema(tmp_path) == schema
    stored = bytearray(chunk.read_bytes())
    if harm == "cut":
        del stored[len(stored) // 2 :]
    else:
        stored[15] = 0x30
    chunk.write_bytes(stored)
    with refused_as(**DAMAGED, path=chunk, found=has(str(len(stored)))):
        ZARR.infer_schema(tmp_path)
    with decoding(tmp_path, schema) as decode, refused_as(**DAMAGED, path=chunk):
        decode(stored)


def test_a_gzip_chunk_may_have_several_members_but_must_end(tmp_path):
    chunks_in(tmp_path, "gzip", np.ones(8192, np.uint8))
    content = np.random.default_rng(0).bytes(4096)
    members = gzip.compress(content[:1000]) + gzip.compress(content[1000:])
    with decoding(tmp_path) as decode:
        assert decode(members).tobytes() == content
        for cut in (-400, -4):  # the latter cuts the checksum
            with refused_as(**DAMAGED):
                decode(members[:cut])


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_791, 65_792, 1 << 20])
def test_the_size_in_a_chunks_header_is_its_decompressed_size(size):
    content = np.random.default_rng(0).bytes(size)
    for packer in (numcodecs.Zstd(), numcodecs.Zstd(checksum=True), numcodecs.Blosc()):
        assert reader.unpacked_bytes(packer, memoryview(bytes(packer.encode(content)))) == size
    stream = memoryview(b"(\xb5/\xfd\0X")
    assert reader.unpacked_bytes(numcodecs.Zstd(), stream) is None
    for packer in (numcodecs.Zstd(), numcodecs.Blosc(), numcodecs.GZip()):
        assert reader.unpacked_bytes(packer, memoryview(b"")) is None


def test_other_files_in_the_folder_are_ignored_without_a_warning(tmp_path, recwarn):
    artifact = store(ZARR, tmp_path / "a", SCHEMA)
    for name in (".iobench-seal.json", "signal/notes.txt"):
        (artifact.path / name).write_text("{}")
    assert {field.name for field in ZARR.infer_schema(artifact.path).fields} == set(artifact.source)
    with artifact.open() as reader:
        assert_rows(reader.batch(INDICES), artifact.source, INDICES)
    assert [str(one.message) for one in recwarn if "zarr" in one.filename] == []


def written_by_zarr(path, **options):
    """Write a group with arrays in a subgroup; return their fields."""
    source = random_batch(SCHEMA)
    group = zarr.open_group(path, mode="w", zarr_format=options.pop("zarr_format", 3))
    for name, array in source.items():
        group.create_array(f"train/{name}", data=array, chunks=(4, *array.shape[1:]), **options)
    return {f"train_{name}": array for name, array in source.items()}


@pytest.mark.parametrize(
    ("options", "placed", "packed"),
    [
        ({"compressors": None}, 4, 0),
        ({}, 0, 4),
        ({"compressors": {"name": "gzip", "configuration": {"level": 1}}}, 0, 4),
        ({"compressors": None, "zarr_format": 2}, 0, 0),
    ],
    ids=["plain", "zstd", "gzip", "version 2"],
)
def test_what_zarr_wrote_is_read_in_place(tmp_path, options, placed, packed):
    source = written_by_zarr(tmp_path / "t.zarr", **options)
    assert ZARR.sniff(tmp_path / "t.zarr")
    schema = ZARR.infer_schema(tmp_path / "t.zarr")
    assert {f.name for f in schema.fields} == set(source)
    with ZARR.open(tmp_path / "t.zarr", schema) as reader:
        assert_rows(reader.batch(INDICES), source, INDICES)
        assert_rows(reader.batch(slice(3, 22)), source, slice(3, 22))
        assert (len(reader.placement()), len(reader.blocks())) == (placed, packed)
        assert_placements(reader, source)


@pytest.mark.parametrize("alone", [True, False])
def test_an_unreadable_chunk_is_reported_by_array_and_rows(tmp_path, alone):
    path, data = tmp_path / "z.zarr", np.random.default_rng(0).integers(0, 9, (50, 6))
    if alone:
        zarr.create_array(path, data=data, chunks=(10, 3))
    else:
        zarr.open_group(path, mode="w").create_array("z/x", data=data, chunks=(10, 3))
    schema = ZARR.infer_schema(path)
    (name,) = (field.name for field in schema.fields)
    assert name == ("z" if alone else "z_x")
    folder = path if alone else path / "z/x"
    (folder / "c/2/1").write_bytes(b"damaged")
    with ZARR.open(path, schema) as reader:
        for rows in (slice(0, 50), slice(25, 26), np.array([3, 49, 21])):
            with refused_as("damaged-chunk", path=folder, expected=has(f" {name}, ", "20 to 29")):
                reader.batch(rows)
        with refused_as("damaged-chunk", match="20 to 29"):
            reader.sample(29)
        reader.batch(slice(0, 20))


@pytest.mark.parametrize("version", [2, 3])
def test_chunks_that_are_not_stored_are_reported(tmp_path, version):
    group = zarr.open_group(tmp_path / "t", mode="w", zarr_format=version)
    array = group.create_array("x", data=np.ones((50, 6)), chunks=(10, 4), fill_value=7)
    group.create_array("y", data=np.ones(50), chunks=(10,))
    schema = ZARR.infer_schema(tmp_path / "t")
    assert ZARR.notes(tmp_path / "t", schema) == []
    for place in ((1, 1), (4, 0)):
        (tmp_path / "t/x" / array.metadata.encode_chunk_key(place)).unlink()
    (note,) = ZARR.notes(tmp_path / "t", schema)
    assert note.kind == "missing-chunks"
    assert note.values == {"field": "x", "missing": 2, "chunks": 10, "fill": "7.0"}
    assert ZARR.notes(tmp_path / "t", Schema(50, (schema.field("y"),))) == []


def test_chunks_that_are_not_stored_in_shards_are_counted_within_the_array(tmp_path):
    array = zarr.create_array(tmp_path / "t", shape=(45, 7), shards=(20, 8), chunks=(5, 4), dtype="i4")
    array[:5] = 1
    array[40:] = 2
    schema = ZARR.infer_schema(tmp_path / "t")
    (note,) = ZARR.notes(tmp_path / "t", schema)
    assert (note.values["missing"], note.values["chunks"], note.values["fill"]) == (14, 18, "0")
    array[:] = 1
    assert ZARR.notes(tmp_path / "t", schema) == []


def test_a_single_array_is_a_field_of_its_name(tmp_path):
    zarr.create_array(tmp_path / "images.zarr", data=np.arange(60, dtype="uint16").reshape(10, 6))
    schema = ZARR.infer_schema(tmp_path / "images.zarr")
    assert schema == Schema(10, (Field("images", (6,), "uint16"),))
    with ZARR.open(tmp_path / "images.zarr", schema) as reader:
        assert reader.batch(slice(9, 10))["images"].tolist() == [[54, 55, 56, 57, 58, 59]]


def test_chunks_cut_along_other_axes_and_missing_ones_have_no_location_but_are_read(tmp_path):
    data = np.zeros((10, 6))
    group = zarr.open_group(tmp_path / "t", mode="w")
    group.create_array("cut", data=data + 1, chunks=(2, 3), compressors=None)
    group.create_array("empty", data=data, chunks=(2, 6), compressors=None)
    group.create_array("big", data=(data + 2).astype(">f8"), chunks=(2, 6), compressors=None)
    with ZARR.open(tmp_path / "t", ZARR.infer_schema(tmp_path / "t")) as reader:
        assert not reader.placement().keys() & {"cut", "empty"}
        assert_placements(reader, {"cut": data + 1, "empty": data, "big": data + 2})
        assert_rows(reader.batch(slice(None)), {"cut": data + 1, "empty": data, "big": data + 2}, slice(None))


PICKLE = {"name": "numcodecs.pickle", "configuration": {}}


@pytest.mark.parametrize(
    ("version", "change"),
    [
        (2, {"filters": [{"id": "pickle", "protocol": 5}]}),
        (2, {"compressor": {"id": "pickle", "protocol": 5}}),
        (3, {"codecs": [PICKLE]}),
        (3, {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [PICKLE]}}]}),
        (3, {"codecs": [{"name": "sharding_indexed", "configuration": {"index_codecs": [PICKLE]}}]}),
    ],
)
def test_a_codec_that_runs_code_from_the_file_is_refused(tmp_path, version, change):
    written_by_zarr(tmp_path / "t", zarr_format=version)
    file = tmp_path / "t/train/label" / ("zarr.json" if version == 3 else ".zarray")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with refused_as("unknown-codec", path=file, found="pickle"):
        ZARR.infer_schema(tmp_path / "t")


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_are_not_used(tmp_path, version):
    """They may be older than the arrays, and name other codecs."""
    data = np.arange(60.0).reshape(20, 3)
    group = zarr.open_group(tmp_path / "t", mode="w", zarr_format=version)
    group.create_array("x", data=data[:10], chunks=(5, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(tmp_path / "t")
    array = zarr.open_array(tmp_path / "t/x", mode="r+")
    array.append(data[10:])
    schema = ZARR.infer_schema(tmp_path / "t")
    assert schema.samples == 20
    with ZARR.open(tmp_path / "t", schema) as reader:
        np.testing.assert_array_equal(reader.batch(slice(None))["x"], data)


@pytest.mark.parametrize("version", [2, 3])
def test_numbers_are_returned_in_this_machines_byte_order(tmp_path, version):
    data = np.arange(30.0).reshape(10, 3)
    group = zarr.open_group(tmp_path / "t", mode="w", zarr_format=version)
    group.create_array("x", data=data.astype(">f8"), chunks=(5, 3))
    with ZARR.open(tmp_path / "t", ZARR.infer_schema(tmp_path / "t")) as reader:
        arrays = [
            reader.sample(4)["x"],
            reader.native(slice(4, 5))["x"][0],
            reader.batch(slice(4, 5))["x"][0],
        ]
    for one in arrays:
        assert one.dtype == np.float64
        assert one.dtype.isnative
        np.testing.assert_array_equal(one, data[4])


def test_an_array_that_was_hardly_written_is_refused(tmp_path):
    zarr.create_array(tmp_path / "t", shape=(10**9, 128), chunks=(1000, 128), dtype="f4")
    with refused_as("not-stored", path=tmp_path / "t", expected=has("512,000,000,000")):
        ZARR.infer_schema(tmp_path / "t")


@pytest.mark.parametrize(
    ("extent", "shards"),
    [(0, None), (10**400, None), (3 << 30, (8, 3))],  # of the first two, zarr may return memory as it was
    ids=["none", "huge", "more than a shard can index"],
)
def test_chunks_of_an_impossible_size_are_refused(tmp_path, extent, shards):
    path = tmp_path / "t"
    zarr.create_array(path, data=np.ones((8, 3), np.uint8), chunks=(8, 3), shards=shards)
    described = json.loads((path / "zarr.json").read_text())
    described["chunk_grid"]["configuration"]["chunk_shape"][1] = extent
    (path / "zarr.json").write_text(json.dumps(described))
    with pytest.raises(CorruptArtifact) as caught:  # zarr 3.4 takes 0 for 1, and finds chunks of another size
        ZARR.open(path, ZARR.infer_schema(path)).batch(slice(None))
    assert caught.value.kind == "invalid-chunks" or not extent


def test_a_sample_that_is_too_large_for_memory_is_refused(tmp_path):
    zarr.create_array(tmp_path / "t", shape=(1, 10**10), chunks=(1, 1000), dtype="f4")
    with refused_as("sample-too-large", found="38,146 MiB"):
        ZARR.infer_schema(tmp_path / "t")
    about = tmp_path / "t" / "zarr.json"
    about.write_text(about.read_text().replace(str(10**10), str(10**400)))
    with refused_as("sample-too-large"):
        ZARR.infer_schema(tmp_path / "t")


def test_metadata_behind_a_link_are_refused(tmp_path):
    written_by_zarr(tmp_path / "t")
    file = tmp_path / "t/train/label/zarr.json"
    file.rename(tmp_path / "elsewhere.json")
    file.symlink_to(tmp_path / "elsewhere.json")
    with refused_as("link", path=file):
        ZARR.infer_schema(tmp_path / "t")


def test_a_shard_index_beyond_the_file_is_corrupt(tmp_path):
    import google_crc32c

    artifact = store(formats.parse("zarr:chunk_bytes=100,shard_bytes=300"), tmp_path / "a", SCHEMA)
    shard = artifact.path / "signal/c/0/0/0"
    index = struct.pack("<6Q", 0, 1 << 40, 80, 80, 160, 80)
    content = shard.read_bytes()[: -len(index) - 4] + index
    shard.write_bytes(content + struct.pack("<I", google_crc32c.value(index)))
    with artifact.open() as reader, refused_as("damaged-index", path=shard):
        reader.placement()


def test_zarr_refuses_a_truncated_blosc_chunk_instead_of_reading_past_its_end(tmp_path):
    path, format = tmp_path / "d", formats.parse("zarr:codec=blosc")
    store(format, path, SCHEMA)
    arrays, _ = reader.open_arrays(path)
    for name, array in arrays.items():
        chunk = max((path / name).rglob("c/**/*"), key=lambda one: one.is_file() and one.stat().st_size)
        os.truncate(chunk, chunk.stat().st_size // 2)
        with pytest.raises((ValueError, CorruptArtifact)):
            array[:]


def test_attributes_that_say_what_the_numbers_stand_for_are_told(tmp_path):
    array = zarr.open_group(tmp_path / "t", mode="w").create_array("x", data=np.arange(9, dtype="i2"))
    array.attrs.update({"scale_factor": 0.5, "add_offset": 3.0, "units": "K"})
    form = formats.get("zarr")
    told = [one.values for one in form.notes(tmp_path / "t", form.infer_schema(tmp_path / "t"))]
    assert told == [{"field": "x", "scale_factor": "0.5", "add_offset": "3.0"}]
