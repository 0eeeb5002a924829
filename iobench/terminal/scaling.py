"""`iobench run --ranks 1,2,4`: the same run over several numbers of ranks, and the scaling curve."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base import INTERRUPTED
from iobench.base.errors import InvalidSettings, conflict
from iobench.base.units import counted
from iobench.ranks.launch import Launch, torchrun
from iobench.results import record_file
from iobench.results.scaling_curve import blocks_of, curves
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
            raise conflict("--ranks-per-host without --ray", "add --ray ADDRESS")
        if ray is not None and ranks is not None:
            raise conflict("--ranks with --ray", "use --ranks-per-host instead of --ranks")
        if ray is None:
            return cls(numbers_of(ranks or "1"))
        return cls(numbers_of(ranks_per_host or "1", "--ranks-per-host"), ray)


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
    shown: runs.TableOptions,
    began: float,
) -> int:
    """Run the typed command over each number of ranks and return the exit code.

    Settings that some number of ranks cannot have are refused before any of them starts. The time of the
    options, counted from `began`, is for all of them.
    """
    from iobench.bench.run import cases_here

    launch: Launch = torchrun
    numbers, arguments = over.numbers, passed_on(typed)
    with ExitStack() as ends:
        if over.address is not None:
            from iobench.ranks.ray_hosts import launcher

            hosts, launch = ends.enter_context(launcher(over.address))
            numbers, file = [number * hosts for number in numbers], file.absolute()
            arguments += ["--data-dir", str(manifest.data_dir.absolute())]
        for number in numbers:
            cases_here(manifest, options, number)
        ends_at = None if options.max_time is None else began + options.max_time
        return over_ranks(numbers, arguments, file, shown, launch, ends_at)


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
    shown: runs.TableOptions,
    launch: Launch,
    ends_at: float | None,
) -> int:
    """Run over each number of ranks, append records to `out`, print tables and curves; return the exit code.

    `launch` starts the ranks. An error of one number is printed; the others run. After Ctrl-C none does, and
    what was measured is shown. The numbers have equal shares of the time until `ends_at`, if that is given.
    What a command took beyond its share is expected of the next one, too: the start of its ranks.
    """
    before = len(record_file.read(out)[0]) if out.exists() else 0
    failed, interrupted, late_s = False, False, 0.0
    for done, number in enumerate(numbers):
        display.note(f"{counted(number, 'rank')}:")
        words, started, share_s = [*arguments, "--out", str(out)], time.monotonic(), math.inf
        if ends_at is not None:
            share_s = max(LEAST_S, (ends_at - started) / (len(numbers) - done) - late_s)
            words += ["--max-time", f"{share_s:.1f}"]
        try:
            failed |= launch(number, words, _note) != 0
        except KeyboardInterrupt:
            interrupted = True
            break
        late_s = max(0.0, time.monotonic() - started - share_s)
    if records := record_file.read(out)[0][before:] if out.exists() else []:
        scaling = curves(records)
        runs.records(records, shown, out.stem, {"curves": scaling})
        if not shown.as_json and any(len(curve.points) > 1 for curve in scaling):
            display.result("")
            display.blocks(blocks_of(scaling))
        display.note(f"records: {out}")
    return INTERRUPTED if interrupted else int(failed)


def _note(line: str) -> None:
    """Print a line of rank 0, except those that are printed once for all numbers of ranks."""
    if not line.startswith(("warning[", "records: ", "iobench: interrupted")):
        display.note(line)
