import mmap
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import require_disk
from kinds import has, kind

from iobench.base.errors import ColdCacheUnavailable
from iobench.base.thresholds import COLD_LIMIT
from iobench.host import machine_info, memory, page_cache

MIB = 1 << 20
NO_SUCH_CALL = -1
HOLD = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(held[::4096])
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path):
    """Two files that are in memory, and dirty."""
    require_disk(tmp_path)
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_bytes(os.urandom(2 * MIB + 1))
    return paths


@pytest.fixture
def holder(files):
    """The id of another process that maps the second file."""
    command = [sys.executable, "-c", HOLD, files[1]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.fixture
def fake_sudo(monkeypatch, tmp_path):
    """Make `sudo` a script of this text, which finds its arguments in $*."""

    def install(script):
        path = tmp_path / "bin" / "sudo"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return install


def test_dirty_files_are_cold_after_eviction_by_file(by_file, files, monkeypatch):
    monkeypatch.setattr(page_cache, "PAUSES_S", (0.0,))  # they are written first
    assert page_cache.residency(files) == 1
    assert page_cache.evict(files) == "posix_fadvise"
    assert page_cache.residency(files) <= COLD_LIMIT


@pytest.mark.skipif(
    not os.access(page_cache.DROP_CACHES, os.W_OK), reason="not root: caches cannot be dropped"
)
def test_files_are_cold_after_dropping_all_caches(files):
    assert page_cache.evict(files) in ("drop_caches", "posix_fadvise")  # a container's /proc may be read-only
    assert page_cache.residency(files) <= COLD_LIMIT


def test_files_mapped_by_another_process_are_not_cold(by_file, files, holder):
    with pytest.raises(
        ColdCacheUnavailable, check=kind("pages-mapped", path=files[0].parent, found="50.0%")
    ) as caught:
        page_cache.evict(files)
    assert f"process {holder} (" in caught.value.hint


def test_files_on_tmpfs_are_not_cold(monkeypatch, tmp_path):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm here")
    monkeypatch.setattr(page_cache, "DROP_CACHES", tmp_path / "no-such-file")
    path = Path("/dev/shm") / f"iobench-{os.getpid()}"
    path.write_bytes(bytes(MIB))
    try:
        with pytest.raises(ColdCacheUnavailable, check=kind("still-resident", found="100.0%")) as caught:
            page_cache.evict([path])
        assert "tmpfs" in caught.value.hint
    finally:
        path.unlink()


def test_residency_is_the_fraction_of_all_pages(by_file, files):
    while page_cache.residency(files):  # `evict` allows a few pages, which may be under IO
        page_cache.evict(files)
    files[0].read_bytes()
    assert page_cache.residency(files) == 0.5
    assert page_cache.residency([]) == 0


@pytest.mark.parametrize("call", [page_cache.CACHESTAT, NO_SUCH_CALL])
def test_a_sampled_residency_looks_at_a_bounded_part_of_large_files(by_file, tmp_path, monkeypatch, call):
    monkeypatch.setattr(page_cache, "CACHESTAT", call)
    monkeypatch.setattr(page_cache, "SPAN_BYTES", 4 * mmap.PAGESIZE)
    file, looked, cached_pages = tmp_path / "large", [], page_cache.cached_pages
    file.write_bytes(os.urandom(8 << 20))
    page_cache.evict([file])
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 4 << 20, 0)
    os.close(descriptor)
    monkeypatch.setattr(
        page_cache, "cached_pages", lambda path, spans: looked.extend(spans) or cached_pages(path, spans)
    )
    assert page_cache.residency([file], sampled=True) == pytest.approx(0.5, abs=0.03)
    assert sum(length for _, length in looked) == page_cache.SAMPLED_SPANS * page_cache.SPAN_BYTES
    assert looked[0][0] == 0
    assert sum(looked[-1]) == 8 << 20
    looked.clear()
    page_cache.residency([file] * 1000, sampled=True)
    assert len(looked) <= page_cache.SAMPLED_FILES * page_cache.SAMPLED_SPANS


