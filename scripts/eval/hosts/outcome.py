"""The output of a command, and the row of a step that checks it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from eval.harness import Row

TIMEOUT_S = 240.0


@dataclass
class CommandOutput:
    """The lines of a command, its exit code and its duration, counted from the fault if there was one."""

    lines: list[str] = field(default_factory=list)
    code: int = 0
    seconds: float = 0.0

    @property
    def errors(self) -> list[str]:
        """The error lines of iobench."""
        return [line for line in self.lines if line.startswith("iobench: ")]

    @property
    def rounds(self) -> int:
        """The number of reported rounds."""
        return sum(line.startswith("round ") for line in self.lines)

    @property
    def ended_by_torchrun(self) -> bool:
        """True once torchrun has started the traceback that it prints after a failed run."""
        return any(line.startswith("Traceback ") for line in self.lines)

    def slowest(self) -> list[tuple[str, int, str]]:
        """Return (case, straggler wait in percent, slowest rank) of each case in the table."""
        row = re.compile(r"^ *(npy +\w+) .* (\d+)% +(no clear straggler|rank \d+ on \w+)")
        return [(one[1], int(one[2]), one[3]) for one in map(row.match, self.lines) if one]


def checked(step: str, violations: Iterable[str], evidence: str = "") -> Row:
    """Return the row of a step: its evidence, and the expectations that it violates."""
    violated = "; ".join(violations)
    return {"step": step, **({"failed": violated} if violated else {}), "evidence": evidence}


def follow(
    title: str,
    process: subprocess.Popen[str],
    inject: Callable[[], None] | None = None,
    when: str = "round 2/",
) -> CommandOutput:
    """Print a command's output until it ends; inject a fault at the first line that starts with `when`."""
    output, began, injected = CommandOutput(), time.monotonic(), False
    print(f"\n== {title}", file=sys.stderr)
    guard = threading.Timer(TIMEOUT_S, process.kill)
    guard.start()
    for line in process.stdout or ():
        output.lines.append(line.rstrip("\n"))
        if not (output.errors and output.ended_by_torchrun):
            print("  |", line, end="", file=sys.stderr)
        if inject and not injected and line.startswith(when):
            injected, began = True, time.monotonic()
            inject()
    output.code = process.wait()
    output.seconds = time.monotonic() - began
    guard.cancel()
    return output
