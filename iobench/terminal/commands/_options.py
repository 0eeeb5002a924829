"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.errors import InvalidSettings

DataDir = Annotated[Path, typer.Option(help="The folder that holds datasets and results.")]
Name = Annotated[str | None, typer.Option(help="The dataset; by default the newest.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")]
MinDifference = Annotated[str, typer.Option(help="The smallest difference that is called one.")]


def parse_bytes(option: str, text: str) -> int:
    """The bytes that an option's text means; InvalidSettings names the option."""
    from iobench import units

    try:
        return units.parse_elements(text, item_bytes=1)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None


def parse_percent(option: str, text: str) -> float:
    """The fraction that an option's text, like 5%, means; InvalidSettings names the option."""
    from iobench import units

    try:
        return units.parse_percent(text)
    except ValueError as error:
        raise InvalidSettings(f"{option}: {error}") from None
