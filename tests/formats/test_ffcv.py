"""Format ffcv: FFCV reads and writes the same betons; damaged betons are refused."""

import struct

import numpy as np
import pytest
from kinds import kind as has_kind
from own_library import loaded, run

from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema
from iobench.formats import Field, Schema
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

WRITE = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import NDArrayField, IntField, FloatField, BytesField
class Samples:
    def __len__(self): return 500
    def __getitem__(self, row):
        return np.full((3, 100), row, "float32"), row - 7, row / 2, np.zeros(row + 1, "uint8")
fields = {"x": NDArrayField(np.dtype("float32"), (3, 100)), "label": IntField(), "share": FloatField(),
          "raw": BytesField()}
writer = DatasetWriter(sys.argv[1], fields, num_workers=2, page_size=1 << 21)
writer.from_indexed_dataset(Samples(), chunksize=50)
"""


def test_ffcv_reads_what_we_write(tmp_path):
    artifact = store(FFCV, tmp_path / "a", SCHEMA)
    run("ffcv", READ, artifact.path, tmp_path / "read.npz")
    batch = loaded(tmp_path / "read.npz")
    assert batch["label"].shape == (23, 1)
    assert_rows(batch | {"label": batch["label"][:, 0]}, artifact.source, slice(None))


def test_files_of_ffcv_are_read_in_place(tmp_path):
    path = tmp_path / "train.beton"
    run("ffcv", WRITE, path)
    assert FFCV.sniff(path)
    with pytest.raises(CorruptArtifact, check=has_kind("encoded-values", path=path)) as caught:
        FFCV.infer_schema(path)
    assert "field raw" in caught.value.problem
    fields = (Field("share", (), "float64"), Field("x", (3, 100), "float32"), Field("label", (), "int64"))
    assert FFCV.infer_schema(path, fields) == Schema(500, fields)
    rows = np.array([499, 0, 7, 7])
    with FFCV.open(path, Schema(500, fields)) as reader:
        batch = reader.batch(rows)
        assert_same(batch["x"], np.broadcast_to(rows[:, None, None], (4, 3, 100)).astype("float32"))
        assert_same(batch["label"], rows - 7)
        assert_same(batch["share"], rows / 2)
        assert reader.placement().keys() == {"x", "label", "share"}


@pytest.fixture
def artifact(tmp_path):
    schema = Schema(5, (Field("x", (3,), "float32"), Field("n", (), "int64")))
    return store(FFCV, tmp_path / "a", schema)


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
