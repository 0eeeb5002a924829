"""Kinds of warnings, advice and errors: identifiers that are found by a scan of the source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import iobench

PACKAGE = Path(iobench.__file__).parent
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Use:
    """A kind in a call: its name, what is called, and the docstring of the function around it."""

    kind: str
    called: str
    meaning: str


def scan(names: Collection[str], positional: bool) -> dict[str, list[Use]]:
    """Return the uses of each kind that a call of one of `names` is given as a literal.

    `positional` says that the kind may be the first argument; otherwise it is the keyword alone.
    """
    found: dict[str, list[Use]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for use in _uses(ast.parse(path.read_text()), names, positional):
            if use not in found.setdefault(use.kind, []):
                found[use.kind].append(use)
    return dict(sorted(found.items()))


def meaning_of(uses: list[Use]) -> str:
    """Return the first docstring among the uses of a kind; empty where no function has one."""
    return next((use.meaning for use in uses if use.meaning), "")


def _uses(tree: ast.Module, names: Collection[str], positional: bool) -> Iterator[Use]:
    for call, around in _calls(tree, None):
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if called in names:
            for value in _kind_arguments(call, positional):
                for kind in _literals(value, around):
                    yield Use(kind, called, _meaning(call, around))


def _calls(node: ast.AST, around: ast.AST | None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    if isinstance(node, _Function):
        around = node if ast.get_docstring(node) or around is None else around
    if isinstance(node, ast.Call):
        yield node, around
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, around)


def _kind_arguments(call: ast.Call, positional: bool) -> list[ast.expr]:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "kind"]
    return given or (call.args[:1] if positional else [])


def _literals(value: ast.expr, around: ast.AST | None) -> list[str]:
    """Return the strings that an expression may be: a constant, one of two, or a local name for these."""
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.IfExp):
        return _literals(value.body, around) + _literals(value.orelse, around)
    if isinstance(value, ast.Name) and around is not None:
        assigned = [one for one in ast.walk(around) if isinstance(one, ast.Assign)]
        return [
            kind
            for one in assigned
            if any(isinstance(target, ast.Name) and target.id == value.id for target in one.targets)
            for kind in _literals(one.value, None)
        ]
    return []


def _meaning(call: ast.Call, around: ast.AST | None) -> str:
    """Return the docstring of the function around a call; of one in a module's body, its own sentences."""
    if around is not None:
        return inspect.cleandoc(ast.get_docstring(around) or "")  # type: ignore[arg-type]
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return "; ".join(text for text in texts if " " in text)
