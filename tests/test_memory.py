import ctypes
import errno

import numpy as np
import pytest

from iobench.host import memory
from iobench.host.memory import HUGE_PAGE, PAGE, cached_pages_at, touched_array, touched_map


@pytest.mark.parametrize("count", [1, PAGE, PAGE + 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_an_array_has_its_bytes_on_whole_pages_and_can_be_written(count):
    array = touched_array(count)
    assert (array.shape, array.dtype) == ((count,), np.uint8)
    assert array.ctypes.data % PAGE == 0
    array[:] = 7
    assert int(array.sum(dtype=np.int64)) == 7 * count


COUNT = 64 << 20


def test_its_pages_are_there_before_they_are_used_and_go_with_the_last_view():
    array = touched_array(COUNT)
    address, view = array.ctypes.data, array[5:10]
    del array
    assert cached_pages_at(address, COUNT) == COUNT // PAGE
    del view
    assert not cached_pages_at(address, COUNT)  # nothing is mapped there


def test_kernels_without_populate_have_their_pages_touched_by_hand(monkeypatch):
    monkeypatch.setattr(memory, "MADV_POPULATE_WRITE", 9999)
    memory_map = touched_map(COUNT)
    address = np.frombuffer(memory_map, np.uint8).ctypes.data
    assert cached_pages_at(address, COUNT) == COUNT // PAGE
    memory_map.close()


def test_another_error_of_the_kernel_is_raised(monkeypatch):
    class Refusing:
        def madvise(self, *arguments):
            ctypes.set_errno(errno.ENOMEM)
            return -1

    monkeypatch.setattr(memory, "libc", Refusing())
    with pytest.raises(OSError) as caught:
        touched_map(PAGE)
    assert caught.value.errno == errno.ENOMEM
