"""Answers of the commands that give advice, and the findings that they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iobench.base.errors import IobenchError, MissingDependency
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, three_digits
from iobench.results import stats
from iobench.results.display import Block, Chart, Columns, Displayed
from iobench.results.run_warning import LONGER, RunWarning, Value, Values, warning_blocks
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import claim_text, ratio_text


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

    def lead(self) -> tuple[list[str], list[Finding]]:
        """Return the lines that come first, and the findings that come after the measurements."""
        first, *others = self.findings
        return [first.sentence], others

    def charts(self) -> Iterator[Chart]:
        """Yield the charts of its measurements; none by default."""
        yield from ()

    def blocks(self) -> Iterator[Block]:
        """Yield its parts in the order of every display: answer, measurements, reasons, code, warnings."""
        lines, others = self.lead()
        yield Block("answer", lines)
        yield from (Block("table", columns=columns) for columns in self.tables())
        yield from (Block("chart", chart=chart) for chart in self.charts())
        if others:
            yield Block("text", [one.sentence for one in others])
        for title, findings in self.lists():
            if findings:
                yield Block("list", [one.sentence for one in findings], title)
        for title, code in self.listings():
            if code:
                yield Block("code", code.splitlines(), title)
        yield from warning_blocks(self.warnings)


DECIDED, TIED, LIMITED = "decided", "tied", "limited"  # outcomes that recommend something else
KEEP, UNDECIDED, NOT_BOTTLENECK = "keep", "undecided", "not-bottleneck"  # and that do not
MAX_NAMED = 5  # cases in a sentence
RAGGED_LOADERS = "loaders that deliver only samples of one shape"
TOGETHER = {  # of kinds of findings that are shown as one
    MissingDependency.default_kind: "not installed",
    **dict.fromkeys(
        ("ragged", "not-audio", "not-an-image", "not-windows", "unsupported-dtype"),
        "formats that cannot hold such samples",
    ),
    "no-cases": "loaders that cannot read these formats in this order",
    "out-of-time": "no time was left to write",
}


def gain(
    name: str, ratio: Estimate, baseline: str, values: Values, tied: bool = False, subject: str = ""
) -> Finding:
    """Return what to use and its gain over a baseline; `tied` if others are as fast."""
    kind = "tied" if tied else "decided"
    message = f"Use {name}: {subject}{claim_text(ratio, f'as fast as {baseline}')}"
    return Finding(kind, message, values={"use": name, "gain": ratio.median, **values})


def keep(name: str, others: Sequence[Comparison], tried: int, values: Values | None = None) -> Finding:
    """Return that nothing beat the baseline in rounds of its own, or that too few rounds decide nothing.

    `others` are the comparisons of final rounds; `tried` counts those of the race as well.
    """
    values = {"tried": tried, **(values or {})}
    if is_undecided(others):
        return undecided(name, others, values)
    slower = f"none of the {tried} others is" if tried > 1 else "the only other one is not"
    why = f"{slower} significantly (5 %) faster" if tried else "no others could be measured"
    return Finding("keep", f"Keep {name}: {why}", values=values)


def undecided(
    name: str, others: Iterable[Comparison], values: Values, fastest: str = "the fastest other"
) -> Finding:
    """Return that others may be faster than the baseline of this name, in too few rounds to tell."""
    best = max(others, key=lambda one: one.ratio.median)
    message = f"Undecided: {fastest} is {ratio_text(best.ratio, f'as fast as {name}')}"
    return Finding("undecided", message, LONGER, {**values, "ratio": best.ratio.median})


def is_undecided(others: Iterable[Comparison]) -> bool:
    """Return True if one that may be faster had too few rounds for an interval."""
    return any(
        one.ratio.low is None
        and one.ratio.median > 1 + stats.MIN_DIFFERENCE
        and one.outcome == "inconclusive"
        for one in others
    )


def not_bottleneck(evidence: str, values: Values) -> Finding:
    """Return that no loader can gain more, with the evidence."""
    return Finding(NOT_BOTTLENECK, f"Loading is not the bottleneck: {evidence}", values=values)


def headroom(times: Estimate, more: str = "", **values: Value) -> Finding:
    """Return the gain of the best possible loader, from batches that are on the device already."""
    fast = f"{three_digits(times.median)} × as fast" if times.low is None else ratio_text(times, "as fast")
    message = f"With batches already on the device the loop is {fast}: no loader can bring more{more}"
    return Finding("headroom", message, values={"ratio": times.median, **values})


def memory(used: float | None) -> str:
    """Return the memory of a case in words; empty if it is unknown."""
    return f"{bytes_text(used)} of memory" if used else ""


def failures(failed: Iterable[tuple[str, Finding | IobenchError]], when: str = "") -> Iterator[Finding]:
    """Yield what failed, cases with the same problem together."""
    alike: dict[str, tuple[Finding | IobenchError, list[str]]] = {}
    for name, problem in failed:
        alike.setdefault(str(problem), (problem, []))[1].append(name)
    for problem, names in alike.values():
        own = problem.message if isinstance(problem, Finding) else str(problem.changed(hint=None))
        more = problem.values if isinstance(problem, Finding) else {}
        values: Values = {**more, "cases": some(names), "failed": len(names)}
        yield Finding(problem.kind, f"{some(names)}{when}: {own}", problem.hint, values)


def skipped_together(skipped: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings, those of one of the kinds in TOGETHER as one, with one command for all extras."""
    alike: dict[str, list[Finding]] = {}
    for one in skipped:
        if one.kind in TOGETHER:
            label = RAGGED_LOADERS if one.kind == "ragged" and "loader" in one.values else TOGETHER[one.kind]
            alike.setdefault(label, []).append(one)
        else:
            yield one
    for label, findings in alike.items():
        extras = dict.fromkeys(extra for one in findings for extra in _extras(one))
        plain = [str(one.values.get("loader") or one.values.get("format")) for one in findings]
        known = [_extras(one) or [name.partition(":")[0]] for one, name in zip(findings, plain, strict=True)]
        names = ", ".join(sorted({name for names in known for name in names}))
        hint = f"pip install 'iobench[{','.join(extras)}]'" if extras else None
        yield Finding(findings[0].kind, f"{label}: {names}", hint, {"names": names})


def _extras(finding: Finding) -> list[str]:
    return re.findall(r"iobench\[(.+?)\]", finding.hint or "")


def no_time(names: Sequence[str], hint: str | None = None, **values: float) -> Iterator[Finding]:
    """Yield the cases that no time was left for; nothing without any."""
    if names:
        message = f"no time was left for {some(names)}"
        yield Finding("no-time", message, hint, {"cases": some(names), "skipped": len(names), **values})


def some(names: Sequence[str]) -> str:
    """Join the first names for a sentence, with the number of the others."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more
