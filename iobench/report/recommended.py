"""Recommendations on the page: those for the measured dataset, and those for other datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iobench.advise.recommendation import Recommendation
from iobench.report.blocks import html_of
from iobench.report.figure import Figure
from iobench.report.result_figures import finalists_and_formats
from iobench.results.record import Record
from iobench.results.run_warning import LONGER, RunWarning
from iobench.results.warnings import warnings_of


@dataclass(frozen=True)
class RecommendationSection:
    """One recommendation: its parts as HTML, and its charts."""

    dataset: str
    html: str
    figures: list[Figure]


@dataclass(frozen=True)
class Recommended:
    """Recommendations of a page, of which the first for its dataset gives the page's answer."""

    first: Recommendation | None = None  # the one that heads the page
    final: bool = False  # the page's records, if any, are its final rounds: their warnings are its own
    sections: list[RecommendationSection] = field(default_factory=list)  # the first omits what heads the page
    others: list[RecommendationSection] = field(default_factory=list)  # for other datasets

    def warnings(self, records: Sequence[Record]) -> list[RunWarning]:
        """Return its warnings and those of its rounds, each kind once; few rounds its answer tells."""
        mine = self.first.warnings if self.first else []
        said = {"few-rounds", *(one.kind for one in mine)}
        return [*mine, *(one for one in warnings_of(records, LONGER) if one.kind not in said)]


def recommended(advice: Sequence[Recommendation], records: Sequence[Record]) -> Recommended:
    """Return recommendations in the order of the page of these records; without records, all are its own."""
    measured = {record.dataset.name for record in records}
    about = [one for one in advice if not records or {one.dataset} == measured]
    others = [one for one in advice if one not in about]
    if not about:
        return Recommended(others=[_section(one, number) for number, one in enumerate(others, 1)])
    final = _rests_on(about[0], records)
    said = ("answer", "warning") if final else ("answer",)
    first, *more = [
        _section(one, number, () if number > 1 else said) for number, one in enumerate([*about, *others], 1)
    ]
    return Recommended(about[0], final, [first, *more[: len(about) - 1]], more[len(about) - 1 :])


def _section(one: Recommendation, number: int, said: Sequence[str] = ()) -> RecommendationSection:
    """Return a section without the blocks of the styles that are said elsewhere."""
    html = html_of(block for block in one.blocks() if block.style not in said)
    return RecommendationSection(one.dataset, html, finalists_and_formats(one, f"recommended-{number}-"))


def _rests_on(one: Recommendation, records: Sequence[Record]) -> bool:
    """Return whether all records are of its finalists, and no newer than it."""
    keys = {finalist.key for finalist in one.finalists}
    return all(record.settings_key in keys and record.time[:19] <= one.time[:19] for record in records)
