"""Lines of the user's own code that a thread is at, by samples of its stack."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from iobench.advise.checks.call_costs import PACKAGES, QUEUES
from iobench.base.text import shortened

EVERY_S = 5e-3  # between two samples
# Python's is 5 ms, and most samples would be of lines that give the interpreter's lock away by themselves
SWITCH_S = 1e-5
MOST_TEXT = 70  # characters of a line
WAITS = re.compile(rf"{QUEUES.pattern}|selectors\.py")  # innermost frames of a process that waits for another
OTHERS = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), "<")  # where files are not the user's

Line = tuple[str, int]


@dataclass(frozen=True)
class LineShare:
    """A line of the user's own code, and the share of the time that it and what it calls take."""

    place: str
    text: str
    share: float


class LineSampler:
    """Samples the stack of the thread that made it, in a block or from `start` to `stop`."""

    def __init__(self) -> None:
        self.counts = Counter[Line | None]()  # by the innermost line of the user's own code, if there is one
        self._of, self._ended = threading.get_ident(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_s)

    def __enter__(self) -> LineSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            with _no_collection():
                frame = sys._current_frames().get(self._of)
                if frame is not None and not WAITS.search(f"{frame.f_code.co_filename}:"):
                    self.counts[_own_line(frame)] += 1


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running in the block.

    Up to Python 3.11 `f_back` makes an object, which may start a collection. Its callbacks let the sampled
    thread run on, and leave the frame that is being looked at.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def lines_of(counts: Mapping[Line | None, int], most: int) -> list[LineShare]:
    """Return the lines that take most of the time, with their shares."""
    total = sum(counts.values())
    lines = sorted(((number, line) for line, number in counts.items() if line is not None), reverse=True)
    return [
        LineShare(
            f"{'/'.join(Path(file).parts[-2:])}:{line}",
            shortened(linecache.getline(file, line).strip(), MOST_TEXT),
            number / total,
        )
        for number, (file, line) in lines[:most]
    ]


def _own_line(frame: FrameType | None) -> Line | None:
    """Return the innermost line of the user's own code."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OTHERS) and not any(f"/{one}/" in file for one in PACKAGES):
            return file, frame.f_lineno
        frame = frame.f_back
    return None
