"""`iobench.watch`: a loader in somebody's training loop, and what it cost, on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from iobench.diagnose import diagnosis
from iobench.diagnose.loop_stats import LoopStats
from iobench.host.device import in_use
from iobench.notebook.watch import ShownWatch

T = TypeVar("T")


def watch(loader: Iterable[T], device: str = "auto", headroom: int = 0) -> ShownWatch[T]:
    """The loader itself, as far as a training loop can tell, which says at the end what it waited for.

    Any iterable will do. Each time a loop over it ends, by itself, by `break`, an error or Ctrl-C, a
    table, a verdict and advice go to stderr; `seen` then holds the figures, `loops` those of every loop, and
    a notebook shows them. `device`: whose GPU to watch (`auto`: the current one, if the process uses one).
    With `headroom`, so many batches come once more at the end of a loop, on the device already, which says
    what the best possible loader would bring: for a try, since a training learns from these twice.
    """
    return ShownWatch(loader, in_use() if device == "auto" else device, _tell, headroom)


def _tell(seen: LoopStats) -> None:
    from rich.console import Console
    from rich.text import Text

    from iobench.base.text import printable
    from iobench.terminal.diagnosed import loop_table

    found = diagnosis.diagnose(seen)
    console = Console(stderr=True, highlight=False)
    console.print(loop_table(seen))
    for line in (
        *(f"warning: {one}" for one in found.warnings),
        found.verdict,
        *(f"- {one.said}" for one in found.advice),
    ):
        console.print(Text(printable(line)), soft_wrap=True)
