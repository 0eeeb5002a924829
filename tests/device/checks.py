"""Guarantees of the transfer to a device, as checks that mutations must fail: see test_mutations.

Each takes a function that plugs in the simulated devices with a schedule, and raises AssertionError. CHECKS
has them all by name.
"""

from contextlib import closing
from functools import partial
from itertools import product

import backend
import numpy as np
import torch
from conftest import image_arrays
from simulated import device

from iobench import StreamLoader
from iobench.base.options import declared
from iobench.bench import epoch
from iobench.bench.meter import DeviceClock
from iobench.dataset.checksum import Checksum
from iobench.host.device import device_of
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import ORDERS, Order
from iobench.stream import pipeline
from iobench.stream.backend_selection import select_backend
from iobench.stream.options import ReadOptions
from iobench.stream.pipeline import Pipeline
from iobench.stream.transfer import MAX_BEHIND, transfer_to

BATCH = 16


def batches_of_stream(manifest, index, order, threads=2, transform=None):
    """Yield (batch, rows) of an epoch with groups of one batch each, so that slots are reused soon."""
    schema, epoch = manifest.schema, Order(order, BATCH)
    backend_ = select_backend(manifest.opener("npy"), schema, ReadOptions(threads, direct=False), BATCH)
    rows = epoch.batches(schema.samples, 0)
    before, pipeline.GROUP_BYTES = pipeline.GROUP_BYTES, 1
    try:
        opened = Pipeline(backend_, schema, epoch, transfer_to(device(index)), transform)
    finally:
        pipeline.GROUP_BYTES = before
    with closing(opened), closing(opened.run(rows)) as running:
        yield from zip(running, rows, strict=True)


def held_batches_are_what_was_asked_for(plug_in, schedule, manifest, index, order):
    """Check every batch after all have arrived."""
    plug_in(schedule)
    held = list(batches_of_stream(manifest, index, order))
    device_of(device(index)).synchronize()
    for batch, rows in held:
        for name, array in image_arrays().items():
            np.testing.assert_array_equal(batch[name].cpu().numpy(), array[rows])
    assert backend.machine().faults == []


def dropped_batches_were_still_right(plug_in, schedule, manifest, index, order):
    """Check sums of batches dropped at once, computed in a consumer's stream that may be late."""
    plug_in(schedule)
    assert_sums(batches_of_stream(manifest, index, order))


def assert_sums(batches):
    """Sum the fields of each batch where it is, and compare all sums when all batches are gone."""
    result, arrays = [], image_arrays()
    for batch, rows in batches:
        result.append((batch["x"].to(torch.int64).sum(), batch["y"].sum(), rows))
        del batch
    for images, labels, rows in result:
        assert int(images) == int(arrays["x"][rows].sum(dtype=np.int64))
        assert int(labels) == int(arrays["y"][rows].sum())


def memory_stays_flat(plug_in, schedule, manifest):
    """Check device and pinned memory over many epochs of training, each with slots of its own."""
    machine = plug_in(schedule)
    loader = StreamLoader(manifest.root, format="npy", batch_size=32, device=f"{backend.NAME}:0")
    pool, seen = machine.pools[0], []
    for _ in range(12):
        for batch in loader:
            (batch["x"] + 1).sum()
        del batch
        loader.close()
        seen.append((pool.reserved, pool.allocations, machine.pinned.bytes))
    # the number of groups at once depends on threads and schedule; a leak grows with each epoch
    assert all(last <= 3 * first for first, last in zip(seen[0], seen[-1], strict=True)), seen


def the_consumer_is_never_far_behind(plug_in, schedule, manifest):
    """Check that a late consumer's stream lags by a few batches and not by the whole epoch."""
    plug_in(schedule)
    device_api, steps, behind = device_of(device(0)), [], []
    for batch, _ in batches_of_stream(manifest, 0, "random"):
        batch["x"].add_(1)
        steps.append(device_api.mark())
        behind.append(sum(not step.reached() for step in steps))
    assert max(behind) <= MAX_BEHIND + 1, behind


def nothing_is_unfinished_when_the_clock_stops(plug_in, schedule, manifest, loader):
    """Check that all copies and steps have ended when the epoch's time ends."""
    machine, left = plug_in(schedule), []

    class Meter(epoch.Meter):
        def __exit__(self, *exc):
            left.append(machine.unfinished())
            super().__exit__(*exc)

    before, epoch.Meter = epoch.Meter, Meter
    try:
        measured(manifest, loader, 0, lambda batch: batch["x"] + 1)
    finally:
        epoch.Meter = before
    assert left[-1] == 0, left


def no_copy_without_waiting_reads_pageable_memory(plug_in, schedule, manifest, loader):
    """Check that what is copied with `non_blocking` lies in pinned memory: the host waits otherwise."""
    machine = plug_in(schedule)
    measured(manifest, loader, 0, lambda batch: None)
    assert machine.faults == []


def only_that_device_is_woken(plug_in, schedule, manifest, loader, index):
    """Check that neither copies nor pinned memory use another device."""
    machine = plug_in(schedule)
    measured(manifest, loader, index, lambda batch: None)
    assert set(machine.woken) == {index}, machine.woken


