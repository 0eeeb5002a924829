"""Targets: `MODULE:CALLABLE` or `path/to/file.py:callable`, with their parameters and loaders."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.text import reason, suggestion
from iobench.loading.user_errors import USER_ERRORS, no_function, outcome, target_error


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
    skipped = 0
    if isinstance(definition, ast.ClassDef):
        methods = [one for one in definition.body if isinstance(one, ast.FunctionDef)]
        inits = [one for one in methods if one.name == "__init__"]
        if not inits:
            return Signature((), (), var_keyword=True, sha256=sha256)  # a base class may accept anything
        definition, skipped = inits[-1], 1
    arguments = definition.args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = plain[skipped : len(plain) - len(arguments.defaults)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    needs = [one.arg for one in required] + [one.arg for one, default in named if default is None]
    names = [one.arg for one in [*arguments.args, *arguments.kwonlyargs]]
    return Signature(tuple(needs), tuple(names), arguments.kwarg is not None, sha256)


TARGET_PATTERN = re.compile(
    r"(?P<module>[^:=,]+):(?P<function>[A-Za-z_]\w*)(?::(?P<arguments>.*))?", re.ASCII
)

Value = bool | int | float | str | None


@dataclass(frozen=True)
class TargetCall:
    """A callable of a user's file or module, and the arguments to call it with.

    Attributes
    ----------
    name : str
        `MODULE:CALLABLE`.
    function : callable
        The callable itself.
    arguments : mapping
        Keyword arguments given in the target.
    parameters : tuple of str
        Parameters that can be given by name.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Value]
    parameters: tuple[str, ...]

    def argument_or_default(self, name: str) -> Value:
        """Return the argument for a parameter, or its default; None if it has neither."""
        if name in self.arguments or name not in self.parameters:
            return self.arguments.get(name)
        default = inspect.signature(self.function).parameters[name].default
        return None if default is inspect.Parameter.empty else default

    def build(self, **more: Any) -> Iterable[Any]:
        """Call the callable with its arguments and `more`, and return the loader."""
        return build_loader(self.function, self.name, {**self.arguments, **more})


def parse_target(word: str) -> TargetCall:
    """Return the call that a target like `train.py:make_loader:batch_size=64` names.

    Raises
    ------
    TargetError
        If there is no such callable, or a required argument is missing.
    InvalidSettings
        If it has no parameter of a name that is given.
    """
    match = TARGET_PATTERN.fullmatch(word)
    if match is None:
        raise _not_a_target(word, "make_loader")
    name = f"{match['module']}:{match['function']}"
    function, arguments = import_callable(match["module"], match["function"]), arguments_in(word)
    required, parameters, var_keyword = _parameters(function)
    if missing := [one for one in required if one not in arguments]:
        raise TargetError(
            f"{name} needs {', '.join(missing)}",
            kind="missing-argument",
            hint=f"give it, as in {name}:{missing[0]}=VALUE, or name a function without required parameters",
        )
    if not var_keyword:
        check_known(name, arguments, parameters)
    return TargetCall(name, function, arguments, parameters)


def check_known(name: str, arguments: Iterable[str], parameters: Sequence[str]) -> None:
    """Raise InvalidSettings if an argument is none of a function's parameters."""
    if unknown := [one for one in arguments if one not in parameters]:
        raise InvalidSettings(
            f"{name} has no parameter {', '.join(unknown)}",
            kind="unknown-parameter",
            expected=f"one of {', '.join(parameters)}" if parameters else "no parameters",
            hint=suggestion(unknown[0], parameters).rstrip() or None,
        )


def import_function(word: str) -> Callable[..., Any]:
    """Import the callable that a word like `train.py:step` names; TargetError if there is none."""
    match = TARGET_PATTERN.fullmatch(word)
    if match is None or match["arguments"] is not None:
        raise _not_a_target(word, "step")
    return import_callable(match["module"], match["function"])


def _not_a_target(word: str, example: str) -> TargetError:
    return TargetError(
        "not a function of a file or module",
        kind="not-a-target",
        found=repr(word),
        hint=f"write package.module:{example} or train.py:{example}",
    )


def arguments_in(word: str) -> dict[str, Value]:
    """Return the keyword arguments in a target: numbers, booleans (yes and no), None (none) or text."""
    match = TARGET_PATTERN.fullmatch(word)
    pairs = ((match["arguments"] if match else None) or "").split(",")
    return dict(_pair(word, pair) for pair in pairs if pair)


def import_callable(module: str, name: str) -> Callable[..., Any]:
    """Import a file or module and return its callable `name`; TargetError if there is none."""
    imported = _import(module)
    function = getattr(imported, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    if function is None:
        own = [
            one
            for one, value in vars(imported).items()
            if callable(value) and getattr(value, "__module__", "") == imported.__name__
        ]
        raise no_function(module, name, own)
    raise TargetError(
        f"no callable {name!r}",
        kind="no-callable",
        path=module,
        expected="a function that returns a loader",
        found=type(function).__name__,
        hint=f"write one: def make(): return {name}",
    )


# once per process: the time that importing a user's file takes is not the time to open a loader
import_once = cache(import_callable)


def build_loader(function: Callable[..., Any], target: str, arguments: Mapping[str, Any]) -> Iterable[Any]:
    """Call a user's function and return its loader.

    Raises TargetError if it raises, with the user's own traceback, or if its result is not iterable.
    """
    name = target.rpartition(":")[2]
    try:
        loader = function(**arguments)
    except TargetError:  # of a watchdog
        raise
    except USER_ERRORS as error:
        raise target_error(f"{target}: {name}() {outcome(error)}", error) from error
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TargetError(
            f"{target}: the result of {name}()",
            kind="not-iterable",
            expected="an iterable of batches",
            found=type(loader).__name__,
        )
    return loader  # type: ignore[no-any-return]


def _import(module: str) -> Any:
    path = Path(module)
    sys.path.insert(0, str(path.parent.resolve() if path.suffix == ".py" else Path.cwd()))
    try:
        if path.suffix != ".py":
            return importlib.import_module(module)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise TargetError("no such file", kind="missing-file", path=module)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = loaded  # workers unpickle what they are sent by this name
        spec.loader.exec_module(loaded)
        return loaded
    except TargetError:
        raise
    except USER_ERRORS as error:
        problem = f"{module} cannot be imported: it {outcome(error)}"
        raise target_error(problem, error, kind="cannot-import") from error


def _parameters(function: Any) -> tuple[list[str], tuple[str, ...], bool]:
    """Return the required parameters, all that can be given by name, and whether it has ``**kwargs``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return [], (), True
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = tuple(p.name for p in parameters if p.kind in by_name)
    return required, names, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _pair(word: str, pair: str) -> tuple[str, Value]:
    name, equals, text = pair.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidSettings(word, kind="invalid-argument", expected="PARAMETER=VALUE", found=repr(pair))
    return name, _value(text)


def _value(text: str) -> Value:
    """Return a number, a boolean, None or the text itself."""
    words: dict[str, Value] = {"yes": True, "true": True, "no": False, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
