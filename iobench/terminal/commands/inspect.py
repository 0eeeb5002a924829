"""`iobench formats`, `loaders`, `verify` and `limits`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from iobench import formats as storage
from iobench.base.errors import IobenchError, conflict
from iobench.base.units import bytes_word, parse_elements
from iobench.bench.options import check_above_zero
from iobench.dataset.remote_dataset import dataset_named
from iobench.dataset.staging import locked
from iobench.dataset.verify import hash_rest, hashed_in_part
from iobench.dataset.verify import verify as reread
from iobench.host.device import pick_device
from iobench.loading import loaders as known
from iobench.results.display import table
from iobench.terminal import datasets, display
from iobench.terminal.commands import _options as shared


def formats(as_json: shared.AsJson = False) -> None:
    """List the formats, their options, and which are installed.

    Example: iobench formats
    """
    _describe("format", storage.describe(), as_json)


def loaders(as_json: shared.AsJson = False) -> None:
    """List the loaders, their options, and which are installed.

    Example: iobench loaders
    """
    _describe("loader", known.describe(), as_json)


def _describe(kind: str, described: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        display.as_json(described)
        return
    kinds = [(one["name"], one["summary"], one["usable"]) for one in described]
    options = [
        ("" if number else one["name"], option["name"], _default(option), _meaning(option, kind))
        for one in described
        for number, option in enumerate(one["options"])
    ]
    named = table((kind, "option", "default", "meaning"), options, heads=3)
    display.blocks([table((kind, "description", "usable"), kinds), named])


def _default(option: Mapping[str, Any]) -> str:
    """Return the default of an option: bytes with a unit, `auto` where its meaning says what is chosen."""
    name, value = option["name"], option["default"]
    if name.endswith("_bytes") and value and value != "none":
        typed = bytes_word(value)
        digits = typed.rstrip("BKMGTik")
        return f"{digits} {typed[len(digits) :]}"
    automatic = "by default " in option["help"] and "by default none" not in option["help"]
    return "auto" if value == "none" and automatic else str(value)


def _meaning(option: Mapping[str, Any], kind: str) -> str:
    """Return the help of an option; that of a format names its choices, too."""
    if kind != "format" or not option["choices"]:
        return str(option["help"])
    return f"{option['help']}: {', '.join(map(str, option['choices']))}"


def verify(
    format: Annotated[
        list[str] | None, typer.Option(help="Variant of the dataset; repeatable. [default: all]")
    ] = None,
    hash: Annotated[
        str,
        typer.Option(help="full also hashes what `add` left out of large data; auto reads what was hashed."),
    ] = "auto",
    sample: Annotated[
        str | None,
        typer.Option(
            help="Read only rows of this size, such as 1GiB, spread over the data, for at most 2 minutes."
        ),
    ] = None,
    data_dir: shared.DataDir = Path("data"),
    name: shared.NameOrAddress = None,
) -> None:
    """Read every artifact again and compare it with its manifest.

    Example: iobench verify
    """
    sample_bytes = None if sample is None else shared.parsed("--sample", parse_elements, sample)
    if shared.checked_choice("--hash", hash, shared.HASH) == "full" and sample is not None:
        raise conflict("--sample with --hash full", "give one of them")
    manifest = dataset_named(data_dir, name)
    display.note(datasets.dataset_line(manifest, None if name else data_dir))
    with display.progress() as progress:
        if hash == "full" and manifest.part is not None:  # which reads all artifacts
            with locked(manifest.root):
                manifest = dataset_named(data_dir, manifest.name)
                hash_rest(manifest, progress)
            problems: dict[str, IobenchError | None] = dict.fromkeys(manifest.artifacts)
        else:
            problems = reread(
                manifest,
                format or [],
                sample_bytes=sample_bytes,
                progress=progress,
                on_skip=lambda sentence: display.note(f"skipped: {sentence}"),
            )
    for variant, problem in problems.items():
        if problem is None:
            display.result(f"{variant}: intact" + (f" in a sample of up to {sample}" if sample else ""))
        else:
            display.error(problem.kind, str(problem))
    if manifest.part is not None:
        display.warning(hashed_in_part(manifest))
    raise typer.Exit(1 if any(problems.values()) else 0)


def limits(
    batch_size: Annotated[int, typer.Option(help="Samples per batch: the size of memory copies.")] = 256,
    device: shared.Device = "auto",
    seconds: Annotated[float, typer.Option(help="Seconds per limit.")] = 0.5,
    data_dir: shared.DataDir = Path("data"),
    name: shared.NameOrAddress = None,
    as_json: shared.AsJson = False,
) -> None:
    """Measure the bandwidth limits of disk, memory and device.

    Example: iobench limits --device cuda
    """
    from iobench.bench.limits import survey

    check_above_zero(batch_size=batch_size, seconds=seconds)
    manifest = dataset_named(data_dir, name)
    display.note(datasets.dataset_line(manifest, None if name else data_dir))
    result = survey(manifest, pick_device(device), batch_size, seconds, on_status=display.note)
    display.answer(result, as_json)
