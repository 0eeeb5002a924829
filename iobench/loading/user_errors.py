"""Errors of a user's own code: their message, the line that raised them, and its traceback."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench.base.errors import TargetError
from iobench.base.text import listed, suggestion
from iobench.host.system_errors import system_error

# in the message of an error that a worker of torch raised
WORKER_TRACEBACK = "Original Traceback (most recent call last)"
WORKER_FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.M)


def target_error(problem: str, error: BaseException, kind: str = "raised") -> TargetError:
    """Return a TargetError with the traceback of the user's own code."""
    failure = TargetError(problem, kind=kind)
    failure.traceback = traceback_of(error)
    return failure


def no_function(module: str, name: str, defined: Sequence[str]) -> TargetError:
    """Return the error for a function that a file or module does not define, with those that it does."""
    return TargetError(
        f"defines no function {name!r}",
        kind="no-callable",
        path=module,
        found=listed(defined) or "none",
        hint=suggestion(name, defined).rstrip() or f"name one that is defined as 'def {name}(…)'",
    )


def loader_error(error: BaseException, after: str = "") -> TargetError:
    """Return the TargetError for an error that a user's loader raised, `after` some batches."""
    if refused := system_error(error):
        return refused.converted(TargetError)
    return target_error(f"the loader raised {type(error).__name__}{after}: {_message(error)}", error)


@contextmanager
def loader_errors() -> Iterator[None]:
    """Turn any error of a user's loader into a TargetError, with the error as its cause."""
    try:
        yield
    except TargetError:
        raise
    except Exception as error:  # a user's loader may raise anything
        raise loader_error(error) from error


def traceback_of(error: BaseException) -> str:
    """Return the traceback of the user's own code, without iobench's frames."""
    formatted = traceback.TracebackException.from_exception(error)
    frames = _without_iobench(formatted.stack)
    first = next((number for number, frame in enumerate(frames) if _is_own(frame)), 0)
    formatted.stack = traceback.StackSummary.from_list(frames[first:])
    return "".join(formatted.format()) if formatted.stack or isinstance(error, SyntaxError) else ""


def location(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback, as `train.py:12`, or an empty string."""
    frames = WORKER_FRAME.findall(str(error).strip())  # of a worker
    if outside := [frame for frame in frames if "/site-packages/" not in frame[0]]:
        return f"{Path(outside[-1][0]).name}:{outside[-1][1]}"
    stack = _without_iobench(traceback.TracebackException.from_exception(error).stack)
    own = [frame for frame in stack if _is_own(frame)] or stack
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _is_own(frame: traceback.FrameSummary) -> bool:
    return "/site-packages/" not in frame.filename


def _without_iobench(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    ours = str(Path(__file__).parent.parent)
    frames = [frame for frame in stack if not frame.filename.startswith((ours, "<frozen importlib"))]
    return [frame for frame in frames if "/importlib/" not in frame.filename]


def summarize(error: BaseException) -> str:
    """Return an error's class and message in one line."""
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: BaseException) -> str:
    """Return the first line of an error's message; the last one if torch put a worker's traceback into it."""
    text = str(error).strip()
    if WORKER_TRACEBACK not in text:
        return text.partition("\n")[0]
    return text.rpartition("\n")[2].removeprefix(f"{type(error).__name__}: ")
