"""Types and helpers that several checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from iobench.results.record import Record
from iobench.results.run_warning import MORE_ROUNDS, RunWarning

__all__ = ["MORE_ROUNDS", "Cases", "Check", "RunWarning", "warm_cases"]

Cases: TypeAlias = Mapping[str, Sequence[Record]]  # by key

Check: TypeAlias = Callable[[Cases], "RunWarning | None"]


def warm_cases(groups: Cases) -> Cases:
    """Return the cases that were read with a warm cache."""
    return {key: rounds for key, rounds in groups.items() if rounds[0].cache.mode == "warm"}
