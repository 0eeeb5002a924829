"""Format recordio: MXNet reads and writes the same files; magic words in the data; damaged files."""

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import has, refused_as
from own_library import loaded, run
from ragged_cases import BatchSource, assert_reads, samples

import iobench
from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.formats import Field, Ragged, Schema
from iobench.testing.cases import SCHEMA, StoredArtifact, assert_rows, assert_same, read_all, store
from iobench.testing.placements import assert_placements

RECORDIO = formats.get("recordio")
MAGIC = 0xCED7230A


MAGIC_ROWS = [[], [0], [8], [3, 4], [0, 1, 2, 3, 4, 5, 6, 7, 8], []]


READ = """
import json, sys, numpy as np
from mxnet import recordio
opened = recordio.MXIndexedRecordIO(sys.argv[1] + "/data.idx", sys.argv[1] + "/data.rec", "r")
in_order = recordio.MXRecordIO(sys.argv[1] + "/data.rec", "r")
fields = json.load(open(sys.argv[1] + "/schema.json"))["fields"]
ragged = [field for field in fields if field["shape"][:1] == [-1]]
read = {}
for row in opened.keys:
    header, data = recordio.unpack(opened.read_idx(row))
    assert header.id == row
    assert recordio.unpack(in_order.read())[1] == data
    at = 0
    def take(dtype, count):
        global at
        values = np.frombuffer(data, dtype, count, at)
        at += values.nbytes
        return values
    for field in fields:
        if field not in ragged:
            read[f"{field['name']}-{row}"] = take(field["dtype"], int(np.prod(field["shape"])))
    for field, length in zip(ragged, take("<i8", len(ragged))):
        read[f"{field['name']}-{row}"] = take(field["dtype"], length * int(np.prod(field["shape"][1:])))
    assert at == len(data)
np.savez(sys.argv[2], **read)
"""

WRITE = """
import struct, sys, numpy as np
from mxnet import recordio
np.int = int
magic = struct.pack("<I", 0xCED7230A)
labels = {
    "one": lambda row: row / 2,
    "many": lambda row: [row, -row, 0.5],
    "ragged": lambda row: [float(row)] * (row % 3) or row / 2,
}
for name, label in labels.items():
    for bad in (99, 7):
        path = f"{sys.argv[1]}/{name}-{bad}"
        out = recordio.MXIndexedRecordIO(f"{path}.idx", f"{path}.rec", "w")
        for row in range(20):
            data = np.full(row if name == "ragged" else 6, row, "int16").tobytes()
            if row == bad:
                data = data[:4] + magic + data[8:]
            out.write_idx(row, recordio.pack(recordio.IRHeader(0, label(row), row, 0), data))
        out.close()
"""


def with_magic(tmp_path, rows=MAGIC_ROWS):
    """Write samples of nine words; `rows` lists the positions of the magic word in each sample."""
    schema = Schema(len(rows), (Field("x", (9,), "uint32"), Field("odd", (3,), "uint8")))
    x = np.arange(9 * len(rows), dtype=np.uint32).reshape(-1, 9)
    for row, places in enumerate(rows):
        x[row, places] = MAGIC
    source = {"x": x, "odd": np.zeros((len(rows), 3), np.uint8)}
    tmp_path.mkdir(exist_ok=True)
    RECORDIO.write(tmp_path / "a", schema, [source])
    return StoredArtifact(RECORDIO, tmp_path / "a", schema, source)


def test_parts_of_a_record_are_joined(tmp_path):
    artifact = with_magic(tmp_path)
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
        assert_rows(reader.sample(4), artifact.source, 4)
        assert not reader.placement()
        assert_placements(reader, artifact.source)
    with with_magic(tmp_path / "none", [[], []]).open() as reader:
        assert reader.placement().keys() == {"x", "odd"}
        assert not reader.blocks()


def test_parts_that_do_not_fit_together_are_corrupt(tmp_path):
    artifact = with_magic(tmp_path)
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
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs")
    run("mxnet", WRITE, path)
    return path


@pytest.mark.parametrize("bad", [99, 7], ids=["clean", "magic"])
@pytest.mark.parametrize(
    ("name", "label", "x"), [("one", (), (6,)), ("many", (3,), (6,)), ("ragged", (-1,), (-1,))]
)
def test_files_of_mxnet_are_read_in_place(theirs, name, bad, label, x):
    file, fields = theirs / f"{name}-{bad}.rec", (Field("x", x, "int16"), Field("label", label, "float32"))
    assert RECORDIO.sniff(file)
    schema = RECORDIO.infer_schema(file, fields)
    totals = {"x": 190, "label": 7 * 1 + 7 * 1 + 6 * 2} if name == "ragged" else {}
    assert schema == Schema(20, fields, totals=totals)
    with RECORDIO.open(file, schema) as reader:
        assert bool(reader.placement()) == (bad == 99)
        for row in (19, 0, 7, 7, 3):
            expected = np.full(row if name == "ragged" else 6, row, "int16")
            if row == bad:
                expected[2:4] = np.frombuffer(struct.pack("<I", MAGIC), "int16")
            labels = {"one": row / 2, "many": [row, -row, 0.5], "ragged": [row] * (row % 3) or [row / 2]}
            sample, batch = reader.sample(row), reader.batch(np.array([row]))["label"]
            assert_same(sample["x"], expected)
            assert_same(sample["label"], np.array(labels[name], "float32"))
            assert_same(getattr(batch, "values", batch).reshape(-1), sample["label"].reshape(-1))


