"""Shuffled rows are requested in the epoch's order if that pays off, a bounded number ahead."""

import os
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from conftest import prepared
from hypothesis import given
from hypothesis import strategies as st
from stream_loaders import stream_loader

from iobench.formats import Blocks, Field, Schema, Strided
from iobench.host import page_cache
from iobench.stream import mapped_files, readahead
from iobench.stream.addresses import RowAddresses
from iobench.stream.block_reader import BlockAddresses, BlockReader
from iobench.stream.cached_reader import CachedReader
from iobench.stream.readahead import ReadaheadWindow

SAMPLES = 8_000
IMAGE, VECTOR, LABEL = 150_528, 512, 8
AT_RANDOM = np.array_split(np.random.default_rng(0).permutation(SAMPLES), 40)
BLOCK = 2048  # rows, 1 MiB of vectors
IN_BLOCKS = [
    rows
    for block in np.random.default_rng(1).permutation(64)
    for rows in np.array_split(np.arange(block * BLOCK, (block + 1) * BLOCK), 8)
]


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    """Small files stand for large ones here."""
    monkeypatch.setattr(readahead, "SMALL_BYTES", 0)


def places(folder, samples=SAMPLES, **widths):
    """Lay out one file per field; fields with a common prefix, as x_image and x_label, share records."""
    schema = Schema(samples, tuple(Field(name, (width,), "uint8") for name, width in widths.items()))
    result = {}
    for name, width in widths.items():
        together = {other: n for other, n in widths.items() if other.split("_")[0] == name.split("_")[0]}
        stride, path = sum(together.values()), folder / name.split("_")[0]
        before = sum(list(together.values())[: list(together).index(name)])
        with open(path, "wb") as file:
            os.truncate(file.fileno(), stride * samples)
        result[name] = Strided((path,), before, width if stride == width else stride)
    return schema, result


@pytest.mark.parametrize(
    ("widths", "batches", "requested"),
    [
        ({"x": IMAGE}, AT_RANDOM, {"x"}),
        ({"x": IMAGE, "y": LABEL}, AT_RANDOM, {"x"}),
        ({"x_image": IMAGE, "x_label": LABEL}, AT_RANDOM, {"x_image", "x_label"}),
        ({"x": VECTOR}, [rows * 16 for rows in AT_RANDOM], set()),
        ({"x": VECTOR}, IN_BLOCKS, {"x"}),
        ({"x": VECTOR, "y": LABEL}, [rows * 16 for rows in AT_RANDOM], set()),
    ],
    ids=["images", "labels apart", "labels among them", "vectors", "vectors in blocks", "vectors and labels"],
)
def test_only_fields_in_long_ranges_are_requested(tmp_path, monkeypatch, widths, batches, requested):
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 4 << 20)
    laid = RowAddresses(*places(tmp_path, 16 * SAMPLES, **widths))
    assert set(ReadaheadWindow(laid, batches).fields) == requested


@pytest.mark.parametrize(("stored", "requested"), [(200, set()), (60_000, {"x"})])
def test_large_blocks_are_requested(tmp_path, monkeypatch, stored, requested):
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 1 << 20)
    path, count = tmp_path / "blocks", SAMPLES // 2
    with open(path, "wb") as file:
        os.truncate(file.fileno(), 70_000 * count)
    numbers = np.arange(count)
    table = Blocks(("x",), (path,), numbers * 2, numbers * 0, numbers * 70_000, numbers * 0 + stored, None)
    schema = Schema(SAMPLES, (Field("x", (50_000,), "uint8"),))
    assert set(ReadaheadWindow(BlockAddresses(schema, [table]), AT_RANDOM).fields) == requested


@pytest.mark.parametrize(
    ("rows", "more", "small"),
    [(SAMPLES, 0, True), (SAMPLES // 2, 0, True), (SAMPLES // 3, 0, False), (SAMPLES, 1, False)],
)
def test_a_small_dataset_is_requested_as_a_whole_unless_few_of_its_rows_are_needed(
    tmp_path, monkeypatch, requested, rows, more, small
):
    monkeypatch.setattr(readahead, "SMALL_BYTES", VECTOR * SAMPLES - more)
    schema, result = places(tmp_path, SAMPLES, x=VECTOR)
    page_cache.evict([tmp_path / "x"])
    batches = np.array_split(np.random.default_rng(3).permutation(SAMPLES)[:rows], 4)
    assert ReadaheadWindow(RowAddresses(schema, result), batches).is_small is small
    with closing(CachedReader(schema, result, True)) as reader:
        reader.read_ahead(batches)
        reader.batch(batches[0])
        assert (sum(requested) == VECTOR * SAMPLES) is small


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 12))
def test_pieces_are_all_rows_after_the_first_batch_in_their_order(tmp_path_factory, lengths, rows_each):
    ends = np.cumsum(lengths)
    order = np.random.default_rng(len(lengths)).permutation(SAMPLES)[: ends[-1]]
    batches = np.split(order, ends[:-1])
    laid = RowAddresses(*places(tmp_path_factory.getbasetemp(), x=IMAGE))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(readahead, "WINDOW_BYTES", rows_each * IMAGE)
        made = ReadaheadWindow(laid, batches)
        pieces = list(made.pieces())
    assert np.concatenate([order[:0], *pieces]).tolist() == order[lengths[0] :].tolist()
    assert all(rows_each <= len(piece) < rows_each + max(lengths) for piece in pieces[:-1])
    assert bool(made.fields) == any(end < ends[-1] for end in ends if end >= rows_each)  # more than a piece
    for number in range(len(batches) if made.fields else 0):
        two = np.concatenate(batches[number : number + 2])
        assert made.end_of(two) == sum(lengths[: number + 2])
    assert made.end_of(np.array([order[0] + SAMPLES])) is None


