"""A folder of images, each of its own size: prepared, delivered and verified."""

import json

import numpy as np
import pytest
from conftest import call
from kinds import kind
from PIL import Image

import iobench
from iobench.base.errors import InvalidSettings, SourceError
from iobench.dataset.sources import checked, open_source
from iobench.formats import joined
from iobench.terminal.commands._source_options import SourceOptions

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


def everything(source):
    batches = list(checked(source))
    return {name: joined([batch[name] for batch in batches]) for name in batches[0]}


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
    assert (source.in_place(), source.other_decoders(), len(source.losses)) == (None, (), mode == "L")
    assert [note.kind for note in source.notes] == ["gray"] * (mode == "L")


@pytest.mark.parametrize("shape", [(3, -1, -1), (-1, 9, 3), (9, -1), (-1, -1, -1), (-1, -1, 4), (-1,)])
def test_other_shapes_are_refused(folder, shape):
    with pytest.raises(SourceError, check=kind("invalid-shape")):
        open_source(folder, shape)


def test_they_are_for_folders_of_images_alone(folder, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    for path, name in ((tmp_path / "a.npy", None), (folder, "images")):
        with pytest.raises(SourceError, check=kind("conflicting-options")):
            open_source(path, COLORED, format=name)
    with pytest.raises(InvalidSettings, check=kind("conflicting-options")):
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
    with pytest.raises(SourceError, match=r"1\.jpg", check=kind("unsupported-image")):
        open_source(folder, COLORED)


def test_an_image_that_is_too_large_is_named(folder, monkeypatch):
    monkeypatch.setattr("iobench.formats._arrays.MAX_SAMPLE_BYTES", 64 * 48 * 3 - 1)
    with pytest.raises(SourceError, match=r"5\.jpg", check=kind("sample-too-large")):
        open_source(folder, COLORED)


def test_an_image_that_changed_is_refused(folder):
    source = open_source(folder, COLORED)
    Image.new("RGB", (9, 9)).save(folder / "cat" / "0.png")
    with pytest.raises(SourceError, check=kind("changed")):
        everything(source)


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
