"""The cases that studies bring along deliver what every other case delivers, and note what they cost."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import image_arrays

import iobench
from iobench.base.errors import (
    MissingDependency,
)
from iobench.bench.epoch import Round, asked_of, measure
from iobench.bench.proof import Proof
from iobench.dataset.manifest import Opener
from iobench.formats import Field, Schema
from iobench.loading.loaders import Job
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.order import Order
from iobench.loading.transfer import HostToDevice
from iobench.studies import StudyOptions, _patches, settings, small_batches
from iobench.studies._combinations import BOTH, TABLE, Background, Resident, train_unwatched
from iobench.studies._epochs import Discard, TrainingInParts, epochs
from iobench.studies._libraries import hdf5_resizes, lmdb_when_full, misread_by_forks
from iobench.studies._png import Png

CPU = HostToDevice(torch.device("cpu"), non_blocking=False)


@pytest.mark.parametrize("loader", [Background(), Background(num_workers=2), Resident()])
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_a_loader_of_a_study_delivers_every_sample_in_the_order_asked_for(images, loader, order):
    job = Job(images.opener("npy"), Order(order, 16))
    proof = Proof(loader, job, images, asked_of(loader, job, 0))
    measured = measure(loader, job, CPU, Round(0, proof.add, seconds=0.0))
    proof.conclude()
    assert measured.timing.samples == images.schema.samples
    assert measured.timing.epochs == 1


def test_every_row_of_the_table_has_a_name_of_its_own_on_a_gpu_and_fewer_without():
    assert len({one.on("cuda:0").label for one in TABLE.values()}) == len(TABLE) == 11
    assert len({one.on("cpu").label for one in TABLE.values()}) == 7
    assert BOTH.label == "pinned, non-blocking, 8 workers × 8, background thread"
    assert not any(one.on("cpu").loader.pins("cpu") for one in TABLE.values())
    assert TABLE[3].loader.variant == (
        "dataloader:pin_memory=yes,non_blocking=yes,num_workers=8,prefetch_factor=8,start_method=fork"
    )


def test_a_turn_notes_what_it_took(images):
    job = Job(images.opener("npy"), Order(batch_size=16))
    turn = epochs(TorchDataLoader(), job, count=2, consumer=TrainingInParts)()
    assert set(turn.noted) >= {"wait_s", "forward_s", "backward_s"}
    assert 0 < sum(turn.noted[name] for name in ("wait_s", "forward_s", "backward_s")) < turn.seconds


def test_a_turn_is_as_many_epochs_as_asked_each_in_an_order_of_its_own(images):
    seen = []

    class Seeing(Discard):
        def __call__(self, batch):
            seen.append(batch["y"].clone())

    job = Job(images.opener("npy"), Order("random", images.schema.samples))
    epochs(TorchDataLoader(), job, count=2, consumer=Seeing)()
    first, second = seen
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def test_the_control_trains_as_long_as_the_others(images):
    assert train_unwatched(replace(images.opener("npy"), random=True), "cpu", 1).seconds > 0


def test_png_files_give_back_the_pixels(tmp_path):
    pixels = np.moveaxis(image_arrays(9)["x"], 1, -1).copy()
    schema = Schema(9, (Field("x", pixels.shape[1:], "uint8"),))
    Png().write(tmp_path, schema, [{"x": pixels[:4]}, {"x": pixels[4:]}])
    with Opener(Png(), tmp_path, schema)() as reader:
        assert np.array_equal(reader.batch(slice(0, 9))["x"], pixels)
        assert np.array_equal(reader.batch(np.array([8, 0, 0]))["x"], pixels[[8, 0, 0]])
        assert np.array_equal(reader.sample(5)["x"], pixels[5])


def test_what_is_said_of_the_libraries_is_tried():
    assert (lmdb_when_full(), hdf5_resizes()) == ((True, True), True)


def test_samples_that_forks_get_wrong_are_counted(images, own_images):
    assert (
        misread_by_forks(lambda: None, images.opener("hdf5"), images.opener("npy"), workers=2, epochs=1) == 0
    )
    zeros = np.zeros_like(image_arrays()["x"])
    np.savez(own_images.root.parent / "zeros.npz", x=zeros, y=image_arrays()["y"])
    other = iobench.prepare(
        iobench.open_source(own_images.root.parent / "zeros.npz"), ["npy"], data_dir=own_images.root.parent
    )[0]
    wrong = misread_by_forks(lambda: None, images.opener("hdf5"), other.opener("npy"), workers=2, epochs=1)
    assert wrong == images.schema.samples


@pytest.mark.parametrize(
    ("study", "library", "module"),
    [(settings, "prefetch_generator", None), (small_batches, "PIL", "iobench.studies._png")],
)
def test_a_study_without_its_extra_names_the_pip_command(monkeypatch, tmp_path, study, library, module):
    monkeypatch.setitem(sys.modules, library, None)
    if module:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(settings, "QUICK", 100)
    monkeypatch.setattr(_patches, "QUICK", 16)
    with pytest.raises(MissingDependency, match=r"pip install 'iobench\[studies\]'"):
        study.STUDY.measure(StudyOptions(tmp_path, quick=True, device="cpu"))
