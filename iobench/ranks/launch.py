"""Starting ranks on this host, by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Launch = Callable[[int, Sequence[str], Callable[[str], None]], int]  # ranks, arguments, who is told
# torchrun ends its ranks where it is told to end, and it is told so where whoever started it has gone
_PR_SET_PDEATHSIG, _SIGTERM = 1, 15
_TORCHRUN = (
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
    """Run iobench with these arguments in so many ranks of this host; its exit code.

    `where`: torchrun's options that say where ranks of other hosts are, by default that there are none.

    What the ranks say on stderr is passed on line by line, without what torchrun adds to it; their standard
    output goes nowhere. Each rank has as many threads as OMP_NUM_THREADS says, by default one, also where
    there is but one rank, for which torchrun would leave it unset.
    """
    command = [sys.executable, "-c", _TORCHRUN, *where, "--nproc-per-node", str(count)]
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
        said, rest = _pass_on(process, say)
        code = process.wait()
    except BaseException:  # Ctrl-C, which has reached all of them
        process.terminate()
        process.wait()
        raise
    if code and not said:  # else the traceback is torchrun's own, about a rank that has said what was wrong
        for line in rest:
            say(line)
    return code


def _pass_on(process: subprocess.Popen[str], say: Callable[[str], None]) -> tuple[bool, list[str]]:
    """Say what ranks say, until all have ended; whether one complained, and what came from a traceback on."""
    assert process.stderr is not None
    said, rest = False, list[str]()
    with process.stderr as lines:
        for line in map(str.rstrip, lines):
            if rest or line.startswith("Traceback "):
                rest.append(line)
            elif not _of_torchrun(line):
                said = said or line.startswith("iobench: ")
                say(line)
    return said, rest


def _of_torchrun(line: str) -> bool:
    """Whether it is a line of torch's log, which begin with a level and a date, as in `W1122 08:00:00.1`."""
    return len(line) > 5 and line[0] in "IWEF" and line[1:5].isdecimal() and line[5] == " "
