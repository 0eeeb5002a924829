"""A page of a mapped file that cannot be read is an error for who looks, and for nobody else."""

import faulthandler
import mmap
import os
import resource
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
from stream_cases import in_child

from iobench.dataset.index_cache import IndexCache
from iobench.formats import Listed
from iobench.host import bus_errors
from iobench.host.bus_errors import FolderMapGuard
from iobench.host.maps import GuardedMap

SIZE = 8 << 20
KEPT = 4096


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture(autouse=True)
def _no_core():
    """Children that are ended by a signal leave no core behind."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def rows_of(mapped):
    memory = mapped.bytes if isinstance(mapped, GuardedMap) else np.frombuffer(mapped, np.uint8)
    return memory[:SIZE].reshape(-1, 512)


def ended_by_bus_error(action):
    def quietly():
        faulthandler.disable()  # pytest's, which tells of each bus error
        action()

    with pytest.raises(pytest.fail.Exception, match="ended by SIGBUS"):
        in_child(quietly, seconds=20)


def test_what_is_there_is_read_and_nothing_is_wrong(path):
    mapped = GuardedMap([path])
    assert rows_of(mapped).tobytes() == path.read_bytes()
    mapped.guard.check()


def test_a_page_that_was_cut_off_is_an_error_that_names_the_file(path):
    def look():
        mapped = GuardedMap([path])
        os.truncate(path, KEPT)
        rows_of(mapped)[0].sum()
        mapped.guard.check()
        rows_of(mapped)[SIZE // 512 - 1].sum()
        for _ in range(2):
            with pytest.raises(OSError, match=f"cannot be read: '{path}'"):
                mapped.guard.check()

    in_child(look)


def test_without_the_guard_the_process_ends(path, monkeypatch):
    monkeypatch.setattr(bus_errors, "SIGBUS_HANDLED", False)

    def look():
        mapped = GuardedMap([path])
        os.truncate(path, KEPT)
        rows_of(mapped).sum()

    ended_by_bus_error(look)


def test_all_threads_that_look_at_once_are_told(path):
    def look():
        mapped, told = GuardedMap([path]), []
        os.truncate(path, KEPT)

        def gather(seed):
            order = np.random.default_rng(seed).permutation(SIZE // 512)
            np.take(rows_of(mapped), order, axis=0)
            with suppress(OSError):
                mapped.guard.check()
                return
            told.append(seed)

        threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(told)

    assert in_child(look) == list(range(8))


def test_a_second_file_is_read_on_after_the_first_has_failed(path, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())

    def look():
        lost, fine = GuardedMap([path]), GuardedMap([other])
        os.truncate(path, KEPT)
        rows_of(lost).sum()
        assert rows_of(fine).tobytes() == other.read_bytes()
        fine.guard.check()
        with pytest.raises(OSError):
            lost.guard.check()

    in_child(look)


def test_a_bus_error_in_somebody_elses_map_ends_the_process_as_before(path, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(bytes(SIZE))

    def look():
        guarded = GuardedMap([path])
        with open(other, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        os.truncate(other, KEPT)
        guarded.guard.check()
        rows_of(mapped).sum()

    ended_by_bus_error(look)


@pytest.mark.parametrize("later", [False, True])
def test_a_bus_error_elsewhere_comes_to_faulthandler_and_goes_no_round_trips(path, tmp_path, later):
    """Both restore each other when they pass one on."""
    said = tmp_path / "said"

    def look():
        with open(said, "w") as file:
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
    assert "Bus error" in said.read_text()


def test_a_bus_error_that_is_sent_ends_the_process_as_before(path):
    def be_told():
        guarded = GuardedMap([path])
        os.kill(os.getpid(), signal.SIGBUS)
        guarded.guard.check()

    ended_by_bus_error(be_told)


def test_who_catches_bus_errors_later_is_replaced_when_the_next_file_is_mapped(path):
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


def test_a_map_that_is_gone_is_watched_no_longer(path):
    before = set(bus_errors._guards)
    mapped = GuardedMap([path])
    view = rows_of(mapped)[3:5]
    guard = mapped.guard
    del mapped
    assert guard in bus_errors._guards
    del view
    assert bus_errors._guards == before


def test_files_side_by_side_are_each_what_they_are_and_fail_alone(path, tmp_path):
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
        with pytest.raises(OSError, match=f"cannot be read: '{names[1]}'"):
            mapped.guard.check()
        assert rows_of(mapped).tobytes() == path.read_bytes()
        start = mapped.starts[3]
        assert mapped.bytes[start : start + 5000].tobytes() == contents[2]

    in_child(look)


def test_what_a_library_has_mapped_is_guarded_page_by_page(path):
    def look():
        guard = FolderMapGuard(path.parent, b"empty" + bytes(KEPT - 5))
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        expected = path.read_bytes()
        os.truncate(path, KEPT)
        assert bytes(mapped[2 * KEPT : 3 * KEPT]) == b"empty" + bytes(KEPT - 5)
        with pytest.raises(OSError, match=f"cannot be read: '{path}'"):
            guard.check()
        assert bytes(mapped[:KEPT]) == expected[:KEPT]  # which other threads may be reading
        guard.release()
        rows_of(mapped).sum()

    ended_by_bus_error(look)  # by what it looks at after the release


@pytest.mark.parametrize("folder", ["fil", "filer"])
def test_maps_of_other_folders_are_left_alone(path, tmp_path, folder):
    (tmp_path / "filer").mkdir()
    ended_by_bus_error(lambda: cut_under(FolderMapGuard(tmp_path / folder), path))


def test_a_forked_child_is_not_guarded_by_what_its_parent_checks(path):
    guard = FolderMapGuard(path)
    ended_by_bus_error(lambda: cut_under(guard, path))
    guard.release()


def cut_under(guard, path):
    """Look at a file that is cut under its map."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    os.truncate(path, KEPT)
    rows_of(mapped).sum()
    guard.check()


def test_a_list_of_places_that_is_cut_while_it_is_in_use_is_an_error(tmp_path, path):
    def find():
        return {"offset": np.arange(4096)}

    def look():
        keep = IndexCache(path, tmp_path / ".index" / "data", "a test")
        assert keep("values", find)["offset"].sum() == keep("values", find)["offset"].sum()
        listed = Listed((path,), np.broadcast_to(np.int64(0), 4096), keep("values", find)["offset"])
        rows = np.array([4000, 7])
        assert listed.locate(rows)[1].tolist() == [4000, 7]
        os.truncate(tmp_path / ".index" / "data.values", 0)
        for locate in (listed.locate, lambda rows: np.take(listed.offset, rows)):
            with pytest.raises(OSError, match="cannot be read"):
                locate(rows)

    in_child(look, seconds=20)
