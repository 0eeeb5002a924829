"""What to be told of cases of which nobody can say that all of the dataset came."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results import cases
from iobench.results.record import Record
from iobench.results.warnings import RunWarning


def unproved(records: Sequence[Record]) -> list[RunWarning]:
    """A warning for each case that is not proved, with the reason."""
    groups, labels = cases.by_case(records), cases.labels_of(records)
    reasons = {
        key: next((r.not_proved for r in rounds if r.not_proved), None) for key, rounds in groups.items()
    }
    return [
        RunWarning("not proved", f"not proved: {reason}", [str(labels[key])])
        for key, reason in reasons.items()
        if reason is not None
    ]
