"""Format ffcv: FFCV reads and writes the same betons; damaged betons are refused."""

import struct

import numpy as np
import pytest
from kinds import kind as has_kind
from own_library import loaded, run
from ragged_cases import batch_of, samples

from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.contrib.formats.ffcv import writer
from iobench.formats import Field, Ragged, Schema
from iobench.testing.cases import SCHEMA, assert_rows, assert_same, read_all, store

FFCV = formats.get("ffcv")

READ = """
import sys, numpy as np
from ffcv.loader import Loader, OrderOption
order = OrderOption.SEQUENTIAL
loader = Loader(sys.argv[1] + "/data.beton", batch_size=7, num_workers=1, order=order, drop_last=False)
batches = [[np.array(part) for part in batch] for batch in loader]
np.savez(sys.argv[2], **{name: np.concatenate([batch[number] for batch in batches])
                         for number, name in enumerate(loader.reader.field_names)})
"""

READ_RAGGED = """
import sys, numpy as np
from ffcv.loader import Loader, OrderOption
order = OrderOption.SEQUENTIAL
loader = Loader(sys.argv[1] + "/data.beton", batch_size=7, num_workers=1, order=order, drop_last=False,
                os_cache=sys.argv[3] == "os")
names, metadata = list(loader.reader.field_names), loader.reader.metadata
stored = {}
for name in ("tokens", "audio"):
    sizes = metadata["f%d" % names.index(name)]["size"].tolist()
    batches = [np.array(batch[names.index(name)]) for batch in loader]
    rows = [row for batch in batches for row in batch]
    stored[name] = np.concatenate([row[:size] for row, size in zip(rows, sizes, strict=True)])
    stored[name + "_sizes"] = np.array(sizes)
np.savez(sys.argv[2], **stored)
"""

WRITE = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import NDArrayField, IntField, FloatField, BytesField
class Samples:
    def __len__(self): return 500
    def __getitem__(self, row):
        return np.full((3, 100), row, "float32"), row - 7, row / 2, np.full(row % 5 * 2, row % 251, "uint8")
fields = {"x": NDArrayField(np.dtype("float32"), (3, 100)), "label": IntField(), "share": FloatField(),
          "raw": BytesField()}
writer = DatasetWriter(sys.argv[1], fields, num_workers=2, page_size=1 << 21)
writer.from_indexed_dataset(Samples(), chunksize=50)
"""

WRITE_JSON = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import BytesField, JSONField
samples = [(np.zeros(row, "uint8"), {"row": row}) for row in range(4)]
writer = DatasetWriter(sys.argv[1], {"raw": BytesField(), "what": JSONField()}, num_workers=1)
writer.from_indexed_dataset(samples)
"""


def test_ffcv_reads_what_we_write(tmp_path):
    artifact = store(FFCV, tmp_path / "a", SCHEMA)
    run("ffcv", READ, artifact.path, tmp_path / "read.npz")
    batch = loaded(tmp_path / "read.npz")
    assert batch["label"].shape == (23, 1)
    assert_rows(batch | {"label": batch["label"][:, 0]}, artifact.source, slice(None))


@pytest.mark.parametrize("memory", ["os", "process"])
def test_ffcv_reads_samples_of_several_lengths(tmp_path, memory):
    schema, batch = batch_of([3, 0, 1, 9 << 20, 700, 0, 1, 1])
    FFCV.write(tmp_path / "a", schema, [batch])
    run("ffcv", READ_RAGGED, tmp_path / "a", tmp_path / "read.npz", memory)
    read = loaded(tmp_path / "read.npz")
    for name in ("tokens", "audio"):
        one = schema.field(name)
        assert read[name].tobytes() == batch[name].values.tobytes()
        assert (read[name + "_sizes"] == np.diff(batch[name].offsets) * one.sample_bytes).all()


