"""Manifests, records and summaries → terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from iobench.base.text import printable, shortened
from iobench.base.units import MIB, bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import Prepared
from iobench.formats import Schema
from iobench.host.limits import Limit
from iobench.results.history import Past
from iobench.results.trend import Trend, speeds_text

if TYPE_CHECKING:  # they load torch
    from iobench.studies import Result


_VERIFIED = {
    "written": "yes",
    "present": "yes, was there",
    "repaired": "yes, was damaged",
    "added": "hashed where it lies",
}


def dataset_line(manifest: Manifest) -> str:
    """The dataset in one line: name, elements, samples and bytes."""
    schema = manifest.schema
    counts = f"{counted(schema.elements, 'element')}, {counted(schema.samples, 'sample')}"
    sample, whole = bytes_text(schema.sample_bytes), bytes_text(schema.logical_bytes)
    return f"dataset {manifest.name}: {counts} of {sample} ({_fields(schema)}), {whole}"


def prepared_table(rows: Sequence[Prepared]) -> Table:
    """What prepare wrote: format, options, stored bytes, ratio, times and speed, verified."""
    table = plain_table(
        "format", "options", "stored", "ratio", "write", "MiB/s", "read back", "verified", left=2
    )
    for row in rows:
        name, _, options = row.variant.partition(":")
        artifact, added = row.artifact, row.artifact.added
        lies = added is not None
        table.add_row(
            name,
            options or ("as it lies" if lies else "default"),
            bytes_text(artifact.stored_bytes),
            "" if added is not None and added.part else f"{row.ratio:.2f}",
            "" if lies else seconds_text(artifact.write_s),
            "" if lies else three_digits(row.write_bytes_per_s / MIB),
            seconds_text(artifact.verify_s),
            _VERIFIED[row.state],
        )
    return table


def studies_table(known: Sequence[Mapping[str, str]]) -> Table:
    """The studies, with what they ask and where they come from."""
    table = plain_table("study", "question", "source", left=3)
    table.columns[1].no_wrap = table.columns[2].no_wrap = False
    for one in known:
        table.add_row(one["name"], one["question"], one["source"])
    return table


def contenders_table(result: Result) -> Table:
    """The contenders of a study: how long a round of each took, and the medians of what else was noted."""
    titles, *rows = result.found.table()
    table = plain_table(*titles, left=1)
    for row in rows:
        table.add_row(*row)
    return table


def past_table(runs: Sequence[Past]) -> Table:
    """Earlier runs, one a line."""
    table = plain_table(
        "name", "when (UTC)", "dataset", "cases", "rounds", "device", "cache", "verdict", left=3
    )
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for run in runs:
        when = run.time[:16].replace("T", " ")
        dataset, cases, rounds = shortened(run.dataset), str(run.cases), str(run.rounds)
        table.add_row(run.name, when, dataset, cases, rounds, run.device, run.cache, run.brief)
    return table


def trends_table(found: Sequence[Trend]) -> Table:
    """Cases over several runs, one a line."""
    table = plain_table("dataset", "case", "runs", "first MiB/s", "last MiB/s", "from run to run", left=2)
    for trend in found:
        table.add_row(trend.dataset, trend.case, str(len(trend.points)), *speeds_text(trend), trend.course)
    table.columns[-1].justify = "left"
    return table


def limits_table(found: Sequence[Limit]) -> Table:
    """What the hardware can do."""
    table = plain_table("limit", "how", "MiB/s", "reads/s", left=2)
    for limit in found:
        reads = "" if limit.reads_per_s is None else rate_text(limit.reads_per_s)
        table.add_row(limit.name, limit.how, three_digits(limit.bytes_per_s / MIB), reads)
    return table


def kinds_table(kind: str, rows: Sequence[dict[str, Any]]) -> Table:
    """The formats, or the loaders, and whether they can be used here."""
    table = plain_table(kind, "what it is", "usable here", left=3)
    for text in table.columns[1:]:
        text.no_wrap = False
    for row in rows:
        table.add_row(row["name"], row["summary"], row["usable"])
    return table


def kind_options_table(kind: str, rows: Sequence[dict[str, Any]]) -> Table:
    """The options of the formats, or of the loaders, as they are typed behind their names."""
    table = plain_table(kind, "option", "default", "meaning", left=4)
    table.columns[-1].no_wrap = False
    for row in rows:
        for number, option in enumerate(row["options"]):
            name = "" if number else row["name"]
            table.add_row(name, option["name"], str(option["default"]), option["help"])
    return table


class _Plain(Table):
    """A table whose cells are text: neither rich nor the terminal obeys what is in them."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(printable(c)) if isinstance(c, str) else c for c in cells), **options)


def plain_table(*columns: str, left: int) -> Table:
    """An empty table without lines; so many columns are aligned to the left."""
    table = _Plain(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="left" if number < left else "right", no_wrap=True)
    return table


def _fields(schema: Schema) -> str:
    return ", ".join(f"{f.name} {f.dtype} {'x'.join(map(str, f.shape)) or 'scalar'}" for f in schema.fields)
