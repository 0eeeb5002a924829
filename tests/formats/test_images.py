"""Format images: other libraries read the files, existing folders are read, JPEG is verified as decoded."""

import itertools
import os
import tarfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import enlarge
from hypothesis import example, given
from hypothesis import strategies as st
from kinds import has, kind, refused_as
from ragged_cases import samples
from record_cases import delivered

import iobench
from iobench import formats
from iobench.base.errors import ArtifactExists, CorruptArtifact, InvalidOption, SourceError, UnsupportedSchema
from iobench.contrib.formats.shared.random_crop import random_box
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.formats import Field, Schema
from iobench.testing.cases import assert_rows, random_batch, store
from iobench.testing.placements import assert_placements

Image = pytest.importorskip("PIL.Image")

IMAGES, JPEG = formats.get("images"), formats.parse("images:lossy=jpeg")
SCHEMA = Schema(7, (Field("image", (9, 6, 3), "uint8"), Field("label", (), "int64")))


def smooth(samples=7):
    """Return images that JPEG stores almost without loss, and labels."""
    slope = np.add.outer(np.arange(16), np.arange(12)).astype("uint8")
    images = np.stack([np.stack([slope * 4 + i] * 3, axis=-1) for i in range(samples)])
    return {"image": images, "label": np.arange(samples)}


@pytest.mark.parametrize("shape", [(9, 6, 3), (3, 9, 6)])
@pytest.mark.parametrize("fmt", [IMAGES, JPEG], ids=lambda fmt: fmt.variant)
def test_another_library_reads_what_was_written(tmp_path, fmt, shape):
    schema = Schema(7, (Field("image", shape, "uint8"), Field("label", (), "int64")))
    artifact, batch = store(fmt, tmp_path / "a", schema), random_batch(schema)
    recoded = fmt.roundtrip(batch)["image"]
    assert fmt.lossless == np.array_equal(recoded, batch["image"])
    files = sorted((artifact.path / "image").rglob("*.*"))
    suffix = "png" if fmt.lossless else "jpg"
    assert [file.name for file in files] == [f"{row:09}.{suffix}" for row in range(7)]
    pixels = recoded if shape[-1] == 3 else recoded.transpose(0, 2, 3, 1)
    assert np.array_equal([np.asarray(Image.open(file)) for file in files], pixels)
    assert np.array_equal(np.load(artifact.path / "label.npy"), batch["label"])
    with fmt.open(artifact.path, schema) as reader:
        assert np.array_equal(reader.batch(slice(0, 7))["image"], recoded)


@pytest.mark.parametrize(
    ("field", "cause", "found"),
    [
        (Field("x", (8,), "uint8"), "not-an-image", "uint8 (8,)"),
        (Field("x", (8, 8), "float32"), "not-an-image", "float32 (8, 8)"),
        (Field("x", (4, 8, 8), "uint8"), "not-an-image", "uint8 (4, 8, 8)"),
        (Field("y", (), "int64"), "no-images", "scalars y"),
    ],
    ids=range(4),
)
def test_other_samples_are_refused_before_anything_is_written(tmp_path, field, cause, found):
    schema = Schema(3, (field,))
    np.savez(tmp_path / "a.npz", **random_batch(schema))
    source = iobench.open_source(tmp_path / "a.npz")
    with refused_as(cause, UnsupportedSchema, found=found, problem=has("format images")) as caught:
        iobench.prepare(source, ["npy", "images"], data_dir=tmp_path / "data")
    assert ("field x" in caught.value.problem) == (cause == "not-an-image")
    assert not (tmp_path / "data").exists()


def class_folders(folder, suffix="png", sizes=((6, 4),)):
    """Write one folder of images per class, as torchvision's ImageFolder reads them; return the pixels."""
    rng, images = np.random.default_rng(0), []
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            height, width = sizes[number % len(sizes)]
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{suffix}")
            images.append(pixels)
    return images


