"""Reads through the page cache, readahead of cold files, and the selection of the backend."""

import contextlib
import errno
import os
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SAMPLES, image_arrays, open_files, prepared
from kinds import kind, refused_as

from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.dataset.artifact_location import ChangeDetector
from iobench.formats import Chunked, Field, Schema, Strided
from iobench.host import machine_load, memory, page_cache
from iobench.host.io_engines import DirectUnavailable
from iobench.stream import backend_selection, cached_reader, direct_reader, readahead
from iobench.stream.backend_selection import MAX_THREADS, MAX_THREADS_LARGE, select_backend
from iobench.stream.block_reader import BlockReader
from iobench.stream.cached_reader import CachedReader
from iobench.stream.direct_reader import DirectReader
from iobench.stream.options import ReadOptions

SIZE = 6 << 20
SMALL, LARGE = 100, 40_000  # bytes of a row


class Stored:
    """A cold file of rows of one size, and their content."""

    def __init__(self, path, stride):
        self.path, self.offset = path, 1000
        self.rows = np.frombuffer(np.random.default_rng(1).bytes(SIZE), np.uint8)
        self.rows = self.rows[: SIZE // stride * stride].reshape(-1, stride)
        path.write_bytes(bytes(self.offset) + self.rows.tobytes())
        page_cache.evict([path])

    def open(self, cold=True, chunks=2):
        """Open the rows as chunks, or as one array if there are none."""
        stride = self.rows.shape[1]
        schema = Schema(len(self.rows), (Field("x", (stride,), "uint8"),))
        first = np.arange(chunks) * (len(self.rows) // max(1, chunks))
        place = Chunked((self.path,), first, np.zeros(chunks, int), self.offset + first * stride, stride)
        if not chunks:
            place = Strided((self.path,), self.offset, stride)
        return CachedReader(schema, {"x": place}, cold)

    def check(self, reader, rows):
        np.testing.assert_array_equal(reader.batch(rows)["x"], self.rows[rows])

    def in_order(self, reader, count=50):
        """Read all rows in batches, in order."""
        reader.read_ahead(self.batches())
        step = len(self.rows) // count
        for start in range(0, len(self.rows), step):
            self.check(reader, slice(start, start + step))

    def at_random(self, reader, count=50):
        """Read all rows in batches, in random order."""
        batches = np.array_split(np.random.default_rng(2).permutation(len(self.rows)), count)
        reader.read_ahead(batches)
        for rows in batches:
            self.check(reader, rows)

    def batches(self, in_order=True):
        """Batches of an epoch; if not in order, the first one is of rows 5 and 0."""
        if in_order:
            return [slice(0, len(self.rows))]
        return [np.array([5, 0]), np.setdiff1d(np.arange(len(self.rows)), [5, 0])[::-1]]


@pytest.fixture(params=[SMALL, LARGE])
def stored(request, by_file, tmp_path, monkeypatch):
    monkeypatch.setattr(readahead, "PIECE_BYTES", 256 << 10)  # many steps of the thread in a small file
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 64 << 10)  # in which small rows lie far from each other
    return Stored(tmp_path / "rows", request.param)


WAYS = pytest.mark.parametrize("way", [Stored.in_order, Stored.at_random])


EARLIER = set()  # threads of other tests


@pytest.fixture(autouse=True)
def earlier_threads():
    EARLIER.clear()
    EARLIER.update(threading.enumerate())


def ahead_threads():
    """Return the threads that read ahead."""
    own = set(threading.enumerate()) - EARLIER
    return [thread for thread in own if thread.name.startswith("iobench-ahead")]


@WAYS
def test_after_an_epoch_the_file_is_in_memory_and_was_read_once(stored, way):
    for _ in range(3):  # another process may empty the whole cache meanwhile
        page_cache.evict([stored.path])
        counting = machine_load.Counters(stored.path)
        counting.start()
        with stored.open() as reader:
            way(stored, reader)
        disk_bytes = counting.stop().disk_bytes
        resident = page_cache.residency([stored.path])
        if resident > 0.99 and (disk_bytes is None or 0.9 * SIZE < disk_bytes < 1.2 * SIZE):
            return
    pytest.fail(f"{disk_bytes} bytes were read, and {resident:.1%} stay")


@pytest.fixture
def in_thread(monkeypatch):
    """Replace os.preadv and os.posix_fadvise in the thread that reads ahead."""

    def install(instead):
        for name in ("preadv", "posix_fadvise"):
            monkeypatch.setattr(os, name, partial(chosen, instead, getattr(os, name)))

    def chosen(instead, call, *arguments):
        in_thread = threading.current_thread().name.startswith("iobench-ahead")
        return (instead if in_thread else call)(*arguments)

    return install


def test_rows_in_order_are_taken_only_after_threads_have_read_them(stored, monkeypatch):
    reached, taken = [], []
    preadv = os.preadv

    def noting(descriptor, buffers, offset):
        ahead_of_it, span = list(reached), (offset, offset + sum(map(len, buffers)))
        count = preadv(descriptor, buffers, offset)
        if threading.current_thread().name.startswith("iobench-ahead"):
            reached.append(span)
        else:
            taken.append((span, ahead_of_it))
        return count

    monkeypatch.setattr(os, "preadv", noting)
    with stored.open() as reader:
        stored.in_order(reader)
    assert taken
    for (start, end), read in taken:
        for low, high in sorted(read):
            start = high if low <= start < high else start
        assert end <= start


def test_one_array_is_read_in_order_with_the_kernels_own_readahead(stored, monkeypatch):
    advice, advise = [], os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: advice.append(args[3]) or advise(*args))
    with stored.open(chunks=0) as reader:
        reader.read_ahead(stored.batches())
        assert not ahead_threads()
        stored.check(reader, slice(0, len(stored.rows)))
        stored.at_random(reader)  # the thread is still there for it
    assert os.POSIX_FADV_RANDOM not in advice


