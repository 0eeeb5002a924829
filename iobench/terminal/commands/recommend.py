"""`iobench recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.bench.options import MODELS
from iobench.loading.order import ORDERS
from iobench.recommendation.requirements import EPOCHS, MAX_TIME_S
from iobench.terminal.commands._options import (
    AsJson,
    DataDir,
    Device,
    Name,
    listed_numbers,
    parse_bytes,
    parse_shape,
)

if TYPE_CHECKING:
    from iobench.dataset.manifest import Manifest
    from iobench.dataset.sources import Source


def recommend(
    name: Name = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Your own data, of which a sample is written into every format; as for 'iobench prepare'.",
            show_default=False,
        ),
    ] = None,
    add: Annotated[
        Path | None,
        typer.Option(
            help="Data that are registered where they lie, as by 'iobench add', and asked about.",
            show_default=False,
        ),
    ] = None,
    sample_shape: Annotated[
        str | None, typer.Option(help="The shape that images are cropped to, as for 'iobench prepare'.")
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A format or variant that takes part; repeatable. [default: all]", show_default=False
        ),
    ] = None,
    loader: Annotated[
        list[str] | None,
        typer.Option(
            help="A loader with its options that takes part; repeatable. [default: all that are installed]",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    order: Annotated[str, typer.Option(help=f"Order of the samples: {', '.join(ORDERS)}.")] = "random",
    min_shuffle: Annotated[
        float | None,
        typer.Option(
            help="How random batches have to be, 0 to 1; below 1 block order takes part. [default: 1, with "
            "--order block anything]",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option(help="Samples in a batch; of a list with commas, the size that is fastest.")
    ] = "256",
    full_size: Annotated[
        str | None,
        typer.Option(help="How large the real data are, like 2TiB. [default: as given]", show_default=False),
    ] = None,
    step_ms: Annotated[
        float, typer.Option(help="Milliseconds of a training step, over a batch of the first size.")
    ] = 0.0,
    model: Annotated[
        str, typer.Option(help=f"A training step that is measured and done: {', '.join(MODELS)}.")
    ] = "none",
    step: Annotated[
        str,
        typer.Option(
            help="Your own training step, which is measured: a callable like train.py:step that is given a "
            "batch, tensors by their names.",
            show_default=False,
        ),
    ] = "",
    epochs: Annotated[int, typer.Option(help="Epochs that you will train for.")] = EPOCHS,
    max_disk: Annotated[
        str | None,
        typer.Option(help="Disk space that all of the data may take, like 500GiB.", show_default=False),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            help="What may be installed: installed (what is now), or core (what iobench brings itself)."
        ),
    ] = "installed",
    max_time: Annotated[float, typer.Option(help="Seconds that the search may take.")] = MAX_TIME_S,
    seed: Annotated[int, typer.Option(help="Seed of the random order.")] = 0,
    data_dir: DataDir = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Say which format, loader and settings to use, with the code."""
    from iobench.bench.round_plan import RoundPlan
    from iobench.recommendation.requirements import Requirements
    from iobench.recommendation.recommend import recommend as search
    from iobench.recommendation.result import save
    from iobench.terminal import display, live, recommended

    requirements = Requirements(
        device=device,
        order=order,
        batch_size=listed_numbers("--batch-size", batch_size),
        full_bytes=parse_bytes("--full-size", full_size) if full_size else None,
        step_ms=step_ms,
        model=model,
        step=step,
        epochs=epochs,
        max_disk_bytes=parse_bytes("--max-disk", max_disk) if max_disk else None,
        min_shuffle=min_shuffle,
        formats=tuple(format or ["all"]),
        loaders=tuple(loader or ["all"]),
        only=only,
        max_time_s=max_time,
        seed=seed,
    )
    of, words = _data(name, source, add, sample_shape, data_dir)
    with live.view(RoundPlan(None, max_time), each_round=False) as observer:
        recommendation = search(of, requirements, data_dir=data_dir, source_words=words, observer=observer)
    saved = save(recommendation, data_dir)
    if as_json:
        display.as_json(recommendation.as_dict())
        return
    for warning in recommendation.warnings:
        display.note(f"warning: {warning}")
    display.result(*recommended.parts(recommendation))
    for path in recommendation.records:
        display.note(f"records: {path}")
    display.note(f"the recommendation is kept in {saved}, which 'iobench report' shows from now on")


def _data(
    name: str | None, source: Path | None, added: Path | None, sample_shape: str | None, data_dir: Path
) -> tuple[Manifest | Source, list[str]]:
    """The dataset or the source, and the words that `iobench prepare` is told the source by."""
    if source is None and sample_shape is not None:
        raise InvalidSettings("--sample-shape goes with --source only")
    if source is not None and (name is not None or added is not None):
        other = "--name" if name is not None else "--add"
        raise InvalidSettings(f"{other} and --source: give the one or the other")
    if added is not None:
        return _added(added, name, data_dir), []
    if source is None:
        from iobench.dataset.manifest import find_dataset

        return find_dataset(data_dir, name), []
    from iobench.dataset.sources import open_source

    shape = parse_shape("--sample-shape", sample_shape)
    shaped = ["--sample-shape", sample_shape] if sample_shape is not None else []
    return open_source(source, shape), ["--source", str(source), *shaped]


def _added(path: Path, name: str | None, data_dir: Path) -> Source:
    """Data of somebody's own, listed where they lie, as the source of which a sample is written."""
    from iobench.dataset.add import AddedSource, add
    from iobench.terminal import display

    with display.progress() as progress:
        manifest, _ = add(path, name=name, data_dir=data_dir, progress=progress, warn=display.warning)
    return AddedSource(manifest)