def test_folders_of_classes_are_read_in_place(tmp_path):
    pixels = class_folders(tmp_path / "train")
    assert IMAGES.sniff(tmp_path / "train")
    schema = IMAGES.infer_schema(tmp_path / "train")
    assert schema == Schema(6, (Field("image", (6, 4, 3), "uint8"), Field("label", (), "int64")))
    expected = {"image": np.stack(pixels), "label": np.array([0, 0, 0, 1, 1, 1])}
    with IMAGES.open(tmp_path / "train", schema) as reader:
        assert_rows(reader.batch(np.array([5, 0, 5])), expected, [5, 0, 5])
        assert_placements(reader, expected)


def test_images_of_several_sizes_are_read_in_place_as_prepare_decodes_them(tmp_path):
    class_folders(tmp_path / "train", "jpg", ((60, 40), (30, 50)))
    source = open_source(tmp_path / "train", (3, 20, 16))
    expected = next(source.batches())
    fmt = formats.parse("images:shape=3x20x16")
    schema = fmt.infer_schema(tmp_path / "train", source.schema.fields)
    assert schema == source.schema
    with fmt.open(tmp_path / "train", schema) as reader:
        batch = reader.batch(np.array([3, 0]))
    for name, array in batch.items():
        np.testing.assert_array_equal(array, expected[name][[3, 0]], strict=True)


