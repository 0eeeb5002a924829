"""Launcher of ranks on this host, through torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import psutil

# (number of ranks, arguments, callback for each line) -> exit code
Launch = Callable[[int, Sequence[str], Callable[[str], None]], int]
# torchrun ends its ranks on SIGTERM, which the kernel sends it when its parent dies
_PR_SET_PDEATHSIG, _SIGTERM = 1, 15
TORCHRUN = (
    f"import ctypes, runpy; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {_SIGTERM}); "
    "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
)
THREADS = "OMP_NUM_THREADS"
ENDING_S = 15.0  # from Ctrl-C until ranks that have not ended are terminated


def torchrun(
    count: int,
    arguments: Sequence[str],
    say: Callable[[str], None],
    where: Sequence[str] = ("--standalone",),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run iobench in several ranks of this host and return its exit code.

    Lines that the ranks write to stderr are passed on, without those that torchrun adds. Their standard
    output is discarded. Each rank has OMP_NUM_THREADS threads, by default one; for a single rank torchrun
    alone would leave it unset. Ctrl-C is raised once the ranks have ended their run, as one process does.

    `arguments` are the command line of iobench; `say` receives each line; `where` holds torchrun's options
    that locate the ranks of other hosts, of which there are none by default; `environment` further variables.
    """
    command = [sys.executable, "-c", TORCHRUN, *where, "--nproc-per-node", str(count)]
    process = subprocess.Popen(
        [*command, "-m", "iobench", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={THREADS: "1", **os.environ, **environment},
    )
    assert process.stderr is not None
    try:
        with process.stderr as lines:
            try:
                complained, rest = _pass_on(lines, say)
            except KeyboardInterrupt:
                _interrupt_first_rank(process.pid)
                late = threading.Timer(ENDING_S, process.terminate)
                late.start()
                try:
                    _pass_on(lines, say)
                finally:
                    late.cancel()
                raise
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    # if a rank has reported its error, the traceback is torchrun's about it
    for line in rest if code and not complained else ():
        say(line)
    return code


def _interrupt_first_rank(torchrun: int) -> None:
    """Send Ctrl-C to rank 0, which ends the others, in case that only this process got it."""
    with suppress(psutil.Error):
        for child in psutil.Process(torchrun).children():
            with suppress(psutil.Error):
                if child.environ().get("RANK") == "0":
                    child.send_signal(signal.SIGINT)


def _pass_on(lines: Iterable[str], say: Callable[[str], None]) -> tuple[bool, list[str]]:
    """Pass on lines until all ranks end; return whether one reported an error, and a traceback's lines."""
    complained, rest = False, list[str]()
    for line in map(str.rstrip, lines):
        if rest or line.startswith("Traceback "):
            rest.append(line)
        elif not _of_torchrun(line):
            complained = complained or line.startswith("iobench: ")
            say(line)
    return complained, rest


def _of_torchrun(line: str) -> bool:
    """Return whether a line is of torch's log: those begin with level and date, as in `W1122 08:00:00.1`."""
    return len(line) > 5 and line[0] in "IWEF" and line[1:5].isdecimal() and line[5] == " "
