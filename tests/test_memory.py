import ctypes
import errno
import os

import numpy as np
import pytest

from iobench.host import memory
from iobench.host.memory import HUGE_PAGE, PAGE, touched_array, touched_map


@pytest.mark.parametrize("count", [1, PAGE, PAGE + 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_an_array_has_its_bytes_on_whole_pages_and_can_be_written(count):
    array = touched_array(count)
    assert (array.shape, array.dtype) == ((count,), np.uint8)
    assert array.ctypes.data % PAGE == 0
    array[:] = 7
    assert int(array.sum(dtype=np.int64)) == 7 * count


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_its_pages_are_there_before_they_are_used_and_go_with_the_last_view():
    before = resident_bytes()
    view = touched_array(64 << 20)[5:10]
    assert resident_bytes() - before > 60 << 20
    del view
    assert resident_bytes() - before < 8 << 20


def test_kernels_without_populate_have_their_pages_touched_by_hand(monkeypatch):
    monkeypatch.setattr(memory, "MADV_POPULATE_WRITE", 9999)
    before = resident_bytes()
    memory_map = touched_map(64 << 20)
    assert resident_bytes() - before > 60 << 20
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
