"""A folder of images, each of its own size: prepared, delivered and verified."""

import io
import json
import math
import tarfile
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import call
from kinds import complaint_kind, kind, refused_as
from PIL import Image
from ragged_cases import everything, samples
from record_cases import delivered

import iobench
from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
    InvalidOption,
    InvalidSettings,
    SourceError,
    UnsupportedSchema,
)
from iobench.base.units import shape_text
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.dataset.verify import sample_lengths
from iobench.formats import Field, with_extents
from iobench.terminal.commands.prepare import SourceOptions

COLORED, GRAY = (-1, -1, 3), (-1, -1)
SIZES = [(5, 9), (40, 3), (1, 1), (17, 17), (9, 5), (64, 48)]


@pytest.fixture
def folder(tmp_path):
    """Two labels, each with a PNG, a JPEG, and so on."""
    rng = np.random.default_rng(0)
    for number, (height, width) in enumerate(SIZES):
        label = tmp_path / "pets" / ("cat" if number < 4 else "dog")
        label.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(label / f"{number}{('.png', '.jpg')[number % 2]}")
    return tmp_path / "pets"


@pytest.mark.parametrize(("shape", "mode"), [(COLORED, "RGB"), (GRAY, "L"), ((-1, -1, 1), "L")])
def test_every_image_keeps_its_size_and_pixels(folder, shape, mode):
    source = open_source(folder, shape)
    arrays = everything(source)
    assert list(arrays) == ["x", "x_extents", "y"]
    assert arrays["y"].tolist() == [0, 0, 0, 0, 1, 1]
    assert arrays["x_extents"].tolist() == [list(size) for size in SIZES]
    for row, file in enumerate(sorted(folder.rglob("*.*g"))):
        begin, end = arrays["x"].offsets[row : row + 2]
        pixels = arrays["x"].values[begin:end].reshape(*arrays["x_extents"][row], *shape[2:])
        with Image.open(file) as image:
            assert (pixels.squeeze() == np.asarray(image.convert(mode)).squeeze()).all()
    assert source.schema.totals == {"x": sum(height * width for height, width in SIZES)}
    assert len(source.losses) == (mode == "L")
    assert [note.kind for note in source.notes] == ["gray"] * (mode == "L")


@pytest.mark.parametrize("shape", [(3, -1, -1), (-1, 9, 3), (9, -1), (-1, -1, -1), (-1, -1, 4), (-1,)])
def test_other_shapes_are_refused(folder, shape):
    with refused_as("invalid-shape", SourceError):
        open_source(folder, shape)


def test_they_are_for_images_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with refused_as("conflicting-options", SourceError):
        open_source(tmp_path / "a.npy", COLORED)
    with refused_as("conflicting-options", InvalidSettings):
        SourceOptions(sample_shape="*x*x3").open()


def test_a_damaged_image_is_named_or_skipped(folder):
    damaged = folder / "cat" / "1.jpg"
    damaged.write_bytes(damaged.read_bytes()[:300])
    with pytest.raises(SourceError, match=r"1\.jpg"):
        everything(open_source(folder, COLORED))
    source = open_source(folder, COLORED, on_error="skip")
    assert [note.kind for note in source.notes] == ["damaged-skipped"]
    assert everything(source)["x_extents"].tolist() == [list(size) for size in SIZES if size != SIZES[1]]
    damaged.write_bytes(b"no header")
    with refused_as("unsupported-image", SourceError, match=r"1\.jpg"):
        open_source(folder, COLORED)


def test_an_image_that_is_too_large_is_named(folder, monkeypatch):
    monkeypatch.setattr("iobench.formats.array_schema.MAX_SAMPLE_BYTES", 64 * 48 * 3 - 1)
    with refused_as("sample-too-large", SourceError, match=r"5\.jpg"):
        open_source(folder, COLORED)


def test_an_image_that_changed_is_refused(folder):
    source = open_source(folder, COLORED)
    Image.new("RGB", (9, 9)).save(folder / "cat" / "0.png")
    with refused_as("changed", SourceError):
        everything(source)


