"""The page: what it says, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from iobench.recommendation.result import Recommendation
from iobench.report import across, answer, figures, machine, recommended
from iobench.report.across import Matrix
from iobench.report.answer import Told
from iobench.report.figure import Figure
from iobench.report.recommended import Advised
from iobench.results.record import Record
from iobench.results.scaling import curves
from iobench.results.summary import Context, summarise
from iobench.results.trend import Trend

MOST_CONTEXTS = 6  # with figures of their own; the matrix has all


@dataclass(frozen=True)
class Section:
    """One context: its answer, how sure that is and why, each loader in words, its figures."""

    title: str
    answer: str
    reasons: list[tuple[str, str]]
    loaders: list[Told]
    grid: Matrix | None  # formats under loaders
    figures: list[Figure]


@dataclass(frozen=True)
class Page:
    """Everything that is said about some records; the first section whole, the others in brief."""

    answer: str
    subject: list[str] = field(default_factory=list)  # what was measured, on what, when
    warnings: list[str] = field(default_factory=list)
    machines: list[dict[str, str]] = field(default_factory=list)
    matrix: Matrix | None = None
    sections: list[Section] = field(default_factory=list)
    spanning: list[Figure] = field(default_factory=list)
    advised: list[Advised] = field(default_factory=list)  # by `iobench recommend`
    left_out: int = 0  # contexts without a section

    @property
    def figures(self) -> list[Figure]:
        """All figures, in the order of the page."""
        first, others = self.sections[:1], self.sections[1:]
        return [
            *(figure for one in self.advised for figure in one.figures),
            *(figure for section in first for figure in section.figures),
            *self.spanning,
            *(figure for section in others for figure in section.figures),
        ]


def page(
    records: Sequence[Record], trends: Sequence[Trend] = (), advice: Sequence[Recommendation] = ()
) -> Page:
    """What these records say, the context with the most cases first; where there are none, nothing.

    `trends` are those of cases over several runs; of the cases in these records they are shown. `advice`
    comes before all of them.
    """
    advised = [recommended.section(one, number) for number, one in enumerate(advice, 1)]
    if not records:
        said = advice[0].sentences[0] if advice else "What others claim, and what holds here"
        return Page(said, advised=advised)
    found = summarise(records)
    contexts, machines = _in_order(found.contexts), machine.described(records)
    return Page(
        answer=answer.overall(contexts),
        advised=advised,
        subject=_subject(records, machines),
        warnings=[warning.sentence for warning in found.warnings],
        machines=machines,
        matrix=across.matrix(contexts),
        sections=[_section(one, number) for number, one in enumerate(contexts[:MOST_CONTEXTS], 1)],
        spanning=[
            *figures.spanning(found.cases, curves(records)),
            *figures.over_runs([one for one in trends if one.key in {case.key for case in found.cases}]),
        ],
        left_out=max(0, len(contexts) - MOST_CONTEXTS),
    )


def _in_order(contexts: Sequence[Context]) -> list[Context]:
    """Those with the most cases first, and else by their titles, numbers as numbers."""

    def place(context: Context) -> tuple[int, list[str | int]]:
        parts = re.split(r"([0-9]+)", context.title)
        return -len(context.cases), [int(part) if part.isdecimal() else part for part in parts]

    return sorted(contexts, key=place)


def _section(context: Context, number: int) -> Section:
    return Section(
        title=context.title,
        answer=answer.answer(context),
        reasons=list(answer.reasons(context)),
        loaders=answer.loaders_told(context),
        grid=across.grid(context),
        figures=figures.of_context(context, number, whole=number == 1),
    )


def _subject(records: Sequence[Record], machines: Sequence[dict[str, str]]) -> list[str]:
    """In few words; what differs is left to the end of the page."""
    alike = [{about[name] for about in machines} for name in ("processor", "GPU")]
    names = {record.dataset.name for record in records}
    return [
        *(told for one in [names, *alike] if len(one) == 1 for told in one if told != "none"),
        _when(records),
    ]


def _when(records: Sequence[Record]) -> str:
    """When the rounds ended, to the minute."""
    times = sorted(record.time[:16].replace("T", " ") for record in records)
    first, last = times[0], times[-1]
    if first[:10] == last[:10]:
        last = last[11:]
    return f"{first} to {last} UTC" if first[11:] != last and first != last else f"{first} UTC"
