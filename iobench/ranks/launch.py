"""Launcher of ranks on this host, through torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

# (number of ranks, arguments, callback for each line) -> exit code
Launch = Callable[[int, Sequence[str], Callable[[str], None]], int]
# torchrun ends its ranks on SIGTERM, which the kernel sends it when its parent dies
_PR_SET_PDEATHSIG, _SIGTERM = 1, 15
TORCHRUN = (
    f"import ctypes, runpy; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {_SIGTERM}); "
    "runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
)
THREADS = "OMP_NUM_THREADS"


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
    alone would leave it unset.

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
    try:
        complained, rest = _pass_on(process, say)
        code = process.wait()
    except BaseException:  # Ctrl-C, which reaches all of them
        process.terminate()
        process.wait()
        raise
    if (
        code and not complained
    ):  # otherwise the traceback is torchrun's, about a rank that has reported its error
        for line in rest:
            say(line)
    return code


def _pass_on(process: subprocess.Popen[str], say: Callable[[str], None]) -> tuple[bool, list[str]]:
    """Pass on lines until all ranks end; return whether one reported an error, and a traceback's lines."""
    assert process.stderr is not None
    complained, rest = False, list[str]()
    with process.stderr as lines:
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
