"""Blocks of a run: its answer, its tables as columns of text, and what their words mean."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from iobench.base.units import counted, percent_text, rate_text, seconds_text, three_digits
from iobench.results.cases import facet_of, text_of, trains, varying
from iobench.results.display import Block, Columns, table
from iobench.results.metrics import METRICS, Metric, epoch_share_text, mib_text
from iobench.results.summary import MAX_SHOWN, CaseSummary, Context, Summary
from iobench.results.verdict import answer

HEAD = "head of the epoch"
LEADER, NOT_COLD = "*", "°"  # marks of a rate
WORDS = {
    "native": "the format's own library",
    "stream": "StreamLoader",
    "dataloader": "one sample at a time",
    "gather": "rows copied from memory at random",
}


def blocks_of(summary: Summary, wide: bool = False, long: bool = False) -> Iterator[Block]:
    """Yield the answer, the table of cases and the meaning of its words.

    Several contexts share a matrix; with `long` or `wide` each case has a line, with `wide` all metrics. A
    context with many cases shows the fastest of each format and of each loader, unless `wide`.
    """
    contexts = summary.contexts
    matrix = len(contexts) > 1 and not (wide or long)
    yield Block("answer", [one.sentence for one in answer(summary)])
    if matrix:
        yield Block("table", columns=matrix_columns(contexts), heads=2)
    else:
        cases = summary.cases if wide else [case for context in contexts for case in context.shown]
        heads = identity_columns(cases)
        yield Block("table", columns=[*heads, *metric_columns(cases, wide)], heads=len(heads))
    yield Block("text", [words(summary, matrix)])
    for context in () if wide else contexts:
        if more := len(context.cases) - len(context.shown):
            title = f"{context.title}: " if context.title else ""
            yield Block("text", [f"{title}{counted(more, 'more case')}: show all with --wide"])
            yield Block("table", columns=_grid_columns(context))
    if profiled := [case for case in summary.cases if case.stages]:
        yield _stage_table(profiled)


def matrix_columns(contexts: Sequence[Context]) -> Columns:
    """Return a row for each format, loader and options, a column of rates for each context, and the reason.

    Leaders are marked, and cases that are not cold.
    """
    rows = choices(contexts)
    first = [next(iter(row.values())) for row in rows]
    titles = _context_heads(contexts)
    return [
        ("format", [case.label.format for case in first]),
        ("loader", [case.label.loader for case in first]),
        *((title, [_rate(row.get(number)) for row in rows]) for number, title in enumerate(titles)),
        ("reason", [_reasons(row.values()) for row in rows]),
    ]


def choices(contexts: Sequence[Context]) -> list[dict[int, CaseSummary]]:
    """Return the cases of each format, loader and options by the number of their context.

    The least mean relative time comes first. Of many, only those that some context shows.
    """
    by_choice: dict[str, dict[int, CaseSummary]] = {}
    for number, context in enumerate(contexts):
        for case in context.cases:
            by_choice.setdefault(case.choice, {})[number] = case
    rows = sorted(
        by_choice.values(),
        key=lambda row: statistics.geometric_mean(case.relative.median for case in row.values()),
    )
    if len(rows) <= MAX_SHOWN:
        return rows
    shown = {case.choice for context in contexts for case in context.shown}
    return [row for row in rows if next(iter(row.values())).choice in shown]


def words(summary: Summary, matrix: bool) -> str:
    """Return what the words of a table mean, as far as they occur in it."""
    cases = summary.cases
    names = dict.fromkeys([*(str(case.facets["loader"]) for case in cases), *(case.limit for case in cases)])
    parts = [f"samples/s; {LEADER} the fastest of its column is one of these (95 %)"] if matrix else []
    if matrix and not all(case.candidate for case in cases):
        parts.append(f"{NOT_COLD} not cold: opening read the data")
    parts += [f"{name}: {WORDS[name]}" for name in names if name in WORDS]
    if not matrix and any(case.limit for case in cases):
        parts.append("% of limit: share of what the hardware can do")
    return "; ".join(parts)


def identity_columns(cases: Sequence[CaseSummary]) -> Columns:
    """Return the columns that identify the cases: format, loader, and each facet that differs."""
    columns: Columns = [
        ("format", [case.label.format for case in cases]),
        ("loader", [case.label.loader for case in cases]),
    ]
    for name in varying([case.facets for case in cases]):
        facet, values = facet_of(name), [case.facets.get(name) for case in cases]
        columns.append((facet.title, [None if value is None else facet.cell(value) for value in values]))
    return columns


def metric_columns(cases: Sequence[CaseSummary], wide: bool = False) -> Columns:
    """Return the columns of the main metrics, or with `wide` of all, that any case has."""
    columns: Columns = []
    relevant = list[str]()
    if any(trains(case.facets) for case in cases):
        relevant += ["wait_share", "headroom", "loss"]
    if any(case.slowest for case in cases):
        relevant.append("straggler_wait_share")
    for metric in METRICS:
        if wide or metric.main or metric.name in relevant:
            columns += _metric_columns(metric, cases, wide)
        if not (wide and metric.name in NARROW):
            columns += [(title, list(map(text, cases))) for title, text in BESIDE.get(metric.name, ())]
    if any(case.unverified or case.verified for case in cases):
        columns.append(("verified", list(map(_verified, cases))))
    return [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]


def _metric_columns(metric: Metric, cases: Sequence[CaseSummary], wide: bool) -> Columns:
    values = [case.metrics.get(metric.name) for case in cases]
    texts = [None if value is None else metric.text(value.median) for value in values]
    if metric.name == "epoch_share":
        texts = [text and _part(text, case) for case, text in zip(cases, texts, strict=True)]
    columns: Columns = [(metric.title, texts)]
    if metric.interval and wide and any(values):
        columns.append(
            ("95 %", ["–" if value is None else value.interval_text(metric.text) for value in values])
        )
    return columns


def _part(text: str, case: CaseSummary) -> str:
    """Return the share of an epoch in a round, and where it begins or what all rounds cover together."""
    if case.head or case.covered is None or case.rounds == 1:
        return f"{text}, {HEAD}" if case.head else text
    return f"{text}, in all rounds {epoch_share_text(case.covered)}"


def _verified(case: CaseSummary) -> str:
    """Return whether the content was verified, or the samples of the part that was."""
    if case.unverified or case.verified is None:
        return "no" if case.unverified else "yes"
    return "{} of {}".format(*(rate_text(one) if one >= 1000 else str(one) for one in case.verified))


def _rank_rates(case: CaseSummary) -> str | None:
    rates = [case.value(f"rank_{which}bytes_per_s") for which in ("", "min_", "max_")]
    known = [mib_text(rate) for rate in rates if rate is not None]
    return "{} ({} – {})".format(*known) if len(known) == len(rates) else None


def _rate(case: CaseSummary | None) -> str | None:
    if case is None:
        return None
    mark = LEADER if case.leader else " " if case.candidate else NOT_COLD
    return f"{rate_text(case.samples_per_s.median)} {mark}"


def _reasons(cases: Iterable[CaseSummary]) -> str | None:
    """Return the reasons of a choice over its contexts, the most frequent first."""
    known = [case.reason for case in cases if case.reason]
    return ", ".join(dict.fromkeys(sorted(known, key=known.count, reverse=True))) or None


def _context_heads(contexts: Sequence[Context]) -> list[str]:
    """Return what distinguishes each context, one value on each line."""
    facets = [context.cases[0].facets for context in contexts]
    names = varying(facets)
    values = [[(name, one[name]) for name in names if one.get(name) is not None] for one in facets]
    return [
        "\n".join(value if isinstance(value, str) else text_of(name, value) for name, value in own)
        for own in values
    ]


def _grid_columns(context: Context) -> Columns:
    """Return the relative time of each format under each loader."""
    formats = list(dict.fromkeys(case.label.format for case in context.cases))
    columns: dict[str, list[str | None]] = {"relative time": [*formats]}
    for case in context.cases:
        cells = columns.setdefault(case.label.loader, [None] * len(formats))
        cells[formats.index(case.label.format)] = case.relative_text(lambda one: three_digits(one.median))
    return list(columns.items())


def _stage_table(cases: Sequence[CaseSummary]) -> Block:
    """Return the stages of each profiled case as fractions of opening and epochs together."""
    names = dict.fromkeys(name for case in cases for name, seconds in (case.stages or {}).items() if seconds)
    rows = list[list[str | None]]()
    for case in cases:
        stages, threads_s = case.stages or {}, case.reader_threads_s
        whole = sum(stages.values())
        shares = (f"{stages[name] / whole:.0%}" if stages.get(name) else None for name in names)
        rows.append([str(case.label), *shares, seconds_text(threads_s) if threads_s else None])
    return table(["case", *(name.replace("_", " ") for name in names), "reader threads"], rows)


Text = Callable[[CaseSummary], str | None]
NARROW = ("rank_max_bytes_per_s",)  # a column that stands for those of several metrics with --wide
BESIDE: dict[str, tuple[tuple[str, Text], ...]] = {  # columns behind that of a metric
    "bytes_per_s": (
        ("relative time (95 %)", lambda case: case.relative_text(lambda one: one.text("{:.2f}".format))),
    ),
    "limit_bytes_per_s": (
        ("limit", lambda case: case.limit),
        ("% of limit", lambda case: None if case.limit_share is None else percent_text(case.limit_share)),
    ),
    "rank_max_bytes_per_s": (("MiB/s per rank", _rank_rates),),
    "straggler_wait_share": (("slowest", lambda case: case.slowest.name if case.slowest else None),),
}