def test_only_the_rows_that_will_come_are_read_ahead(stored):
    half, found = len(stored.rows) // 2, []
    for _ in range(3):  # another process may empty the whole cache meanwhile
        page_cache.evict([stored.path])
        with stored.open() as reader:
            reader.read_ahead([slice(half, half + 3), slice(half + 3, len(stored.rows))])
            stored.check(reader, slice(len(stored.rows) - 5, len(stored.rows)))
        found.append(page_cache.residency([stored.path]))
        assert found[-1] < 0.65
        if found[-1] > 0.45:
            return
    pytest.fail(f"{found} of the file stay")


def test_files_that_are_warm_are_read_by_no_thread(stored):
    stored.path.read_bytes()
    with stored.open(cold=False) as reader:
        reader.read_ahead(stored.batches())
        assert not ahead_threads()
        stored.check(reader, slice(3, 9))
        stored.check(reader, np.array([3, 3, 0]))


@pytest.mark.parametrize("in_order", [True, False])
def test_stopping_early_leaves_no_thread_no_file_and_no_map(stored, in_order):
    reader = stored.open()
    reader.read_ahead(stored.batches(in_order))
    stored.check(reader, slice(0, 3) if in_order else np.array([5, 0]))
    assert open_files(stored.path)
    reader.close()
    reader.close()
    assert not ahead_threads()
    assert open_files(stored.path) == 0
    page_cache.evict([stored.path])  # fails if a map is left
    with pytest.raises(ValueError, match="closed"):
        reader.batch(slice(0, 1))


def test_stopping_early_does_not_wait_for_the_rest_of_the_file(stored, in_thread, monkeypatch):
    offsets, begun, leaving = [], threading.Event(), threading.Event()
    begin = readahead.Readahead.begin

    def read(descriptor, buffers, offset):
        offsets.append(offset)
        begun.set()
        leaving.wait(60)  # until the reader is being closed
        return sum(map(len, buffers))

    def beginning(self):
        if begun.is_set():  # `stop` calls it after it has said that the thread is to end
            leaving.set()
        begin(self)

    in_thread(read)
    monkeypatch.setattr(readahead.Readahead, "begin", beginning)
    with stored.open() as reader:
        reader.read_ahead(stored.batches())
        begun.wait(60)
    assert offsets == [stored.offset]


