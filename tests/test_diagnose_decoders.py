"""Loaders whose JPEG files another library decodes faster than Pillow, or not."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from live_loaders import Samples, until
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch.utils.data import DataLoader

from iobench import formats
from iobench.advise.checks import decoding, remedies
from iobench.advise.checks.call_costs import Profile
from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.remedies import PatchedDataset
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.watchdog import Watchdog
from iobench.bench.budget import Budget
from iobench.formats import WholeDecoder


def ones(stored, mode, size):
    return np.ones((*size[::-1], 3), np.uint8)


def failing(stored, mode, size):
    raise ValueError("no")


def late(stored, mode, size):
    time.sleep(0.2)
    return ones(stored, mode, size)


ONES = WholeDecoder("ones", "ones(data)", ones)
FAILING, LATE = replace(ONES, name="failing", decode=failing), replace(ONES, name="late", decode=late)


class Photos(Samples):
    """Samples of one photo with something random, which cannot be kept in memory."""

    def __init__(self, photo):
        super().__init__(16, photo=photo)

    def __getitem__(self, row):
        with Image.open(self.photo) as image:
            return torch.from_numpy(np.array(image)) + torch.randint(0, 2, (1,), dtype=torch.uint8)


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(np.zeros((900, 1200, 3), np.uint8)).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


@pytest.fixture
def decoders(monkeypatch):
    """Return a function that lets decoders be those that are installed."""
    images = formats.class_of("images")
    return lambda *known: monkeypatch.setattr(images, "jpeg_decoders", lambda self: iter(known))


def test_only_jpeg_images_that_pillow_decodes_whole_are_decoded_by_another_library(photo, tmp_path):
    before, (png, cmyk) = JpegImageFile.load, (tmp_path / "photo.png", tmp_path / "print.jpg")
    with Image.open(photo) as image:
        image.save(png)
        image.convert("CMYK").save(cmyk)
    own = [np.asarray(Image.open(file)) for file in (png, cmyk)]
    with decoding.loaded_by(ONES):
        assert np.asarray(Image.open(photo).convert("RGB")).all()
        others = [np.asarray(Image.open(file)) for file in (png, cmyk)]
        drafted = Image.open(photo)
        drafted.draft(None, (300, 225))
        assert not np.asarray(drafted).any()
    assert all(map(np.array_equal, own, others))
    assert JpegImageFile.load is before
    assert "load" not in vars(JpegImageFile)  # but its parent's


def test_batches_of_a_patched_dataset_are_asked_for_as_before(photo):
    class Whole(Photos):
        def __getitems__(self, rows):
            return [(row, self[row].min() > 0) for row in rows]

    for dataset in (Whole(photo), Photos(photo)):
        patched = PatchedDataset(dataset, lambda: decoding.loaded_by(ONES))
        found = patched.__getitems__([3, 1])
        if isinstance(dataset, Whole):
            assert found == [(3, True), (1, True)]
        else:
            assert all(one.min() > 0 for one in found)
            assert patched[0].min() > 0


def test_a_decoder_is_compared_with_pillow_over_the_same_files(photo):
    with decoding.recorded() as files:
        Photos(photo)[0]
    assert [(one.stored, one.mode, one.size) for one in files] == [(photo.read_bytes(), "RGB", (1200, 900))]
    found = decoding.speed(ONES, files, Budget(1.0))  # several turns: the least time of each counts
    assert (found["files"], found["most"]) == (1, 1)
    assert decoding.speed(LATE, files, Budget(1.0))["times"] < 1 < found["times"]


def changes(photo):
    """Return the changes that are tried for a loader that spends its time with decoding."""
    own = DataLoader(Photos(photo), 4)
    watched = WatchedLoader(own, "cpu", lambda stats: None)
    list(watched)
    spent = Profile("main process", 1.0, [], 0.9, 16, 0.1, costs={"decoding": 0.9})
    found = Evidence(watched.stats, profiles=[spent])
    changes = remedies.Remedies(TunableLoader(own), found, Watchdog(60.0, Budget(60.0))).candidates()
    return [one for one in changes if one.kind == "decoder"], [one.values["change"] for one in found.skipped]


@pytest.mark.parametrize("known", [(), (LATE,)], ids=["none installed", "a slower one"])
def test_a_decoder_is_not_tried_unless_it_is_faster(photo, decoders, known):
    decoders(*known)
    tried, skipped = changes(photo)
    assert not tried
    assert remedies.OTHER_DECODER in skipped


def test_the_fastest_decoder_is_tried(photo, decoders):
    decoders(FAILING, LATE, ONES)
    (tried,), skipped = changes(photo)
    assert (tried.changes["decoder"], tried.changes["most"]) == ("ones", 1)
    assert any("failing" in one for one in skipped)
    assert all(batch.min() > 0 for batch in tried.make())


def test_the_gain_of_a_faster_decoder_is_measured(photo, decoders):
    decoders(ONES)
    found = until("jpeg-decoder", lambda: DataLoader(Photos(photo), 4)).advice
    (advice,) = [one for one in found if one.kind == "jpeg-decoder"]
    assert advice.gain > 1.05
    assert advice.values["decoder"] == "ones"
    assert "decoding" not in [one.kind for one in found]
