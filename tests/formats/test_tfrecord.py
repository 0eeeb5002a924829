"""Format tfrecord: other libraries read and write the same files; damaged files are refused."""

import json
import struct

import crc32c
import numpy as np
import pytest
from kinds import has, refused_as
from own_library import loaded, run
from ragged_cases import batch_of

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.tfrecord import masked
from iobench.formats import VARIES, Field, Schema
from iobench.testing.cases import SCHEMA, assert_rows, assert_same, files_of, read_all, store

TFRECORD = formats.get("tfrecord")

# The messages of tensorflow/core/example, defined here for protobuf's own library, without TensorFlow.
MESSAGES = """
import sys, struct, glob, numpy as np, crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="tensorflow", syntax="proto3")
def message(name, *fields):
    made = file.message_type.add(name=name)
    for number, (field, kind, label, type_name) in enumerate(fields, 1):
        made.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    return made
message("BytesList", ("value", 12, 3, None))
message("FloatList", ("value", 2, 3, None))
message("Int64List", ("value", 3, 3, None))
lists = ("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")
feature = message("Feature", *[(name, 11, 1, ".tensorflow." + kind) for name, kind in lists])
feature.oneof_decl.add(name="kind")
for field in feature.field: field.oneof_index = 0
features = message("Features", ("feature", 11, 3, ".tensorflow.Features.FeatureEntry"))
entry = features.nested_type.add(name="FeatureEntry")
entry.field.add(name="key", number=1, type=9, label=1)
entry.field.add(name="value", number=2, type=11, label=1, type_name=".tensorflow.Feature")
entry.options.map_entry = True
message("Example", ("features", 11, 1, ".tensorflow.Features"))
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Example = message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
def masked(data):
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
def write(out, example):
    data = example.SerializeToString()
    size = struct.pack("<Q", len(data))
    out.write(size + masked(size) + data + masked(data))
def records(path):
    data = open(path, "rb").read()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert data[8:12] == masked(data[:8]) and data[12 + size : 16 + size] == masked(data[12 : 12 + size])
        yield data[12 : 12 + size]
        data = data[16 + size :]
"""

READ = (
    MESSAGES
    + """
rows = {}
for path in sorted(glob.glob(sys.argv[1] + "/*.tfrecord")):
    for record in records(path):
        for key, feature in Example.FromString(record).features.feature.items():
            (value,) = feature.bytes_list.value
            rows.setdefault(key, []).append(np.frombuffer(value, np.uint8))
np.savez(sys.argv[2], **{key: np.stack(found) for key, found in rows.items()})
"""
)

WRITE = (
    MESSAGES
    + """
with open(sys.argv[1], "wb") as out:
    for row in range(300):
        example = Example()
        feature = example.features.feature
        feature["train/x"].float_list.value.extend((np.arange(6, dtype="float32") + row).tolist())
        feature["label"].int64_list.value.append(row * 37 - 1000)
        feature["pair"].int64_list.value.extend([row, -row])
        feature["raw"].bytes_list.value.append(np.full(4, row, "uint16").tobytes())
        write(out, example)
"""
)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    path = tmp_path_factory.mktemp("others") / "train.tfrecord-00000-of-00001"
    run("google.protobuf", WRITE, path)
    return path


@pytest.mark.parametrize("shard_bytes", [900, 1 << 26])
def test_protobuf_reads_what_we_write(tmp_path, shard_bytes):
    artifact = store(formats.get("tfrecord", shard_bytes=shard_bytes), tmp_path / "a", SCHEMA)
    run("google.protobuf", READ, artifact.path, tmp_path / "read.npz")
    described = json.loads((artifact.path / "schema.json").read_text())
    read = {
        field["name"]: loaded(tmp_path / "read.npz")[field["name"]]
        .view(field["dtype"])
        .reshape(-1, *field["shape"])
        for field in described["fields"]
    }
    assert_rows(read, artifact.source, slice(None))


