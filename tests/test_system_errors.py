"""One line for what the system lacks or refuses, which is no fault of the data or of a loader."""

import errno
import subprocess
import sys

import numpy as np
import pytest
from conftest import with_shared_memory
from kinds import kind

from iobench.base.errors import LoaderFailed
from iobench.base.files import system_errors_as

REFUSING = """
import builtins, errno, os, subprocess, sys, tempfile
import multiprocessing.util, _posixsubprocess

def refuse(*arguments, **more):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

what = sys.argv.pop(1)
if what == "processes":
    os.fork = subprocess._fork_exec = _posixsubprocess.fork_exec = refuse
elif what == "folders":
    tempfile._candidate_tempdir_list = lambda: ["/no-such-folder"]
else:
    before = builtins.open
    def opened(file, *arguments, **more):
        if file == "/proc/meminfo":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return before(file, *arguments, **more)
    builtins.open = opened
from iobench.terminal.cli import main
main()
"""
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def make_loader():
    return DataLoader(TensorDataset(torch.zeros(400, 8)), batch_size=16, num_workers=2)
"""


def is_one_line(done, kind, *parts):
    """Assert that a command failed with one such line; workers of torch may print a traceback beside it."""
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "error[" in line]
    assert f"error[{kind}]" in line
    assert all(part in line for part in parts)


def typed(command, images):
    """Return the words of a command; of one over the dataset `images`, a small one."""
    words = [word.format(images=images.root.name) for word in command.split()]
    small = ["--data-dir", images.root.parent, *"--rounds 2 --format npy --no-limits".split()]
    return [*words, *(small if "{images}" in command else [])]


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((200, 4), "f4"))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    (tmp_path / "train.py").write_text(LOADER)
    return tmp_path


@pytest.mark.parametrize(
    ("lacks", "command", "kind"),
    [
        ("processes", "add x.npy", "cannot-start"),
        ("processes", "diagnose train.py:make_loader", "cannot-start"),
        ("processes", "run --name {images} --loader native --isolate", "cannot-start"),
        ("processes", "run --name {images} --loader dataloader:num_workers=1", "cannot-start"),
        ("processes", "prepare --source x.csv --name y", "cannot-start"),
        ("folders", "diagnose train.py:make_loader", "no-temporary-folder"),
        ("folders", "run --name {images} --loader dataloader:num_workers=1", "no-temporary-folder"),
        ("folders", "run --name {images} --loader train.py:make_loader", "no-temporary-folder"),
        ("meminfo", "run --name {images} --loader native", "no-proc"),
    ],
)
def test_what_the_system_lacks_is_one_line(folder, images, warm_python, lacks, command, kind):
    done = warm_python(REFUSING, lacks, *typed(command, images), cwd=folder)
    is_one_line(done, kind)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("size", "command"),
    [
        ("64k", "run --name {images} --loader dataloader:num_workers=1 --batch-size 200"),
        ("4k", "run --name {images} --loader dataloader:num_workers=1"),
        ("4k", "diagnose train.py:make_loader"),
    ],
)
def test_full_shared_memory_is_one_line_that_says_how_to_enlarge_it(folder, images, size, command):
    line = [*with_shared_memory(size), sys.executable, "-m", "iobench", *typed(command, images)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    is_one_line(done, "no-shared-memory", "--shm-size")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("limit", [12, 16])
def test_too_many_open_files_are_one_line_with_the_limit(folder, limit):
    line = f'ulimit -n {limit} && exec "$@" -m iobench diagnose train.py:make_loader --max-time 120'
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable], capture_output=True, text=True, cwd=folder
    )
    is_one_line(done, "too-many-files", str(limit))


def test_a_report_without_proc_is_one_line(folder):
    mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("to hide /proc needs root")
    command = [sys.executable, "-m", "iobench", "report", "--out", "r.html"]
    done = subprocess.run([*mounted, *command], capture_output=True, text=True, cwd=folder)
    is_one_line(done, "no-proc")


def test_a_file_that_this_user_may_not_read_is_no_failing_disk(tmp_path):
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))
    with (
        pytest.raises(LoaderFailed, check=kind("no-permission", path=tmp_path / "x")),
        system_errors_as(LoaderFailed, "cannot be read", tmp_path, kind="read-error"),
    ):
        raise denied
