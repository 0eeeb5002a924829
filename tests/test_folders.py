"""Folders as other programs leave them: every command sees the same samples, and counts what is not read."""

import json
import pathlib
import re
import shlex

import h5py
import numpy as np
import PIL.Image
import pytest
from kinds import refused_as
from PIL import Image

from iobench import formats
from iobench.advise.measured_data import from_source
from iobench.advise.requirements import Requirements
from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.formats.folders import IMAGES, contains_images

SHAPE, VARIANT = (3, 8, 8), "images:shape=3x8x8"


def write(folder, *names):
    """Write an image, or for other suffixes a few bytes, under each name."""
    for number, name in enumerate(names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            file.mkdir(exist_ok=True)
        elif file.name.startswith("._") or file.suffix not in IMAGES:
            file.write_bytes(b"\0\5\26\7")
        else:
            Image.new("RGB", (9, 9), (20 * number, 0, 0)).save(file)
    return folder


USUAL = ("cat/0.jpg", "cat/1.jpg", "dog/2.jpg")
LAYOUTS = {  # files, labels, and the numbers of files that are not read
    "macos": ((*USUAL, "cat/._0.jpg", "__MACOSX/cat/._1.jpg", "dog/.DS_Store"), [0, 0, 1], {"hidden": 3}),
    "notebook": ((*USUAL, "cat/.ipynb_checkpoints/0-checkpoint.jpg"), [0, 0, 1], {"hidden": 1}),
    "an empty class": ((*USUAL, "ant/"), [1, 1, 2], {}),
    "inner folders": (("cat/big/0.jpg", "cat/small/1.jpg", "dog/2.jpg"), [0, 0, 1], {}),
    "other images": ((*USUAL, "dog/3.webp", "dog/4.bmp", "dog/5.tif"), [0, 0, 1, 1, 1, 1], {}),
    "a table": ((*USUAL, "metadata.jsonl"), [0, 0, 1], {".jsonl": 1}),
    "other suffixes": ((*USUAL, "dog/3.heic", "dog/4.heic", "cat/a.txt"), [0, 0, 1], {".heic": 2, ".txt": 1}),
    "a description": ((*USUAL, "README", "Thumbs.db"), [0, 0, 1], {"without a suffix": 1, ".db": 1}),
}


@pytest.mark.parametrize(("names", "labels", "left"), LAYOUTS.values(), ids=LAYOUTS)
def test_add_prepare_and_recommend_see_the_same_samples(tmp_path, names, labels, left):
    folder, notes = write(tmp_path / "pets", *names), []
    source = open_source(folder, SHAPE)
    manifest, _ = add(folder, VARIANT, data_dir=tmp_path / "data", warn=notes.append)
    assert formats.get("images").sniff(folder)
    (batch,) = source.batches()
    with manifest.opener(VARIANT)() as reader:
        added = reader.batch(slice(None))
    assert added["label"].tolist() == batch["y"].tolist() == labels
    np.testing.assert_array_equal(added["image"], batch["x"])
    counted = [{**one.values} for one in source.notes if one.kind == "not-read"]
    for values in counted:
        assert values.pop("files") == values.pop("not_read") + len(labels)
    assert counted == ([left] if left else [])
    assert [n.values for n in notes if n.kind == "not-read"] == [
        n.values for n in source.notes if n.kind == "not-read"
    ]
    measured = from_source(
        source, [], Requirements(formats=("npy",)), tmp_path / "samples", lambda text: None
    )
    assert measured.own_format == VARIANT


@pytest.mark.parametrize(
    ("names", "cause", "named"),
    [
        (("train/cat/0.jpg", "val/cat/1.jpg"), "several-splits", ["train", "val"]),
        (("image_0.jpg", "mask_0.jpg"), "no-label", ["image_0.jpg"]),
        ((*USUAL, "3.jpg"), "no-label", ["3.jpg"]),
    ],
)
def test_what_is_no_folder_per_class_is_refused_alike(tmp_path, names, cause, named):
    folder = write(tmp_path / "a", *names)
    for read in (
        lambda: open_source(folder, SHAPE),
        lambda: add(folder, VARIANT, data_dir=tmp_path / "data"),
    ):
        with refused_as(cause, SourceError) as caught:
            read()
        assert all(str(folder / name) in str(caught.value) for name in named)


@pytest.mark.parametrize(("mode", "cause"), [("I;16", "deep-pixels"), ("RGB", "several-images")])
def test_images_that_cannot_be_scaled_are_not_said_to_be(tmp_path, mode, cause):
    pages = [Image.new(mode, (9, 9)) for _ in range(2)]
    (tmp_path / "a/cat").mkdir(parents=True)
    Image.new("CMYK", (9, 9)).save(tmp_path / "a/cat/0.jpg")
    pages[0].save(tmp_path / "a/cat/1.tif", save_all=mode == "RGB", append_images=pages[1:] * (mode == "RGB"))
    for variant in (None, VARIANT):
        with refused_as(cause, SourceError):
            add(tmp_path / "a", variant, data_dir=tmp_path / "data")


def test_an_empty_image_is_refused_with_what_to_do(tmp_path):
    folder = write(tmp_path / "a", *USUAL)
    (folder / "dog/3.jpg").touch()
    with refused_as("unreadable", SourceError) as caught:
        add(folder, data_dir=tmp_path / "data")
    assert (str(caught.value.path), bool(caught.value.hint)) == (str(folder / "dog/3.jpg"), True)
    (folder / "dog/3.jpg").unlink()
    assert add(folder, data_dir=tmp_path / "data")


@pytest.mark.parametrize(("format", "size"), [(None, 400), (None, 30), (VARIANT, 400), (VARIANT, 30)])
def test_a_truncated_image_is_left_out_by_the_command_of_the_hint(tmp_path, inside, format, size):
    folder = tmp_path / "a b"
    for name in ("cat/0.jpg", "cat/1.jpg", "dog/2.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(noise).save(folder / name)
    (folder / "dog/2.jpg").write_bytes((folder / "dog/2.jpg").read_bytes()[:size])
    with pytest.raises(SourceError) as caught:
        add(folder, format, data_dir=tmp_path / "data")
    assert caught.value.path == str(folder / "dog/2.jpg")
    (command,) = re.findall(r": '(.*)'$", caught.value.hint)
    words = ("--sample-shape", "3x8x8", "--format", "npy", "--data-dir", tmp_path / "b", "--json")
    done = inside(*shlex.split(command)[1:], *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 2


def test_folders_of_the_same_names_are_labels_with_a_line_that_makes_them_fields(tmp_path, monkeypatch):
    names = [f"{folder}/{stem}" for folder in ("images", "masks") for stem in ("a", "b", "c")]
    folder = write(tmp_path / "a", *(f"{one}.{'jpg' if one[0] == 'i' else 'png'}" for one in names))
    source, notes = open_source(folder, SHAPE), []
    add(folder, VARIANT, data_dir=tmp_path / "data", warn=notes.append)
    for (note,) in (source.notes, notes):
        assert (note.kind, note.values) == ("same-names", {"labels": 2, "files": 6})
    monkeypatch.chdir(folder)
    exec(note.hint.partition(": ")[2], {"numpy": np, "pathlib": pathlib, "PIL": PIL})
    made = open_source(folder / "fields.npz").schema
    assert (made.samples, [field.name for field in made.fields]) == (3, ["images", "masks"])
    (folder / "fields.npz").unlink()
    write(folder, "masks/d.png", "images/e.jpg")
    assert not open_source(folder, SHAPE).notes[1:]
    assert not open_source(write(tmp_path / "b", "cat/0 copy.jpg", "dog/0 copy.jpg"), SHAPE).notes
    assert open_source(write(tmp_path / "c", "my_images/0.jpg", "gt/0.jpg"), SHAPE).notes


def test_masks_beside_a_split_are_not_offered_as_one(tmp_path):
    folder = write(tmp_path / "a", "train/1.png", "train_masks/1_mask.png")
    with pytest.raises(SourceError) as caught:
        open_source(folder, SHAPE)
    assert (caught.value.kind, str(folder / "train_masks") in caught.value.hint) == ("several-splits", False)


def test_patients_with_files_of_the_same_names_have_an_option_that_works(tmp_path):
    for patient in ("p0", "p1"):
        (tmp_path / "a" / patient).mkdir(parents=True)
        for night in range(3):
            with h5py.File(tmp_path / f"a/{patient}/night{night}.h5", "w") as file:
                file["x"] = np.zeros((2 + night, 4))
    (note,) = [one for one in open_source(tmp_path / "a").notes if one.kind == "same-names"]
    assert "--files parts" in note.hint
    assert open_source(tmp_path / "a", files="parts").schema.samples == 2 * (2 + 3 + 4)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (["a/a (1).png", "a/a (1)_mask.png", "b/b.png", "b/b_mask.png"], {"files": 4, "belonging": 2}),
        (["s0/image.png", "s0/mask.png", "s1/image.png", "s1/mask.png"], {"files": 4, "belonging": 2}),
        (["JPEGImages/1.png", "JPEGImages/2.png", "SegmentationClass/1.png"], {"labels": 2, "files": 3}),
        (["trainA/1.png", "trainA/2.png", "trainB/3.png"], {"labels": 2, "files": 3}),
        (["mask/mask 1.png", "none/1.png"], None),
        (["left/1.png", "right/2.png"], None),
        (["cat/cat_gt_1.png", "cat/cat_gt_2.png", "dog/dog_gt.png"], None),
    ],
)
def test_masks_and_the_like_that_are_taken_as_samples_are_said(tmp_path, monkeypatch, names, values):
    found = [
        one.values for one in open_source(write(tmp_path / "a", *names), SHAPE).notes if one.kind == "roles"
    ]
    assert found == ([] if values is None else [values])
    monkeypatch.chdir(tmp_path / "a")
    assert [one.values for one in open_source(".", SHAPE).notes if one.kind == "roles"] == found


def test_speech_in_a_folder_per_speaker_and_chapter_is_read_where_it_lies(tmp_path):
    soundfile, folder = pytest.importorskip("soundfile"), tmp_path / "speech"
    for row, chapter in enumerate(("1272/128104", "1272/135031", "84/121123")):
        (folder / chapter).mkdir(parents=True)
        soundfile.write(folder / chapter / "0.flac", np.full(9, row, np.int16), 16_000)
        (folder / chapter / "0.trans.txt").write_text("WORDS")
    notes = []
    manifest, _ = add(folder, data_dir=tmp_path / "data", warn=notes.append)
    with manifest.opener("audio")() as reader:
        batch = reader.batch(slice(None))
    assert batch["label"].tolist() == [0, 0, 1]
    assert batch["audio"].values[::9].tolist() == [0, 1, 2]
    assert {note.kind: note.values for note in notes} == {
        "inner-folders": {"labels": 2, "inner": 3},
        "not-read": {"files": 6, "not_read": 3, ".txt": 3},
    }


def test_one_label_for_all_is_said(tmp_path):
    write(tmp_path / "a", "images/1.jpg", "annotations/instances.json")
    notes = []
    add(tmp_path / "a", data_dir=tmp_path / "data", warn=notes.append)
    for found in (notes, open_source(tmp_path / "a").notes):
        assert [one.values for one in found if one.kind == "one-label"] == [{"files": 1}]


@pytest.mark.parametrize("stray", ["desktop.ini", "train.py", "archive.zip"])
def test_a_stray_file_beside_folders_of_images_is_counted(tmp_path, stray):
    write(tmp_path / "a", "cat/1.jpg", "dog/1.jpg", stray)
    notes = []
    manifest, _ = add(tmp_path / "a", data_dir=tmp_path / "data", warn=notes.append)
    source = open_source(tmp_path / "a")
    assert manifest.schema.samples == source.schema.samples == 2
    for found in (notes, source.notes):
        assert [one.values["not_read"] for one in found if one.kind == "not-read"] == [1]
    np.save(tmp_path / "a/labels.npy", np.arange(2))  # which may be their labels
    assert not contains_images(tmp_path / "a")
    (tmp_path / "a/labels.npy").unlink()
    write(tmp_path / "a", "src/x.py")  # a folder of a program that has images, too
    with pytest.raises(SourceError):
        open_source(tmp_path / "a")


def test_a_picture_beside_tables_is_no_sample_and_a_table_beside_pictures_is_asked_for(tmp_path):
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table, folder, data = pa.table({"a": [1.0, 2.0]}), tmp_path / "a", tmp_path / "data"
    write(folder, "preview.png")
    for number in range(2):
        parquet.write_table(table, folder / f"train-{number}.parquet")
    assert open_source(folder).schema.samples == add(folder, data_dir=data)[0].schema.samples == 4
    write(folder, "1.png", "2.png")
    source = open_source(folder, SHAPE)
    assert source.schema.samples == 3
    assert [one.values[".parquet"] for one in source.notes if one.kind == "not-read"] == [2]
    with refused_as("unrecognized", SourceError):
        add(folder, data_dir=data)
    assert add(folder, "images", data_dir=data, name="b")[0].schema.samples == 3


def test_shards_of_several_splits_are_named(tmp_path):
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    (tmp_path / "tables").mkdir()
    for name in ("train-0", "train-1", "test-0", "._test-0"):
        parquet.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "tables" / f"{name}.parquet")
    notes = []
    manifest, _ = add(tmp_path / "tables", data_dir=tmp_path / "data", warn=notes.append)
    assert manifest.schema.samples == 6
    assert {note.kind: note.values for note in notes} == {
        "several-splits": {"train": 2, "test": 1},
        "not-read": {"files": 4, "not_read": 1, "hidden": 1},
    }
