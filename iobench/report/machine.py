"""The machine and the data of records in words, and what the monitor saw of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from iobench.report.rows import Row
from iobench.results.cases import by_case, facets_of, key_of, labels_of, text_of
from iobench.results.record import Record
from iobench.units import bytes_text

BETWEEN = "between rounds"


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
        "dataset": f"{dataset.name}: {dataset.samples:,} samples ({fields}), {size}",
        "source": ", ".join(f"{name} {value}" for name, value in dataset.source.items()) or "unknown",
        "processor": f"{machine.cpu}, {machine.usable_cores} cores",
        "memory": bytes_text(machine.memory_bytes),
        "disk": f"{disk}, read-ahead {machine.disk.read_ahead_kib} KiB",
        "GPU": f"{gpu.name}{memory}{driver}" if gpu else "none",
        "kernel": machine.kernel,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
    }


def system(records: Sequence[Record]) -> list[Row]:
    """What the monitor saw, second by second, and during which case's round."""
    snapshots = [(snapshot, record) for record in records for snapshot in record.snapshots or []]
    if not snapshots:
        return []
    labels = labels_of(records)
    began = min(float(snapshot["time"]) for snapshot, _ in snapshots)
    return [
        {
            "seconds": snapshot["time"] - began,
            "case": str(labels[key_of(facets_of(record))]) if _inside(snapshot, record) else BETWEEN,
            "processors": statistics.fmean(snapshot["cores"]),
            "busiest core": max(snapshot["cores"]),
            "waiting for disk": snapshot["iowait"],
            "disk_bytes_per_s": snapshot["disk_bytes_per_s"],
            "disk queue": snapshot["disk_queue"],
            "GPU": snapshot["gpu"],
            "gpu_memory_bytes": snapshot["gpu_memory_bytes"],
        }
        for snapshot, record in sorted(snapshots, key=lambda pair: float(pair[0]["time"]))
    ]


def _inside(snapshot: Mapping[str, Any], record: Record) -> bool:
    ended = datetime.fromisoformat(record.time.replace("Z", "+00:00")).timestamp()
    return bool(0 <= ended - snapshot["time"] <= record.timing.epochs_s)
