"""Limits that some records measured by an older definition than others."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results import limits
from iobench.results.record import Record
from iobench.results.warnings import RunWarning


def mixed_limits(records: Sequence[Record]) -> list[RunWarning]:
    """A warning for each limit that some of these records measured by an older definition."""
    mixed = [name for name, found in limits.definitions(records).items() if len(found) > 1]
    return [
        RunWarning(
            "limit",
            f"some of these runs measured the {name} in an older way, which gave more than a loader can "
            "reach: for their rounds no limit is shown; measure them again",
        )
        for name in mixed
    ]
