"""A process that was stopped (SIGSTOP) cannot notice anything: another one ends it."""

from __future__ import annotations

import os
import subprocess
import sys

LOOK_S = 0.5
# It ends with its parent, whose end of the pipe closes then. A whole job that a terminal stops (Ctrl-Z) stops
# this, too, and goes on with it.
_GUARD = f"""
import os, select, sys
parent, allowed, stopped = int(sys.argv[1]), float(sys.argv[2]), 0.0
while not select.select([0], [], [], {LOOK_S})[0]:
    with open(f"/proc/{{parent}}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    stopped = stopped + {LOOK_S} if state == "T" else 0.0
    if stopped > allowed:
        os.kill(parent, 9)
"""


def kill_when_stopped(seconds: float) -> subprocess.Popen[bytes]:
    """Start a small process that kills this one once it has been stopped for so long; it ends with it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
