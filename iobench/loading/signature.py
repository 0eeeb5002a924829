"""What a function of somebody's file asks for, read off its source: nothing of theirs is run for it."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from iobench.base.errors import (
    TargetError,
)
from iobench.base.text import reason


@dataclass(frozen=True)
class Signature:
    """A function's parameters by name: those that it needs, and those that it also takes."""

    needs: tuple[str, ...]
    takes: tuple[str, ...]  # all of them
    anything: bool  # whether it takes any other name as well
    sha256: str  # of its file, the first 16 hexadecimal digits


def signature_of(place: str, name: str) -> Signature:
    """What `name` in a file, or in a module as it is imported, asks for.

    TargetError where there is no such file or module, it cannot be read, or it defines no such function.
    """
    file = _file(place)
    try:
        text = file.read_bytes()
        body = ast.parse(text, str(file)).body
    except (OSError, SyntaxError, ValueError) as error:
        raise TargetError(f"cannot be read: {reason(error)}", kind="cannot-read", path=place) from error
    found = [one for one in _definitions(body) if one.name == name]
    if not found:
        raise TargetError(
            f"{place} defines no function {name!r}",
            kind="no-callable",
            hint=f"name one that the file defines as 'def {name}(…)'",
        )
    return _signature(found[-1], hashlib.sha256(text).hexdigest()[:16])


def _file(place: str) -> Path:
    """The file of a path or of a module, found as Python would, without importing what is around it."""
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise TargetError("no such file", kind="missing-file", path=place)
        return Path(place)
    path: list[str] | None = None
    names = place.split(".")
    for depth in range(1, len(names) + 1):
        # Python looks below the current folder first
        looked = ["", *sys.path] if path is None else path
        spec = PathFinder.find_spec(".".join(names[:depth]), looked)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or [])
        if depth == len(names) and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    raise TargetError(
        "no such module, or it is not written in Python",
        kind="missing-module",
        found=place,
        hint="run iobench where Python can import it",
    )


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes of a module, those under an `if` or `try` too."""
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            yield one
        elif isinstance(one, (ast.If, ast.Try)):
            yield from _definitions([*one.body, *one.orelse])


def _signature(found: ast.FunctionDef | ast.ClassDef, sha256: str) -> Signature:
    if isinstance(found, ast.ClassDef):
        inits = [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        if not inits:
            return Signature((), (), anything=True, sha256=sha256)  # a base may take what it likes
        return _of_arguments(inits[-1].args, sha256, skipped=1)
    return _of_arguments(found.args, sha256, skipped=0)


def _of_arguments(arguments: ast.arguments, sha256: str, skipped: int) -> Signature:
    plain = [*arguments.posonlyargs, *arguments.args]
    needed = plain[skipped : len(plain) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needs = [one.arg for one in needed] + [one.arg for one, default in named if default is None]
    takes = [one.arg for one in [*arguments.args, *arguments.kwonlyargs]]
    return Signature(tuple(needs), tuple(takes), arguments.kwarg is not None, sha256)
