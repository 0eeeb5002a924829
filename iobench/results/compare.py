"""Comparison of runs with earlier ones, case by case, and of machines side by side.

Rates of two machines differ with all of their parts, and say nothing about the software. Comparable is what
relates figures of one machine: the share of its limits that a case reaches, and its relative time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from iobench.base import grouped
from iobench.base.errors import NotComparable
from iobench.base.text import enumerated
from iobench.base.units import counted, percent_text, rate_text, three_digits
from iobench.results import cases, stats
from iobench.results.cases import FACETS
from iobench.results.columns import choices
from iobench.results.display import Block, table
from iobench.results.metrics import mib_text
from iobench.results.record import Facets, Record, key_of
from iobench.results.run_comparison import MACHINE_CHANGED, RunComparison, compare_runs
from iobench.results.run_warning import RunWarning
from iobench.results.stats import ENOUGH_ROUNDS
from iobench.results.summary import CaseSummary, Context, summarise


@dataclass(frozen=True)
class Difference:
    """A setting or facet with another value on each side."""

    name: str
    base: Any
    new: Any

    @property
    def sentence(self) -> str:
        """The difference as `NAME BASE → NEW`."""
        return f"{self.name} {_text(self.base)} → {_text(self.new)}"


@dataclass(frozen=True)
class UnmatchedCase:
    """A case that only one side has, and the name of that side."""

    case: str
    only_in: str


@dataclass(frozen=True, kw_only=True)
class CaseComparison(RunComparison):
    """Comparison of one case of one newer run with the same case of the base.

    `rounds` counts those of the base and of the newer side. `settings` differ between the sides as chosen;
    `mismatches` are facets that have to be equal, and are not, because --force was given.
    """

    derived: ClassVar = ("verdict",)

    case: str  # its label
    new: str
    rounds: tuple[int, int]
    settings: list[Difference]
    mismatches: list[Difference]

    @property
    def verdict(self) -> str:
        """The outcome in the words of the table."""
        outcome = self.comparison.outcome
        return "inconclusive (machine changed)" if outcome == MACHINE_CHANGED else outcome

    @property
    def machine_text(self) -> str:
        """The change of the machine between the runs, and the ratio without regard to that."""
        machine, texts = self.machine, list[str]()
        if machine.limit_ratio is not None:
            texts.append(f"{machine.limit} {machine.limit_ratio.median:.2f} ×")
        if machine.cpu_speed_ratio is not None:
            texts.append(f"CPU speed {machine.cpu_speed_ratio:.2f} ×")
        if None not in machine.background_cpu:
            texts.append("background CPU {:.0%} → {:.0%}".format(*machine.background_cpu))
        if self.plain_ratio is not None:
            texts.append(f"ratio of quiet rounds; of all rounds {self.plain_ratio:.3f}")
        return ", ".join(texts)

    @property
    def differences_text(self) -> str:
        """The facets that differ although --force was needed for that, and the settings that differ."""
        forced = (f"forced: {one.sentence}" for one in self.mismatches)
        return "; ".join([*forced, *(one.sentence for one in self.settings)])


@dataclass(frozen=True)
class CompareResult:
    """All compared cases, and the cases that only one side has.

    Rates are in bytes/s, but in samples/s of a person's loaders, whose rounds were taken `in_turns`.
    """

    derived: ClassVar = ("interval_basis", "warnings")

    base: str
    cases: list[CaseComparison]
    unmatched: list[UnmatchedCase]
    min_difference: float
    correction: str | None
    in_turns: bool = False

    @property
    def sentence(self) -> str:
        """The number of cases of each verdict, the slower ones first."""
        counts = Counter(sorted((one.verdict for one in self.cases), reverse=True))
        parts = [f"{count} {verdict}" for verdict, count in counts.items()]
        return f"{counted(len(self.cases), 'case')} compared with {self.base}: {', '.join(parts)}"

    def blocks(self) -> Iterator[Block]:
        """Yield the answer, a table of a row for each case and newer run, and what its columns mean."""
        yield Block("answer", [self.sentence])
        rate, unit = (three_digits, "samples/s") if self.in_turns else (mib_text, "MiB/s")
        titles = ["case", "new", "verdict", "ratio (95 %)", f"base {unit} (95 %)", f"new {unit} (95 %)"]
        rows = [
            (
                one.case,
                one.new,
                one.verdict,
                one.comparison.ratio.text("{:.3f}".format),
                one.base_rate.text(rate),
                one.new_rate.text(rate),
                one.machine_text,
                one.differences_text,
            )
            for one in self.cases
        ]
        yield table([*titles, "machine", "differs"], rows, heads=2)
        corrected = f"; {self.correction}" if self.correction else ""
        least = f"differences below {self.min_difference:.0%} do not count"
        machine = "Machine: change of its own limit, of its CPU speed, and of the background CPU"
        yield Block("text", [f"ratio = new / {self.base}; {least}{corrected}. {machine}. {self.basis_note}"])

    @property
    def interval_basis(self) -> str:
        """`pairs` of rounds taken in turns; `rounds` where each side has one run of a case, else `runs`."""
        if self.in_turns:
            return "pairs"
        return "rounds" if {one.runs for one in self.cases} == {(1, 1)} else "runs"

    @property
    def basis_note(self) -> str:
        """Basis of the intervals in one sentence."""
        if self.in_turns:
            return "Rounds were taken in turns; intervals are of the median over pairs of rounds."
        if self.interval_basis == "rounds":
            return (
                "Intervals cover the variance within one run of each side, not between runs; compare several "
                "runs of each side with 'iobench compare a,b,c d,e,f'."
            )
        runs = sorted({one.runs for one in self.cases})
        counts = enumerated([f"{base} of {self.base} and {new} newer" for base, new in runs])
        return f"Intervals cover the variance between runs: {counts}."

    @property
    def unmatched_notes(self) -> list[str]:
        """Return one line per side with the cases that only this side has."""
        sides = grouped((one.only_in, one.case) for one in self.unmatched)
        return [f"only in {side}: {enumerated(labels)}" for side, labels in sides.items()]

    @property
    def warnings(self) -> list[RunWarning]:
        """Return a warning for each doubt and newer run, with the cases concerned."""
        doubted = grouped(
            ((one.new, one.doubt.message), (one.case, one.doubt)) for one in self.cases if one.doubt
        )
        return [
            RunWarning(
                "machine-changed",
                f"{new} cannot be compared with {self.base}: {message}",
                [case for case, _ in several],
                ("measure both again, one after the other, on an idle machine",),
                {"new": new, "reason": several[0][1].kind, **several[0][1].values},
            )
            for (new, message), several in doubted.items()
        ]

    @property
    def complaints(self) -> list[RunWarning]:
        """Return what fails a gate against slower cases: those slower, undecided for few rounds, or gone."""
        slower = [
            RunWarning(
                "slower",
                f"{one.new} is slower: relative time {1 / one.comparison.ratio.median:.2f}",
                [one.case],
            )
            for one in self.cases
            if one.comparison.outcome == "slower"
        ]
        undecided = [
            RunWarning(
                "few-rounds",
                f"{one.new} has too few rounds for a verdict",
                [one.case],
                (f"measure with --rounds {ENOUGH_ROUNDS} or more",),
            )
            for one in self.cases
            if min(one.rounds) < ENOUGH_ROUNDS and one.comparison.outcome != "slower"
        ]
        gone = [
            RunWarning("missing-case", f"measured in {self.base} only", [one.case])
            for one in self.unmatched
            if one.only_in == self.base
        ]
        return slower + undecided + gone


def compare(
    base: Sequence[Record],
    newer: Mapping[str, Sequence[Record]],
    *,
    base_name: str = "base",
    min_difference: float = stats.MIN_DIFFERENCE,
    force: bool = False,
) -> CompareResult:
    """Compare every case of the base with the same case of each newer run.

    Cases match if all choices are equal, or else if only one on each side has that format and loader.

    `newer` holds the records of each newer run by its name; `min_difference` is the smallest difference, as a
    fraction, that counts as one. NotComparable if no case matches, or, without `force`, if machine, device,
    data, model or cache state differ.
    """
    pairs, unmatched = [], []
    for name, records in newer.items():
        together, alone = matched(sides_of(base), sides_of(records))
        pairs += [(name, before, after) for before, after in together]
        unmatched += [UnmatchedCase(label, name if side else base_name) for side, label in alone]
    sides = f"{base_name} and {', '.join(newer)}"
    if not pairs:
        raise NotComparable(f"{sides} have no case in common", kind="no-common-case")
    compared = [_compared(name, before, after, min_difference, len(pairs)) for name, before, after in pairs]
    mismatches = dict.fromkeys(
        text
        for (_, before, after), line in zip(pairs, compared, strict=True)
        for text in _mismatch_texts(before.facets, after.facets, line.mismatches)
    )
    if mismatches and not force:
        raise NotComparable(
            f"{sides} were measured differently: {'; '.join(mismatches)}",
            kind="measured-differently",
            hint="give --force to compare them anyway",
        )
    return CompareResult(base_name, compared, unmatched, min_difference, stats.correction(len(compared)))


def compare_in_turns(
    base: str, records: Mapping[str, Sequence[Record]], *, min_difference: float = stats.MIN_DIFFERENCE
) -> CompareResult:
    """Compare loaders with the one of the name `base`, from the records of one run by their names."""
    (before,) = sides_of(records[base])
    newer = {name: sides_of(rounds)[0] for name, rounds in records.items() if name != base}
    compared = [
        _compared(name, before, after, min_difference, len(newer), in_turns=True)
        for name, after in newer.items()
    ]
    return CompareResult(base, compared, [], min_difference, stats.correction(len(newer)), in_turns=True)


def _compared(
    name: str, before: Side, after: Side, min_difference: float, comparisons: int, in_turns: bool = False
) -> CaseComparison:
    result = compare_runs(before.rounds, after.rounds, min_difference, comparisons, in_turns)
    return CaseComparison(
        **vars(result),
        case=before.label if in_turns else after.label,
        new=name,
        rounds=(len(before.rounds), len(after.rounds)),
        settings=[] if in_turns else list(_changed(before.choices, after.choices)),
        mismatches=[] if in_turns else list(_mismatches(before.facets, after.facets)),
    )


def _changed(before: Facets, after: Facets) -> Iterator[Difference]:
    for name in {**before, **after}:
        base, new = before.get(name), after.get(name)
        if isinstance(base, dict) and isinstance(new, dict):
            yield from _changed(base, new)
        elif base != new:
            yield Difference(name, base, new)


def _mismatches(before: Facets, after: Facets) -> Iterator[Difference]:
    """Yield the facets that have to be equal for figures to be comparable, and are not."""
    for name, facet in FACETS.items():
        base, new = before.get(name), after.get(name)
        if facet.fixed and base != new:
            yield Difference(facet.title, base, new)


def _mismatch_texts(before: Facets, after: Facets, mismatches: Sequence[Difference]) -> Iterator[str]:
    """Yield the mismatches as `NAME BASE → NEW`; data of datasets with other names are named by these."""
    base, new = before["dataset"], after["dataset"]
    for one in mismatches:
        if one.name == FACETS["content"].title and base != new:
            yield Difference("dataset", base, new).sentence
        else:
            yield one.sentence


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else cases.option_text(value)


_LOCATION = ("host", "dataset")  # on another machine or dataset a case is still the same choice


@dataclass(frozen=True)
class Side:
    """A case of one side: its facets, its label among the cases of that side, its rounds."""

    facets: Facets
    label: str
    rounds: list[Record]

    @property
    def choices(self) -> dict[str, Any]:
        """The facets that were chosen, without those of the place of measurement."""
        fixed = [name for name, facet in FACETS.items() if facet.fixed]
        return {name: value for name, value in self.facets.items() if name not in (*_LOCATION, *fixed)}


def sides_of(records: Sequence[Record]) -> list[Side]:
    """Return the cases of one side."""
    groups = cases.by_case(records)
    labels = cases.labels_of(groups)
    return [Side(rounds[0].facets, str(labels[key]), rounds) for key, rounds in groups.items()]


def matched(base: list[Side], new: list[Side]) -> tuple[list[tuple[Side, Side]], list[tuple[int, str]]]:
    """Return the pairs of equal cases; for each other case its side (0 is the base) and its label."""
    pairs = []
    base_left, new_left = list(base), list(new)
    for identity in _IDENTITIES:
        for before in list(base_left):
            mine = [other for other in base if identity(other) == identity(before)]
            theirs = [other for other in new if identity(other) == identity(before)]
            if len(mine) == len(theirs) == 1 and theirs[0] in new_left:
                pairs.append((before, theirs[0]))
                base_left.remove(before)
                new_left.remove(theirs[0])
    alone = [(number, side.label) for number, rest in enumerate((base_left, new_left)) for side in rest]
    return pairs, alone


# from the strictest to the loosest: cases match by the first that identifies one case on each side
_IDENTITIES: tuple[Callable[[Side], object], ...] = (
    lambda side: side.facets,
    lambda side: (side.choices, *map(side.facets.get, ("cache", "device", "model"))),
    lambda side: side.choices,
    lambda side: (side.facets["format"], side.facets["loader"], side.facets.get("options")),
    lambda side: (side.facets["format"], side.facets["loader"]),
)


OF_MACHINE = ("processor", "memory", "disk", "gpu", "host", "dataset")  # facets; data may have two names
TEXTS: dict[str, Callable[[CaseSummary], str]] = {
    "samples/s": lambda case: rate_text(case.samples_per_s.median),
    "% of limit": lambda case: percent_text(share) if (share := case.limit_share) else "",
    "relative time (95 %)": lambda case: case.relative_text(lambda time: time.text("{:.2f}".format)),
}
MEANING = (
    "relative time: 1 is the fastest of these cases on that machine; % of limit: share of what that machine "
    "can do. Both are comparable; rates of two machines say nothing about the software."
)


@dataclass(frozen=True)
class MachineComparison:
    """The cases that all machines have, and the facts in which these differ."""

    contexts: dict[str, Context]  # by machine, and what else differs
    differences: dict[str, list[Any]]  # values on the machines, by the name of the fact

    def blocks(self) -> Iterator[Block]:
        """Yield the cases on each machine, what is comparable, and the differences between the machines."""
        rows, places = choices(list(self.contexts.values())), range(len(self.contexts))
        cells = [
            [
                *(next(iter(row.values())).label.format, next(iter(row.values())).label.loader),
                *(text(row[n]) if n in row else None for text in TEXTS.values() for n in places),
            ]
            for row in rows
        ]
        titles = [f"{title}\n{name}" for title in TEXTS for name in self.contexts]
        yield Block("answer", [f"{counted(len(rows), 'case')} on {enumerated(self.contexts)}"])
        yield table(["format", "loader", *titles], cells, heads=2)
        yield Block("text", [MEANING])
        lines = [
            f"{name}: {' / '.join(str(one or '–') for one in values)}"
            for name, values in self.differences.items()
        ]
        yield Block("list", lines, "Differences between the machines")


def compare_machines(runs: Mapping[str, Sequence[Record]]) -> MachineComparison:
    """Return the cases that all machines have; NotComparable (``no-common-case``) without any."""
    common = set.intersection(*(set(map(_key, records)) for records in runs.values()))
    if not common:
        raise NotComparable(f"{enumerated(runs)} have no case in common", kind="no-common-case")
    contexts = {
        ", ".join(filter(None, (name, one.title))): one
        for name, records in runs.items()
        for one in summarise([record for record in records if _key(record) in common]).contexts
    }
    facts = [records[-1].machine.facts for records in runs.values()]
    values = {name: [one.get(name) for one in facts] for one in facts for name in one}
    return MachineComparison(
        contexts, {name: each for name, each in values.items() if any(one != each[0] for one in each)}
    )


def _key(record: Record) -> str:
    return key_of({name: value for name, value in record.facets.items() if name not in OF_MACHINE})
