"""Watchdog that kills a process stopped by SIGSTOP, which cannot notice anything itself."""

from __future__ import annotations

import os
import subprocess
import sys

CHECK_S = 0.5
# The watchdog ends with its parent, because that closes the pipe. Ctrl-Z in a terminal stops the whole job,
# the watchdog included, which then continues with it.
_WATCHDOG = f"""
import os, select, sys
parent, allowed, stopped = int(sys.argv[1]), float(sys.argv[2]), 0.0
while not select.select([0], [], [], {CHECK_S})[0]:
    with open(f"/proc/{{parent}}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    stopped = stopped + {CHECK_S} if state == "T" else 0.0
    if stopped > allowed:
        os.kill(parent, 9)
"""


def kill_when_stopped(seconds: float) -> subprocess.Popen[bytes]:
    """Start a small process that kills this one once it has been stopped for `seconds`."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(os.getpid()), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
