"""Limit of the link to a device, and the pinned memory that slots are cut from."""

from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_machine import SCHEDULES
from simulated import device

from iobench.host import hardware_limits
from iobench.host.memory import PAGE
from iobench.stream.group_memory import Ring
from iobench.stream.transfer import pinned_blocks, transfer_to

pytest_plugins = "plugged"

RATE = 2e9


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("slot_bytes", [700, 1 << 14])
def test_the_link_is_measured_by_the_devices_clock(plug_in, monkeypatch, schedule, pinned, slot_bytes):
    plug_in(schedule, copy_bytes_per_s=RATE)
    monkeypatch.setattr(hardware_limits, "WARM_UP_S", 0.001)
    monkeypatch.setattr(hardware_limits, "CHUNK_BYTES", 1 << 18)
    ways = {
        "host to device": hardware_limits.host_to_device,
        "device to host": hardware_limits.device_to_host,
    }
    for name, measure in ways.items():
        result = measure(device(1), slot_bytes, pinned, 0.002)
        assert (result.name, result.how.rpartition(", ")[2]) == (name, "pinned" if pinned else "pageable")
        assert result.bytes_per_s == pytest.approx(RATE)


def test_the_link_warms_up_before_it_is_timed_and_never_runs_dry(late, monkeypatch):
    requested = []
    never_idle = hardware_limits.keep_busy
    monkeypatch.setattr(hardware_limits, "WARM_UP_S", 0.002)

    def noting(submit, seconds):
        requested.append((seconds, late.now))
        return never_idle(submit, seconds)

    monkeypatch.setattr(hardware_limits, "keep_busy", noting)
    monkeypatch.setattr(hardware_limits, "CHUNK_BYTES", 1 << 18)
    hardware_limits.host_to_device(device(0), 1 << 14, True, 0.001)
    assert [seconds for seconds, _ in requested] == [0.002, 0.001]
    assert requested[1][1] > requested[0][1]  # by the warm-up's copies


def test_the_host_waits_for_the_oldest_so_that_two_are_always_pending(monkeypatch):
    clock = SimpleNamespace(perf_counter=count().__next__)
    monkeypatch.setattr(hardware_limits, "time", clock)

    class Chunk:
        def __init__(self):
            pending.append(self)
            most.append(len(pending))

        def synchronize(self):
            assert pending[0] is self
            assert len(pending) == 3
            pending.pop(0)

    pending, most = [], []
    requested = hardware_limits.keep_busy(Chunk, 10)
    assert requested == len(most)
    assert max(most) == 3


def test_seven_slots_of_four_mib_and_a_page_take_32_mib_and_not_56():
    assert sum(size for size, _ in pinned_blocks((4 << 20) + PAGE, 7)) == 32 << 20


@given(st.integers(1, 1 << 26), st.integers(1, 12))
def test_slots_are_cut_from_no_more_pinned_memory_than_each_would_take_alone(size, slots):
    blocks = list(pinned_blocks(size, slots))
    assert sum(held for _, held in blocks) == slots
    for block, held in blocks:
        assert block & (block - 1) == 0
        assert held * size <= block
    assert sum(block for block, _ in blocks) <= slots * (1 << (size - 1).bit_length())


def test_slots_are_separate_page_aligned_and_returned_when_unreferenced(late):
    transfer = transfer_to(device(0))
    slots = transfer.allocate(5000, 7)
    starts = sorted(slot.ctypes.data for slot in slots)
    assert all(start % PAGE == 0 for start in starts)
    assert all(b - a >= 5000 for a, b in pairwise(starts))
    assert late.pinned.bytes == 56 << 10
    slots.clear()
    assert not late.pinned.owned


def test_a_ring_s_slots_are_pinned_together(late):
    ring = Ring(4 << 20, 7, transfer_to(device(0)).allocate)
    assert late.pinned.bytes == 32 << 20
    held = ring.take(4 << 20, 100)
    held[:] = 7
    assert np.all(held == 7)
    ring.close()
    assert len(late.pinned.owned) == 1
    del held
    assert not late.pinned.owned