@pytest.mark.parametrize(
    ("fields", "cause", "found"),
    [
        ((), "fields-needed", None),
        ((Field("x", (7,), "int16"),), "unequal-shapes", "12 bytes"),
        ((Field("x", (-1, 5), "int16"),), "unequal-shapes", "12 bytes"),
        ((Field("x", (6,), "int16"), Field("y", (), "int8")), "too-many-arrays", "x, y"),
        ((Field("label", (2,), "float32"),), "unequal-shapes", "4 bytes"),
        ((Field("label", (), "int32"),), "fields-differ", "float32"),
    ],
    ids=range(6),
)
def test_fields_that_do_not_match_the_records_are_refused_by_name(tmp_path, fields, cause, found):
    data = struct.pack("<IfQQ", 0, 1.0, 0, 0) + bytes(12)
    (tmp_path / "one.rec").write_bytes(struct.pack("<II", MAGIC, len(data)) + data)
    with refused_as(cause, path=tmp_path / "one.rec", found=found) as caught:
        RECORDIO.infer_schema(tmp_path / "one.rec", fields)
    if cause == "fields-needed":
        assert "--field" in caught.value.hint
    if cause == "unequal-shapes":
        assert "sample 0" in caught.value.problem
        assert fields[0].typed in caught.value.expected
        assert "pad" in caught.value.hint


