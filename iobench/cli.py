"""Parse, call, print: nothing else. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from formats import FormatError, InvalidOption, UnknownFormat
from iobench.arms import FETCHES, LOADERS, START_METHODS, Settings
from iobench.errors import BenchError, InvalidSettings
from iobench.order import ORDERS

if TYPE_CHECKING:
    from iobench.sources import Source

app = typer.Typer(add_completion=False, rich_markup_mode=None)

USAGE_ERRORS = (InvalidSettings, InvalidOption, UnknownFormat)
# typer exports BadParameter, but not the class that all complaints about usage share
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

DataDir = Annotated[Path, typer.Option(help="The folder that holds datasets and results.")]
Name = Annotated[str | None, typer.Option(help="The dataset; by default the newest.", show_default=False)]


def main() -> None:
    """Run the command line: exit 1 with one line on stderr where something is wrong, 2 for usage."""
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message()} (see --help)", 2)  # type: ignore[attr-defined]
    except USAGE_ERRORS as error:
        _fail(str(error), 2)
    except (BenchError, FormatError) as error:
        _fail(str(error), 1)
    except BrokenPipeError:  # whoever read the results has gone; spare Python's own complaint at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if code == 130:  # Ctrl-C, which typer turns into this
        _fail("interrupted", 130)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _iobench(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which on-disk format feeds your training fastest, on your disk, your data and your GPU."""
    if version:
        from importlib import metadata

        print(f"iobench {metadata.version('iobench')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def prepare(
    size: Annotated[
        str | None,
        typer.Option(help="Elements to generate (1e7, 2_000_000), or bytes (4GiB). [default: 1e7]"),
    ] = None,
    sample_shape: Annotated[
        str | None,
        typer.Option(help="One sample's shape. [default: 128; 3x224x224 for images]"),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Of generated data. [default: float32]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of generated data. [default: 0]")] = None,
    compressibility: Annotated[
        float | None,
        typer.Option(help="Fraction, 0 to 1, of each generated sample that repeats. [default: 0]"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Your own data instead: .npy, .npz, .h5, .hdf5, or a folder of images.", show_default=False
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A format or variant, like hdf5:compression=gzip; repeatable. "
            "[default: npy, hdf5, lmdb, memmap]",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Annotated[
        str | None, typer.Option(help="[default: made from the data]", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write one shared array into every format, read it back and compare."""
    from iobench import display, tables
    from iobench.prepare import DEFAULT_FORMATS
    from iobench.prepare import prepare as write

    generated = {"size": size, "dtype": dtype, "seed": seed, "compressibility": compressibility}
    chosen = _source(source, sample_shape, generated)
    with display.progress() as progress:
        manifest, rows = write(
            chosen,
            format or DEFAULT_FORMATS,
            data_dir=data_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
    display.result(tables.dataset_line(manifest), tables.prepared_table(rows))
    display.note(f"in {manifest.root}; next: iobench run --name {manifest.name}")


@app.command()
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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    cache: Annotated[str, typer.Option(help="warm or cold.")] = "warm",
    sudo: Annotated[bool, typer.Option("--sudo", help="Drop the page cache through sudo -n.")] = False,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch.")] = 256,
    order: Annotated[str, typer.Option(help=" or ".join(ORDERS) + ".")] = "sequential",
    rounds: Annotated[int, typer.Option(help="Timed epochs of each arm.")] = 5,
    warmup: Annotated[int, typer.Option(help="Untimed epochs of each arm; the first checks it.")] = 1,
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
        bool, typer.Option("--limits/--no-limits", help="Measure what the hardware can do beside each arm.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of random order, of the order of arms and of the model.")] = 0,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Append records here. [default: a new file in DATA_DIR/results]", show_default=False
        ),
    ] = None,
) -> None:
    """Measure how fast each format reaches the device, in interleaved rounds."""
    from iobench import display, tables
    from iobench.manifest import find_dataset
    from iobench.record import plain
    from iobench.run import run as measure
    from iobench.summary import summarise

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
        block_bytes=_bytes("--block-size", block_size),
        window_bytes=_bytes("--window-size", window_size),
        seed=seed,
    )
    manifest = find_dataset(data_dir, name)
    display.note(tables.dataset_line(manifest) + ("" if name else f" (the newest in {data_dir})"))
    found = measure(
        manifest,
        format or ["all"],
        loader or ["all"],
        settings=settings,
        device=device,
        cache_mode=cache,
        sudo=sudo,
        rounds=rounds,
        warmup=warmup,
        model=model,
        limits=limits,
        out=out,
        on_status=display.note,
        on_record=lambda record: display.note(tables.round_line(record, rounds)),
    )
    if as_json:
        print(json.dumps(plain({**found.as_dict(), **summarise(found.records).as_dict()}), indent=2))
    else:
        display.run(found)
    for label, reason in found.failures.items():
        display.note(f"iobench: {reason}" if label in reason else f"iobench: {label}: {reason}")
    if found.interrupted:
        _fail("interrupted; what had been measured is kept", 130)
    raise typer.Exit(1 if found.failures else 0)


@app.command()
def limits(
    batch_size: Annotated[int, typer.Option(help="Samples in a batch: the size of a slot of memory.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
    seconds: Annotated[float, typer.Option(help="For each way to a limit.")] = 0.5,
    data_dir: DataDir = Path("data"),
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure what this disk, this memory and this device can do at most."""
    from iobench import display, tables
    from iobench.ceilings import survey
    from iobench.feed import pick_device
    from iobench.manifest import find_dataset

    for option, value in (("--batch-size", batch_size), ("--seconds", seconds)):
        if not 0 < value < math.inf:
            raise InvalidSettings(f"{option} {value} is not above 0, or not a number")
    manifest = find_dataset(data_dir, name)
    display.note(tables.dataset_line(manifest) + ("" if name else f" (the newest in {data_dir})"))
    found = survey(manifest, pick_device(device), batch_size, seconds, on_status=display.note)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        display.result(tables.limits_table(found.limits), *found.remarks)


@app.command()
def formats(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the formats, whether they can be used here, and their options."""
    import formats as storage
    from iobench import display, tables

    described = storage.describe()
    if as_json:
        print(json.dumps(described, indent=2))
    else:
        display.result(tables.formats_table(described))


@app.command()
def verify(
    format: Annotated[
        list[str] | None,
        typer.Option(help="A prepared variant; repeatable. [default: all]", show_default=False),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Name = None,
) -> None:
    """Reread every artifact and compare it with its manifest."""
    from iobench import display
    from iobench.manifest import find_dataset
    from iobench.verify import verify as reread

    manifest = find_dataset(data_dir, name)
    with display.progress() as progress:
        found = reread(manifest, format or [], progress=progress)
    for variant, problem in found.items():
        if problem is None:
            display.result(f"{variant}: intact")
        else:
            display.note(f"iobench: {problem}")
    raise typer.Exit(1 if any(found.values()) else 0)


def _source(source: Path | None, sample_shape: str | None, generated: Mapping[str, Any]) -> Source:
    """What prepare writes: the user's files, or generated data with its defaults filled in."""
    import numpy as np

    from formats import DTYPES
    from iobench import units
    from iobench.sources import Synthetic, open_source

    given = {key: value for key, value in generated.items() if value is not None}
    try:
        shape = units.parse_shape(sample_shape) if sample_shape is not None else None
        if source is not None:
            if given:
                flags = ", ".join(f"--{key}" for key in given)
                raise InvalidSettings(f"{flags}: for generated data only, not with --source")
            return open_source(source, shape)
        dtype = str(given.setdefault("dtype", "float32"))
        if dtype not in DTYPES:
            raise InvalidSettings(f"--dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        elements = units.parse_elements(str(given.pop("size", "1e7")), np.dtype(dtype).itemsize)
        return Synthetic(elements, shape or (128,), **given)
    except ValueError as error:
        if isinstance(error, BenchError):
            raise
        raise InvalidSettings(str(error)) from None


def _bytes(option: str, text: str) -> int:
    from iobench import units

    try:
        return units.parse_elements(text, item_bytes=1)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None


def _fail(message: str, code: int) -> NoReturn:
    print(f"iobench: {message}", file=sys.stderr)
    sys.exit(code)