def photos(folder, sizes=((90, 130), (60, 40), (30, 50))):
    """Write JPEG files of smooth colors, which decoders scale alike, in one folder per class."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            corners = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
            image = corners.resize(size[::-1], Image.Resampling.BICUBIC)
            image.save(folder / name / f"{number}.jpg", quality=90)
    Image.fromarray(np.full((33, 47), 200, np.uint8)).save(folder / "dog" / "gray.jpg")
    Image.new("CMYK", (40, 50), (10, 100, 200, 30)).save(folder / "dog" / "print.jpg")
    Image.new("RGB", (41, 52), (10, 100, 200)).save(folder / "dog" / "zoo.png")
    return folder


def test_other_decoders_are_variants_of_one_dataset(tmp_path):
    pytest.importorskip("simplejpeg")
    path, notes = photos(tmp_path / "train"), []
    more = ("", ",decoder=simplejpeg", ",dct_scaling=yes", ",crop=random")
    variants = [f"images:shape=3x20x16{options}" for options in more]
    for variant in variants:
        manifest, _ = add(path, variant, name="photos", data_dir=tmp_path / "data", warn=notes.append)
    assert list(manifest.artifacts) == variants
    sums = [manifest.checksums_of(variant) for variant in variants]
    assert len(set(sums)) == 4
    assert sums[0] == (manifest.content, manifest.ordered)
    assert [note.kind for note in notes] == ["other-pixels"] * 2
    assert 0 < notes[0].values["mean"] < notes[1].values["mean"]
    others, variant = photos(tmp_path / "others"), f"{variants[2]},decoder=simplejpeg"
    with refused_as("other-data", ArtifactExists):
        add(others, variant, name="photos", data_dir=tmp_path / "data")
    for variant in variants:
        loader = iobench.StreamLoader(tmp_path / "data/photos", format=variant, batch_size=4)
        loaded = np.concatenate([batch["image"].numpy() for batch in loader])
        with manifest.opener(variant)() as reader:
            assert np.array_equal(loaded, reader.batch(slice(0, 9))["image"])


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(0, 2**32 - 1))
@example(1000, 1, 0)
@example(1, 1000, 0)
def test_a_random_part_lies_within_the_image(width, height, seed):
    left, top, right, bottom = random_box((width, height), seed)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert random_box((width, height), seed) == (left, top, right, bottom)


def test_random_parts_are_those_of_random_resized_crop():
    boxes = np.array([random_box((500, 400), seed) for seed in range(2000)])
    across, down = (boxes[:, 2:] - boxes[:, :2]).T
    share, ratio = across * down / 200_000, across / down
    assert share.min() >= 0.079
    assert share.max() <= 1
    assert 0.4 < share.mean() < 0.54  # uniform, but of those that fit
    assert ratio.min() >= 0.74
    assert ratio.max() <= 1.35
    assert abs(np.median(ratio) - 1) < 0.1
    assert np.corrcoef(boxes[:, 0], boxes[:, 1])[0, 1] < 0.6
    assert len(np.unique(boxes, axis=0)) > 1900


@pytest.mark.parametrize("more", ["", ",decoder=simplejpeg", ",decoder=simplejpeg,dct_scaling=yes"])
def test_random_parts_are_scaled_to_the_shape_whatever_decodes_them(tmp_path, more):
    pytest.importorskip("simplejpeg")
    path = photos(tmp_path / "train", ((90, 130), (160, 140), (130, 150)))
    fmt = formats.parse(f"images:shape=3x20x16,crop=random{more}")
    assert not fmt.lossless
    with fmt.open(path, fmt.infer_schema(path)) as reader:
        found = reader.batch(slice(0, 3))["image"].astype(int)
    for number, pixels in enumerate(found):
        file = path / "cat" / f"{number}.jpg"
        with Image.open(file) as image:
            first = zlib.crc32(b"0 0")  # seed and epoch
            box = random_box(image.size, zlib.crc32(file.read_bytes()[-256:], first))
            part = image.crop(box).resize((16, 20), Image.Resampling.BILINEAR)
        expected = np.asarray(part).transpose(2, 0, 1).astype(int)
        assert np.abs(pixels - expected).max() <= (0 if not more else 3 if "dct" not in more else 20)


def packed(folder, path):
    """Pack the images of a folder into one tar shard, with labels; return its folder."""
    path.mkdir()
    with tarfile.open(path / "000000.tar", "w") as archive:
        for number, file in enumerate(sorted(folder.rglob("*.jpg"))):
            (label := path / "label").write_text(str(number))
            archive.add(file, f"{number}.jpg")
            archive.add(label, f"{number}.cls")
    label.unlink()
    return path


@pytest.mark.parametrize(
    ("format", "fields"),
    [("images", None), ("webdataset", None), ("webdataset", ["jpg"])],
    ids=["images", "webdataset", "large-blocks-alone"],  # these StreamLoader reads itself
)
def test_each_epoch_of_streamloader_takes_other_random_parts(tmp_path, format, fields):
    path = photos(tmp_path / "train", ((90, 130), (160, 140), (130, 150)))
    path = packed(path, tmp_path / "shards") if format == "webdataset" else path
    variant = f"{format}:shape=3x150x150,crop=random"
    add(path, variant, name="photos", data_dir=tmp_path / "data")

    def loader(seed=0):
        return iobench.StreamLoader(
            tmp_path / "data/photos", format=variant, batch_size=2, seed=seed, fields=fields
        )

    def epoch(of):
        batches = [dict(batch) for batch in of]
        return np.concatenate([next(b[n] for n in b if b[n].ndim == 4).numpy() for b in batches])

    first = loader()
    epochs = [epoch(first) for _ in range(3)]
    for one, other in itertools.combinations(epochs, 2):
        assert (one != other).any(axis=(1, 2, 3)).sum() == 6  # the others have one color
    manifest = iobench.Manifest.load(tmp_path / "data/photos")
    with manifest.opener(variant)() as reader:  # what was verified
        assert np.array_equal(epochs[0], next(a for a in reader.batch(slice(0, 9)).values() if a.ndim == 4))
    assert (epoch(loader(seed=1)) != epochs[0]).any()
    again = loader()
    again.set_epoch(2)
    assert np.array_equal(epoch(again), epochs[2])
    first.set_epoch(1)
    half = iter(first)
    next(half)
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    half.close()
    assert np.array_equal(epoch(resumed), epochs[1][2:])


@pytest.mark.parametrize(("dtype", "suffix"), [("uint16", "png"), ("int32", "tif"), ("float32", "tif")])
def test_pixels_that_bytes_cannot_hold_are_refused(tmp_path, dtype, suffix):
    """Pillow would clip them: a ramp of 16 bits becomes white."""
    folder = photos(tmp_path / "train")
    deep = folder / "cat" / f"deep.{suffix}"
    Image.fromarray(np.arange(64, dtype=dtype).reshape(8, 8) * 1000).save(deep)
    with refused_as("deep-pixels", SourceError, path=str(deep)):
        list(open_source(folder, (3, 20, 16)).batches())
    if suffix == "png":
        with refused_as("deep-pixels", SourceError):
            add(folder, "images:shape=3x20x16", name="photos", data_dir=tmp_path / "data")


def test_streamloader_decodes_files_in_several_threads(tmp_path, monkeypatch):
    class_folders(tmp_path / "train")
    add(tmp_path / "train", name="train", data_dir=tmp_path / "data")
    together, opened, numbers = threading.Barrier(2, timeout=30), Image.open, itertools.count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    loader = iobench.StreamLoader(tmp_path / "data/train", format="images", batch_size=2)

    def open_both(*arguments, **options):
        if next(numbers) < 2:
            together.wait()  # BrokenBarrierError unless two threads are here
        return opened(*arguments, **options)

    monkeypatch.setattr(Image, "open", open_both)
    assert sum(len(batch["label"]) for batch in loader) == 6


def test_streamloader_maps_no_image_file(tmp_path):
    """The kernel allows 65,530 maps, and a folder may hold a million images."""
    class_folders(tmp_path / "train")
    add(tmp_path / "train", name="train", data_dir=tmp_path / "data")
    loader = iobench.StreamLoader(tmp_path / "data/train", format="images", batch_size=2)
    batches = iter(loader)
    next(batches)
    assert str(tmp_path / "train") not in Path("/proc/self/maps").read_text()
    assert sum(len(batch["label"]) for batch in batches) == 4


def test_images_that_are_not_rgb_are_refused_with_what_reads_them(tmp_path):
    with refused_as("unsupported-image", found="CMYK", hint=has("--format images:shape=3x224x224")):
        formats.get("images").infer_schema(photos(tmp_path / "train"))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("quality=80", "lossy=jpeg"),
        *((one, "shape=") for one in ("decoder=simplejpeg", "dct_scaling=yes", "crop=random")),
        ("encoded=yes,shape=3x8x8", "omit"),
    ],
)
def test_options_that_need_or_exclude_others(options, hint):
    with refused_as("conflicting-options", InvalidOption, hint=has(hint)):
        formats.parse(f"images:{options}")


@pytest.mark.parametrize("options", ["shape=20x16x3", "encoded=yes"])
def test_the_options_of_existing_folders_cannot_be_written(options):
    with refused_as("read-only-variant", UnsupportedSchema):
        formats.parse(f"images:{options}").check_schema(SCHEMA)


def test_images_of_several_sizes_are_refused_by_name(tmp_path):
    class_folders(tmp_path / "train", "jpg", ((6, 4), (6, 5)))
    with refused_as("unequal-shapes", path=tmp_path / "train") as caught:
        IMAGES.infer_schema(tmp_path / "train")
    for part in ("(6, 4, 3)", "(6, 5, 3)", ".jpg"):
        assert part in caught.value.found
    assert "images:shape=3x224x224" in caught.value.hint


def test_other_modes_and_links_are_refused_by_name(tmp_path):
    class_folders(tmp_path / "train")
    file = tmp_path / "train/cat/0.png"
    Image.new("RGBA", (4, 6)).save(file)
    with refused_as("unsupported-image", path=file, found="RGBA"):
        IMAGES.infer_schema(tmp_path / "train")
    file.unlink()
    file.symlink_to(tmp_path / "train/cat/1.png")
    with refused_as("link", path=file):
        IMAGES.infer_schema(tmp_path / "train")


def test_an_image_of_too_many_pixels_is_refused_with_the_limit(tmp_path):
    class_folders(tmp_path / "train")
    file = tmp_path / "train/cat/0.png"
    enlarge(file)
    with refused_as("too-many-pixels", path=file, expected=has("178,956,970")):
        IMAGES.infer_schema(tmp_path / "train")
    schema = Schema(6, (Field("image", (6, 4, 3), "uint8"), Field("label", (), "int64")))
    with (
        IMAGES.open(tmp_path / "train", schema) as reader,
        refused_as("too-many-pixels", path=file, found=has("178,956,970")),
    ):
        reader.sample(0)


def test_an_image_of_another_size_is_not_decoded(tmp_path):
    artifact = store(IMAGES, tmp_path / "a", SCHEMA)
    Image.new("RGB", (5000, 5000)).save(artifact.path / "image/000/000000003.png")
    with artifact.open() as reader, pytest.raises(CorruptArtifact) as caught:
        reader.sample(3)
    assert "5000 x 5000" in caught.value.found


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return a dataset of smooth images as npy, as PNG and as JPEG of two qualities."""
    folder = tmp_path_factory.mktemp("both")
    np.savez(folder / "a.npz", **smooth(40))
    source = iobench.open_source(folder / "a.npz")
    variants = ["npy", "images", "images:lossy=jpeg", "images:lossy=jpeg,quality=30"]
    return iobench.prepare(source, variants, data_dir=folder / "data")[0]


