"""Reads of rows at any place: in one file or very many, at any byte, plain or in encoded blocks."""

import gc
import os
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import open_files
from stream_cases import files_in_use

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.formats import Blocks, Chunked, Field, Listed, Schema, Strided
from iobench.host.memory import untouched_array
from iobench.stream import block_reader, direct_reader, gather, mapped_files
from iobench.stream.addresses import RowAddresses
from iobench.stream.backend import CompositeReader
from iobench.stream.block_reader import BlockReader
from iobench.stream.cached_reader import CachedReader
from iobench.stream.direct_reader import DirectReader
from iobench.stream.gather import Elements, one_thread

SHARDS, EACH = 40, 7
SAMPLES = SHARDS * EACH


class Shards:
    """Rows of two fields, one after the other in a record, in many files with a gap before each record."""

    def __init__(self, folder, width, gap):
        rng = np.random.default_rng(width)
        self.rows = {"x": rng.integers(0, 256, (SAMPLES, width), dtype=np.uint8), "y": np.arange(SAMPLES) * 3}
        self.schema = Schema(SAMPLES, (Field("x", (width,), "uint8"), Field("y", (), "int64")))
        self.folder, self.width = folder, width
        self.paths = [folder / f"shard{number}" for number in range(SHARDS)]
        offsets = np.zeros(SAMPLES, np.int64)
        for number, path in enumerate(self.paths):
            with open(path, "wb") as file:
                file.write(b"\xa5" * (number % 5))  # no two shards begin alike
                for row in range(number * EACH, number * EACH + EACH):
                    file.write(b"\xa5" * gap)
                    offsets[row] = file.tell()
                    file.write(self.rows["x"][row].tobytes() + self.rows["y"][row].tobytes())
        file = np.arange(SAMPLES) // EACH
        self.listed = {
            "x": Listed(tuple(self.paths), file, offsets),
            "y": Listed(tuple(self.paths), file, offsets, within=width),
        }
        first, stride = np.arange(SHARDS) * EACH, gap + width + 8
        parts = (first, np.arange(SHARDS), offsets[first])
        self.chunked = {
            "x": Chunked(tuple(self.paths), *parts, stride),
            "y": Chunked(tuple(self.paths), *parts[:2], parts[2] + width, stride),
        }

    def check(self, reader, rows):
        for name, array in reader.batch(rows).items():
            np.testing.assert_array_equal(array, self.rows[name][rows])


@pytest.fixture(params=[(5, 3), (512, 0), (32_769, 11)], ids=["odd", "aligned", "large"])
def shards(request, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_files, "MAX_OPEN", 4)
    monkeypatch.setattr(direct_reader, "MAX_OPEN", 4)
    return Shards(tmp_path, *request.param)


READERS = pytest.mark.parametrize(
    "open_reader",
    [lambda s, p: CachedReader(s, p, False), lambda s, p: CachedReader(s, p, True), DirectReader],
    ids=["warm", "cold", "direct"],
)
KINDS = pytest.mark.parametrize("kind", ["listed", "chunked"])


@READERS
@KINDS
def test_rows_of_many_files_are_right_in_any_order_and_few_files_are_open(shards, kind, open_reader):
    order = np.random.default_rng(5).permutation(SAMPLES)
    with open_reader(shards.schema, getattr(shards, kind)) as reader:
        for rows in (order, order[:9], np.array([3, 3, 0, SAMPLES - 1]), slice(0, SAMPLES), slice(5, 23)):
            shards.check(reader, rows)
            assert open_files(shards.folder) <= 4
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda part: shards.check(reader, part), np.array_split(order, 12)))
        assert open_files(shards.folder) <= 4
    assert files_in_use(shards.folder) == set()


@KINDS
@pytest.mark.parametrize("first", [None, 5])
def test_readahead_is_right(shards, kind, first):
    with CachedReader(shards.schema, getattr(shards, kind), True) as reader:
        rows = np.random.default_rng(1).permutation(SAMPLES)
        reader.read_ahead([slice(0, SAMPLES)] if first is None else [np.append(first, rows)])
        shards.check(reader, slice(0, SAMPLES) if first is None else np.append(first, rows))
    assert files_in_use(shards.folder) == set()


