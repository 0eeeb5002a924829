"""Reads past the page cache by Linux AIO and by the pool of threads that replaces it."""

import ctypes
import errno
import os
import re
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from conftest import open_files, require_disk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.host import io_engines
from iobench.host.io_engines import DirectUnavailable, ReadFailed, ReadQueue, open_direct
from iobench.host.memory import PAGE, touched_array

PAGES = 40
SIZE = PAGES * PAGE - 1000  # the file ends in the middle of its last page
ENGINES = ("kernel", "threads")
UNCHECKED = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)  # the machine may be busy
places = st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 4)), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aio")
    require_disk(folder)
    path = folder / "file"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    return path


@pytest.fixture
def descriptor(file):
    opened = open_direct(file)
    yield opened
    os.close(opened)


@pytest.fixture(autouse=True)
def no_idle_contexts(monkeypatch):
    monkeypatch.setattr(io_engines, "idle_contexts", deque())


@pytest.fixture(params=ENGINES)
def queue(request, monkeypatch):
    """Return a queue of 8 reads of 4 pages, with either engine."""
    if request.param == "threads":
        monkeypatch.setattr(io_engines, "AIO_CALLS", None)
    made = ReadQueue(4 * PAGE, memory_bytes=32 * PAGE)
    assert request.param == "kernel" or isinstance(made.engine, io_engines.ThreadPoolEngine)
    if request.param == "kernel" and not isinstance(made.engine, io_engines.LibaioEngine):
        pytest.skip("no asynchronous reads in this kernel")
    yield made
    made.close()


def reads(*pages):
    """Offsets and lengths of reads given in pages."""
    table = np.array(pages, np.int64).reshape(-1, 2) * PAGE
    return table[:, 0], table[:, 1]


def taken(reading):
    """Return a copy of the bytes of each read."""
    return {number: got.tobytes() for number, got in reading}


def expected(file, offsets, lengths):
    data = file.read_bytes()
    return {i: data[at : at + n] for i, (at, n) in enumerate(zip(offsets, lengths, strict=True))}


@settings(deadline=None, max_examples=40, suppress_health_check=UNCHECKED)
@given(pages=places)
def test_each_read_comes_once_with_the_bytes_of_its_place(file, descriptor, queue, pages):
    offsets, lengths = reads(*pages)
    result = [(number, got.tobytes()) for number, got in queue.read(descriptor, offsets, lengths)]
    assert len(result) == len(pages)
    assert dict(result) == expected(file, offsets, lengths)


@settings(deadline=None, max_examples=20, suppress_health_check=UNCHECKED)
@given(pages=places)
def test_reads_go_into_the_arrays_they_are_given(file, descriptor, queue, pages):
    offsets, lengths = reads(*pages)
    into = [touched_array(int(length)) for length in lengths]
    for number, got in queue.read(descriptor, offsets, lengths, into):
        assert np.shares_memory(got, into[number]) or not len(got)
    requested = expected(file, offsets, lengths)
    assert {i: array[: len(requested[i])].tobytes() for i, array in enumerate(into)} == requested


def test_as_many_reads_are_in_flight_as_memory_allows_within_bounds(monkeypatch):
    monkeypatch.setattr(io_engines, "AIO_CALLS", None)
    for piece, memory, depth in (
        (PAGE, 1 << 30, io_engines.MAX_IODEPTH),
        (1 << 20, 8 << 20, 8),
        (1 << 20, 1, 2),
    ):
        with closing(ReadQueue(piece, memory)) as queue:
            assert queue.depth == depth


def test_no_reads_are_no_bytes(descriptor, queue):
    assert list(queue.read(descriptor, *reads())) == []


def test_reads_at_the_end_of_the_file_are_short_and_beyond_it_empty(descriptor, queue):
    result = taken(queue.read(descriptor, *reads((PAGES - 2, 4), (PAGES - 1, 1), (PAGES, 1), (2 * PAGES, 2))))
    assert [len(result[number]) for number in range(4)] == [2 * PAGE - 1000, PAGE - 1000, 0, 0]


