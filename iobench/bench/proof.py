"""Result of a case's verification."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.results.parts import ContentCheckPart


@dataclass(frozen=True)
class Proof:
    """Result of a case's verification.

    `check` is None if the whole dataset came as requested. The seconds are those of loading and hashing,
    `took_s` those of the whole verification, which the run loop notes.
    """

    check: ContentCheckPart | None = None
    batch_s: float = 0.0
    sample_s: float = 0.0
    took_s: float = 0.0
