"""Machine and dataset of records as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iobench.base.text import listed
from iobench.base.units import bytes_text, counted
from iobench.results.record import Record

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
