"""Effect of the format under each loader.

The fastest pair does not show it. A loader with its options is one way of reading; under it, formats are
compared with each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted, three_digits
from iobench.results import cases
from iobench.results.ranking import Verdict, verdict_on
from iobench.results.run_warning import Values
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context, rates

MAX_HIDDEN_WAIT = 0.1  # share of a training spent waiting: no change of format can gain more than that
MAX_TIED = 4  # formats named as without a significant difference


@dataclass(frozen=True)
class LoaderCases:
    """The cases of one loader with its options, the fastest format first, and their verdict."""

    loader: str  # as its cases are labeled
    cases: list[CaseSummary]
    verdict: Verdict

    @property
    def loader_name(self) -> str:
        """The loader's name without options."""
        return str(self.cases[0].facets["loader"])

    @property
    def fastest_formats(self) -> list[str]:
        """The fastest format, and those without a significant difference from it."""
        return [_format(case) for case in self.cases if case.key not in self._slower]

    @property
    def slower(self) -> list[tuple[str, Estimate]]:
        """The significantly slower formats with their relative times."""
        return [(_format(case), self._slower[case.key]) for case in self.cases if case.key in self._slower]

    @property
    def step_bound(self) -> bool:
        """True if the training step takes so much of the time that the format does not matter."""
        share = step_share(self.cases)
        enough = share is not None and share >= 1 - MAX_HIDDEN_WAIT
        return len(self.cases) > 1 and enough and not self._slower

    @property
    def outcome(self) -> str:
        """`single`, `step-bound`, `fastest`, `equivalent` or `no-significant-difference`."""
        if len(self.cases) == 1:
            return "single"
        if self.step_bound:
            return "step-bound"
        if len(self.fastest_formats) == 1:
            return "fastest"
        return "equivalent" if self.verdict.outcome == "equivalent" else "no-significant-difference"

    @property
    def finding(self) -> Finding:
        """The effect of the format under this loader."""
        values: Values = {
            "loader": self.loader,
            "outcome": self.outcome,
            "fastest_formats": ", ".join(self.fastest_formats),
            "slower_formats": ", ".join(name for name, _ in self.slower),
        }
        if self.slower:
            values["largest_relative_time"] = self.slower[-1][1].median
        if (share := step_share(self.cases)) is not None:
            values["step_share"] = share
        return Finding("format-effect", f"under {self.loader}: {describe(self)}", values=values)

    @property
    def _slower(self) -> dict[str, Estimate]:
        against, rivals = self.verdict.against, self.verdict.rivals
        return {key: one.ratio for key, one in against.items() if key not in rivals}


def per_loader(context: Context) -> list[LoaderCases]:
    """Group the cases of a context by loader and options, the loader with the fastest case first."""
    groups: dict[str, list[CaseSummary]] = {}
    for case in context.cases:
        choice = {name: case.facets.get(name) for name in ("loader", "options")}
        groups.setdefault(json.dumps(choice, sort_keys=True, default=str), []).append(case)
    by_case, min_difference = context.by_case, context.verdict.min_difference
    return [
        LoaderCases(
            same[0].label.loader,
            same,
            verdict_on(rates({case.key: by_case[case.key] for case in same}), min_difference),
        )
        for same in groups.values()
    ]


def step_share(summaries: Sequence[CaseSummary]) -> float | None:
    """Return the least share of the time taken by the training step in these cases; None without one."""
    waits = [case.value("wait_share") for case in summaries if cases.trains(case.facets)]
    known = [wait for wait in waits if wait is not None]
    return 1 - max(known) if known and len(known) == len(summaries) else None


def describe(loader: LoaderCases) -> str:
    """Return the effect of the format under a loader, as half a sentence."""
    formats = loader.fastest_formats
    names = enumerated(formats)
    if loader.outcome == "single":
        return f"{names} only"
    if loader.outcome == "step-bound":
        share = step_share(loader.cases) or 0.0
        return f"the training step takes {share:.0%} of the time, the format does not matter"
    texts = {
        "fastest": f"{names} fastest",
        "equivalent": f"{names} equally fast",
        "no-significant-difference": f"no significant difference between {enumerated(formats, MAX_TIED)}",
    }
    return "; ".join([texts[loader.outcome], *_slower_texts(loader.slower)])


def describe_largest(loader: LoaderCases) -> str:
    """Return the largest effect of the format under a loader, in a few words."""
    if loader.step_bound:
        return f"under {loader.loader}: none (the training step takes the time)"
    if not loader.slower:
        return f"under {loader.loader}: no significant difference"
    name, time = loader.slower[-1]
    return f"under {loader.loader}: {name} takes up to {three_digits(time.median)} × as long"


def times_text(time: Estimate, relation: str = "") -> str:
    """Return a relative time with its interval: `2.30 × (2.10 – 2.60)`, or `2.30 × as long (2.10 – 2.60)`."""
    return time.text(three_digits, f" × {relation}".rstrip())


def _slower_texts(slower: Sequence[tuple[str, Estimate]]) -> list[str]:
    """Return the nearest and the farthest of the slower formats, and the number between them."""
    texts = [f"{name} takes {times_text(time, 'as long')}" for name, time in slower]
    return texts if len(texts) <= 3 else [texts[0], f"{counted(len(texts) - 2, 'other')} between", texts[-1]]


def _format(case: CaseSummary) -> str:
    return str(case.facets["format"])
