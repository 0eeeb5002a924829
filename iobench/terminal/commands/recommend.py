"""`iobench recommend`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.advise.requirements import EPOCHS, MAX_TIME_S
from iobench.base.errors import InvalidSettings
from iobench.base.units import parse_elements, parse_shape
from iobench.bench.options import MODELS
from iobench.loading.order import ORDERS
from iobench.results.prices import PRICES_HELP
from iobench.terminal.commands._options import (
    AsJson,
    DataDir,
    Device,
    NameOrAddress,
    S3Endpoint,
    SourceFormat,
    listed_numbers,
    parsed,
)

if TYPE_CHECKING:
    from iobench.dataset.manifest import Manifest
    from iobench.dataset.sources import Source

HASHING = 0.2  # of the time, for what --add hashes


def recommend(
    name: NameOrAddress = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Your own data, as for 'iobench prepare'; a sample is written in every format.",
            show_default=False,
        ),
    ] = None,
    add: Annotated[
        Path | None,
        typer.Option(
            help="Your own files in a known format, registered in place as by 'iobench add'.",
            show_default=False,
        ),
    ] = None,
    source_format: SourceFormat = None,
    sample_shape: Annotated[
        str | None, typer.Option(help="Shape that images are cropped to, as for 'iobench prepare'.")
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(help="Format or variant to consider; repeatable. [default: all]", show_default=False),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="Loader with its options to consider; repeatable. [default: all installed]",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    order: Annotated[str, typer.Option(help=f"Order of the samples: {', '.join(ORDERS)}.")] = "random",
    min_shuffle: Annotated[
        float | None,
        typer.Option(
            help="Least shuffle quality, 0 to 1; below 1, block order takes part. [default: 1; 0 with "
            "--order block]",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option(help="Samples in a batch; of a list like 64,256 the fastest size.")
    ] = "256",
    full_size: Annotated[
        str | None,
        typer.Option(help="Size of the full data, like 2TiB. [default: as given]", show_default=False),
    ] = None,
    step_ms: Annotated[
        float, typer.Option(help="Milliseconds of a training step over a batch of the first size.")
    ] = 0.0,
    model: Annotated[
        str, typer.Option(help=f"Model whose training step is measured and run: {', '.join(MODELS)}.")
    ] = "none",
    step: Annotated[
        str,
        typer.Option(
            help="Your own training step to measure: a function like train.py:step that takes a batch, a "
            "dict of tensors.",
            show_default=False,
        ),
    ] = "",
    epochs: Annotated[int, typer.Option(help="Epochs of the training.")] = EPOCHS,
    max_disk: Annotated[
        str | None,
        typer.Option(help="Disk space for the full data, like 500GiB.", show_default=False),
    ] = None,
    only: Annotated[
        str,
        typer.Option(help="Packages to consider: installed, or core (only those installed with iobench)."),
    ] = "installed",
    prices: Annotated[str, typer.Option(help=PRICES_HELP, show_default=False)] = "",
    max_time: Annotated[float, typer.Option(help="Seconds for the search.")] = MAX_TIME_S,
    seed: Annotated[int, typer.Option(help="Seed of the random order.")] = 0,
    data_dir: DataDir = Path("data"),
    s3_endpoint: S3Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Recommend format, loader and settings, with code to paste."""
    from iobench.advise.recommend import recommend as search
    from iobench.advise.recommendation import save
    from iobench.advise.requirements import Requirements
    from iobench.bench.run_strategies import AutoRounds
    from iobench.objects.url import use_endpoint
    from iobench.terminal import display, live

    began = time.monotonic()
    use_endpoint(s3_endpoint)
    requirements = Requirements(
        device=device,
        order=order,
        batch_size=listed_numbers("--batch-size", batch_size, int),
        full_bytes=parsed("--full-size", parse_elements, full_size) if full_size else None,
        step_ms=step_ms,
        model=model,
        step=step,
        epochs=epochs,
        max_disk_bytes=parsed("--max-disk", parse_elements, max_disk) if max_disk else None,
        min_shuffle=min_shuffle,
        formats=tuple(format or ["all"]),
        loaders=tuple(loader or ["all"]),
        only=only,
        prices=prices,
        max_time_s=max_time,
        seed=seed,
    )
    hash_s = HASHING * max_time
    of, words = _data(name, source, add, source_format, sample_shape, data_dir, hash_s)
    with live.view(AutoRounds(max_time), each_round=False) as observer:
        recommendation = search(
            of, requirements, data_dir=data_dir, source_words=words, observer=observer, began=began
        )
    display.answer(recommendation, as_json)
    saved = save(recommendation, data_dir)
    if not as_json:
        for path in dict.fromkeys(recommendation.records):
            display.note(f"records: {path}")
        display.note(f"recommendation: {saved} ('iobench report' shows it)")
    if any(one.kind == "interrupted" for one in recommendation.findings):
        raise KeyboardInterrupt


def _data(
    name: str | None,
    source: Path | None,
    added: Path | None,
    source_format: str | None,
    sample_shape: str | None,
    data_dir: Path,
    hash_s: float,
) -> tuple[Manifest | Source, list[str]]:
    """Return the dataset or the source, and the `iobench prepare` arguments that name the source."""
    if source is None and sample_shape is not None:
        raise InvalidSettings(
            "--sample-shape without --source", kind="missing-option", hint="use it with --source"
        )
    if source is not None and (name is not None or added is not None):
        other = "--name" if name is not None else "--add"
        raise InvalidSettings(f"{other} with --source", kind="conflicting-options", hint="give one of them")
    if added is not None:
        return _added(added, source_format, name, data_dir, hash_s), []
    if source is None:
        if source_format is not None:
            raise InvalidSettings(
                "--source-format without --source or --add",
                kind="missing-option",
                hint="use it with one of them",
            )
        from iobench.dataset.added_source import AddedSource
        from iobench.dataset.remote_dataset import dataset_named

        manifest = dataset_named(data_dir, name)
        return (AddedSource(manifest) if set(manifest.artifacts) == set(manifest.added) else manifest), []
    from iobench.dataset.sources import open_source
    from iobench.terminal import display

    shape = parsed("--sample-shape", parse_shape, sample_shape) if sample_shape is not None else None
    shaped = ["--sample-shape", sample_shape] if sample_shape is not None else []
    named = ["--source-format", source_format] if source_format is not None else []
    opened = open_source(source, shape, format=source_format)
    for note in opened.notes:
        display.warning(note.kind, note.sentence)
    return opened, ["--source", str(source), *named, *shaped]


def _added(path: Path, format: str | None, name: str | None, data_dir: Path, hash_s: float) -> Source:
    """Return the user's own files, registered in place, as the source of a sample."""
    from iobench.dataset.add import add
    from iobench.dataset.added_source import AddedSource
    from iobench.terminal import display

    with display.progress() as progress:
        manifest, _ = add(
            path,
            format,
            name=name,
            data_dir=data_dir,
            hash_s=hash_s,
            progress=progress,
            warn=lambda note: display.warning(note.kind, note.sentence),
        )
    return AddedSource(manifest)
