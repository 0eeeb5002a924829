"""Tables of datasets, runs, limits, formats and loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from iobench import formats
from iobench.base.finding import Finding
from iobench.base.text import is_numeric, listed, printable, shortened
from iobench.base.units import bytes_text, bytes_word, counted, rate_text, seconds_text, three_digits
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import Prepared
from iobench.formats import Schema
from iobench.formats.folders import NOT_READ
from iobench.host.hardware_limits import Limit
from iobench.results.compare import CaseComparison, CompareResult
from iobench.results.display import Columns
from iobench.results.history import PastRun
from iobench.results.metrics import mib_text
from iobench.results.stats import Estimate
from iobench.results.trend import Trend

if TYPE_CHECKING:  # they load torch
    from iobench.studies import StudyResult


_VERIFIED = {
    "written": "yes",
    "present": "yes, existing",
    "repaired": "yes, repaired",
    "added": "hashed in place",
}


def dataset_line(manifest: Manifest, newest_in: Path | None = None) -> str:
    """Describe a dataset in one line: name, elements, samples and bytes.

    `newest_in` is the folder in which it is the newest, if it was not named.
    """
    schema = manifest.schema
    counts = f"{counted(schema.elements, 'element')}, {counted(schema.samples, 'sample')}"
    sample, whole = bytes_text(schema.sample_bytes), bytes_text(schema.logical_bytes)
    source = manifest.source
    packed = {field: f"{names[0]} … {names[-1]}" for field, names in source.get("packed", {}).items()}
    fields = schema.describe({**source.get("renamed", {}), **packed})
    newest = f" (the newest in {newest_in})" if newest_in else ""
    return f"dataset {manifest.name}: {counts} of {sample} ({fields}), {whole}{newest}"


def dataset_values(manifest: Manifest, rows: Sequence[Prepared], notes: Sequence[Finding]) -> dict[str, Any]:
    """Return a dataset, its artifacts and the notes about its source, for JSON."""
    schema = manifest.schema
    return {
        "name": manifest.name,
        "address": manifest.url or str(manifest.root),
        "samples": schema.samples,
        "fields": [field.typed for field in schema.fields],
        "logical_bytes": schema.logical_bytes,
        "artifacts": [
            {"variant": row.variant, "state": row.state, "stored_bytes": row.artifact.stored_bytes}
            for row in rows
        ],
        "read": {"files": files_read(manifest, notes), "complete": complete(notes)},
        "notes": list(map(asdict, notes)),
    }


def files_read(manifest: Manifest, notes: Sequence[Finding]) -> int | None:
    """Return how many files of a source were read; None for generated data."""
    added = next(iter(manifest.added.values()), None)
    files = added.stamp.files if added else manifest.source.get("files")
    left = sum(int(one.values.get("not_read", 0)) for one in notes if one.kind == NOT_READ)
    return None if files is None else int(files) - left


def complete(notes: Sequence[Finding]) -> bool:
    """Return whether no note says that something was not read."""
    return not any(one.kind in (NOT_READ, "coverage", "damaged-skipped") for one in notes)


def prepared_table(rows: Sequence[Prepared]) -> Table:
    """Return the artifacts that prepare wrote or add registered, one per row."""
    table = plain_table(
        "format", "options", "stored", "ratio", "write", "MiB/s", "read back", "verified", left=2
    )
    for row in rows:
        name, _, options = row.variant.partition(":")
        artifact, added = row.artifact, row.artifact.added
        in_place = added is not None
        table.add_row(
            name,
            options or ("existing" if in_place else "default"),
            bytes_text(artifact.stored_bytes),
            "" if added is not None and added.partial else f"{row.ratio:.2f}",
            "" if in_place else seconds_text(artifact.write_s),
            "" if in_place else mib_text(row.write_bytes_per_s),
            seconds_text(artifact.verify_s),
            _VERIFIED[row.state],
        )
    return table


def renamed_lines(rows: Sequence[Prepared], schema: Schema) -> list[str]:
    """Return a line for each artifact whose files have other names of fields."""
    every = ((row.variant, formats.parse(row.variant).renamed(schema)) for row in rows)
    return [
        f"{variant} stores {listed([f'{shortened(field, 30)} as {own}' for field, own in renamed.items()])}"
        for variant, renamed in every
        if renamed
    ]


def studies_table(known: Sequence[Mapping[str, str]]) -> Table:
    """Return the studies with their questions and sources."""
    table = plain_table("study", "question", "source", left=3)
    table.columns[1].no_wrap = table.columns[2].no_wrap = False
    for one in known:
        table.add_row(one["name"], one["question"], one["source"])
    return table


def contenders_table(result: StudyResult) -> Table:
    """Return the contenders of a study: median seconds per round and the other measured figures."""
    titles, *rows = result.measurements.table()
    table = plain_table(*titles, left=1)
    for row in rows:
        table.add_row(*row)
    return table


def past_table(runs: Sequence[PastRun]) -> Table:
    """Return past runs, one per row."""
    table = plain_table(
        "name", "when (UTC)", "dataset", "cases", "rounds", "device", "cache", "verdict", left=3
    )
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for run in runs:
        when = run.time[:16].replace("T", " ")
        dataset, cases, rounds = shortened(run.dataset), str(run.cases), str(run.rounds)
        table.add_row(run.name, when, dataset, cases, rounds, run.device, run.cache, run.brief)
    return table


def trends_table(trends: Sequence[Trend]) -> Table:
    """Return cases over several runs, one per row."""
    table = plain_table("dataset", "case", "runs", "first MiB/s", "last MiB/s", "trend", left=2)
    for trend in trends:
        speeds = [mib_text(trend.points[place].bytes_per_s.median) for place in (0, -1)]
        table.add_row(trend.dataset, trend.case, str(len(trend.points)), *speeds, trend.sparkline)
    table.columns[-1].justify = "left"
    return table


def limits_table(limits: Sequence[Limit]) -> Table:
    """Return the bandwidth limits of the hardware."""
    table = plain_table("limit", "measured by", "MiB/s", "reads/s", left=2)
    for limit in limits:
        reads = "" if limit.reads_per_s is None else rate_text(limit.reads_per_s)
        table.add_row(limit.name, limit.how, mib_text(limit.bytes_per_s), reads)
    return table


def kinds_table(kind: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return the formats or loaders, and whether each can be used here."""
    table = plain_table(kind, "description", "usable", left=3)
    for text in table.columns[1:]:
        text.no_wrap = False
    for row in rows:
        table.add_row(row["name"], row["summary"], row["usable"])
    return table


