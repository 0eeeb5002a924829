"""`iobench resume-check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.bench.options import check_above_zero
from iobench.terminal.commands._options import AsJson, DataDir, NameOrAddress, S3Endpoint, listed_numbers

MOST = 1024  # ranks or workers


def resume_check(
    target: Annotated[
        list[str],
        typer.Argument(
            help="Loaders that have a state, such as stream, or functions: train.py:make_loader.",
        ),
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
    data_dir: DataDir = Path("data"),
    name: NameOrAddress = None,
    s3_endpoint: S3Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Kill and resume loaders; count lost and repeated samples.

    A user's function takes neither format nor order nor batch size: give arguments in its word.

    Example: iobench resume-check stream
    """
    from iobench.bench.resume_check import ResumePlan, resumable_loaders, resume_check
    from iobench.objects.url import use_endpoint
    from iobench.terminal import display

    use_endpoint(s3_endpoint)
    check_above_zero(stop_after=stop_after, timeout=timeout)
    ranks = _numbers("--world-size", world_size, 1)
    plan = ResumePlan(stop_after, ranks, _numbers("--workers", workers, 0), timeout)
    loaders = resumable_loaders(target, data_dir, name, format, order, batch_size)
    checked = resume_check(loaders, plan, on_status=display.note)
    display.answer(checked, as_json)
    raise typer.Exit(1 if checked.bad else 0)


def _numbers(option: str, text: str | None, least: int) -> tuple[int, ...]:
    from iobench.base.options import check_number

    # one by one, because a number may come again
    numbers = tuple(listed_numbers(option, part, int)[0] for part in (text or "").split(",") if text)
    for number in numbers:
        check_number(option, number, least, MOST)
    return numbers
