"""Hardware limits of a run, from its records: one for each resource, and its rate over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from iobench.results.record import Record

Resource = tuple[str, str, str]  # the run, the name of the limit, the device


def resource_of(record: Record) -> Resource | None:
    """Return the resource that a record's limit belongs to; None without a sampled limit."""
    limit = record.limit
    if limit is None or limit.now_bytes_per_s is None:
        return None
    return record.run, limit.name, str(record.case.get("device"))


def with_common_limits(records: Sequence[Record]) -> list[Record]:
    """Return the records with one limit per resource of a run: its highest rate in any round.

    The share of the limit that a case reaches can then be compared with that of another case.
    """
    highest: dict[Resource, float] = {}
    for record in records:
        if (resource := resource_of(record)) is not None and record.limit is not None:
            stored = record.limit.bytes_per_s / record.limit.logical_per_byte
            highest[resource] = max(stored, highest.get(resource, 0.0))
    return [_with_limit(record, highest) for record in records]


def measured_rates(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return the rates of each resource over time, in stored bytes per second, by its name."""
    rates: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda one: one.time):
        limit = record.limit
        if limit is not None and limit.now_bytes_per_s is not None:
            known = rates.setdefault(limit.name, [])
            now = limit.now_bytes_per_s / limit.logical_per_byte
            if not known or abs(known[-1] / now - 1) > 1e-9:  # several records may share a sample
                known.append(now)
    return rates


def _with_limit(record: Record, highest: Mapping[Resource, float]) -> Record:
    resource = resource_of(record)
    if resource is None or record.limit is None:
        return record
    bytes_per_s = highest[resource] * record.limit.logical_per_byte
    changed = copy(record)  # not `replace`: facets and key are not computed again
    limit = replace(record.limit, bytes_per_s=bytes_per_s)
    vars(changed).update(limit=limit, facets=record.facets, key=record.key)
    return changed
