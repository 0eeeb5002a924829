"""`iobench tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.base.units import parse_elements
from iobench.bench.budget import Budget
from iobench.bench.options import MODELS
from iobench.terminal.commands._options import AsJson, DataDir, Device, Out, TimeLimit, Timeout, parsed


def tune(
    target: Annotated[
        str,
        typer.Argument(
            help="Function that makes the loader, with its arguments: train.py:make_loader:batch_size=64."
        ),
    ],
    step_ms: Annotated[float, typer.Option(help="Milliseconds of a training step.")] = 0.0,
    model: Annotated[str, typer.Option(help=f"Training step on each batch: {', '.join(MODELS)}.")] = "none",
    headroom: Annotated[
        bool,
        typer.Option("--headroom", help="Also time the loop over batches that are already on the device."),
    ] = False,
    max_memory: Annotated[
        str | None, typer.Option(help="Memory limit of the process and its workers, like 4GiB.")
    ] = None,
    max_workers: Annotated[int | None, typer.Option(help="At most this many worker processes.")] = None,
    max_time: TimeLimit = 60.0,
    timeout: Timeout = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of rounds and of the model.")] = 0,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest settings of your own DataLoader.

    Example: iobench tune train.py:make_loader:batch_size=64
    """
    budget = Budget(max_time)
    from iobench.advise.tune import next_step
    from iobench.advise.tune import tune as search
    from iobench.terminal import display

    result = search(
        target,
        device=device,
        step_ms=step_ms,
        model=model,
        headroom=headroom,
        max_memory_bytes=parsed("--max-memory", parse_elements, max_memory) if max_memory else None,
        max_workers=max_workers,
        timeout_s=timeout,
        seed=seed,
        data_dir=data_dir,
        out=out,
        on_status=display.note,
        budget=budget,
    )
    display.answer(result, as_json)
    if not as_json:
        for path in result.records:
            display.note(f"records: {path}")
        display.note(f"next: {next_step(result, target, max_time)}")
