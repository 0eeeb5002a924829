"""Results are alone on stdout, whatever a user's code and its processes print."""

import subprocess
import sys

import pytest

BEGIN = """
import ctypes, os, subprocess, sys
from iobench.base.standard_streams import results, stdout_to_stderr

def talk():
    print("by Python")
    os.write(1, b"by the system\\n")
    ctypes.CDLL(None).puts(b"by C")
    subprocess.run(["echo", "by a process"])
    if os.fork() == 0:
        print("by a fork", flush=True)
        os._exit(0)
    os.wait()
"""
TALK = (
    BEGIN
    + """
print("before")
try:
    with stdout_to_stderr():
        talk()
        print("a result", file=results(), flush=True)
        with stdout_to_stderr():
            talk()
        raise {error}
except {error}:
    pass
print("after")
"""
)
SAID = {"by Python", "by the system", "by C", "by a process", "by a fork"}


def python(code, **streams):
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run([sys.executable, "-c", code], text=True, timeout=400, **given)


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_results_are_alone_on_stdout_and_it_is_as_before_after_an_error(error):
    done = python(TALK.format(error=error))
    assert done.stdout.split("\n") == ["before", "a result", "after", ""]
    assert set(done.stderr.splitlines()) == SAID


def test_a_stream_without_a_descriptor_has_the_results():
    """As in a notebook, whose output is no file."""
    code = (
        BEGIN
        + """
import io
shown = sys.stdout = io.StringIO()
with stdout_to_stderr():
    talk()
    print("a result", file=results())
assert sys.stdout is shown
print(shown.getvalue(), file=sys.stderr)
"""
    )
    done = python(code)
    assert done.stdout == ""
    assert set(done.stderr.splitlines()) == SAID | {"a result", ""}


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_error(closed):
    done = python(f"{BEGIN}\nos.close({closed})\nwith stdout_to_stderr(): pass\nos._exit(0)")
    assert done.returncode == 0, done.stderr


def test_what_is_printed_at_the_exit_is_no_result(tmp_path):
    (tmp_path / "talking.py").write_text("import atexit\natexit.register(print, 'good-bye')\nmake = 3\n")
    command = [sys.executable, "-m", "iobench", "diagnose", "talking.py:make", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stdout) == (1, "")
    assert "good-bye" in done.stderr
