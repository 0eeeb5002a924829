"""Cases of several machines side by side, without a verdict on the software.

Rates of two machines differ with all of their parts. Comparable is what relates figures of one machine: the
share of its limits that a case reaches, and its relative time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.base.errors import NotComparable
from iobench.base.text import enumerated
from iobench.base.units import counted, percent_text, rate_text
from iobench.results.columns import choices
from iobench.results.display import Block, table
from iobench.results.record import Record, key_of
from iobench.results.summary import CaseSummary, Context, summarise

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