@READERS
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(("width", "stride"), [(2050, 2048), (2050, 2), (34, 32), (100_000, 40_000), (6, 4)])
def test_rows_may_overlap(width, stride, small, open_reader, tmp_path, monkeypatch):
    """Windows of tokens: each row begins before the one before it ends."""
    if not small:
        monkeypatch.setattr(direct_reader, "SMALL_BYTES", 0)
    content, offset = np.random.default_rng(2).bytes(300_000), 1024
    count = min(200, (len(content) - offset - width) // stride + 1)
    (tmp_path / "tokens").write_bytes(content)
    place = Strided((tmp_path / "tokens",), offset, stride)
    stored = np.frombuffer(content, np.uint8)[offset:]
    rows = np.lib.stride_tricks.sliding_window_view(stored, width)[::stride][:count]
    schema, order = Schema(count, (Field("x", (width,), "uint8"),)), np.random.default_rng(1)
    for batches in ([slice(0, count)], np.split(order.permutation(count), [1, count // 2])):
        with open_reader(schema, {"x": place}) as reader:
            if isinstance(reader, CachedReader):
                reader.read_ahead(batches)
            for batch in batches:
                np.testing.assert_array_equal(reader.batch(batch)["x"], rows[batch])


def lies(shards):
    """Placements that lead out of their files."""
    listed = shards.listed["x"]
    size, paths = shards.paths[0].stat().st_size, listed.files
    wrong = {
        "beyond": (0, size - shards.width + 1),
        "far beyond": (0, 1 << 50),
        "before": (0, -1),
        "no such file": (SHARDS, 0),
        "a file before the first": (-1, 0),
    }
    for name, (file, offset) in wrong.items():
        files_, offsets = listed.file.copy(), listed.offset.copy()
        files_[7], offsets[7] = file, offset
        yield name, Listed(paths, files_, offsets)
        if file == 0:
            none = np.zeros(SAMPLES, np.int64)
            yield f"{name}, one file", Listed(paths[:1], none, np.where(np.arange(SAMPLES) == 7, offset, 0))
        yield f"{name}, chunks", Chunked(paths, np.arange(SAMPLES), files_, offsets, 1)
    yield "a stride too long", Strided(paths[:1], 0, size)


@READERS
def test_a_placement_that_leads_out_of_its_files_is_corrupt(tmp_path, open_reader):
    shards = Shards(tmp_path, 100, 3)
    schema = Schema(SAMPLES, shards.schema.fields[:1])
    for name, place in lies(shards):
        with pytest.raises(CorruptArtifact) as caught, open_reader(schema, {"x": place}) as reader:
            reader.batch(np.arange(SAMPLES))
        assert "\n" not in str(caught.value), name
    assert files_in_use(tmp_path) == set()


def test_torch_has_as_many_threads_afterwards_as_before_and_one_in_between():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


# Blocks


class Encoded:
    """Blocks of 1 to 9 rows of two fields, each byte of them stored as its complement."""

    def __init__(self, path):
        self.path, self.decoded, self.harmed = path, [], set()
        self.first = np.array([0, 4, 5, 14, 20])
        self.rows = {"x": np.random.default_rng(2).integers(0, 256, (26, 50), np.uint8), "y": np.arange(26)}
        self.schema = Schema(26, (Field("x", (50,), "uint8"), Field("y", (), "int64")))
        self.counts = np.diff(self.first, append=26)
        with open(path, "wb") as file:
            offsets = []
            for first, count in zip(self.first, self.counts, strict=True):
                offsets.append(file.tell())
                part = [self.rows[name][first : first + count].tobytes() for name in ("x", "y")]
                file.write(bytes(255 - byte for byte in b"".join(part)))
        self.table = Blocks(
            ("x", "y"), (path,), self.first, np.zeros(5, np.int64), np.array(offsets), self.counts * 58,
            self.decode,
        )  # fmt: skip

    def decode(self, number, stored, out):
        self.decoded.append(number)
        if number in self.harmed:
            raise corrupt(self.path, "a block", "another thing")
        count = self.counts[number]
        plain = 255 - np.frombuffer(stored, np.uint8)
        parts = {"x": plain[: 50 * count], "y": plain[50 * count :]}
        for name, target in out.items():
            target.reshape(-1).view(np.uint8)[:] = parts[name]

    def check(self, reader, rows, names=("x", "y")):
        index = np.arange(26)[rows]
        out = {
            name: np.empty((len(index), *self.rows[name].shape[1:]), self.rows[name].dtype) for name in names
        }
        reader.read(rows, out)
        for name in names:
            np.testing.assert_array_equal(out[name], self.rows[name][index])


@pytest.fixture
def encoded(tmp_path):
    return Encoded(tmp_path / "blocks")


ORDERS = [slice(0, 26), slice(3, 17), np.random.default_rng(1).permutation(26), np.array([25, 4, 4, 0])]


@pytest.mark.parametrize("cold", [False, True])
def test_rows_of_blocks_are_right_in_any_order(encoded, cold):
    with BlockReader(encoded.schema, [encoded.table], cold, 2) as reader:
        reader.read_ahead([np.array([25]), *np.array_split(np.arange(25)[::-1], 4)])
        for rows in ORDERS:
            encoded.check(reader, rows)
            encoded.check(reader, rows, ["y"])
        assert reader.batch(np.empty(0, np.int64))["x"].shape == (0, 50)
    with pytest.raises(ValueError, match="closed"):
        reader.batch(slice(0, 3))
    assert files_in_use(encoded.path.parent) == set()


def test_several_threads_have_each_block_decoded_once(encoded):
    barrier = threading.Barrier(6)
    some = np.setdiff1d(np.arange(26), encoded.first)  # of no block all rows, which would not be kept

    def read(rows):
        barrier.wait()
        encoded.check(reader, rows)

    with BlockReader(encoded.schema, [encoded.table], False, 2) as reader, ThreadPoolExecutor(6) as pool:
        list(pool.map(read, np.array_split(np.random.default_rng(0).permutation(some), 6)))
    assert sorted(encoded.decoded) == [0, 2, 3, 4]


def test_the_memory_of_a_block_whose_rows_were_all_taken_is_used_again(encoded):
    used = []

    def noting(number, stored, out):
        used.append(out["x"].ctypes.data)
        encoded.decode(number, stored, out)

    table = replace(encoded.table, decode=noting)
    in_order = [part for low, count in zip(encoded.first, encoded.counts, strict=True)
                for part in np.array_split(np.arange(low, low + count)[::-1], 2)]  # fmt: skip
    with BlockReader(encoded.schema, [table], False, 2) as reader:
        for rows in in_order * 2:
            if len(rows):
                encoded.check(reader, rows)
    assert len(used) == 2 * len(encoded.first)
    several = [place for place, count in zip(used, [*encoded.counts] * 2, strict=True) if count > 1]
    assert len(set(several)) == 1


@pytest.mark.parametrize("most", [8, gather.MAX_ITEM_BYTES])
def test_rows_larger_than_an_item_of_numpys_may_be_are_copied_as_well(monkeypatch, most):
    monkeypatch.setattr(gather, "MAX_ITEM_BYTES", most)
    rows, numbers = np.random.default_rng(0).standard_normal((6, 5)), np.array([4, 0, 4])
    out, scattered = np.zeros((3, 5)), np.zeros((5, 5))
    Elements(rows)(numbers, out)
    np.testing.assert_array_equal(out, rows[numbers])
    Elements(rows).scatter(numbers, scattered, np.array([3, 1, 0]))
    np.testing.assert_array_equal(scattered[[3, 1, 0]], rows[numbers])
    assert not scattered[[2, 4]].any()


def test_the_end_of_a_row_of_two_gibibytes_is_copied():
    large = untouched_array(1 << 31).reshape(1, -1)  # its pages, and those of the copy, exist when written to
    large[0, -9:] = np.arange(1, 10)
    out = untouched_array(1 << 31).reshape(1, -1)
    Elements(large)(np.zeros(1, np.int64), out)
    assert out[0, -9:].tolist() == list(range(1, 10))


class Slow:
    """Blocks of 4 rows of 8 bytes, which are their numbers, decoded when they may be."""

    def __init__(self, blocks, room_for, threads):
        self.counts = np.full(blocks, 4)
        self.held = {}  # number → event for which its decoding waits
        self.harmed = set()
        self.begun = queue.SimpleQueue()
        self.used = set()  # addresses of decoded blocks
        spec = {"x": ((), np.dtype(np.int64))}
        self.decoded = block_reader.DecodedBlocks(self.counts, spec, room_for * 32, threads)

    def decode(self, number, out):
        self.begun.put(number)
        self.used.add(out["x"].ctypes.data)
        if number in self.held:
            assert self.held[number].wait(10)
        if number in self.harmed:
            raise OSError("harmed")
        out["x"][:] = number * 4 + np.arange(4)

    def take(self, rows):
        out = {"x": np.full(len(rows), -1)}
        self.decoded.take(rows // 4, rows % 4, out, self.decode)
        np.testing.assert_array_equal(out["x"], rows)


@pytest.mark.parametrize("room_for", [1, 4, 7, 100])
def test_rows_of_more_blocks_than_there_is_room_for_are_right(room_for):
    slow = Slow(50, room_for, 3)
    with ThreadPoolExecutor(3) as pool:
        parts = np.array_split(np.random.default_rng(0).permutation(200), 7)
        for _ in range(3):
            list(pool.map(slow.take, [*parts, np.array([5, 5, 199, 0, 5]), np.array([3])]))
    assert len(slow.used) <= max(6, min(room_for, 50))


def test_a_block_in_use_keeps_its_slot_while_others_wait_for_one():
    slow = Slow(10, 2, 1)  # two slots
    slow.held = {0: threading.Event(), 1: threading.Event()}
    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(slow.take, np.array([4 * number, 4 * number + 2])) for number in (0, 1)]
        assert {slow.begun.get(timeout=10), slow.begun.get(timeout=10)} == {0, 1}
        second = pool.submit(slow.take, np.array([3]))
        third = pool.submit(slow.take, np.array([8, 9]))
        with pytest.raises(queue.Empty):
            slow.begun.get(timeout=0.2)
        slow.held[1].set()
        assert slow.begun.get(timeout=10) == 2, "in the slot of block 1"
        third.result(10)
        slow.held[0].set()
        for one in (*first, second):
            one.result(10)
    slow.take(np.array([1]))
    assert slow.begun.empty(), "block 0 was kept"


def test_a_thread_waiting_for_slots_decodes_other_threads_blocks():
    slow = Slow(10, 4, 2)  # four slots, of which two are used at the same time
    slow.held = {0: threading.Event(), 2: threading.Event()}
    with ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(slow.take, np.array([0, 4])), pool.submit(slow.take, np.array([8, 12]))]
        assert {slow.begun.get(timeout=10), slow.begun.get(timeout=10)} == {0, 2}
        waits = pool.submit(slow.take, np.array([16, 20]))
        assert {slow.begun.get(timeout=10), slow.begun.get(timeout=10)} == {1, 3}
        with pytest.raises(queue.Empty):
            slow.begun.get(timeout=0.1)
        for event in slow.held.values():
            event.set()
        for one in (*busy, waits):
            one.result(10)
    assert [slow.begun.get(timeout=10) for _ in range(2)] == [4, 5]


def test_a_thread_waiting_for_many_slots_helps_those_with_few():
    slow = Slow(20, 8, 2)
    slow.held = {number: threading.Event() for number in (*range(8), 12)}
    with ThreadPoolExecutor(10) as pool:
        busy = [pool.submit(slow.take, np.array([4 * number])) for number in range(8)]
        assert {slow.begun.get(timeout=10) for _ in busy} == set(range(8))
        many = pool.submit(slow.take, 4 * np.arange(8, 12))
        few = pool.submit(slow.take, np.array([48, 52]))
        for number in (0, 1):
            slow.held[number].set()
        assert {slow.begun.get(timeout=10), slow.begun.get(timeout=10)} == {12, 13}
        for event in slow.held.values():
            event.set()
        for one in (*busy, many, few):
            one.result(10)


def test_a_block_decoded_by_a_helper_keeps_its_slot_when_its_owner_fails():
    slow = Slow(10, 4, 2)
    slow.held, slow.harmed = {number: threading.Event() for number in (0, 1, 2)}, {0}
    with ThreadPoolExecutor(4) as pool:
        failing = pool.submit(slow.take, np.array([0, 4]))
        assert slow.begun.get(timeout=10) == 0
        busy = pool.submit(slow.take, np.array([8]))
        assert slow.begun.get(timeout=10) == 2
        helps = pool.submit(slow.take, np.array([16, 20]))
        assert slow.begun.get(timeout=10) == 1
        slow.held[0].set()
        with pytest.raises(OSError, match="harmed"):
            failing.result(10)
        pool.submit(slow.take, np.array([24, 28])).result(10)
        pool.submit(slow.take, np.array([32, 36])).result(10)
        slow.held[1].set()
        helps.result(10)
        slow.held[2].set()
        busy.result(10)
    slow.harmed = set()
    slow.take(np.arange(40))


def test_a_failure_leaves_no_memory_behind():
    slow = Slow(10, 4, 2)
    slow.harmed = {1}
    left = weakref.ref(slow.decoded)
    gc.disable()
    try:
        with pytest.raises(OSError, match="harmed"):
            slow.take(np.array([0, 4]))
        slow.decoded = None
        assert left() is None
    finally:
        gc.enable()


def test_blocks_are_kept_as_long_as_there_is_room(encoded, monkeypatch):
    for room, times in ((1 << 20, 3), (1, 5)):
        monkeypatch.setattr(block_reader, "CACHE_BYTES", room)
        encoded.decoded.clear()
        with BlockReader(encoded.schema, [encoded.table], False, 1) as reader:
            for row in (0, 6, 14, 1, 7):  # two slots at least
                encoded.check(reader, np.array([row]))
        assert len(encoded.decoded) == times


def test_only_the_damaged_block_is_corrupt_for_all_its_readers(encoded):
    encoded.harmed = {3}
    with BlockReader(encoded.schema, [encoded.table], False, 2) as reader:
        for rows in (np.array([1, 15, 25]), slice(0, 26), np.array([16])):
            with pytest.raises(CorruptArtifact, check=lambda error: error.expected == "a block"):
                reader.batch(rows)
        encoded.check(reader, slice(0, 14))
        encoded.harmed = set()
        encoded.check(reader, np.array([1, 15, 25]))


@pytest.mark.parametrize("wrong", [("offset", 1 << 40), ("offset", -1), ("stored", 1 << 40), ("file", 1)])
def test_a_table_that_leads_out_of_its_file_is_corrupt(encoded, wrong):
    getattr(encoded.table, wrong[0])[2] = wrong[1]
    with pytest.raises(CorruptArtifact):
        BlockReader(encoded.schema, [encoded.table], False, 2)


def test_a_truncated_block_is_an_error_without_a_bus_error(encoded):
    with BlockReader(encoded.schema, [encoded.table], False, 2) as reader:
        os.truncate(encoded.path, 0)
        with pytest.raises(OSError, check=lambda error: error.filename == str(encoded.path)):
            reader.batch(slice(0, 26))


def test_fields_that_lie_plain_and_fields_in_blocks_are_read_together(encoded, tmp_path):
    place = Strided((tmp_path / "plain",), 3, 8)
    place.files[0].write_bytes(bytes(3) + encoded.rows["y"].tobytes())
    x, y = ((field,) for field in encoded.schema.fields)
    parts = (
        CachedReader(Schema(26, y), {"y": place}, False),
        BlockReader(Schema(26, x), [encoded.table], False, 2),
    )
    with CompositeReader(encoded.schema, parts) as reader:
        for rows in ORDERS:
            encoded.check(reader, rows)


def test_rows_listed_at_whole_widths_are_taken_as_elements_of_an_array(tmp_path):
    schema, paths = Schema(21, (Field("x", (16,), "float32"),)), [tmp_path / f"{n}" for n in range(3)]
    rows = np.random.default_rng(0).random((21, 16), np.float32)
    for number, path in enumerate(paths):  # 136 bytes, then a row in every third slot of 64
        slots = np.zeros((7, 48), np.float32)
        slots[:, :16] = rows[number * 7 : number * 7 + 7]
        path.write_bytes(bytes(136) + slots.tobytes())
    row = np.arange(21)
    even = Listed(tuple(paths), row // 7, 136 + row % 7 * 192)
    odd = Listed(tuple(paths), row // 7, 136 + row % 7 * 192 + (row == 20) * 4)
    expected = np.array([20, 0, 7, 7, 3])
    for place, over in ((even, 8), (odd, None)):
        reader = CachedReader(schema, {"x": place}, cold=False)
        assert RowAddresses(schema, {"x": place}).common_remainder("x", 64) == over
        assert (reader.batch(expected)["x"][1:] == rows[expected][1:]).all()
        assert (reader.batch(expected)["x"][0] == rows[20]).all() == (over is not None)
        reader.close()


@pytest.mark.parametrize("first", [[0, 4, 8], [0, 4, 9], [0], [0, 5]])
def test_rows_in_chunks_are_taken_as_elements_wherever_the_chunks_lie(tmp_path, first):
    """Chunks as large as each other but for the last, which is larger, and such as are not."""
    schema, path = Schema(26, (Field("x", (16,), "float32"),)), tmp_path / "x"
    rows = np.random.default_rng(0).random((26, 16), np.float32)
    ends, begins, content = [*first[1:], 26], [], bytearray(40)
    for low, high in reversed(list(zip(first, ends, strict=True))):
        begins.insert(0, len(content))
        content += rows[low:high].tobytes() + bytes(64)
    path.write_bytes(content)
    index = np.array(first)
    place = Chunked((path,), index, np.zeros_like(index), np.array(begins), 64)
    every = np.arange(26)
    assert place.of_rows(place.first, every).tolist() == [max(f for f in first if f <= row) for row in every]
    with CachedReader(schema, {"x": place}, cold=False) as reader:
        assert RowAddresses(schema, {"x": place}).common_remainder("x", 64) == 40
        expected = np.array([25, 0, 4, 3, 8, 9, 20, 0])
        np.testing.assert_array_equal(reader.batch(expected)["x"], rows[expected])