def test_files_of_ffcv_are_read_in_place(tmp_path):
    path = tmp_path / "train.beton"
    run("ffcv", WRITE, path)
    assert FFCV.sniff(path)
    fields = (
        Field("x", (3, 100), "float32"),
        Field("label", (), "int64"),
        Field("share", (), "float64"),
        Field("raw", (-1,), "uint8"),
    )
    lengths = np.arange(500) % 5 * 2
    schema = Schema(500, fields, totals={"raw": int(lengths.sum())})
    assert FFCV.infer_schema(path) == schema
    rows = np.array([499, 0, 7, 7])
    with FFCV.open(path, schema) as reader:
        batch = reader.batch(rows)
        assert_same(batch["x"], np.broadcast_to(rows[:, None, None], (4, 3, 100)).astype("float32"))
        assert_same(batch["label"], rows - 7)
        assert_same(batch["share"], rows / 2)
        assert samples(batch["raw"]) == [bytes([row % 251] * lengths[row]) for row in rows]
        assert reader.placement().keys() == {"x", "label", "share", "raw"}


def test_bytes_are_read_as_the_field_that_is_named(tmp_path):
    path = tmp_path / "train.beton"
    run("ffcv", WRITE, path)
    fields = (Field("raw", (-1, 2), "int8"), Field("share", (), "float64"))
    assert FFCV.infer_schema(path, fields).totals == {"raw": 500 * 2}
    odd = (Field("raw", (-1,), "float32"),)
    with pytest.raises(CorruptArtifact, check=has_kind("unequal-shapes", path=path)) as caught:
        FFCV.infer_schema(path, odd)
    assert "raw of sample 1" in caught.value.problem


def test_json_is_read_as_bytes_where_it_is_named(tmp_path):
    path = tmp_path / "train.beton"
    run("ffcv", WRITE_JSON, path)
    with pytest.raises(CorruptArtifact, check=has_kind("encoded-values", path=path)) as caught:
        FFCV.infer_schema(path)
    assert "--field 'what=uint8[*]'" in caught.value.hint
    schema = FFCV.infer_schema(path, (Field("what", (-1,), "uint8"),))
    with FFCV.open(path, schema) as reader:
        assert samples(reader.batch(slice(3, 4))["what"]) == [b'{"row": 3}\0']


@pytest.fixture
def artifact(tmp_path):
    schema = Schema(5, (Field("x", (3,), "float32"), Field("n", (), "int64")))
    return store(FFCV, tmp_path / "a", schema)


HALVES = (slice(0, 2), slice(2, None))
HEADER, WORDS, PAGE = 24, 24 + 2 * 1041, 8 << 20
CORRUPTIONS = {
    "version": (0, "<H", 1),
    "fields": (2, "<H", 60000),
    "no fields": (2, "<H", 0),
    "samples": (8, "<Q", 1 << 60),
    "table before the data": (16, "<Q", 100),
    "table past the end": (16, "<Q", 1 << 40),
    "offset past the end": (WORDS, "<Q", 1 << 62),
    "negative offset": (WORDS, "<q", -8),
    "offset of another field": (WORDS, "<Q", WORDS),
    "overlapping": (2 * PAGE + 8, "<Q", PAGE + 4),
    "longer": (2 * PAGE + 16, "<Q", 1 << 63),
    "type": (HEADER, "<B", 2),
    "axes": (HEADER + 17, "<Q", 1 << 63),
    "dtype": (HEADER + 17 + 264, "<4s", b"[[[["),
}


