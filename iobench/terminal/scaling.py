"""`iobench run --ranks 1,2,4`: the same run over several numbers of ranks, and the curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.units import MIB, counted, three_digits
from iobench.ranks.launch import Launch, torchrun
from iobench.results import record
from iobench.results.record import Record
from iobench.results.scaling import Curve, curves
from iobench.results.stats import Estimate
from iobench.results.summary import summarise
from iobench.terminal import display
from iobench.terminal.tables import plain_table

if TYPE_CHECKING:
    from iobench.bench.options import RunOptions
    from iobench.dataset.manifest import Manifest

MOST_RANKS = 1024
# options that are this command's own, not those of its ranks
WITH_VALUES = ("--ranks", "--ray", "--ranks-per-host", "--out")
WITHOUT = ("--json", "--wide")


@dataclass(frozen=True)
class Over:
    """The numbers of ranks that a run is to be made over: here, or on each host of a Ray cluster."""

    numbers: list[int]
    address: str | None = None

    @classmethod
    def parse(cls, ranks: str | None, ray: str | None, ranks_per_host: str | None) -> Over:
        """By the options of that name, of which one is given at least; InvalidSettings where they clash."""
        if ray is None and ranks_per_host is not None:
            raise InvalidSettings("--ranks-per-host is for several hosts: name their cluster by --ray")
        if ray is not None and ranks is not None:
            raise InvalidSettings("--ranks is for this host alone: with --ray give --ranks-per-host")
        if ray is None:
            return cls(numbers_of(ranks or "1"))
        return cls(numbers_of(ranks_per_host or "1", "--ranks-per-host"), ray)


def numbers_of(text: str, option: str = "--ranks") -> list[int]:
    """The numbers of ranks in a list; InvalidSettings where it is none."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > MOST_RANKS:
        raise InvalidSettings(f"{option} {text!r} is no list of numbers from 1 to {MOST_RANKS}, as in 1,2,4")
    return found


def run_over(
    over: Over,
    manifest: Manifest,
    options: RunOptions,
    typed: Sequence[str],
    out: Path | None,
    showing: tuple[float, bool, bool],
) -> int:
    """Run what was typed over each number of ranks, as `over_ranks` does; exit code.

    What so many ranks cannot have is refused before any of them starts.
    """
    from iobench.bench.run import cases_here, new_path

    arguments, file = passed_on(typed), out or new_path(manifest)
    if over.address is None:
        for number in over.numbers:
            cases_here(manifest, options, number)
        return over_ranks(over.numbers, arguments, file, *showing)
    from iobench.ranks.over_ray import launcher

    arguments += ["--data-dir", str(manifest.root.parent.absolute())]
    with launcher(over.address) as (hosts, launch):
        totals = [number * hosts for number in over.numbers]
        for number in totals:
            cases_here(manifest, options, number)
        return over_ranks(totals, arguments, file.absolute(), *showing, launch=launch)


def passed_on(arguments: Sequence[str]) -> list[str]:
    """What was typed, without the options that are not for the ranks."""
    left, rest = list[str](), iter(arguments)
    for word in rest:
        if word in WITH_VALUES:
            next(rest, None)
        elif word not in WITHOUT and not word.startswith(tuple(f"{name}=" for name in WITH_VALUES)):
            left.append(word)
    return left


def over_ranks(
    numbers: Sequence[int],
    arguments: Sequence[str],
    out: Path,
    smallest: float,
    as_json: bool,
    wide: bool,
    launch: Launch = torchrun,
) -> int:
    """Run over each number of ranks, append the records to a file, and print tables and curves; exit code.

    `launch` starts them, by default on this host.

    What a run complains of is printed, and the other numbers go on.
    """
    before = len(record.read(out)[0]) if out.exists() else 0
    failed = False
    for number in numbers:
        display.note(f"{counted(number, 'rank')}:")
        failed |= launch(number, [*arguments, "--out", str(out)], _note) != 0
    records = record.read(out)[0][before:] if out.exists() else []
    if records:
        _show(records, smallest, as_json, wide)
        display.note(f"records: {out}")
    return int(failed)


def _note(line: str) -> None:
    """Print what rank 0 says, without what is said of all the numbers together at the end."""
    if not line.startswith(("warning: ", "records: ")):
        display.note(line)


def _show(records: Sequence[Record], smallest: float, as_json: bool, wide: bool) -> None:
    found = curves(records)
    if as_json:
        summary = summarise(records, smallest).as_dict()
        display.as_json({"curves": [curve.as_dict() for curve in found], **summary})
        return
    display.records(records, smallest, wide)
    if any(len(curve.points) > 1 for curve in found):
        display.result("", scaling_table(found), "", *(curve.sentence for curve in found))


def scaling_table(found: Sequence[Curve]) -> Table:
    """One line per case and number of ranks."""
    titles = ["case", "ranks", "MiB/s together", "95 %", "MiB/s each", "efficiency", "95 %", "limit MiB/s"]
    waits = any(curve.trains for curve in found)
    table = plain_table(*titles, *(["devices wait"] if waits else []), left=1)
    for curve in found:
        for point in curve.points:
            limit = point.limit_bytes_per_s
            cells = [
                curve.case,
                str(point.ranks),
                _mib(point.together.median),
                _interval(point.together, _mib),
                _mib(point.each),
                f"{point.efficiency.median:.0%}",
                _interval(point.efficiency, "{:.0%}".format),
                "" if limit is None else _mib(limit),
            ]
            table.add_row(*cells, *([f"{point.waiting:.0%}"] if waits else []))
    return table


def _mib(value: float) -> str:
    return three_digits(value / MIB)


def _interval(found: Estimate, text: Callable[[float], str]) -> str:
    if found.low is None or found.high is None:
        return "–"
    return f"{text(found.low)} – {text(found.high)}"
