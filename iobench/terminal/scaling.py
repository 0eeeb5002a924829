"""`iobench run --ranks 1,2,4`: the same run over several numbers of ranks, and the scaling curve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base import INTERRUPTED
from iobench.base.errors import InvalidSettings
from iobench.base.units import counted
from iobench.ranks.launch import Launch, torchrun
from iobench.results import record_file
from iobench.results.record import Record
from iobench.results.scaling_curve import blocks_of, curves
from iobench.results.summary import summarise
from iobench.results.verdict import as_json as summary_as_json
from iobench.terminal import display, runs

if TYPE_CHECKING:
    from iobench.bench.options import RunOptions
    from iobench.dataset.manifest import Manifest

MOST_RANKS = 1024
LEAST_S = 1.0  # of the time, for a number of ranks
# options that are this command's own, not those of its ranks
WITH_VALUES = ("--ranks", "--ray", "--ranks-per-host", "--out")
WITHOUT = ("--json", "--wide", "--long")


@dataclass(frozen=True)
class Over:
    """The numbers of ranks to run over: on this host, or on each host of a Ray cluster."""

    numbers: list[int]
    address: str | None = None

    @classmethod
    def parse(cls, ranks: str | None, ray: str | None, ranks_per_host: str | None) -> Over:
        """Parse the three options, at least one of them given; InvalidSettings if they exclude each other."""
        if ray is None and ranks_per_host is not None:
            raise InvalidSettings(
                "--ranks-per-host without --ray", kind="conflicting-options", hint="add --ray ADDRESS"
            )
        if ray is not None and ranks is not None:
            raise InvalidSettings(
                "--ranks with --ray",
                kind="conflicting-options",
                hint="use --ranks-per-host instead of --ranks",
            )
        if ray is None:
            return cls(numbers_of(ranks or "1"))
        return cls(numbers_of(ranks_per_host or "1", "--ranks-per-host"), ray)


@dataclass
class TimeShares:
    """Equal shares of `--max-time` for the numbers of ranks; None where it was not given.

    What a command took beyond its share is expected of the next one, too: the start of its ranks.
    """

    max_time_s: float | None = None
    began: float = field(default_factory=time.monotonic)
    _late_s: float = 0.0

    def run(self, launch: Launch, number: int, arguments: Sequence[str], left: int) -> int:
        """Run one of `left` commands in its share of the time and return its exit code."""
        if self.max_time_s is None:
            return launch(number, arguments, _note)
        began = time.monotonic()
        share_s = max(LEAST_S, (self.began + self.max_time_s - began) / left - self._late_s)
        code = launch(number, [*arguments, "--max-time", f"{share_s:.1f}"], _note)
        self._late_s = max(0.0, time.monotonic() - began - share_s)
        return code


def numbers_of(text: str, option: str = "--ranks") -> list[int]:
    """Parse a list of numbers of ranks; InvalidSettings names the option."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_RANKS:
        expected = f"numbers from 1 to {MOST_RANKS}, like 1,2,4"
        raise InvalidSettings(option, kind="out-of-range", expected=expected, found=repr(text))
    return numbers


def run_over(
    over: Over,
    manifest: Manifest,
    options: RunOptions,
    typed: Sequence[str],
    file: Path,
    showing: tuple[float, bool, bool, bool],
    began: float,
) -> int:
    """Run the typed command over each number of ranks and return the exit code.

    Settings that some number of ranks cannot have are refused before any of them starts. The time of the
    options, counted from `began`, is for all of them.
    """
    times = TimeShares(options.max_time, began)
    from iobench.bench.run import cases_here

    arguments = passed_on(typed)
    if over.address is None:
        for number in over.numbers:
            cases_here(manifest, options, number)
        return over_ranks(over.numbers, arguments, file, *showing, times=times)
    from iobench.ranks.ray_hosts import launcher

    arguments += ["--data-dir", str(manifest.data_dir.absolute())]
    with launcher(over.address) as (hosts, launch):
        totals = [number * hosts for number in over.numbers]
        for number in totals:
            cases_here(manifest, options, number)
        return over_ranks(totals, arguments, file.absolute(), *showing, launch, times)


def passed_on(arguments: Sequence[str]) -> list[str]:
    """Return the typed arguments without the options that are not for the ranks."""
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
    long: bool,
    launch: Launch = torchrun,
    times: TimeShares | None = None,
) -> int:
    """Run over each number of ranks, append records to `out`, print tables and curves; return the exit code.

    `launch` starts the ranks, by default on this host. An error of one number is printed; the others run.
    After Ctrl-C none does, and what was measured is shown.
    """
    before = len(record_file.read(out)[0]) if out.exists() else 0
    failed, interrupted, times = False, False, times or TimeShares()
    for done, number in enumerate(numbers):
        display.note(f"{counted(number, 'rank')}:")
        try:
            failed |= times.run(launch, number, [*arguments, "--out", str(out)], len(numbers) - done) != 0
        except KeyboardInterrupt:
            interrupted = True
            break
    records = record_file.read(out)[0][before:] if out.exists() else []
    if records:
        _show(records, smallest, as_json, wide, long, out.stem)
        display.note(f"records: {out}")
    return INTERRUPTED if interrupted else int(failed)


def _note(line: str) -> None:
    """Print a line of rank 0, except those that are printed once for all numbers of ranks."""
    if not line.startswith(("warning[", "records: ", "iobench: interrupted")):
        display.note(line)


def _show(
    records: Sequence[Record], smallest: float, as_json: bool, wide: bool, long: bool, name: str
) -> None:
    scaling = curves(records)
    if as_json:
        summary = summary_as_json(summarise(records, smallest))
        display.as_json({"curves": scaling, **summary})
        return
    runs.records(records, smallest, wide, long, name=name)
    if any(len(curve.points) > 1 for curve in scaling):
        display.result("")
        display.blocks(blocks_of(scaling))
