"""Content of the page, its order, and its rendering as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from iobench.advise.recommendation import Recommendation
from iobench.base.errors import ReportError, is_panic
from iobench.base.text import listed, reason
from iobench.base.units import bytes_text, counted
from iobench.report.display import html_of
from iobench.report.figure import Figure, cell
from iobench.results import charts, verdict
from iobench.results.charts import heading
from iobench.results.columns import blocks_of, identity_columns, metric_columns
from iobench.results.display import Block, Chart, table
from iobench.results.record import Record
from iobench.results.run_warning import LONGER, RunWarning, warning_blocks
from iobench.results.scaling_curve import curves
from iobench.results.summary import Context, summarise
from iobench.results.trend import Trend
from iobench.results.warnings import warnings_of
from iobench.studies import StudyResult

STAMPS = ("bytes", "mtime_ns")  # of a source, for change detection only


@dataclass(frozen=True)
class Section:
    """Part of the page."""

    title: str  # empty for what needs none
    blocks: list[Block]
    folded: bool = False  # shown on demand


@dataclass(frozen=True)
class Page:
    """The report of some records: the answer, its chart and table, warnings, and what lies behind."""

    answer: list[str]  # the first is the title
    sections: list[Section]
    outcome: str = ""  # kind of the answer
    subject: list[str] = field(default_factory=list)  # dataset, machine and time

    @property
    def evidence(self) -> list[Block]:
        """The sentences below the title."""
        return [Block("text", self.answer[1:])]

    @property
    def charts(self) -> list[Chart]:
        """All charts, in the order of the page."""
        return [block.chart for part in self.sections for block in part.blocks if block.chart]


def page(
    records: Sequence[Record],
    trends: Sequence[Trend] = (),
    advice: Sequence[Recommendation] = (),
    studies: Sequence[StudyResult] = (),
) -> Page:
    """Return the page of these records, the context with the most cases first.

    `trends` over several runs are shown for the cases in these records. Of `advice`, the first that is about
    their dataset heads the page; what is about others follows the measurements, then the studies.
    """
    measured = {record.dataset.name for record in records}
    about = [one for one in advice if not records or {one.dataset} == measured]
    others = [one for one in advice if one not in about]
    head = about[0] if about else None
    final = head is not None and _rests_on(head, records)
    advised = [
        _advised(one, number, said=one is head, warned=one is head and (final or not records))
        for number, one in enumerate([*about, *others], 1)
    ]
    claims = [
        Section(f"Published claims: {one.name}{', quick sizes' if one.quick else ''}", list(one.blocks()))
        for one in studies
    ]
    if not records:
        answer = f"{head.findings[0].sentence}" if head else "Published claims, reproduced here"
        warnings = warning_blocks(_warnings(head, records) if head else [])
        return Page([answer], [Section("", [*warnings]), *advised, *claims])
    summary = summarise(records)
    contexts = summary.contexts
    machines = list({tuple(about.items()): about for about in map(_about, records)}.values())
    every_metric = [*identity_columns(summary.cases), *metric_columns(summary.cases, wide=True)]
    answered = [head.findings[0]] if head else verdict.answer(summary)
    _, *tables = blocks_of(summary)
    behind = [_section(one, number, len(contexts) > 1) for number, one in enumerate(contexts, 1)]
    spanning = [
        *charts.spanning(summary.cases, curves(records)),
        *charts.over_runs([one for one in trends if one.key in {case.key for case in summary.cases}]),
    ]
    return Page(
        answer=[one.sentence for one in answered],
        outcome=answered[0].kind,
        subject=_subject(records, machines),
        sections=[
            Section("", [Block("chart", chart=charts.overview(contexts))]),
            Section("Every case", tables),
            Section("", [*warning_blocks(_warnings(head, records) if head and final else summary.warnings)]),
            *advised[: len(about)],
            *behind[: charts.MAX_CONTEXTS],
            Section("Across settings", [Block("chart", chart=one) for one in spanning]),
            Section("Every metric", [Block("table", columns=every_metric)], folded=True),
            *advised[len(about) :],
            Section("Machine and dataset", [table(("", ""), one.items()) for one in machines]),
            *claims,
        ],
    )


def _section(context: Context, number: int, several: bool) -> Section:
    """Return what lies behind the answer about a context: all of its charts for the first one."""
    sentence = [Block("text", [verdict.verdict(context).sentence])] if several else []
    drawn = [charts.speeds(context, number)] if several else []
    drawn += charts.of_context(context, number) if number == 1 else ()
    title = context.title or "Behind these figures"
    return Section(title, [*sentence, *(Block("chart", chart=one) for one in drawn)])


def _advised(one: Recommendation, number: int, said: bool, warned: bool) -> Section:
    """Return a recommendation without its answer and warnings, where these head the page."""
    elsewhere = [*(["answer"] if said else []), *(["warning"] if warned else [])]
    blocks = [  # the name of a chart is that of a file
        replace(block, chart=replace(block.chart, name=f"recommended-{number}-{block.chart.name}"))
        if block.chart
        else block
        for block in one.blocks()
        if block.style not in elsewhere
    ]
    return Section(f"Recommendation for {one.dataset}", blocks)


def _warnings(one: Recommendation, records: Sequence[Record]) -> list[RunWarning]:
    """Return its warnings and those of its rounds, each kind once; few rounds its answer tells."""
    said = {"few-rounds", *(warning.kind for warning in one.warnings)}
    return [*one.warnings, *(warning for warning in warnings_of(records, LONGER) if warning.kind not in said)]


def _rests_on(one: Recommendation, records: Sequence[Record]) -> bool:
    """Return whether all records are of its finalists, and no newer than it."""
    keys = {finalist.key for finalist in one.finalists}
    return all(record.settings_key in keys and record.time[:19] <= one.time[:19] for record in records)


def _about(record: Record) -> dict[str, str]:
    machine, dataset, gpu = record.machine, record.dataset, record.machine.gpu
    fields = "; ".join(record.facets["fields"])
    sample_bytes, size = record.timing.logical_bytes / record.timing.samples, f"unknown size ({fields})"
    if dataset.samples is not None:
        total = bytes_text(sample_bytes * dataset.samples)
        size = f"{counted(dataset.samples, 'sample')} ({fields}), {total}"
    driver = f", driver {gpu.driver}" if gpu and gpu.driver else ""
    memory = f", {bytes_text(gpu.memory_bytes)}" if gpu and gpu.memory_bytes else ""
    return {
        "dataset": f"{dataset.name}: {size}",
        "source": _source(dataset.source),
        "CPU": f"{machine.cpu}, {counted(machine.usable_cores or 0, 'core')}",
        "memory": bytes_text(machine.memory_bytes),
        "disk": str(machine.disk),
        "GPU": f"{gpu.name}{memory}{driver}" if gpu else "none",
        "kernel": machine.kernel,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
    }


def _source(source: Mapping[str, Any]) -> str:
    """Return the origin of the data as text, without the fields for change detection."""
    shown = {name: value for name, value in source.items() if name not in STAMPS}
    return "; ".join(f"{name} {_origin_text(value)}" for name, value in shown.items()) or "unknown"


def _origin_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} ({_origin_text(inner)})" for name, inner in value.items())
    return listed([str(one) for one in value]) if isinstance(value, (list, tuple)) else str(value)


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


def render(page: Page) -> str:
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
        html_of=html_of,
        Figure=Figure,
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
