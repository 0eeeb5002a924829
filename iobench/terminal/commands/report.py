"""`iobench report` and `study`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from iobench.base.errors import ReportError
from iobench.base.units import counted
from iobench.host.device import pick_device
from iobench.results import history
from iobench.results.display import table
from iobench.terminal import display
from iobench.terminal.commands._options import AsJson, DataDir, Device, records_of


def report(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Runs: names or files of records. [default: the newest]")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="Folder for each chart as PNG and SVG.")] = None,
    data_dir: DataDir = Path("data"),
) -> None:
    """Write an HTML page with the results and their meaning.

    Example: iobench report --out report.html
    """
    if sys.flags.optimize > 1:
        raise ReportError(
            "the charts' library needs docstrings",
            kind="no-docstrings",
            found="PYTHONOPTIMIZE=2",
            hint="unset PYTHONOPTIMIZE",
        )
    os.stat("/proc/self")  # raises FileNotFoundError: without it the charts' library would panic
    from iobench import report as reporting
    from iobench import studies
    from iobench.advise import recommendation as recommendations

    answered, problems = studies.past(data_dir)
    advice, unread = recommendations.past(data_dir)
    for sentence in [*problems, *unread]:
        display.note(f"skipped: {sentence}")
    with display.progress() as progress:
        runs_there = [past for past in history.past(data_dir, progress) if not past.problem]
    paths = [history.find(data_dir, name) for name in runs or []]
    if not paths and (runs_there or not (answered or advice)):
        paths = [recommendations.final_run(advice, history.newest(data_dir))]
    trends = history.trends(runs_there)
    page, *pictures = reporting.write(records_of(paths), out, png, answered, trends, advice)
    display.result(str(page))
    display.note("open it in a browser")
    if pictures:
        display.note(f"{counted(len(pictures), 'picture')} in {png}")


def study(
    name: Annotated[str, typer.Argument(help="Name of the study; list shows them all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, under a minute.")] = False,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Repeat a published experiment and check each of its claims.

    Example: iobench study iteration
    """
    from iobench import studies

    if name == "list":
        known = studies.described()
        if as_json:
            display.as_json(known)
        else:
            rows = [(one["name"], one["question"], one["source"]) for one in known]
            display.blocks([table(("study", "question", "source"), rows)])
        return
    options = studies.StudyOptions(data_dir, quick, str(pick_device(device)), display.note)
    studies.study_of(name)
    result = studies.run(name, options)
    display.answer(result, as_json)
    display.note(f"verdicts saved to {studies.save(result, data_dir)}; 'iobench report' includes them")
