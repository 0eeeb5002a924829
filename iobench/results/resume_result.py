"""Result of a resume check: samples that were lost or repeated where an epoch was stopped and resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from iobench.base.finding import Finding
from iobench.base.units import counted, seconds_text
from iobench.results.display import Block, Displayed, table

LISTED = 3  # bad resumes in the answer


@dataclass(frozen=True)
class Resume:
    """One epoch of a loader that was stopped and resumed, compared with an unbroken one.

    The outcome is ``complete``; ``wrong`` if samples were lost, repeated or foreign and no error was raised;
    ``skipped`` if iobench cannot change this for the loader; ``refused`` if the loader raised an error and
    saved no state, or gave no first batch; ``failed`` if it raised a later one, or its process died or
    hung. If the number of ranks changes, only the order between common ends of global batches is compared.
    """

    loader: str  # the loader with its options, or the user's function
    change: str  # ``same``, or what changed at each stop: ``ranks 2→3``, ``workers 0→2``
    samples: int  # samples of the unbroken epoch
    stop_after: int = 0  # batches of each rank before each stop
    lost: int | None = None  # samples that never came; None if the resume was refused or failed
    repeated: int | None = None  # samples that came too often; None as for `lost`
    foreign: int | None = None  # samples that are none of the unbroken epoch's; None as for `lost`
    same_order: bool | None = None  # whether they came in its order; None if that differs between processes
    first_batch_s: float | None = None  # from the last resume to the first batch of the slowest rank
    outcome: Literal["complete", "wrong", "skipped", "refused", "failed"] = "complete"  # see above
    reason: Finding | None = None  # why it was skipped, was refused or failed

    @property
    def title(self) -> str:
        """The loader and the change."""
        return f"{self.loader} ({self.change})"

    @property
    def note(self) -> str:
        """Why there are no counts, or the number of foreign samples."""
        if self.reason:
            return f"{self.outcome}: {self.reason.message}"
        return f"{counted(self.foreign, 'sample')} not of the unbroken epoch" if self.foreign else ""


@dataclass
class ResumeCheck(Displayed):
    """All resumes of a check, in the order in which they were made."""

    resumes: list[Resume] = field(default_factory=list)

    @property
    def bad(self) -> list[Resume]:
        """Resumes that failed, or that delivered wrong samples without an error."""
        return [one for one in self.resumes if one.outcome in ("wrong", "failed")]

    @property
    def sentence(self) -> str:
        """The answer."""
        if self.bad:
            more = f"; {len(self.bad) - LISTED} more" if len(self.bad) > LISTED else ""
            return "; ".join(map(_complaint, self.bad[:LISTED])) + more
        counts = Counter(one.outcome for one in self.resumes)
        whole, ordered = counts["complete"], sum(one.same_order is False for one in self.resumes)
        parts = [f"nothing lost or repeated in {counted(whole, 'resume')}"] if whole else []
        parts += [f"another order in {ordered}"] if ordered else []
        parts += [f"{counts[name]} {name}" for name in ("refused", "skipped") if counts[name]]
        return "; ".join(parts)

    def blocks(self) -> Iterator[Block]:
        """Yield the answer and the table."""
        yield Block("answer", [self.sentence])
        titles = ("loader", "change", "lost", "repeated", "same order", "first batch", "")
        yield table(titles, map(_cells, self.resumes))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per resume."""
        return list(map(asdict, self.resumes))

    def as_dict(self) -> dict[str, Any]:
        """Return the answer and the resumes as plain values."""
        return {"answer": self.sentence, "bad": len(self.bad), "resumes": self.rows()}


def _complaint(one: Resume) -> str:
    if one.reason:
        return f"{one.title} {one.note}"
    counts = {"lost": one.lost, "repeated": one.repeated, "delivered foreign": one.foreign}
    parts = [f"{what} {counted(count, 'sample')}" for what, count in counts.items() if count]
    return f"{one.title} {', '.join(parts)} and raised no error"


def _cells(one: Resume) -> Sequence[str | None]:
    if one.reason:
        return one.loader, one.change, None, None, None, None, one.note
    order = {True: "yes", False: "no", None: "unknown"}[one.same_order]
    first = "" if one.first_batch_s is None else seconds_text(one.first_batch_s)
    return one.loader, one.change, f"{one.lost:,}", f"{one.repeated:,}", order, first, one.note
