"""`iobench diagnose`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.terminal.commands._options import AsJson, Device


def diagnose(
    target: Annotated[
        str, typer.Argument(help="package.module:callable, or path/to/file.py:callable, that makes it.")
    ],
    batches: Annotated[
        int | None,
        typer.Option(
            help="The most batches that the loader is asked for, each time that it is run. [default: all]",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds that all of it may take.")] = 20.0,
    timeout: Annotated[
        float, typer.Option(help="Seconds without a batch after which the loader is ended.")
    ] = 60.0,
    variants: Annotated[
        bool,
        typer.Option(
            "--variants/--no-variants", help="Race other settings, and measure the best of them again."
        ),
    ] = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Say what is slow about a loader of yours, and what to do."""
    from iobench.diagnose import session
    from iobench.host.device import pick_device
    from iobench.terminal import display
    from iobench.tuning.tune import own_of

    for option, value in (("--batches", batches), ("--seconds", seconds), ("--timeout", timeout)):
        if value is not None and not 0 < value < math.inf:
            raise InvalidSettings(f"{option} {value} is not above 0, or not a number")
    found = session.diagnose(
        own_of(target)[0],
        batches=batches,
        seconds=seconds,
        timeout_s=timeout,
        variants=variants,
        device=str(pick_device(device)),
        on_status=display.note,
    )
    if as_json:
        display.as_json(found.as_dict())
    else:
        display.diagnosis(found)