def test_reading_ahead_a_second_time_leaves_nothing_open_either(stored):
    with stored.open() as reader:
        stored.in_order(reader)
        stored.at_random(reader)
    assert not ahead_threads()
    assert open_files(stored.path) == 0


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_slices_of_a_truncated_file_are_corrupt_also_where_no_thread_reads(stored, cold, ahead):
    with stored.open(cold) as reader:
        os.truncate(stored.path, SIZE // 2)
        if ahead:
            reader.read_ahead(stored.batches())
        else:
            stored.check(reader, slice(0, 3))
        with pytest.raises(CorruptArtifact, check=kind("truncated", path=stored.path)):
            reader.batch(slice(len(stored.rows) - 3 if ahead else 0, len(stored.rows)))


@pytest.mark.parametrize("cold", [True, False])
def test_rows_of_a_truncated_file_are_an_error_without_a_bus_error(stored, cold):
    with stored.open(cold) as reader:
        os.truncate(stored.path, SIZE // 2)
        stored.check(reader, np.array([3, 0, 3]))
        for rows in ([len(stored.rows) - 1], [0]):  # what is left is not trusted any more
            with pytest.raises(OSError, check=lambda error: error.filename == str(stored.path)):
                reader.batch(np.array(rows))


@pytest.mark.parametrize("cold", [True, False])
def test_where_bus_errors_cannot_be_caught_rows_are_read_from_the_file(stored, cold, monkeypatch):
    monkeypatch.setattr(cached_reader, "SIGBUS_HANDLED", False)
    monkeypatch.delattr(CachedReader, "_gather")
    with stored.open(cold) as reader:
        stored.at_random(reader)
        os.truncate(stored.path, SIZE // 2)
        with pytest.raises(CorruptArtifact, check=kind("truncated", path=stored.path)):
            reader.batch(np.array([0, len(stored.rows) - 1]))


@pytest.mark.parametrize("in_order", [True, False])
def test_an_earlier_error_of_the_thread_is_raised_in_the_next_read(stored, in_order, in_thread):
    def fail(*arguments):
        raise OSError(errno.EIO, "broken")

    in_thread(fail)
    with stored.open() as reader:
        first, *later = stored.batches(in_order)
        reader.read_ahead([first, *later])
        with contextlib.suppress(OSError):  # at the latest this begins the thread
            reader.batch(first)
        for thread in ahead_threads():
            thread.join()
        with pytest.raises(OSError, match="broken"):  # an access to the map could end the process
            reader.batch(later[0][:2] if later else slice(0, 3))


def test_an_error_of_the_thread_is_raised_in_the_waiting_read(stored, in_thread, monkeypatch):
    waiting, wait_for = threading.Event(), readahead.Readahead.wait_for

    def fail(*arguments):
        waiting.wait(20)
        raise OSError(errno.EIO, "broken")

    def wait(self, row):
        waiting.set()
        wait_for(self, row)

    in_thread(fail)
    monkeypatch.setattr(readahead.Readahead, "wait_for", wait)
    with stored.open() as reader:
        reader.read_ahead(stored.batches())
        with pytest.raises(OSError, match="broken"):
            reader.batch(slice(0, 3))


FIXED = ["npy", "memmap", "hdf5:chunk_bytes=0", "hdf5", "lmdb"]
ENCODED = ["hdf5:compression=lzf", "lmdb:codec=lz4"]
STORED = [*FIXED, *ENCODED, "hdf5:compression=gzip"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("choice"), image_arrays(), STORED)


@pytest.fixture
def choose(by_file, dataset):
    """Return `select_backend` for a cold or a warm artifact; its backends are closed at the end."""
    made = []

    def choose(variant, direct=None, cold=True, threads=None, batch_size=64):
        files = dataset.files_of(variant)
        with dataset.opener(variant)() as reader:
            reader.placement()  # building an index reads files into the cache, once
        if cold:
            page_cache.evict(files)
        else:
            page_cache.warm(files)
        options = ReadOptions(threads, direct)
        made.append(select_backend(dataset.opener(variant), dataset.schema, options, batch_size))
        return made[-1]

    yield choose
    for one in made:
        one.close()


def traits(source):
    return type(source.reader), getattr(source.reader, "cold", None), source.direct


def little_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)  # of which the data is more than half


WARM, COLD, PAST = (CachedReader, False, False), (CachedReader, True, False), (DirectReader, None, True)


@pytest.mark.parametrize("variant", FIXED)
@pytest.mark.parametrize(
    ("cold", "fits", "direct", "expected"),
    [
        (False, False, None, WARM),
        (True, True, None, COLD),
        (True, False, None, PAST),
        (False, True, True, PAST),
        (True, False, False, COLD),
    ],
)
def test_the_backend_follows_from_residency_and_memory_unless_direct_is_set(
    choose, monkeypatch, variant, cold, fits, direct, expected
):
    if not fits:
        little_memory(monkeypatch)
    assert traits(choose(variant, direct=direct, cold=cold)) == expected


def test_data_of_unknown_residency_counts_as_cold(choose, monkeypatch):
    def refuse(files, sampled):
        raise page_cache.ResidencyUnknown(files[0], "not yours")

    with monkeypatch.context() as patched:
        patched.setattr(page_cache, "residency", refuse)
        patched.setattr(page_cache, "evict", lambda files: None)
        assert traits(choose("npy")) == (CachedReader, True, False)


@pytest.mark.parametrize("variant", ENCODED)
def test_encoded_samples_are_read_by_their_own_library(choose, variant, dataset):
    source = choose(variant)
    with dataset.opener(variant)() as reader:
        assert type(source.reader) is type(reader)
    assert (source.threads, source.direct) == (1, False)
    assert choose(variant, direct=False, cold=False, threads=3).threads == 3


def test_blocks_are_decoded_here_unless_they_are_of_a_few_small_rows(choose, dataset):
    source = choose("hdf5:compression=gzip")
    assert (type(source.reader), source.decodes, source.cold) == (BlockReader, True, True)
    assert not choose("lmdb:codec=lz4").decodes
    assert not choose("lmdb").decodes


def test_without_direct_io_the_cache_is_used_unless_direct_is_set(choose, monkeypatch):
    def refuse(path):
        raise DirectUnavailable(path)

    monkeypatch.setattr(direct_reader, "open_direct", refuse)
    monkeypatch.setattr(direct_reader, "SMALL_BYTES", 0)
    little_memory(monkeypatch)
    assert traits(choose("npy")) == (CachedReader, True, False)
    with pytest.raises(InvalidSettings, check=kind("no-direct-reads")):
        choose("npy", direct=True)


def test_the_default_is_one_thread_per_core_or_two_past_the_cache(choose, monkeypatch):
    assert choose("npy", threads=7).threads == 7
    for cores, through, past in ((1, 1, 2), (2, 2, 2), (64, MAX_THREADS, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: range(cores))
        assert choose("npy", direct=False, cold=False).threads == through
        assert choose("npy", direct=True, cold=False).threads == past


def test_large_warm_batches_have_more_threads(choose, dataset, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64))
    monkeypatch.setattr(backend_selection, "LARGE_BATCH_BYTES", 8 * dataset.schema.sample_bytes)
    threads = {size: choose("npy", direct=False, cold=False, batch_size=size).threads for size in (7, 8)}
    assert threads == {7: MAX_THREADS, 8: MAX_THREADS_LARGE}
    assert choose("npy", direct=False, cold=True, batch_size=8).threads == MAX_THREADS
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(6))
    assert choose("npy", direct=False, cold=False, batch_size=8).threads == 6


def test_only_chosen_fields_are_opened(dataset, by_file):
    page_cache.evict(dataset.files_of("npy"))
    schema = Schema(SAMPLES, (dataset.schema.field("y"),))
    source = select_backend(dataset.opener("npy"), schema, ReadOptions(direct=False), 64)
    with source.reader as reader:
        source.start([slice(0, SAMPLES)])
        np.testing.assert_array_equal(reader.batch(slice(0, SAMPLES))["y"], image_arrays()["y"])
    assert page_cache.residency([dataset.path_of("npy") / "x.npy"]) < 0.9  # its header at most was looked at


def test_memory_lies_as_the_file_does_where_slices_are_read_past_the_cache(choose, monkeypatch):
    monkeypatch.setattr(direct_reader, "SMALL_BYTES", 0)
    past, through = choose("npy", direct=True), choose("npy", direct=False)
    page_offset = (128 + 3 * 768) % 4096  # after the header of an npy file
    assert past.page_offset("x", slice(3, 9)) == page_offset
    assert past.page_offset("x", np.array([3])) == through.page_offset("x", slice(3, 9)) == 0


def test_very_many_files_are_checked_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("iobench.dataset.artifact_location.AT_ONCE", 3)
    files = [tmp_path / f"{number}" for number in range(10)]
    for file in files:
        file.write_bytes(b"1")
    unchanged = ChangeDetector(files)
    for _ in range(8):
        unchanged.check()
    files[7].write_bytes(b"22")
    complaints = 0
    for _ in range(4):
        try:
            unchanged.check()
        except CorruptArtifact:
            complaints += 1
    assert complaints == 1


HARMS = {
    "truncated": lambda path: os.truncate(path, 10),
    "grown": lambda path: os.truncate(path, 10_000),
    "rewritten": lambda path: path.write_bytes(bytes(1000)),
    "removed": Path.unlink,
    "replaced": lambda path: replace(path),
}


def replace(path):
    """Replace a file by another one of the same size and time."""
    stat, other = path.stat(), path.with_name("other")
    other.write_bytes(bytes(stat.st_size))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_changed_file_is_corrupt(tmp_path, harm):
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_bytes(os.urandom(1000))
        os.utime(file, ns=(0, 0))
    unchanged = ChangeDetector(files)
    unchanged.check()
    harm(files[1])
    missing = not files[1].exists()
    with refused_as("missing-file" if missing else "changed", path=files[1], expected="1000 bytes"):
        unchanged.check()
