"""Format recordio: MXNet reads and writes the same files; magic words in the data; damaged files."""

import json
import struct

import numpy as np
import pytest
from kinds import kind
from own_library import loaded, run

from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.formats import Field, Schema
from iobench.testing.cases import SCHEMA, StoredArtifact, assert_rows, assert_same, read_all, store
from iobench.testing.placements import assert_placements

RECORDIO = formats.get("recordio")
MAGIC = 0xCED7230A

READ = """
import sys, numpy as np
from mxnet import recordio
opened = recordio.MXIndexedRecordIO(sys.argv[1] + "/data.idx", sys.argv[1] + "/data.rec", "r")
pairs = [recordio.unpack(opened.read_idx(key)) for key in opened.keys]
in_order = recordio.MXRecordIO(sys.argv[1] + "/data.rec", "r")
assert [recordio.unpack(in_order.read())[1] for _ in pairs] == [data for _, data in pairs]
data = np.stack([np.frombuffer(data, np.uint8) for _, data in pairs])
np.savez(sys.argv[2], data=data, ids=[header.id for header, _ in pairs])
"""

WRITE = """
import struct, sys, numpy as np
from mxnet import recordio
np.int = int
magic = struct.pack("<I", 0xCED7230A)
for name, label, bad in [("one", lambda row: row / 2, 99), ("many", lambda row: [row, -row, 0.5], 7)]:
    out = recordio.MXIndexedRecordIO(f"{sys.argv[1]}/{name}.idx", f"{sys.argv[1]}/{name}.rec", "w")
    for row in range(20):
        data = np.full(6, row, "int16").tobytes()
        if row == bad:
            data = data[:4] + magic + data[8:]
        out.write_idx(row, recordio.pack(recordio.IRHeader(0, label(row), row, 0), data))
    out.close()
"""


def fields_of(path, data):
    """Return the fields of records as another program reads them, by the description in schema.json."""
    fields, at = {}, 0
    for field in json.loads((path / "schema.json").read_text())["fields"]:
        width = int(np.prod(field["shape"])) * np.dtype(field["dtype"]).itemsize
        raw = np.ascontiguousarray(data[:, at : at + width])
        fields[field["name"]] = raw.view(field["dtype"]).reshape(-1, *field["shape"])
        at += width
    return fields


def with_magic(tmp_path, rows):
    """Write samples of nine words; `rows` lists the positions of the magic word in each sample."""
    schema = Schema(len(rows), (Field("x", (9,), "uint32"), Field("odd", (3,), "uint8")))
    x = np.arange(9 * len(rows), dtype=np.uint32).reshape(-1, 9)
    for row, places in enumerate(rows):
        x[row, places] = MAGIC
    source = {"x": x, "odd": np.zeros((len(rows), 3), np.uint8)}
    tmp_path.mkdir(exist_ok=True)
    RECORDIO.write(tmp_path / "a", schema, [source])
    return StoredArtifact(RECORDIO, tmp_path / "a", schema, source)


MAGIC_ROWS = [[], [0], [8], [3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8], []]


def test_mxnet_reads_what_we_write(tmp_path):
    artifact = store(RECORDIO, tmp_path / "a", SCHEMA)
    run("mxnet", READ, artifact.path, tmp_path / "read.npz")
    read = loaded(tmp_path / "read.npz")
    assert read["ids"].tolist() == list(range(23))
    assert_rows(fields_of(artifact.path, read["data"]), artifact.source, slice(None))


def test_mxnet_reads_records_that_contain_the_magic_word(tmp_path):
    artifact = with_magic(tmp_path, MAGIC_ROWS)
    run("mxnet", READ, artifact.path, tmp_path / "read.npz")
    read = fields_of(artifact.path, loaded(tmp_path / "read.npz")["data"])
    assert_rows(read, artifact.source, slice(None))


def test_parts_of_a_record_are_joined(tmp_path):
    artifact = with_magic(tmp_path, MAGIC_ROWS)
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        assert_rows(reader.sample(4), artifact.source, 4)
        assert not reader.placement()
        assert_placements(reader, artifact.source)
    with with_magic(tmp_path / "none", [[], []]).open() as reader:
        assert reader.placement().keys() == {"x", "odd"}
        assert not reader.blocks()


def test_parts_that_do_not_fit_together_are_corrupt(tmp_path):
    artifact = with_magic(tmp_path, MAGIC_ROWS)
    file = artifact.path / "data.rec"
    stored = file.read_bytes()
    words = np.frombuffer(stored, "<u4")
    for place in (np.flatnonzero(words == MAGIC) * 4 + 7).tolist():  # the continuation, in the highest bits
        for flag in range(8):
            changed = stored[:place] + bytes([stored[place] & 31 | flag << 5]) + stored[place + 1 :]
            file.write_bytes(changed)
            if changed != stored:
                assert read_all(RECORDIO, artifact.path, artifact.schema) is None


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    path = tmp_path_factory.mktemp("others")
    run("mxnet", WRITE, path)
    return path


