"""The cache of objects on a disk: what it serves is right, whatever happens to it."""

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from range_server import RangeServer

from iobench.base.errors import CorruptArtifact, InvalidSettings, LoaderFailed
from iobench.objects import cache as object_cache
from iobench.objects.cache import CHECKSUM_BYTES, ObjectCache
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles
from iobench.objects.request_log import LOG

pytest_plugins = ("object_fixtures",)
pytestmark = pytest.mark.usefixtures("quick_retries")

PIECE = 1000
SIZE = 20_500  # of an object: 20 pieces, and half of one
STORED = SIZE + 21 * CHECKSUM_BYTES


@pytest.fixture
def content(tmp_path):
    return {name: written(tmp_path, name, seed) for seed, name in enumerate(("one", "two"))}


def written(tmp_path, name, seed):
    content = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8).tobytes()
    (tmp_path / "served/set").mkdir(parents=True, exist_ok=True)
    (tmp_path / "served/set" / name).write_bytes(content)
    return content


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(object_cache, "PIECE_BYTES", PIECE)


@pytest.fixture
def served(tmp_path, content, small_pieces):
    with RangeServer(tmp_path / "served").running() as running:
        yield running


class Opened:
    """Readers of the objects in their present versions, through a cache of a number of bytes."""

    def __init__(self, served, folder):
        self._served, self._folder, self._stores = served, folder, []

    def __call__(self, limit=1 << 20):
        url = f"{self._served.url}/set"
        versions = {name: ObjectStore(url).head(name) for name in ("one", "two")}
        store = RemoteFiles(url, versions, ObjectCache(self._folder, limit)).store()
        self._stores.append(store)
        self._served.clear()
        LOG.clear()
        return lambda name, start, length: bytes(store.get(name, start, length, versions[name].etag))

    def close(self):
        while self._stores:
            self._stores.pop().close()


@pytest.fixture
def opened(served, tmp_path):
    opened = Opened(served, tmp_path / "cache")
    yield opened
    opened.close()


def pieces(tmp_path):
    return sorted(path for path in (tmp_path / "cache").iterdir() if not path.name.startswith("."))


def stored_bytes(tmp_path):
    return sum(path.stat().st_size for path in pieces(tmp_path))


def counted_bytes(tmp_path):
    return int.from_bytes((tmp_path / "cache/.size").read_bytes(), "little")


def spans(served):
    return sorted(span for _, span in served.requests)


def test_every_range_is_that_of_the_object_and_comes_once(opened, served, content, tmp_path):
    get = opened()
    rng = np.random.default_rng(0)
    for _ in range(300):
        name = ("one", "two")[rng.integers(2)]
        start = int(rng.integers(SIZE))
        length = int(rng.integers(1, min(4 * PIECE, SIZE - start) + 1))
        assert get(name, start, length) == content[name][start : start + length]
    assert sum(high - low + 1 for low, high in spans(served)) == stored_bytes(
        tmp_path
    ) - CHECKSUM_BYTES * len(pieces(tmp_path))
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path) <= 2 * STORED
    assert {path.stat().st_size for path in pieces(tmp_path)} <= {1004, 504}


def test_neighboring_pieces_are_one_request_and_cached_ones_are_none(opened, served, content):
    get = opened()
    get("one", 2500, 100)
    assert spans(served) == [(2000, 2999)]
    served.clear()
    assert get("one", 500, 4000) == content["one"][500:4500]
    assert spans(served) == [(0, 1999), (3000, 4999)]
    served.clear()
    assert get("one", 0, 5000) == content["one"][:5000]
    assert get("one", 2999, 2) == content["one"][2999:3001]
    assert not served.requests
    taken = LOG.take()
    assert (taken.needed_bytes, taken.cached_bytes) == (100 + 4000 + 5000 + 2, 1000 + 5000 + 2)
    assert taken.fetched_bytes == 5000


def test_later_readers_and_processes_find_it(opened, served, content):
    opened()("one", 0, SIZE)
    get = opened()
    assert get("one", 0, SIZE) == content["one"]
    assert not served.requests
    taken = LOG.take()
    assert (taken.count, taken.p50_s, taken.needed_bytes, taken.cached_bytes) == (0, None, SIZE, SIZE)