def shards_of(folder):
    """A tar archive of the same images, with the number of the label."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for number, file in enumerate(sorted(folder.rglob("*.*g"))):
            archive.add(file, f"{number}.jpg")
            text = str(["cat", "dog"].index(file.parent.name)).encode()
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return path


def in_place(folder, format):
    return folder if format == "images" else shards_of(folder)


holders = pytest.mark.parametrize("format", ["images", "webdataset"])


@holders
@pytest.mark.parametrize("shape", [COLORED, GRAY])
def test_the_files_are_read_where_they_lie(folder, shape, format):
    variant = f"{format}:shape={shape_text(shape)}"
    expected, fmt = everything(open_source(folder, shape)), formats.parse(variant)
    path = in_place(folder, format)
    if format == "images":
        assert open_source(folder, shape).in_place() == (folder, variant)
    fields = tuple(with_extents([Field("jpg", shape, "uint8"), Field("cls", (), "int64")]))
    schema = fmt.infer_schema(path, fields)
    assert (schema.fields, schema.totals) == (fields, {"jpg": sum(map(math.prod, SIZES))})
    some = np.array([5, 0, 5])
    with fmt.open(path, schema) as reader:
        batch, sample = reader.batch(some), reader.sample(4)
        alone = {"jpg_extents": np.empty((3, 2), np.int32)}
        reader.read(some, alone)
    assert list(batch) == list(sample) == [field.name for field in fields]
    assert samples(batch["jpg"]) == [samples(expected["x"])[row] for row in some]
    assert batch["jpg_extents"].tolist() == alone["jpg_extents"].tolist() == [[*SIZES[row]] for row in some]
    assert batch["cls"].tolist() == expected["y"][some].tolist()
    assert sample["jpg"].tobytes() == samples(expected["x"])[4]
    assert (sample["jpg_extents"].tolist(), sample["cls"]) == ([*SIZES[4]], expected["y"][4])


@holders
def test_every_loader_delivers_the_files_as_each_decoder_reads_them(folder, tmp_path, format):
    path, loaders = in_place(folder, format), ["native", "stream", "dataloader", "dataloader:num_workers=1"]
    if format == "webdataset":
        pytest.importorskip("webdataset")
        loaders.append("webdataset")
    variants = [f"{format}:shape=*x*x3"]
    if find_spec("simplejpeg"):
        variants.append(f"{variants[0]},decoder=simplejpeg")
    for variant in variants:
        manifest, _ = add(path, variant, name="pets", data_dir=tmp_path / "data")
    chosen = {"order": ("random",), "batch_size": (4,), "collate": ("jagged", "pad")}
    records = delivered(manifest, variants, loaders, tmp_path / "records.jsonl", isolate=False, **chosen)
    assert len(records) == 2 * len(loaders) * len(variants)
    assert set(iobench.verify(manifest).values()) == {None}


@holders
def test_batches_by_pixels_need_the_headers_alone(folder, tmp_path, format, monkeypatch):
    variant = f"{format}:shape=*x*x3"
    manifest, _ = add(in_place(folder, format), variant, data_dir=tmp_path / "data")
    monkeypatch.setattr(ScaledDecoder, "decode", None)
    assert sample_lengths(manifest.opener(variant)).tolist() == [*map(math.prod, SIZES)]


@holders
def test_a_damaged_file_is_named_where_it_lies(folder, format):
    damaged = folder / "cat" / "1.jpg"
    whole, fmt = damaged.read_bytes(), formats.parse(f"{format}:shape=*x*x3")
    damaged.write_bytes(whole[:-20])
    path = in_place(folder, format)
    with fmt.open(path, fmt.infer_schema(path)) as reader, pytest.raises(CorruptArtifact) as caught:
        reader.batch(slice(0, 3))
    assert ("1.jpg" if format == "images" else "sample 1") in str(caught.value)
    damaged.write_bytes(whole[:20])
    with pytest.raises(CorruptArtifact) as caught:
        fmt.infer_schema(in_place(folder, format))
    assert ("1.jpg" if format == "images" else "sample 1") in str(caught.value)


@pytest.mark.parametrize("more", ["crop=random", "dct_scaling=yes", "encoded=yes"])
def test_their_own_size_excludes_other_options(folder, more):
    with pytest.raises((InvalidOption, UnsupportedSchema), check=kind("conflicting-options")):
        formats.parse(f"images:shape=*x*x3,{more}")


def test_a_format_that_scales_alone_has_no_own_sizes():
    with refused_as("invalid-shape", InvalidSettings):
        formats.class_of("ffcv")(shape="*x*x3")


def test_a_field_of_the_user_s_names_them(folder, tmp_path):
    def command(*words):
        return call("add", folder, *words, "--data-dir", tmp_path / "data")

    image = ("--format", "images:shape=*x*x3", "--field", "pic=uint8[*,*,3]")
    assert "pic uint8 *x*x3" in command(*image, "--field", "kind=int64").stdout
    assert complaint_kind(command(*image, "--field", "pic_extents=int64"), 2) == "invalid-field"


def test_prepare_run_and_verify_as_typed(folder, tmp_path):
    def command(*words):
        done = call(*words, "--data-dir", tmp_path / "data")
        assert done.returncode == 0, done.stderr
        return done.stdout

    formats = ("--format", "npy", "--format", "lmdb", "--format", "webdataset")
    assert "*x*x3" in command("prepare", "--source", folder, "--sample-shape", "*x*x3", *formats)
    out = tmp_path / "records.jsonl"
    words = ("native", "stream", "dataloader", "dataloader:num_workers=2")
    loaders = [part for word in words for part in ("--loader", word)]
    ways = ("--collate", "jagged,pad:multiple=8", "--batch-size", "4")
    command("run", *formats, *loaders, *ways, "--device", "cpu", "--rounds", "1", "--out", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(records) == 3 * 2 * len(words)
    assert all(0 < record["content_check"]["fill"] < 1 for record in records)
    command("verify")
    manifest = iobench.Manifest.load(tmp_path / "data" / "pets")
    (file,) = manifest.root.glob("npy-*/x_extents.npy")
    np.save(file, np.load(file)[:, ::-1].copy())
    assert call("verify", "--data-dir", tmp_path / "data").returncode == 1
