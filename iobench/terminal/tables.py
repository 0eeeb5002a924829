"""Manifests, records and summaries → terminal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import Prepared
from iobench.formats import Schema
from iobench.host.limits import Limit
from iobench.loading.stages import STAGES
from iobench.results.compare import Compared
from iobench.results.history import Past
from iobench.results.record import Record
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Summary
from iobench.units import bytes_text, rate_text, seconds_text, three_digits

if TYPE_CHECKING:  # they load torch
    from iobench.studies import Result

MIB = 2**20


def dataset_line(manifest: Manifest) -> str:
    """The dataset in one line: name, elements, samples and bytes."""
    schema = manifest.schema
    return (
        f"dataset {manifest.name}: {schema.elements:,} elements, {schema.samples:,} samples "
        f"of {bytes_text(schema.sample_bytes)} ({_fields(schema)}), {bytes_text(schema.logical_bytes)}"
    )


def prepared_table(rows: Sequence[Prepared]) -> Table:
    """What prepare wrote: format, options, stored bytes, ratio, times and speed, verified."""
    table = plain_table(
        "format", "options", "stored", "ratio", "write", "MiB/s", "read back", "verified", left=2
    )
    for row in rows:
        name, _, options = row.variant.partition(":")
        artifact = row.artifact
        table.add_row(
            name,
            options or "default",
            bytes_text(artifact.stored_bytes),
            f"{row.ratio:.2f}",
            seconds_text(artifact.write_s),
            three_digits(row.write_bytes_per_s / MIB),
            seconds_text(artifact.verify_s),
            {"written": "yes", "present": "yes, was there", "repaired": "yes, was damaged"}[row.state],
        )
    return table


def round_line(record: Record, rounds: int | None) -> str:
    """One round in one line."""
    speed = f"{three_digits(record.bytes_per_s / MIB)} MiB/s, {rate_text(record.samples_per_s)} samples/s"
    number = f"{record.round}/{rounds}" if rounds else record.round
    return f"round {number}  {record.case['label']}: {speed}, {seconds_text(record.epoch_s)}"


def live_table(rates: Mapping[str, Sequence[float]]) -> Table:
    """The cases of a run that goes on, the fastest first: MiB/s of the last round, and the median."""
    table = plain_table("format", "loader", "rounds", "last MiB/s", "median", left=2)
    for label in sorted(rates, key=lambda label: statistics.median(rates[label]), reverse=True):
        variant, _, loader = label.partition(" · ")
        last, middle = rates[label][-1], statistics.median(rates[label])
        table.add_row(variant, loader, str(len(rates[label])), three_digits(last), three_digits(middle))
    return table


def run_lines(records: Sequence[Record]) -> list[str]:
    """What all cases of a run have in common, in two lines."""
    first, rounds = records[0], max(record.round for record in records)
    case, cache, machine = first.case, first.cache, first.machine
    pinned = f", {'pinned' if case['pin_memory'] else 'pageable'} memory" if first.device != "cpu" else ""
    gpu = f", {machine['gpu']['name']}" if machine["gpu"] else ""
    disk = machine["disk"]
    drive = f"{disk['file_system']} on {disk['model'] or disk['device']}"
    return [
        f"{first.device}, {cache['mode']} cache ({cache['method']}), batch {case['batch_size']}, "
        f"{case['order']} order, {rounds} round{'s' * (rounds != 1)}, model {first.model}{pinned}",
        f"{machine['cpu']}, {machine['usable_cores']} cores, {bytes_text(machine['memory_bytes'])}{gpu}; "
        f"{drive}, read-ahead {disk['read_ahead_kib']} KiB",
    ]


def run_tables(summary: Summary, width: int) -> list[Table]:
    """One line per case, fastest first, in as many tables as the width asks for."""
    tables: list[Table] = []
    columns = [(title, [show(case) for case in summary.cases]) for title, show in _COLUMNS]
    columns = [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]
    while columns:
        count = len(columns)
        while count > 1 and _width(_run_table(summary, columns[:count])) > width:
            count -= 1
        tables.append(_run_table(summary, columns[:count]))
        columns = columns[count:]
    return tables


_Column = tuple[str, Callable[[CaseSummary], str | None]]  # no column where every case has None

_COLUMNS: list[_Column] = [
    ("samples/s", lambda case: rate_text(case.samples_per_s.median)),
    ("95 %", lambda case: _interval(case.samples_per_s)),
    ("MiB/s", lambda case: three_digits(case.bytes_per_s.median / MIB)),
    ("95 %", lambda case: _interval(case.bytes_per_s, MIB)),
    ("limit", lambda case: _limit(case)),
    ("reached", lambda case: None if case.limit_share is None else f"{case.limit_share:.0%}"),
    ("shuffled", lambda case: None if case.shuffledness is None else f"{case.shuffledness:.0%}"),
    ("waiting", lambda case: None if case.loss is None else f"{case.wait_share:.0%}"),
    ("loss", lambda case: None if case.loss is None else f"{case.loss:.9g}"),
    ("open", lambda case: seconds_text(case.open_s)),
    ("first batch", lambda case: seconds_text(case.first_batch_s)),
    ("wait p50", lambda case: seconds_text(case.wait_p50_s)),
    ("p99", lambda case: seconds_text(case.wait_p99_s)),
    ("CPU s/GiB", lambda case: f"{case.cpu_s_per_gib:.2f}"),
    ("disk", lambda case: _optional_bytes(case.disk_bytes)),
    ("× data", lambda case: None if case.read_amplification is None else f"{case.read_amplification:.2f}"),
    ("memory", lambda case: _optional_bytes(case.memory_bytes)),
    ("GPU alloc", lambda case: _optional_bytes(case.gpu_allocated_bytes)),
    ("reserved", lambda case: _optional_bytes(case.gpu_reserved_bytes)),
]


def _run_table(summary: Summary, columns: Sequence[tuple[str, list[str | None]]]) -> Table:
    table = plain_table("format", "loader", *(title for title, _ in columns), left=2)
    for number, case in enumerate(summary.cases):
        variant, _, loader = case.label.partition(" · ")
        table.add_row(variant, loader, *(cells[number] or "" for _, cells in columns))
    return table


def stages_tables(summary: Summary) -> list[Table]:
    """Where the time went, one line per case, stages as parts of opening and epoch together; or none."""
    cases = [case for case in summary.cases if case.stages]
    if not cases:
        return []
    used = [stage for stage in STAGES if any(case.stages and case.stages[stage] for case in cases)]
    titles = [stage.replace("_", " ") for stage in used]
    table = plain_table("format", "loader", *titles, "threads read", "profiling", left=2)
    for case in cases:
        stages = case.stages or {}
        whole = sum(stages.values())
        variant, _, loader = case.label.partition(" · ")
        beside = seconds_text(case.beside_s) if case.beside_s else ""
        parts = [f"{stages[stage] / whole:.0%}" if stages[stage] else "" for stage in used]
        table.add_row(variant, loader, *parts, beside, f"{case.spans_share or 0:.2%}")
    return [table]


def compared_table(found: Compared) -> Table:
    """One line per case and newer run."""
    table = plain_table(*_COMPARED, left=2)
    for cells in _compared_cells(found):
        table.add_row(*cells)
    return table


def compared_markdown(found: Compared) -> str:
    """The same for a page that understands Markdown."""
    lines = [_COMPARED, ["---"] * 2 + ["---:"] * 6 + ["---"] * 2, *_compared_cells(found)]
    escaped = [[cell.replace("|", "\\|") for cell in cells] for cells in lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped) + f"\n\n{compared_line(found)}"


def compared_line(found: Compared) -> str:
    """What the verdicts of a comparison mean."""
    corrected = f"; {found.correction}" if found.correction else ""
    least = f"below {found.smallest:.0%} nothing is called a difference"
    return f"Ratios are new over {found.base}; {least}{corrected}."


_COMPARED = ["case", "new", "base MiB/s", "95 %", "new MiB/s", "95 %", "ratio", "95 %", "verdict", "differs"]


def _compared_cells(found: Compared) -> list[list[str]]:
    return [
        [
            line.case,
            line.new,
            *_estimate_cells(line.base_bytes_per_s),
            *_estimate_cells(line.new_bytes_per_s),
            f"{line.comparison.ratio.median:.3f}",
            _ratio_interval(line.comparison.ratio),
            line.comparison.outcome,
            "; ".join([*(f"forced: {text}" for text in line.forced), *line.settings]),
        ]
        for line in found.lines
    ]


def _estimate_cells(estimate: Estimate) -> tuple[str, str]:
    return three_digits(estimate.median / MIB), _interval(estimate, MIB)


def _ratio_interval(ratio: Estimate) -> str:
    return "–" if ratio.low is None else f"{ratio.low:.3f} – {ratio.high:.3f}"


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
        table.add_row(
            run.name, when, run.dataset, str(run.cases), str(run.rounds), run.device, run.cache, run.verdict
        )
    return table


def limits_table(found: Sequence[Limit]) -> Table:
    """What the hardware can do."""
    table = plain_table("limit", "how", "MiB/s", "reads/s", left=2)
    for limit in found:
        reads = "" if limit.reads_per_s is None else rate_text(limit.reads_per_s)
        table.add_row(limit.name, limit.how, three_digits(limit.bytes_per_s / MIB), reads)
    return table


def formats_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The formats, whether they can be used here, and their options."""
    table = plain_table("format", "what it is", "usable here", "option", "default", "meaning", left=6)
    for text in (1, 2, 5):
        table.columns[text].no_wrap = False
    for row in rows:
        options = row["options"] or [{"name": "", "default": "", "help": ""}]
        for number, option in enumerate(options):
            head = [row["name"], row["summary"], row["usable"]] if number == 0 else ["", "", ""]
            table.add_row(*head, option["name"], str(option["default"]), option["help"])
    return table


def plain_table(*columns: str, left: int) -> Table:
    """An empty table without lines; so many columns are aligned to the left."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if number < left else "right", no_wrap=True)
    return table


def _width(table: Table) -> int:
    return Console(width=1000).measure(table).maximum


def _fields(schema: Schema) -> str:
    return ", ".join(f"{f.name} {f.dtype} {'x'.join(map(str, f.shape)) or 'scalar'}" for f in schema.fields)


def _interval(estimate: Estimate, unit: int = 1) -> str:
    if estimate.low is None or estimate.high is None:
        return "–"
    show = three_digits if unit > 1 else rate_text
    return f"{show(estimate.low / unit)} – {show(estimate.high / unit)}"


def _limit(case: CaseSummary) -> str | None:
    if case.limit is None or case.limit_bytes_per_s is None:
        return None
    return f"{case.limit} {three_digits(case.limit_bytes_per_s / MIB)}"


def _optional_bytes(count: float | None) -> str | None:
    return None if count is None else bytes_text(count)
