"""Work in a child process: its result, and the outcome if it hangs or dies."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from iobench.host import memory, process_counters
from iobench.studies._rounds import run_in_subprocess
from iobench.studies.volume import join, memory_group

SOON_S = 60.0


def doubled(heartbeat, number):
    return 2 * number


def failing(heartbeat):
    raise ValueError("no such luck\nand more")


def killed(heartbeat):
    os.kill(os.getpid(), signal.SIGKILL)


def leaving(heartbeat):
    os._exit(3)


def hanging(heartbeat, path):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    Path(path).write_text(str(child.pid))
    heartbeat()
    time.sleep(600)


def slow_but_alive(heartbeat):
    for _ in range(30):
        time.sleep(0.1)
        heartbeat()
    return "done"


def leaving_a_child(heartbeat):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    os.kill(os.getpid(), signal.SIGKILL)


def filling(heartbeat, group, count):
    join(Path(group))
    return len(bytearray(count))


def test_a_value_comes_back():
    assert run_in_subprocess(doubled, 21, limit_s=SOON_S).value == 42


@pytest.mark.parametrize(
    ("work", "cause"), [(failing, "ValueError: no such luck"), (killed, "SIGKILL"), (leaving, "exit code 3")]
)
def test_a_failure_has_its_cause(work, cause):
    outcome = run_in_subprocess(work, limit_s=SOON_S)
    assert outcome.value is None
    assert outcome.failure.endswith(cause)
    assert not outcome.hung


def test_a_hanging_process_is_killed_with_its_children(tmp_path):
    pid_file = tmp_path / "child"
    outcome = run_in_subprocess(hanging, str(pid_file), limit_s=1)
    assert outcome.hung
    child = int(pid_file.read_text())
    psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=SOON_S)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_process_with_heartbeats_may_take_longer():
    assert run_in_subprocess(slow_but_alive, limit_s=2.5).value == "done"


SUSPENDED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_run_in_subprocess import run_in_subprocess, beating_once
print(run_in_subprocess(beating_once, sys.argv[2], limit_s=4.0))
"""


def beating_once(heartbeat, path):
    heartbeat()
    time.sleep(1)  # until it has been noticed
    Path(path).touch()
    time.sleep(1)


def test_time_in_which_both_were_suspended_is_no_silence(tmp_path):
    command = [sys.executable, "-c", SUSPENDED, str(Path(__file__).parent), str(tmp_path / "begun")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        (child,) = psutil.Process(parent.pid).children()
        both = [psutil.Process(parent.pid), child]
        for process in both:
            process.suspend()
        time.sleep(5)
        both[0].resume()
        time.sleep(0.2)
        both[1].resume()
        assert "hung=False" in parent.stdout.read()


def test_a_dead_process_is_not_waited_for_because_of_its_children():
    assert "SIGKILL" in run_in_subprocess(leaving_a_child, limit_s=SOON_S).failure


def test_the_process_does_not_outlive_its_parent(tmp_path):
    pid_file = tmp_path / "pid"
    script = f"""
import os, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_run_in_subprocess import run_in_subprocess, hanging
if __name__ == "__main__":
    run_in_subprocess(hanging, {str(pid_file)!r}, limit_s=600)
"""
    (tmp_path / "parent.py").write_text(script)
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"])
    until = time.monotonic() + SOON_S
    while not pid_file.exists() and time.monotonic() < until:
        time.sleep(0.1)
    (process,) = psutil.Process(parent.pid).children()
    children = process.children()
    parent.kill()
    parent.wait()
    psutil.wait_procs([process], timeout=SOON_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    for child in children:  # its own children are not covered
        child.kill()


def test_a_group_limits_the_memory_of_its_members_and_is_gone_afterwards():
    try:
        with memory_group(64 << 20) as group:
            assert run_in_subprocess(filling, str(group), 1 << 20, limit_s=SOON_S).value == 1 << 20
            assert "SIGKILL" in run_in_subprocess(filling, str(group), 200 << 20, limit_s=SOON_S).failure
    except PermissionError as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    assert not group.exists()


def test_the_reason_why_no_group_can_be_made(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "memory_groups", lambda: [tmp_path / "none" / "own"])
    with pytest.raises(PermissionError, match=os.strerror(errno.ENOENT)), memory_group(1 << 20):
        pass


def test_groups_that_do_not_limit_memory_are_removed(monkeypatch, tmp_path):
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(memory, "memory_groups", lambda: [tmp_path / "own"])
    with pytest.raises(PermissionError, match="group"), memory_group(1 << 20):
        pass
    assert list(tmp_path.rglob("iobench-*")) == []


def with_a_child_of_its_own(pipe):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    pipe.send([os.getpid(), child.pid])
    time.sleep(60)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_processes_below_this_one_are_found(monkeypatch, by_kernel):
    if not by_kernel:
        monkeypatch.setattr(process_counters, "Path", lambda path: Path("/no-such-folder") / path.lstrip("/"))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=with_a_child_of_its_own, args=(sender,))
    process.start()
    try:
        assert set(receiver.recv()) <= set(process_counters.descendants())
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.join()
    assert process.pid not in process_counters.descendants()