def test_threads_share_one_request_for_a_piece(opened, served, content, monkeypatch):
    monkeypatch.setattr("range_server.SLOW_S", 0.02)
    served.fault = lambda number, name: "slow"
    get = opened()
    starts = np.random.default_rng(0).integers(0, SIZE - 50, 400).tolist()
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda start: get("one", start, 50), starts))
    assert got == [content["one"][start : start + 50] for start in starts]
    assert sum(high - low + 1 for low, high in spans(served)) <= SIZE
    assert LOG.take().needed_bytes == 400 * 50


def test_a_thread_does_not_rely_on_one_that_failed(opened, served, content):
    get, began, refused = opened(), threading.Event(), threading.Event()

    def fault(number, name):
        began.set()
        if number == 1:
            refused.wait(5)
            return "replaced"
        return None

    served.fault = fault
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(get, "one", 0, 10)
        began.wait(5)
        second = pool.submit(get, "one", 20, 10)
        refused.set()
        with pytest.raises(CorruptArtifact):
            first.result()
        assert second.result() == content["one"][20:30]


@pytest.mark.parametrize("limit", [0, 500, 5 * (PIECE + CHECKSUM_BYTES), 5 * (PIECE + CHECKSUM_BYTES) + 900])
def test_the_limit_is_kept_and_nothing_is_refetched(opened, served, content, tmp_path, limit):
    get = opened(limit)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            served.clear()
            list(pool.map(lambda start: get("one", start, 100), range(0, SIZE, 100)))
    kept = min(limit, 5 * (PIECE + CHECKSUM_BYTES))
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path)
    assert kept - (PIECE + CHECKSUM_BYTES) < stored_bytes(tmp_path) <= limit
    assert sum(high - low + 1 for low, high in spans(served)) == SIZE - PIECE * len(pieces(tmp_path))
    assert get("one", 0, SIZE) == content["one"]


def test_a_smaller_limit_removes_pieces_when_it_is_opened(opened, content, tmp_path):
    opened()("one", 0, SIZE)
    opened.close()
    get = opened(3 * (PIECE + CHECKSUM_BYTES))
    assert len(pieces(tmp_path)) == 3
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path)
    assert get("one", 0, SIZE) == content["one"]


def test_no_other_version_is_served(opened, served, content, tmp_path):
    old = opened()
    old("one", 0, 3000)
    newer = written(tmp_path, "one", 7)
    assert old("one", 0, 3000) == content["one"][:3000]  # what was pinned when it was opened
    with pytest.raises(CorruptArtifact) as caught:
        old("one", 2500, 1000)
    assert caught.value.kind == "replaced"
    get = opened()
    assert get("one", 0, SIZE) == newer
    assert spans(served) == [(0, SIZE - 1)]
    assert get("one", 0, SIZE) == newer
    opened.close()
    get = opened()
    assert len(pieces(tmp_path)) == 21  # those of the old version are gone
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path)


def test_objects_without_versions_are_refused(opened, served):
    served.etags = False
    with pytest.raises(InvalidSettings) as caught:
        opened()
    assert caught.value.kind == "no-versions"


