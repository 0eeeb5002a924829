"""Mutations of the transfer to a device, each with the checks that must then fail."""

import contextlib

import checks
import numpy as np
import pytest
from backend import SimEvent, SimTensor
from conftest import image_arrays
from sim_machine import SCHEDULES
from simulated import Simulated

from iobench.bench import epoch
from iobench.host.device import Accelerator
from iobench.loading import loaders
from iobench.loading.host_to_device import SideStreamCopier
from iobench.stream.transfer import SideStreamTransfer

LOADERS = loaders.DEFAULT_LOADERS

pytest_plugins = "plugged"


def held(plug_in, schedule, images):
    checks.held_batches_are_what_was_asked_for(plug_in, schedule, images, image_arrays())


def dropped(plug_in, schedule, images):
    checks.dropped_batches_were_still_right(plug_in, schedule, images, image_arrays())


def flat(plug_in, schedule, images):
    checks.memory_stays_flat(plug_in, schedule, images)


def finished(plug_in, schedule, images):
    for loader in LOADERS:
        checks.nothing_is_unfinished_when_the_clock_stops(plug_in, schedule, images, loader)


def pageable(plug_in, schedule, images):
    for loader in LOADERS:
        checks.no_copy_without_waiting_reads_pageable_memory(plug_in, schedule, images, loader)


def woken(plug_in, schedule, images):
    for loader in LOADERS:
        checks.only_that_device_is_woken(plug_in, schedule, images, loader)
    checks.streamloader_wakes_only_its_device(plug_in, schedule, images)


def peaks(plug_in, schedule, images):
    checks.peaks_are_each_case_s_own(plug_in, schedule, images)


def booked(plug_in, schedule, images):
    checks.copies_are_booked_as_waiting(plug_in, schedule)


def waits(plug_in, schedule, images):
    for loader in LOADERS:
        checks.waiting_is_the_devices_own(plug_in, schedule, images, loader)


def bounded(plug_in, schedule, images):
    checks.the_consumer_is_never_far_behind(plug_in, schedule, images)


def slots_used_again_at_once(patch):
    """Release host memory while copies still read it."""
    patch.setattr(SideStreamCopier, "release", lambda self, most: self._reading.clear())


def slots_not_pinned(patch):
    """Read into slots of ordinary host memory."""
    patch.setattr(Simulated, "memory", lambda self, count: np.zeros(count, np.uint8))


def batches_not_pinned(patch):
    """Copy the batches of a loader from ordinary host memory, without waiting."""
    patch.setattr(loaders.CopyingLoader, "pins", lambda self, device: False)


def no_wait_for_the_copy(patch):
    """Let the consumer's stream run without waiting for the side stream."""
    patch.setattr("backend.SimStream.wait_event", lambda self, event: None)


def no_record_stream(patch):
    """Keep from the allocator that the consumer's stream uses the memory."""
    patch.setattr(SimTensor, "record_stream", lambda self, stream: None)


def no_final_synchronise(patch):
    """End the epoch when everything was submitted."""
    patch.setattr(Simulated, "synchronize", lambda self: None)  # by transfer and clock alike


def a_stream_per_epoch(patch):
    """Make a new side stream in each epoch."""
    patch.setattr(Accelerator, "side_stream", property(lambda self: self._new_stream()))
    patch.setattr("iobench.stream.transfer.side_copier", SideStreamCopier)
    patch.setattr("iobench.stream.transfer.side_stream_transfer", SideStreamTransfer)


def a_lag_per_epoch(patch):
    """Forget at the end of an epoch how far the consumer's stream lags behind."""
    patch.setattr("iobench.stream.transfer.side_stream_transfer", SideStreamTransfer)


def wrong_device(patch):
    """Leave the current device as it is in a new thread."""
    patch.setattr(Simulated, "use", lambda self: None)


def wrong_device_in_threads(patch):
    """Let reading threads pin memory and copy with their initial device."""
    patch.setattr(Simulated, "current", lambda self: contextlib.nullcontext())


def peak_not_reset(patch):
    """Start a case with the peak of the previous one."""
    patch.setattr(Simulated, "reset_peak", lambda self: None)


def caches_not_emptied(patch):
    """Start a case with the memory that torch has cached from the previous one."""
    patch.setattr(Simulated, "empty_caches", lambda self: None)


def event_used_again(patch):
    """Use one event for all marks, recorded again before it was read."""
    events = {}
    patch.setattr(Simulated, "timing_event", lambda self: events.setdefault(self, SimEvent(timed=True)))


def waits_by_the_host_s_clock(patch):
    """Record the time at which the host submitted the copy of a batch."""
    patch.setattr(epoch, "clock_of", lambda transfer, expected: None)


def consumer_never_waits(patch):
    """Hand batches over without a limit on the lag of the consumer's stream."""
    patch.setattr(SideStreamTransfer, "limit_lag", lambda self, stream: None)


MUTATIONS = {
    slots_used_again_at_once: (held, dropped),
    slots_not_pinned: (held, pageable),
    batches_not_pinned: (pageable,),
    no_wait_for_the_copy: (dropped,),
    no_record_stream: (dropped,),
    no_final_synchronise: (finished,),
    a_stream_per_epoch: (flat,),
    a_lag_per_epoch: (flat,),
    wrong_device: (woken,),
    wrong_device_in_threads: (woken,),
    peak_not_reset: (peaks,),
    caches_not_emptied: (peaks,),
    event_used_again: (booked,),
    waits_by_the_host_s_clock: (waits,),
    consumer_never_waits: (bounded,),
}


@pytest.mark.parametrize(
    ("mutation", "check"),
    [(mutation, check) for mutation, caught_by in MUTATIONS.items() for check in caught_by],
    ids=lambda function: function.__name__,
)
def test_a_mutation_is_detected(plug_in, images, monkeypatch, mutation, check):
    mutation(monkeypatch)
    assert any(fails(check, plug_in, schedule, images) for schedule in SCHEDULES)


def fails(check, plug_in, schedule, images):
    """Return True if a check fails; an event that was never reached is a RuntimeError, as in torch."""
    try:
        check(plug_in, schedule, images)
    except (AssertionError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("check", [pageable, waits])  # other files have the others
def test_checks_hold_without_a_mutation(plug_in, images, check):
    for schedule in SCHEDULES:
        check(plug_in, schedule, images)