@pytest.mark.parametrize(("place", "code", "value"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corrupted_beton_is_a_one_line_error(artifact, place, code, value):
    with open(artifact.path / "data.beton", "r+b") as file:
        file.seek(place)
        file.write(struct.pack(code, value))
    with pytest.raises(CorruptArtifact) as error:
        FFCV.open(artifact.path, artifact.schema).batch(slice(None))
    assert "\n" not in str(error.value)


RAGGED = Schema(3, (Field("x", (-1,), "uint16"), Field("n", (), "int64")), totals={"x": 5})
# of sample 2: (of the metadata or the table, bytes in it, value)
LIES = {
    "offset past the end": [("metadata", 48, 1 << 62)],
    "bytes past the end": [("metadata", 56, 1 << 62)],
    "offset of another sample": [("metadata", 48, PAGE)],
    "fewer bytes": [("metadata", 56, 4)],
    "bytes in the table": [("table", 64, 1 << 63)],
    "offset past the end, in both": [("metadata", 48, 1 << 62), ("table", 56, 1 << 62)],
    "bytes past the end, in both": [("metadata", 56, 1 << 40), ("table", 64, 1 << 40)],
    "overlapping, in both": [("metadata", 48, PAGE + 2), ("table", 56, PAGE + 2)],
    "in the metadata, in both": [("metadata", 48, 2), ("table", 56, 2)],
    "half an element, in both": [("metadata", 56, 5), ("table", 64, 5)],
}


@pytest.mark.parametrize("lies", LIES.values(), ids=LIES)
def test_a_pointer_that_lies_is_named_by_its_sample(tmp_path, lies):
    batch = {"x": Ragged(np.arange(5, dtype="uint16"), np.array([0, 2, 2, 5])), "n": np.arange(3)}
    FFCV.write(tmp_path / "a", RAGGED, [batch])
    begins = {"metadata": WORDS, "table": (tmp_path / "a" / "data.beton").stat().st_size - 3 * 24}
    with open(tmp_path / "a" / "data.beton", "r+b") as file:
        for where, place, value in lies:
            file.seek(begins[where] + place)
            file.write(struct.pack("<Q", value))
    with FFCV.open(tmp_path / "a", RAGGED) as reader:
        with pytest.raises(CorruptArtifact, match="of sample 2") as error:
            reader.batch(slice(0, 1))
        assert "\n" not in str(error.value)


def test_a_table_with_two_arrays_of_one_sample_is_refused(tmp_path):
    batch = {"x": Ragged(np.arange(5, dtype="uint16"), np.array([0, 2, 2, 5])), "n": np.arange(3)}
    FFCV.write(tmp_path / "a", RAGGED, [batch])
    with open(tmp_path / "a" / "data.beton", "r+b") as file:
        file.seek(-24, 2)
        file.write(struct.pack("<Q", 1))
    with FFCV.open(tmp_path / "a", RAGGED) as reader, pytest.raises(CorruptArtifact, match="of sample 1"):
        reader.batch(slice(0, 1))


def test_a_sample_lies_within_a_page_of_the_size_that_the_largest_needs(tmp_path):
    schema, batch = batch_of([5, 9 << 20, 3 << 20, 1, 0, 5 << 20, 3])
    FFCV.write(tmp_path / "a", schema, [{n: a[part] for n, a in batch.items()} for part in HALVES])
    page = struct.unpack_from("<I", (tmp_path / "a" / "data.beton").read_bytes()[:8], 4)[0]
    assert page == 128 << 20
    with FFCV.open(tmp_path / "a", schema) as reader:
        places = [reader.placement()[name] for name in ("tokens", "audio")]
        begins = np.minimum(*(place.offset for place in places))
        ends = np.maximum(*(place.offset + place.size for place in places))
        assert (begins // page == (ends - 1) // page).all()
        read = reader.batch(slice(None))
        assert all(samples(read[name]) == samples(batch[name]) for name in ("tokens", "audio"))


def test_a_sample_larger_than_the_largest_page_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MOST_PAGE_BYTES", 300)
    schema, batch = batch_of([1, 60, 3, 3])
    with pytest.raises(UnsupportedSchema, match="sample 2", check=has_kind("sample-too-large")):
        FFCV.write(tmp_path / "a", schema, [{n: a[part] for n, a in batch.items()} for part in HALVES])


def test_several_pages(tmp_path):
    artifact = store(
        FFCV, tmp_path / "a", Schema(11, (Field("x", (3 << 20,), "uint8"), Field("n", (), "int8")))
    )
    assert_rows(read_all(FFCV, artifact.path, artifact.schema), artifact.source, slice(None))


NAMES = {
    "sixteen_letters_": "sixteen_l",
    "sixteen_letters_more": "sixteen_l_2",
    "данные": "f",
    "数据": "f_2",
    "größe": "groe",
    "label": "label",
}


def test_names_that_ffcv_cannot_read_are_stored_as_similar_ones(tmp_path):
    schema = Schema(3, tuple(Field(name, (), "int64") for name in NAMES))
    assert FFCV.renamed(schema) == {name: own for name, own in NAMES.items() if name != own}
    artifact = store(FFCV, tmp_path / "a", schema)
    assert_rows(read_all(FFCV, artifact.path, schema), artifact.source, slice(None))
    inferred = FFCV.infer_schema(artifact.path / "data.beton")
    assert [field.name for field in inferred.fields] == list(NAMES.values())


def test_many_axes_are_refused():
    with pytest.raises(UnsupportedSchema, check=has_kind("too-many-axes", found=32)):
        FFCV.check_schema(Schema(2, (Field("x", (1,) * 32, "int8"),)))
