"""The machine and the data of records in words, and what the monitor saw of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from iobench.base.units import bytes_text, counted
from iobench.report.rows import Row
from iobench.results.cases import by_case, facets_of, key_of, labels_of, text_of
from iobench.results.record import Record

BETWEEN = "between rounds"
STAMPS = ("bytes", "mtime_ns")  # by which a source is known again


def described(records: Sequence[Record]) -> list[dict[str, str]]:
    """Each machine with each dataset."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for rounds in by_case(records).values():
        for record in rounds:
            about = _about(record)
            found.setdefault(tuple(about.items()), about)
    return list(found.values())


def _about(record: Record) -> dict[str, str]:
    machine, dataset, gpu = record.machine, record.dataset, record.machine.gpu
    fields = text_of("fields", facets_of(record)["fields"])
    sample_bytes = record.timing.logical_bytes / record.timing.samples
    size = bytes_text(sample_bytes * dataset.samples)
    disk = f"{machine.disk.file_system} on {machine.disk.model or machine.disk.device}"
    driver = f", driver {gpu.driver}" if gpu and gpu.driver else ""
    memory = f", {bytes_text(gpu.memory_bytes)}" if gpu and gpu.memory_bytes else ""
    return {
        "dataset": f"{dataset.name}: {counted(dataset.samples, 'sample')} ({fields}), {size}",
        "source": _source(dataset.source),
        "processor": f"{machine.cpu}, {counted(machine.usable_cores or 0, 'core')}",
        "memory": bytes_text(machine.memory_bytes),
        "disk": f"{disk}, read-ahead {machine.disk.read_ahead_kib} KiB",
        "GPU": f"{gpu.name}{memory}{driver}" if gpu else "none",
        "kernel": machine.kernel,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
    }


def _source(source: Mapping[str, Any]) -> str:
    """Where the data came from, for a reader: without what only a program compares."""
    shown = {name: value for name, value in source.items() if name not in STAMPS}
    said = [
        f"{name} {', '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
        for name, value in shown.items()
    ]
    return "; ".join(said) or "unknown"


_SEEN = {"waiting for disk": "iowait", "disk queue": "disk_queue", "GPU": "gpu"}
_BYTES = ("disk_bytes_per_s", "gpu_memory_bytes")


def system(records: Sequence[Record]) -> list[Row]:
    """What the monitor saw, second by second, and during which case's round.

    A snapshot without time or processors is left out: nothing has checked what a file holds there.
    """
    snapshots = [
        (snapshot, record)
        for record in records
        for snapshot in record.snapshots or []
        if _number(snapshot, "time") is not None and _cores(snapshot)
    ]
    if not snapshots:
        return []
    labels = labels_of(records)
    began = min(float(snapshot["time"]) for snapshot, _ in snapshots)
    return [
        {
            "seconds": snapshot["time"] - began,
            "case": str(labels[key_of(facets_of(record))]) if _inside(snapshot, record) else BETWEEN,
            "processors": statistics.fmean(_cores(snapshot)),
            "busiest core": max(_cores(snapshot)),
            **{column: _number(snapshot, name) for column, name in _SEEN.items()},
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
