"""Samples that differ in size along several axes: collated, delivered by every loader, each byte verified."""

from dataclasses import replace

import numpy as np
import pytest
from kinds import refused_as
from ragged_cases import PictureSource, collated, collated_run, collating, not_zero, of_list, pictures_of

import iobench
from iobench.base.errors import InvalidSettings
from iobench.dataset.checksum import Checksum
from iobench.formats import RaggedReader
from iobench.loading.collate import Collate
from iobench.loading.tensors import tensors_of

LOADERS = ("native", "dataloader", "dataloader:fetch=batch", "stream", "spdl", "torchdata", "grain")
WITH_WORKERS = ("dataloader:num_workers=2", "dataloader:num_workers=2,fetch=batch")
WAYS = ("jagged", "list", "pad", "pad:multiple=8", "pad:to=24")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A dataset of images of 0 to 20 pixels along each side."""
    extents = np.random.default_rng(1).integers(0, 21, (300, 2))
    return iobench.prepare(
        PictureSource(extents), ["npy", "webdataset"], data_dir=tmp_path_factory.mktemp("pictures")
    )[0]


def test_they_cannot_be_packed(pictures, tmp_path):
    with refused_as("conflicting-options", InvalidSettings, match=r"image=uint8\[\*,\*,3\]"):
        collated_run(pictures, tmp_path, ("native",), ("pack:100",))


def test_every_loader_delivers_each_way_verified(pictures, tmp_path):
    records = collated(pictures, tmp_path, LOADERS, WAYS)
    assert len(records) == len(LOADERS) * len(WAYS)
    by_way = {way: {one.content_check.fill for one in records if one.case["collate"] == way} for way in WAYS}
    assert by_way["jagged"] == by_way["list"] == by_way["pad"]
    assert max(by_way["pad:to=24"]) < min(by_way["pad"])


def test_workers_collate_them(pictures, tmp_path):
    assert len(collated(pictures, tmp_path, WITH_WORKERS, ("list", "pad"))) == 2 * len(WITH_WORKERS)


def test_webdataset_collates_them(pictures, tmp_path):
    pytest.importorskip("webdataset")
    records = collated(pictures, tmp_path, ("webdataset",), ("list", "pad"), "webdataset")
    assert len(records) == 2


def turned(batch):
    """Exchange heights and widths: the lengths stay the same."""
    return {**batch, "image_extents": np.ascontiguousarray(batch["image_extents"][:, ::-1])}


def swapped(batch):
    """Exchange the extents of two samples."""
    extents = batch["image_extents"].copy()
    extents[[0, 1]] = extents[[1, 0]]
    return {**batch, "image_extents": extents}


@pytest.mark.parametrize("way", ["jagged", "pad", "list"])
@pytest.mark.parametrize("change", [turned, swapped])
def test_other_extents_fail_their_case(pictures, tmp_path, monkeypatch, change, way):
    original = RaggedReader.batch
    monkeypatch.setattr(RaggedReader, "batch", lambda self, rows: change(original(self, rows)))
    (error,) = collated_run(pictures, tmp_path, ("native",), (way,)).failures.values()
    assert error.kind == ("wrong-row" if change is turned else "wrong-extents")


def transposed(dense):
    """Exchange the axes of all images, and say so."""
    return replace(dense, values=dense.values.movedim(1, 2), lengths=dense.lengths.flip(1))


def untold(dense):
    """Exchange the axes of all images."""
    return replace(dense, values=dense.values.movedim(1, 2))


def of_each(change):
    """Change each tensor of a list."""
    return of_list(lambda tensors: tuple(map(change, tensors)))


@pytest.mark.parametrize(
    ("way", "change", "wrong"),
    [
        ("pad:to=24", not_zero, "wrong-padding"),
        ("pad:to=24", transposed, "wrong-extents"),
        ("pad:to=24", untold, None),
        ("list", of_each(lambda one: one.movedim(0, 1)), None),
        ("list", of_each(lambda one: one.flatten(0, 1)[None]), None),
        ("list", of_each(lambda one: one.flip(0)), None),
    ],
)
def test_changed_padding_and_shapes_fail_their_case(pictures, tmp_path, monkeypatch, way, change, wrong):
    monkeypatch.setattr(Collate, "__call__", collating(change))
    (error,) = collated_run(pictures, tmp_path, ("native",), (way,)).failures.values()
    assert wrong is None or error.kind == wrong


def test_hashes_depend_on_the_extents():
    schema, batch = pictures_of([(2, 3), (4, 4), (6, 0)])
    hashes = Checksum(schema).hashes(batch)
    other = Checksum(schema).hashes(turned(batch))
    assert (hashes != other).tolist() == [True, False, True]
    assert Checksum(schema).hashes(tensors_of(batch)).tolist() == hashes.tolist()
