"""The file `manifest.json`: `read` and `write`."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from iobench.base.errors import (
    ManifestError,
)
from iobench.dataset.manifest_body import NAME_BYTES, Body, check
from iobench.dataset.staging import TEMPORARY, sync_directory

VERSION = 3
FILE_NAME = "manifest.json"
AGAIN = "write it again with 'iobench prepare --overwrite'"

_converting = threading.Lock()  # two threads that are the first to ask for a type have crashed msgspec


def read(path: Path) -> Body:
    """The checked content of a manifest file.

    ManifestError where there is none, it is not JSON, of a newer version, or anything in it is
    missing, unknown, of another type, out of range or at odds with the rest.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting
            raise OSError("it is not a file")
        body = json.loads(
            path.read_bytes().decode(),
            object_pairs_hook=_once_each,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
    except FileNotFoundError:
        raise ManifestError(f"{path.parent}: no dataset there; make one with 'iobench prepare'") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: not a manifest ({_line(error)}); {AGAIN}") from error
    version = body.get("manifest_version") if isinstance(body, dict) else None
    if type(version) is not int or version < 1:
        raise ManifestError(f"{path}: not a manifest of iobench: it has no manifest_version; {AGAIN}")
    if version > VERSION:
        raise ManifestError(
            f"{path}: manifest version {str(version)[:20]}, "
            f"this iobench reads up to {VERSION}; upgrade iobench"
        )
    try:
        with _converting:
            made = msgspec.convert(body, Body)
        check(made)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: damaged manifest ({_line(error)}); {AGAIN}") from error
    return made


def write(root: Path, body: Body) -> None:
    """Replace the manifest of a dataset folder in one step, synced with the folder.

    After the rename the new one holds, whatever happens then; before it, the old one does.
    """
    text = json.dumps(msgspec.to_builtins(body), indent=2, allow_nan=False)
    temporary = root / f"{TEMPORARY}{FILE_NAME}"
    try:
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(root / FILE_NAME)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(root)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice[:NAME_BYTES]!r} stands there twice")
    return made


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text[:NAME_BYTES]} is no finite number")


def _line(error: Exception) -> str:
    """An error's message in one line of bearable length."""
    return " ".join(str(error).split())[:500] or type(error).__name__
