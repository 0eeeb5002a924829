"""Manifests, records and summaries → terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from formats import Schema
from iobench.limits import Limit
from iobench.manifest import Manifest
from iobench.prepare import Prepared
from iobench.record import Record
from iobench.stats import Estimate
from iobench.summary import ArmSummary, Summary
from iobench.units import bytes_text, rate_text, seconds_text, three_digits

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
    table = _table("format", "options", "stored", "ratio", "write", "MiB/s", "read back", "verified", left=2)
    for row in rows:
        name, _, options = row.variant.partition(":")
        artifact = row.artifact
        table.add_row(
            name,
            options or "default",
            bytes_text(artifact.stored_bytes),
            f"{row.ratio:.2f}",
            seconds_text(artifact.write_s),
            three_digits(row.logical_bytes / artifact.write_s / MIB),
            seconds_text(artifact.verify_s),
            {"written": "yes", "present": "yes, was there", "repaired": "yes, was damaged"}[row.state],
        )
    return table


def round_line(record: Record, rounds: int) -> str:
    """One round in one line."""
    speed = f"{three_digits(record.bytes_per_s / MIB)} MiB/s, {rate_text(record.samples_per_s)} samples/s"
    return f"round {record.round}/{rounds}  {record.arm['label']}: {speed}, {seconds_text(record.epoch_s)}"


def run_lines(records: Sequence[Record], rounds: int) -> list[str]:
    """What all arms of a run have in common, in two lines."""
    first = records[0]
    arm, cache, machine = first.arm, first.cache, first.machine
    pinned = f", {'pinned' if arm['pin_memory'] else 'pageable'} memory" if first.device != "cpu" else ""
    gpu = f", {machine['gpu']['name']}" if machine["gpu"] else ""
    disk = machine["disk"]
    drive = f"{disk['file_system']} on {disk['model'] or disk['device']}"
    return [
        f"{first.device}, {cache['mode']} cache ({cache['method']}), batch {arm['batch_size']}, "
        f"{arm['order']} order, {rounds} round{'s' * (rounds != 1)}, model {first.model}{pinned}",
        f"{machine['cpu']}, {machine['usable_cores']} cores, {bytes_text(machine['memory_bytes'])}{gpu}; "
        f"{drive}, read-ahead {disk['read_ahead_kib']} KiB",
    ]


def run_tables(summary: Summary, width: int) -> list[Table]:
    """One line per arm, fastest first, in as many tables as the width asks for."""
    tables: list[Table] = []
    columns = [(title, [show(arm) for arm in summary.arms]) for title, show in _COLUMNS]
    columns = [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]
    while columns:
        count = len(columns)
        while count > 1 and _width(_run_table(summary, columns[:count])) > width:
            count -= 1
        tables.append(_run_table(summary, columns[:count]))
        columns = columns[count:]
    return tables


_Column = tuple[str, Callable[[ArmSummary], str | None]]  # no column where every arm has None

_COLUMNS: list[_Column] = [
    ("samples/s", lambda arm: rate_text(arm.samples_per_s.median)),
    ("95 %", lambda arm: _interval(arm.samples_per_s)),
    ("MiB/s", lambda arm: three_digits(arm.bytes_per_s.median / MIB)),
    ("95 %", lambda arm: _interval(arm.bytes_per_s, MIB)),
    ("limit", lambda arm: _limit(arm)),
    ("reached", lambda arm: None if arm.limit_share is None else f"{arm.limit_share:.0%}"),
    ("shuffled", lambda arm: None if arm.shuffledness is None else f"{arm.shuffledness:.0%}"),
    ("waiting", lambda arm: None if arm.loss is None else f"{arm.wait_share:.0%}"),
    ("loss", lambda arm: None if arm.loss is None else f"{arm.loss:.9g}"),
    ("open", lambda arm: seconds_text(arm.open_s)),
    ("first batch", lambda arm: seconds_text(arm.first_batch_s)),
    ("wait p50", lambda arm: seconds_text(arm.wait_p50_s)),
    ("p99", lambda arm: seconds_text(arm.wait_p99_s)),
    ("CPU s/GiB", lambda arm: f"{arm.cpu_s_per_gib:.2f}"),
    ("disk", lambda arm: _optional_bytes(arm.disk_bytes)),
    ("× data", lambda arm: None if arm.read_amplification is None else f"{arm.read_amplification:.2f}"),
    ("memory", lambda arm: _optional_bytes(arm.memory_bytes)),
    ("GPU alloc", lambda arm: _optional_bytes(arm.gpu_allocated_bytes)),
    ("reserved", lambda arm: _optional_bytes(arm.gpu_reserved_bytes)),
]


def _run_table(summary: Summary, columns: Sequence[tuple[str, list[str | None]]]) -> Table:
    table = _table("format", "loader", *(title for title, _ in columns), left=2)
    for number, arm in enumerate(summary.arms):
        variant, _, loader = arm.label.partition(" · ")
        table.add_row(variant, loader, *(cells[number] or "" for _, cells in columns))
    return table


def limits_table(found: Sequence[Limit]) -> Table:
    """What the hardware can do."""
    table = _table("limit", "how", "MiB/s", "reads/s", left=2)
    for limit in found:
        reads = "" if limit.reads_per_s is None else rate_text(limit.reads_per_s)
        table.add_row(limit.name, limit.how, three_digits(limit.bytes_per_s / MIB), reads)
    return table


def formats_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The formats, whether they can be used here, and their options."""
    table = _table("format", "what it is", "usable here", "option", "default", "meaning", left=6)
    for text in (1, 2, 5):
        table.columns[text].no_wrap = False
    for row in rows:
        options = row["options"] or [{"name": "", "default": "", "help": ""}]
        for number, option in enumerate(options):
            head = [row["name"], row["summary"], row["usable"]] if number == 0 else ["", "", ""]
            table.add_row(*head, option["name"], str(option["default"]), option["help"])
    return table


def _table(*columns: str, left: int) -> Table:
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


def _limit(arm: ArmSummary) -> str | None:
    if arm.limit is None or arm.limit_bytes_per_s is None:
        return None
    return f"{arm.limit} {three_digits(arm.limit_bytes_per_s / MIB)}"


def _optional_bytes(count: float | None) -> str | None:
    return None if count is None else bytes_text(count)
