"""`iobench.watch`: measure a loader inside a training loop and report on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.watched_loader import WatchedLoader, watched
from iobench.advise.diagnosis import diagnose
from iobench.host.device import in_use

T = TypeVar("T")


def watch(loader: Iterable[T], device: str = "auto", headroom: int = 0) -> WatchedLoader[T]:
    """Wrap a loader so that each loop over it is measured and diagnosed.

    When a loop ends (exhausted, `break`, an error or Ctrl-C), a table, a verdict and advice are printed to
    stderr. The result iterates like the loader; it has the figures of the last loop and of all loops, and
    a notebook displays them.

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
    return watched(loader, in_use() if device == "auto" else device, _report, headroom)


def _report(stats: LoopStats) -> None:
    from iobench.terminal import display  # it takes long to import, and only now it is needed

    display.parts(diagnose(stats), to_stderr=True)
