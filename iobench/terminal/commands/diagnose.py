"""`iobench diagnose`."""

from __future__ import annotations

from typing import Annotated

import typer

from iobench.bench.budget import Budget
from iobench.bench.options import check_above_zero
from iobench.terminal.commands._options import AsJson, Device, TimeLimit, Timeout


def diagnose(
    target: Annotated[
        str,
        typer.Argument(help="Function that makes the loader: train.py:make_loader or module:make_loader."),
    ],
    batches: Annotated[
        int | None, typer.Option(help="At most this many batches per loop over the loader. [default: all]")
    ] = None,
    max_time: TimeLimit = 20.0,
    timeout: Timeout = 60.0,
    variants: Annotated[
        bool, typer.Option("--variants/--no-variants", help="Try other settings and measure the best again.")
    ] = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find out why your DataLoader is slow, and what to change.

    Example: iobench diagnose train.py:make_loader
    """
    budget = Budget(max_time)
    from iobench.advise import diagnose as session
    from iobench.host.device import pick_device
    from iobench.terminal import display

    check_above_zero(batches=batches, max_time=max_time, timeout=timeout)
    diagnosis = session.diagnose(
        target,
        batches=batches,
        timeout_s=timeout,
        variants=variants,
        device=str(pick_device(device)),
        on_status=display.note,
        budget=budget,
    )
    display.answer(diagnosis, as_json)
