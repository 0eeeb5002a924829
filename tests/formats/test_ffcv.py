"""Format ffcv, with FFCV itself: what it wrote is read in place, and its loader reads what iobench wrote."""

import struct

import numpy as np
import pytest
from kinds import has, refused_as
from own_library import run
from PIL import Image
from ragged_cases import batch_of, samples
from record_cases import delivered

from iobench import formats
from iobench.base.errors import CorruptArtifact, LoaderFailed, UnsupportedSchema
from iobench.dataset.add import add
from iobench.dataset.opener import Opener
from iobench.formats import VARIES, Field, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing.cases import assert_rows, assert_same, read_all, store

pytest.importorskip("ffcv")
FFCV = formats.get("ffcv")


WRITE = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import NDArrayField, IntField, FloatField, BytesField, JSONField
class Samples:
    def __len__(self): return 500
    def __getitem__(self, row):
        raw = np.full(row % 5 * 2, row % 251, "uint8")
        return np.full((3, 100), row, "float32"), row - 7, row / 2, raw, {"row": int(row)}
fields = {"x": NDArrayField(np.dtype("float32"), (3, 100)), "label": IntField(), "share": FloatField(),
          "raw": BytesField(), "what": JSONField()}
writer = DatasetWriter(sys.argv[1], fields, num_workers=2, page_size=1 << 21)
writer.from_indexed_dataset(Samples(), chunksize=50)
"""

WRITE_IMAGES = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import RGBImageField, IntField
pixels = np.load(sys.argv[2])
samples = [(image[: len(image) - 8 * (row % int(sys.argv[4]))], row) for row, image in enumerate(pixels)]
image = RGBImageField(write_mode=sys.argv[3], smart_threshold=pixels[0].nbytes - 1)
writer = DatasetWriter(sys.argv[1], {"image": image, "label": IntField()}, num_workers=2)
writer.from_indexed_dataset(samples, chunksize=3)
"""

X, LABEL, SHARE = Field("x", (3, 100), "float32"), Field("label", (), "int64"), Field("share", (), "float64")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs") / "train.beton"
    run("ffcv", WRITE, path)
    return path


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    """Smooth images, which JPEG hardly changes, and their file."""
    small = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 3), dtype="uint8")
    resized = [Image.fromarray(one).resize((56, 40), Image.Resampling.BILINEAR) for one in small]
    file = tmp_path_factory.mktemp("pixels") / "pixels.npy"
    np.save(file, np.stack([np.array(one) for one in resized]))
    return file


def test_a_sample_lies_within_a_page(tmp_path):
    schema, batch = batch_of([3, 0, 1, 3 << 20, 700])
    with refused_as("sample-too-large", UnsupportedSchema) as caught:
        FFCV.write(tmp_path / "a", schema, [batch])
    variant = caught.value.hint.split()[-1]
    assert "sample 3" in caught.value.problem
    formats.parse(variant).write(tmp_path / "b", schema, [batch])
    with FFCV.open(tmp_path / "b", schema) as reader:
        read = reader.batch(slice(None))
        assert all(samples(read[name]) == samples(batch[name]) for name in ("tokens", "audio"))


def test_files_of_ffcv_are_read_in_place(theirs):
    assert FFCV.sniff(theirs)
    with refused_as("encoded-values", path=theirs, hint=has("--field 'what=uint8[*]'")):
        FFCV.infer_schema(theirs)
    fields = (X, LABEL, SHARE, Field("raw", (VARIES,), "uint8"), Field("what", (VARIES,), "uint8"))
    schema = FFCV.infer_schema(theirs, fields)
    lengths = np.arange(500) % 5 * 2
    assert (schema.samples, schema.totals["raw"]) == (500, lengths.sum())
    rows = np.array([499, 0, 7, 7])
    with FFCV.open(theirs, schema) as reader:
        batch = reader.batch(rows)
        assert_same(batch["x"], np.broadcast_to(rows[:, None, None], (4, 3, 100)).astype("float32"))
        assert_same(batch["label"], rows - 7)
        assert_same(batch["share"], rows / 2)
        assert samples(batch["raw"]) == [bytes([row % 251] * lengths[row]) for row in rows]
        assert samples(batch["what"])[1] == b'{"row": 0}\0'
        assert reader.placement().keys() == {field.name for field in fields}


