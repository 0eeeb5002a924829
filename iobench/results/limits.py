"""The limits of a run as its records tell them: one for each resource, and what became of it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from iobench.results.record import Record

Resource = tuple[str, str, str]  # the run, the name of the limit, the device


def resource_of(record: Record) -> Resource | None:
    """Which resource a record's limit is of; None without one, and of records that do not tell."""
    limit = record.limit
    if limit is None or limit.now_bytes_per_s is None:
        return None
    return record.run, limit.name, str(record.case.get("device"))


def shared(records: Sequence[Record]) -> list[Record]:
    """The same records, in which each resource of a run has one limit: the most that it gave in any round.

    What a case reached of it can then be held against what another did. A limit that was measured by an older
    definition than that of others here is left out.
    """
    records = comparable(records)
    most: dict[Resource, float] = {}
    for record in records:
        if (resource := resource_of(record)) is not None and record.limit is not None:
            stored = record.limit.bytes_per_s / record.limit.logical_per_byte
            most[resource] = max(stored, most.get(resource, 0.0))
    return [_with_limit(record, most) for record in records]


def definitions(records: Iterable[Record]) -> dict[str, set[int]]:
    """By which definitions each limit was measured, by its name."""
    found: dict[str, set[int]] = {}
    for record in records:
        if record.limit is not None:
            found.setdefault(record.limit.name, set()).add(record.limit.definition)
    return found


def comparable(records: Sequence[Record]) -> list[Record]:
    """The same records, without limits that were measured by an older definition than that of others here."""
    newest = {name: max(found) for name, found in definitions(records).items()}
    return [_of_definition(record, newest) for record in records]


def _of_definition(record: Record, newest: Mapping[str, int]) -> Record:
    limit = record.limit
    return record if limit is None or limit.definition == newest[limit.name] else replace(record, limit=None)


def looks(records: Iterable[Record]) -> dict[str, list[float]]:
    """What each resource gave over time, in bytes per second that it counts itself, by its name."""
    found: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda one: one.time):
        limit = record.limit
        if limit is not None and limit.now_bytes_per_s is not None:
            seen = found.setdefault(limit.name, [])
            now = limit.now_bytes_per_s / limit.logical_per_byte
            if not seen or abs(seen[-1] / now - 1) > 1e-9:  # several records may share a look
                seen.append(now)
    return found


def _with_limit(record: Record, most: dict[Resource, float]) -> Record:
    resource = resource_of(record)
    if resource is None or record.limit is None:
        return record
    bytes_per_s = most[resource] * record.limit.logical_per_byte
    return replace(record, limit=replace(record.limit, bytes_per_s=bytes_per_s))
