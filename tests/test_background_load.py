"""Load of other processes is separated from this run's, and unknown where the kernel does not account."""

import os
import subprocess
import sys
import time

import pytest

from iobench.base.machine import BackgroundLoad
from iobench.host import machine_load
from iobench.host.machine_load import BackgroundLoadMonitor
from iobench.results.run_warning import background_warnings

TICKS = os.sysconf("SC_CLK_TCK")


class Kernel:
    """The kernel's counters, set by a test."""

    def __init__(self, folder, monkeypatch):
        self.stat, self.pressure = folder / "stat", folder / "pressure"
        self.pressure.mkdir()
        self.own_s, self.own_bytes, self.disk, self.clock = 0.0, 0, 0, 0.0
        monkeypatch.setattr(machine_load, "STAT", self.stat)
        monkeypatch.setattr(machine_load, "PRESSURE", self.pressure)
        monkeypatch.setattr(machine_load, "own_cpu_s", lambda: self.own_s)
        monkeypatch.setattr(machine_load, "own_disk_bytes", lambda: self.own_bytes)
        monkeypatch.setattr(
            machine_load, "disk_counters", lambda path: machine_load.DiskCounters(self.disk, 0)
        )
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
        self.set(busy_s=(0, 0, 0), steal_s=0)

    def set(self, busy_s, steal_s, stalled_s=0.0):
        """Set the busy seconds of three processors, of which this process may use the first and the last."""
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


def measured(kernel, path, **changes):
    monitor = BackgroundLoadMonitor(path)
    monitor.start()
    kernel.clock += 10
    for name, value in changes.pop("ours", {}).items():
        setattr(kernel, name, value)
    kernel.set(**{"busy_s": (0, 0, 0), "steal_s": 0, **changes})
    return monitor.stop()


def test_own_work_does_not_count_as_background_load(kernel, tmp_path):
    ours = {"own_s": 6.0, "own_bytes": 300, "disk": 1300}
    load = measured(kernel, tmp_path, busy_s=(7, 10, 9), steal_s=1, stalled_s=2.5, ours=ours)
    assert load == BackgroundLoad(
        processors=pytest.approx((7 + 9 - 6) / 20),  # of the two that this process may use
        steal=pytest.approx(2 / 20),
        disk_bytes_per_s=pytest.approx(100),
        cpu_stalled=pytest.approx(0.25),
        io_stalled=pytest.approx(0.25),
        memory_stalled=pytest.approx(0.25),
    )


def test_rounded_counters_never_make_background_load_negative(kernel, tmp_path):
    load = measured(kernel, tmp_path, busy_s=(3, 0, 0), ours={"own_s": 3.2, "own_bytes": 500})
    assert (load.processors, load.disk_bytes_per_s) == (0, 0)


def test_without_the_kernels_counters_background_load_is_unknown(kernel, tmp_path, monkeypatch):
    for name in ("cpu", "io", "memory"):
        (kernel.pressure / name).unlink()
    monkeypatch.setattr(kernel, "set", lambda **counters: None)
    kernel.stat.unlink()
    monkeypatch.setattr(machine_load, "disk_counters", lambda path: None)
    assert measured(kernel, tmp_path) == BackgroundLoad()


def test_living_children_count_as_own_work(tmp_path):
    before = machine_load.own_cpu_s()
    used = time.process_time()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        while machine_load.own_cpu_s() - before - (time.process_time() - used) < 0.2:
            assert time.monotonic() < deadline, "a child's work is not counted"
            time.sleep(0.02)
    finally:
        busy.kill()
        busy.wait()


def test_few_turns_under_background_load_give_no_warning():
    quiet, busy = BackgroundLoad(processors=0.01, steal=0.0), BackgroundLoad(processors=0.5, steal=0.1)
    assert background_warnings([quiet] * 10 + [busy]) == []
    warnings = background_warnings([quiet] * 8 + [busy] * 2)
    assert len(warnings) == 2
    assert warnings[0].kind == "background-cpu"
    assert warnings[0].values == {"highest": 0.5, "affected": 2, "rounds": 10}
    assert background_warnings([busy])[0].values["rounds"] == 1
    assert background_warnings([]) == []
