"""What to be told of hosts that read from the same storage."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results.record import Record
from iobench.results.warnings import RunWarning

SHARED = 0.8  # of what hosts give by themselves, added up: less of it together, and they share something


def shared_by_hosts(records: Sequence[Record]) -> list[RunWarning]:
    """A warning where a limit of several hosts is less together than what each gave by itself adds up to."""
    parts = {
        (limit.name, limit.bytes_per_s / limit.alone_bytes_per_s)
        for limit in (record.limit for record in records)
        if limit is not None and limit.alone_bytes_per_s
    }
    name, part = min(parts, key=lambda one: one[1], default=("", 1.0))
    if part > SHARED:
        return []
    said = (
        f"the hosts share the {name}: together they got {part:.0%} of what each gets by itself added up; more "
        "hosts will not read faster from it"
    )
    return [RunWarning("shared", said)]
