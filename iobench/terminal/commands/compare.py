"""`iobench compare`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from iobench.base.errors import InvalidSettings, NoRounds, conflict
from iobench.base.finding import Finding
from iobench.base.units import parse_percent
from iobench.bench.budget import Budget
from iobench.bench.options import flag_of
from iobench.results import compare as comparing
from iobench.results import history
from iobench.results.compare import CompareResult, MachineComparison, compare_machines
from iobench.results.record import Record
from iobench.results.run_warning import LONGER
from iobench.results.stats import ENOUGH_ROUNDS
from iobench.results.warnings import MACHINE_KINDS, warnings_of
from iobench.terminal import display
from iobench.terminal.commands import _options as shared

INCONCLUSIVE_CODE = 3  # exit code of --fail-on if nothing can be said
OF_LOADERS = ("max_time", "device", "timeout", "out")  # options that need --run
OF_FILES = ("force", "data_dir")  # options that exclude it
OF_VERDICTS = ("min_difference", "fail_on", "force", "run")  # options that exclude --machines


def compare(
    context: typer.Context,
    base: Annotated[
        str,
        typer.Argument(
            help="Run to compare with: a name or a file of records, several with commas; with --run a loader."
        ),
    ],
    new: Annotated[list[str], typer.Argument(help="Newer runs or loaders, one or more.")],
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Measure loaders of your own in turns: --run base/train.py:make head/train.py:make."
        ),
    ] = False,
    machines: Annotated[
        bool,
        typer.Option("--machines", help="Show runs of several machines side by side, without a verdict."),
    ] = False,
    max_time: shared.TimeLimit = 60.0,
    device: shared.Device = "auto",
    timeout: shared.Timeout = 60.0,
    out: shared.Out = None,
    min_difference: shared.MinDifference = "5%",
    fail_on: Annotated[
        str | None,
        typer.Option(
            help=(
                "slower:5% exits with 1 if a case is 5% slower, missing or has too few rounds, "
                "3 if the machine changed or no time was left."
            )
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs that were measured differently.")
    ] = False,
    data_dir: shared.DataDir = Path("data"),
    as_json: shared.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare newer runs with an earlier one, case by case.

    Example: iobench compare before.jsonl after.jsonl --fail-on slower:5%
    """
    began, allowed = time.monotonic(), _allowed(fail_on)
    if as_json and markdown:
        raise conflict("--json with --markdown", "give one of them")
    smallest = shared.parsed("--min-difference", parse_percent, min_difference)
    if machines:
        _check_typed(context, (*OF_LOADERS, *OF_VERDICTS), "without", "--machines")
        given = (base, *new)
        names = given if len({*map(_stems, given)}) < len(given) else map(_stems, given)
        runs = dict(zip(names, (_records(data_dir, name) for name in given), strict=True))
        _show(compare_machines(runs), as_json, markdown)
        return
    _check_typed(context, OF_FILES if run else OF_LOADERS, "without" if run else "with")
    judge: Callable[..., CompareResult]
    if run:
        from iobench.advise.loaders_in_turns import measured_in_turns

        budget = Budget(max_time, began)
        try:
            sides = measured_in_turns([base, *new], device=device, budget=budget, timeout_s=timeout, out=out)
        except NoRounds as error:
            if allowed is None:
                raise
            display.error(error.kind, f"--fail-on {fail_on}: {error}")
            raise typer.Exit(INCONCLUSIVE_CODE) from None
        judge = partial(comparing.compare_in_turns, base, sides)
    else:
        newer = {name: _records(data_dir, name) for name in new}
        stems = {_stems(name): records for name, records in newer.items()}
        newer = stems if len(stems) == len(newer) else newer
        sides = {_stems(base): _records(data_dir, base), **newer}
        judge = partial(comparing.compare, sides[_stems(base)], newer, base_name=_stems(base), force=force)
    result = judge(min_difference=smallest)
    _show(result, as_json, markdown)
    for line in result.unmatched_notes if allowed is None else ():
        display.note(line)
    _warn(result, sides)
    if allowed is not None:
        _judge(judge(min_difference=allowed), str(fail_on))


def _show(result: CompareResult | MachineComparison, as_json: bool, markdown: bool) -> None:
    if markdown:
        display.result(*display.markdown(result.blocks()))
    else:
        display.answer(result, as_json)


def _check_typed(context: typer.Context, names: Sequence[str], other: str, flag: str = "--run") -> None:
    """Raise InvalidSettings for an option that applies only with, or without, a flag."""
    for name in names:
        if shared.was_typed(context, name):
            raise conflict(
                f"{flag_of(name)} applies {other} {flag}", f"add {flag}" if other == "with" else "omit it"
            )


def _warn(result: CompareResult, runs: Mapping[str, Sequence[Record]]) -> None:
    for name, records in runs.items():
        for warning in warnings_of(records):
            if warning.kind in MACHINE_KINDS:
                display.warning(replace(warning, message=f"{name}: {warning.message}"))
    for warning in result.warnings:
        display.warning(warning)
    if min(min(one.rounds) for one in result.cases) < ENOUGH_ROUNDS:
        hint = LONGER if result.in_turns else f"measure with --rounds {ENOUGH_ROUNDS}"
        display.warning(Finding("few-rounds", f"intervals need {ENOUGH_ROUNDS} rounds or more", hint))


def _records(data_dir: Path, name: str) -> list[Record]:
    """Return the records of one side: one run, or several separated by commas."""
    names = [name] if history.is_file(Path(name)) else shared.words_of(name)
    return shared.records_of([history.find(data_dir, one) for one in names])


def _stems(name: str) -> str:
    return ",".join(Path(one).stem for one in shared.words_of(name))


def _allowed(fail_on: str | None) -> float | None:
    if fail_on is None:
        return None
    word, _, size = fail_on.partition(":")
    if word != "slower":
        raise InvalidSettings("--fail-on", kind="invalid-value", expected="slower:5%", found=repr(fail_on))
    return shared.parsed("--fail-on", parse_percent, size)


def _judge(judged: CompareResult, gate: str) -> None:
    """Exit with 1 if a case got slower, with 3 if the machine changed too much to say."""
    for complaints, code in ((judged.complaints, 1), (judged.warnings, INCONCLUSIVE_CODE)):
        for complaint in complaints:
            display.error(complaint.kind, f"--fail-on {gate}: {complaint.sentence}")
        if complaints:
            raise typer.Exit(code)
