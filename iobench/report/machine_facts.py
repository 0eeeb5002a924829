"""Machine and dataset of records as text, and the monitor's snapshots of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from iobench.base.snapshot import Snapshot
from iobench.base.text import listed
from iobench.base.units import bytes_text, counted
from iobench.report.rows import Row
from iobench.results.record import Record
from iobench.results.summary import Context

BETWEEN = "between rounds"
STAMPS = ("bytes", "mtime_ns")  # of a source, for change detection only


def described(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return each combination of machine and dataset."""
    combinations: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for about in map(_about, records):
        combinations.setdefault(tuple(about.items()), about)
    return list(combinations.values())


def _about(record: Record) -> dict[str, str]:
    machine, dataset, gpu = record.machine, record.dataset, record.machine.gpu
    fields = "; ".join(record.facets["fields"])
    sample_bytes = record.timing.logical_bytes / record.timing.samples
    size = bytes_text(sample_bytes * dataset.samples)
    driver = f", driver {gpu.driver}" if gpu and gpu.driver else ""
    memory = f", {bytes_text(gpu.memory_bytes)}" if gpu and gpu.memory_bytes else ""
    return {
        "dataset": f"{dataset.name}: {counted(dataset.samples, 'sample')} ({fields}), {size}",
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


def system(context: Context) -> list[Row]:
    """Return the monitor's snapshots in order of time, each with the case that was being measured.

    Those without a figure of any processor are skipped.
    """
    snapshots = [(one, record) for record in context.records for one in record.snapshots or () if one.cores]
    if not snapshots:
        return []
    labels = {case.key: case.label.short for case in context.cases}
    began = min(one.time for one, _ in snapshots)
    return [
        {
            "seconds": one.time - began,
            "case": labels[record.key] if _inside(one, record) else BETWEEN,
            "CPU": statistics.fmean(one.cores),
            "busiest core": max(one.cores),
            "I/O wait": one.iowait,
            "disk queue": one.disk_queue,
            "GPU": one.gpu,
            "disk_bytes_per_s": one.disk_bytes_per_s,
            "gpu_memory_bytes": one.gpu_memory_bytes,
        }
        for one, record in sorted(snapshots, key=lambda pair: pair[0].time)
    ]


def _inside(snapshot: Snapshot, record: Record) -> bool:
    ended = datetime.fromisoformat(record.time.replace("Z", "+00:00")).timestamp()
    return 0 <= ended - snapshot.time <= record.timing.epochs_s