def test_each_lossy_artifact_has_a_checksum_of_its_own(both):
    own = {variant: both.checksums_of(variant) for variant in both.artifacts}
    assert own["npy"] == own["images"] == (both.content, both.ordered)
    assert len(set(own.values())) == 3
    loaded = iobench.find_dataset(both.root.parent)
    assert {variant: loaded.checksums_of(variant) for variant in loaded.artifacts} == own
    assert iobench.verify(both) == dict.fromkeys(own)


def test_a_lossy_artifact_is_verified_against_its_own_content(both):
    formats = ("npy", "images", "images:lossy=jpeg")
    result = iobench.run(both, iobench.RunOptions(formats, ("native",), model=("mlp",), rounds="1"))
    assert not result.failures
    losses = {record.case["format"]: record.loss for record in result.records}
    assert losses["images"] == losses["npy"] != losses["images:lossy=jpeg"]


def test_another_image_in_a_lossy_artifact_is_found(both, tmp_path):
    import shutil

    shutil.copytree(both.root, tmp_path / "data" / both.name)
    manifest = iobench.find_dataset(tmp_path / "data")
    folder = manifest.path_of("images:lossy=jpeg") / "image/000"
    content = [(folder / f"{row:09}.jpg").read_bytes() for row in range(2)]
    for row, other in enumerate(reversed(content)):
        (folder / f"{row:09}.jpg").write_bytes(other)
    damage = iobench.verify(manifest)
    assert kind("other-content")(damage["images:lossy=jpeg"])
    assert damage["images"] is None


