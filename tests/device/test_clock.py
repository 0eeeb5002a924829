"""Device time is accounted as computing or waiting, by the device's clock."""

import time

import checks
import numpy as np
import pytest
import torch
from conftest import SAMPLES
from sim_machine import SCHEDULES
from simulated import device

from iobench.bench.meter import DeviceClock
from iobench.host.device import device_of
from iobench.loading import loaders

LOADERS = loaders.DEFAULT_LOADERS

pytest_plugins = "plugged"


@pytest.mark.parametrize(
    ("host_s", "step_s", "strict", "waited_s"),
    [
        (0.03, 0.01, False, 0.03 + 4 * 0.02),  # the device runs dry
        (0.01, 0.03, False, 0.01),  # the host hides behind the device
        (0.01, 0.03, True, 0.05),  # nothing overlaps
    ],
)
def test_a_device_waits_for_its_host_as_long_as_it_has_nothing_to_do(late, host_s, step_s, strict, waited_s):
    clock = DeviceClock(device_of(device(0)), strict)
    step = clock.around(lambda seconds: late.work(0, seconds))
    with clock:
        for _ in range(5):
            late.now += host_s  # reads
            step(step_s)
    booked = [clock.waits.first_s, clock.waits.total_s, clock.steps.total_s]
    np.testing.assert_allclose(booked, [host_s, waited_s, 5 * step_s])


def test_copies_on_the_side_are_hidden_behind_steps(plug_in, images):
    """The stream loader's copies overlap with steps; only the time that a step waits for them is waiting."""
    machine = plug_in("everything late")
    batch_bytes = checks.BATCH * images.schema.sample_bytes
    machine.copy_bytes_per_s = batch_bytes / 0.02
    clock = DeviceClock(device_of(device(0)))
    step = clock.around(lambda batch: machine.work(0, 0.03))
    with clock:
        for batch, _ in checks.batches_of_stream(images, 0, "sequential", threads=1):
            step(batch)
    assert len(clock.steps) == -(-SAMPLES // checks.BATCH)
    assert clock.steps.total_s == pytest.approx(len(clock.steps) * 0.03)
    assert clock.waits.first_s == pytest.approx(0.02)
    assert clock.waits.total_s == pytest.approx(0.02)  # for the first one


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loader", LOADERS)
def test_the_first_batch_is_complete_after_its_copy_for_every_loader(plug_in, images, schedule, loader):
    machine = plug_in(schedule)
    machine.copy_bytes_per_s = checks.BATCH * images.schema.sample_bytes / 0.02
    clock = DeviceClock(device_of(device(0)))
    with clock:
        checks.measured(images, loader, 0, clock.around(lambda batch: None))
    if loader == "stream":  # its first group is one batch too
        assert clock.waits.first_s >= 0.02 - 1e-9
    else:
        assert clock.waits.first_s == pytest.approx(0.02)


def test_marks_do_not_pile_up_while_the_device_keeps_up(plug_in):
    machine = plug_in("copies late")
    clock = DeviceClock(device_of(device(0)))
    step = clock.around(lambda seconds: machine.work(0, seconds))
    with clock:
        for number in range(20):
            step(0.01)
            assert len(clock.steps) == number + 1


def test_on_the_cpu_it_is_the_hosts_clock(monkeypatch):
    moments = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(moments)))
    clock = DeviceClock(device_of(torch.device("cpu")))
    step = clock.around(lambda batch: None)
    with clock:
        for number in range(4):
            step(number)
    booked = (len(clock.steps), clock.waits.first_s, clock.waits.total_s, clock.steps.total_s)
    assert booked == (4, 1.0, 4.0, 4.0)


def test_an_error_in_a_step_is_raised(late):
    def refuse(batch):
        raise KeyError

    clock = DeviceClock(device_of(device(0)))
    with pytest.raises(KeyError), clock:
        clock.around(refuse)(1)
