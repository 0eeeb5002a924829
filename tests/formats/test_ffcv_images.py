"""Format ffcv: images that FFCV wrote, as pixels and as JPEG files, of one size and of several."""

import io
import struct

import numpy as np
import pytest
from kinds import kind as has_kind
from own_library import run
from PIL import Image
from ragged_cases import samples
from record_cases import delivered

from iobench import StreamLoader, formats
from iobench.base.errors import CorruptArtifact, LoaderFailed, UnsupportedSchema
from iobench.dataset.add import add
from iobench.dataset.opener import Opener
from iobench.dataset.sources import open_source
from iobench.formats import Field, Listed, Ragged, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.testing.cases import assert_same

FFCV = formats.get("ffcv")
JPEG, RAW = 0, 1
SIZES = ((40, 56), (48, 52), (30, 90))
ROW = struct.Struct("<BHHQ3xq")  # mode, width, height, offset; the label

WRITE = """
import sys, numpy as np
from ffcv.writer import DatasetWriter
from ffcv.fields import RGBImageField, IntField
pixels = np.load(sys.argv[2])
samples = [(image[: len(image) - 8 * (row % int(sys.argv[4]))], row) for row, image in enumerate(pixels)]
image = RGBImageField(write_mode=sys.argv[3], smart_threshold=pixels[0].nbytes - 1)
writer = DatasetWriter(sys.argv[1], {"image": image, "label": IntField()}, num_workers=2)
writer.from_indexed_dataset(samples, chunksize=3)
"""


def picture(row, height, width):
    """Return smooth pixels, which JPEG hardly changes."""
    small = np.random.default_rng(row).integers(0, 256, (3, 4, 3), dtype="uint8")
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))


