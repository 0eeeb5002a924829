"""What other processes did is told apart from what is ours, and left open where the kernel does not tell."""

import os
import subprocess
import sys
import time

import pytest

from iobench.host import background_load, machine_info
from iobench.host.background_load import BackgroundLoad, BackgroundLoadMonitor
from iobench.results.background_signs import said
from iobench.results.parts import BackgroundPart

TICKS = os.sysconf("SC_CLK_TCK")


class Kernel:
    """The kernel's accounts as a test says them."""

    def __init__(self, folder, monkeypatch):
        self.stat, self.pressure = folder / "stat", folder / "pressure"
        self.pressure.mkdir()
        self.own_s, self.own_bytes, self.disk, self.clock = 0.0, 0, 0, 0.0
        monkeypatch.setattr(background_load, "STAT", self.stat)
        monkeypatch.setattr(background_load, "PRESSURE", self.pressure)
        monkeypatch.setattr(background_load, "own_cpu_s", lambda: self.own_s)
        monkeypatch.setattr(background_load, "own_disk_bytes", lambda: self.own_bytes)
        monkeypatch.setattr(machine_info, "disk_counters", lambda path: machine_info.DiskCounters(self.disk, 0))
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
        self.says(busy_s=(0, 0, 0), steal_s=0)

    def says(self, busy_s, steal_s, stalled_s=0.0):
        """Seconds that each of three processors worked, of which we may use the first and the last."""
        lines = ["cpu  1 2 3 4 5 6 7 8 0 0"]
        for number, seconds in enumerate(busy_s):
            user = int(seconds * TICKS)
            lines.append(f"cpu{number} {user} 0 0 77 5 900 900 {int(steal_s * TICKS)} 0 0")
        self.stat.write_text("\n".join([*lines, "intr 5 5", "ctxt 9"]))
        for name in ("cpu", "io", "memory"):
            total = f"avg10=0.00 avg60=0.00 avg300=0.00 total={int(stalled_s * 1e6)}"
            (self.pressure / name).write_text(f"some {total}\nfull {total}\n")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    return Kernel(tmp_path, monkeypatch)


def seen(kernel, path, **changes):
    watched = BackgroundLoadMonitor(path)
    watched.start()
    kernel.clock += 10
    for name, value in changes.pop("ours", {}).items():
        setattr(kernel, name, value)
    kernel.says(**{"busy_s": (0, 0, 0), "steal_s": 0, **changes})
    return watched.stop()


def test_what_is_ours_is_not_others(kernel, tmp_path):
    ours = {"own_s": 6.0, "own_bytes": 300, "disk": 1300}
    found = seen(kernel, tmp_path, busy_s=(7, 10, 9), steal_s=1, stalled_s=2.5, ours=ours)
    assert found == BackgroundLoad(
        processors=pytest.approx((7 + 9 - 6) / 20),  # of the two that we may use
        steal=pytest.approx(2 / 20),
        disk_bytes_per_s=pytest.approx(100),
        cpu_stalled=pytest.approx(0.25),
        io_stalled=pytest.approx(0.25),
        memory_stalled=pytest.approx(0.25),
    )


def test_accounts_that_are_rounded_never_make_others_negative(kernel, tmp_path):
    found = seen(kernel, tmp_path, busy_s=(3, 0, 0), ours={"own_s": 3.2, "own_bytes": 500})
    assert (found.processors, found.disk_bytes_per_s) == (0, 0)


def test_a_kernel_that_keeps_no_such_accounts_leaves_it_open(kernel, tmp_path, monkeypatch):
    for name in ("cpu", "io", "memory"):
        (kernel.pressure / name).unlink()
    monkeypatch.setattr(kernel, "says", lambda **accounts: None)
    kernel.stat.unlink()
    monkeypatch.setattr(machine_info, "disk_counters", lambda path: None)
    assert seen(kernel, tmp_path) == BackgroundLoad()


def test_children_that_live_are_ours(tmp_path):
    before = background_load.own_cpu_s()
    used = time.process_time()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        while background_load.own_cpu_s() - before - (time.process_time() - used) < 0.2:
            assert time.monotonic() < deadline, "what a child of ours does is not seen"
            time.sleep(0.02)
    finally:
        busy.kill()
        busy.wait()


def test_few_turns_with_other_work_are_not_worth_a_word():
    quiet, busy = BackgroundPart(processors=0.01, steal=0.0), BackgroundPart(processors=0.5, steal=0.1)
    assert said([quiet] * 10 + [busy]) == []
    told = said([quiet] * 8 + [busy] * 2)
    assert len(told) == 2
    assert told[0].startswith("other processes used up to 50% of the processors during 2 of 10 rounds; ")
    assert said([busy])[0].startswith("other processes used up to 50% of the processors; ")
    assert said([]) == []
