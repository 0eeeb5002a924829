"""Content of the page, its order, and its rendering as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import jinja2
import vl_convert

from iobench.advise.recommendation import Recommendation
from iobench.base.errors import ReportError, is_panic
from iobench.base.text import reason
from iobench.report import across, figures, machine_facts, sentences
from iobench.report.across import Matrix
from iobench.report.figure import Figure, cell, heading
from iobench.report.recommended import Recommended, recommended
from iobench.report.sentences import LoaderDescription
from iobench.results import verdict
from iobench.results.record import Record
from iobench.results.scaling_curve import curves
from iobench.results.summary import Context, summarise
from iobench.results.trend import Trend
from iobench.studies import StudyResult

MAX_CONTEXTS = 6  # with sections of their own; the matrix has all


@dataclass(frozen=True)
class Section:
    """One context: its answer with reasons, its loaders, its figures."""

    title: str
    answer: str  # empty where the page's own answer rests on these rounds
    reasons: list[tuple[str, str]]
    loaders: list[LoaderDescription]
    grid: Matrix | None  # formats under loaders
    figures: list[Figure]


@dataclass(frozen=True)
class Page:
    """The report of some records; the first section in full, the others in brief."""

    answer: str
    outcome: str = ""  # kind of the answer
    subject: list[str] = field(default_factory=list)  # dataset, machine and time
    warnings: list[str] = field(default_factory=list)
    machines: list[dict[str, str]] = field(default_factory=list)
    matrix: Matrix | None = None
    sections: list[Section] = field(default_factory=list)
    spanning: list[Figure] = field(default_factory=list)
    recommended: Recommended = field(default_factory=Recommended)
    folded: int = 0  # contexts without a section

    @property
    def figures(self) -> list[Figure]:
        """All figures, in the order of the page."""
        first, others = self.sections[:1], self.sections[1:]
        return [
            *(figure for one in self.recommended.sections for figure in one.figures),
            *(figure for section in first for figure in section.figures),
            *self.spanning,
            *(figure for section in others for figure in section.figures),
            *(figure for one in self.recommended.others for figure in one.figures),
        ]


def page(
    records: Sequence[Record], trends: Sequence[Trend] = (), advice: Sequence[Recommendation] = ()
) -> Page:
    """Return the page of these records, the context with the most cases first.

    `trends` over several runs are shown for the cases in these records. Of `advice`, what is about their
    dataset precedes everything else, what is about others follows it.
    """
    about = recommended(advice, records)
    if not records:
        answer = about.first.findings[0].sentence if about.first else "Published claims, reproduced here"
        warned = [one.sentence for one in about.warnings(records)]
        return Page(f"{answer}." if about.first else answer, warnings=warned, recommended=about)
    summary = summarise(records)
    contexts, machines = in_order(summary.contexts), machine_facts.described(records)
    answered = about.first.findings[0] if about.first else sentences.overall(contexts)
    warnings = about.warnings(records) if about.final else summary.warnings
    sections = [_section(one, number) for number, one in enumerate(contexts[:MAX_CONTEXTS], 1)]
    return Page(
        answer=f"{answered.sentence}.",
        outcome=answered.kind,
        recommended=about,
        subject=_subject(records, machines),
        warnings=[warning.sentence for warning in warnings],
        machines=machines,
        matrix=across.matrix(contexts),
        sections=[replace(one, answer="") for one in sections] if about.final else sections,
        spanning=[
            *figures.spanning(summary.cases, curves(records)),
            *figures.over_runs([one for one in trends if one.key in {case.key for case in summary.cases}]),
        ],
        folded=max(0, len(contexts) - MAX_CONTEXTS),
    )


def in_order(contexts: Sequence[Context]) -> list[Context]:
    """Sort contexts by number of cases, then by title with numbers as numbers."""

    def place(context: Context) -> tuple[int, list[str | int]]:
        parts = re.split(r"([0-9]+)", context.title)
        return -len(context.cases), [int(part) if part.isdecimal() else part for part in parts]

    return sorted(contexts, key=place)


def _section(context: Context, number: int) -> Section:
    return Section(
        title=context.title,
        answer=f"{verdict.verdict(context).sentence}.",
        reasons=list(sentences.reasons(context)),
        loaders=sentences.loader_descriptions(context),
        grid=across.grid(context),
        figures=figures.of_context(context, number, whole=number == 1),
    )


def _subject(records: Sequence[Record], machines: Sequence[dict[str, str]]) -> list[str]:
    """Return dataset, machine and time in a few words; the end of the page has what differs."""
    common = [{about[name] for about in machines} for name in ("CPU", "GPU")]
    names = {record.dataset.name for record in records}
    return [
        *(text for values in [names, *common] if len(values) == 1 for text in values if text != "none"),
        _when(records),
    ]


def _when(records: Sequence[Record]) -> str:
    """Return the times of the first and last round, to the minute."""
    times = sorted(record.time[:16].replace("T", " ") for record in records)
    first, last = times[0], times[-1]
    if first[:10] == last[:10]:
        last = last[11:]
    return f"{first} to {last} UTC" if first[11:] != last and first != last else f"{first} UTC"


def render(page: Page, studies: Sequence[StudyResult]) -> str:
    """Return the whole page: styles, charts and the script that draws them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        studies=studies,
        cell=cell,
        heading=heading,
        version=metadata.version("iobench"),
        script=vega_script().replace("</script", "<\\/script"),
    )


@lru_cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    try:
        return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ReportError(f"vl-convert failed: {reason(error)}", kind="library-panicked") from error
