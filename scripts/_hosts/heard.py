"""What a command says, and whether that is what was promised."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

PATIENCE_S = 240.0


@dataclass
class Heard:
    """The lines of a command, its exit code, and how long it took: since the blow, where there was one."""

    lines: list[str] = field(default_factory=list)
    code: int = 0
    seconds: float = 0.0

    @property
    def complaints(self) -> list[str]:
        """What iobench itself says is wrong."""
        return [line for line in self.lines if line.startswith("iobench: ")]

    @property
    def rounds(self) -> int:
        """How many rounds it has told of."""
        return sum(line.startswith("round ") for line in self.lines)

    @property
    def ended_by_torchrun(self) -> bool:
        """Whether torchrun has begun with the traceback that it adds below a run that failed."""
        return any(line.startswith("Traceback ") for line in self.lines)

    def slowest(self) -> list[tuple[str, int, str]]:
        """Of each case in its table: the case, the percentage that others wait, and who is slowest."""
        row = re.compile(r"^ *(npy +\w+) .* (\d+)% +(no clear straggler|rank \d+ on \w+)")
        return [(one[1], int(one[2]), one[3]) for one in map(row.match, self.lines) if one]


class Promises:
    """Steps, what was promised of each, and whether it was kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, str]] = []  # step, what broke or nothing, what was seen

    def step(self, title: str, broken: Iterable[str], seen: str = "") -> None:
        """Note a step with the promises that it broke."""
        broke = "; ".join(broken)
        self.kept.append((title, broke, seen))
        print(f"  {'NOT AS PROMISED: ' + broke if broke else 'as promised'}: {seen}", flush=True)

    def table(self) -> str:
        """Each step in a line."""
        wide = max(len(title) for title, _, _ in self.kept)
        lines = [
            f"{title:{wide}}  {'NOT AS PROMISED: ' + broke if broke else 'as promised'}  {seen}"
            for title, broke, seen in self.kept
        ]
        return "\n".join(lines)

    @property
    def all_kept(self) -> bool:
        """Whether nothing broke."""
        return not any(broke for _, broke, _ in self.kept)


def listen(
    title: str,
    process: subprocess.Popen[str],
    strike: Callable[[], None] | None = None,
    when: str = "round 2/",
) -> Heard:
    """Print what a command says until it ends; strike once, at the first line that begins so."""
    heard, began, struck = Heard(), time.monotonic(), False
    print(f"\n== {title}", flush=True)
    guard = threading.Timer(PATIENCE_S, process.kill)
    guard.start()
    for line in process.stdout or ():
        heard.lines.append(line.rstrip("\n"))
        if not (heard.complaints and heard.ended_by_torchrun):
            print("  |", line, end="", flush=True)
        if strike and not struck and line.startswith(when):
            struck, began = True, time.monotonic()
            strike()
    heard.code = process.wait()
    heard.seconds = time.monotonic() - began
    guard.cancel()
    print(f"  exit {heard.code}, {heard.seconds:.1f} s{' after the blow' if struck else ''}", flush=True)
    return heard