DAMAGES = {
    "short": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "flipped": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_piece_is_fetched_again(opened, served, content, tmp_path, damage):
    opened()("one", 0, SIZE)
    get = opened()
    for path in pieces(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    served.clear()
    assert get("one", 0, SIZE) == content["one"]
    assert spans(served) == [(0, SIZE - 1)]
    assert opened()("one", 0, SIZE) == content["one"]
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path) == STORED


def test_a_piece_that_becomes_shorter_later_is_fetched_again(opened, served, content, tmp_path):
    get = opened()
    get("one", 0, SIZE)  # this process has made the checksums, and compares them no more
    for path in pieces(tmp_path):
        path.write_bytes(path.read_bytes()[:100])
    served.clear()
    assert get("one", 90, 20) == content["one"][90:110]
    assert spans(served) == [(0, 999)]


def test_a_piece_under_the_name_of_another_is_fetched_again(opened, content, tmp_path):
    opened()("one", 0, SIZE)
    first, second, *_ = (path for path in pieces(tmp_path) if path.stat().st_size == PIECE + CHECKSUM_BYTES)
    second.write_bytes(first.read_bytes())
    assert opened()("one", 0, SIZE) == content["one"]


def test_a_full_disk_is_one_warning_and_no_error(opened, served, content, tmp_path, monkeypatch):
    get = opened()
    get("one", 0, 3000)

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(object_cache, "replace_file", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert get("one", 0, SIZE) == content["one"]
        assert get("two", 0, SIZE) == content["two"]
        served.clear()
        assert get("two", 100, 50) == content["two"][100:150]
    assert [one.category for one in caught] == [RuntimeWarning]
    assert spans(served) == [(100, 149)]  # no whole piece that is not kept
    assert LOG.take().rejected_pieces == 18 + 21 + 1
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path) == 3 * (PIECE + CHECKSUM_BYTES)


def test_a_folder_that_cannot_be_written_is_one_error(opened, tmp_path):
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(LoaderFailed) as caught:
        opened()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("owner", "name"), [(ObjectStore, "get"), (os, "replace"), (object_cache, "replace_file")]
)
def test_an_interrupt_leaves_nothing_that_is_read_later(opened, content, tmp_path, monkeypatch, owner, name):
    get = opened()

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            get("one", 0, SIZE)
    assert not pieces(tmp_path)
    assert counted_bytes(tmp_path) == 0
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".tmp-")]
    assert get("one", 0, SIZE) == content["one"]


def test_what_a_killed_process_left_is_removed_and_not_counted(opened, content, tmp_path):
    opened()("one", 0, 2000)
    opened.close()
    (tmp_path / "cache/.tmp-abc").write_bytes(b"half of a piece")
    (tmp_path / "cache/other-0").write_bytes(b"of an object that is gone")
    (tmp_path / "cache/.size").write_bytes((10**9).to_bytes(8, "little"))
    assert opened(STORED)("one", 0, SIZE) == content["one"]
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path) == STORED
    assert len(pieces(tmp_path)) == 21
    assert not (tmp_path / "cache/.tmp-abc").exists()


def test_a_process_waits_for_another_that_reserves(opened, content, tmp_path):
    get = opened()
    with ThreadPoolExecutor(1) as pool:
        with open(tmp_path / "cache/.size", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            pending = pool.submit(get, "one", 0, SIZE)
            with pytest.raises(TimeoutError):
                pending.result(timeout=0.5)
        assert pending.result() == content["one"]
    assert stored_bytes(tmp_path) == counted_bytes(tmp_path)


READER = """
import json, sys
from iobench.objects import cache as object_cache
from iobench.objects.client import ObjectStore
from iobench.objects.cache import ObjectCache
from iobench.objects.reader import RemoteFiles
url, folder, limit, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
import hashlib, random, pathlib
object_cache.PIECE_BYTES = 1000
store = ObjectStore(url)
versions = {name: store.head(name) for name in ("one", "two")}
cached = RemoteFiles(url, versions, ObjectCache(pathlib.Path(folder), limit)).store()
draw = random.Random(seed)
wanted = [(name, start) for name in versions for start in range(0, 20500, 500)] * 2
draw.shuffle(wanted)
content = {name: bytearray(20500) for name in versions}
for name, start in wanted:
    content[name][start : start + 500] = cached.get(name, start, 500, versions[name].etag)
print(*(hashlib.sha256(content[name]).hexdigest() for name in ("one", "two")))
"""


@pytest.mark.parametrize("limit", [11 * (PIECE + CHECKSUM_BYTES), 1 << 20])
def test_two_processes_share_a_folder(served, content, tmp_path, limit):
    arguments = [sys.executable, "-c", READER, f"{served.url}/set", str(tmp_path / "cache"), str(limit)]
    running = [
        subprocess.Popen([*arguments, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(2)
    ]
    expected = " ".join(hashlib.sha256(content[name]).hexdigest() for name in ("one", "two"))
    assert [one.communicate(timeout=200)[0].strip() for one in running] == [expected] * 2
    assert stored_bytes(tmp_path) <= counted_bytes(tmp_path) <= limit
    assert len(pieces(tmp_path)) <= min(42, limit // (PIECE + CHECKSUM_BYTES) + 1)
