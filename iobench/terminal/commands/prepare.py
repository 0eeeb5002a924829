"""`iobench prepare`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iobench.base.credentials import shown_address
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.finding import Finding
from iobench.terminal.commands._declared_options import made_of, with_options
from iobench.terminal.commands._options import AsJson, DataDir, S3Endpoint, run_command
from iobench.terminal.commands._source_options import SourceOptions

if TYPE_CHECKING:
    from iobench.dataset.sources import Source
    from iobench.formats import Schema
    from iobench.objects.client import ObjectStore


@with_options(SourceOptions)
def prepare(
    *,
    typed: Mapping[str, Any],
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Format or variant, like hdf5:compression=gzip, or all; repeatable. "
            "[default: npy, hdf5, lmdb, memmap]"
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Annotated[str | None, typer.Option(help="Dataset name. [default: made from the data]")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Upload the dataset to an address like s3://bucket/prefix, instead of keeping it here."
        ),
    ] = None,
    s3_endpoint: S3Endpoint = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing data.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Copy the dataset to the same path on every host of the Ray cluster at this address."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write an array into each format, read it back and compare.

    Example: iobench prepare --size 1e7
    """
    from iobench.dataset.prepare import prepare as write
    from iobench.dataset.remote_dataset import publish
    from iobench.terminal import display, tables

    options = made_of(SourceOptions, typed)
    with display.progress() as progress:
        if options.source is not None:
            progress(f"inspecting {shown_address(str(options.source))}", 0, 0)
        chosen = (None if options.name_data else _added(data_dir, name)) or options.open()
    notes = list[Finding]()
    for note in chosen.notes:
        display.warn_or_keep(notes, note)
    variants, skipped = _variants(format, chosen.schema)
    with ExitStack() as ends, display.progress() as progress:
        store = None
        if to is not None:
            store = _target(to, s3_endpoint, ray, overwrite)
            data_dir = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="iobench-upload-")))
        manifest, rows = write(
            chosen,
            variants,
            data_dir=data_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
        if store is not None:
            publish(manifest, store, overwrite, progress)
            manifest = replace(manifest, url=store.url)
    display.dataset(manifest, rows, notes, as_json, *tables.renamed_lines(rows, manifest.schema))
    for error in skipped:
        display.note(f"skipped: {error}")
    if ray is not None:
        from iobench.ranks.ray_hosts import copy_to_all

        copy_to_all(manifest, ray, display.note)
    if store is not None:
        following = run_command(Path("data"), "--name", store.url)
        display.note(f"dataset uploaded to {store.url}; next: iobench {following}")
        return
    following = run_command(data_dir, "--name", manifest.name)
    display.note(f"dataset written to {manifest.root}; next: iobench {following}")


def _variants(words: Sequence[str] | None, schema: Schema) -> tuple[list[str], list[IobenchError]]:
    """Return the variants to write, by default common formats, and why `all` leaves some out."""
    from iobench import formats
    from iobench.dataset.prepare import DEFAULT_FORMATS, writable_formats

    default = [one for one in DEFAULT_FORMATS if formats.get(one).holds_ragged or not schema.ragged]
    variants = list(words or default)
    if "all" not in variants:
        return variants, []
    every, skipped = writable_formats(schema)
    return [*(word for word in variants if word != "all"), *every], skipped


def _target(to: str, s3_endpoint: str | None, ray: str | None, overwrite: bool) -> ObjectStore:
    """Return the object store to upload to; raises before anything is written if that is impossible."""
    from iobench.dataset.remote_dataset import check_target
    from iobench.objects.url import use_endpoint

    if ray is not None:
        raise InvalidSettings("--to with --ray", kind="conflicting-options", hint="omit --ray")
    use_endpoint(s3_endpoint)
    return check_target(to, overwrite)


def _added(data_dir: Path, name: str | None) -> Source | None:
    """Return the data that were added to this dataset, as a source; None if there are none."""
    from iobench.dataset.add import AddedSource
    from iobench.dataset.manifest import Manifest, check_name
    from iobench.dataset.manifest_file import FILE_NAME

    if name is None or not (data_dir / check_name(name) / FILE_NAME).is_file():
        return None
    manifest = Manifest.load(data_dir / name)
    return AddedSource(manifest) if manifest.added else None
