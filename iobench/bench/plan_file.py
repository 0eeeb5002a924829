"""A whole run in a file, so that it can be repeated and kept in a repository."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.bench.options import RunOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABOUT = "# Run with: iobench run --plan FILE"


@dataclass(frozen=True)
class Planned:
    """A run's options, the dataset they are for, and the content that it had when the plan was written."""

    run: RunOptions
    dataset: str | None = None
    content: str | None = None


def save(path: Path, options: RunOptions, dataset: str, content: str) -> None:
    """Write a plan that `load` reads; InvalidSettings where the file cannot be written."""
    import tomli_w

    table = {"dataset": dataset, "content": content, "run": _without_none(asdict(options))}
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings(f"--save-plan: {path} is there already and no regular file")
    try:
        path.write_text(f"{ABOUT}\n{tomli_w.dumps(table)}")
    except OSError as error:
        raise InvalidSettings(f"--save-plan: {path} cannot be written: {error.strerror}") from error


def load(path: Path) -> Planned:
    """The plan in a file; InvalidSettings names what is wrong with it."""
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings(f"--plan: {path} is no regular file; --save-plan writes one")
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSettings(f"--plan: {path} cannot be read: {reason}") from error
    known = {spec.name for spec in fields(RunOptions)}
    body = table.get("run")
    if not isinstance(body, dict):
        raise InvalidSettings(f"--plan: {path} has no table [run]; --save-plan writes one")
    unknown = [*(set(table) - {"dataset", "content", "run"}), *(name for name in body if name not in known)]
    if unknown:
        raise InvalidSettings(f"--plan: {path}: a run has no setting {', '.join(unknown)}; remove it")
    try:
        texts = msgspec.convert(
            {key: table.get(key) for key in ("dataset", "content")}, dict[str, str | None]
        )
        return Planned(msgspec.convert(body, RunOptions), **texts)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"--plan: {path}: {error}") from error


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """What is set at all: TOML has no word for nothing, and every default of None stands for it."""
    return {name: value for name, value in table.items() if value is not None}
