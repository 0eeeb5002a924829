"""A slot of a ring is reused if and only if no reference to it is left."""

import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.host.memory import PAGE, address_of, touched_array
from iobench.stream.group_memory import Ring

SLOT = 3 * PAGE


class Memory:
    """Allocates slots, and knows their number and the slot of an array."""

    def __init__(self):
        self.slots = []

    def __call__(self, count, slots):
        self.slots += (made := [touched_array(count) for _ in range(slots)])
        return made

    def number_of(self, array):
        (number,) = (n for n, slot in enumerate(self.slots) if np.shares_memory(slot, array))
        return number


@pytest.fixture
def memory():
    return Memory()


HOLDERS = {
    "the array": lambda array: array,
    "a slice": lambda array: array[5:9],
    "one element": lambda array: array[7:8].reshape(()),
    "other numbers": lambda array: array.view(np.float32).reshape(-1, 4)[3],
    "a memoryview": lambda array: array[1:].data,
    "an array over a memoryview": lambda array: np.frombuffer(array.data, np.int16)[4:],
    "a tensor": torch.from_numpy,
    "a row of a tensor": lambda array: torch.from_numpy(array.reshape(-1, 8))[2],
    "a part of a split tensor": lambda array: torch.split(torch.from_numpy(array), [10, SLOT - 10])[1],
    "other numbers of a tensor": lambda array: torch.from_numpy(array).view(torch.int32),
    "an array over a tensor": lambda array: torch.from_numpy(array)[3:].numpy(),
    "a detached tensor": lambda array: torch.from_numpy(array).detach().t(),
    "storage of a tensor": lambda array: torch.from_numpy(array).untyped_storage(),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_slot_is_used_again_only_and_as_soon_as_nothing_over_it_is_left(memory, hold):
    ring = Ring(SLOT, 1, memory)
    held = hold(ring.take(SLOT))
    gc.collect(1)  # what is new; all that the tests have imported takes a second
    others = [ring.take(SLOT) for _ in range(3)]
    assert [memory.number_of(array) for array in others] == [1, 2, 3]
    del held
    assert memory.number_of(ring.take(SLOT)) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60), st.integers(0, 4))
def test_no_two_holders_ever_share_memory(steps, keep):
    memory, held = Memory(), []
    ring = Ring(SLOT, keep, memory)
    for take, number in steps:
        if take:
            held.append(ring.take(SLOT, page_offset=number))
            held[-1][:] = len(held) % 251
        elif held:
            del held[number % len(held)]
        assert len({memory.number_of(array) for array in held}) == len(held)
        assert all((array == array[0]).all() for array in held)


def test_a_slot_whose_last_holder_goes_in_another_thread_is_used_again(memory):
    ring = Ring(SLOT, 1, memory)
    held = [torch.from_numpy(ring.take(SLOT))]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert memory.number_of(ring.take(SLOT)) == 0
    assert len(memory.slots) == 1


def test_many_threads_that_take_and_drop_never_share_a_slot():
    ring = Ring(SLOT, 3, Memory())

    def keeps_its_own(number):
        for _ in range(300):
            array = ring.take(SLOT)
            array[:] = number
            tensor = torch.from_numpy(array)
            if not bool((tensor == number).all()):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(keeps_its_own, range(6)))


def test_there_is_always_another_slot_and_at_most_so_many_wait(memory):
    ring = Ring(SLOT, 2, memory)
    assert len(memory.slots) == 2
    held = [ring.take(SLOT) for _ in range(7)]
    assert {memory.number_of(array) for array in held} == set(range(7))
    held.clear()
    held = [ring.take(SLOT) for _ in range(3)]
    assert len(memory.slots) == 8


@given(st.integers(1, SLOT), st.integers(0, PAGE))
def test_a_slot_begins_at_the_requested_page_offset(count, page_offset):
    array = Ring(SLOT, 1, Memory()).take(count, page_offset)
    assert array.shape == (count,)
    assert (address_of(array) - page_offset) % PAGE == 0
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_returning_a_slot_runs_no_python_code(memory):
    ring, calls = Ring(SLOT, 2, memory), []
    array = ring.take(SLOT)
    number, held = memory.number_of(array), torch.from_numpy(array)[3:9]
    del array
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code) if event == "call" else None)
    del held
    sys.setprofile(None)
    assert calls == []
    assert memory.number_of(ring.take(SLOT)) == number


def test_a_slot_is_used_again_beside_a_debugger_that_refers_to_all_variables(memory):
    ring = Ring(SLOT, 1, memory)

    def look(frame, event, argument):
        assert frame.f_locals is not None
        return look

    sys.settrace(look)
    numbers = [memory.number_of(ring.take(SLOT)) for _ in range(3)]
    sys.settrace(None)
    assert numbers == [0, 0, 0]


def test_after_close_nothing_is_kept(memory):
    ring = Ring(SLOT, 2, memory)
    held = ring.take(SLOT)
    ring.close()
    held[:] = 5  # what is in use stays
    del held
    assert memory.number_of(ring.take(SLOT)) == 2  # and it can still be asked


def test_after_close_memory_goes_with_its_last_holder():
    slots = []

    def allocate(count, number):
        made = [touched_array(count) for _ in range(number)]
        slots.extend(map(weakref.ref, made))
        return made

    ring = Ring(SLOT, 2, allocate)
    held = torch.from_numpy(ring.take(SLOT))[3:9]
    ring.close()
    assert [slot() is None for slot in slots].count(True) == 1
    del held
    assert [slot() is None for slot in slots].count(True) == 2