def test_a_sampled_residency_opens_each_file_once(files, monkeypatch):
    monkeypatch.setattr(page_cache, "SPAN_BYTES", mmap.PAGESIZE)
    opened, real = [], open
    monkeypatch.setattr("builtins.open", lambda path, *a, **b: opened.append(path) or real(path, *a, **b))
    page_cache.residency(files, sampled=True)
    assert opened == files
    assert all(len(page_cache.sampled_spans(path.stat().st_size)) > 1 for path in files)


def test_mincore_and_cachestat_agree(by_file, files, monkeypatch):
    page_cache.evict(files)
    with open(files[0], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)  # no read-ahead: pages on their way count for cachestat only
        _ = mapped[5 * mmap.PAGESIZE] + mapped[9 * mmap.PAGESIZE]
        by_cachestat = page_cache.residency(files)  # mapped pages cannot be evicted meanwhile
        monkeypatch.setattr(page_cache, "CACHESTAT", NO_SUCH_CALL)
        assert 0 < page_cache.residency(files) == by_cachestat < 1


def test_residency_that_the_kernel_hides_is_unknown(files, monkeypatch):
    monkeypatch.setattr(page_cache, "CACHESTAT", NO_SUCH_CALL)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(files[0]).st_uid + 1)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(page_cache.ResidencyUnknown):
        page_cache.residency(files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("call", [page_cache.CACHESTAT, NO_SUCH_CALL])
def test_residency_of_another_users_files_is_unknown(files, monkeypatch, call):
    monkeypatch.setattr(page_cache, "CACHESTAT", call)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    descriptors = [Path(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}") for path in files]

    def ask():
        os.setresuid(65534, 65534, 65534)
        try:
            answers.put(page_cache.residency(descriptors))
        except (page_cache.ResidencyUnknown, OSError) as error:
            answers.put(type(error).__name__)

    child = context.Process(target=ask)
    child.start()
    assert answers.get() == "ResidencyUnknown"
    child.join()


@pytest.fixture
def unknown_residency(monkeypatch):
    def refuse(path, spans):
        raise page_cache.ResidencyUnknown(path, "not yours")

    monkeypatch.setattr(page_cache, "cached_pages", refuse)


def test_cold_that_cannot_be_verified_is_refused(by_file, unknown_residency, files):
    with pytest.raises(ColdCacheUnavailable, check=kind("residency-unknown", path=files[0])) as caught:
        page_cache.evict(files)
    assert caught.value.hint


@pytest.mark.parametrize("count", [-1, 100 << 10])
def test_pages_that_come_back_before_the_round_are_refused(by_file, files, monkeypatch, count):
    def read_meanwhile(logical_bytes):
        with open(files[1], "rb", buffering=0) as file:
            file.read(count)

    monkeypatch.setattr(page_cache, "back_memory", read_meanwhile)
    with pytest.raises(ColdCacheUnavailable, check=kind("cache-refilled", path=files[0].parent)):
        page_cache.establish("cold", files, 1 << 20)


def test_warm_that_cannot_be_verified_is_unknown_but_read_through(by_file, files, monkeypatch):
    page_cache.evict(files)
    with monkeypatch.context() as patched:
        unknown = page_cache.ResidencyUnknown(files[0], "not yours")
        patched.setattr(page_cache, "residency", lambda paths: (_ for _ in ()).throw(unknown))
        assert page_cache.warm(files) is None
    assert page_cache.residency(files) == 1


def test_warm_files_are_in_memory(by_file, files):
    page_cache.evict(files)
    assert page_cache.warm(files) == 1
    assert page_cache.warm(files) == 1


def test_sudo_runs_without_prompt_and_without_stdin(by_file, files, fake_sudo, tmp_path):
    fake_sudo(f'echo "$*" > {tmp_path}/asked; [ "$(readlink /proc/$$/fd/0)" = /dev/null ]')
    assert page_cache.evict(files, sudo=True) == "sudo drop_caches"
    assert (tmp_path / "asked").read_text() == f"-n sh -c echo 3 > {page_cache.DROP_CACHES}\n"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'sudo: a password is required' >&2; exit 1", "sudo: a password is required"),
        ("exit 7", "refused"),
    ],
)
def test_sudo_that_refuses_is_an_error_in_one_line(by_file, files, fake_sudo, script, found):
    fake_sudo(script)
    refused = kind("sudo-refused", found=found, hint=has("sudo -v"))
    with pytest.raises(ColdCacheUnavailable, check=refused) as caught:
        page_cache.evict(files, sudo=True)
    assert "\n" not in str(caught.value)


