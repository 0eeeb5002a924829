"""Labels that are in the names of files, where no folder per class exists."""

import numpy as np
import pytest
from kinds import kind
from PIL import Image

from iobench import formats
from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.sources import open_source
from iobench.formats.folders import natural

NAMED = {  # names of files, classes, and the label of each file in natural order
    "words": (("cat.0", "cat.10", "cat.2", "dog.0", "dog.1"), ["cat", "dog"], [0, 0, 0, 1, 1]),
    "words of several parts": (
        ("great_pyrenees_1", "great_pyrenees_2", "Bengal_3", "Bengal_4"),
        ["Bengal", "great_pyrenees"],
        [0, 0, 1, 1],
    ),
    "numbers first": (("1 cat", "2 dog", "3 dog", "4 cat"), ["cat", "dog"], [0, 1, 1, 0]),
    "numbers that are stated": (
        ("img_0001_label10", "img_0002_label2", "img_0003_label10", "img_0004_label2"),
        ["2", "10"],
        [1, 0, 1, 0],
    ),
}
UNCERTAIN = (
    ("IMG_10", "IMG_2", "IMG_3", "IMG_4"),  # one class
    ("20_0_1", "21_1_1", "20_1_2", "21_0_2"),  # several numbers
    ("7_ann_0", "7_bob_0", "8_ann_1", "8_bob_1"),  # a word and several numbers
    ("cat_1", "dog_2", "ant_3", "bee_4"),  # as many words as files
    ("cat_1", "cat_2", "dog", "dog_3"),
)
SEVERAL_ROLES = (
    ("image_0", "image_1", "mask_0", "mask_1"),  # of one sample
    ("frames_0", "frames_1", "scans_0", "scans_1"),
    ("train_0", "train_1", "test_0", "test_1"),
)


def images(folder, names):
    folder.mkdir()
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(folder / f"{name}.png")
    return folder


@pytest.mark.parametrize(("names", "classes", "labels"), NAMED.values(), ids=NAMED)
def test_labels_are_taken_from_names_alike_and_said(tmp_path, names, classes, labels):
    folder, notes = images(tmp_path / "a", names), []
    source = open_source(folder, (3, 8, 8))
    manifest, row = add(folder, data_dir=tmp_path / "data", warn=notes.append)
    with manifest.opener(row.variant)() as reader:
        added = reader.batch(slice(None))
    (batch,) = source.batches()
    assert added["label"].tolist() == batch["y"].tolist() == labels
    np.testing.assert_array_equal(np.moveaxis(added["image"], -1, 1), batch["x"])
    assert source.labels == classes
    for said in (notes, source.notes):
        assert [(note.kind, note.values) for note in said] == [("named-labels", {"labels": 2})]


@pytest.mark.parametrize("names", UNCERTAIN)
def test_images_whose_names_tell_no_label_are_read_without_labels(tmp_path, names):
    folder, notes = images(tmp_path / "a", names), []
    (folder / "labels.csv").write_text("file,label\n")
    source = open_source(folder, (8, 8, 3))
    manifest, row = add(folder, data_dir=tmp_path / "data", warn=notes.append)
    with manifest.opener(row.variant)() as reader:
        added = reader.batch(slice(None))
    (batch,) = source.batches()
    assert [*added, *batch] == ["image", "x"]
    assert next(open_source(folder, (-1, -1, 3)).batches())["x"].values.tolist() == [
        pixel for pixels in batch["x"].tolist() for row in pixels for pixel in row
    ]
    expected = [names.index(name) for name in sorted(names, key=natural)]
    assert [int(pixels.ravel()[0]) // 20 for pixels in added["image"]] == expected
    np.testing.assert_array_equal(added["image"], batch["x"])
    for said in (notes, source.notes):
        assert [(one.kind, one.values["files"]) for one in said] == [("no-labels", 4), ("not-read", 5)]


@pytest.mark.parametrize("names", SEVERAL_ROLES)
def test_names_that_say_what_each_file_is_to_another_are_refused(tmp_path, names):
    folder = images(tmp_path / "a", names)
    assert not formats.get("images").sniff(folder)
    with pytest.raises(SourceError, check=kind("no-label")):
        open_source(folder, (3, 8, 8))
    with pytest.raises(SourceError, check=kind("unrecognized")):
        add(folder, data_dir=tmp_path / "data")


def test_sound_and_arrays_have_labels_in_names_too(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for name in ("clips", "arrays"):
        (tmp_path / name).mkdir()
    for number in range(4):
        soundfile.write(tmp_path / f"clips/{'no' if number % 2 else 'yes'}_{number}.wav", np.zeros(9), 8000)
        np.save(tmp_path / f"arrays/class{number % 2}_{number}.npy", np.full((9, 2), number, np.float32))
    for name, field in (("clips", "audio"), ("arrays", "x")):
        manifest, row = add(tmp_path / name, data_dir=tmp_path / "data")
        with manifest.opener(row.variant)() as reader:
            batch = reader.batch(slice(None))
        assert batch["label"].tolist() == [0, 0, 1, 1]
        assert len(batch[field]) == 4
