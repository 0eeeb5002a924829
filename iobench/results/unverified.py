"""Warnings for cases whose content could not be verified."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results import cases
from iobench.results.record import Record
from iobench.results.run_warning import RunWarning


def unverified_content(records: Sequence[Record]) -> list[RunWarning]:
    """Warn if the content of a user-defined loader's batches could not be verified."""
    groups, labels = cases.by_case(records), cases.labels_of(records)
    reasons = {
        key: next((r.unverified_reason for r in rounds if r.unverified_reason), None)
        for key, rounds in groups.items()
    }
    return [
        RunWarning(
            "unverified-content",
            f"content not verified: {reason}",
            [str(labels[key])],
            values={"reason": reason},
        )
        for key, reason in reasons.items()
        if reason is not None
    ]
