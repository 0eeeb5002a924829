"""An unreadable page of a mapped file is an error for the accessing code only."""

import errno
import faulthandler
import mmap
import os
import resource
import signal
import struct
import threading
from contextlib import suppress

import numpy as np
import pytest
from stream_cases import in_child

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.dataset.index_cache import IndexCache
from iobench.dataset.opener import Opener
from iobench.formats import Field, Listed, Schema
from iobench.host import maps
from iobench.host.maps import FolderMapGuard, GuardedMap

SIZE = 8 << 20
KEPT = 4096


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture(autouse=True)
def _no_core():
    """Keep children that end by a signal from leaving core files."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def rows_of(mapped):
    memory = mapped.bytes if isinstance(mapped, GuardedMap) else np.frombuffer(mapped, np.uint8)
    return memory[:SIZE].reshape(-1, 512)


def lost(path):
    """Return a check for an OSError on an unreadable page of this file."""
    return lambda error: (error.errno, error.filename) == (errno.EIO, str(path))


def ended_by_bus_error(action):
    def quietly():
        faulthandler.disable()  # pytest's, which reports each bus error
        action()

    with pytest.raises(pytest.fail.Exception, match="SIGBUS"):
        in_child(quietly)


def test_a_truncated_page_is_an_error_that_names_the_file(path):
    def look():
        mapped = GuardedMap([path])
        os.truncate(path, KEPT)
        rows_of(mapped)[0].sum()
        mapped.guard.check()
        rows_of(mapped)[SIZE // 512 - 1].sum()
        for _ in range(2):
            with pytest.raises(OSError, check=lost(path)):
                mapped.guard.check()

    in_child(look)


def test_without_the_guard_the_process_ends(path, monkeypatch):
    monkeypatch.setattr(maps, "SIGBUS_HANDLED", False)

    def look():
        mapped = GuardedMap([path])
        os.truncate(path, KEPT)
        rows_of(mapped).sum()

    ended_by_bus_error(look)


def test_all_threads_that_access_lost_pages_get_the_error(path):
    def look():
        mapped, failed = GuardedMap([path]), []
        os.truncate(path, KEPT)

        def gather(seed):
            order = np.random.default_rng(seed).permutation(SIZE // 512)
            np.take(rows_of(mapped), order, axis=0)
            with suppress(OSError):
                mapped.guard.check()
                return
            failed.append(seed)

        threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(failed)

    assert in_child(look) == list(range(8))


@pytest.mark.parametrize("later", [False, True])
def test_a_bus_error_elsewhere_reaches_faulthandler_once(path, tmp_path, later):
    """Both handlers restore each other when they pass an error on."""
    report = tmp_path / "report"

    def look():
        with open(report, "w") as file:
            faulthandler.enable(file)
            guarded = GuardedMap([path])
            if later:
                faulthandler.disable()
                faulthandler.enable(file)
                guarded = GuardedMap([path])
            with open(path, "rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
            os.truncate(path, KEPT)
            guarded.guard.check()
            rows_of(mapped).sum()

    ended_by_bus_error(look)
    assert "Bus error" in report.read_text()


def test_a_bus_error_that_is_sent_ends_the_process_as_before(path):
    def send():
        guarded = GuardedMap([path])
        os.kill(os.getpid(), signal.SIGBUS)
        guarded.guard.check()

    ended_by_bus_error(send)


def test_a_later_handler_is_replaced_when_the_next_file_is_mapped(path):
    def look():
        first = GuardedMap([path])
        faulthandler.disable()
        faulthandler.enable()
        second = GuardedMap([path])
        os.truncate(path, KEPT)
        rows_of(second).sum()
        with pytest.raises(OSError):
            second.guard.check()
        first.guard.check()

    in_child(look)


def test_a_map_that_is_gone_is_not_guarded(path):
    before = set(maps.active_guards)
    mapped = GuardedMap([path])
    view = rows_of(mapped)[3:5]
    guard = mapped.guard
    del mapped
    assert guard in maps.active_guards
    del view
    assert guard not in maps.active_guards
    assert maps.active_guards <= before  # what other tests left may go, too


def test_files_side_by_side_are_intact_and_fail_alone(path, tmp_path):
    names = [tmp_path / f"file{number}" for number in range(3)]
    contents = [os.urandom(size) for size in (5, 3 << 20, 5000)]
    for name, content in zip(names, contents, strict=True):
        name.write_bytes(content)

    def look():
        mapped = GuardedMap([path, *names])
        for start, content in zip(mapped.starts.tolist()[1:], contents, strict=False):
            assert mapped.bytes[start : start + len(content)].tobytes() == content
        os.truncate(names[1], 0)
        mapped.bytes[mapped.starts[2] + KEPT]
        with pytest.raises(OSError, check=lost(names[1])):
            mapped.guard.check()
        assert rows_of(mapped).tobytes() == path.read_bytes()
        start = mapped.starts[3]
        assert mapped.bytes[start : start + 5000].tobytes() == contents[2]

    in_child(look)


def test_maps_of_a_library_are_guarded_page_by_page(path):
    def look():
        guard = FolderMapGuard(path.parent, b"empty" + bytes(KEPT - 5))
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        expected = path.read_bytes()
        os.truncate(path, KEPT)
        assert bytes(mapped[2 * KEPT : 3 * KEPT]) == b"empty" + bytes(KEPT - 5)
        with pytest.raises(OSError, check=lost(path)):
            guard.check()
        assert bytes(mapped[:KEPT]) == expected[:KEPT]  # which other threads may be reading
        guard.release()
        rows_of(mapped).sum()

    ended_by_bus_error(look)  # by what it looks at after the release


def test_pages_that_lmdb_has_lost_are_an_error_and_leaves_without_keys(tmp_path):
    """Some versions of LMDB abort the process at a page of zeros, which is of no kind."""
    schema = Schema(20_000, (Field("x", (8,), "uint8"),))
    lmdb, file = formats.get("lmdb"), tmp_path / "a" / "data.mdb"
    lmdb.write(file.parent, schema, [{"x": np.zeros((schema.samples, 8), np.uint8)}])

    def look():
        opener = Opener(lmdb, file.parent, schema)
        with opener.guarded() as check, opener() as reader, open(file, "rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
            os.truncate(file, 2 * KEPT)
            with suppress(CorruptArtifact):
                reader.batch(slice(None))
            with pytest.raises(OSError, check=lost(file)):
                check()
            assert struct.unpack_from("<HHH", mapped, 3 * KEPT + 10) == (2, 16, KEPT)  # kind, lower, upper

    in_child(look)


GUARDS = {
    "another file": lambda folder: GuardedMap([folder / "other"]).guard,
    "the start of its name": lambda folder: FolderMapGuard(folder / "fil"),
    "a name that begins alike": lambda folder: FolderMapGuard(folder / "filer"),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_bus_error_in_a_map_of_another_file_ends_the_process_as_before(path, tmp_path, guard):
    (tmp_path / "filer").mkdir()
    (tmp_path / "other").write_bytes(bytes(SIZE))
    ended_by_bus_error(lambda: cut_under(guard(tmp_path), path))


def test_a_forked_child_is_not_guarded_by_its_parent(path):
    guard = FolderMapGuard(path)
    ended_by_bus_error(lambda: cut_under(guard, path))
    guard.release()


def cut_under(guard, path):
    """Read a map of a file that was truncated."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, KEPT)
    rows_of(mapped).sum()
    guard.check()


def test_an_index_truncated_while_in_use_is_an_error(tmp_path, path):
    def find():
        yield {"offset": np.arange(4096)}

    def look():
        keep = IndexCache(tmp_path / ".index" / "data", lambda: "a test")
        assert keep("values", find)["offset"].sum() == keep("values", find)["offset"].sum()
        listed = Listed((path,), np.broadcast_to(np.int64(0), 4096), keep("values", find)["offset"])
        rows = np.array([4000, 7])
        assert listed.locate(rows)[1].tolist() == [4000, 7]
        os.truncate(tmp_path / ".index" / "data.values", 0)
        for locate in (listed.locate, lambda rows: np.take(listed.offset, rows)):
            with pytest.raises(OSError, check=lost(tmp_path / ".index" / "data.values")):
                locate(rows)

    in_child(look)