def test_without_sudo_it_cannot_be_used(by_file, files, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ColdCacheUnavailable, check=kind("no-sudo")):
        page_cache.evict(files, sudo=True)


@pytest.fixture
def asked_for(monkeypatch):
    """Return the bytes touched by each call of prefault."""
    counts = []

    class Memory:
        def __init__(self, count):
            counts.append(count)

        def close(self):
            pass

    monkeypatch.setattr(memory, "touched_map", Memory)
    return counts


def test_prefault_takes_whole_pages(asked_for):
    memory.prefault(10 * mmap.PAGESIZE + 1)
    memory.prefault(mmap.PAGESIZE - 1)
    assert asked_for == [10 * mmap.PAGESIZE]


def test_memory_touched_before_a_warm_round_does_not_grow_with_the_files(asked_for, monkeypatch, tmp_path):
    monkeypatch.setattr(page_cache, "WARM_BYTES", MIB)
    for count in (MIB // 2, 4 * MIB):
        path = tmp_path / str(count)
        path.write_bytes(bytes(count))
        page_cache.evict([path])
        assert page_cache.warm([path]) == 1.0
    small, large = asked_for
    assert MIB / 2 < small < MIB
    assert large == MIB


def test_prefault_takes_at_most_half_of_the_free_memory(asked_for):
    memory.prefault(1 << 60)
    assert 0 < asked_for[0] <= page_cache.psutil.virtual_memory().total // 2


@pytest.mark.parametrize(
    ("own", "limit"), [("0::/a/b", "a/memory.max"), ("4:memory:/a/b", "memory/a/memory.limit_in_bytes")]
)
def test_prefault_takes_at_most_half_of_its_containers_memory(asked_for, monkeypatch, tmp_path, own, limit):
    (tmp_path / limit).parent.mkdir(parents=True)
    (tmp_path / limit).write_text(f"{2 * MIB}\n")
    (tmp_path / "own").write_text(f"9:cpu:/a\n{own}\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")
    memory.prefault(1 << 60)
    assert asked_for == [MIB]


def test_read_ahead_is_that_of_the_disk(tmp_path):
    require_disk(tmp_path)
    result = machine_info.read_ahead_kib(tmp_path)
    assert result is None or result >= 0
    assert machine_info.read_ahead_kib(Path("/proc")) is None


@pytest.mark.parametrize(
    ("count", "rates", "times"),
    [
        (1 << 30, [9e9], [1.2]),
        (1 << 30, [0.4e9, 8e9], [1.2, 3]),
        (1 << 30, [0.4e9, 1e9, 1e9], [1.2, 3, 9]),
        (1 << 30, [None], [1.2]),
        (1 << 20, [0.1e9], [1.2]),  # of little data the rate is ignored
    ],
)
def test_memory_is_backed_until_touching_it_is_fast(monkeypatch, count, rates, times):
    requested, given = [], iter(rates)

    def prefault(count):
        requested.append(count)
        return next(given)

    monkeypatch.setattr(memory, "prefault", prefault)
    assert memory.back_memory(count) == rates[0]
    assert requested == [int(factor * count) for factor in times]
