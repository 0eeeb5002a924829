"""Options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.base.errors import InvalidSettings

if TYPE_CHECKING:
    from iobench.formats import Field

DataDir = Annotated[Path, typer.Option(help="Folder of datasets and results.")]
Name = Annotated[str | None, typer.Option(help="Dataset name. [default: the newest]", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="Target device: auto, cpu, cuda, cuda:1, …")]
MinDifference = Annotated[str, typer.Option(help="Smallest difference that counts as one.")]


def words_of(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into its distinct words."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def listed_numbers(option: str, text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of integers; InvalidSettings names the option."""
    try:
        return tuple(int(part) for part in words_of(text))
    except ValueError:
        raise InvalidSettings(
            option, kind="not-a-number", expected="an integer, or a list like 1,2,4", found=repr(text)
        ) from None


def listed_floats(option: str, text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of numbers; InvalidSettings names the option."""
    try:
        return tuple(float(part) for part in words_of(text))
    except ValueError:
        raise InvalidSettings(
            option, kind="not-a-number", expected="a number, or a list like 0.5,1", found=repr(text)
        ) from None


def check_above_zero(**options: float | None) -> None:
    """Raise InvalidSettings for an option that is not a finite number above 0."""
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            option = f"--{name.replace('_', '-')}"
            raise InvalidSettings(
                option, kind="out-of-range", expected="a number above 0", found=f"{value:g}"
            )


def listed_bytes(option: str, text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of sizes in bytes; InvalidSettings names the option."""
    return tuple(parse_bytes(option, part) for part in words_of(text))


def field_of(text: str) -> Field:
    """Parse a field such as `x=float32[3,224,224]` or `y=int64`; InvalidSettings shows how to write one."""
    from iobench.formats import Field

    name, separator, rest = text.partition("=")
    dtype, bracket, shape = rest.partition("[")
    try:
        if not separator or (bracket and not shape.endswith("]")):
            raise ValueError("no NAME=DTYPE[SHAPE]")
        numbers = shape.removesuffix("]").split(",") if bracket else []
        return Field(name.strip(), tuple(int(number) for number in numbers), dtype.strip())
    except ValueError as error:
        raise InvalidSettings(
            f"--field {text!r}: {error}",
            kind="invalid-field",
            hint="write it like x=float32[3,224,224], or y=int64 for a scalar",
        ) from None


def parse_bytes(option: str, text: str, item_bytes: int = 1) -> int:
    """Parse a size into bytes, or into elements of `item_bytes`; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_elements(text, item_bytes)
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None


def parse_shape(option: str, text: str | None) -> tuple[int, ...] | None:
    """Parse a shape, None as None; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_shape(text) if text is not None else None
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None


def parse_rate(option: str, text: str) -> float:
    """Parse a bandwidth into bytes per second; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_rate(text)
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None


def parse_percent(option: str, text: str) -> float:
    """Parse a percentage such as 5% into a fraction; InvalidSettings names the option."""
    from iobench.base import units

    try:
        return units.parse_percent(text)
    except InvalidSettings as error:
        raise error.changed(problem=f"{option} {error.problem}") from None
