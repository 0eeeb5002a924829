"""`iobench formats`, `loaders`, `verify` and `limits`: what is there, and what it can do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.terminal.commands._options import AsJson, DataDir, Device, Name


def formats(as_json: AsJson = False) -> None:
    """List the formats, their options, and which can be used here."""
    from iobench import formats as storage

    _describe("format", storage.describe(), as_json)


def loaders(as_json: AsJson = False) -> None:
    """List the loaders, their options, and which can be used here."""
    from iobench.loading import loaders as known

    _describe("loader", known.describe(), as_json)


def _describe(kind: str, described: list[dict[str, Any]], as_json: bool) -> None:
    from iobench.terminal import display, tables

    if as_json:
        display.as_json(described)
    else:
        display.result(tables.kinds_table(kind, described), "", tables.kind_options_table(kind, described))


def verify(
    format: Annotated[
        list[str] | None,
        typer.Option(help="A prepared variant; repeatable. [default: all]", show_default=False),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Name = None,
) -> None:
    """Reread every artifact and compare it with its manifest."""
    from iobench.dataset.manifest import find_dataset
    from iobench.dataset.verify import verify as reread
    from iobench.terminal import display

    manifest = find_dataset(data_dir, name)
    with display.progress() as progress:
        found = reread(
            manifest,
            format or [],
            progress=progress,
            leave_out=lambda sentence: display.note(f"left out: {sentence}"),
        )
    for variant, problem in found.items():
        if problem is None:
            display.result(f"{variant}: intact")
        else:
            display.note(f"iobench: {problem}")
    raise typer.Exit(1 if any(found.values()) else 0)


def limits(
    batch_size: Annotated[
        int, typer.Option(help="Samples in a batch; memory is copied in pieces of that size.")
    ] = 256,
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(help="Seconds that each limit is measured for.")] = 0.5,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Measure what this disk, memory and device can do at most."""
    from iobench.bench.case_limits import survey
    from iobench.dataset.manifest import find_dataset
    from iobench.host.device import pick_device
    from iobench.terminal import display, tables

    for option, value in (("--batch-size", batch_size), ("--seconds", seconds)):
        if not 0 < value < math.inf:
            raise InvalidSettings(f"{option} {value} is not above 0, or not a number")
    manifest = find_dataset(data_dir, name)
    display.note(tables.dataset_line(manifest) + ("" if name else f" (the newest in {data_dir})"))
    found = survey(manifest, pick_device(device), batch_size, seconds, on_status=display.note)
    if as_json:
        display.as_json(found.as_dict())
    else:
        display.result(tables.limits_table(found.limits), *found.remarks)
