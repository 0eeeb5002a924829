"""Tests that need a CUDA device: `pytest -m gpu` on a machine that has one."""

import math

import pytest
import torch

import iobench
from iobench import RunOptions
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.loading import loaders

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]

LOADERS = loaders.DEFAULT_LOADERS
PINNING = [{}, {"pin_memory": (False,)}, {"pin_memory": (True,), "non_blocking": (False,)}]


def run(manifest, tmp_path, **options):
    requested = RunOptions(device=("cuda",), rounds="1", **{"order": ("sequential",), **options})
    result = iobench.run(manifest, requested, out=tmp_path / "r.jsonl")
    assert not result.failures
    assert len(result.records) == len(LOADERS) * len(DEFAULT_FORMATS)
    return result.records


@pytest.mark.parametrize("pinning", PINNING)
@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("fetch", ["sample", "batch"])
def test_every_case_brings_the_right_content_to_the_device(images, tmp_path, pinning, order, fetch):
    chosen = {"fetch": (fetch,), **pinning}
    records = run(images, tmp_path, batch_size=(32,), order=(order,), loader_options=chosen)
    assert {record.case["device"] for record in records} == {"cuda:0"}
    pinned = {r.case["options"]["pin_memory"] for r in records if r.case["loader"] != "stream"}
    assert pinned == set(pinning.get("pin_memory", (True,)))
    memory = [record.memory for record in records]
    assert all(one.device_reserved_bytes >= one.device_allocated_bytes > 0 for one in memory)


def test_large_batches_arrive_whole_while_copies_overlap(floats, tmp_path):
    run(floats, tmp_path, batch_size=(2048,), loader_options={"fetch": ("batch",)})


def test_every_dtype_arrives(every_dtype, tmp_path):
    run(every_dtype, tmp_path)


def test_workers_feed_the_device(images, tmp_path):
    run(images, tmp_path, batch_size=(32,), loader_options={"num_workers": (2,), "fetch": ("batch",)})


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_every_case_trains_to_the_same_loss(images, tmp_path, model):
    losses = {record.loss for record in run(images, tmp_path, model=(model,))}
    assert len(losses) == 1
    assert math.isfinite(losses.pop())


def test_the_gpu_is_in_the_record(images, tmp_path):
    described = run(images, tmp_path)[0].machine.gpu
    assert described.name == torch.cuda.get_device_name()
    assert described.memory_bytes > 0
    assert described.driver
    gpu = described.details
    assert 1 <= gpu["pcie_generation"] <= gpu["pcie_generation_max"]
    assert 1 <= gpu["pcie_width"] <= gpu["pcie_width_max"]
    assert gpu["power_limit_w"] > 0
