"""Answer of a command that gives advice, shown in the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from iobench.base.finding import Finding
from iobench.results.columns import Columns
from iobench.results.display import Block, Displayed
from iobench.results.run_warning import RunWarning


@dataclass(frozen=True, kw_only=True)
class Answer(Displayed):
    """Recommendation or diagnosis, and the measurements behind it."""

    outcome: str  # kind of the answer
    findings: list[Finding]  # the answer, its reasons and its cost, most important first
    code: str = ""  # Python code to paste; empty if nothing is to change
    skipped: list[Finding] = field(default_factory=list)  # what was not measured or failed, and why
    warnings: list[RunWarning] = field(default_factory=list)  # reasons not to believe it
    records: list[str] = field(default_factory=list)  # files of records

    def tables(self) -> Iterator[Columns]:
        """Yield the tables of its measurements; none by default."""
        yield from ()

    def lists(self) -> Iterator[tuple[str, Sequence[Finding]]]:
        """Yield titled lists of other findings."""
        yield "Skipped or failed", self.skipped

    def listings(self) -> Iterator[tuple[str, str]]:
        """Yield titled code."""
        yield "Code", self.code

    def blocks(self) -> Iterator[Block]:
        """Yield its parts in the order of every display: answer, measurements, reasons, code, warnings."""
        first, *others = self.findings
        yield Block("answer", [first.sentence])
        yield from (Block("table", columns=columns) for columns in self.tables())
        if others:
            yield Block("text", [one.sentence for one in others])
        for title, findings in self.lists():
            if findings:
                yield Block("list", [one.sentence for one in findings], title)
        for title, code in self.listings():
            if code:
                yield Block("code", code.splitlines(), title)
        yield from (Block("warning", [one.sentence], one.kind) for one in self.warnings)