def test_files_of_any_size_are_read_as_they_are(tmp_path):
    contents = []
    for number, (name, sizes) in enumerate({"cat": (30, 50), "dog": (20, 40, 60)}.items()):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for row, size in enumerate(sizes):
            file = tmp_path / f"photos/{name}/{row}.{'jpg' if row else 'png'}"
            Image.fromarray(np.full((size, size + 3, 3), size, np.uint8)).save(file)
            contents.append((file.read_bytes(), number))
    manifest, _ = add(tmp_path / "photos", "images:encoded=yes", data_dir=tmp_path / "data")
    assert [field.typed for field in manifest.schema.fields] == ["image=uint8[*]", "label=int64"]
    source = open_source(tmp_path / "photos", format="images:encoded=yes")
    prepared = iobench.prepare(source, ["npy", "lmdb"], data_dir=tmp_path / "data", name="packed")[0]
    assert prepared.content == manifest.content
    for dataset, variant in ((manifest, "images:encoded=yes"), (prepared, "lmdb")):
        with dataset.opener(variant)() as reader:
            read = reader.batch(np.array([4, 0, 4]))
            one = reader.sample(3)
        assert samples(read["image"]) == [contents[row][0] for row in (4, 0, 4)]
        assert read["label"].tolist() == [1, 0, 1]
        assert (one["image"].tobytes(), one["label"]) == contents[3]
        out = tmp_path / f"{dataset.name}.jsonl"
        delivered(dataset, (variant,), ("native", "stream", "dataloader"), out)
