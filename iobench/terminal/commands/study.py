"""`iobench study`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.terminal.commands._options import AsJson, DataDir, Device


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
    from iobench.host.device import pick_device
    from iobench.terminal import display, tables

    if name == "list":
        known = studies.described()
        if as_json:
            display.as_json(known)
        else:
            display.result(tables.studies_table(known))
        return
    options = studies.StudyOptions(data_dir, quick, str(pick_device(device)), display.note)
    studies.study_of(name)
    result = studies.run(name, options)
    if as_json:
        display.as_json(result)
    else:
        display.result(result.source, result.setup, "", tables.contenders_table(result), "")
        for claim in result.claims:
            display.result(claim.sentence, f"    {claim.evidence}")
    for warning in result.warnings:
        display.warning(warning)
    display.note(f"verdicts saved to {studies.save(result, data_dir)}; 'iobench report' includes them")
