"""`iobench compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import parse_percent
from iobench.results.stats import ENOUGH_ROUNDS
from iobench.terminal.commands._options import AsJson, DataDir, MinDifference, parsed, records_of, words_of

if TYPE_CHECKING:
    from iobench.results.compare import CompareResult
    from iobench.results.record import Record


INCONCLUSIVE_CODE = 3  # exit code of --fail-on if the machine changed between the runs


def compare(
    base: Annotated[
        str, typer.Argument(help="Run to compare with: a name or a file of records; several with commas.")
    ],
    new: Annotated[list[str], typer.Argument(help="Newer runs, one or more.")],
    min_difference: MinDifference = "5%",
    fail_on: Annotated[
        str | None,
        typer.Option(
            help=(
                "slower:5% exits with 1 if a case is 5% slower, missing or has too few rounds, "
                "3 if the machine changed."
            )
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs that were measured differently.")
    ] = False,
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare newer runs with an earlier one, case by case."""
    from iobench.results import compare as comparing
    from iobench.terminal import compared, display

    allowed = _allowed(fail_on)
    if as_json and markdown:
        raise InvalidSettings("--json with --markdown", kind="conflicting-options", hint="give one of them")
    base_records, newer = _records(data_dir, base), {name: _records(data_dir, name) for name in new}
    names = {_stems(name): records for name, records in newer.items()}
    named = names if len(names) == len(newer) else newer
    smallest = parsed("--min-difference", parse_percent, min_difference)
    result = comparing.compare(
        base_records, named, base_name=_stems(base), min_difference=smallest, force=force
    )
    if as_json:
        display.as_json(result)
    elif markdown:
        display.result(*compared.compared_markdown(result).split("\n"))
    else:
        display.result(compared.compared_table(result), "", compared.compared_line(result))
    for line in result.unmatched_notes if allowed is None else ():
        display.note(line)
    _warn(result, {result.base: base_records, **named})
    if allowed is not None:
        judged = comparing.compare(
            base_records, named, base_name=result.base, min_difference=allowed, force=True
        )
        _judge(judged, str(fail_on))


def _warn(result: CompareResult, runs: Mapping[str, Sequence[Record]]) -> None:
    """Print the reasons to distrust a comparison."""
    from iobench.results.warnings import MACHINE_KINDS, warnings_of
    from iobench.terminal import display

    for name, records in runs.items():
        for warning in warnings_of(records):
            if warning.kind in MACHINE_KINDS:
                display.warning(replace(warning, message=f"{name}: {warning.message}"))
    for warning in result.warnings:
        display.warning(warning)
    if min(min(one.rounds) for one in result.cases) < ENOUGH_ROUNDS:
        few, hint = f"intervals need {ENOUGH_ROUNDS} rounds or more", f"measure with --rounds {ENOUGH_ROUNDS}"
        display.warning(Finding("few-rounds", few, hint))


def _records(data_dir: Path, name: str) -> list[Record]:
    """Return the records of one side: one run, or several separated by commas."""
    from iobench.results import history

    names = [name] if history.is_file(Path(name)) else words_of(name)
    return records_of([history.find(data_dir, one) for one in names])


def _stems(name: str) -> str:
    return ",".join(Path(one).stem for one in words_of(name))


def _allowed(fail_on: str | None) -> float | None:
    if fail_on is None:
        return None
    word, _, size = fail_on.partition(":")
    if word != "slower":
        raise InvalidSettings("--fail-on", kind="invalid-value", expected="slower:5%", found=repr(fail_on))
    return parsed("--fail-on", parse_percent, size)


def _judge(judged: CompareResult, gate: str) -> None:
    """Exit with 1 if a case got slower, with 3 if the machine changed too much to say."""
    from iobench.terminal import display

    for complaints, code in ((judged.complaints, 1), (judged.warnings, INCONCLUSIVE_CODE)):
        for complaint in complaints:
            display.note(f"iobench: error[{complaint.kind}]: --fail-on {gate}: {complaint.sentence}")
        if complaints:
            raise typer.Exit(code)
