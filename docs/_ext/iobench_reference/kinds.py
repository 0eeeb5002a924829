"""Kinds of warnings, advice, findings and errors: identifiers that are found by a scan of the source."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import iobench

PACKAGE = Path(iobench.__file__).parent
ANY = "…"  # in place of what a message computes
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Use:
    """A kind in a call: what is called, the docstring of the function around it, and what it prints.

    `message` and `hint` have a line for each of several alternatives.
    """

    called: str
    meaning: str
    message: str
    hint: str


def parameters_of(*callables: type) -> dict[str, Sequence[str]]:
    """Return the names of the parameters of each class by its name, in their order."""
    return {one.__name__: list(inspect.signature(one).parameters) for one in callables}


def makers_of(classes: Collection[str]) -> dict[str, Sequence[str]]:
    """Return the parameters of every function that takes a kind and returns one of these classes, by name."""
    return {
        function.name: [argument.arg for argument in function.args.args]
        for path in sorted(PACKAGE.rglob("*.py"))
        for function in ast.walk(_parsed(path))
        if isinstance(function, _Function) and getattr(function.returns, "id", None) in classes
        if "kind" in [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    }


def scan(callables: Mapping[str, Sequence[str]]) -> dict[str, list[Use]]:
    """Return the uses of each kind that a call of one of these is given as a literal, by kind."""
    found: dict[str, list[Use]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind, use in _uses(path, callables):
            if use not in found.setdefault(kind, []):
                found[kind].append(use)
    return dict(sorted(found.items()))


def main_use(uses: Sequence[Use]) -> Use:
    """Return the use that says most of a kind: in a check of its own before a function that returns more."""
    return min(uses, key=lambda use: (not use.meaning, not use.message))


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def _calls_in(path: Path) -> list[tuple[ast.Call, ast.AST, ast.Module]]:
    """Return every call of a module with the function and the block around it."""
    return list(_calls(_parsed(path), _parsed(path), _parsed(path)))


def _uses(path: Path, callables: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Use]]:
    for call, around, block in _calls_in(path):
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if called not in callables:
            continue
        given = dict(zip(callables[called], call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        message = _text(given.get("message", given.get("problem")), block, around)
        hint = _text(given.get("hint", given.get("hints")), block, around)
        meaning = _text(given.get("cause"), block, around) or _docstring(around)
        for kind in _literals(given.get("kind"), block, around, _parsed(path)):
            yield kind, Use(called, meaning, message, hint)


def _calls(
    node: ast.AST, around: ast.AST, block: ast.Module
) -> Iterator[tuple[ast.Call, ast.AST, ast.Module]]:
    """Yield every call with the function around it, the innermost one that has a docstring, and its block."""
    if isinstance(node, _Function) and (ast.get_docstring(node) or isinstance(around, ast.Module)):
        around = node
    if isinstance(node, ast.Call):
        yield node, around, block
    for _, value in ast.iter_fields(node):
        several = value if isinstance(value, list) else [value]
        inner = ast.Module(several, []) if several and isinstance(several[0], ast.stmt) else block
        for child in several:
            if isinstance(child, ast.AST):
                yield from _calls(child, around, inner)


def _docstring(around: ast.AST) -> str:
    """Return the docstring of a check, which says what happened; not one that says what it returns."""
    text = ast.get_docstring(around) if isinstance(around, _Function) else None
    return "" if text is None or text.startswith(("Return", "Yield", "Raise")) else text


def _literals(value: ast.expr | None, *scopes: ast.AST) -> list[str]:
    """Return the strings that an expression may be: a constant, one of two, or a name for these."""
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.IfExp):
        return [*_literals(value.body), *_literals(value.orelse)]
    return [text for one in _assigned(value, *scopes) for text in _literals(one)]


def _text(value: ast.expr | None, *scopes: ast.AST) -> str:
    """Return a message as it is written, with ANY for its computed parts; a line for each of several.

    Empty where it is not written there.
    """
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value.replace("{}", ANY).replace("\n", " ")
    if isinstance(value, ast.JoinedStr):
        return "".join(_text(part) or ANY for part in value.values)
    if isinstance(value, ast.Tuple):
        return "\n".join(filter(None, map(_text, value.elts)))
    either = [value.body, value.orelse] if isinstance(value, ast.IfExp) else _assigned(value, *scopes)
    return "\n".join(filter(None, map(_text, either)))


def _assigned(name: ast.expr | None, *scopes: ast.AST) -> list[ast.expr]:
    """Return what is assigned to a name in the first of the scopes that has it, alone or in a tuple."""
    values = (
        [
            value
            for statement in _assignments(scope)
            for target, value in _pairs(statement.targets[0], statement.value)
            if isinstance(name, ast.Name) and isinstance(target, ast.Name) and target.id == name.id
        ]
        for scope in scopes
    )
    return next(filter(None, values), [])


def _assignments(node: ast.AST) -> Iterator[ast.Assign]:
    """Yield the assignments in a block or function, without those in inner blocks that leave it."""
    if isinstance(node, ast.Assign):
        yield node
    for _, value in ast.iter_fields(node):
        inner = value if isinstance(value, list) and value and isinstance(value[0], ast.AST) else []
        leaves = inner and not isinstance(node, (ast.Module, *_Function))
        if leaves and isinstance(inner[-1], (ast.Raise, ast.Return)):
            continue
        for child in inner:
            if not isinstance(node, ast.Module) or not isinstance(child, (*_Function, ast.ClassDef)):
                yield from _assignments(child)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]
