"""Plan files: the options of a run as TOML, so that it can be repeated and kept in a repository."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec

from iobench.base.errors import InvalidSettings
from iobench.base.files import system_errors_as
from iobench.bench.options import RunOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABOUT = "# Run with: iobench run --plan FILE"


@dataclass(frozen=True)
class SavedPlan:
    """Options of a run, the name of its dataset, and the dataset's checksum when the plan was written."""

    run: RunOptions
    dataset: str | None = None
    content: str | None = None


def save(path: Path, options: RunOptions, dataset: str, content: str) -> None:
    """Write a plan file; raises InvalidSettings if it cannot be written."""
    import tomli_w

    # TOML has no None: every default of None is implied
    settings = {name: value for name, value in asdict(options).items() if value is not None}
    table = {"dataset": dataset, "content": content, "run": settings}
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings("--save-plan", kind="not-a-file", path=path, expected="a regular file")
    with system_errors_as(
        InvalidSettings, "--save-plan", path, kind="not-writable", hint="name another file"
    ):
        path.write_text(f"{ABOUT}\n{tomli_w.dumps(table)}")


def load(path: Path) -> SavedPlan:
    """Return the plan in a file; raises InvalidSettings if it is not one."""
    if os.path.exists(path) and not path.is_file():
        raise InvalidSettings(
            "--plan", kind="not-a-file", path=path, expected="a regular file", hint="--save-plan writes one"
        )
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidSettings(f"--plan: {reason}", kind="not-readable", path=path) from error
    known = {spec.name for spec in fields(RunOptions)}
    body = table.get("run")
    if not isinstance(body, dict):
        raise InvalidSettings(
            "--plan", kind="not-a-plan", path=path, expected="a table [run]", hint="--save-plan writes one"
        )
    unknown = [*(set(table) - {"dataset", "content", "run"}), *(name for name in body if name not in known)]
    if unknown:
        raise InvalidSettings(
            f"--plan: a run has no setting {', '.join(unknown)}",
            kind="unknown-option",
            path=path,
            hint="remove it from the file",
        )
    try:
        texts = msgspec.convert(
            {key: table.get(key) for key in ("dataset", "content")}, dict[str, str | None]
        )
        return SavedPlan(msgspec.convert(body, RunOptions), **texts)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"--plan: {error}", kind="invalid-value", path=path) from error
