"""`iobench compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.results.stats import ENOUGH
from iobench.terminal.commands._options import AsJson, DataDir, MinDifference, parse_percent, words_of
from iobench.terminal.commands._records import records_of

if TYPE_CHECKING:
    from iobench.results.compare import Compared
    from iobench.results.record import Record


MEASURE_AGAIN = "measure both again, one after the other, with nothing else at work"
CANNOT_TELL_CODE = 3  # of a gate, where the machine is in the way


def compare(
    base: Annotated[
        str, typer.Argument(help="A file of records, or the name of an earlier run; or several, with commas.")
    ],
    new: Annotated[list[str], typer.Argument(help="Runs to compare with it, named likewise; one or more.")],
    min_difference: MinDifference = "5%",
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="With slower:5%, exit 1 where a case is slower by that much, 3 where nobody can tell.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare although the runs were not measured alike.")
    ] = False,
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare runs with an earlier one, case by case."""
    from iobench.results import compare as comparing
    from iobench.results.warnings import OF_THE_MACHINE, warnings_of
    from iobench.terminal import compared, display

    allowed = _allowed(fail_on)
    if as_json and markdown:
        raise InvalidSettings("--json and --markdown: choose one")
    base_records, newer = _records(data_dir, base), {name: _records(data_dir, name) for name in new}
    names = {_stems(name): records for name, records in newer.items()}
    named = names if len(names) == len(newer) else newer
    smallest = parse_percent("--min-difference", min_difference)
    found = comparing.compare(base_records, named, base_name=_stems(base), smallest=smallest, force=force)
    if as_json:
        display.as_json(found.as_dict())
    elif markdown:
        display.result(*compared.compared_markdown(found).split("\n"))
    else:
        display.result(compared.compared_table(found), "", compared.compared_line(found))
    for sentence in found.missing if allowed is None else ():
        display.note(sentence)
    for name, records in {found.base: base_records, **named}.items():
        for warning in warnings_of(records):
            if warning.kind in OF_THE_MACHINE:
                display.note(f"warning: {name}: {warning.sentence}")
    for sentence in compared.cannot_tell_lines(found):
        display.note(f"warning: {sentence}; {MEASURE_AGAIN}")
    if min(min(line.rounds) for line in found.lines) < ENOUGH:
        display.note(
            f"warning: fewer than {ENOUGH} rounds make no sure interval; "
            f"measure with --rounds {ENOUGH} or more"
        )
    if allowed is not None:
        judged = comparing.compare(base_records, named, base_name=found.base, smallest=allowed, force=True)
        _judge(judged, str(fail_on))


def _records(data_dir: Path, name: str) -> list[Record]:
    """The records of a side: of one file, or of several with commas."""
    from iobench.results import history

    names = [name] if Path(name).is_file() else words_of(name)
    return records_of([history.find(data_dir, one) for one in names])


def _stems(name: str) -> str:
    return ",".join(Path(one).stem for one in words_of(name))


def _allowed(fail_on: str | None) -> float | None:
    if fail_on is None:
        return None
    word, _, size = fail_on.partition(":")
    if word != "slower":
        raise InvalidSettings(f"--fail-on {fail_on!r}: write it like slower:5%")
    return parse_percent("--fail-on", size)


def _judge(judged: Compared, gate: str) -> None:
    """Exit where a gate stays shut: 1 where a case got slower, 3 where the machine hides if one did."""
    from iobench.terminal import display
    from iobench.terminal.compared import cannot_tell_lines

    for complaints, code in ((_complaints(judged), 1), (cannot_tell_lines(judged), CANNOT_TELL_CODE)):
        for complaint in complaints:
            display.note(f"iobench: --fail-on {gate}: {complaint}")
        if complaints:
            raise typer.Exit(code)


def _complaints(judged: Compared) -> list[str]:
    """Cases that got slower, that too few rounds leave open, or that are gone."""
    slower = [
        f"{line.case} in {line.new} is slower, it takes {1 / line.comparison.ratio.median:.2f} × as long"
        for line in judged.lines
        if line.comparison.outcome == "slower"
    ]
    open_ = [
        f"{line.case} in {line.new}: too few rounds to tell; measure with --rounds 5 or more"
        for line in judged.lines
        if min(line.rounds) < ENOUGH and line.comparison.outcome != "slower"
    ]
    gone = [
        f"{sentence}: it is gone" for sentence in judged.missing if sentence.endswith(f"in {judged.base}")
    ]
    return slower + open_ + gone
