"""Reading and writing of `manifest.json`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from iobench.base.errors import ManifestError, no_permission
from iobench.base.files import replace_file
from iobench.base.text import listed, suggestion
from iobench.dataset.manifest_body import NAME_BYTES, ManifestBody, check
from iobench.dataset.staging import sync_directory

VERSION = 2
FILE_NAME = "manifest.json"
REWRITE = "write it again with 'iobench prepare --overwrite'"

_converting = threading.Lock()  # msgspec has crashed when two threads converted a type for the first time


def check_readable(root: Path) -> None:
    """Raise ManifestError if the path of a dataset is not UTF-8, which LMDB and HDF5 cannot open."""
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ManifestError(
            "the folder's name is not UTF-8, which LMDB and HDF5 cannot open",
            kind="invalid-name",
            path=os.fsencode(root).decode(errors="backslashreplace"),
            hint="rename it, or use another --data-dir",
        ) from None


def read(path: Path) -> ManifestBody:
    """Read and check a manifest file.

    ManifestError if there is none (`no-dataset`), it is not a manifest (`not-a-manifest`), has another
    version (`unknown-version`), or a value is missing, unknown, of another type, out of range or in
    contradiction to the others (`damaged-manifest`).
    """
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block
            raise OSError("it is not a file")
        content = path.read_bytes()
    except FileNotFoundError:
        raise ManifestError(
            "there is no dataset", kind="no-dataset", path=path.parent, hint=_instead(path)
        ) from None
    except PermissionError as error:
        raise no_permission(ManifestError, path) from error
    except OSError as error:
        problem = f"not a manifest ({_line(error)})"
        raise ManifestError(problem, kind="not-a-manifest", path=path, hint=REWRITE) from error
    return parse(content, path)


def _instead(path: Path) -> str:
    """Return what to do where a manifest is missing: give another name, or make a dataset."""
    with contextlib.suppress(OSError):
        others = sorted(one.parent.name for one in path.parent.parent.glob(f"*/{path.name}"))
        if others:
            known = f"{suggestion(path.parent.name, others)}there are: {listed(others)}"
            return f"{known}; or make one with 'iobench prepare'"
    return "make one with 'iobench prepare'"


def parse(content: bytes, path: Path | str) -> ManifestBody:
    """Return a checked manifest from its text; raises ManifestError, about `path`, as `read` does."""
    try:
        body = json.loads(
            content.decode(), object_pairs_hook=_unique_keys, parse_constant=_not_finite, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        problem = f"not a manifest ({_line(error)})"
        raise ManifestError(problem, kind="not-a-manifest", path=path, hint=REWRITE) from error
    version = body.get("manifest_version") if isinstance(body, dict) else None
    if type(version) is not int or version < 1:
        problem = "not a manifest of iobench (no manifest_version)"
        raise ManifestError(problem, kind="not-a-manifest", path=path, hint=REWRITE)
    if version != VERSION:
        raise ManifestError(
            kind="unknown-version",
            path=path,
            expected=f"manifest version {VERSION}",
            found=f"version {str(version)[:20]}",
            hint=f"use the iobench that wrote it, or {REWRITE}",
        )
    try:
        with _converting:
            converted = msgspec.convert(body, ManifestBody)
        check(converted)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        problem = f"damaged manifest ({_line(error)})"
        raise ManifestError(problem, kind="damaged-manifest", path=path, hint=REWRITE) from error
    return converted


def write(root: Path, body: ManifestBody) -> None:
    """Replace the manifest of a dataset folder atomically and sync both to disk.

    A crash leaves the old manifest or the new one.
    """
    replace_file(root / FILE_NAME, encoded(body), sync=True)
    sync_directory(root)


def encoded(body: ManifestBody) -> bytes:
    """Return a manifest's text."""
    return json.dumps(msgspec.to_builtins(body), indent=2, allow_nan=False).encode()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {duplicate[:NAME_BYTES]!r} appears twice")
    return unique


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text[:NAME_BYTES]} is not a finite number")


def _line(error: Exception) -> str:
    """Return an error's message as one line of at most 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__
