"""`iobench.watch`: measure a loader inside a training loop and report on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from iobench.diagnose import diagnosis
from iobench.diagnose.loop_stats import LoopStats
from iobench.host.device import in_use
from iobench.notebook.notebook_watch import NotebookWatch

T = TypeVar("T")


def watch(loader: Iterable[T], device: str = "auto", headroom: int = 0) -> NotebookWatch[T]:
    """Wrap a loader so that each loop over it is measured and diagnosed.

    When a loop ends (exhausted, `break`, an error or Ctrl-C), a table, a verdict and advice are printed to
    stderr. The result iterates like the loader; it has the figures of the last loop and of all loops, and
    a notebook displays them.

    Parameters
    ----------
    loader
        Any iterable of batches.
    device
        The device whose activity is sampled; `auto` is the current one if the process uses one.
    headroom
        Number of batches to replay from the device at the end of a loop: the speed that an ideal loader
        would reach. Training sees these batches twice, so use it for a trial only.
    """
    return NotebookWatch(loader, in_use() if device == "auto" else device, _report, headroom)


def _report(stats: LoopStats) -> None:
    from rich.console import Console
    from rich.text import Text

    from iobench.base.text import printable
    from iobench.terminal.diagnosed import loop_table

    result = diagnosis.diagnose(stats)
    console = Console(stderr=True, highlight=False)
    console.print(loop_table(stats))
    for line in (
        *(f"warning[{one.kind}]: {one.sentence}" for one in result.warnings),
        result.verdict.sentence,
        *(f"- {one.sentence}" for one in result.advice),
    ):
        console.print(Text(printable(line)), soft_wrap=True)
