"""`iobench run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from iobench.bench.case import FETCHES, LOADERS, START_METHODS, Settings
from iobench.loading.order import ORDERS
from iobench.terminal.commands._options import (
    AsJson,
    DataDir,
    Device,
    MinDifference,
    Name,
    parse_bytes,
    parse_percent,
)

if TYPE_CHECKING:
    from iobench.bench.run import Run

INTERRUPTED = 130  # as a shell has it: 128 and the number of the signal


def run(
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A prepared format or variant, or all; repeatable. [default: all]", show_default=False
        ),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(LOADERS)} or all; repeatable. [default: all]", show_default=False),
    ] = None,
    device: Device = "auto",
    cache: Annotated[str, typer.Option(help="warm or cold.")] = "warm",
    sudo: Annotated[bool, typer.Option("--sudo", help="Drop the page cache through sudo -n.")] = False,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.")] = 256,
    order: Annotated[str, typer.Option(help=" or ".join(ORDERS) + ".")] = "sequential",
    rounds: Annotated[str, typer.Option(help="Timed epochs of each case, or auto.")] = "5",
    max_time: Annotated[
        float | None,
        typer.Option(help="Seconds that --rounds auto may take. [default: 300]", show_default=False),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Untimed epochs of each case; the first checks it.")] = 1,
    num_workers: Annotated[int, typer.Option(help="DataLoader's workers.")] = 0,
    prefetch_factor: Annotated[
        int | None, typer.Option(help="Batches ahead per worker. [default: torch's]", show_default=False)
    ] = None,
    start_method: Annotated[
        str | None,
        typer.Option(help=f"Of workers: {', '.join(START_METHODS)}. [default: Python's]", show_default=False),
    ] = None,
    pin_memory: Annotated[
        bool | None, typer.Option("--pin-memory/--no-pin-memory", help="[default: on with CUDA]")
    ] = None,
    non_blocking: Annotated[
        bool | None, typer.Option("--non-blocking/--no-non-blocking", help="[default: as --pin-memory]")
    ] = None,
    direct: Annotated[
        bool | None,
        typer.Option(
            "--direct/--no-direct",
            help="stream reads past the page cache, or never. [default: data that would not stay there]",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of stream. [default: by format and cores]", show_default=False)
    ] = None,
    block_size: Annotated[str, typer.Option(help="Bytes in a block of block order.")] = "1MiB",
    window_size: Annotated[str, typer.Option(help="Bytes that block order shuffles at a time.")] = "64MiB",
    fetch: Annotated[str, typer.Option(help=f"DataLoader's unit: {' or '.join(FETCHES)}.")] = "sample",
    model: Annotated[str, typer.Option(help="Train on each batch: none, mlp or cnn.")] = "none",
    limits: Annotated[
        bool, typer.Option("--limits/--no-limits", help="Measure what the hardware can do beside each case.")
    ] = True,
    profile: Annotated[
        bool, typer.Option("--profile", help="Split epochs into stages, and watch the machine.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write a Chrome trace of each case's first batches.")
    ] = False,
    min_difference: MinDifference = "5%",
    seed: Annotated[int, typer.Option(help="Of random order, of the order of cases and of the model.")] = 0,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Append records here. [default: a new file in DATA_DIR/results]", show_default=False
        ),
    ] = None,
) -> None:
    """Measure how fast each format reaches the device, in interleaved rounds."""
    from iobench.bench.plan import Rounds
    from iobench.bench.run import run as measure
    from iobench.dataset.manifest import find_dataset
    from iobench.terminal import display, live, tables

    smallest = parse_percent("--min-difference", min_difference)
    settings = Settings(
        batch_size=batch_size,
        order=order,
        fetch=fetch,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        start_method=start_method,
        pin_memory=pin_memory,
        non_blocking=non_blocking,
        direct=direct,
        threads=threads,
        block_bytes=parse_bytes("--block-size", block_size),
        window_bytes=parse_bytes("--window-size", window_size),
        seed=seed,
    )
    manifest = find_dataset(data_dir, name)
    display.note(tables.dataset_line(manifest) + ("" if name else f" (the newest in {data_dir})"))
    planned = Rounds.parse(rounds, max_time)
    with live.view(planned, batch_size * manifest.schema.sample_bytes) as observer:
        found = measure(
            manifest,
            format or ["all"],
            loader or ["all"],
            settings=settings,
            device=device,
            cache_mode=cache,
            sudo=sudo,
            rounds=planned,
            warmup=warmup,
            model=model,
            limits=limits,
            profile=profile,
            trace=trace,
            out=out,
            observer=observer,
        )
    _show(found, smallest, as_json)


def _show(found: Run, smallest: float, as_json: bool) -> NoReturn:
    from iobench.results.summary import summarise
    from iobench.terminal import display

    if as_json:
        display.as_json({**found.as_dict(), **summarise(found.records, smallest).as_dict()})
    else:
        display.run(found, smallest)
    for label, reason in found.failures.items():
        display.note(f"iobench: {reason}" if label in reason else f"iobench: {label}: {reason}")
    if found.interrupted:
        display.note("iobench: interrupted; what had been measured is kept")
        sys.exit(INTERRUPTED)
    raise typer.Exit(1 if found.failures else 0)
