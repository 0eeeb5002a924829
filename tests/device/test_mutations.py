"""Mutations of the transfer to a device, each with the checks that must then fail."""

import contextlib
from functools import partial

import numpy as np
import pytest
from backend import SimEvent, SimStream, SimTensor
from checks import CHECKS
from sim_machine import SCHEDULES
from simulated import Simulated

from iobench.bench import epoch
from iobench.host.device import Accelerator
from iobench.loading import loaders
from iobench.loading.host_to_device import SideStreamCopier
from iobench.stream import transfer
from iobench.stream.transfer import SideStreamTransfer

pytest_plugins = "plugged"

EVENTS = {}  # one for each device
MUTATIONS = {
    "host memory is released while copies still read it": (
        ("held", "dropped"),
        [(SideStreamCopier, "release", lambda self, most: self._reading.clear())],
    ),
    "slots are ordinary host memory": (
        ("held", "pageable"),
        [(Simulated, "memory", lambda self, count: np.zeros(count, np.uint8))],
    ),
    "a loader's batches are ordinary host memory, copied without waiting": (
        ("pageable",),
        [(loaders.CopyingLoader, "pins", lambda self, device: False)],
    ),
    "the consumer's stream does not wait for the side stream": (
        ("dropped",),
        [(SimStream, "wait_event", lambda self, event: None)],
    ),
    "the allocator does not know that the consumer's stream uses the memory": (
        ("dropped",),
        [(SimTensor, "record_stream", lambda self, stream: None)],
    ),
    "an epoch ends when everything was submitted": (
        ("finished",),
        [(Simulated, "synchronize", lambda self: None)],  # by transfer and clock alike
    ),
    "each epoch has a new side stream": (
        ("flat",),
        [
            (Accelerator, "side_stream", property(lambda self: self._new_stream())),
            (transfer, "side_copier", SideStreamCopier),
            (transfer, "side_stream_transfer", SideStreamTransfer),
        ],
    ),
    "an epoch's end forgets how far the consumer's stream lags behind": (
        ("flat",),
        [(transfer, "side_stream_transfer", SideStreamTransfer)],
    ),
    "a new thread keeps its current device": (("woken",), [(Simulated, "use", lambda self: None)]),
    "reading threads pin memory and copy with their initial device": (
        ("woken",),
        [(Simulated, "current", lambda self: contextlib.nullcontext())],
    ),
    "a case starts with the peak of the one before": (
        ("peaks",),
        [(Simulated, "reset_peak", lambda self: None)],
    ),
    "a case starts with the memory that torch has cached": (
        ("peaks",),
        [(Simulated, "empty_caches", lambda self: None)],
    ),
    "one event is used for all marks, recorded again before it was read": (
        ("booked",),
        [(Simulated, "timing_event", lambda self: EVENTS.setdefault(self, SimEvent(timed=True)))],
    ),
    "a wait ends when the host has submitted the copy": (
        ("waits",),
        [(epoch, "clock_of", lambda transfer, expected: None)],
    ),
    "the lag of the consumer's stream has no limit": (
        ("bounded",),
        [(SideStreamTransfer, "limit_lag", lambda self, stream: None)],
    ),
}


@pytest.mark.parametrize(
    ("mutation", "name"), [(mutation, name) for mutation, (names, _) in MUTATIONS.items() for name in names]
)
def test_a_mutation_is_detected(plug_in, images, monkeypatch, mutation, name):
    for patch in MUTATIONS[mutation][1]:
        monkeypatch.setattr(*patch)
    runs = (partial(one, plug_in, schedule, images) for schedule in SCHEDULES for one in CHECKS[name])
    assert any(map(fails, runs))


def fails(check):
    """Return True if a check fails; an event that was never reached is a RuntimeError, as in torch."""
    try:
        check()
    except (AssertionError, RuntimeError):
        return True
    return False
