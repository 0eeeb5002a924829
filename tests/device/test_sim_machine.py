"""The simulated devices are as strict as real ones: otherwise tests on them would prove nothing."""

import pytest
import torch
from sim_machine import POISON, SCHEDULES
from simulated import device

from iobench.host.device import device_of

pytest_plugins = "plugged"

BOTH = pytest.mark.parametrize("index", [0, 1])


def ones(count=8, value=1):
    return torch.full((count,), value, dtype=torch.uint8).pin_memory()


def pinned_by_us(index=0, count=8):
    """Return pinned memory that torch has not pinned, and so does not keep for a copy."""
    slot = device_of(device(index)).memory(count)
    slot[:] = 1
    return slot


@BOTH
def test_a_copy_from_pinned_memory_is_late_and_reads_the_current_content(late, index):
    slot = pinned_by_us(index)
    there = torch.from_numpy(slot).to(device(index), non_blocking=True)
    slot[:] = 9
    assert there.cpu().tolist() == [9] * 8


def test_a_copy_from_ordinary_memory_is_staged_at_once(late):
    host = torch.ones(8)
    there = host.to(device(0), non_blocking=True)
    host.fill_(9)
    assert there.cpu().tolist() == [1] * 8


def test_memory_pinned_by_torch_is_kept_until_it_was_copied(late):
    there = ones().to(device(0), non_blocking=True)
    ones(value=9)
    assert there.cpu().tolist() == [1] * 8
    assert late.faults == []


def test_a_copy_out_of_pinned_memory_that_was_given_back_is_a_fault(late):
    there = torch.from_numpy(pinned_by_us()).to(device(0), non_blocking=True)
    assert there.cpu().tolist() == [POISON] * 8
    assert len(late.faults) == 1


def test_pinned_memory_comes_in_powers_of_two_and_is_given_out_again(late):
    device_api = device_of(device(0))
    address = device_api.memory(5000).ctypes.data
    assert device_api.memory(8000).ctypes.data == address
    assert late.pinned.bytes == 8192
    held = [device_api.memory(5000), device_api.memory(5000)]
    assert late.pinned.bytes == 2 * 8192
    assert all(slot.ctypes.data % 4096 == 0 for slot in held)


def test_streams_are_out_of_step_until_one_waits_for_the_other(plug_in):
    plug_in("consumer late")
    device_api = device_of(device(0))
    side, event = device_api.side_stream, device_api.event()
    with device_api.on(side):
        there = ones().to(device(0), non_blocking=True)
    event.record(side)
    assert event.query()
    plug_in("copies late")
    device_api = device_of(device(0))
    side, event = device_api.side_stream, device_api.event()
    with device_api.on(side):
        there = ones().to(device(0), non_blocking=True)
    event.record(side)
    early = there + 1  # the consumer's stream, which is prompt, reads before the copy
    device_api.current_stream().wait_event(event)
    right = there + 1
    assert not event.query()
    device_api.synchronize()
    assert early.cpu().tolist() == [POISON + 1] * 8
    assert right.cpu().tolist() == [2] * 8


def test_freed_memory_is_given_out_again_at_once_and_poisoned_in_its_stream(late):
    there = ones().to(device(0), non_blocking=True)
    block = there.block.memory
    plus = there + 1  # reads before the memory is used again, in the same stream
    del there
    again = torch.empty(8, dtype=torch.uint8, device=device(0))
    assert again.block.memory is block
    assert plus.cpu().tolist() == [2] * 8
    assert again.cpu().tolist() == [POISON] * 8


def test_memory_belongs_to_the_stream_of_its_allocation(late):
    device_api = device_of(device(0))
    torch.empty(8, device=device(0))
    with device_api.on(device_api.side_stream):
        torch.empty(8, device=device(0))
    assert (device_api.allocations(), device_api.peak_bytes()) == (2, (512, 1024))


def test_memory_used_by_another_stream_is_held_back_until_it_finishes(plug_in):
    late = plug_in("everything late")
    device_api = device_of(device(0))
    with device_api.on(device_api.side_stream):
        there = torch.empty(8, device=device(0))
    used = there + 1
    there.record_stream(device_api.current_stream())
    block = there.block.memory
    del there
    with device_api.on(device_api.side_stream):
        assert torch.empty(8, device=device(0)).block.memory is not block
    late.stream_of(0).synchronize()
    with device_api.on(device_api.side_stream):
        result = [torch.empty(8, device=device(0)) for _ in range(2)]
    assert block.data_ptr() in [one.block.memory.data_ptr() for one in result]
    del used


def test_the_host_cannot_reach_device_memory(late):
    there = ones().to(device(0))
    with pytest.raises(RuntimeError):
        there.numpy()
    assert there.data_ptr() == 0
    with pytest.raises(RuntimeError, match=r"host .* sim:0"):
        there + torch.ones(8)
    with pytest.raises(RuntimeError, match=r"sim:0 .* sim:1"):
        there + ones().to(device(1))


def test_a_thread_that_begins_has_the_first_device(late):
    import threading

    device_of(device(1)).use()
    result = []
    thread = threading.Thread(target=lambda: result.append(late.device))
    thread.start()
    thread.join()
    assert (late.device, result) == (1, [0])


def test_time_is_that_of_the_devices_work(late):
    device_api = device_of(device(0))
    begins = device_api.mark()
    late.work(0, 0.5)
    ends = device_api.mark()
    assert not ends.reached()
    with pytest.raises(RuntimeError, match="completed"):
        ends.seconds_since(begins)
    device_api.synchronize()
    assert ends.seconds_since(begins) == 0.5
    assert late.now == 0.5
    late.now += 1.0  # the host does something
    begins, _, ends = device_api.mark(), late.work(0, 0.25), device_api.mark()
    device_api.synchronize()
    assert ends.seconds_since(begins) == 0.25


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arithmetic_is_that_of_the_cpu(plug_in, schedule):
    plug_in(schedule)
    host = torch.arange(12.0).reshape(3, 4)
    there = host.to(device(1), non_blocking=True)
    result = torch.split(there.t() @ there, [1, 3])[1].view(torch.int32).contiguous().movedim(0, 1) * 3
    there.mul_(2).add_(1)
    right = torch.split(host.t() @ host, [1, 3])[1].view(torch.int32).contiguous().movedim(0, 1) * 3
    assert torch.equal(result.cpu(), right)
    assert torch.equal(there.cpu(), host * 2 + 1)
    assert float(there.sum()) == float((host * 2 + 1).sum())
