"""Work in a process of its own: what comes back, and what becomes of it when it hangs or dies."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from iobench import cache, counters
from iobench.studies._apart import apart
from iobench.studies._limited import join, memory_group

SOON_S = 60.0


def doubled(number):
    return 2 * number


def failing():
    raise ValueError("no such luck\nand more")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leaving():
    os._exit(3)


def hanging(path):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    Path(path).write_text(str(child.pid))
    time.sleep(600)


def start_method():
    return multiprocessing.get_start_method()


def filling(group, count):
    join(Path(group))
    return len(bytearray(count))


def test_a_value_comes_back():
    assert apart(doubled, 21, limit_s=SOON_S).value == 42


@pytest.mark.parametrize(
    ("work", "failure"),
    [
        (failing, "raised ValueError: no such luck"),
        (killed, "was killed by SIGKILL"),
        (leaving, "exited 3"),
    ],
)
def test_a_failure_is_told_in_words(work, failure):
    outcome = apart(work, limit_s=SOON_S)
    assert outcome.value is None
    assert outcome.failure == failure


def test_what_hangs_is_killed_with_its_children(tmp_path):
    told = tmp_path / "child"
    outcome = apart(hanging, str(told), limit_s=5)
    assert outcome.failure == "had not ended after 5 s"
    child = int(told.read_text())
    psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=5)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_its_workers_start_as_they_would_here():
    assert apart(start_method, limit_s=SOON_S).value == multiprocessing.get_start_method()


@pytest.fixture
def group():
    try:
        with memory_group(64 << 20) as group:
            yield group
    except PermissionError as error:
        pytest.skip(f"memory cannot be limited here: {error}")


def test_a_group_limits_the_memory_of_who_joins_it_and_is_gone_afterwards(group):
    assert apart(filling, str(group), 1 << 20, limit_s=SOON_S).value == 1 << 20
    assert apart(filling, str(group), 200 << 20, limit_s=SOON_S).failure == "was killed by SIGKILL"


def test_a_group_is_gone_afterwards():
    try:
        with memory_group(64 << 20) as made:
            assert made.is_dir()
    except PermissionError as error:
        pytest.skip(str(error))
    assert not made.exists()


def test_where_no_group_can_be_made_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "memory_groups", lambda: [tmp_path / "none" / "own"])
    with pytest.raises(PermissionError, match="No such file"), memory_group(1 << 20):
        pass


def test_where_groups_do_not_limit_memory_nothing_is_left_behind(monkeypatch, tmp_path):
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(cache, "memory_groups", lambda: [tmp_path / "own"])
    with pytest.raises(PermissionError, match="no control group"), memory_group(1 << 20):
        pass
    assert list(tmp_path.rglob("iobench-*")) == []


def with_a_child_of_its_own(pipe):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    pipe.send([os.getpid(), child.pid])
    time.sleep(60)


@pytest.mark.parametrize("told_by_kernel", [True, False])
def test_processes_below_this_one_are_found(monkeypatch, told_by_kernel):
    if not told_by_kernel:
        monkeypatch.setattr(counters, "Path", lambda path: Path("/no-such-folder") / path.lstrip("/"))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=with_a_child_of_its_own, args=(sender,))
    process.start()
    try:
        assert set(receiver.recv()) <= set(counters.descendants())
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.join()
    assert process.pid not in counters.descendants()
