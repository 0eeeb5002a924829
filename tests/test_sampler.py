"""Samples at intervals, and the time in which the process did not run."""

import subprocess
import sys
import time

import psutil
import pytest

from iobench.host.machine_load import Sampler

# holds the interpreter's lock; prints the seconds in which it did not run
BUSY = """
import sys
from iobench.host.machine_load import Sampler
sampler = Sampler(lambda: 0.1, first_s=0.1)
with sampler.active():
    print(flush=True)
    sys.stdin.readline()
    sum(range(int(sys.argv[1])))
print(sampler.suspended_s)
"""
ADDITIONS = 200_000_000  # take some seconds


@pytest.mark.parametrize("stops", [True, False])
def test_a_suspension_is_told_from_a_library_that_holds_the_lock(stops):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", BUSY, "0" if stops else str(ADDITIONS)]
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.readline()
        if stops:
            psutil.Process(process.pid).suspend()
            time.sleep(3)
            psutil.Process(process.pid).resume()
        suspended_s = float(process.communicate("\n")[0])
    assert suspended_s >= 2.5 if stops else suspended_s == 0


def test_each_sample_has_its_own_pace_and_all_are_taken_when_woken():
    counts = {"often": 0, "seldom": 0}

    def sample(name, pause_s):
        def take():
            counts[name] += 1
            return pause_s

        return take

    sampler = Sampler(sample("often", 0.01), sample("seldom", 600.0), first_s=0.01)
    with sampler.active():
        until = time.monotonic() + 60
        while counts["often"] < 5 and time.monotonic() < until:
            time.sleep(0.01)
        assert counts["seldom"] == 1
        sampler.wake()
        while counts["seldom"] < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert counts["seldom"] == 2
    assert counts["often"] >= 5
