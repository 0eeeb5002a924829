"""Format mds: MosaicML's library reads and writes the same folders; invalid indices are refused."""

import json
import pickle
import shutil
import struct

import numpy as np
import pytest
from kinds import has, refused_as
from own_library import loaded, run
from ragged_cases import batch_of

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.formats import Chunked, Field, Listed, ListedSpans, Schema
from iobench.testing.cases import SCHEMA, assert_same, files_of, read_all, store
from iobench.testing.corruption import Bomb

MDS = formats.get("mds")


WRITE = """
import sys, numpy as np
from streaming import MDSWriter
columns = {"train/x": "ndarray:float32:3,4", "label": "int", "raw": "bytes", "u": "uint16"}
with MDSWriter(out=sys.argv[1], columns=columns, hashes=["sha1", "xxh3_64"], size_limit=900) as out:
    for row in range(50):
        array = np.arange(12, dtype="float32").reshape(3, 4) + row
        out.write({"train/x": array, "label": row - 9, "raw": array.tobytes(), "u": np.uint16(row)})
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    path = tmp_path_factory.mktemp("others") / "a"
    run("streaming", WRITE, path)
    return path


@pytest.fixture
def artifact(tmp_path):
    return store(formats.get("mds", shard_bytes=900), tmp_path / "a", SCHEMA)


def test_folders_of_streaming_are_read_in_place(others):
    assert MDS.sniff(others)
    fields = (
        Field("train_x", (3, 4), "float32"),
        Field("label", (), "int64"),
        Field("raw", (12,), "float32"),
        Field("u", (), "uint16"),
    )
    assert MDS.infer_schema(others, fields) == Schema(50, fields)
    rows = np.array([49, 0, 7, 7, 23])
    with MDS.open(others, Schema(50, fields)) as reader:
        batch = reader.batch(rows)
        expected = np.arange(12, dtype="float32").reshape(3, 4) + rows[:, None, None].astype("float32")
        assert_same(batch["train_x"], expected)
        assert_same(batch["raw"], expected.reshape(-1, 12))
        assert_same(batch["label"], rows - 9)
        assert_same(batch["u"], rows.astype("uint16"))
        assert all(isinstance(place, Chunked) for place in reader.placement().values())
    with refused_as("fields-needed", problem=has("column raw"), hint=has("--field")):
        MDS.infer_schema(others)


def test_a_flipped_bit_is_detected_by_the_hashes_of_the_index(others, tmp_path):
    folder = shutil.copytree(others, tmp_path / "a")
    shard = folder / "shard.00001.mds"
    stored = bytearray(shard.read_bytes())
    stored[-3] ^= 1
    shard.write_bytes(stored)
    with refused_as("other-content", path=shard, expected=has("sha1")):
        MDS.infer_schema(folder, (Field("label", (), "int64"),))


def encode(path, encodings, rows, version=2):
    """Write a folder of one shard, with columns of these encodings and samples of these bytes."""
    path.mkdir()
    names = [f"c{number}" for number in range(len(encodings))]
    sizes = {"int": 8, "uint8": 1, "ndarray:uint8:2,3": 6}
    config = {
        "format": "mds",
        "version": version,
        "column_names": names,
        "column_encodings": encodings,
        "column_sizes": [sizes.get(encoding) for encoding in encodings],
    }
    edges = 4 * (len(rows) + 2) + np.cumsum([0, *map(len, rows)])
    shard = struct.pack("<I", len(rows)) + edges.astype("<u4").tobytes() + b"".join(rows)
    (path / "shard.00000.mds").write_bytes(shard)
    raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
    index = {"version": version, "shards": [config | {"samples": len(rows), "raw_data": raw}]}
    (path / "index.json").write_text(json.dumps(index))
    return path


def test_fixed_columns_next_to_texts_have_listed_placement(tmp_path):
    texts = [b"a", b"four", b"", b"two"]
    rows = [struct.pack("<I", len(text)) + text + struct.pack("<q", row) for row, text in enumerate(texts)]
    path = encode(tmp_path / "a", ["str", "int"], rows)
    schema = MDS.infer_schema(path, (Field("c1", (), "int64"),))
    with MDS.open(path, schema) as reader:
        assert reader.batch(slice(None))["c1"].tolist() == [0, 1, 2, 3]
        assert isinstance(reader.placement()["c1"], Listed)


REFUSED = {
    "pkl": "encoded-values",
    "ndarray:float32": "unequal-shapes",
    "ndarray": "unequal-shapes",
    "jpeg": "unreadable",
    "jpeg_array": "encoded-values",
    "str": "encoded-values",
}


@pytest.mark.parametrize(("encoding", "cause"), REFUSED.items(), ids=REFUSED)
def test_a_column_without_arrays_of_one_shape_is_refused_by_name(tmp_path, encoding, cause):
    row = pickle.dumps(Bomb(tmp_path / "exploded"))
    path = encode(tmp_path / "a", [encoding], [struct.pack("<I", len(row)) + row])
    with refused_as(cause, problem=has("c0")) as caught:
        MDS.infer_schema(path)
    if encoding != "jpeg":
        assert encoding in caught.value.found
        assert caught.value.hint
    if encoding != "bytes":
        with pytest.raises(CorruptArtifact):
            MDS.infer_schema(path, (Field("c0", (len(row),), "uint8"),))
    assert not (tmp_path / "exploded").exists()


def test_bytes_of_several_lengths_are_refused(tmp_path):
    path = encode(tmp_path / "a", ["bytes"], [struct.pack("<I", n) + bytes(n) for n in (4, 4, 8)])
    with refused_as("unequal-shapes", match="c0", found="8 bytes"):
        MDS.infer_schema(path, (Field("c0", (), "float32"),))


TOKENS = Field("c0", (-1,), "uint16")


def test_bytes_of_several_lengths_are_samples_of_several_lengths(tmp_path):
    texts = [b"", b"\1\0", b"\2\0\3\0\4\0"]
    rows = [struct.pack("<I", len(text)) + text + struct.pack("<q", row) for row, text in enumerate(texts)]
    path = encode(tmp_path / "a", ["bytes", "int"], rows)
    schema = MDS.infer_schema(path, (TOKENS, Field("c1", (), "int64")))
    assert schema.totals == {"c0": 4}
    with MDS.open(path, schema) as reader:
        batch = reader.batch(np.array([2, 0, 1]))
        assert batch["c0"].values.tolist() == [2, 3, 4, 1]
        assert batch["c0"].offsets.tolist() == [0, 3, 3, 4]
        assert batch["c1"].tolist() == [2, 0, 1]
        assert isinstance(reader.placement()["c0"], ListedSpans)


def test_half_an_element_is_refused(tmp_path):
    path = encode(tmp_path / "a", ["bytes"], [struct.pack("<I", n) + bytes(n) for n in (4, 3)])
    with refused_as("unequal-shapes", found="3 bytes", problem=has("c0 of sample 1")):
        MDS.infer_schema(path, (TOKENS,))


READ_BYTES = """
import sys, numpy as np
from streaming import LocalDataset
local = LocalDataset(sys.argv[1])
samples = [np.frombuffer(bytearray(local[row]["tokens"]), "uint16") for row in range(len(local))]
np.savez(sys.argv[2], values=np.concatenate(samples), lengths=np.array(list(map(len, samples))))
"""


def test_streaming_reads_samples_of_several_lengths(tmp_path):
    schema, batch = batch_of([3, 0, 500, 1])
    formats.get("mds", shard_bytes=900).write(tmp_path / "a", schema, [batch])
    assert len(list((tmp_path / "a").glob("*.mds"))) > 1
    run("streaming", READ_BYTES, tmp_path / "a", tmp_path / "read.npz")
    read = loaded(tmp_path / "read.npz")
    assert read["lengths"].tolist() == [3, 0, 500, 1]
    assert_same(read["values"], batch["tokens"].values)


def altered(path, change):
    index = json.loads((path / "index.json").read_text())
    change(index, index["shards"][0])
    (path / "index.json").write_text(json.dumps(index))


INVALID = {
    "above": (
        lambda i, s: s["raw_data"].update(basename="../shard.00000.mds"),
        "outside-folder",
        "../shard.00000.mds",
    ),
    "absolute": (lambda i, s: s["raw_data"].update(basename="/etc/passwd"), "outside-folder", "/etc/passwd"),
    "no name": (lambda i, s: s["raw_data"].update(basename=None), "outside-folder", "None"),
    "missing": (lambda i, s: s["raw_data"].update(basename="shard.9.mds"), "missing-file", "shard.9.mds"),
    "more samples": (lambda i, s: s.update(samples=s["samples"] + 1), "corrupt-artifact", "samples"),
    "negative": (lambda i, s: s.update(samples=-1), "invalid-index", "-1"),
    "huge": (lambda i, s: s.update(samples=1 << 60), "corrupt-artifact", "samples"),
    "version": (lambda i, s: s.update(version=3), "unknown-version", "version 3"),
    "format": (lambda i, s: s.update(format="json"), "unknown-version", "json"),
    "sizes": (lambda i, s: s.update(column_sizes=[1, 1, 1, 1]), "invalid-index", "[1, 1, 1, 1]"),
    "names": (lambda i, s: s.update(column_names=["x"]), "invalid-index", "encoding"),
    "others": (lambda i, s: s.update(column_names=s["column_names"][::-1]), "invalid-index", "columns"),
    "no shards": (lambda i, s: i.update(shards=[]), "invalid-index", "no shards"),
    "no index": (lambda i, s: i.update(shards="many"), "invalid-index", "no shards"),
}


@pytest.mark.parametrize(("change", "cause", "part"), INVALID.values(), ids=INVALID)
def test_an_invalid_index_is_a_one_line_error(artifact, change, cause, part):
    altered(artifact.path, change)
    with refused_as(cause) as error:
        MDS.open(artifact.path, SCHEMA).batch(slice(None))
    assert part in str(error.value)


@pytest.mark.parametrize("variant", ["mds:shard_bytes=900", "litdata:chunk_bytes=900"])
@pytest.mark.parametrize("edge", [-1, 0, 1, 2, 3])  # from the number of samples on
@pytest.mark.parametrize("value", [0, 5, 1 << 31, (1 << 32) - 1])
def test_wrong_offsets_are_corrupt(tmp_path, variant, edge, value):
    artifact = store(formats.parse(variant), tmp_path / "a", SCHEMA)
    shard = next(file for file in files_of(artifact.path) if file.suffix != ".json")
    stored = bytearray(shard.read_bytes())
    stored[4 + 4 * edge : 8 + 4 * edge] = struct.pack("<I", value)
    shard.write_bytes(stored)
    assert read_all(artifact.format, artifact.path, SCHEMA) is None


def test_offsets_that_begin_within_their_table_are_corrupt(artifact):
    shard = files_of(artifact.path)[1]
    stored = bytearray(shard.read_bytes())
    samples, first = struct.unpack_from("<2I", stored)
    np.frombuffer(stored, "<u4", samples + 1, 4)[:] -= first - 4 * samples  # the table has two words more
    shard.write_bytes(stored)
    assert read_all(MDS, artifact.path, SCHEMA) is None