@pytest.fixture
def images(tmp_path):
    """Return cold images and their labels, with their content."""
    samples = 200
    schema, result = places(tmp_path, samples, x=100_000, y=LABEL)
    rows = {
        f.name: np.random.default_rng(2).integers(0, 256, (samples, *f.shape), np.uint8)
        for f in schema.fields
    }
    for name, array in rows.items():
        (tmp_path / name).write_bytes(array.tobytes())
        page_cache.evict([tmp_path / name])
    return schema, result, rows


@pytest.fixture
def requested(monkeypatch):
    """Return the sizes of the thread's requests to the kernel."""
    result, advise = [], os.posix_fadvise

    def noting(descriptor, offset, count, advice):
        if threading.current_thread().name == "iobench-ahead":
            result.append(count)
        advise(descriptor, offset, count, advice)

    monkeypatch.setattr(os, "posix_fadvise", noting)
    return result


def test_requests_are_a_bounded_number_of_rows_ahead(images, requested, monkeypatch):
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 1_000_000)  # ten rows
    monkeypatch.setattr(readahead, "REQUESTED_BYTES", 3_000_000)  # thirty
    schema, result, rows = images
    batches = np.array_split(np.random.default_rng(3).permutation(200), 20)
    with closing(CachedReader(schema, result, True)) as reader:
        reader.read_ahead(batches)
        for number, batch in enumerate(batches):
            read = reader.batch(batch)
            for name, array in rows.items():
                np.testing.assert_array_equal(read[name], array[batch])
            taken = 10 * max(number, 1)
            assert sum(requested) < (taken + 30 + 10 + 10) * 110_000  # one piece more, and ends of pages
        assert sum(requested) > 150 * 100_000


def test_rows_are_taken_only_after_their_request(images, requested, monkeypatch):
    """A page that was not requested would be read alone, while the accessing thread waits."""
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 600_000)
    schema, result, _ = images
    batches, seen = np.array_split(np.random.default_rng(3).permutation(200), 20), []
    advise, read_each = os.posix_fadvise, CachedReader.read_each

    def slowly(*arguments):
        if threading.current_thread().name == "iobench-ahead":
            time.sleep(5e-3)
        advise(*arguments)

    def noting(self, name, rows, target):
        seen.append(sum(requested))
        read_each(self, name, rows, target)

    monkeypatch.setattr(os, "posix_fadvise", slowly)
    monkeypatch.setattr(CachedReader, "read_each", noting)
    with closing(CachedReader(schema, result, True)) as reader:
        reader.read_ahead(batches)
        for number, batch in enumerate(batches):
            reader.batch(batch)
            assert seen[-1] >= 10 * number * 100_000 * 0.9  # neighbors are requested once


@pytest.mark.parametrize("read_ahead", [None, 64, 512])
def test_no_request_is_larger_than_the_kernels_readahead(images, monkeypatch, read_ahead):
    monkeypatch.setattr(mapped_files, "read_ahead_kib", lambda path: read_ahead)
    counts = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, offset, count, advice: counts.append(count))
    schema, result, _ = images
    with closing(CachedReader(schema, result, True)) as reader:
        reader.read_ahead([np.arange(199, -1, -1), np.arange(200)])
        reader.batch(np.arange(199, -1, -1))
    assert max(counts) == max(128, read_ahead or 0) << 10
    assert sum(counts) >= 200 * 100_000


def test_all_requested_rows_come_into_the_cache(tmp_path, monkeypatch):
    """The kernel reads no more than its readahead per request, so long ranges need several."""
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 10_000_000)
    schema, result = places(tmp_path, 500, x=40_000)
    (tmp_path / "x").write_bytes(bytes(20_000_000))
    page_cache.evict([tmp_path / "x"])
    batches = [np.array([3, 1]), np.random.default_rng(1).permutation(250) + 125]
    with closing(CachedReader(schema, result, True)) as reader:
        reader.read_ahead(batches)
        reader.batch(batches[0])
        end = time.monotonic() + 60
        while page_cache.residency([tmp_path / "x"]) < 0.49 and time.monotonic() < end:
            time.sleep(0.01)
        assert page_cache.residency([tmp_path / "x"]) >= 0.49


def test_blocks_of_the_first_batch_are_decoded_by_several_threads(tmp_path, monkeypatch):
    variant, array = "hdf5:compression=gzip,chunk_bytes=65536", np.arange(1 << 20).reshape(512, 2048)
    manifest = prepared(tmp_path, {"x": array}, [variant])
    monkeypatch.setattr(page_cache, "residency", lambda files, sampled: 0.0)
    decode, threads, two, in_time = BlockReader.decode_block, set(), threading.Event(), []

    def together(self, *arguments):
        threads.add(threading.get_ident())
        if len(threads) > 1:
            two.set()
        in_time.append(two.wait(10))
        two.set()  # one thread that does not wait is enough
        decode(self, *arguments)

    monkeypatch.setattr(BlockReader, "decode_block", together)
    batches = stream_loader(manifest.root, format=variant, batch_size=256, order="random", threads=2)
    assert len(list(batches)) == 2
    assert in_time
    assert all(in_time), "blocks of the first batch wait for one thread"