def test_bytes_are_read_as_the_field_that_is_named(theirs):
    assert FFCV.infer_schema(theirs, (Field("raw", (VARIES, 2), "int8"), SHARE)).totals == {"raw": 500 * 2}
    with refused_as("unequal-shapes", path=theirs, problem=has("raw of sample 1")):
        FFCV.infer_schema(theirs, (Field("raw", (VARIES,), "float32"),))


DAMAGE = {
    "version": (0, "<H", 1),
    "fields": (2, "<H", 60000),
    "samples": (8, "<Q", 1 << 60),
    "offset past the end": (24 + 5 * 1041, "<Q", 1 << 62),
    "negative offset": (24 + 5 * 1041, "<q", -8),
    "dtype": (24 + 17 + 264, "<4s", b"[[[["),
}


@pytest.mark.parametrize(("place", "code", "value"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_beton_is_a_one_line_error(theirs, tmp_path, place, code, value):
    stored = bytearray(theirs.read_bytes())
    struct.pack_into(code, stored, place, value)
    (tmp_path / "a.beton").write_bytes(stored)
    with pytest.raises(CorruptArtifact) as error:
        FFCV.infer_schema(tmp_path / "a.beton", (X,))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mode", "sizes"), [("raw", 1), ("jpg", 1), ("proportion", 1), ("raw", 3), ("smart", 3)]
)
def test_images_of_ffcv_are_read_in_place(tmp_path, pixels, mode, sizes):
    path, expected = tmp_path / "train.beton", np.load(pixels)
    run("ffcv", WRITE_IMAGES, path, pixels, mode, sizes)
    if sizes > 1:
        with refused_as("unequal-shapes", found=(32, 56, 3), problem=has("image of sample 1")) as caught:
            FFCV.infer_schema(path)
        assert "--format ffcv:shape=" in caught.value.hint
    fmt = formats.parse("ffcv" if sizes == 1 else "ffcv:shape=40x56x3")
    schema = fmt.infer_schema(path)
    with fmt.open(path, schema) as reader:
        assert (reader.placement().keys() == {"image", "label"}) == (mode == "raw" and sizes == 1)
        batch = reader.batch(slice(None))
        assert batch["label"].tolist() == list(range(20))
        some = slice(None, None, sizes)  # of which nothing was cut off
        difference = np.abs(batch["image"][some].astype(int) - expected[some])
        assert difference.mean() <= (0 if mode == "raw" else 4)


@pytest.mark.parametrize("mode", ["raw", "jpg"])
def test_ffcv_s_loader_delivers_pixels_and_refuses_what_it_would_decode_otherwise(tmp_path, pixels, mode):
    path = tmp_path / "train.beton"
    run("ffcv", WRITE_IMAGES, path, pixels, mode, 1)
    if mode == "raw":
        manifest, _ = add(path, "ffcv", name="a", data_dir=tmp_path / "data")
        delivered(manifest, ("ffcv",), ("ffcv",), tmp_path / "records.jsonl", batch_size=(4,))
        return
    opener = Opener(FFCV, path, FFCV.infer_schema(path), random=False)
    with refused_as("encoded-values", LoaderFailed, match="image"):
        loaders.class_of("ffcv")().open(Job(opener, Order("sequential", 4)))


NAMES = {
    "sixteen_letters_": "sixteen_l",
    "sixteen_letters_more": "sixteen_l_2",
    "данные": "f",
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
    with refused_as("too-many-axes", UnsupportedSchema, found=32):
        FFCV.check_schema(Schema(2, (Field("x", (1,) * 32, "int8"),)))
