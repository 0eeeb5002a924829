"""Loaders of studies return correct batches, and contenders measure their cost."""

import sys

import numpy as np
import pytest
import torch
from conftest import image_arrays
from kinds import kind

import iobench
from iobench.base.errors import MissingDependency
from iobench.bench.content_check import content_check
from iobench.bench.epoch import RoundSpec, measure
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.order import Order
from iobench.studies import StudyOptions, settings, small_batches
from iobench.studies._epochs import TrainingInParts, epochs
from iobench.studies.settings import BOTH, TABLE, Background, Resident
from iobench.studies.small_batches import hdf5_resizes, lmdb_when_full, misread_by_forks

CPU = HostToDevice(torch.device("cpu"), non_blocking=False)


@pytest.mark.parametrize("loader", [Background(), Background(num_workers=2), Resident()])
@pytest.mark.parametrize("order", ["sequential", "random"])
def test_a_loader_of_a_study_returns_every_sample_in_the_requested_order(images, loader, order):
    job = Job(images.opener("npy"), Order(order, 16))
    check = content_check(loader, job, images)
    result = measure(loader, job, CPU, RoundSpec(0, check.add, seconds=0.0, requested=check.expect))
    check.conclude()
    assert result.timing.samples == images.schema.samples
    assert result.timing.epochs == 1


def test_every_row_of_the_table_has_its_own_label_on_a_gpu_and_some_share_one_without():
    assert len({one.on("cuda:0").label for one in TABLE.values()}) == len(TABLE) == 11
    assert len({one.on("cpu").label for one in TABLE.values()}) == 7
    assert BOTH.label.split(", ")[:3] == ["pinned", "non-blocking", "8 workers × 8"]
    assert not any(one.on("cpu").loader.pins("cpu") for one in TABLE.values())
    assert TABLE[3].loader.variant == (
        "dataloader:pin_memory=yes,non_blocking=yes,num_workers=8,prefetch_factor=8,start_method=fork"
    )


def test_a_round_has_metrics_of_its_parts(images):
    job = Job(images.opener("npy"), Order(batch_size=16))
    result = epochs(TorchDataLoader(), job, count=2, consumer=TrainingInParts)()
    assert set(result.metrics) >= {"wait_s", "forward_s", "backward_s"}
    assert 0 < sum(result.metrics[name] for name in ("wait_s", "forward_s", "backward_s")) < result.seconds


def test_a_round_has_several_epochs_each_in_its_own_order(images):
    batches = []

    def collect(opener, transfer):
        return lambda batch: batches.append(batch["y"].clone())

    job = Job(images.opener("npy"), Order("random", images.schema.samples))
    epochs(TorchDataLoader(), job, count=2, consumer=collect)()
    first, second = batches
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)


def test_the_libraries_behave_as_measured():
    assert (lmdb_when_full(), hdf5_resizes()) == ((True, True), True)


def test_samples_that_forks_read_wrong_are_counted(images, own_images):
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
    ("study", "library", "extra"),
    [(settings, "prefetch_generator", "studies"), (small_batches, "PIL", "images")],
)
def test_a_study_without_its_extra_has_the_pip_command_as_hint(monkeypatch, tmp_path, study, library, extra):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(settings, "QUICK", 100)
    monkeypatch.setattr(small_batches, "QUICK", 16)
    with pytest.raises(
        MissingDependency, check=kind("missing-dependency", hint=f"pip install 'iobench[{extra}]'")
    ):
        study.STUDY.measure(StudyOptions(tmp_path, quick=True, device="cpu"))
