"""`iobench.watch`, in a notebook too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from iobench.base.units import MIB, rate_text, seconds_text, three_digits
from iobench.diagnose import diagnosis
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.watched_loader import WatchedLoader
from iobench.notebook.shown import Shown
from iobench.results import history
from iobench.results.columns import Columns

if TYPE_CHECKING:
    from iobench.report.figure import Figure
    from iobench.report.rows import Row

T = TypeVar("T")


class ShownWatch(WatchedLoader[T], Shown):
    """A loader under watch, which a notebook can show: a row of its data is a loop over it."""

    def __init__(
        self, loader: Iterable[T], device: str, tell: Callable[[LoopStats], None], headroom: int = 0
    ) -> None:
        super().__init__(loader, device, self._keep, headroom)
        self.loops: list[LoopStats] = []  # every loop over it, in order
        self._say = tell

    def _keep(self, seen: LoopStats) -> None:
        self.loops.append(seen)
        self._say(seen)

    def _columns(self) -> Columns:
        loops = self.loops
        return [
            ("loop", [f"{number}" for number in range(1, len(loops) + 1)]),
            ("batches", [f"{seen.batches:,}" for seen in loops]),
            (
                "samples/s" if any(s.samples for s in loops) else "batches/s",
                [rate_text(s.rate) for s in loops],
            ),
            ("MiB/s", [three_digits(seen.bytes_per_s / MIB) for seen in loops]),
            ("first batch", [seconds_text(seen.first_wait_s) for seen in loops]),
            ("waiting", [f"{seen.wait_share:.0%}" for seen in loops]),
            ("wait p99", [seconds_text(seen.wait_p99_s) for seen in loops]),
        ]

    def _sentences(self) -> list[str]:
        if not self.loops:
            return ["No loop has gone over it yet."]
        found = diagnosis.diagnose(self.loops[-1])
        last = "Of the last loop: " if len(self.loops) > 1 else ""
        warned = [f"Warning: {one}." for one in found.warnings]
        return [f"{last}{found.verdict}", *(one.said for one in found.advice), *warned]

    def _rows(self) -> list[dict[str, Any]]:
        loops = enumerate(self.loops, 1)
        return [{"loop": number, **history.flattened(seen.as_dict())} for number, seen in loops]

    def _figures(self) -> list[Figure]:
        from iobench.report import charts
        from iobench.report.figure import Figure

        spent = _spent(self.loops)
        says = "Of each loop's time after its first batch: waiting for the next one, and everything else."
        return (
            [Figure("watch", "Where each loop's time went", says, spent, charts.stages(spent))]
            if spent
            else []
        )


def _spent(loops: list[LoopStats]) -> list[Row]:
    """What a loop's time after its first batch went to."""
    rows = []
    for number, seen in enumerate(loops, 1):
        parts = {"wait": seen.wait_s, "compute": seen.step_s}
        whole = sum(parts.values())
        for place, (stage, seconds) in enumerate(parts.items()):
            if seconds:
                case = {"key": f"{number:06}", "case": f"loop {number}"}
                rows.append(
                    {**case, "stage": stage, "share": seconds / whole, "seconds": seconds, "place": place}
                )
    return rows
