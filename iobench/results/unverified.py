"""Warnings for cases whose content could not be verified."""

from __future__ import annotations

from collections.abc import Mapping

from iobench.results.cases import Groups, Label
from iobench.results.run_warning import RunWarning


def unverified_content(groups: Groups, labels: Mapping[str, Label]) -> list[RunWarning]:
    """Warn if the content of a user-defined loader's batches could not be verified."""
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
