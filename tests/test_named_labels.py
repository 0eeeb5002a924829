"""Labels that are in the names of files, where no folder per class exists."""

import numpy as np
import pytest
from kinds import kind
from PIL import Image

from iobench import formats
from iobench.base.errors import SourceError
from iobench.dataset.add import add
from iobench.dataset.sources import open_source

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
AMBIGUOUS = (
    ("IMG_0001", "IMG_0002", "IMG_0003", "IMG_0004"),  # one class
    ("20_0_1", "21_1_1", "20_1_2", "21_0_2"),  # several numbers
    ("7_ann_0", "7_bob_0", "8_ann_1", "8_bob_1"),  # a word and several numbers
    ("image_0", "image_1", "mask_0", "mask_1"),  # of one sample
    ("frames_0", "frames_1", "scans_0", "scans_1"),
    ("train_0", "train_1", "test_0", "test_1"),
    ("cat_1", "dog_2", "ant_3", "bee_4"),  # as many words as files
    ("cat_1", "cat_2", "dog", "dog_3"),
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


@pytest.mark.parametrize("names", AMBIGUOUS)
def test_names_that_may_tell_something_else_are_no_labels(tmp_path, names):
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
