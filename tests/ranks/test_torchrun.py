"""Real ranks over loopback, started by torchrun, and runs in which a rank dies or stops."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import call

from iobench.loading.loaders import DEFAULT_LOADERS
from iobench.results import record_file

HOST = platform.node()


def command(*arguments, ranks=2):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return [*torchrun, "-m", "iobench", *map(str, arguments)]


def arguments_for(manifest, out, *more):
    where = ("--data-dir", manifest.root.parent, "--name", manifest.name, "--out", out)
    return ("run", *where, "--device", "cpu", "--no-limits", *more)


def complaints(stderr):
    return [line for line in stderr.splitlines() if line.startswith("iobench: ")]


def test_two_ranks_verify_and_measure_together(images, tmp_path):
    out = tmp_path / "r.jsonl"
    asked = arguments_for(images, out, "--format", "npy", "--rounds", "1", "--json")
    done = subprocess.run(command(*asked), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (context,) = json.loads(done.stdout)["contexts"]
    assert {case["facets"]["loader"] for case in context["cases"]} == set(DEFAULT_LOADERS)
    assert {case["facets"]["world_size"] for case in context["cases"]} == {2}
    for one in record_file.read(out)[0]:
        assert [(part.rank, part.host, part.threads) for part in one.ranks] == [(0, HOST, 1), (1, HOST, 1)]
    assert not complaints(done.stderr)


def test_ranks_are_started_and_make_a_curve(images, tmp_path):
    out = tmp_path / "r.jsonl"
    asked = arguments_for(images, out, "--format", "npy", "--loader", "native", "--rounds", "1")
    done = call(*asked, "--ranks", "2", "--step-ms", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (curve,) = result["curves"]
    assert [point["ranks"] for point in curve["points"]] == [2]
    assert all(0 <= point["wait_share"] <= 1 for point in curve["points"])
    assert [len(one.ranks or ()) for one in record_file.read(out)[0]] == [2]
    assert "OMP_NUM_THREADS" not in done.stderr


def rank_of(process, rank):
    """The process of a rank below torchrun's."""
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if child.environ().get("RANK") == str(rank):
                return child
    raise AssertionError(f"no rank {rank}")


@pytest.mark.parametrize(
    ("struck", "rank", "name"), [(signal.SIGKILL, 1, "rank-gone"), (signal.SIGSTOP, 0, "rank-silent")]
)
def test_a_rank_that_dies_or_stops_ends_the_run_with_one_line(floats, tmp_path, struck, rank, name):
    out, errors = tmp_path / "r.jsonl", tmp_path / "stderr"
    asked = arguments_for(floats, out, "--format", "npy", "--loader", "native", "--rounds", "10000")
    with open(errors, "w") as stderr:
        process = subprocess.Popen(
            command(*asked),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "IOBENCH_RANK_TIMEOUT": "6"},
        )
    try:
        until(lambda: out.exists() and out.read_text().count("\n") > 2)
        below, one = psutil.Process(process.pid).children(recursive=True), rank_of(process, rank)
        os.kill(one.pid, struck)
        until(lambda: complaints(errors.read_text()))
        if struck == signal.SIGSTOP:
            one.kill()  # torchrun waits half a minute for a stopped process to handle its SIGTERM
        assert process.wait(120) == 1
        until(lambda: not any(one.is_running() for one in below))
    finally:
        process.kill()
    text = errors.read_text()
    assert len(complaints(text)) == 1, text
    assert complaints(text)[0].startswith(f"iobench: error[{name}]: rank {rank} on {HOST} ")
    assert "Traceback" not in text.partition("iobench: ")[0]
    assert len(record_file.read(out)[0]) > 1


def until(true, seconds=120):
    """Wait for something."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("group", [True, False], ids=["of a terminal", "of this process alone"])
def test_an_interrupt_ends_all_ranks_and_names_the_command_that_resumes(floats, tmp_path, group):
    out = tmp_path / "r.jsonl"
    asked = arguments_for(floats, out, "--format", "npy", "--loader", "native", "--rounds", "10000")
    process = subprocess.Popen(
        [sys.executable, "-m", "iobench", *map(str, asked), "--ranks", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(lambda: out.exists() and out.read_text().count("\n") > 2)
        below = psutil.Process(process.pid).children(recursive=True)
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "MiB/s" in printed
    (line,) = [line for line in errors.splitlines() if line.startswith("iobench: ")]
    command_line = line.partition("resume with: torchrun ")[2].split()
    assert command_line[:4] == ["--standalone", "--nproc-per-node", "2", "-m"]
    assert command_line[-2:] == ["--resume", str(out)]
    until(lambda: not any(one.is_running() for one in below))
