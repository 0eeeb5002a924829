"""Parameters of a function in a user's file, read from its source without importing it."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from iobench.base.errors import TargetError
from iobench.base.text import reason
from iobench.loading.user_errors import no_function


@dataclass(frozen=True)
class Signature:
    """Parameters of a function, by name.

    Attributes
    ----------
    required : tuple of str
        Parameters without a default.
    parameters : tuple of str
        All parameters that can be given by name.
    var_keyword : bool
        Whether it accepts any other name, too (``**kwargs``).
    sha256 : str
        Hash of its file: the first 16 hexadecimal digits.
    """

    required: tuple[str, ...]
    parameters: tuple[str, ...]
    var_keyword: bool
    sha256: str


def signature_of(module: str, name: str) -> Signature:
    """Return the signature of a function or class in a file (`train.py`) or an importable module.

    Raises TargetError if there is no such file or module, it cannot be read, or it does not define `name`.
    """
    file = _source_file(module)
    try:
        text = file.read_bytes()
        body = ast.parse(text, str(file)).body
    except (OSError, SyntaxError, ValueError) as error:
        raise TargetError(f"cannot be read: {reason(error)}", kind="not-readable", path=module) from error
    definitions = [one for one in _definitions(body) if one.name == name]
    if not definitions:
        raise no_function(module, name, [one.name for one in _definitions(body)])
    return _signature(definitions[-1], hashlib.sha256(text).hexdigest()[:16])


def _source_file(module: str) -> Path:
    """Return the file of a path or module, located as Python would, without importing parent packages."""
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise TargetError("no such file", kind="missing-file", path=module)
        return Path(module)
    path: list[str] | None = None
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        # Python searches below the current folder first
        searched = ["", *sys.path] if path is None else path
        spec = PathFinder.find_spec(".".join(names[:depth]), searched)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or [])
        if depth == len(names) and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    raise TargetError(
        "no such module, or it is not written in Python",
        kind="missing-module",
        found=module,
        hint="run iobench where Python can import it",
    )


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield functions and classes of a module, including those under `if` and `try`."""
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            yield one
        elif isinstance(one, (ast.If, ast.Try)):
            yield from _definitions([*one.body, *one.orelse])


def _signature(definition: ast.FunctionDef | ast.ClassDef, sha256: str) -> Signature:
    if isinstance(definition, ast.ClassDef):
        methods = [one for one in definition.body if isinstance(one, ast.FunctionDef)]
        inits = [one for one in methods if one.name == "__init__"]
        if not inits:
            return Signature((), (), var_keyword=True, sha256=sha256)  # a base class may accept anything
        return _of_arguments(inits[-1].args, sha256, skipped=1)
    return _of_arguments(definition.args, sha256, skipped=0)


def _of_arguments(arguments: ast.arguments, sha256: str, skipped: int) -> Signature:
    plain = [*arguments.posonlyargs, *arguments.args]
    required = plain[skipped : len(plain) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needs = [one.arg for one in required] + [one.arg for one, default in named if default is None]
    names = [one.arg for one in [*arguments.args, *arguments.kwonlyargs]]
    return Signature(tuple(needs), tuple(names), arguments.kwarg is not None, sha256)
