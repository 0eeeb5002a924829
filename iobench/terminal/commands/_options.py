"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.base.errors import (
    InvalidSettings,
)

if TYPE_CHECKING:
    from iobench.formats import Field

DataDir = Annotated[Path, typer.Option(help="The folder that holds datasets and results.")]
Name = Annotated[str | None, typer.Option(help="The dataset; by default the newest.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="Where batches go: auto, cpu, cuda, cuda:1, …")]
MinDifference = Annotated[str, typer.Option(help="What differs by less than this is not called different.")]


def words_of(text: str) -> tuple[str, ...]:
    """The words of a list as it is typed, with commas."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def listed_numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a list; InvalidSettings names the option."""
    try:
        return tuple(int(part) for part in words_of(text))
    except ValueError:
        raise InvalidSettings(f"{option} {text!r} is not a whole number, or a list of them") from None


def listed_floats(option: str, text: str) -> tuple[float, ...]:
    """The numbers of a list; InvalidSettings names the option."""
    try:
        return tuple(float(part) for part in words_of(text))
    except ValueError:
        raise InvalidSettings(f"{option} {text!r} is not a number, or a list of them") from None


def listed_bytes(option: str, text: str) -> tuple[int, ...]:
    """The sizes of a list in bytes; InvalidSettings names the option."""
    return tuple(parse_bytes(option, part) for part in words_of(text))


def field_of(text: str) -> Field:
    """The field that `x=float32[3,224,224]` or `y=int64` means; InvalidSettings says how one is written."""
    from iobench.formats import Field

    name, separator, rest = text.partition("=")
    dtype, bracket, shape = rest.partition("[")
    try:
        if not separator or (bracket and not shape.endswith("]")):
            raise ValueError("it is not written like that")
        numbers = shape.removesuffix("]").split(",") if bracket else []
        return Field(name.strip(), tuple(int(number) for number in numbers), dtype.strip())
    except ValueError as error:
        raise InvalidSettings(
            f"--field {text!r} is no field like x=float32[3,224,224], or y=int64 for a single number: {error}"
        ) from None


def parse_bytes(option: str, text: str, item_bytes: int = 1) -> int:
    """The bytes, or elements of so many, that an option's text means; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_elements(text, item_bytes)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None


def parse_shape(option: str, text: str | None) -> tuple[int, ...] | None:
    """The shape that an option's text means, or none; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_shape(text) if text is not None else None
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None


def parse_rate(option: str, text: str) -> float:
    """The bytes per second that an option's text means; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_rate(text)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None


def parse_percent(option: str, text: str) -> float:
    """The fraction that an option's text, like 5%, means; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_percent(text)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None