def kind_options_table(kind: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return the options of the formats or loaders, as they are typed after the name."""
    table = plain_table(kind, "option", "default", "meaning", left=4)
    table.columns[-1].no_wrap = False
    for row in rows:
        for number, option in enumerate(row["options"]):
            name = "" if number else row["name"]
            table.add_row(name, option["name"], _default(option), _meaning(option, kind))
    return table


def _default(option: Mapping[str, Any]) -> str:
    """Return the default of an option: bytes with a unit, `auto` where its meaning says what is chosen."""
    name, value = option["name"], option["default"]
    if name.endswith("_bytes") and value and value != "none":
        typed = bytes_word(value)
        digits = typed.rstrip("BKMGTik")
        return f"{digits} {typed[len(digits) :]}"
    automatic = "by default " in option["help"] and "by default none" not in option["help"]
    return "auto" if value == "none" and automatic else str(value)


def _meaning(option: Mapping[str, Any], kind: str) -> str:
    """Return the help of an option; that of a format names its choices, too."""
    if kind != "format" or not option["choices"]:
        return str(option["help"])
    return f"{option['help']}: {', '.join(map(str, option['choices']))}"


def plain_text(text: str) -> Text:
    """Return a text in which markup and escape codes have no effect."""
    return Text(printable(text))


class _Plain(Table):
    """A table of plain text."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(plain_text(one) if isinstance(one, str) else one for one in cells), **options)


def plain_table(*columns: str, left: int) -> Table:
    """Return an empty table without rules, its first `left` columns aligned to the left.

    A title may have several lines.
    """
    table = _Plain(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, name in enumerate(columns):
        title = Text("\n").join(map(plain_text, name.split("\n")))
        table.add_column(title, justify="left" if number < left else "right", no_wrap=True)
    return table


def columns_table(columns: Columns, left: int = 1) -> Table:
    """Return a table of columns, the first `left` and a last one of words aligned to the left."""
    table = plain_table(*(title for title, _ in columns), left=left)
    table.show_header = any(title for title, _ in columns)
    if not is_numeric(columns[-1][1]):
        table.columns[-1].justify = "left"
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(cell or "" for cell in row))
    return table


TITLES = ["case", "new", "base", "95 %", "new", "95 %", "ratio", "95 %", "verdict", "machine", "differs"]


def compared_table(result: CompareResult) -> Table:
    """Return one row per case and newer run."""
    table = plain_table(*_titles(result), left=2)
    for column in table.columns[TITLES.index("verdict") :]:
        column.justify = "left"
    table.columns[TITLES.index("differs")].no_wrap = False
    for cells in _cells(result):
        table.add_row(*cells)
    return table


def compared_markdown(result: CompareResult) -> str:
    """Return the same table in Markdown, with its explanation below."""
    lines = [_titles(result), ["---"] * 2 + ["---:"] * 6 + ["---"] * 3, *_cells(result)]
    escaped = [[printable(cell).replace("|", "\\|") for cell in cells] for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped) + f"\n\n{compared_line(result)}"


def _titles(result: CompareResult) -> list[str]:
    unit = "samples/s" if result.in_turns else "MiB/s"
    return [f"{title} {unit}" if place in (2, 4) else title for place, title in enumerate(TITLES)]


def compared_line(result: CompareResult) -> str:
    """Return the explanation of a comparison's columns and intervals."""
    corrected = f"; {result.correction}" if result.correction else ""
    least = f"differences below {result.min_difference:.0%} do not count"
    machine = "Machine: change of its own limit, of its CPU speed, and of the background CPU"
    return f"ratio = new / {result.base}; {least}{corrected}. {machine}. {result.basis_note}"


def _machine(line: CaseComparison) -> str:
    """Return how the machine changed between the runs, and the ratio without regard to that."""
    machine, texts = line.machine, list[str]()
    ratio, shares = machine.limit_ratio, machine.background_cpu
    if ratio is not None:
        texts.append(f"{machine.limit} {ratio.median:.2f} ×")
    if machine.cpu_speed_ratio is not None:
        texts.append(f"CPU speed {machine.cpu_speed_ratio:.2f} ×")
    if None not in shares:
        texts.append(f"background CPU {shares[0]:.0%} → {shares[1]:.0%}")
    if line.plain_ratio is not None:
        texts.append(f"ratio of quiet rounds; of all rounds {line.plain_ratio:.3f}")
    return ", ".join(texts)


def _cells(result: CompareResult) -> list[list[str]]:
    return [
        [
            line.case,
            line.new,
            *_estimate_cells(line.base_rate, three_digits if result.in_turns else mib_text),
            *_estimate_cells(line.new_rate, three_digits if result.in_turns else mib_text),
            *_estimate_cells(line.comparison.ratio, "{:.3f}".format),
            line.verdict,
            _machine(line),
            _differences(line),
        ]
        for line in result.cases
    ]


def _differences(line: CaseComparison) -> str:
    forced = (f"forced: {one.sentence}" for one in line.mismatches)
    return "; ".join([*forced, *(one.sentence for one in line.settings)])


def _estimate_cells(estimate: Estimate, form: Callable[[float], str]) -> tuple[str, str]:
    return form(estimate.median), estimate.interval_text(form)
