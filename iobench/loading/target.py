"""`MODULE:CALLABLE` or `path/to/file.py:callable` → what the callable returns."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    InvalidSettings,
    TargetError,
)

WORD = re.compile(r"(?P<place>[^:=,]+):(?P<function>[A-Za-z_]\w*)(?::(?P<given>.*))?", re.ASCII)

# what torch writes into the message of an error that a worker raised
WORKERS, PLACE = "Original Traceback (most recent call last)", re.compile(r'^ +File "(.+)", line (\d+)', re.M)

Value = bool | int | float | str | None


@dataclass(frozen=True)
class Called:
    """A callable of somebody's file or module, what it is given, and which parameters it takes by name."""

    name: str
    function: Callable[..., Any]
    given: Mapping[str, Value]
    takes: tuple[str, ...]

    def given_or_default(self, name: str) -> Value:
        """What it is given for a parameter, or what that is by default; None where it is neither."""
        if name in self.given or name not in self.takes:
            return self.given.get(name)
        default = inspect.signature(self.function).parameters[name].default
        return None if default is inspect.Parameter.empty else default

    def made(self, **more: Any) -> Iterable[Any]:
        """The loader that it makes of what it is given, and of more."""
        return made(self.function, self.name, {**self.given, **more})


def called_of(word: str) -> Called:
    """What a word like `train.py:make_loader`, or `train.py:make_loader:batch_size=64`, names.

    TargetError where there is no such callable, or it needs arguments that it is not given;
    InvalidSettings where it is given one that it does not take.
    """
    match = WORD.fullmatch(word)
    if match is None:
        raise TargetError(
            "not a function of a file or module",
            kind="not-a-target",
            found=repr(word),
            hint="write package.module:make_loader or train.py:make_loader",
        )
    name = f"{match['place']}:{match['function']}"
    function, given = callable_of(match["place"], match["function"]), given_in(word)
    needed, takes, anything = _parameters(function)
    if missing := [one for one in needed if one not in given]:
        raise TargetError(
            f"{name} needs {', '.join(missing)}",
            kind="missing-argument",
            hint=f"give it, as in {name}:{missing[0]}=VALUE, or name a function without required parameters",
        )
    if unknown := [one for one in given if one not in takes and not anything]:
        raise InvalidSettings(
            f"{name} has no parameter {', '.join(unknown)}",
            kind="unknown-parameter",
            expected=f"one of {', '.join(takes)}" if takes else "no parameters",
        )
    return Called(name, function, given, takes)


def function_of(word: str) -> Callable[..., Any]:
    """What a word like `train.py:step` names; TargetError where there is no such callable."""
    match = WORD.fullmatch(word)
    if match is None or match["given"] is not None:
        raise TargetError(
            "not a function of a file or module",
            kind="not-a-target",
            found=repr(word),
            hint="write package.module:step or train.py:step",
        )
    return callable_of(match["place"], match["function"])


def given_in(word: str) -> dict[str, Value]:
    """What a word gives its function: numbers, yes and no, none, or text."""
    match = WORD.fullmatch(word)
    pairs = ((match["given"] if match else None) or "").split(",")
    return dict(_pair(word, pair) for pair in pairs if pair)


def callable_of(place: str, name: str) -> Callable[..., Any]:
    """What is called `name` in a file or a module, which is imported now; TargetError where nothing is."""
    make = getattr(_module(place), name, None)
    if not callable(make):
        raise TargetError(f"{place} has no callable {name!r}", kind="no-callable")
    return make  # type: ignore[no-any-return]


def made(make: Callable[..., Any], target: str, arguments: Mapping[str, Any]) -> Iterable[Any]:
    """The loader that a callable makes of these arguments.

    TargetError, with the user's own traceback as a note, where it raises or returns what cannot be
    iterated over.
    """
    name = target.rpartition(":")[2]
    try:
        loader = make(**arguments)
    except Exception as error:
        raise failed(f"{target}: {name}() raised {kind_of(error)}", error) from error
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TargetError(
            f"{target}: the result of {name}()",
            kind="not-iterable",
            expected="an iterable of batches",
            found=type(loader).__name__,
        )
    return loader  # type: ignore[no-any-return]


def _module(place: str) -> Any:
    path = Path(place)
    sys.path.insert(0, str(path.parent.resolve() if path.suffix == ".py" else Path.cwd()))
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise TargetError("no such file", kind="missing-file", path=place)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # so that workers can find what they are sent
        spec.loader.exec_module(module)
        return module
    except TargetError:
        raise
    except (Exception, SystemExit) as error:  # whatever somebody's module does when it is imported
        raise failed(f"{place} cannot be imported: {kind_of(error)}", error, kind="cannot-import") from error


def _parameters(function: Any) -> tuple[list[str], tuple[str, ...], bool]:
    """The parameters that it cannot do without, all that can be given by name, and whether any other can."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some in C have none
        return [], (), True
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes = tuple(p.name for p in parameters if p.kind in named)
    return needed, takes, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def failed(problem: str, error: BaseException, kind: str = "raised") -> TargetError:
    """Return a TargetError with the traceback of the user's own code."""
    failure = TargetError(problem, kind=kind)
    failure.traceback = traceback_of(error)
    return failure


def raised(error: BaseException, after: str = "") -> TargetError:
    """Return the TargetError of an error that a user's loader raised, `after` some batches."""
    return failed(f"the loader raised {type(error).__name__}{after}: {_said(error)}", error)


def traceback_of(error: BaseException) -> str:
    """The traceback from the user's own code on: without what called it."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(_from_their_own(_theirs(told.stack)))
    return "".join(told.format()) if told.stack or isinstance(error, SyntaxError) else ""


def where(error: BaseException) -> str:
    """The innermost line of the user's code that an error went through, `train.py:12`; or nothing."""
    if places := [place for place in PLACE.findall(_text(error)) if "/site-packages/" not in place[0]]:
        return f"{Path(places[-1][0]).name}:{places[-1][1]}"  # in a worker
    frames = _theirs(traceback.TracebackException.from_exception(error).stack)
    own = [frame for frame in frames if _is_own(frame)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _from_their_own(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    first = next((number for number, frame in enumerate(stack) if _is_own(frame)), 0)
    return stack[first:]


def _is_own(frame: traceback.FrameSummary) -> bool:
    return "/site-packages/" not in frame.filename


def _theirs(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    own = str(Path(__file__).parent.parent)
    theirs = [frame for frame in stack if not frame.filename.startswith((own, "<frozen importlib"))]
    return [frame for frame in theirs if "/importlib/" not in frame.filename]


def kind_of(error: BaseException) -> str:
    """An error in one line: its name, and what it says."""
    said = _said(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _said(error: BaseException) -> str:
    """What an error says first, or last where it holds a worker's traceback, which ends with its name."""
    text = _text(error)
    if WORKERS not in text:
        return text.partition("\n")[0]
    return text.rpartition("\n")[2].removeprefix(f"{type(error).__name__}: ")


def _text(error: BaseException) -> str:
    return str(error).strip()


def _pair(word: str, pair: str) -> tuple[str, Value]:
    name, equals, text = pair.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidSettings(word, kind="invalid-argument", expected="PARAMETER=VALUE", found=repr(pair))
    return name, _value(text)


def _value(text: str) -> Value:
    """A number, yes or no, none, or the text itself."""
    known: dict[str, Value] = {"yes": True, "true": True, "no": False, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
