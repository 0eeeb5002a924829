"""`MODULE:CALLABLE` or `path/to/file.py:callable` → what the callable returns."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from iobench.errors import TargetError


def loader_of(target: str) -> Iterable[Any]:
    """The loader that a named callable makes.

    TargetError where there is no such callable, it needs arguments, it raises, or what it returns
    cannot be iterated over; the user's own traceback goes with the error as a note.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise TargetError(f"{target!r}: write it like package.module:make_loader or train.py:make_loader")
    make = callable_of(place, name)
    if needed := _needed(make):
        raise TargetError(f"{target}: {name} needs {', '.join(needed)}; name one that can be called without")
    return made(make, target, {})


def callable_of(place: str, name: str) -> Callable[..., Any]:
    """What is called `name` in a file or a module, which is imported now; TargetError where nothing is."""
    make = getattr(_module(place), name, None)
    if not callable(make):
        raise TargetError(f"{place}:{name}: {place} has no callable {name!r}")
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
            f"{target}: {name}() returned {type(loader).__name__}, which cannot be iterated over"
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
            raise TargetError(f"{place}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # so that workers can find what they are sent
        spec.loader.exec_module(module)
        return module
    except TargetError:
        raise
    except (Exception, SystemExit) as error:  # whatever somebody's module does when it is imported
        raise failed(f"{place} cannot be imported: {kind_of(error)}", error) from error


def _needed(make: Any) -> list[str]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # some in C have none
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def failed(message: str, error: BaseException) -> TargetError:
    """The TargetError that says this, with the user's own traceback."""
    failed = TargetError(message)
    failed.traceback = traceback_of(error)
    return failed


def traceback_of(error: BaseException) -> str:
    """The traceback of the user's code: without what iobench and the import system did before."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(_theirs(told.stack))
    return "".join(told.format()) if told.stack or isinstance(error, SyntaxError) else ""


def where(error: BaseException) -> str:
    """The innermost line of the user's code that an error went through, `train.py:12`; or nothing."""
    frames = _theirs(traceback.TracebackException.from_exception(error).stack)
    own = [frame for frame in frames if "/site-packages/" not in frame.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _theirs(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    own = str(Path(__file__).parent.parent)
    theirs = [frame for frame in stack if not frame.filename.startswith((own, "<frozen importlib"))]
    return [frame for frame in theirs if "/importlib/" not in frame.filename]


def kind_of(error: BaseException) -> str:
    """An error in one line: its name, and what it says first."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
