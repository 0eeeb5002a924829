"""Warnings about the figures of a run: what happened, which cases it concerns, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from iobench.results import cases
from iobench.results.record import Record
from iobench.results.run_warning import MORE_ROUNDS, RunWarning, Values
from iobench.results.warnings import cache_state, environment, method, round_quality

__all__ = ["MACHINE_KINDS", "RunWarning", "case_warnings", "warnings_of"]

# kinds of warnings about the machine and its background load, not about the cases
MACHINE_KINDS = (
    "cpu-steal",
    "suspended",
    "background-disk",
    "background-cpu",
    "memory-pressure",
    "unstable-limits",
    "unstable-cpu-speed",
)

_CHECKS = (*cache_state.CHECKS, *method.CHECKS, *round_quality.CHECKS, *environment.CHECKS)


def warnings_of(records: Sequence[Record], more_rounds: str = MORE_ROUNDS) -> list[RunWarning]:
    """Return all warnings about these records, those that could change the answer most first.

    `more_rounds` is the hint for more rounds of the command that shows them.
    """
    groups = cases.by_case(records)
    return case_warnings(groups, cases.labels_of(groups), more_rounds)


def case_warnings(
    groups: cases.Groups, labels: Mapping[str, cases.Label], more_rounds: str = MORE_ROUNDS
) -> list[RunWarning]:
    """Return all warnings about cases that are grouped and labelled already."""
    results = [check(groups) for check in _CHECKS] if groups else []
    return [
        replace(
            warning,
            cases=[str(labels[key]) for key in warning.cases],
            hints=tuple(more_rounds if hint == MORE_ROUNDS else hint for hint in warning.hints),
        )
        for warning in (*_unverified(groups), *results)
        if warning is not None
    ]


def _unverified(groups: cases.Groups) -> Iterator[RunWarning]:
    """Yield a warning for each set of reasons why content was not verified, with its cases."""
    kinds: dict[str, str] = {}
    concerned: dict[str, list[str]] = {}
    for key, rounds in groups.items():
        if reasons := next((one.unverified for one in rounds if one.unverified), []):
            said = "; ".join(map(str, reasons))
            kinds[said] = ", ".join(one.kind for one in reasons)
            concerned.setdefault(said, []).append(key)
    for said, keys in concerned.items():
        values: Values = {"reasons": kinds[said]}
        yield RunWarning("unverified-content", f"content not verified: {said}", keys, values=values)