def streamloader_wakes_only_its_device(plug_in, schedule, manifest, index):
    """Check that training on a device other than the current one initializes no other device."""
    machine = plug_in(schedule)
    list(StreamLoader(manifest.root, format="npy", batch_size=32, device=f"{backend.NAME}:{index}"))
    assert set(machine.woken) == {index}, machine.woken
    assert machine.device == 0  # which is the user's to change


def peaks_are_each_case_s_own(plug_in, schedule, manifest):
    """Check that a small case after a large one has the same peak as by itself."""

    def peak(*batch_sizes):
        plug_in(schedule)
        transfer = HostToDevice(device(0), non_blocking=True)
        for size in batch_sizes:
            transfer.release_memory()
            measured(manifest, "native", 0, lambda batch: None, batch_size=size)
        return transfer.peak_bytes()

    alone, after = peak(8), peak(200, 8)
    assert 0 < alone[0] <= alone[1]
    assert after == alone


def copies_are_booked_as_waiting(plug_in, schedule, manifest, strict):
    """Check copies of 20 ms in the consumer's stream and steps of 10 ms, by the device's clock."""
    copy_s, step_s, steps = 0.02, 0.01, 5
    machine = plug_in(schedule, copy_bytes_per_s=1000 / copy_s)
    transfer = HostToDevice(device(0), non_blocking=True)
    clock = DeviceClock(transfer.device_api, strict)
    step = clock.around(lambda batch: machine.work(0, step_s))
    with clock:
        for _ in range(steps):
            step(transfer.move({"x": torch.zeros(1000, dtype=torch.uint8).pin_memory()}))
    assert len(clock.steps) == steps
    booked = [clock.waits.first_s, clock.waits.total_s, clock.steps.total_s]
    np.testing.assert_allclose(booked, [copy_s, steps * copy_s, steps * step_s])


def waiting_is_the_devices_own(plug_in, schedule, manifest, loader, index=0, variant="npy"):
    """Check that waits in a record are by the device's clock: copies of 20 ms per batch and no steps."""
    rate = BATCH * manifest.schema.sample_bytes / 0.02
    plug_in(schedule, copy_bytes_per_s=rate)
    result = measured(manifest, loader, index, lambda batch: None, variant).timing
    np.testing.assert_allclose(result.wait_s, manifest.schema.logical_bytes / rate)
    if loader != "stream":  # which copies several batches at once
        np.testing.assert_allclose(result.wait_p50_s, 0.02)
    assert 0.02 - 1e-9 <= result.first_batch_s <= result.wait_s
    assert result.wait_p50_s <= result.wait_p99_s <= result.wait_s


def dropped_batches_of_an_epoch_were_right(plug_in, schedule, manifest, loader, index=0):
    """Check sums of batches dropped at once, of a map-style loader."""
    plug_in(schedule)
    job = job_of(manifest, "random", index)
    rows = job.order.batches(manifest.schema.samples, 0)
    with closing(loaders.get(loader).on(job.device).open(job)) as epochs:
        assert_sums(zip(epochs.epoch(rows), rows, strict=True))


def job_of(manifest, order, index, variant="npy", batch_size=BATCH):
    """Return the job of a loader for a simulated device."""
    return Job(manifest.opener(variant), Order(order, batch_size), f"{backend.NAME}:{index}")


def measured(manifest, loader, index, consume, variant="npy", order=None, **chosen):
    """Measure one epoch of a case on a simulated device, pinned and non-blocking."""
    kind, batch_size = loaders.type_of(loader), chosen.pop("batch_size", BATCH)
    options = {"fetch": "batch", **chosen}
    own = {spec.name for spec in declared(kind)}
    job = job_of(manifest, order or kind.orders[0], index, variant, batch_size)
    given = {name: value for name, value in options.items() if name in own}
    one = loaders.get(loader, **given).on(job.device)
    transfer = HostToDevice(device(index), one.copies_without_blocking)
    return epoch.measure(one, job, transfer, epoch.RoundSpec(1, consume, seconds=0.0))


def proved(manifest, loader, index, variant="npy", **chosen):
    """Return the checksum of an epoch's content on the device, computed there."""
    check = Checksum(manifest.schema)
    measured(manifest, loader, index, check.add, variant, **chosen)
    return check.content


def each(check, **values):
    """Return a check with each combination of these values."""
    return [partial(check, **dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]


EVERY, BOTH = {"loader": loaders.DEFAULT_LOADERS}, {"index": (0, 1)}
CHECKS = {
    "held": each(held_batches_are_what_was_asked_for, **BOTH, order=ORDERS),
    "dropped": each(dropped_batches_were_still_right, **BOTH, order=ORDERS),
    "flat": [memory_stays_flat],
    "bounded": [the_consumer_is_never_far_behind],
    "finished": each(nothing_is_unfinished_when_the_clock_stops, **EVERY),
    "pageable": each(no_copy_without_waiting_reads_pageable_memory, **EVERY),
    "woken": each(only_that_device_is_woken, **EVERY, **BOTH)
    + each(streamloader_wakes_only_its_device, **BOTH),
    "peaks": [peaks_are_each_case_s_own],
    "booked": each(copies_are_booked_as_waiting, strict=(False, True)),
    "waits": each(waiting_is_the_devices_own, **EVERY),
}
