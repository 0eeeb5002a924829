"""Content of the page, its order, and its rendering as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import jinja2
import vl_convert

from iobench.advise.recommendation import Recommendation
from iobench.base.errors import ReportError, is_panic
from iobench.base.text import reason
from iobench.report import figures, machine_facts
from iobench.report.display import html_of
from iobench.report.figure import Figure, cell, heading
from iobench.results import verdict
from iobench.results.columns import blocks_of, identity_columns, metric_columns
from iobench.results.display import Block
from iobench.results.record import Record
from iobench.results.run_warning import LONGER, RunWarning
from iobench.results.scaling_curve import curves
from iobench.results.summary import CaseSummary, Context, summarise
from iobench.results.trend import Trend
from iobench.results.warnings import warnings_of
from iobench.studies import StudyResult


@dataclass(frozen=True)
class Section:
    """Part of the page: blocks as HTML, and figures."""

    title: str
    html: str = ""
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The report of some records: the answer and its chart, the tables, warnings, and what lies behind."""

    answer: list[str]  # the first is the title
    outcome: str = ""  # kind of the answer
    subject: list[str] = field(default_factory=list)  # dataset, machine and time
    first: Figure | None = None
    table: str = ""  # HTML of the tables of cases
    warnings: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    machines: list[dict[str, str]] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        """All figures, in the order of the page."""
        return [
            *([self.first] if self.first else []),
            *(one for part in self.sections for one in part.figures),
        ]


def page(
    records: Sequence[Record], trends: Sequence[Trend] = (), advice: Sequence[Recommendation] = ()
) -> Page:
    """Return the page of these records, the context with the most cases first.

    `trends` over several runs are shown for the cases in these records. Of `advice`, the first that is about
    their dataset heads the page; what is about others follows the measurements.
    """
    measured = {record.dataset.name for record in records}
    about = [one for one in advice if not records or {one.dataset} == measured]
    others = [one for one in advice if one not in about]
    head = about[0] if about else None
    final = head is not None and _rests_on(head, records)
    advised = [
        _advised(one, number, said=one is head, warned=one is head and final)
        for number, one in enumerate([*about, *others], 1)
    ]
    if not records:
        answer = f"{head.findings[0].sentence}" if head else "Published claims, reproduced here"
        warnings = [one.sentence for one in _warnings(head, records)] if head else []
        return Page([answer], warnings=warnings, sections=advised)
    summary = summarise(records)
    contexts, machines = summary.contexts, machine_facts.described(records)
    answered = [head.findings[0]] if head else verdict.answer(summary)
    _, *tables = blocks_of(summary)
    several = len(contexts) > 1
    behind = [
        _section(one, number, several) for number, one in enumerate(contexts[: figures.MAX_CONTEXTS], 1)
    ]
    spanning = [
        *figures.spanning(summary.cases, curves(records)),
        *figures.over_runs([one for one in trends if one.key in {case.key for case in summary.cases}]),
    ]
    return Page(
        answer=[one.sentence for one in answered],
        outcome=answered[0].kind,
        subject=_subject(records, machines),
        first=figures.overview(contexts),
        table=html_of(tables),
        warnings=[one.sentence for one in (_warnings(head, records) if head and final else summary.warnings)],
        sections=[
            *advised[: len(about)],
            *behind,
            *([Section("Across settings", figures=spanning)] if spanning else []),
            _every_metric(summary.cases),
            *advised[len(about) :],
        ],
        machines=machines,
    )


def _section(context: Context, number: int, several: bool) -> Section:
    """Return what lies behind the answer about a context: all of its figures for the first one."""
    speeds = [figures.speeds(context, number)] if several else []
    more = figures.of_context(context, number) if number == 1 else ()
    html = html_of([Block("text", [verdict.verdict(context).sentence])]) if several else ""
    return Section(context.title or "Behind these figures", html, [*speeds, *more])


def _every_metric(cases: Sequence[CaseSummary]) -> Section:
    columns = [*identity_columns(cases), *metric_columns(cases, wide=True)]
    table = html_of([Block("table", columns=columns)])
    return Section(
        "Every metric", f'<details><summary>Table</summary><div class="wide">{table}</div></details>'
    )


def _advised(one: Recommendation, number: int, said: bool, warned: bool) -> Section:
    """Return a recommendation without its answer and warnings, where these head the page."""
    elsewhere = [*(["answer"] if said else []), *(["warning"] if warned else [])]
    blocks = (block for block in one.blocks() if block.style not in elsewhere)
    drawn = figures.of_recommendation(one, f"recommended-{number}-")
    return Section(f"Recommendation for {one.dataset}", html_of(blocks), drawn)


def _warnings(one: Recommendation, records: Sequence[Record]) -> list[RunWarning]:
    """Return its warnings and those of its rounds, each kind once; few rounds its answer tells."""
    said = {"few-rounds", *(warning.kind for warning in one.warnings)}
    return [*one.warnings, *(warning for warning in warnings_of(records, LONGER) if warning.kind not in said)]


def _rests_on(one: Recommendation, records: Sequence[Record]) -> bool:
    """Return whether all records are of its finalists, and no newer than it."""
    keys = {finalist.key for finalist in one.finalists}
    return all(record.settings_key in keys and record.time[:19] <= one.time[:19] for record in records)


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