def test_files_of_protobuf_are_read_in_place(others):
    assert TFRECORD.sniff(others)
    assert TFRECORD.sniff(others.parent)
    with refused_as("fields-needed", path=others, problem=has("raw")) as caught:
        TFRECORD.infer_schema(others)
    for option in ("--field 'train_x=float32[6]'", "--field 'raw=DTYPE[SHAPE]'"):
        assert option in caught.value.hint
    fields = (
        Field("train_x", (2, 3), "float32"),
        Field("label", (), "int64"),
        Field("pair", (2,), "int64"),
        Field("raw", (4,), "uint16"),
    )
    schema = TFRECORD.infer_schema(others.parent, fields)
    assert schema == Schema(300, fields)
    rows = np.array([299, 0, 7, 7, 150])
    with TFRECORD.open(others.parent, schema) as reader:
        batch = reader.batch(rows)
        expected = (np.arange(6, dtype="float32") + rows[:, None].astype("float32")).reshape(-1, 2, 3)
        assert_same(batch["train_x"], expected)
        assert_same(batch["label"], rows * 37 - 1000)
        assert_same(batch["pair"], np.stack([rows, -rows], 1))
        assert_same(batch["raw"], np.repeat(rows[:, None], 4, 1).astype("uint16"))
        assert_same(reader.sample(150)["pair"], np.array([150, -150]))
        assert reader.placement().keys() == {"train_x", "raw"}
        assert {blocks.fields for blocks in reader.blocks()} == {("label",), ("pair",)}


def test_a_feature_of_another_kind_or_length_is_refused_by_name(others):
    for field, cause, expected, found in [
        (Field("raw", (5,), "uint16"), "unequal-shapes", "10 bytes", "8 bytes"),
        (Field("label", (), "float32"), "fields-differ", "float32", "int64"),
        (Field("pair", (), "int64"), "unequal-shapes", "1 numbers", "2 numbers"),
        (Field("other", (), "int64"), "corrupt-artifact", "features other", "raw"),
    ]:
        with refused_as(cause, expected=has(expected), found=has(found)) as caught:
            TFRECORD.infer_schema(others, (field,))
        assert field.name in str(caught.value)


def test_a_feature_that_only_later_records_have_is_not_lost(tmp_path):
    late = 'if row >= 7: feature["pair"]'
    code = WRITE.replace('feature["pair"]', late).replace('feature["raw"]', "if False: feature['raw']")
    run("google.protobuf", code, tmp_path / "train-00000-of-00001")
    assert TFRECORD.sniff(tmp_path)
    with refused_as("fields-differ", match=r"record 7 .* pair"):
        TFRECORD.infer_schema(tmp_path)
    schema = TFRECORD.infer_schema(tmp_path, (Field("label", (), "int64"),))
    assert schema.samples == 300
    (note,) = TFRECORD.notes(tmp_path, schema)
    assert (note.kind, note.values) == ("not-read", {"features": 1})
    assert "train_x" in note.message


WRITE_LISTS = (
    MESSAGES
    + """
with open(sys.argv[1], "wb") as out:
    for row in range(300):
        example = Example()
        feature = example.features.feature
        feature["audio"].float_list.value.extend(np.arange(row % 7, dtype="float32"))
        feature["ids"].int64_list.value.extend([row * 1000 - 7] * (row % 5))
        feature["label"].int64_list.value.append(row)
        feature["text"].bytes_list.value.append(b"x" * (row % 3))
        write(out, example)
"""
)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "a.tfrecord"
    run("google.protobuf", WRITE_LISTS, path)
    return path


def test_lists_of_several_lengths_are_samples_of_several_lengths(lists):
    with refused_as("fields-needed") as caught:
        TFRECORD.infer_schema(lists)
    for option in ("--field 'audio=float32[*]'", "--field 'ids=int64[*]'", "--field 'text=DTYPE[*]'"):
        assert option in caught.value.hint
    fields = (
        Field("audio", (VARIES,), "float32"),
        Field("ids", (VARIES,), "int64"),
        Field("label", (), "int64"),
        Field("text", (VARIES,), "uint8"),
    )
    schema = TFRECORD.infer_schema(lists, fields)
    lengths = {name: np.arange(300) % size for name, size in (("audio", 7), ("ids", 5), ("text", 3))}
    assert schema == Schema(300, fields, totals={name: int(array.sum()) for name, array in lengths.items()})
    rows = np.array([299, 0, 13, 13, 7])
    with TFRECORD.open(lists, schema) as reader:
        batch = reader.batch(rows)
        assert_same(batch["audio"].values, np.concatenate([np.arange(row % 7) for row in rows]).astype("f4"))
        assert_same(
            batch["ids"].values, np.concatenate([[row * 1000 - 7] * (row % 5) for row in rows]).astype(int)
        )
        assert_same(batch["label"], rows)
        assert_same(np.diff(batch["text"].offsets), rows % 3)
        assert_same(reader.sample(13)["ids"], np.full(3, 12_993))
        assert reader.placement().keys() == {"audio", "text"}