@pytest.mark.parametrize("piece", [2, 1 << 16])
def test_a_wrong_index_is_corrupt(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("iobench.contrib.formats.recordio.PIECE", piece)
    artifact = store(RECORDIO, tmp_path / "a", SCHEMA)
    index = artifact.path / "data.idx"
    lines = index.read_text().splitlines()
    with artifact.open() as reader:
        assert_rows(reader.batch(slice(None)), artifact.source, slice(None))
    others = ([*lines, "23\t9"], ["0\t4", *lines[1:]], [*lines[:-1], f"{lines[-1]}0"], [*lines, lines[-1]])
    for changed in (lines[::-1], lines[:-1], *others):
        index.write_text("\n".join(changed) + "\n")
        with refused_as("invalid-index", path=index), artifact.open() as reader:
            reader.batch(slice(None))


@pytest.mark.parametrize(("labels", "more", "found"), [(0, 0, None), (2, 8, "8 bytes"), (0, 4, "16 bytes")])
def test_records_of_others_are_listed_piece_by_piece(tmp_path, monkeypatch, labels, more, found):
    monkeypatch.setattr("iobench.contrib.formats.recordio.PIECE", 2)
    datas = [struct.pack("<IfQQ", 0, 1.0, row, 0) + bytes(12) for row in range(5)]
    datas.append(struct.pack("<IfQQ", labels, 1.0, 5, 0) + bytes(12 + more))
    file, fields = tmp_path / "one.rec", (Field("label", (), "float32"), Field("x", (6,), "int16"))
    file.write_bytes(b"".join(struct.pack("<II", MAGIC, len(data)) + data for data in datas))
    if found is None:
        assert RECORDIO.infer_schema(file, fields).samples == 6
        return
    with refused_as("unequal-shapes", problem=has("sample 5 "), found=found):
        RECORDIO.infer_schema(file, fields)


WORDS, LABEL, ODD = Field("words", (-1,), "uint32"), Field("label", (), "int64"), Field("odd", (-1,), "uint8")


def ragged_batch(rows, label=0):
    """Return schema and batch of samples with these words, and a byte per word and one more."""
    words = Ragged.of([np.array(row, np.uint32) for row in rows], (), "uint32")
    odd = Ragged.of([np.full(len(row) + 1, 10, np.uint8) for row in rows], (), "uint8")
    batch = {"words": words, "label": np.full(len(rows), label, np.int64), "odd": odd}
    totals = {"words": len(words.values), "odd": len(odd.values)}
    return Schema(len(rows), (WORDS, LABEL, ODD), totals=totals), batch


magic_words = st.lists(st.sampled_from([MAGIC, 0, MAGIC >> 8, 7]), max_size=9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(magic_words, min_size=1, max_size=6).filter(any),
    st.sampled_from([0, MAGIC, (MAGIC - (1 << 32)) << 32]),
)
@example([[], [MAGIC], [MAGIC] * 70_000, [5] * 300_000, []], MAGIC)
def test_samples_of_any_length_with_the_magic_word_in_any_place_are_read(tmp_path_factory, rows, label):
    path = tmp_path_factory.mktemp("ragged") / "a"
    schema, source = ragged_batch(rows, label)
    RECORDIO.write(path, schema, [source])
    with RECORDIO.open(path, schema) as reader:
        assert_reads(reader, source, slice(None), np.array([len(rows) - 1, 0, 0]))
        assert not reader.placement() or not (label or any(MAGIC in row for row in rows))


@pytest.mark.parametrize("word", [MAGIC, 7])
def test_a_stream_of_samples_with_the_magic_word(tmp_path, word):
    schema, source = ragged_batch([[1] * n + [word] * (n % 3) for n in range(50)], label=word)
    iobench.prepare(BatchSource(schema, source), ["recordio"], data_dir=tmp_path, name="words")
    for number, batch in enumerate(iobench.StreamLoader(tmp_path / "words", format="recordio", batch_size=8)):
        some = slice(8 * number, 8 * number + 8)
        for name in ("words", "odd"):
            read = Ragged(batch[name].values.numpy(), batch[name].offsets.numpy())
            assert samples(read) == samples(source[name][some])
        assert_same(batch["label"].numpy(), source["label"][some])


def of_any_length(tmp_path):
    schema, source = ragged_batch([[3], [], [MAGIC, 1, MAGIC], [5] * 70_000], label=MAGIC)
    RECORDIO.write(tmp_path / "a", schema, [source])
    return StoredArtifact(RECORDIO, tmp_path / "a", schema, source)


@pytest.mark.parametrize(
    "made", [lambda path: store(RECORDIO, path / "a", SCHEMA), with_magic, of_any_length], ids=range(3)
)
def test_mxnet_reads_what_we_write(tmp_path, made):
    artifact = made(tmp_path)
    run("mxnet", READ, artifact.path, tmp_path / "read.npz")
    read = loaded(tmp_path / "read.npz")
    for name, values in artifact.source.items():
        rows = samples(values) if isinstance(values, Ragged) else [one.tobytes() for one in values]
        assert [read[f"{name}-{row}"].tobytes() for row in range(artifact.schema.samples)] == rows


@pytest.mark.parametrize("record", [0, 3])
@pytest.mark.parametrize("field", [0, 1])
@pytest.mark.parametrize("length", [-1, 0, 4, 1 << 40, (1 << 62) + 2])
def test_lengths_that_do_not_add_up_to_the_record_are_refused_by_its_number(
    tmp_path, monkeypatch, record, field, length
):
    monkeypatch.setattr("iobench.contrib.formats.recordio.PIECE", 2)
    schema, source = ragged_batch([[1, 2]] * 4)
    RECORDIO.write(tmp_path / "a", schema, [source])
    file = tmp_path / "a" / "data.rec"
    with RECORDIO.open(tmp_path / "a", schema) as reader:
        places = reader.placement()["label"].locate(np.arange(4))[1]
    stored = bytearray(file.read_bytes())
    at = int(places[record]) + 8 * (1 + field)
    stored[at : at + 8] = struct.pack("<q", length)
    file.write_bytes(stored)
    with RECORDIO.open(tmp_path / "a", schema) as reader, pytest.raises(CorruptArtifact) as caught:
        reader.batch(slice(None))
    assert f"record {record} " in caught.value.expected
    assert caught.value.path == str(file)


def test_a_record_without_room_for_its_lengths_is_refused_by_its_number(tmp_path):
    schema, source = ragged_batch([[1, 2]] * 3)
    RECORDIO.write(tmp_path / "a", schema, [source])
    file, data = tmp_path / "a" / "data.rec", struct.pack("<IfQQ", 0, 0.0, 1, 0) + bytes(20)
    stored = file.read_bytes()
    size = len(stored) // 3
    short = struct.pack("<II", MAGIC, len(data)) + data
    file.write_bytes(stored[:size] + short + stored[2 * size :])
    (tmp_path / "a" / "data.idx").write_text(f"0\t0\n1\t{size}\n2\t{size + len(short)}\n")
    refused = refused_as("truncated", path=file)
    with RECORDIO.open(tmp_path / "a", schema) as reader, refused as caught:
        reader.batch(slice(None))
    assert "record 1 " in caught.value.problem


def test_a_sample_too_large_for_a_record_is_refused_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.contrib.formats.recordio.MOST_BYTES", 100)
    schema, source = ragged_batch([[1], [2] * 100])
    with refused_as("sample-too-large", UnsupportedSchema, match="sample 1"):
        RECORDIO.write(tmp_path / "a", schema, [source])


@pytest.mark.parametrize("data", [bytes(20), struct.pack("<IfQQ", 5, 1.0, 0, 0) + bytes(8)])
def test_a_record_of_others_without_room_for_its_labels_is_refused_by_its_number(tmp_path, data):
    whole = struct.pack("<IfQQ", 0, 1.0, 0, 0) + bytes(8)
    file = tmp_path / "one.rec"
    file.write_bytes(b"".join(struct.pack("<II", MAGIC, len(one)) + one for one in (whole, data)))
    for field in (Field("x", (-1,), "uint8"), Field("label", (-1,), "float32")):
        with refused_as("truncated", path=file, problem=has("record 1 ")):
            RECORDIO.infer_schema(file, (field,))
