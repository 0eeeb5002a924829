"""`iobench.watch`: measure a loader inside a training loop and report on stderr."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.watched_loader import WatchedLoader, watched
from iobench.advise.diagnosis import all_loops, diagnose
from iobench.base.errors import InvalidSettings
from iobench.host.device import in_use
from iobench.host.rank_info import process_rank
from iobench.results.display import Block
from iobench.terminal import display

T = TypeVar("T")


def watch(loader: Iterable[T], device: str = "auto", headroom: int = 0) -> WatchedLoader[T]:
    """Wrap a loader so that each loop over it is measured and diagnosed.

    When the first loop ends (exhausted, `break`, an error or Ctrl-C), a verdict, its cause and remedy and a
    table are printed to stderr; if others follow, a verdict on all of them when the process ends, or, in an
    interactive session, one after each. Of several ranks only the first one prints. The result iterates like
    the loader; it has the figures of the last loop and of all loops, and a notebook displays them.

    A DataLoader remains one of its own class: Trainers and samplers treat it as the loader itself, and a
    loader that a Trainer makes of it, to shard it, is watched, too. Accelerate's `prepare` refuses it: watch
    what `prepare` returns.

    Parameters
    ----------
    loader
        Any iterable of batches.
    device
        The device whose activity is sampled; `auto` is the current one if the process uses one.
    headroom
        Number of batches to replay from the device at the end of a loop: the speed that an ideal loader
        would reach. Training sees these batches twice, so use it for a trial only.

    Raises
    ------
    InvalidSettings
        `headroom` is negative, or, later, Accelerate prepares the result (``watched-before-prepare``).
    """
    report = _Report()
    with suppress(TypeError):  # a list, for one, cannot be referred to weakly, or is no key
        report = _reports.setdefault(loader, report)
    return watched(loader, in_use() if device == "auto" else device, report.add, headroom)


class _Report:
    """Prints the first loop over a loader when it ends, and all of them when the process ends."""

    def __init__(self) -> None:
        self._loops: list[LoopStats] = []

    def add(self, stats: LoopStats) -> None:
        """Print the loop, or keep it for the end."""
        with suppress(InvalidSettings):  # what says who this rank is is contradictory: each one prints
            if process_rank().rank:
                return
        self._loops.append(stats)
        if len(self._loops) == 1 or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
            _show(diagnose(Evidence(stats)).blocks())
        elif len(self._loops) == 2:
            atexit.register(lambda: _show(all_loops(self._loops)))


def _show(blocks: Iterable[Block]) -> None:
    """Print to stderr; where that is not possible, training goes on all the same."""
    shown = list(blocks)
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # a disk that is full or a reader that is gone; a closed file
            display.blocks(shown, to_stderr=True)


_reports = WeakKeyDictionary[Iterable[object], _Report]()  # a loop over epochs may watch its loader in each
