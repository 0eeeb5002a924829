"""What the format changes under each loader: which pair is fastest does not say that.

A loader with its options is one way of reading; under it formats are compared among each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from iobench.base.text import enumerated
from iobench.base.units import counted, three_digits
from iobench.results import cases, stats
from iobench.results.stats import Estimate, Verdict
from iobench.results.summary import CaseSummary, Context, rates

HIDDEN = 0.1  # waiting of this part of a training at most: nothing that a format changes is worth more


@dataclass(frozen=True)
class UnderLoader:
    """The cases of one loader with its options, the fastest format first, and how sure that is."""

    loader: str  # as its cases are labelled
    cases: list[CaseSummary]
    verdict: Verdict

    @property
    def word(self) -> str:
        """The loader's own word, without options."""
        return str(self.cases[0].facets["loader"])

    @property
    def alike(self) -> list[str]:
        """The fastest format and those that are not told apart from it."""
        return [_format(case) for case in self.cases if case.key not in self._slower]

    @property
    def slower(self) -> list[tuple[str, Estimate]]:
        """Formats that are told apart from the fastest, and how many times as long each takes."""
        return [(_format(case), self._slower[case.key]) for case in self.cases if case.key in self._slower]

    @property
    def hidden(self) -> bool:
        """Whether the training step takes so much of the time that the format does not matter."""
        share = step_share(self.cases)
        return len(self.cases) > 1 and share is not None and share >= 1 - HIDDEN and not self._slower

    @property
    def _slower(self) -> dict[str, Estimate]:
        found = self.verdict
        return {key: one.ratio for key, one in found.against.items() if key not in found.rivals}


def under_loaders(context: Context) -> list[UnderLoader]:
    """The cases of a context by loader and options, the loader with the fastest case first."""
    groups: dict[str, list[CaseSummary]] = {}
    for case in context.cases:
        chosen = {name: case.facets.get(name) for name in ("loader", "options")}
        groups.setdefault(json.dumps(chosen, sort_keys=True, default=str), []).append(case)
    by_case = cases.by_case(context.records)
    return [
        UnderLoader(
            same[0].label.loader,
            same,
            stats.verdict(rates({case.key: by_case[case.key] for case in same}), context.verdict.smallest),
        )
        for same in groups.values()
    ]


def step_share(found: Sequence[CaseSummary]) -> float | None:
    """The part of the time that the training step takes in each of these cases at least; None without one."""
    waits = [case.value("wait_share") for case in found if cases.trains(case.facets)]
    known = [wait for wait in waits if wait is not None]
    return 1 - max(known) if known and len(known) == len(found) else None


def told(under: UnderLoader) -> str:
    """What the format changes under a loader, in half a sentence."""
    if len(under.cases) == 1:
        return f"{under.alike[0]} alone"
    if under.hidden:
        share = step_share(under.cases) or 0.0
        return f"the training step takes {share:.0%} of the time: the format does not matter here"
    if len(under.alike) == 1:
        fastest = f"{under.alike[0]} fastest"
    else:
        how = "equally fast" if under.verdict.outcome == "equivalent" else "not told apart"
        fastest = f"{enumerated(under.alike)} {how}"
    return "; ".join([fastest, *_behind(under.slower)])


def most(under: UnderLoader) -> str:
    """The most that the format changes under a loader, in a few words."""
    if under.hidden:
        return f"nothing under {under.loader} (the training step takes the time)"
    if not under.slower:
        return f"nothing that can be told under {under.loader}"
    name, times = under.slower[-1]
    return f"up to {three_digits(times.median)} × under {under.loader} ({name})"


def times_text(times: Estimate) -> str:
    """How many times as long, with the interval: `2.30 × (2.10 – 2.60)`."""
    known = times.low is not None and times.high is not None
    ends = f" ({three_digits(times.low or 0)} – {three_digits(times.high or 0)})" if known else ""
    return f"{three_digits(times.median)} ×{ends}"


def _behind(slower: Sequence[tuple[str, Estimate]]) -> list[str]:
    """The nearest and the farthest of those that are slower, and how many lie between."""
    said = [f"{name} {times_text(times)} as long" for name, times in slower]
    return said if len(said) <= 3 else [said[0], f"{counted(len(said) - 2, 'other')} between", said[-1]]


def _format(case: CaseSummary) -> str:
    return str(case.facets["format"])
