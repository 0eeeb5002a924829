"""`iobench recommend`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from iobench.advise.requirements import Requirements
from iobench.base.errors import InvalidSettings, conflict
from iobench.base.units import parse_shape
from iobench.bench.budget import Budget
from iobench.dataset import add as adding
from iobench.dataset.manifest import Manifest
from iobench.dataset.remote_dataset import dataset_named
from iobench.dataset.sources import Source, open_source
from iobench.objects.url import use_endpoint
from iobench.terminal import display
from iobench.terminal.commands import _options as shared
from iobench.terminal.commands._declared_options import made_of, with_options

HASHING = 0.2  # of the time, for what --add hashes


@with_options(Requirements)
def recommend(
    *,
    name: shared.NameOrAddress = None,
    source: Annotated[
        Path | None,
        typer.Option(help="Your own data, as for 'iobench prepare'; a sample is written in every format."),
    ] = None,
    add: Annotated[
        Path | None,
        typer.Option(help="Your own files in a known format, registered in place as by 'iobench add'."),
    ] = None,
    source_format: shared.SourceFormat = None,
    sample_shape: Annotated[
        str | None,
        typer.Option(
            help="Shape that images are cropped to, as for 'iobench prepare'; '*x*x3' keeps the size of each."
        ),
    ] = None,
    on_error: Annotated[str | None, typer.Option(help=shared.ON_ERROR_HELP)] = None,
    files: Annotated[str | None, typer.Option(help=shared.FILES_HELP)] = None,
    field: Annotated[list[str] | None, typer.Option(help=shared.FIELD_HELP)] = None,
    typed: Mapping[str, Any],
    data_dir: shared.DataDir = Path("data"),
    s3_endpoint: shared.S3Endpoint = None,
    as_json: shared.AsJson = False,
) -> None:
    """Recommend format, loader and settings, with code to paste.

    Example: iobench recommend --source photos/
    """
    from iobench.advise.recommend import recommend as search
    from iobench.advise.recommendation import save
    from iobench.terminal import live

    began = time.monotonic()
    use_endpoint(s3_endpoint)
    requirements = made_of(Requirements, typed)
    budget = Budget(requirements.max_time_s, began)
    hash_s = HASHING * requirements.max_time_s
    given = {
        "--source-format": source_format,
        "--sample-shape": sample_shape,
        "--on-error": on_error,
        "--files": files,
    }
    of, words = _data(name, source, add, given, field or [], data_dir, hash_s)
    with live.view(None, requirements.max_time_s, each_round=False) as observer:
        recommendation = search(
            of, requirements, data_dir=data_dir, source_words=words, observer=observer, budget=budget
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
    given: Mapping[str, str | None],
    fields: Sequence[str],
    data_dir: Path,
    hash_s: float,
) -> tuple[Manifest | Source, list[str]]:
    """Return the dataset or the source, and the `iobench prepare` arguments that name the source."""
    for option in ("--sample-shape", "--on-error", "--files"):
        if source is None and given[option] is not None:
            problem = f"{option} without --source"
            raise InvalidSettings(problem, kind="missing-option", hint="use it with --source")
    if source is not None and (name is not None or added is not None):
        other = "--name" if name is not None else "--add"
        raise conflict(f"{other} with --source", "give one of them")
    if added is not None:
        return _added(added, given["--source-format"], name, fields, data_dir, hash_s), []
    if source is None:
        for option, word in (("--source-format", given["--source-format"]), ("--field", fields or None)):
            if word is not None:
                problem = f"{option} without --source or --add"
                raise InvalidSettings(problem, kind="missing-option", hint="use it with one of them")
        manifest = dataset_named(data_dir, name)
        whole = set(manifest.artifacts) == set(manifest.added)
        return (adding.AddedSource(manifest) if whole else manifest), []
    return _opened(source, given, fields)


def _opened(path: Path, given: Mapping[str, str | None], fields: Sequence[str]) -> tuple[Source, list[str]]:
    """Return the user's data as a source, and the `iobench prepare` arguments that name it."""
    format, sample_shape, on_error, files = given.values()
    if on_error is not None:
        shared.checked_choice("--on-error", on_error, shared.ON_ERROR)
    if files is not None:
        shared.checked_choice("--files", files, shared.FILES)
    shape = None if sample_shape is None else shared.parsed("--sample-shape", parse_shape, sample_shape, True)
    typed = [*given.items(), *(("--field", field) for field in fields)]
    words = [word for option, value in typed if value is not None for word in (option, value)]
    described = shared.fields_with_extents(fields)
    source = open_source(
        path, shape, format=format, on_error=on_error or "stop", files=files, fields=described
    )
    for note in source.notes:
        display.warning(note)
    return source, ["--source", str(path), *words]


def _added(
    path: Path, format: str | None, name: str | None, fields: Sequence[str], data_dir: Path, hash_s: float
) -> Source:
    """Return the user's own files, registered in place, as the source of a sample."""
    with display.progress() as progress:
        manifest, _ = adding.add(
            path,
            format,
            name=name,
            fields=shared.fields_with_extents(fields),
            data_dir=data_dir,
            hash_s=hash_s,
            progress=progress,
            warn=display.warning,
        )
    return adding.AddedSource(manifest)
