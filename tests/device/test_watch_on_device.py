"""Diagnoses of a loop on a device, by the device's clock and independent of the host's."""

import threading
import time
from itertools import count

import pytest
import torch
from backend import NAME
from live_loaders import Samples
from sim_machine import SCHEDULES
from simulated import device
from torch.utils.data import DataLoader

import iobench
from iobench.advise import diagnose as session
from iobench.advise import diagnosis
from iobench.advise.checks import watched_loader
from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.host.device import Device, device_of

pytest_plugins = "plugged"

BATCHES = 12


@pytest.fixture(autouse=True)
def _no_loop_is_too_short(monkeypatch):
    monkeypatch.setattr(diagnosis, "MIN_S", 0.0)


def looped(machine, read_s, step_s, synchronise=False):
    """Stats of a loop whose host reads for `read_s` and submits steps of `step_s` to the device."""

    def read():
        for _ in range(BATCHES):
            machine.now += read_s
            yield torch.zeros(4)

    loop = WatchedLoader(read(), f"{NAME}:0", lambda stats: None)
    for _ in loop:
        machine.work(0, step_s)
        if synchronise:
            device_of(device(0)).synchronize()
    return loop.stats


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_busy_device_does_not_wait_although_its_host_does(plug_in, schedule):
    """The host waits for the loader nearly all the time: it only submits the steps."""
    stats = looped(plug_in(schedule), read_s=0.01, step_s=0.03)
    assert (stats.batches, stats.wait_s, stats.wait_max_s) == (BATCHES, 0.0, 0.0)
    assert stats.step_s == pytest.approx((BATCHES - 1) * 0.03)
    assert stats.first_wait_s == pytest.approx(0.01)
    assert diagnosis.diagnose(Evidence(stats)).bottleneck is False


@pytest.mark.parametrize("synchronise", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_device_that_has_run_dry_waits(plug_in, schedule, synchronise):
    stats = looped(plug_in(schedule), read_s=0.03, step_s=0.01, synchronise=synchronise)
    each = 0.03 if synchronise else 0.02  # nothing overlaps where the loop waits for each step
    assert stats.wait_p50_s == pytest.approx(each)
    assert stats.wait_s == pytest.approx((BATCHES - 1) * each)
    result = diagnosis.diagnose(Evidence(stats))
    assert result.bottleneck
    assert result.verdict.values["wait_share"] == stats.wait_share
    assert result.verdict.values["device"] == f"{NAME}:0"
    assert (stats.gpu, stats.gpu_low) == (None, None)  # no driver reports its utilisation


def test_by_the_host_s_clock_it_would_be_another_verdict(plug_in, monkeypatch):
    """The mutation: with the host's clock the test of a device that is never idle fails."""
    machine = plug_in("everything late")
    monkeypatch.setattr(watched_loader, "device_of", lambda device: Device(torch.device("cpu")))
    now = count(step=1e-6)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))  # a host that takes no time
    assert looped(machine, read_s=0.01, step_s=0.03).step_s < 0.03


@pytest.mark.parametrize("pinned", [False, True])
def test_pageable_memory_is_a_problem_with_a_device(plug_in, pinned):
    machine = plug_in("copies late")

    def slow(row):
        machine.now += 0.05
        return torch.zeros(3)

    loader = DataLoader(Samples(40, slow), batch_size=4, pin_memory=pinned)

    def kinds(where):
        loop = WatchedLoader(loader, where, lambda stats: None)
        for batch in loop:
            batch.to(device(0))
        return [one.kind for one in diagnosis.diagnose(Evidence(loop.stats)).advice]

    assert ("pageable-memory" in kinds(f"{NAME}:0")) == (not pinned)
    assert "pageable-memory" not in kinds("cpu")


def test_a_loader_alone_gets_advice_on_pageable_memory_as_well(late):
    loader = DataLoader(torch.arange(4000.0), batch_size=4)
    result = session.diagnose(loader, max_time_s=60.0, batches=20, variants=False, device=f"{NAME}:0")
    assert "pageable-memory" in [one.kind for one in result.advice]
    assert result.loop.device == f"{NAME}:0"


def test_a_device_that_hangs_or_fails_does_not_hold_the_verdict_up(late, monkeypatch):
    monkeypatch.setattr(watched_loader, "SETTLE_S", 0.05)
    let_go = threading.Event()

    def fail():
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    for broken in (let_go.wait, fail):
        monkeypatch.setattr(type(device_of(device(0))), "synchronize", lambda self, call=broken: call())
        assert looped(late, read_s=0.01, step_s=0.01).batches == BATCHES
    let_go.set()


def test_the_device_in_use_is_the_one_that_is_watched(late):
    torch.empty(3, device=device(0))
    watched = iobench.watch([1, 2])
    list(watched)
    assert watched.stats.device == f"{NAME}:0"
