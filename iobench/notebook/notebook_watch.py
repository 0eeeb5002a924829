"""`iobench.watch` with a display in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from iobench.base.units import MIB, rate_text, seconds_text, three_digits
from iobench.diagnose import diagnosis
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.watched_loader import WatchedLoader
from iobench.notebook.notebook_result import NotebookResult
from iobench.results import history
from iobench.results.columns import Columns

if TYPE_CHECKING:
    from iobench.report.figure import Figure
    from iobench.report.rows import Row

T = TypeVar("T")


class NotebookWatch(WatchedLoader[T], NotebookResult):
    """A watched loader, with a display in a notebook; a row of its data is a loop over it."""

    def __init__(
        self, loader: Iterable[T], device: str, report: Callable[[LoopStats], None], headroom: int = 0
    ) -> None:
        super().__init__(loader, device, self._add, headroom)
        self.loops: list[LoopStats] = []  # in order
        self._report = report

    def _add(self, loop: LoopStats) -> None:
        self.loops.append(loop)
        self._report(loop)

    def _columns(self) -> Columns:
        loops = self.loops
        return [
            ("loop", [f"{number}" for number in range(1, len(loops) + 1)]),
            ("batches", [f"{loop.batches:,}" for loop in loops]),
            (
                "samples/s" if any(s.samples for s in loops) else "batches/s",
                [rate_text(s.rate) for s in loops],
            ),
            ("MiB/s", [three_digits(loop.bytes_per_s / MIB) for loop in loops]),
            ("first batch", [seconds_text(loop.first_wait_s) for loop in loops]),
            ("waiting", [f"{loop.wait_share:.0%}" for loop in loops]),
            ("wait p99", [seconds_text(loop.wait_p99_s) for loop in loops]),
        ]

    def _sentences(self) -> list[str]:
        if not self.loops:
            return ["No loop yet."]
        last = diagnosis.diagnose(self.loops[-1])
        subject = "Last loop: " if len(self.loops) > 1 else ""
        warnings = [f"Warning: {one.sentence}" for one in last.warnings]
        return [f"{subject}{last.verdict.sentence}", *(one.sentence for one in last.advice), *warnings]

    def _rows(self) -> list[dict[str, Any]]:
        loops = enumerate(self.loops, 1)
        return [{"loop": number, **history.flattened(loop.as_dict())} for number, loop in loops]

    def _figures(self) -> list[Figure]:
        from iobench.report import charts
        from iobench.report.figure import Figure

        times = _times(self.loops)
        caption = "Time of each loop after its first batch: waiting for batches, and everything else."
        if not times:
            return []
        return [Figure("watch", "Time of each loop", caption, times, charts.stages(times))]


def _times(loops: list[LoopStats]) -> list[Row]:
    """Return the parts of each loop's time after its first batch."""
    rows = []
    for number, loop in enumerate(loops, 1):
        parts = {"wait": loop.wait_s, "compute": loop.step_s}
        whole = sum(parts.values())
        for place, (stage, seconds) in enumerate(parts.items()):
            if seconds:
                case = {"key": f"{number:06}", "case": f"loop {number}"}
                rows.append(
                    {**case, "stage": stage, "share": seconds / whole, "seconds": seconds, "place": place}
                )
    return rows