def test_files_of_mxnet_are_read_in_place(others):
    fields = (Field("label", (), "float32"), Field("x", (6,), "int16"))
    assert RECORDIO.sniff(others / "one.rec")
    assert RECORDIO.infer_schema(others / "one.rec", fields) == Schema(20, fields)
    rows = np.array([19, 0, 7, 7])
    with RECORDIO.open(others / "one.rec", Schema(20, fields)) as reader:
        assert reader.placement().keys() == {"label", "x"}
        assert_same(reader.batch(rows)["label"], rows.astype("float32") / 2)
        assert_same(reader.batch(rows)["x"], np.repeat(rows[:, None], 6, 1).astype("int16"))


def test_several_labels_and_a_record_in_parts(others):
    fields = (Field("x", (6,), "int16"), Field("label", (3,), "float32"))
    with RECORDIO.open(others / "many.rec", RECORDIO.infer_schema(others / "many.rec", fields)) as reader:
        assert_same(
            reader.batch(np.array([7, 3]))["label"], np.array([[7, -7, 0.5], [3, -3, 0.5]], "float32")
        )
        expected = np.frombuffer(struct.pack("<hhIhh", 7, 7, MAGIC, 7, 7), "int16")
        assert_same(reader.sample(7)["x"], expected)


@pytest.mark.parametrize(
    ("fields", "cause", "found"),
    [
        ((), "fields-needed", None),
        ((Field("x", (7,), "int16"),), "unequal-shapes", "36 bytes"),
        ((Field("x", (6,), "int16"), Field("y", (), "int8")), "too-many-arrays", "x, y"),
        ((Field("label", (2,), "float32"),), "fields-differ", "1 × float32"),
    ],
    ids=range(4),
)
def test_fields_that_do_not_match_the_records_are_refused_by_name(tmp_path, fields, cause, found):
    data = struct.pack("<IfQQ", 0, 1.0, 0, 0) + bytes(12)
    (tmp_path / "one.rec").write_bytes(struct.pack("<II", MAGIC, len(data)) + data)
    with pytest.raises(CorruptArtifact, check=kind(cause, path=tmp_path / "one.rec")) as caught:
        RECORDIO.infer_schema(tmp_path / "one.rec", fields)
    assert caught.value.found == found
    if cause == "fields-needed":
        assert "--field" in caught.value.hint
    if cause == "unequal-shapes":
        assert "record 0" in caught.value.problem
        assert caught.value.expected == "38 bytes"
        assert "pad" in caught.value.hint


def test_a_wrong_index_is_corrupt(tmp_path):
    artifact = store(RECORDIO, tmp_path / "a", SCHEMA)
    index = artifact.path / "data.idx"
    lines = index.read_text().splitlines()
    for changed in (lines[::-1], lines[:-1], [*lines, "23\t9"], ["0\t4", *lines[1:]]):
        index.write_text("\n".join(changed) + "\n")
        with pytest.raises(CorruptArtifact, check=kind("invalid-index", path=index)):
            artifact.open().batch(slice(None))


def test_samples_too_large_for_a_record_are_refused():
    with pytest.raises(UnsupportedSchema, match=r"536870912.* video", check=kind("sample-too-large")):
        RECORDIO.check_schema(Schema(2, (Field("video", (1 << 29,), "uint8"),)))


@pytest.mark.parametrize("change", ["none", "digit", "line less", "line more"])
def test_an_index_is_compared_to_its_end(tmp_path, monkeypatch, change):
    monkeypatch.setattr("iobench.contrib.formats.recordio.records.PIECE", 2)
    artifact = store(RECORDIO, tmp_path / "a", SCHEMA)
    file = next(path for path in artifact.path.iterdir() if path.suffix == ".idx")
    lines = file.read_text().splitlines(keepends=True)
    if change == "digit":
        lines[-1] = lines[-1].replace("\n", "0\n")
    elif change == "line less":
        lines.pop()
    elif change == "line more":
        lines.append(lines[-1])
    file.write_text("".join(lines))
    if change == "none":
        with artifact.open() as reader:
            assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        return
    with artifact.open() as reader, pytest.raises(CorruptArtifact, check=kind("invalid-index")):
        reader.batch(slice(None))


@pytest.mark.parametrize("change", ["none", "labels", "size"])
def test_records_of_others_are_listed_piece_by_piece(tmp_path, monkeypatch, change):
    monkeypatch.setattr("iobench.contrib.formats.recordio.records.PIECE", 2)
    datas = [struct.pack("<IfQQ", 0, 1.0, row, 0) + bytes(12) for row in range(6)]
    if change == "labels":
        datas[4:] = [struct.pack("<IfQQ", 1, 1.0, row, 0) + bytes(12) for row in (4, 5)]
    elif change == "size":
        datas[5] += bytes(4)
    file, fields = tmp_path / "one.rec", (Field("x", (6,), "int16"),)
    file.write_bytes(b"".join(struct.pack("<II", MAGIC, len(data)) + data for data in datas))
    if change == "none":
        assert RECORDIO.infer_schema(file, fields).samples == 6
        return
    with pytest.raises(CorruptArtifact, check=kind("unequal-shapes")) as caught:
        RECORDIO.infer_schema(file, fields)
    assert caught.value.found == ("0 to 1 labels after the header" if change == "labels" else "40 bytes")
    assert change == "labels" or "record 5 " in caught.value.problem
