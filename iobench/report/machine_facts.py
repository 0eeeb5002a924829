"""Machine and dataset of records as text, and the monitor's snapshots of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

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


_COLUMNS = {"I/O wait": "iowait", "disk queue": "disk_queue", "GPU": "gpu"}
_BYTES = ("disk_bytes_per_s", "gpu_memory_bytes")


def system(context: Context) -> list[Row]:
    """Return the monitor's snapshots in order of time, each with the case that was being measured.

    Snapshots without time or CPU figures are skipped: files are not checked for these.
    """
    snapshots = [
        (snapshot, record)
        for record in context.records
        for snapshot in record.snapshots or []
        if _number(snapshot, "time") is not None and _cores(snapshot)
    ]
    if not snapshots:
        return []
    labels = {case.key: case.label.short for case in context.cases}
    began = min(float(snapshot["time"]) for snapshot, _ in snapshots)
    return [
        {
            "seconds": snapshot["time"] - began,
            "case": labels[record.key] if _inside(snapshot, record) else BETWEEN,
            "CPU": statistics.fmean(_cores(snapshot)),
            "busiest core": max(_cores(snapshot)),
            **{column: _number(snapshot, name) for column, name in _COLUMNS.items()},
            **{name: _number(snapshot, name) for name in _BYTES},
        }
        for snapshot, record in sorted(snapshots, key=lambda pair: float(pair[0]["time"]))
    ]


def _cores(snapshot: Mapping[str, Any]) -> list[float]:
    cores = snapshot.get("cores")
    return [core for core in cores if isinstance(core, (int, float))] if isinstance(cores, list) else []


def _number(snapshot: Mapping[str, Any], name: str) -> float | None:
    value = snapshot.get(name)
    return value if isinstance(value, (int, float)) else None


def _inside(snapshot: Mapping[str, Any], record: Record) -> bool:
    ended = datetime.fromisoformat(record.time.replace("Z", "+00:00")).timestamp()
    return bool(0 <= ended - snapshot["time"] <= record.timing.epochs_s)
