"""From what was measured to what to set: the choice, its gain, what it costs, or that all is well."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.results import others, stats
from iobench.results.stats import Comparison
from iobench.results.verdict import ratio_text
from iobench.tuning.candidate import HEADROOM, Candidate, compared
from iobench.tuning.search_space import code_of
from iobench.tuning.settings_race import SettingsRace

LEAVE, DECIDED, FED, LIMITED = "leave", "decided", "fed", "limited"


@dataclass(frozen=True)
class TuningResult:
    """What to set, and everything that it rests on.

    `outcome`: `decided`; `leave` it as it is where nothing is surely better by 5 %; `fed` where no loader
    could bring that much; `limited` where the present settings do not fit the limits, and what is named is
    the fastest that does. `use` is its candidate. `headroom` is how many times as fast the loop is over batches
    that are on the device already. `whole` says that the fresh rounds were whole epochs.
    """

    outcome: str
    use: Candidate
    candidates: list[Candidate]
    against: dict[str, Comparison]  # each finalist against the present settings
    sentences: list[str]
    whole: bool
    headroom: Comparison | None = None
    code: str = ""
    not_tried: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    records: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        body = {name: value for name, value in vars(self).items() if name not in ("use", "candidates")}
        plain = {name: asdict(one) for name, one in self.against.items()}
        head = asdict(self.headroom) if self.headroom else None
        shown = [candidate.as_dict() for candidate in self.candidates]
        return {**body, "against": plain, "headroom": head, "use": self.use.as_dict(), "candidates": shown}


def answer(
    contest: SettingsRace,
    candidates: Sequence[Candidate],
    finalists: Sequence[Candidate],
    not_tried: Sequence[str],
    records: str | None,
    trains: bool,
) -> TuningResult:
    """What the fresh rounds of the finalists support; the first of them is the loader as it is.

    `trains` says that they had a training step.
    """
    base, against = finalists[0], compared(finalists)
    head = against.pop(HEADROOM, None)
    better = [one for one in finalists[1:] if one.name in against and against[one.name].outcome == "faster"]
    outcome, use = _choose(contest, base, better, finalists, head)
    whole = all(one.whole for one in finalists if one.fresh)
    sentences = [
        _headline(outcome, use, against.get(use.name), candidates),
        *_costs(contest, base, use),
        *_opening(base, use),
        *(_feeding(base, head) if trains else ()),
        *_rests_on(base, whole),
    ]
    return TuningResult(
        outcome,
        use,
        [*candidates, *(one for one in finalists if one.make is not None)],
        against,
        sentences,
        whole,
        head,
        code_of(contest.own, use.changes) if use.changes else "",
        [*not_tried, *_untried(candidates)],
        others.said(contest.others, "turns"),
        records,
    )


def _choose(
    contest: SettingsRace,
    base: Candidate,
    better: Sequence[Candidate],
    finalists: Sequence[Candidate],
    head: Comparison | None,
) -> tuple[str, Candidate]:
    if base.unfit:
        return LIMITED, _fitting(base, finalists[1:])
    if better:
        best = max(one.rate for one in better)
        close = [one for one in better if one.rate >= (1 - stats.WORTH_NAMING) * best]
        return DECIDED, min(close, key=lambda one: (contest.own.workers(one.changes), len(one.changes)))
    highest = head.ratio.high if head is not None else None
    return (FED if highest is not None and highest < 1 + stats.WORTH_NAMING else LEAVE), base


def _fitting(base: Candidate, others: Sequence[Candidate]) -> Candidate:
    """The fastest that fits the limits, which the loader as it is does not; InvalidSettings for none."""
    fitting = [one for one in others if one.fresh and not one.failed and one.make is None]
    if not fitting:
        why = "; ".join(f"{one.name} {one.failed}" for one in others if one.failed)
        raise InvalidSettings(
            f"nothing fits the limits given: {base.name} it {base.unfit}" + (f"; {why}" if why else "")
        )
    return max(fitting, key=lambda one: one.rate)


def _headline(outcome: str, use: Candidate, found: Comparison | None, candidates: Sequence[Candidate]) -> str:
    if outcome == FED:
        return (
            "Loading is not your problem: over batches that are on the device already the loop is less "
            "than 5 % faster, and no loader can bring more than that. Leave it as it is."
        )
    others = sum(bool(one.rates) for one in candidates[1:])
    if outcome == LEAVE and not others:
        return "Leave it as it is: no other setting could be tried."
    if outcome == LEAVE:
        tried = counted(others, "other setting")
        return f"Leave it as it is: of {tried} tried none is surely faster by 5 %."
    if outcome == LIMITED or found is None:
        return f"As it is it does not fit the limits ({use.name} is the fastest that does)."
    return f"Consumer {use.name}: {ratio_text(found.ratio)} as fast as it is."


def _costs(contest: SettingsRace, base: Candidate, use: Candidate) -> Iterator[str]:
    if use is base or use.memory_bytes is None or base.memory_bytes is None:
        return
    took = [bytes_text(use.memory_bytes), bytes_text(base.memory_bytes)]
    if contest.own.tells_workers:
        workers = [counted(contest.own.workers(one.changes), "worker") for one in (use, base)]
        took = [f"{count} and {size}" for count, size in zip(workers, took, strict=True)]
    yield f"It takes {took[0]} of memory in all, as it is {took[1]}."


def _opening(base: Candidate, use: Candidate) -> Iterator[str]:
    """What starting workers costs before anything comes, which is part of every epoch."""
    if use is not base and use.first_batch_s and base.first_batch_s:
        first = [seconds_text(statistics.median(one.first_batch_s)) for one in (use, base)]
        yield f"The first batch of an epoch comes after {first[0]}, as it is after {first[1]}."


def _feeding(base: Candidate, head: Comparison | None) -> Iterator[str]:
    """What of its time a step waits, and what it would gain by never waiting."""
    waits = statistics.median(base.waited) if base.waited else None
    if waits is not None:
        yield f"As it is the step waits {waits:.1%} of the time."
    if head is None:
        return
    beside = (1 - waits) * head.ratio.median > 1 + stats.WORTH_NAMING if waits is not None else False
    yield (
        f"The best possible loader would make the loop {ratio_text(head.ratio)} as fast as it is: "
        "that of batches that are on the device already"
        + (", where the step is faster as well, since no loader works beside it." if beside else ".")
    )


def _rests_on(base: Candidate, whole: bool) -> Iterator[str]:
    rounds = counted(len(base.fresh), "fresh round")
    what = (
        "whole epochs"
        if whole
        else (
            f"the first batches of an epoch (as it is {base.batches:,}), since whole epochs take too long: "
            "give a longer --max-time to be sure"
        )
    )
    yield f"Measured in {rounds} that took turns, over {what}; as it is {rate_text(base.rate)} samples/s."


def _untried(candidates: Sequence[Candidate]) -> Iterator[str]:
    for one in candidates:
        if one.failed:
            yield f"{one.name}: {one.failed}"
    late = [one.name for one in candidates if not one.rates and not one.failed]
    if late:
        yield f"no time was left for {'; '.join(late)}: give a longer --max-time"