def test_leaving_early_waits_for_reads_in_flight(file, descriptor, queue, monkeypatch):
    engine, in_flight = queue.engine, []
    submit, collect = engine.submit, engine.collect

    def submitting(descriptor, slots, *rest):
        in_flight.extend(slots)
        return submit(descriptor, slots, *rest)

    def collecting(least):
        done = collect(least)
        for slot, _ in done:
            in_flight.remove(slot)
        return done

    monkeypatch.setattr(engine, "submit", submitting)
    monkeypatch.setattr(engine, "collect", collecting)
    reading = queue.read(descriptor, *reads(*((number, 1) for number in range(PAGES))))
    next(reading)
    reading.close()
    assert in_flight == []


def test_a_queue_can_be_left_early_any_number_of_times(file, descriptor, queue):
    offsets, lengths = reads(*((number, 1) for number in range(PAGES)))
    for count in range(2 * queue.depth):
        with closing(queue.read(descriptor, offsets, lengths)) as reading:
            assert len(list(islice(reading, count))) == count
    assert taken(queue.read(descriptor, offsets, lengths)) == expected(file, offsets, lengths)


def test_an_error_of_the_disk_is_raised_with_its_number(file, descriptor, queue, monkeypatch):
    offsets, lengths = reads(*((number, 1) for number in range(PAGES)))
    engine = queue.engine
    collect = type(engine).collect

    def failing(least):
        return [(slot, -errno.EIO if slot == 3 else result) for slot, result in collect(engine, least)]

    with monkeypatch.context() as patched:
        patched.setattr(engine, "collect", failing)
        with pytest.raises(ReadFailed) as caught:
            taken(queue.read(descriptor, offsets, lengths))
    assert (caught.value.errno, caught.value.number in offsets // PAGE) == (errno.EIO, True)
    assert taken(queue.read(descriptor, offsets, lengths)) == expected(file, offsets, lengths)


REFUSED = """
import os, sys
from pathlib import Path
import numpy as np
from iobench.host import io_engines

file, engine, what = sys.argv[1:]
if engine == "threads":
    io_engines.AIO_CALLS = None
queue, descriptor = io_engines.ReadQueue(4096), io_engines.open_direct(Path(file))
offsets, lengths = np.arange(4) * 4096, np.full(4, 4096)
other, wrong = os.dup(descriptor), offsets
if what == "a closed file":
    os.close(other)
elif what == "a folder":
    other = os.open(Path(file).parent, os.O_RDONLY)
elif what == "a closed queue":
    queue.close()
else:
    wrong = np.array([0, 4096, -4096, 0])
try:
    list(queue.read(other, wrong, lengths))
except (OSError, RuntimeError, ValueError):
    print("an error")
if what != "a closed queue":
    found = {number: bytes(got) for number, got in queue.read(descriptor, offsets, lengths)}
    assert b"".join(found[number] for number in range(4)) == Path(file).read_bytes()[: 4 * 4096]
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", ["a closed file", "a folder", "a negative offset", "a closed queue"])
def test_reads_that_cannot_be_submitted_are_an_error_and_the_next_read_works(file, engine, what):
    arguments = [sys.executable, "-c", REFUSED, file, engine, what]  # in a process that can be killed
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.fail(f"reading from {what} never returns", pytrace=False)
    assert (done.stdout, done.stderr) == ("an error\n", "")


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EAGAIN])
def test_where_the_kernel_refuses_a_queue_threads_read(monkeypatch, file, descriptor, refusal):
    """EAGAIN: other processes hold all of fs.aio-max-nr, and retries would never end."""
    calls = []

    class Libc:
        def syscall(self, *arguments):
            calls.append(arguments)
            ctypes.set_errno(refusal)
            return -1

    monkeypatch.setattr(io_engines, "libc", Libc())
    offsets, lengths = reads((3, 2), (0, 1))
    with closing(ReadQueue(2 * PAGE)) as queue:
        assert isinstance(queue.engine, io_engines.ThreadPoolEngine)
        assert taken(queue.read(descriptor, offsets, lengths)) == expected(file, offsets, lengths)
    assert len(calls) == 1


def test_a_queue_may_be_closed_twice_and_reads_no_more(descriptor, queue):
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        list(queue.read(descriptor, *reads((0, 1))))


@pytest.fixture
def kernel():
    """Return a queue of the kernel's, closed when the test ends."""
    with closing(ReadQueue(PAGE)) as made:
        if not isinstance(made.engine, io_engines.LibaioEngine):
            pytest.skip("no asynchronous reads in this kernel")
        yield made


def test_a_kernel_context_is_reused_by_the_next_queue(file, descriptor, kernel):
    offsets, lengths = reads((3, 2), (0, 1))
    taken(kernel.read(descriptor, offsets, lengths - PAGE * (lengths > PAGE)))
    kernel.close()
    kernel.close()
    with closing(ReadQueue(2 * PAGE)) as first, closing(ReadQueue(2 * PAGE)) as second:
        assert first.engine is kernel.engine is not second.engine
        assert taken(first.read(descriptor, offsets, lengths)) == expected(file, offsets, lengths)


def test_a_child_has_a_queue_of_its_own_from_the_kernel(kernel, monkeypatch):
    kernel.close()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with closing(ReadQueue(PAGE)) as queue:
        assert queue.engine is not kernel.engine


def test_only_a_few_kernel_contexts_are_kept_and_none_in_flight(monkeypatch, descriptor, kernel):
    monkeypatch.setattr(io_engines, "MAX_IDLE", 1)
    busy, destroyed = kernel.engine, []
    monkeypatch.setattr(io_engines.LibaioEngine, "destroy", lambda self: destroyed.append(self))
    memory = [touched_array(PAGE)]
    assert busy.submit(np.array([descriptor]), [0], memory, np.array([0])) == 1
    kernel.close()
    assert destroyed == [busy]
    busy.collect(1)
    first, second = ReadQueue(PAGE), ReadQueue(PAGE)
    for queue in (first, second):
        queue.close()
    assert destroyed == [busy, second.engine]


def test_a_closed_queue_leaves_no_thread(monkeypatch, file, descriptor):
    monkeypatch.setattr(io_engines, "AIO_CALLS", None)
    before = set(threading.enumerate())
    with closing(ReadQueue(PAGE)) as queue:
        taken(queue.read(descriptor, *reads((0, 1), (1, 1))))
        own = [one for one in set(threading.enumerate()) - before if "iobench-direct" in one.name]
        assert own
    assert not any(thread.is_alive() for thread in own)


def test_closing_in_a_forked_child_leaves_the_parents_queue_alone(file, descriptor, queue):
    offsets, lengths = reads(*((number, 1) for number in range(PAGES)))
    taken(queue.read(descriptor, offsets, lengths))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert taken(queue.read(descriptor, offsets, lengths)) == expected(file, offsets, lengths)


def test_a_file_in_memory_is_read_correctly_or_unavailable(small_disk, queue):
    path = small_disk / "file"
    path.write_bytes(np.random.default_rng(2).bytes(5 * PAGE))
    try:
        opened = open_direct(path)
    except DirectUnavailable:
        return
    offsets, lengths = reads((4, 4), (0, 2))
    assert taken(queue.read(opened, offsets, lengths)) == expected(path, offsets, lengths)
    os.close(opened)


@pytest.mark.parametrize(("call", "named"), [("open", "O_DIRECT"), ("preadv", f"{PAGE} bytes")])
def test_a_file_system_without_direct_reads_of_pages_is_an_error(file, monkeypatch, call, named):
    def refuse(*arguments):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    before = open_files(file)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(DirectUnavailable, match=f"{re.escape(str(file))}.*{named}"):
            open_direct(file)
    assert open_files(file) == before


def test_a_file_that_is_not_there_is_its_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_direct(tmp_path / "nothing")
