"""Groups of records that may be compared with each other, and what sets the groups apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.results.record import Record
from iobench.results.summary import Summary, summarise
from iobench.units import bytes_text

_Facet = Callable[[Record], str]

_FACETS: dict[str, _Facet] = {
    "machine": lambda r: f"{r.machine['cpu']}, {r.machine.get('host', '')}",
    "dataset": lambda r: f"{r.dataset['name']}",
    "data": lambda r: str(r.dataset.get("content")),
    "device": lambda r: r.device,
    "cache": lambda r: f"{r.cache['mode']} cache",
    "order": lambda r: f"{r.case.get('order')} order",
    "batch_size": lambda r: f"batch {r.case.get('batch_size')}",
    "model": lambda r: f"model {r.model}",
}
_UNNAMED = ("data",)  # a checksum tells nobody anything


@dataclass(frozen=True)
class Context:
    """Records that were measured alike, in which only the cases differ."""

    facets: dict[str, str]
    records: list[Record]
    summary: Summary
    title: str  # what sets it apart from the other contexts; empty if it is the only one

    @property
    def first(self) -> Record:
        """Any of its records, for what all have in common."""
        return self.records[0]


def contexts(records: Sequence[Record]) -> list[Context]:
    """The records by machine, data, device, cache, order, batch size and model; largest group first."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(facet(record) for facet in _FACETS.values()), []).append(record)
    found = [dict(zip(_FACETS, key, strict=True)) for key in groups]
    varying = [
        name for name in _FACETS if name not in _UNNAMED and len({facets[name] for facets in found}) > 1
    ]
    made = [
        Context(facets, group, summarise(group), ", ".join(facets[name] for name in varying))
        for facets, group in zip(found, groups.values(), strict=True)
    ]
    return sorted(made, key=lambda context: len(context.summary.cases), reverse=True)


def varied(record: Record) -> Mapping[str, Any]:
    """What runs may vary on purpose, with its value in this record."""
    fields = record.dataset["fields"]
    samples = record.dataset["samples"]
    return {
        "batch size": record.case.get("batch_size"),
        "workers": record.case.get("num_workers"),
        "sample bytes": record.logical_bytes // record.samples if fields else None,
        "dataset bytes": record.logical_bytes // record.samples * samples,
    }


def about(record: Record) -> dict[str, str]:
    """The machine and the data of a record, in words."""
    machine, dataset = record.machine, record.dataset
    disk, gpu = machine["disk"], machine.get("gpu")
    versions = machine.get("versions", {})
    shapes = ", ".join(f"{f['name']} {f['dtype']} {list(f['shape'])}" for f in dataset["fields"])
    return {
        "dataset": f"{dataset['name']}: {dataset['samples']:,} samples ({shapes}), "
        f"{bytes_text(record.logical_bytes)}",
        "source": ", ".join(f"{key} {value}" for key, value in (dataset.get("source") or {}).items()),
        "processor": f"{machine['cpu']}, {machine.get('usable_cores')} cores",
        "memory": bytes_text(machine.get("memory_bytes", 0)),
        "disk": f"{disk.get('file_system')} on {disk.get('model') or disk.get('device')}, "
        f"read-ahead {disk.get('read_ahead_kib')} KiB",
        "GPU": f"{gpu['name']}, {bytes_text(gpu['memory_bytes'])}, driver {gpu['driver']}" if gpu else "none",
        "kernel": str(machine.get("kernel")),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
