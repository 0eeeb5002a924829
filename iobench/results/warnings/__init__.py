"""What to be warned of in the figures of a run: what happened, why that matters, which option helps."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results import cases
from iobench.results.record import Record
from iobench.results.warnings import cache, machine, rounds, ways
from iobench.results.warnings._warning import MORE_ROUNDS, RunWarning

__all__ = ["OF_THE_MACHINE", "RunWarning", "warnings_of"]

# kinds of warnings that speak of the machine and its other work, not of the cases
OF_THE_MACHINE = ("steal", "neighbours", "other work", "memory", "limits", "processors")

_CHECKS = (*rounds.CHECKS, *cache.CHECKS, *machine.CHECKS, *ways.CHECKS)


def warnings_of(records: Sequence[Record], more_rounds: str = MORE_ROUNDS) -> list[RunWarning]:
    """Everything that speaks against taking these records at their word.

    `more_rounds` is how the command that shows them is asked for more rounds.
    """
    groups, labels = cases.by_case(records), cases.labels_of(records)
    found = [check(groups) for check in _CHECKS] if groups else []
    return [
        RunWarning(
            warning.kind,
            warning.said.replace(MORE_ROUNDS, more_rounds),
            [str(labels[key]) for key in warning.cases],
        )
        for warning in found
        if warning is not None
    ]
