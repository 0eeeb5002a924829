"""Profilers, debuggers and settings of Python that are active while iobench measures."""

import cProfile
import os
import pstats
import shlex
import subprocess
import sys
import threading
import time

import pytest
from live_loaders import Samples
from torch.utils.data import DataLoader

from iobench.advise.diagnose import diagnose
from iobench.host.call_profile import CallProfile


def slow(row):
    time.sleep(2e-3)
    return row


def marked():
    pass


def computing():
    return sorted(range(100))


def calls_in(stats):
    return {function for _, _, function in stats}


def test_a_profile_has_the_calls_of_its_own_thread():
    done = threading.Event()

    def other():
        while not done.wait(1e-4):
            marked()

    thread = threading.Thread(target=other)
    thread.start()
    began = time.process_time()
    with CallProfile() as profile:
        while time.process_time() < began + 0.1:
            computing()
    done.set()
    thread.join()
    assert "computing" in calls_in(profile.calls)
    assert "marked" not in calls_in(profile.calls)


def test_beside_another_profiler_a_diagnosis_says_what_it_cannot_tell():
    loader = DataLoader(Samples(128, slow), 4, num_workers=1, multiprocessing_context="fork")
    with cProfile.Profile() as own:
        found = diagnose(loader, max_time_s=600.0, variants=False)
        marked()
    assert "marked" in calls_in(pstats.Stats(own).stats)
    unknown = [one for one in found.skipped if one.kind == "no-profile"]
    assert [(one.values["where"], one.values["profiler"]) for one in unknown] == [
        ("main process", "cProfile"),
        ("workers", "cProfile"),
    ]
    assert any("time.sleep(2e-3)" in line.text for line in found.profiles[-1].lines)
    assert not diagnose(loader, max_time_s=600.0, variants=False).skipped


MINE = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, row):
        time.sleep(1e-3)
        return torch.zeros(4)

def make():
    return DataLoader(Slow(), 4, num_workers=1, multiprocessing_context="fork")
"""
TRACED = """
import sys
def trace(frame, event, argument):
    return None  # no lines, which take a minute
if __name__ == "__main__":
    from iobench.terminal.cli import main
    sys.settrace(trace)
    try:
        main()
    finally:
        assert sys.gettrace() is trace
"""
PROFILED = ("-m", "cProfile", "-o", "own.prof", "-m", "iobench")
STRICT = ("-W", "error", "-X", "dev", "-OO", "-m", "iobench")
BARE = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "40"}
DIAGNOSE = ("diagnose", "mine.py:make", "--no-variants", "--device", "cpu", "--max-time", "60")
RUN = ("run", "--loader", "native", "--loader", "dataloader", "--max-time", "10", "--device", "cpu")


@pytest.mark.parametrize(
    ("arguments", "python", "streams"),
    [
        pytest.param(DIAGNOSE, PROFILED, "", id="diagnose under cProfile"),
        pytest.param(DIAGNOSE, STRICT, "", id="diagnose, strict, without UTF-8 and HOME"),
        pytest.param(DIAGNOSE, ("traced.py",), "", id="diagnose, traced"),
        pytest.param(DIAGNOSE, ("-m", "iobench"), "0<&- 1>&- 2>&-", id="diagnose without streams"),
        pytest.param(RUN, PROFILED, "", id="run under cProfile"),
        pytest.param(RUN, STRICT, "", id="run, strict, without UTF-8 and HOME"),
    ],
)
def test_commands_work_beside_other_tools(arguments, python, streams, tmp_path, monkeypatch, inside):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "traced.py").write_text(TRACED)
    if arguments is RUN:
        assert inside("prepare", "--size", "1e5", "--format", "npy").returncode == 0
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR")}
    command = f"{shlex.join([sys.executable, *python, *arguments])} {streams}"
    done = subprocess.run(command, shell=True, env={**bare, **BARE}, stdout=subprocess.PIPE, timeout=500)
    assert done.returncode == 0
    assert bool(done.stdout) != bool(streams)