def test_a_list_of_half_samples_is_refused(lists):
    for field in (Field("audio", (VARIES, 2), "float32"), Field("ids", (VARIES, 2), "int64")):
        with refused_as("unequal-shapes", expected=has("a multiple of")):
            TFRECORD.infer_schema(lists, (field,))


def test_protobuf_reads_samples_of_several_lengths(tmp_path):
    schema, batch = batch_of([3, 0, 500, 1])
    formats.get("tfrecord", shard_bytes=900).write(tmp_path / "a", schema, [batch])
    assert len(list((tmp_path / "a").glob("*.tfrecord"))) > 1
    run(
        "google.protobuf",
        READ.replace("np.stack(found)", "np.concatenate(found)"),
        tmp_path / "a",
        tmp_path / "read.npz",
    )
    read = loaded(tmp_path / "read.npz")
    for name in ("tokens", "audio"):
        assert_same(read[name].view(batch[name].values.dtype), batch[name].values.reshape(-1))


@pytest.mark.parametrize("names", [("tokens",), ("tokens", "label")])
def test_a_changed_sample_of_any_length_is_detected(tmp_path, names):
    schema, batch = batch_of([3, 0, 500, 1])
    schema = schema.chosen(names)
    TFRECORD.write(tmp_path / "a", schema, [{name: batch[name] for name in names}])
    (file,) = (tmp_path / "a").glob("*.tfrecord")
    stored = bytearray(file.read_bytes())
    stored[stored.index(batch["tokens"].values[3:503].tobytes())] ^= 1
    file.write_bytes(stored)
    with TFRECORD.open(tmp_path / "a", schema) as reader:
        reader.batch(np.array([0, 1, 3]))
        for read in (reader.sample, lambda row: reader.batch([row])):
            with refused_as("wrong-checksum"):
                read(2)


def test_every_flipped_bit_is_detected(tmp_path):
    artifact = store(TFRECORD, tmp_path / "a", SCHEMA)
    (file,) = [path for path in files_of(artifact.path) if path.suffix == ".tfrecord"]
    stored = file.read_bytes()
    for place in range(0, len(stored), 13):
        file.write_bytes(stored[:place] + bytes([stored[place] ^ 1 << place % 8]) + stored[place + 1 :])
        assert read_all(TFRECORD, artifact.path, SCHEMA) is None
    with TFRECORD.open(artifact.path, SCHEMA) as reader, refused_as("wrong-checksum"):
        list(map(reader.sample, range(23)))


def test_a_wrong_length_is_corrupt(tmp_path):
    for size in (1 << 63, 1 << 40, 10**6):
        head = struct.pack("<Q", size)
        (tmp_path / "a.tfrecord").write_bytes(
            head + struct.pack("<I", masked(crc32c.crc32c(head))) + bytes(50)
        )
        with refused_as("truncated", found="62 bytes", expected=has(str(size))):
            TFRECORD.infer_schema(tmp_path / "a.tfrecord")


def record(data):
    size = struct.pack("<Q", len(data))
    return b"".join(part + struct.pack("<I", masked(crc32c.crc32c(part))) for part in (size, data))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\x0a" + b"\xff" * 20,
        b"\x0a\x05hello",
        b"\x0b\x01",
        bytes(100),
        b"\x0a\x80\x80",
        b"",
    ],
)
def test_an_invalid_example_is_corrupt(tmp_path, data):
    (tmp_path / "a.tfrecord").write_bytes(record(data))
    with pytest.raises(CorruptArtifact) as error:
        TFRECORD.infer_schema(tmp_path / "a.tfrecord", (Field("x", (), "int8"),))
    assert "\n" not in str(error.value)


def test_a_record_of_a_later_piece_is_named_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.contrib.formats.tfrecord.PIECE", 2)
    five, other = (Schema(count, (Field("x", (width,), "int32"),)) for count, width in ((5, 3), (4, 7)))
    (longer,) = store(TFRECORD, tmp_path / "b", other).path.glob("*.tfrecord")
    folder = store(TFRECORD, tmp_path / "a", five).path
    (folder / "z.tfrecord").write_bytes(longer.read_bytes())
    with refused_as("unequal-shapes", match="x of sample 5 has"):
        TFRECORD.infer_schema(folder, five.fields)
