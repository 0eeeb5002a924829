"""`iobench tune`, `diagnose` and `resume-check`: what a loader of your own lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.base.options import check_number
from iobench.base.units import parse_elements
from iobench.bench.budget import Budget
from iobench.bench.options import MODELS, check_above_zero
from iobench.host.device import pick_device
from iobench.objects.url import use_endpoint
from iobench.terminal import display
from iobench.terminal.commands import _options as shared


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
    max_time: shared.TimeLimit = 60.0,
    timeout: shared.Timeout = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the order of rounds and of the model.")] = 0,
    device: shared.Device = "auto",
    data_dir: shared.DataDir = Path("data"),
    out: shared.Out = None,
    as_json: shared.AsJson = False,
) -> None:
    """Find the fastest settings of your own DataLoader.

    Example: iobench tune train.py:make_loader:batch_size=64
    """
    budget = Budget(max_time)
    from iobench.advise.tune import next_step
    from iobench.advise.tune import tune as search

    result = search(
        target,
        device=device,
        step_ms=step_ms,
        model=model,
        headroom=headroom,
        max_memory_bytes=shared.parsed("--max-memory", parse_elements, max_memory) if max_memory else None,
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


def diagnose(
    target: Annotated[
        str,
        typer.Argument(help="Function that makes the loader: train.py:make_loader or module:make_loader."),
    ],
    batches: Annotated[
        int | None, typer.Option(help="At most this many batches per loop over the loader. [default: all]")
    ] = None,
    max_time: shared.TimeLimit = 20.0,
    timeout: shared.Timeout = 60.0,
    variants: Annotated[
        bool, typer.Option("--variants/--no-variants", help="Try other settings and measure the best again.")
    ] = True,
    device: shared.Device = "auto",
    as_json: shared.AsJson = False,
) -> None:
    """Find out why your DataLoader is slow, and what to change.

    Example: iobench diagnose train.py:make_loader
    """
    budget = Budget(max_time)
    from iobench.advise import diagnose as session

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


MOST = 1024  # ranks or workers


def resume_check(
    target: Annotated[
        list[str],
        typer.Argument(help="Loaders that have a state, such as stream, or functions: train.py:make_loader."),
    ],
    stop_after: Annotated[
        int | None,
        typer.Option(help="Batches of each rank before each stop. [default: about half of the epoch in all]"),
    ] = None,
    world_size: Annotated[
        str | None, typer.Option(help="Numbers of ranks before and after each stop, like 2,3.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of workers before and after each stop, like 0,2.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="Variant of the dataset. [default: the first that the loader reads]")
    ] = None,
    order: Annotated[str, typer.Option(help="Order of samples: sequential, random or block.")] = "random",
    batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 256,
    timeout: Annotated[
        float, typer.Option(help="Kill a process after this many seconds without a batch.")
    ] = 60.0,
    data_dir: shared.DataDir = Path("data"),
    name: shared.NameOrAddress = None,
    s3_endpoint: shared.S3Endpoint = None,
    as_json: shared.AsJson = False,
) -> None:
    """Kill and resume loaders; count lost and repeated samples.

    A user's function takes neither format nor order nor batch size: give arguments in its word.

    Example: iobench resume-check stream
    """
    from iobench.bench.resume_check import ResumePlan, resumable_loaders, resume_check

    use_endpoint(s3_endpoint)
    check_above_zero(stop_after=stop_after, timeout=timeout)
    ranks = _numbers("--world-size", world_size, 1)
    plan = ResumePlan(stop_after, ranks, _numbers("--workers", workers, 0), timeout)
    loaders = resumable_loaders(target, data_dir, name, format, order, batch_size)
    checked = resume_check(loaders, plan, on_status=display.note)
    display.answer(checked, as_json)
    raise typer.Exit(1 if checked.bad else 0)


def _numbers(option: str, text: str | None, least: int) -> tuple[int, ...]:
    # one by one, because a number may come again
    numbers = tuple(shared.listed_numbers(option, part, int)[0] for part in (text or "").split(",") if text)
    for number in numbers:
        check_number(option, number, least, MOST)
    return numbers
