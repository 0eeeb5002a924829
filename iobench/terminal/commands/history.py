"""List, show, compare over time, delete and export past runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from iobench.base.errors import InvalidSettings
from iobench.base.text import printable, shortened
from iobench.base.units import counted
from iobench.results import history
from iobench.results.display import Block, table
from iobench.results.history import PastRun
from iobench.results.trend import MIN_RUNS, MIN_STEP_RUNS, blocks_of
from iobench.terminal import display, runs
from iobench.terminal.commands._options import AsJson, Command, DataDir, Long, Wide, records_of

app = typer.Typer(name="runs", add_completion=False, rich_markup_mode=None, help=__doc__)

Here = Annotated[Path | None, typer.Option("--data-dir", help="Folder of datasets and results.")]
RunName = Annotated[str, typer.Argument(help="Run: a name or a file of records.")]


@app.callback(invoke_without_command=True)
def list_runs(context: typer.Context, data_dir: DataDir = Path("data"), as_json: AsJson = False) -> None:
    """List past runs, the newest first."""
    context.obj = data_dir
    if context.invoked_subcommand is not None:
        return
    with display.progress() as progress:
        past_runs = history.past(data_dir, progress)
    if as_json:
        display.as_json(past_runs)
        return
    readable = _readable(data_dir, past_runs)
    titles = ("name", "verdict", "dataset", "cases", "rounds", "device", "cache", "when (UTC)")
    rows = [
        (
            run.name,
            run.brief,
            shortened(run.dataset),
            str(run.cases),
            str(run.rounds),
            run.device,
            run.cache,
            run.time[:16].replace("T", " "),
        )
        for run in readable
    ]
    steps = [one.sentence for one in history.trends(readable) if one.step is not None]
    display.blocks([table(titles, rows), *([Block("text", steps)] if steps else [])])


@app.command(cls=Command)
def show(
    context: typer.Context,
    name: RunName,
    data_dir: Here = None,
    long: Long = False,
    wide: Wide = False,
    warnings: Annotated[bool, typer.Option("--warnings", help="Show every warning.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the tables of a past run.

    Example: iobench runs show NAME --wide
    """
    options = runs.TableOptions(as_json=as_json, wide=wide, long=long, warnings=warnings)
    runs.records(records_of([history.find(data_dir or context.obj, name)]), options, name)


@app.command(cls=Command)
def trend(context: typer.Context, data_dir: Here = None, as_json: AsJson = False) -> None:
    """Show each case over several runs, and its steps.

    Example: iobench runs trend
    """
    folder = data_dir or context.obj
    with display.progress() as progress:
        case_trends = history.trends(history.past(folder, progress))
    if as_json:
        display.as_json(case_trends)
        return
    if not case_trends:
        display.note(
            f"a trend needs {MIN_RUNS} runs of a case, a step {MIN_STEP_RUNS}; "
            f"no case in {folder / 'results'} has that many"
        )
        return
    display.blocks(blocks_of(case_trends))


@app.command(cls=Command)
def delete(
    context: typer.Context,
    name: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: Here = None,
) -> None:
    """Delete the records and traces of a past run.

    Example: iobench runs delete NAME --yes
    """
    path = history.find(data_dir or context.obj, name)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidSettings(
                "runs delete without a terminal", kind="needs-confirmation", path=path, hint="add --yes"
            )
        typer.confirm(printable(f"delete {path}?"), abort=True, err=True)
    for gone in history.delete(path):
        display.note(f"deleted {gone}")


@app.command(cls=Command)
def export(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="New .csv or .parquet file.")],
    names: Annotated[list[str] | None, typer.Argument(help="Runs. [default: all]")] = None,
    data_dir: Here = None,
) -> None:
    """Write past runs as one table, one row per round.

    Example: iobench runs export --out rounds.csv
    """
    folder = data_dir or context.obj
    paths = [history.find(folder, name) for name in names or []]
    with display.progress() as progress:
        past_runs = [] if paths else history.past(folder, progress)
    paths = paths or [past.path for past in _readable(folder, past_runs)]
    records = records_of(paths)
    history.export(records, out)
    display.note(f"{counted(len(records), 'round')} in {out}")


def _readable(data_dir: Path, past_runs: Sequence[PastRun]) -> list[PastRun]:
    """Return the runs that can be read, after a line for each other one; RecordError without any."""
    problems = [past.problem for past in past_runs if past.problem]
    if len(problems) == len(past_runs):
        raise problems[0] if problems else history.no_runs(data_dir)
    for problem in problems:
        display.note(f"skipped: {problem}")
    return [past for past in past_runs if not past.problem]
