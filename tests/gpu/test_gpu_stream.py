"""StreamLoader on a CUDA device."""

import time

import numpy as np
import pytest
import torch
from conftest import SAMPLES, image_arrays
from stream_loaders import stream_loader

from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.bench import limits
from iobench.bench.meter import DeviceClock
from iobench.dataset.checksum import Checksum
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.host.device import device_of, pick_device
from iobench.host.hardware_limits import DEVICE_TO_HOST, HOST_TO_DEVICE
from iobench.loading.host_to_device import HostToDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def stream(manifest, **options):
    return stream_loader(manifest.root, **{"format": "npy", "batch_size": 32, "device": "cuda", **options})


@pytest.mark.parametrize("name", DEFAULT_FORMATS)
@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_every_sample_reaches_the_device_once(images, name, order):
    batches = list(stream(images, format=name, order=order))
    assert all(batch["x"].is_cuda and batch["y"].is_cuda for batch in batches)
    result = torch.cat([batch["x"] for batch in batches]).cpu().numpy().reshape(SAMPLES, -1)
    expected = image_arrays()["x"].reshape(SAMPLES, -1)
    order_of = [np.lexsort(rows.T) for rows in (result, expected)]
    np.testing.assert_array_equal(result[order_of[0]], expected[order_of[1]])


def test_held_batches_never_change_while_others_are_copied_and_computed_on(floats):
    loader = stream(floats, batch_size=512, order="random")
    held, sums = [], []
    for batch in loader:
        held.append(batch["x"])
        sums.append(batch["x"].double().sum())
        torch.cuda._sleep(1_000_000)  # unfinished when the next batch is requested
    torch.cuda.synchronize()
    for tensor, total in zip(held, sums, strict=True):
        assert float(tensor.double().sum()) == float(total)
    whole = torch.cat(held).cpu().numpy().sum(dtype=np.float64)
    assert whole == pytest.approx(np.load(floats.files_of("npy")[0]).sum(dtype=np.float64))


def test_batches_dropped_at_once_are_not_overwritten_before_their_kernels_ran(floats):
    totals = []
    for batch in stream(floats, batch_size=512):
        torch.cuda._sleep(1_000_000)
        totals.append(batch["x"].double().sum())
        del batch
    result = float(torch.stack(totals).sum())
    assert result == pytest.approx(np.load(floats.files_of("npy")[0]).sum(dtype=np.float64))


def test_device_memory_is_requested_once_and_not_in_each_epoch(floats):
    device_api, loader, seen = device_of(pick_device("cuda")), stream(floats, batch_size=512), []
    for _ in range(6):
        for batch in loader:
            batch["x"].sum()
        del batch
        device_api.synchronize()
        seen.append((device_api.allocations(), torch.cuda.memory_reserved()))
    # the number of groups at once depends on threads; a stream per epoch would need six times as many
    assert all(last <= 2 * first for first, last in zip(seen[1], seen[-1], strict=True)), seen


def test_a_transform_may_change_shapes_before_the_copy(images):
    batches = list(stream(images, transform=lambda batch: {"mean": batch["x"].float().mean((2, 3))}))
    assert {tuple(batch["mean"].shape[1:]) for batch in batches} == {(3,)}
    assert all(batch["mean"].is_cuda for batch in batches)


def test_every_batch_is_right_with_a_late_consumer_without_synchronisation(floats):
    transfer, proof = HostToDevice(pick_device("cuda"), True), Checksum(floats.schema)
    for batch in stream(floats, batch_size=512, order="random"):
        transfer.lag()
        proof.add(batch)
        del batch
    assert proof.content == floats.content


@pytest.mark.parametrize("strict", [False, True])
def test_the_devices_time_adds_up_to_the_epoch(floats, strict):
    device_api, began = device_of(pick_device("cuda")), time.perf_counter()
    clock = DeviceClock(device_api, strict)
    step = clock.around(lambda batch: torch.cuda._sleep(1_000_000))
    with clock:
        for batch in stream(floats, batch_size=512):
            step(batch)
    elapsed = time.perf_counter() - began
    assert len(clock.steps) == len(stream(floats, batch_size=512))
    assert 0 < clock.waits.first_s <= clock.waits.total_s
    assert clock.waits.total_s + clock.steps.total_s <= elapsed


def test_a_gpu_that_is_never_idle_does_not_wait_though_its_host_does():
    def read():
        for _ in range(20):
            time.sleep(0.005)
            yield torch.zeros(4)

    loop = WatchedLoader(read(), "cuda", lambda stats: None)
    for _ in loop:
        torch.cuda._sleep(60_000_000)  # tens of milliseconds, submitted in microseconds
    assert loop.stats.batches == 20
    assert loop.stats.wait_share < 0.1


def test_the_limits_of_the_way_to_the_device_are_measured(images):
    result = limits.survey(images, torch.device("cuda:0"), 32, 0.01)
    directions = [limit.name for limit in result.limits if "device" in limit.name]
    assert directions == [HOST_TO_DEVICE] * 2 + [DEVICE_TO_HOST] * 2