def jpeg(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def pixels_of(file):
    return np.array(Image.open(io.BytesIO(file)))


def beton(path, images):
    """Write a beton of images, (mode, height, width, bytes), with labels, as FFCV does."""
    front = 24 + 2 * 1041
    begin = -(-(front + ROW.size * len(images)) // (1 << 21)) << 21
    offsets = begin + np.cumsum([0, *(len(stored) for *_, stored in images)])
    heads = struct.pack("<B16s1024s", 2, b"image", b"") + struct.pack("<B16s1024s", 1, b"label", b"")
    both = list(zip(images, offsets.tolist(), strict=False))
    rows = [ROW.pack(mode, width, height, at, n) for n, ((mode, height, width, _), at) in enumerate(both)]
    start = struct.pack("<HHIQQ", 2, 2, 1 << 21, len(images), int(offsets[-1])) + heads + b"".join(rows)
    table = b"".join(struct.pack("<3Q", n, at, len(one[3])) for n, (one, at) in enumerate(both))
    path.write_bytes(start.ljust(begin, b"\0") + b"".join(one[3] for one in images) + table)
    return path


def stored(mode, pixels):
    return mode, *pixels.shape[:2], pixels.tobytes() if mode == RAW else jpeg(pixels)


def mixed(path, sizes, modes=(RAW, JPEG), count=6):
    """Write images of these sizes and modes in turn; return their pixels as stored."""
    pixels = [picture(row, *sizes[row % len(sizes)]) for row in range(count)]
    images = [stored(modes[row % len(modes)], one) for row, one in enumerate(pixels)]
    beton(path, images)
    pairs = zip(images, pixels, strict=True)
    return [one if mode == RAW else pixels_of(file) for (mode, _, _, file), one in pairs]


@pytest.mark.parametrize("modes", [(RAW,), (JPEG,), (RAW, JPEG)], ids=["raw", "jpg", "both"])
def test_images_of_one_size_are_read_as_their_pixels(tmp_path, modes):
    expected = mixed(tmp_path / "a.beton", SIZES[:1], modes)
    schema = FFCV.infer_schema(tmp_path / "a.beton")
    assert schema == Schema(6, (Field("image", (40, 56, 3), "uint8"), Field("label", (), "int64")))
    with FFCV.open(tmp_path / "a.beton", schema) as reader:
        batch = reader.batch(np.array([5, 0, 1]))
        assert_same(batch["image"], np.stack([expected[row] for row in (5, 0, 1)]))
        assert batch["label"].tolist() == [5, 0, 1]
        assert isinstance(reader.placement().get("image"), Listed) == (JPEG not in modes)
        assert len(reader.blocks()) == (JPEG in modes)


def test_images_of_several_sizes_are_refused_with_both_ways_to_read_them(tmp_path):
    mixed(tmp_path / "a.beton", SIZES)
    with pytest.raises(CorruptArtifact, check=has_kind("unequal-shapes", found=(48, 52, 3))) as caught:
        FFCV.infer_schema(tmp_path / "a.beton")
    assert "image of sample 1" in caught.value.problem
    assert "--format ffcv:shape=" in caught.value.hint
    assert "--field 'image=uint8[*]' --field label=int64" in caught.value.hint
    with pytest.raises(CorruptArtifact, check=has_kind("unequal-shapes")):
        FFCV.infer_schema(tmp_path / "a.beton", (Field("image", (40, 56, 3), "uint8"),))


def test_stored_bytes_of_images_are_samples_of_several_lengths(tmp_path):
    expected = mixed(tmp_path / "a.beton", SIZES)
    schema = FFCV.infer_schema(tmp_path / "a.beton", (Field("image", (-1,), "uint8"),))
    with FFCV.open(tmp_path / "a.beton", schema) as reader:
        read = samples(reader.batch(slice(None))["image"])
    assert read[0] == expected[0].tobytes()
    assert_same(pixels_of(read[1]), expected[1])


@pytest.mark.parametrize(
    "options", ["shape=3x20x16", "shape=20x16,dct_scaling=yes", "shape=20x16x3,decoder=simplejpeg"]
)
def test_images_of_any_size_are_scaled_as_in_a_folder(tmp_path, options):
    if "simplejpeg" in options:
        pytest.importorskip("simplejpeg")
    (tmp_path / "folder/one").mkdir(parents=True)
    images = [stored((RAW, JPEG)[row % 2], picture(row, *SIZES[row % 3])) for row in range(6)]
    beton(tmp_path / "a.beton", images)
    for row, (mode, height, width, content) in enumerate(images):
        file = tmp_path / f"folder/one/{row}.{'png' if mode == RAW else 'jpg'}"
        if mode == RAW:
            Image.frombytes("RGB", (width, height), content).save(file)
        else:
            file.write_bytes(content)
    read = []
    for path, variant in ((tmp_path / "folder", "images"), (tmp_path / "a.beton", "ffcv")):
        fmt = formats.parse(f"{variant}:{options}")
        schema = fmt.infer_schema(path)
        with fmt.open(path, schema) as reader:
            read.append(reader.batch(np.array([3, 0, 1, 2]))["image"])
            kinds = [note.kind for note in fmt.notes(path, schema)]
            assert kinds == ["other-pixels"] * (not fmt.lossless)
    assert_same(*read)
    with pytest.raises(UnsupportedSchema, check=has_kind("read-only-variant")):
        fmt.check_schema(schema)


def test_a_beton_is_a_source_at_a_sample_shape(tmp_path):
    mixed(tmp_path / "a.beton", SIZES)
    source = open_source(tmp_path / "a.beton", (3, 20, 16))
    assert source.in_place()[1] == "ffcv:shape=3x20x16"
    assert next(source.batches())["image"].shape == (6, 3, 20, 16)


def test_added_images_are_delivered_by_stream_loader(tmp_path):
    expected = mixed(tmp_path / "a.beton", SIZES[:1])
    manifest, _ = add(tmp_path / "a.beton", "ffcv", name="a", data_dir=tmp_path / "data")
    (batch,) = StreamLoader(manifest.root, format="ffcv", batch_size=6)
    assert_same(batch["image"].numpy(), np.stack(expected))


LIES = {
    "another mode": (0, "<B", 2, "image of sample 2"),
    "pixels in place of a file": (0, "<B", RAW, "image of sample 2"),
    "another width": (1, "<H", 57, "image of sample 2"),
    "no height": (3, "<H", 0, "image of sample 2"),
    "offset past the end": (5, "<Q", 1 << 62, "image of sample 2"),
}


@pytest.mark.parametrize(("place", "code", "value", "named"), LIES.values(), ids=LIES)
def test_an_image_that_is_not_what_its_metadata_say_is_named(tmp_path, place, code, value, named):
    path = tmp_path / "a.beton"
    mixed(path, SIZES[:1], (RAW, RAW, JPEG))
    fmt = formats.parse("ffcv:shape=20x16")
    schema = fmt.infer_schema(path)
    with open(path, "r+b") as file:
        file.seek(24 + 2 * 1041 + 2 * ROW.size + place)
        file.write(struct.pack(code, value))
    with pytest.raises(CorruptArtifact) as caught:
        FFCV.open(path, Schema(6, (Field("image", (40, 56, 3), "uint8"),))).batch(slice(None))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    if value != 57:  # where images are scaled, that of a file counts
        with pytest.raises(CorruptArtifact, match=named):
            fmt.open(path, schema).batch(slice(None))


@pytest.mark.parametrize("variant", ["ffcv", "ffcv:shape=20x16"])
def test_a_damaged_image_is_named_with_its_sample(tmp_path, variant):
    images = [stored(JPEG, picture(row, 40, 56)) for row in range(4)]
    images[2] = (*images[2][:3], images[2][3][:200])
    fmt = formats.parse(variant)
    schema = fmt.infer_schema(beton(tmp_path / "a.beton", images))
    with fmt.open(tmp_path / "a.beton", schema) as reader:
        reader.sample(1)
        with pytest.raises(CorruptArtifact, match="image of sample 2"):
            reader.sample(2)


@pytest.mark.parametrize(("mode", "sizes"), [("raw", 1), ("jpg", 1), ("proportion", 1), ("smart", 3)])
def test_images_of_ffcv_are_read_in_place(tmp_path, mode, sizes):
    pixels = np.stack([picture(row, 40, 56) for row in range(20)])
    np.save(tmp_path / "pixels.npy", pixels)
    path = tmp_path / "train.beton"
    run("ffcv", WRITE, path, tmp_path / "pixels.npy", mode, sizes)
    fmt = formats.parse("ffcv" if sizes == 1 else "ffcv:shape=40x56x3")
    schema = fmt.infer_schema(path)
    with fmt.open(path, schema) as reader:
        batch = reader.batch(slice(None))
        assert batch["label"].tolist() == list(range(20))
        whole = slice(None, None, sizes)  # of which nothing was cut off
        difference = np.abs(batch["image"][whole].astype(int) - pixels[whole])
        assert difference.mean() <= (0 if mode == "raw" else 4)


@pytest.mark.parametrize(("variant", "modes"), [("ffcv", (RAW, JPEG)), ("ffcv:shape=20x16", (RAW,))])
def test_ffcv_s_loader_refuses_images_that_it_would_decode_otherwise(tmp_path, variant, modes):
    mixed(tmp_path / "a.beton", SIZES[:1], modes)
    fmt = formats.parse(variant)
    opener = Opener(fmt, tmp_path / "a.beton", fmt.infer_schema(tmp_path / "a.beton"), random=False)
    with pytest.raises(LoaderFailed, match="image", check=has_kind("encoded-values")):
        loaders.class_of("ffcv")().open(Job(opener, Order("sequential", 4)))


def test_ffcv_s_loader_delivers_images_that_are_stored_as_pixels(tmp_path):
    pytest.importorskip("ffcv")
    mixed(tmp_path / "a.beton", SIZES[:1], (RAW,), count=20)
    manifest, _ = add(tmp_path / "a.beton", "ffcv", name="a", data_dir=tmp_path / "data")
    delivered(manifest, ("ffcv",), ("ffcv",), tmp_path / "records.jsonl", batch_size=(4,))


def test_ffcv_s_loader_delivers_bytes_as_the_field_that_is_named(tmp_path):
    pytest.importorskip("ffcv")
    schema = Schema(20, (Field("x", (-1,), "uint8"),), totals={"x": 20 * 24})
    values = np.random.default_rng(0).integers(0, 256, 20 * 24, dtype=np.uint8)
    FFCV.write(tmp_path / "a", schema, [{"x": Ragged(values, np.arange(21) * 24)}])
    fields = (Field("x", (2, 3), "float32"),)
    path = tmp_path / "a" / "data.beton"
    manifest, _ = add(path, "ffcv", name="a", fields=fields, data_dir=tmp_path / "data")
    delivered(manifest, ("ffcv",), ("ffcv",), tmp_path / "records.jsonl", batch_size=(4,))
